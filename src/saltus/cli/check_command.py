"""`saltus check`: is a model sound, does it solve, and are its derivatives right?"""

from __future__ import annotations

import argparse
import textwrap

from ..base.text import table
from ..estimate.monitor import said
from . import options
from .command import Command, Outcome
from .errors import explained
from .model_checks import FAILED, WARNING, Finding, examine

EXAMPLES = """\
  saltus check ball.py
  saltus check ball.py:ball --set e=0.7 --t1 5
  saltus check ball.py --json
"""


def _arguments(parser: argparse.ArgumentParser) -> None:
    options.model_argument(parser)
    options.run_arguments(parser)
    options.json_argument(parser.add_argument_group("results"))


def _run(args: argparse.Namespace) -> Outcome:
    setup = options.setup_until(args)
    with said(f"checking {setup.scenario.name}"):
        findings = list(examine(setup.scenario, lambda error: explained(error, args.model)))
    bad = [f for f in findings if f.result == FAILED]
    doubts = [f for f in findings if f.result == WARNING]
    parts = [setup.head(), as_text(findings), *([] if bad else [_verdict(doubts)])]
    checks = [f._asdict() for f in findings]
    data = {**setup.facts(), "ok": not bad, "warnings": len(doubts), "checks": checks}
    complaint = f"failed: {', '.join(f.check for f in bad)}." if bad else ""
    return Outcome("\n\n".join(parts), data, complaint, 1 if bad else 0)


def as_text(findings: list[Finding]) -> str:
    """A line per check; long sentences are wrapped and aligned."""
    rows: list[list[str]] = []
    for f in findings:
        first, *more = _wrapped(f.detail)
        rows += [[f.check, f.result, first], *(["", "", line] for line in more)]
    return table(["check", "result", ""], rows, left=(0, 1, 2))


def _wrapped(text: str, width: int = 78) -> list[str]:
    return [line for part in text.splitlines() for line in textwrap.wrap(part, width)] or [""]


def _verdict(doubts: list[Finding]) -> str:
    if doubts:
        return f"Nothing failed; warnings: {', '.join(f.check for f in doubts)}."
    return "All checks passed."


COMMAND = Command(
    "check",
    "check a model: shapes, solve, accuracy, derivatives by three methods",
    EXAMPLES,
    _arguments,
    _run,
)
