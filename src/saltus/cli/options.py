"""Options shared by several commands: the model, its numbers, the end, the accuracy."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np

from ..base.names import WrongValue, _checked
from ..base.text import number
from ..io import load_model
from ..methods import METHODS, Method, default
from ..solver.scenario import Scenario, override
from .command import UsageError, plain

RENAMED = re.compile(
    r'Experiment\(columns=\{"([^"]*)": "?([^"}]*)"?\}\)(?: \(None leaves it out\))?'
)
ZERO = re.compile(r"Experiment\(\.\.\., t0=([^)]*)\), or t0=0\b")
COMMA = re.compile(r",(?![^\[]*\])")  # not those inside brackets


# -- declarations -------------------------------------------------------------------------------
def model_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="file.py:name or package.module:name of a saltus.Scenario, of a HybridSystem with "
        "start, p and t1 beside it, or of a function that returns one; file.py alone if it has "
        "one scenario",
    )


def run_arguments(parser: argparse.ArgumentParser, end: str = "the model's") -> None:
    """What to change in the model, and how to solve it."""
    group = parser.add_argument_group("the run")
    group.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[],
        help="change a number: k=2, arm.k=2, w[2]=0.5, w=[1,2,3], start.v=3; may be repeated",
    )  # fmt: skip
    group.add_argument("--t1", metavar="T", type=float, help=f"end time (default: {end})")
    group.add_argument(
        "--method", metavar="NAME", type=_method_name,
        help=f"{', '.join(METHODS)} (default: the model's)",
    )  # fmt: skip
    group.add_argument("--rtol", metavar="X", type=_tolerance, help="relative tolerance")
    group.add_argument("--atol", metavar="X", type=_tolerance, help="absolute tolerance")


def time_arguments(parser: argparse.ArgumentParser, default: str = "201") -> None:
    """At which times values are saved."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--ts", metavar="A:B:STEP", type=times,
        help="times to save: 0:10:0.1 (including both ends) or 0,0.5,2",
    )  # fmt: skip
    group.add_argument(
        "--points", metavar="N", type=_points,
        help=f"number of times, evenly spaced from start to end (default: {default})",
    )  # fmt: skip


def output_arguments(parser: argparse.ArgumentParser, files: str) -> None:
    group = parser.add_argument_group("results")
    group.add_argument(
        "--out", metavar="DIR", type=Path, help=f"write {files} to this folder, created if missing"
    )
    json_argument(group)


def json_argument(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else"
    )


# -- single options -----------------------------------------------------------------------------
def _method_name(text: str) -> str:
    for name in METHODS:
        if name.lower() == text.lower():
            return name
    raise argparse.ArgumentTypeError(f"{text}: expected one of {', '.join(METHODS)}")


def _tolerance(text: str) -> float:
    value = float(text)
    if not 0 <= value < np.inf:
        raise argparse.ArgumentTypeError(f"{text}: expected a number >= 0, like 1e-8")
    return value


def _points(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"{text}: expected at least 2")
    return value


def times(text: str) -> np.ndarray:
    """`0:10:0.1` with both ends, or a list `0,0.5,2`."""
    try:
        if ":" not in text:
            return np.array([float(v) for v in text.split(",")])
        first, last, step = (float(v) for v in text.split(":"))
        count = (last - first) / step
        if not (step and 0 <= count < 1e7):
            raise ValueError
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(
            f"{text}: expected first:last:step, like 0:10:0.1, or a list, like 0,0.5,2"
        ) from None
    return first + step * np.arange(int(np.floor(count * (1 + 1e-12) + 1e-9)) + 1)


def listed(text: str) -> list[str]:
    """`h,A[0,1]` as names."""
    return [name.strip() for name in COMMA.split(text) if name.strip()]


def pair(option: str, text: str, example: str) -> tuple[str, str]:
    """`k=2` as name and text."""
    name, mark, value = text.partition("=")
    if not mark or not name.strip() or not value.strip():
        raise UsageError(f'{option} "{text}": expected {example}.')
    return name.strip(), value.strip()


