"""The command line. Exit codes: 0 success, 1 failure, 2 wrong usage."""

from .app import main, parser

__all__ = ["main", "parser"]
