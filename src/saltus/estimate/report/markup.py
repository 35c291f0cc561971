"""Pieces of HTML. Text that comes from a user is escaped by `text`."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsFloat

import numpy as np

from ...base.text import number

if TYPE_CHECKING:
    from .figures import Picture


def text(value: object) -> str:
    """A value as escaped text."""
    return html.escape(str(value), quote=True)


class Cell(NamedTuple):
    """A cell of a table: its HTML, and its tooltip."""

    inside: str
    title: str = ""
    kind: str = ""


def figures(value: SupportsFloat, digits: int = 4, dash: str = "–") -> Cell:
    """A number, with all its digits as a tooltip."""
    value = float(value)
    if not np.isfinite(value):
        return Cell(dash)
    return Cell(text(number(value, digits)), repr(value))


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], left: Sequence[int] = (0,)) -> str:
    """A table; columns in `left` are words, the others numbers."""
    kinds = ["" if k in left else ' class="n"' for k in range(len(head))]
    top = "".join(f"<th{kind}>{text(h)}</th>" for kind, h in zip(kinds, head, strict=True))
    body = "".join(
        "<tr>" + "".join(map(_cell, row, [k in left for k in range(len(head))])) + "</tr>\n"
        for row in rows
    )
    return (
        '<div class="wide"><table>\n<thead><tr>'
        f"{top}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def _cell(content: object, words: bool) -> str:
    cell = content if isinstance(content, Cell) else Cell(text(content))
    kinds = " ".join(filter(None, ["" if words else "n", cell.kind]))
    attributes = f' class="{kinds}"' if kinds else ""
    attributes += f' title="{text(cell.title)}"' if cell.title else ""
    return f"<td{attributes}>{cell.inside}</td>"


def section(name: str, title: str, *parts: str) -> str:
    """A part of the page under its heading."""
    return f'<section id="{name}">\n<h2>{text(title)}</h2>\n{"".join(parts)}</section>\n'


def folded(title: str, *parts: str) -> str:
    """A section that is collapsed to its title."""
    return f"<details>\n<summary>{text(title)}</summary>\n{''.join(parts)}</details>\n"


def paragraph(words: str, kind: str = "") -> str:
    """A paragraph of text that is already HTML."""
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{words}</p>\n"


def bullets(items: Iterable[str]) -> str:
    """A list of texts that are already HTML."""
    return "<ul>\n" + "".join(f"<li>{item}</li>\n" for item in items) + "</ul>\n"


def picture(name: str, shown: Picture, note: str = "") -> str:
    """A figure inside the page, with its caption."""
    data = base64.b64encode(shown.png).decode("ascii")
    words = text(f"{shown.caption} {note}".strip())
    return (
        f'<figure>\n<img id="picture-{name}" alt="{text(shown.alt)}" width="{shown.width}" '
        f'height="{shown.height}" src="data:image/png;base64,{data}">\n'
        f"<figcaption>{words}</figcaption>\n</figure>\n"
    )


def code(words: str) -> str:
    """A listing."""
    return f"<pre><code>{text(words)}</code></pre>\n"
