"""Stiff, algebraic and hybrid problems beside the peers, at equal accuracy.

python benchmarks/dae.py [--only NAME] [--tools A,B] [--json FILE] [--memory]

For every problem and tool, the fastest setting (method, tolerances, kind of sensitivity) that
reaches an error of 1e-6 and 1e-9 in the value (solve) or of 1e-3 and 1e-5 in the gradient
(value+gradient), in every entry of the answer. One core, one process, smallest processor times.
Peers need the extra `bench` and scikit-sundae; one that is not installed is left out.
"""

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys

from harness import Row, Table, Target, in_child, one_core, peak_gigabytes

SOURCES = {
    "saltus": "tools.saltus_dae",
    "casadi": "tools.casadi_dae",
    "sundae": "tools.sundae_dae",
    "diffrax": "tools.diffrax_dae",
    "scipy": "tools.scipy_dae",
}
GOALS = {"solve": (1e-6, 1e-9), "value+gradient": (1e-3, 1e-5)}
BED = {"solve": (1e-6,), "value+gradient": (1e-4,)}  # a reference of fewer digits
PROBLEMS = (
    "van der Pol",
    "Robertson DAE",
    "Robertson ODE",
    "Cauer ladder",
    "hysteretic spring",
    "catalyst bed",
)
LIMITS = {"solve": 0.3, "value+gradient": 0.4}  # of CasADi's time


def targets():
    for problem in PROBLEMS[:-1]:
        for what, goals in GOALS.items():
            for goal in goals:
                quantity = f"{what} to {goal:.0e}"
                ours = (problem, quantity, "saltus")
                yield Target(ours, LIMITS[what], (problem, quantity, "casadi"))
                if what == "value+gradient":
                    yield Target(ours, 6.0, (problem, quantity, "saltus, same solve"))
    yield Target(("Cauer ladder", "value+gradient to 1e-03", "saltus"), 2e-3)
    gradient = ("catalyst bed", "value+gradient to 1e-04")
    yield Target((*gradient, "saltus"), 5.0, (*gradient, "saltus, same solve"))
    yield Target(
        ("catalyst bed", "solve to 1e-06", "saltus"),
        0.3,
        ("catalyst bed", "solve to 1e-06", "casadi"),
    )


class WorkPrecision(Table):
    """The table, with the setting that won behind every verdict."""

    def verdict(self, target, row):
        *cells, verdict = super().verdict(target, row)
        return (*cells, verdict if verdict == row.note else f"{verdict:7} {row.note}")


@contextlib.contextmanager
def quiet_libraries():
    """SUNDIALS writes every refused step to the C error stream; Python's own is kept."""
    kept = os.dup(2)
    silent = os.open(os.devnull, os.O_WRONLY)
    mine, sys.stderr = sys.stderr, os.fdopen(os.dup(kept), "w", buffering=1)
    os.dup2(silent, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        sys.stderr.close()
        sys.stderr = mine
        os.close(silent)
        os.close(kept)


def load(tools):
    """The modules of the wanted tools, and what is missing."""
    modules, missing = [], []
    for tool in tools:
        try:
            modules.append(importlib.import_module(SOURCES[tool]))
        except ImportError as problem:
            missing.append(f"{tool} is left out: {problem}")
    return modules, missing


def measure(table, modules, wanted, memory):
    from race import compare, race

    for problem in PROBLEMS:
        if not wanted(problem):
            continue
        for what, goals in (BED if problem == "catalyst bed" else GOALS).items():
            families = [f for m in modules for f in m.cases(what) if f.problem == problem]
            if not families:
                continue
            rows, _ = compare(families, goals)
            for row, best in rows:
                if best is not None and memory:
                    row.gigabytes = peak(best)
                table.add(row)
                solve = getattr(best and best.family, "same_solve", None)
                if solve is not None:  # our own solve with the settings of this gradient
                    table.add(partner(row, best, solve, race))


def partner(row, best, solve, race):
    """The solve that belongs to a gradient: same method, same tolerances."""
    from race import attempt

    point, _ = attempt(solve, best.rtol, best.atol)
    race([point])
    return Row(
        row.problem,
        row.quantity,
        f"{row.tool}, same solve",
        point.seconds,
        point.error,
        point.steps,
        note=point.label,
    )


def peak(point):
    """Peak memory of a process that does nothing else, above what its imports need."""
    family = point.family
    identity = (family.problem, family.what, family.tool, family.label)
    try:
        found, _ = in_child("--child", *identity, str(point.rtol), str(point.atol))
        return found["gigabytes"]
    except Exception as problem:
        print(f"memory of {identity}: {problem}", file=sys.stderr)


def failures(table, wanted):
    """What CasADi does where it is left out of the table: its last words, or the error."""
    from tools.casadi_dae import FAILURES

    for number, (problem, what, setting, _) in enumerate(FAILURES):
        if wanted(problem):
            row = Row(problem, what, f"casadi, {setting}")
            row.note = last_words([sys.executable, sys.argv[0], "--failure", str(number)])
            table.add(row)


def last_words(command, limit=60):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"no answer after {limit} s"
    if done.returncode < 0:
        return f"crash: {signal.Signals(-done.returncode).name}"
    return (done.stdout.strip() or done.stderr.strip()).splitlines()[-1][-100:]


def failure(number):
    """In a process of its own: one of the cases above, its error if it has an answer."""
    import numpy as np

    from tools.casadi_dae import FAILURES

    error = np.max(np.abs(np.asarray(FAILURES[number][3]()) - 1.0))
    print(f"error {error:.0e}")


def child(problem, what, tool, label, rtol, atol):
    module = importlib.import_module(SOURCES[tool.split(",")[0]])
    identity = (problem, what, tool, label)
    family = next(f for f in module.cases(what) if (f.problem, f.what, f.tool, f.label) == identity)
    before = peak_gigabytes()
    call = family.prepare(float(rtol), float(atol))
    family.read(call())
    call()
    print(json.dumps({"gigabytes": peak_gigabytes() - before}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", help="problems whose name contains NAME")
    parser.add_argument("--tools", default=",".join(SOURCES), help="of " + ", ".join(SOURCES))
    parser.add_argument("--json", metavar="FILE", help="write the rows and targets there too")
    parser.add_argument("--memory", action="store_true", help="one more process for every row")
    parser.add_argument("--child", nargs=6, help=argparse.SUPPRESS)
    parser.add_argument("--failure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    one_core()
    if options.child:
        return child(*options.child)
    if options.failure is not None:
        return failure(options.failure)

    wanted = lambda problem: options.only is None or options.only.lower() in problem.lower()
    table = WorkPrecision(list(targets()))
    with quiet_libraries():
        modules, missing = load(options.tools.split(","))
        measure(table, modules, wanted, options.memory)
        if any(module.__name__ == SOURCES["casadi"] for module in modules):
            failures(table, wanted)
    table.finish(missing, options.json)


if __name__ == "__main__":
    main()
