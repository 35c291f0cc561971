"""How times, errors and memory are measured, and how the table is printed.

Call `one_core()` before importing anything that starts threads: all tools then share one core and
one process, and only ratios between them mean something.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


def one_core():
    """Pin this process to one core and tell every thread pool that it has one."""
    for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR"):
        os.environ[f"{name}_NUM_THREADS"] = "1"
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    if flags not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_CPU_ENABLE_ASYNC_DISPATCH"] = "false"  # no hop between threads per call
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


@dataclass(frozen=True)
class Case:
    """One thing to time. `build()` returns a call without arguments that waits for its result.

    `answer` picks from the result what `exact` is compared with; `steps` how many step attempts
    it took. Times are divided by `share` (trajectories), or by the steps where `per_step` is set.
    """

    problem: str
    quantity: str
    tool: str
    build: Callable[[], Callable[[], Any]]
    exact: Any = None
    answer: Callable[[Any], Any] = lambda result: result
    steps: Callable[[Any], int] | None = None
    share: int = 1
    per_step: bool = False


@dataclass
class Row:
    """What was measured: seconds per unit, error relative to the largest entry of the truth."""

    problem: str
    quantity: str
    tool: str
    seconds: float | None = None
    error: float | None = None
    steps: int | None = None
    compile_seconds: float | None = None
    gigabytes: float | None = None
    note: str = ""

    @property
    def key(self):
        return (self.problem, self.quantity, self.tool)


@dataclass(frozen=True)
class Target:
    """`of` should need at most `limit` times what `against` needs, or, alone, at most `limit`."""

    of: tuple[str, str, str]
    limit: float
    against: tuple[str, str, str] | None = None
    what: str = "seconds"  # or "compile_seconds", "gigabytes"

    def reached(self, rows: dict):
        """The ratio (or the amount itself), or None where one side was not measured."""
        mine = getattr(rows.get(self.of), self.what, None)
        if mine is None or self.against is None:
            return mine
        theirs = getattr(rows.get(self.against), self.what, None)
        return None if theirs is None else mine / theirs

    def label(self):
        unit = {"seconds": "s", "compile_seconds": "s", "gigabytes": "GB"}[self.what]
        if self.against is None:
            return f"at most {self.limit:g} {unit}"
        other = [a for a, b in zip(self.against, self.of, strict=True) if a != b]
        return f"at most {self.limit:g} of {', '.join(other)}"


def shortest(call, budget=1.0, least=5):
    """The smallest time of one call among as many as fit into `budget` seconds."""
    best, calls, end = float("inf"), 0, time.perf_counter() + budget
    while calls < least or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        calls += 1
    return best


def measure(case: Case, budget=1.0) -> Row:
    """Build, call once (that is the compile time), compare with the truth, time."""
    import numpy as np

    row = Row(case.problem, case.quantity, case.tool)
    try:
        start = time.perf_counter()
        call = case.build()
        result = call()
        first = time.perf_counter() - start
        row.steps = None if case.steps is None else int(case.steps(result))
        if case.exact is not None:
            exact = np.asarray(case.exact, float)
            got = np.asarray(case.answer(result), float).reshape(exact.shape)
            row.error = float(np.max(np.abs(got - exact)) / np.max(np.abs(exact)))
        once = shortest(call, budget)
        row.compile_seconds = max(first - once, 0.0)
        row.seconds = once / ((row.steps or 1) if case.per_step else case.share)
    except Exception as problem:  # one tool that fails must not take the table with it
        row.note = f"{type(problem).__name__}: {problem}".splitlines()[0][:90]
    return row


def in_child(*arguments, environment=None, limit=600):
    """Run this program again with `arguments`; the JSON object it prints last, and wall seconds."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, sys.argv[0], *arguments],
        capture_output=True,
        text=True,
        timeout=limit,
        env={**os.environ, **(environment or {})},
    )
    wall = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr else "child failed")
    return json.loads(done.stdout.strip().splitlines()[-1]), wall


def peak_gigabytes():
    """The largest resident size that this process has had."""
    try:
        # not ru_maxrss, which on Linux starts from the size of the parent process
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024 / 1e9
    except OSError:
        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return size * (1 if sys.platform == "darwin" else 1024) / 1e9


@dataclass
class Table:
    """Rows as they are measured, then one printout with the targets beside them."""

    targets: list[Target]
    rows: dict = field(default_factory=dict)

    def add(self, row: Row):
        self.rows[row.key] = row
        print(f"  {' / '.join(row.key)}: {row.note or quantity(row.seconds)}", file=sys.stderr)

    def lines(self):
        head = ("problem", "quantity", "tool", "time", "error", "steps", "compile", "memory")
        yield (*head, "ratio", "target", "")
        for row in self.rows.values():
            first = (
                *row.key,
                quantity(row.seconds),
                "" if row.error is None else f"{row.error:.0e}",
                "" if row.steps is None else str(row.steps),
                "" if row.compile_seconds is None else f"{row.compile_seconds:.2f} s",
                "" if row.gigabytes is None else f"{row.gigabytes:.2f} GB",
            )
            found = [t for t in self.targets if t.of == row.key]
            for target in found or [None]:
                yield (*first, *self.verdict(target, row))
                first = ("",) * len(first)

    def verdict(self, target, row):
        if target is None:
            return ("", "", row.note)
        reached = target.reached(self.rows)
        if reached is None:
            return ("–", target.label(), row.note or "not measured")
        return (f"{reached:.3g}", target.label(), "ok" if reached <= target.limit else "MISSED")

    def print(self):
        lines = list(self.lines())
        widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
        for number, line in enumerate(lines):
            text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            print(text.rstrip())
            if number == 0:
                print("-" * len(text))

    def finish(self, missing, path=None):
        """The printout and what was left out; rows and targets as JSON where a path is given."""
        self.print()
        print("\n".join(missing))
        if path:
            self.save(path)

    def save(self, path):
        body = {
            "rows": [asdict(row) for row in self.rows.values()],
            "targets": [
                {**asdict(target), "reached": target.reached(self.rows)} for target in self.targets
            ],
        }
        with open(path, "w") as file:
            json.dump(body, file, indent=1)


def quantity(seconds):
    """A time with a unit that suits it."""
    if seconds is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
