"""The line of a user's own code from which an error, or a traced operation, comes."""

from __future__ import annotations

import linecache
import os
import re
import textwrap
import traceback
import types
from collections.abc import Iterator
from pathlib import Path

from .types import Equation

LIBRARY = Path(__file__).resolve().parent.parent  # the folder of saltus
LIBRARIES = {"saltus", "jax", "jaxlib", "equinox", "numpy", "scipy"}  # not a user's own code
MAX_SHOWN = 90  # characters of a line in a message


def place(error: BaseException, folder: Path | None) -> str | None:
    """`ball.py, line 12`: the innermost line of code below `folder` that led to the error."""
    for link in _causes(error):
        own = _syntax(link) or _frame(link, folder)
        if own:
            return own
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes, the original one first."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return reversed(chain)


def _syntax(error: BaseException) -> str | None:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}, line {error.lineno}"
    return None


def _frame(error: BaseException, folder: Path | None) -> str | None:
    if folder is None:
        return None
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if _is_theirs(file, folder):
            return f"{_short(frame.filename)}, line {frame.lineno}"
    return None


def _is_theirs(file: Path, folder: Path) -> bool:
    if not file.is_file():
        return False
    file = file.resolve()
    libraries = file.is_relative_to(LIBRARY) or "site-packages" in file.parts
    return file.is_relative_to(folder) and not libraries


def _short(filename: str) -> str:
    """The path relative to the working directory, if it is inside."""
    file = Path(filename).resolve()
    here = Path.cwd()
    return str(file.relative_to(here)) if file.is_relative_to(here) else str(file)


INSTALLED_FILE = re.compile(r"[/\\](site|dist)-packages[/\\]|^<")


def line_of_equation(eqn: Equation) -> str:
    """The user's line, `model.py:12`, from which an equation of a traced function comes."""
    trace = getattr(getattr(eqn, "source_info", None), "traceback", None)
    for frame in getattr(trace, "frames", ()):
        if frame.file_name.startswith(str(LIBRARY)):
            break
        if not INSTALLED_FILE.search(frame.file_name):
            return f"{os.path.basename(frame.file_name)}:{frame.line_num}"
    return ""


def line_of_error(error: Exception) -> tuple[str, str]:
    """Where in the user's files an error arose, `model.py:12`, and what is written there."""
    own = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _library(frame) not in LIBRARIES
    ]
    if not own:
        return "", ""
    file, line = own[-1]
    written = textwrap.shorten(linecache.getline(file, line), MAX_SHOWN, placeholder=" ...")
    return f"{os.path.basename(file)}:{line}", written


def raised_here(error: Exception) -> bool:
    """Whether saltus itself raised an error, whose text then says what is wrong."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and _library(frames[-1]) == "saltus"


def _library(frame: types.FrameType) -> str:
    return (frame.f_globals.get("__name__") or "").partition(".")[0]
