"""`saltus fit`: parameters from measurements."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from ..base.extras import MissingExtra
from ..estimate import Experiment, Fit, fit
from ..io.data_files import read_table
from ..io.units import split
from ..solution.csv_files import write_columns
from ..solver.scenario import Scenario
from . import options, solution_output
from .command import Command, Outcome, UsageError, plain
from .options import listed, pair

EXAMPLES = """\
  saltus fit spring.py run.csv --free k,c                       two parameters
  saltus fit spring.py run1.csv run2.csv --free k,c,start.v     several runs, each with its start
  saltus fit spring.py run.csv --free k --bounds k=0:10 --scale k=log --noise x=0.01
  saltus fit spring.py run.csv --events events.csv --free k     also the times of events
  saltus fit spring.py run.csv --free k,c --out fit             report.html and tables

A data file has a column t and columns named like outputs of the model, `h` or `h [m]`; --columns
gives the model's names of other columns. Empty cells are missing values. A file of events has
columns t and event.
"""
TOPICS = ("fit:", "data:", "events:", "optimiser:", "resume:")  # prefixes of errors about input


def _arguments(parser: argparse.ArgumentParser) -> None:
    options.model_argument(parser)
    parser.add_argument(
        "data", metavar="DATA.csv", type=Path, nargs="+", help="measurements, a file for each run"
    )
    group = parser.add_argument_group("the fit")
    add = group.add_argument
    add("--events", metavar="EVENTS.csv", type=Path, action="append", default=[],
        help="observed events; one file for each data file, in the same order")  # fmt: skip
    add("--columns", metavar="COLUMN=NAME", action="append", default=[],
        help="height_m=h gives the model's name of a column; comment= leaves it out")  # fmt: skip
    add("--t0", metavar="TIME",
        help="the time or date (2026-01-31T12:30) that is t = 0 (default: the first date)"
        )  # fmt: skip
    add("--free", metavar="NAMES", help="names to be fitted: k,c,start.v (default: the model's)")
    add("--bounds", metavar="NAME=LOW:HIGH", action="append", default=[],
        help="k=0:10; either side may be empty; may be repeated")  # fmt: skip
    add("--scale", metavar="NAME=KIND", action="append", default=[],
        help="k=log for positive numbers, linear, or logit between bounds")  # fmt: skip
    add("--noise", metavar="NAME=SD", action="append", default=[],
        help="standard deviation of a measurement: h=0.01 (default: estimated)")  # fmt: skip
    add("--loss", metavar="KIND", default="points",
        help="how outputs are compared: points, integral, aligned or blended (default: %(default)s)"
        )  # fmt: skip
    add("--optimiser", metavar="NAME", default="auto",
        help="lm, gauss-newton, l-bfgs-b, trust, ipopt, adam (default: %(default)s)")  # fmt: skip
    add("--search", metavar="KIND", default="auto",
        help="local, horizon, multistart, shooting (default: %(default)s)")  # fmt: skip
    add("--max-iterations", metavar="N", type=int, default=200, help="default: %(default)s")
    add("--resume", metavar="FILE", type=Path, help="continue from a checkpoint")
    options.run_arguments(parser, "where the data end")
    options.output_arguments(
        parser, "report.html, parameters.csv, predictions.csv, fit.json and checkpoint.npz"
    )


def _run(args: argparse.Namespace) -> Outcome:
    clock = time.perf_counter()
    _check_files([*args.data, *args.events])
    setup = options.setup(args)
    found = _fit(setup.scenario.replace(t1=None), args)  # it ends where the data end
    data = {**setup.facts(), "t1": plain(args.t1), **as_data(found)}
    shown = False if args.json else None
    files, notes = write(found, data, args.out, shown) if args.out else ([], [])
    data["files"] = [str(f) for f in files]
    data["total_seconds"] = time.perf_counter() - clock
    parts = [setup.head(), options.as_options(f"{found}")]
    if files:
        parts.append("\n".join([solution_output.files_line(files), *notes]))
    rest = data["total_seconds"] - found.seconds
    what = "model, report and other files" if files else "the model"
    parts.append(
        f"{data['total_seconds']:.1f} s in all: the fit {found.seconds:.1f} s, {what} {rest:.1f} s"
    )
    complaint = "" if found.ok else f"{found.result}. {options.as_options(found.message)}"
    done = found.ok or found.result == "suspect"  # still a minimum
    return Outcome("\n\n".join(parts), data, complaint, 0 if done else 1)


# -- what is asked for --------------------------------------------------------------------------
def _fit(scenario: Scenario, args: argparse.Namespace) -> Fit:
    """`saltus.fit` with the options; errors about the input are reported as usage errors."""
    scales = dict(_pairs("--scale", args.scale, "NAME=KIND, like k=log"))
    bounds, noise = _bounds(args.bounds), _noise(args.noise)
    try:
        return fit(
            scenario,
            _experiments(args),
            free=listed(args.free) if args.free else None,
            bounds={**scenario.bounds, **bounds},
            scales={**scenario.scales, **scales},
            noise=noise or None,
            loss=args.loss,
            optimiser=args.optimiser,
            search=args.search,
            max_iterations=args.max_iterations,
            progress=False if args.json else None,
            checkpoint=args.out / "checkpoint.npz" if args.out else None,
            resume=args.resume,
        )
    except ValueError as error:
        if str(error).startswith(TOPICS):
            raise UsageError(options.as_options(str(error)).removeprefix("fit: ")) from error
        raise


def _check_files(paths: list[Path]) -> None:
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise UsageError(f"there is no file {missing[0]}.")


def _experiments(args: argparse.Namespace) -> list[Any]:
    if args.events and len(args.events) != len(args.data):
        raise UsageError(
            f"{len(args.data)} data files, but {len(args.events)} files of events: give one for "
            "each, in the same order."
        )
    events = args.events or [None] * len(args.data)
    columns = _columns(args)
    t0 = args.t0
    with contextlib.suppress(TypeError, ValueError):
        t0 = float(args.t0)
    return [
        Experiment(d, events=e, t1=args.t1, columns=c, t0=t0)
        for d, e, c in zip(args.data, events, columns, strict=True)
    ]


def _columns(args: argparse.Namespace) -> list[dict[str, str | None]]:
    """What `--columns` says about each file; a name that no file has is an error."""
    asked = dict(_column(part) for text in args.columns for part in listed(text))
    if len(args.data) == 1 or not asked:
        return [asked for _ in args.data]
    there = [_headers(path) for path in args.data]
    return [
        {c: n for c, n in asked.items() if c in own or not any(c in other for other in there)}
        for own in there
    ]


def _headers(path: Path) -> set[str]:
    """The names of a file's columns, with and without their units."""
    try:
        headers = list(read_table(path))
    except ValueError as error:
        raise UsageError(str(error)) from error
    return {*headers, *(split(h)[0] for h in headers)}


