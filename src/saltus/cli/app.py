"""The parser of the whole command line, and what happens when a command fails."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from . import check_command, demo_command, fit_command, sensitivities_command, simulate_command
from .command import Command, Outcome
from .errors import NOT_UNDERSTOOD, explained

EXAMPLES = """\
examples:
  saltus demo --out pictures                    a spring that breaks, as a first look
  saltus simulate ball.py                       what happens, in words and numbers
  saltus simulate ball.py:ball --set e=0.7 --t1 5 --out run
  saltus sensitivities ball.py --of h --by e,g  derivatives, exact through every event
  saltus fit ball.py data.csv --free e,g        parameters from measurements
  saltus check ball.py                          check the model and its derivatives

`saltus COMMAND --help` says more. Exit codes: 0 success, 1 failure, 2 wrong usage.
"""

COMMANDS: list[Command] = [
    simulate_command.COMMAND,
    sensitivities_command.COMMAND,
    fit_command.COMMAND,
    check_command.COMMAND,
    demo_command.COMMAND,
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
        sub = commands.add_parser(
            command.name,
            help=command.help,
            description=command.help[0].upper() + command.help[1:] + ".",
            epilog=f"examples:\n{command.examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.arguments(sub)
        sub.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
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
        with _clean_stdout(args):
            outcome = args.run(args)
        _show(outcome, args)
        return outcome.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if args.debug:
            raise
        model = getattr(args, "model", None)
        print(f"saltus {args.command}: {explained(error, model)}", file=sys.stderr)
        return 2 if isinstance(error, NOT_UNDERSTOOD) else 1


def _clean_stdout(args: argparse.Namespace) -> contextlib.AbstractContextManager:
    """With `--json`, output printed by a model file goes to stderr."""
    if getattr(args, "json", False):
        return contextlib.redirect_stdout(sys.stderr)
    return contextlib.nullcontext()


def _show(outcome: Outcome, args: argparse.Namespace) -> None:
    if getattr(args, "json", False):
        print(json.dumps(outcome.data, allow_nan=False))
    elif outcome.text:
        print(outcome.text)
    sys.stdout.flush()
    if outcome.complaint:
        print(f"saltus {args.command}: {outcome.complaint}", file=sys.stderr)
