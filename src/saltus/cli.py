"""The command line: `saltus demo`. Exit codes: 0 done, 1 failed, 2 not understood."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from .extras import MissingExtra
from .results import SolveError

EXAMPLES = """\
examples:
  saltus demo                      a spring that breaks: events, sensitivities, a picture
  saltus demo --out pictures       write the picture there
  saltus demo --no-figure          tables only, matplotlib not needed
"""


class Command(NamedTuple):
    """A subcommand: its name, one line of help, its arguments, and what it does."""

    name: str
    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("saltus-demo"),
        help="folder for the picture, made if missing (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--no-figure", action="store_true", help="print the tables only")


def _demo(args: argparse.Namespace) -> int:
    from . import demo

    os.environ.setdefault("MPLBACKEND", "Agg")  # files only, no window
    sol, text = demo.report()
    print(text)
    if not args.no_figure:
        print(f"\nFigure: {demo.write_figure(sol, args.out)}")
    return 0


COMMANDS = [
    Command("demo", "simulate a breaking spring and differentiate it", _demo_arguments, _demo)
]


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    main = argparse.ArgumentParser(
        prog="saltus",
        description="Differentiable simulation of systems that flow and jump.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    main.add_argument("--version", action="version", version=f"saltus {_version()}")
    main.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = main.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for command in COMMANDS:
        sub = commands.add_parser(command.name, help=command.help, description=command.help)
        command.arguments(sub)
        sub.set_defaults(run=command.run)
    return main


def _version() -> str:
    try:
        return version("saltus")
    except PackageNotFoundError:
        return "(not installed)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    whole = parser()
    args = whole.parse_args(arguments)
    if args.command is None:
        whole.print_help(sys.stderr)
        return 2
    try:
        return args.run(args)
    except KeyboardInterrupt:
        return 130
    except (MissingExtra, SolveError, OSError, ValueError, TypeError, KeyError) as error:
        if args.debug:
            raise
        print(f"saltus {args.command}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
