"""A fit as one HTML file: numbers, figures, and how to reproduce it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..monitor import said
from . import figures, page

if TYPE_CHECKING:
    from ..result import Fit
    from .figures import Picture


def write(fit: Fit, path: str | Path = "report.html", progress: bool | None = None) -> Path:
    """Write the report of a fit, and its pictures into a folder `<name>_files` beside it.

    The HTML file is self-contained: it can be moved or sent alone. Needs the extra `plot`.
    """
    path, clock = Path(path), time.perf_counter()
    if path.suffix.lower() not in (".html", ".htm"):
        path = path.with_name(path.name + ".html")
    with said(f"writing the report {path}", progress):
        pictures = figures.pictures(fit)
        _write(fit, path, pictures, time.perf_counter() - clock)
    return path


def _write(fit: Fit, path: Path, pictures: Mapping[str, Picture], seconds: float) -> None:
    folder = path.with_name(f"{path.stem}_files")
    folder.mkdir(parents=True, exist_ok=True)
    for name in figures.FIGURES:  # remove those of an earlier report
        (folder / f"{name}.png").unlink(missing_ok=True)
    for name, picture in pictures.items():
        (folder / f"{name}.png").write_bytes(picture.png)
    path.write_text(page.page(fit, pictures, seconds), encoding="utf-8")


__all__ = ["write"]
