"""Numbers, tables and trees as text."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .types import Number, Tree

TRACEBACKS = ("Traceback (most recent call last):", "Below is the stack inside of JIT:")
HIDDEN = ("_", "Equinox")  # how names of classes begin that say nothing


def number(value: Number, digits: int = 6, zeros: bool = False) -> str:
    """A number to `digits` digits, with trailing zeros if `zeros`; integers as they are."""
    value = np.asarray(value)[()]
    if not isinstance(value, float | np.floating):
        return f"{value}"
    return f"{value:#.{digits}g}" if zeros else f"{value:.{digits}g}"


def message_of(error: BaseException) -> str:
    """The message of an error; for a callback from compiled code, the error that it raised."""
    lines = str(error).splitlines()
    begins = [k for k, line in enumerate(lines) if line.endswith(TRACEBACKS)]
    if begins:
        after = lines[begins[-1] + 1 :]
        own = (k for k, line in enumerate(after) if line and not line[0].isspace())
        lines = after[next(own, 0) :]
        name, colon, text = lines[0].partition(": ") if lines else ("", "", "")
        if colon and name.rpartition(".")[2].startswith(HIDDEN):
            lines[0] = text
    rule = (k for k, line in enumerate(lines) if line and set(line) == {"-"})
    return "\n".join(lines[: next(rule, len(lines))]).strip()


def first_line(error: BaseException) -> str:
    """An error in one line, with its class where that says something."""
    text, name = message_of(error).splitlines(), type(error).__name__
    if text and (name.startswith(HIDDEN) or any(mark in str(error) for mark in TRACEBACKS)):
        return text[0]
    return f"{name}: {text[0]}" if text else name


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """A table with the headings `head`; columns are aligned right, those in `left` left."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[k]) for line in cells) for k in range(len(head))]

    def line(row: Sequence[str]) -> str:
        parts = [
            text.ljust(width) if k in left else text.rjust(width)
            for k, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(parts).rstrip()

    return "\n".join([line(cells[0]), "  ".join("-" * w for w in widths), *map(line, cells[1:])])


def derivatives(
    values: Mapping[str, Any], jacobian: Mapping[str, Mapping[str, Any]], order: Sequence[str]
) -> str:
    """A table of values and of their derivatives with respect to the parameters `order`."""
    rows = [
        [name, number(values[name], 6, True), *(number(row[a], 6, True) for a in order)]
        for name, row in ((name, jacobian[name]) for name in values)
    ]
    return table(["", "value", *(f"d/d{a}" for a in order)], rows)


# -- files ---------------------------------------------------------------------------------------
def write_columns(path: Path, columns: Mapping[str, Iterable[Any]]) -> Path:
    """Write a CSV file with these columns and their names."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(v) for v in row] for row in zip(*columns.values(), strict=True))
    return path


def _cell(value: Any) -> object:
    """A value for a CSV file: floats with all their digits, NaN as an empty cell."""
    value = value.item() if hasattr(value, "dtype") else value
    if isinstance(value, float):
        return "" if np.isnan(value) else repr(value)
    return value


def picture(tree: Tree) -> str:
    """A short text that shows a structure: names and shapes, not values."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{k!r}: {picture(v)}" for k, v in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        inner = ", ".join(picture(v) for v in tree)
        return f"({inner})" if isinstance(tree, tuple) else f"[{inner}]"
    if hasattr(tree, "shape"):
        return "number" if tree.shape == () else f"array{list(tree.shape)}"
    if tree is None:
        return "None"
    return "number" if isinstance(tree, int | float) else type(tree).__name__
