"""`saltus simulate`: solve a model, and show or save the results."""

from __future__ import annotations

import argparse

from . import options, solution_output
from .command import Command, Outcome

EXAMPLES = """\
  saltus simulate ball.py                             the one scenario in the file
  saltus simulate ball.py:ball --set e=0.7 --t1 5     other numbers, another end
  saltus simulate ball.py --set start.h=2             another start
  saltus simulate ball.py --ts 0:7:0.1 --out run      files: CSV, npz and a picture
  saltus simulate ball.py --method Radau5 --rtol 1e-6
  saltus simulate ball.py --json | jq .events         for other programs
"""


def _arguments(parser: argparse.ArgumentParser) -> None:
    options.model_argument(parser)
    options.run_arguments(parser)
    options.time_arguments(parser)
    options.output_arguments(parser, "trajectory.csv, events.csv, solution.npz and trajectory.png")


def _run(args: argparse.Namespace) -> Outcome:
    setup = options.setup_until(args)
    run = solution_output.solved(setup, args.ts, args.points)
    files, notes = solution_output.write(run, args.out) if args.out else ([], [])
    data = {}
    if args.json:
        data = {**setup.facts(), **solution_output.as_data(run), "files": [str(f) for f in files]}
    parts = [setup.head(), *([] if run.error else [f"{run.sol}", f"{run.sol.events}"])]
    if files:
        parts.append("\n".join([solution_output.files_line(files), *notes]))
    complaint = str(run.error) if run.error else ""
    return Outcome("\n\n".join(parts), data, complaint, 1 if run.error else 0)


COMMAND = Command("simulate", "solve a model and show what happened", EXAMPLES, _arguments, _run)
