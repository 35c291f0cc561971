"""`saltus sensitivities`: results of a solve and their derivatives."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.names import unit_of
from ..base.text import number, table
from ..base.types import Units, Vector
from ..estimate.monitor import said
from ..solution.csv_files import write_columns
from ..solution.solution import Solution
from . import options, solution_output
from .command import Command, Outcome, UsageError, plain
from .figures import sensitivity_figure
from .quantities import Inputs, chosen, inputs, quantities, whole_numbers

EXAMPLES = """\
  saltus sensitivities ball.py                          all results by all numbers
  saltus sensitivities ball.py --of h,integral --by e   some of them
  saltus sensitivities ball.py --of "bounce #3"         the time of the third bounce
  saltus sensitivities ball.py --by g,start.h --t1 2    by a parameter and by an initial value
  saltus sensitivities ball.py --of h --ts 1:7:1        also at times before the end
  saltus sensitivities ball.py --out run                a table, and a picture over time
"""
TABLE_ROWS = 40  # at most


class Sensitivities(NamedTuple):
    """Results, and their derivatives: a row per result, a column per number of the model."""

    names: list[str]
    values: np.ndarray
    by: list[str]
    jacobian: np.ndarray
    sweep: str


def _arguments(parser: argparse.ArgumentParser) -> None:
    options.model_argument(parser)
    parser.add_argument(
        "--of", metavar="NAMES",
        help="which results: outputs and states at the end, integral, names of events for their "
        "times (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--by", metavar="NAMES", help="by which parameters and start.NAME (default: all floats)"
    )
    options.run_arguments(parser)
    options.time_arguments(parser, "only the end")
    options.output_arguments(parser, "sensitivities.csv and sensitivities.png")


def _run(args: argparse.Namespace) -> Outcome:
    setup = options.setup_until(args)
    by = options.listed(args.by) if args.by else None
    varied = inputs(setup.scenario, by)
    if not varied.names:
        raise UsageError(
            f"{setup.scenario.name} has no float to differentiate by. Write numbers as 2.0, not 2."
        )
    run = solution_output.solved(setup)
    if run.error:
        files, _ = solution_output.write(run, args.out) if args.out else ([], [])
        data = {**setup.facts(), **solution_output.as_data(run), "files": [str(f) for f in files]}
        text = solution_output.files_line(files) if files else ""
        return Outcome(text, data, str(run.error), 1)
    varied = inputs(setup.scenario, by, reached(run.sol, args.ts, args.points))
    known = quantities(setup.scenario, run.sol, varied.ts)
    names = chosen(options.listed(args.of), known) if args.of else list(known)
    with said("differentiating"):
        found = sensitivities(varied, names)
        files, notes = write(found, varied, run.sol, args.out) if args.out else ([], [])
    notes = [*left_out(varied, args.by), *notes]
    parts = [setup.head(), as_text(found, run.sol.units), _closing(found, files, notes)]
    data = {**setup.facts(), **as_data(found), "files": [str(f) for f in files], "notes": notes}
    lost = [n for n, row in zip(names, found.jacobian, strict=True) if not np.isfinite(row).all()]
    complaint = (
        f"the derivatives of {', '.join(lost[:5])} are not finite: a grazing contact, or a root or "
        "quotient at zero, is the usual reason."
        if lost
        else ""
    )
    return Outcome("\n\n".join(parts), data, complaint, 1 if lost else 0)


def reached(sol: Solution, ts: np.ndarray | None, points: int | None) -> np.ndarray:
    """The requested times that the solution reached; empty if none were requested."""
    if ts is None:
        return np.linspace(float(sol.start), float(sol.last.t), points) if points else np.zeros(0)
    low, high = sorted((float(sol.start), float(sol.last.t)))
    return ts[(ts >= low) & (ts <= high)]


def sensitivities(varied: Inputs, names: list[str]) -> Sensitivities:
    """The results `names` and their derivatives, by the cheaper sweep."""

    def results(change: Vector) -> tuple[Vector, Vector]:
        found = varied.results(change)
        values = jnp.stack([found[name] for name in names])
        return values, values

    by = varied.names
    forward = len(by) <= len(names)
    differentiate = jax.jacfwd if forward else jax.jacrev
    jacobian, values = differentiate(results, has_aux=True)(jnp.zeros(len(by)))
    sweep = "tangent" if forward else "adjoint"
    return Sensitivities(names, np.asarray(values), by, np.asarray(jacobian), sweep)


def left_out(varied: Inputs, by: str | None) -> list[str]:
    """A note on numbers that were left out because they are integers."""
    if by:
        return []
    whole = whole_numbers(varied.scenario)
    if not whole:
        return []
    return [
        f"Not differentiated by {', '.join(whole)}: written as whole numbers. Write 2.0 instead "
        f"of 2, or ask for it: --by {whole[0]}."
    ]


# -- what is shown ------------------------------------------------------------------------------
def as_text(found: Sensitivities, units: Units) -> str:
    """Tables no wider than the terminal, one below the other."""
    rows = [
        [_label(name, units), number(value, 6, True), *(number(v, 6, True) for v in row)]
        for name, value, row in zip(
            found.names[:TABLE_ROWS], found.values, found.jacobian, strict=False
        )
    ]
    head = ["", "value", *(f"d/d {name}" for name in found.by)]
    blocks = []
    for columns in _blocks([head, *rows]):
        cells = [[line[k] for k in (0, *columns)] for line in [head, *rows]]
        blocks.append(table(cells[0], cells[1:]))
    more = len(found.names) - TABLE_ROWS
    if more > 0:
        blocks.append(f"... and {more} more results: choose with --of, or see all with --out.")
    return "\n\n".join(blocks)


def _label(name: str, units: Units) -> str:
    unit = unit_of(units, name.partition("(")[0])
    return f"{name} [{unit}]" if unit else name


def _blocks(cells: list[list[str]]) -> list[list[int]]:
    """Which columns are in each block; the first one is repeated in every block."""
    width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100
    widths = [max(len(line[k]) for line in cells) + 2 for k in range(len(cells[0]))]
    blocks: list[list[int]] = []
    used = width + 1
    for k in range(1, len(widths)):
        if used + widths[k] > width:
            blocks.append([])
            used = widths[0]
        blocks[-1].append(k)
        used += widths[k]
    return blocks


def _closing(found: Sensitivities, files: list[Path], notes: list[str]) -> str:
    sizes = f"{_many(len(found.names), 'result')} by {_many(len(found.by), 'number')}"
    cost = f"Derivatives of {sizes}, by the {found.sweep} sweep."
    return "\n".join([cost, *([solution_output.files_line(files)] if files else []), *notes])


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def as_data(found: Sensitivities) -> dict[str, Any]:
    """The same as a JSON object."""
    rows = zip(found.names, found.jacobian, strict=True)
    return {
        "ok": bool(np.isfinite(found.jacobian).all()),
        "values": plain(dict(zip(found.names, found.values.tolist(), strict=True))),
        "derivatives": plain(
            {name: dict(zip(found.by, row.tolist(), strict=True)) for name, row in rows}
        ),
        "sweep": found.sweep,
    }


def write(
    found: Sensitivities, varied: Inputs, sol: Solution, folder: Path
) -> tuple[list[Path], list[str]]:
    """The table and the picture as files."""
    folder.mkdir(parents=True, exist_ok=True)
    units = [unit_of(sol.units, n.partition("(")[0]) for n in found.names]
    columns = {"result": found.names, "value": found.values, "unit": units}
    columns |= {f"d/d {name}": found.jacobian[:, k] for k, name in enumerate(found.by)}
    csv = write_columns(folder / "sensitivities.csv", columns)
    figure, notes = solution_output.picture(
        folder / "sensitivities.png", lambda: sensitivity_figure(varied, sol, found.jacobian)
    )
    return [csv, *([figure] if figure else [])], notes


COMMAND = Command(
    "sensitivities",
    "derivatives of results by parameters and initial values",
    EXAMPLES,
    _arguments,
    _run,
)
