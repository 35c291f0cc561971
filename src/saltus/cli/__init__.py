"""The command line. Exit codes: 0 done, 1 failed, 2 not understood."""

from .app import main, parser

__all__ = ["main", "parser"]
