"""A fit as one HTML file: numbers, pictures, and how to do it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import figures, html


def write(fit: Any, path: Any = "report.html") -> Path:
    """Write the report of a fit, and its pictures into a folder `<name>_files` beside it.

    The HTML file has everything inside: it can be moved or sent alone. Needs the extra `plot`.
    """
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        path = path.with_name(path.name + ".html")
    pictures = figures.pictures(fit)
    folder = path.with_name(f"{path.stem}_files")
    folder.mkdir(parents=True, exist_ok=True)
    for name in figures.FIGURES:  # those of an earlier report must not stay
        (folder / f"{name}.png").unlink(missing_ok=True)
    for name, picture in pictures.items():
        (folder / f"{name}.png").write_bytes(picture.png)
    path.write_text(html.page(fit, pictures), encoding="utf-8")
    return path


__all__ = ["write"]