def _column(text: str) -> tuple[str, str | None]:
    """`height_m=h` as a pair, or `comment=` for a column that is left out."""
    column, mark, name = text.partition("=")
    if not mark or not column.strip():
        raise UsageError(f'--columns "{text}": expected COLUMN=NAME, like height_m=h.')
    return column.strip(), name.strip() or None


def _pairs(option: str, given: list[str], example: str) -> list[tuple[str, str]]:
    """All pairs of an option that may be repeated, or written with commas."""
    return [pair(option, part, example) for text in given for part in listed(text)]


def _number(option: str, name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{option} {name}: {text} is not a number.") from None


def _bounds(given: list[str]) -> dict[str, tuple[float, float]]:
    found = {}
    for name, text in _pairs("--bounds", given, "NAME=LOW:HIGH, like k=0:10"):
        low, mark, high = text.partition(":")
        if not mark:
            raise UsageError(f'--bounds "{name}={text}": expected NAME=LOW:HIGH, like k=0:10.')
        found[name] = (
            _number("--bounds", name, low) if low.strip() else -np.inf,
            _number("--bounds", name, high) if high.strip() else np.inf,
        )
    return found


def _noise(given: list[str]) -> dict[str, float]:
    pairs = _pairs("--noise", given, "NAME=SD, like h=0.01")
    return {name: _number("--noise", name, text) for name, text in pairs}


# -- what was found -----------------------------------------------------------------------------
def parameter_columns(found: Fit) -> dict[str, Any]:
    """A line per fitted number."""
    return {
        "name": found.names, "value": found.values, "sd": found.sd, "low": found.low,
        "high": found.high, "initial": found.initial, "at_bound": found.at_bound,
    }  # fmt: skip


def prediction_columns(found: Fit) -> dict[str, list[Any]]:
    """A line per measured value, and per observed event."""
    head = ("run", "output", "t", "observed", "predicted", "sd", "residual")
    rows: list[tuple] = []
    for run in found.experiments:
        for output, s in run.outputs.items():
            columns = zip(s.t, s.observed, s.predicted, s.sd, s.residual, strict=True)
            rows += [(run.name, output, *values) for values in columns]
        for event, match in run.events.items():
            partner = {i: match.predicted[j] for i, j in match.pairs}
            sd = found.noise.get(event, np.nan)
            for i, t in enumerate(match.observed):
                there = partner.get(i, np.nan)
                rows.append((run.name, f"t({event})", t, t, there, sd, (there - t) / sd))
    return {name: [row[k] for row in rows] for k, name in enumerate(head)}


def as_data(found: Fit) -> dict[str, Any]:
    """The fit as a JSON object."""
    columns = parameter_columns(found)
    names = columns.pop("name")
    return {
        "ok": bool(found.ok),
        "explained": bool(found.explained),
        "result": found.result,
        "message": options.as_options(found.message),
        "loss": plain(found.loss),
        "parameters": {
            name: {key: plain(column[k]) for key, column in columns.items()}
            for k, name in enumerate(names)
        },
        "noise": plain(found.noise),
        "noise_origin": found.noise_origin,
        "undetermined": found.undetermined,
        "correlation": plain(found.correlation),
        "weak": list(found.weak),
        "iterations": len(found.history),
        "evaluations": plain(found.evaluations),
        "seconds": plain(found.seconds),
        "compile_seconds": plain(found.compile_seconds),
        "settings": plain(found.settings),
    }


def write(
    found: Fit, data: dict[str, Any], folder: Path, progress: bool | None = None
) -> tuple[list[Path], list[str]]:
    """Writes a fit to files in `folder`; returns them, and notes on what is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    notes = []
    summary = folder / "fit.json"
    summary.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    files = [
        write_columns(folder / "parameters.csv", parameter_columns(found)),
        write_columns(folder / "predictions.csv", prediction_columns(found)),
        summary,
    ]
    try:
        files.append(Path(found.report(folder / "report.html", progress)))
    except MissingExtra as error:
        notes.append(f"report.html was left out: {error}")
    checkpoint = folder / "checkpoint.npz"
    return [*files, *([checkpoint] if checkpoint.exists() else [])], notes


COMMAND = Command("fit", "find parameters from measurements", EXAMPLES, _arguments, _run)
