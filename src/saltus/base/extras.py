"""Packages that only some features need."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


class MissingExtra(ImportError):
    """A feature needs a package that is not installed."""


def need(module: str, extra: str, feature: str) -> Any:
    """The module, or an error that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtra(
            f"{feature} needs {package}, which is not installed. "
            f'Write: pip install "saltus[{extra}]"'
        ) from error


def available(module: str) -> bool:
    """Whether a module is installed."""
    return importlib.util.find_spec(module) is not None
