"""`saltus demo`: a fit of a hybrid model to data, with its report."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from . import demo
from .command import Command, Outcome

EXAMPLES = """\
  saltus demo                      a spring that breaks: measurements, fit, report
  saltus demo --out folder         write the report there
  saltus demo --no-report          tables only, matplotlib not needed
"""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("saltus-demo"),
        help="folder for measurements and report, created if missing (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="noise seed (default: %(default)s)")
    parser.add_argument("--no-report", action="store_true", help="print the tables only")


def _run(args: argparse.Namespace) -> Outcome:
    os.environ.setdefault("MPLBACKEND", "Agg")  # files only, no window
    clock = time.perf_counter()
    found, data = demo.run(args.seed)
    print(demo.describe(found), flush=True)
    if not args.no_report:
        path = demo.write(found, data, args.out)
        print(f"\nReport: {path} ({time.perf_counter() - clock:.1f} s in all)")
    return Outcome()


COMMAND = Command("demo", "fit a breaking spring to noisy data", EXAMPLES, _arguments, _run)