def as_options(text: str) -> str:
    """A message with hints about `Experiment` replaced by command-line options."""
    text = RENAMED.sub(r"--columns '\1=\2'", text)
    return ZERO.sub(r"--t0 \1, or --t0 0", text)


def settings(given: list[str]) -> dict[str, Any]:
    """All of `--set` as names and values."""
    pairs = [pair("--set", text, "NAME=VALUE, like k=2 or start.v=3") for text in given]
    return {name: parse_value(name, text) for name, text in pairs}


# -- all options together -----------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Setup:
    """A scenario with the settings of the command line."""

    scenario: Scenario
    reference: str
    changes: dict[str, Any]

    def head(self) -> str:
        """The first line of a report: which model, and what was changed in it."""
        s = self.scenario
        named = "" if self.reference.endswith(f":{s.name}") else f" ({self.reference})"
        name = s.name if named else self.reference
        changes = ", ".join(f"{k} = {_short(v)}" for k, v in self.changes.items())
        return f"{name}{named}" + (f", with {changes}" if changes else "")

    def facts(self) -> dict[str, Any]:
        """The same for JSON."""
        s = self.scenario
        return {
            "model": self.reference,
            "name": s.name,
            "set": plain(self.changes),
            "method": type(method_of(s)).__name__,
            "t1": plain(s.t1),
        }


def _short(value: float | list | tuple) -> str:
    return str(value) if isinstance(value, list | tuple) else number(value)


def setup(args: argparse.Namespace) -> Setup:
    """The model, changed as the options say."""
    changes = settings(args.set)
    scenario = override(load_model(args.model), changes)
    return Setup(scenario.replace(method=_method(args, scenario)), args.model, changes)


def setup_until(args: argparse.Namespace) -> Setup:
    """The same, with an end: that of the options, or the model's own."""
    given = setup(args)
    return dataclasses.replace(
        given, scenario=given.scenario.replace(t1=_end(args, given.scenario))
    )


def _end(args: argparse.Namespace, scenario: Scenario) -> float:
    ts = getattr(args, "ts", None)
    t1 = scenario.t1 if args.t1 is None else args.t1
    if t1 is None and ts is not None:
        t1 = ts[-1]
    if t1 is None:
        raise UsageError(f"{scenario.name} has no end. Add --t1 10, or t1= to the Scenario.")
    low, high = sorted((float(scenario.start_at(scenario.p).t), float(t1)))
    if ts is not None and (np.min(ts) < low or np.max(ts) > high * (1 + 1e-12)):
        raise UsageError(
            f"--ts goes from {number(np.min(ts))} to {number(np.max(ts))}, but the run goes from "
            f"{number(low)} to {number(high)}. Add --t1 {number(np.max(ts))}, or change --ts."
        )
    return float(t1)


def _method(args: argparse.Namespace, scenario: Scenario) -> Method | None:
    given = {k: v for k in ("rtol", "atol") if (v := getattr(args, k)) is not None}
    if not args.method and not given:
        return scenario.method
    method = METHODS[args.method]() if args.method else method_of(scenario)
    return dataclasses.replace(method, **given)


def method_of(scenario: Scenario) -> Method:
    """The scenario's own method, or the default of `solve`."""
    if scenario.method is not None:
        return scenario.method
    return default(constrained=scenario.system.constraint is not None)


def parse_value(name: str, text: str) -> float | bool | list:
    """A number, a boolean or a list of numbers, as written on a command line."""
    words = {"true": True, "false": False, "inf": np.inf, "-inf": -np.inf, "nan": np.nan}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    try:
        value = ast.literal_eval(text.strip())
        _checked(name, value)
        return value
    except (ValueError, SyntaxError, TypeError):
        raise WrongValue(
            f"{name}={text}: expected a number or a list, like {name}=2.5 or {name}=[1, 2, 3]."
        ) from None
