"""Work and precision: the fastest setting of each tool that reaches a wanted error.

A `Family` is one way to compute one quantity, open in its tolerances. `scan` walks it from loose to
tight tolerances; `race` times the best settings of all tools in turn, so that a slow moment of the
machine hits them all. Times are processor time of this process: other processes on the same
machine then lengthen them little, and on an idle machine they are the time on the clock.
"""

import contextlib
import io
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from harness import Row, quantity

ROOT = 10.0**0.5
LONGEST = 8.0  # seconds for one call; a family that needs more is not followed further


@dataclass(frozen=True)
class Family:
    """`prepare(rtol, atol)` gives a call without arguments; `read` its (answer, steps).

    The answer is in units of the truth, so that 1 is right. `atols` are factors on rtol.
    """

    problem: str
    what: str  # "solve" or "value+gradient"
    tool: str
    label: str
    prepare: Callable[[float, float], Callable[[], Any]]
    read: Callable[[Any], tuple[Any, int | None]]
    atols: tuple = (1.0,)
    loosest: float = 1e-3
    tightest: float = 1e-14
    ratio: float = ROOT
    note: str = ""
    also: str = ""  # a second name under which its results are listed


@dataclass
class Point:
    """One setting, tried."""

    family: Family
    rtol: float
    atol: float
    error: float = np.inf
    seconds: float = np.inf
    steps: int | None = None
    call: Callable | None = None
    problem: str = ""

    @property
    def label(self):
        text = f"{self.family.label}, rtol {self.rtol:.0e}, atol {self.atol:.0e}"
        return f"{text} ({self.family.note})" if self.family.note else text


@dataclass
class Scan:
    points: list = field(default_factory=list)
    compile_seconds: float | None = None
    problems: list = field(default_factory=list)  # what was refused, and where


def processor_time(call):
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def attempt(family, rtol, atol):
    """Prepare, call, compare, and time with a few more calls; also the first call's seconds."""
    point = Point(family, rtol, atol)
    first = 0.0
    try:
        start = time.perf_counter()
        with contextlib.redirect_stderr(io.StringIO()):  # CasADi repeats there what it raises
            call = family.prepare(rtol, atol)
            answer, point.steps = family.read(call())
            first = time.perf_counter() - start
            seconds, _ = processor_time(call)
        error = np.max(np.abs(np.asarray(answer, float) - 1.0))
        point.error = float(error) if np.isfinite(error) else np.inf
        repeats = 5 if seconds < 0.05 else 2
        times = [] if seconds > LONGEST else [processor_time(call)[0] for _ in range(repeats)]
        point.seconds, point.call = min([seconds, *times]), call
    except Exception as problem:  # a refused setting is an answer too
        point.problem = f"{type(problem).__name__}: {problem}".strip().splitlines()[-1][-90:]
    return point, first


def scan(family, goals):
    """Tighten until the smallest goal is reached at two settings in a row."""
    found = Scan()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for factor in family.atols:
            rtol, good, slow = family.loosest, 0, 0
            while rtol >= family.tightest * 0.99 and good < 2 and slow < 2:
                point, first = attempt(family, rtol, rtol * factor)
                if found.compile_seconds is None and point.call is not None:
                    found.compile_seconds = max(first - point.seconds, 0.0)
                if point.problem:
                    found.problems.append(f"{point.label}: {point.problem}")
                found.points.append(point)
                good = good + 1 if point.error <= min(goals) else 0
                slow += point.seconds > LONGEST and point.call is not None
                rtol /= family.ratio
    return found


def reaching(found, goal):
    """Settings that reach the goal, and whose tighter neighbour does: chance does not count."""
    points = found.points
    for here, tighter in pairwise(points):
        same = tighter.rtol < here.rtol
        if here.error <= goal and here.call is not None and (not same or tighter.error <= goal):
            yield here


def race(points, rounds=7, budget=0.4):
    """Smallest processor times of all points, each called in turn in every round."""
    for point in points:
        point.seconds = min(point.seconds, np.inf)
    for _ in range(rounds):
        for point in points:
            if point.seconds > LONGEST:
                continue
            end = time.perf_counter() + budget / rounds
            while True:
                point.seconds = min(point.seconds, processor_time(point.call)[0])
                if time.perf_counter() > end:
                    break


def compare(families, goals, keep=2):
    """Rows for one problem and quantity: every tool at every goal, and all the scans."""
    scans = []
    for family in families:
        scans.append((family, scan(family, goals)))
        report(*scans[-1])
    tools = list(dict.fromkeys(name for f in families for name in (f.tool, f.also) if name))
    finalists = {}
    for tool in tools:
        for goal in goals:
            points = [p for _, found in by(tool, scans) for p in reaching(found, goal)]
            finalists[tool, goal] = sorted(points, key=lambda p: p.seconds)[:keep]
    unique = {id(p): p for points in finalists.values() for p in points}
    race(list(unique.values()))
    rows = []
    for goal in goals:
        for tool in tools:
            row = Row(families[0].problem, f"{families[0].what} to {goal:.0e}", tool)
            points = finalists[tool, goal]
            if points:
                best = min(points, key=lambda p: p.seconds)
                compiled = {id(f): found.compile_seconds for f, found in scans}
                row.seconds, row.error, row.steps = best.seconds, best.error, best.steps
                row.compile_seconds, row.note = compiled[id(best.family)], best.label
            else:
                row.note = shortfall([found for _, found in by(tool, scans)])
            rows.append((row, min(points, key=lambda p: p.seconds) if points else None))
    return rows, scans


def by(tool, scans):
    return [(f, found) for f, found in scans if tool in (f.tool, f.also)]


def shortfall(founds):
    """What a tool came to that never reached the goal."""
    points = [p for found in founds for p in found.points if np.isfinite(p.error)]
    problems = [text for found in founds for text in found.problems]
    if not points:
        return problems[0][:110] if problems else "nothing finished"
    best = min(points, key=lambda p: p.error)
    return f"never; best {best.error:.0e} in {quantity(best.seconds)} ({best.label})"


def report(family, found):
    """One line for each setting, on the error stream."""
    head = f"{family.problem} / {family.what} / {family.tool} / {family.label}"
    print(f"{head}: compile {found.compile_seconds or 0.0:.2f} s", file=sys.stderr)
    for p in found.points:
        text = p.problem or f"error {p.error:.1e}  {quantity(p.seconds)}  steps {p.steps}"
        print(f"    rtol {p.rtol:.1e} atol {p.atol:.1e}: {text}", file=sys.stderr)
    sys.stderr.flush()
