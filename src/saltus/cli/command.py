"""A command and its outcome."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from ..base.names import named
from ..base.types import Tree

JSON: TypeAlias = dict[str, "JSON"] | list["JSON"] | str | float | bool | None


class UsageError(ValueError):
    """A command line that is not understood."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a command: as text, as data for `--json`, and an error message if any."""

    text: str = ""
    data: object = None
    complaint: str = ""
    code: int = 0


class Command(NamedTuple):
    """A subcommand: its name, one line of help, examples, its arguments and its function."""

    name: str
    help: str
    examples: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Outcome]


# -- JSON ---------------------------------------------------------------------------------------
def plain(value: object) -> JSON:
    """Numbers, arrays and containers as JSON: lists, floats, null for NaN and infinity."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if hasattr(value, "dtype"):
        return plain(np.asarray(value).tolist())
    return str(value)


def by_name(tree: Tree, root: str) -> dict[str, JSON]:
    """The numbers of a pytree by their names, for JSON."""
    return {name: plain(leaf) for name, leaf in named(tree, root).items()}
