"""saltus beside its peers: python benchmarks/core.py [--only NAME] [--no-peers] [--json FILE].

One table: times (the smallest of many calls, one core), error against the exact answer, step
attempts, seconds to build and compile, and the ratios that we want to keep. Peers need the extra
`bench`; one that is not installed is left out.
"""

import argparse
import importlib
import itertools
import json
import sys
import tempfile

from harness import Row, Table, Target, in_child, measure, one_core, peak_gigabytes

PEERS = ("diffrax_core", "casadi_core", "torchdiffeq_core")


def ours(problem, quantity):
    return (problem, quantity, "saltus")


def beside(problem, quantity, *limits):
    """Targets for one quantity: pairs of (peer, limit)."""
    return [
        Target(ours(problem, quantity), limit, (problem, quantity, tool)) for tool, limit in limits
    ]


TARGETS = [
    *beside("ball", "solve", ("diffrax", 0.5), ("diffrax, plain", 0.5), ("casadi", 0.1)),
    *beside(
        "ball", "value+gradient", ("diffrax", 0.15), ("diffrax, plain", 0.15), ("casadi", 0.08)
    ),
    Target(ours("ball", "value+gradient"), 3.0, ours("ball", "solve")),
    *beside("ball", "Hessian", ("diffrax", 0.5), ("diffrax, plain", 0.5)),
    Target(ours("ball with drag", "32-column Jacobian"), 4.0, ours("ball with drag", "solve")),
    *beside("Lorenz", "step", ("diffrax", 0.5)),
    Target(ours("Lorenz", "step, guard watched"), 0.7, ("Lorenz", "step", "diffrax")),
    *beside("10,000 balls", "value", ("diffrax", 0.2), ("diffrax, plain", 0.2)),
    *beside("10,000 balls", "gradient", ("diffrax", 0.1), ("diffrax, plain", 0.1)),
    *(
        Target(
            ours("10,000 balls", f"{quantity}, buffer 1024"), 1.5, ours("10,000 balls", quantity)
        )
        for quantity in ("value", "gradient")
    ),
    Target(ours("100,000 events", "value+gradient"), 5.0, ours("100,000 events", "solve")),
    Target(ours("100,000 events", "value+gradient"), 2.0, None, "gigabytes"),
    *beside("first call", "value+gradient", ("diffrax", 0.4)),
    *beside("first call", "Hessian", ("diffrax", 1.0)),
    Target(ours("second process", "value+gradient"), 1.5),
]


def find(tool, problem, quantity):
    """The case of a tool; nothing after it is prepared."""
    if tool == "saltus":
        from tools import saltus_core

        cases = itertools.chain(saltus_core.cases(), saltus_core.cases_apart())
    else:
        cases = importlib.import_module(f"tools.{tool}_core").cases()
    return next(c for c in cases if (c.problem, c.quantity, c.tool) == (problem, quantity, tool))


def child(tool, problem, quantity):
    """In a process of its own: measure one case and print the row as JSON."""
    row = measure(find(tool, problem, quantity), budget=0.0)
    if row.note:
        sys.exit(row.note)
    row.gigabytes = peak_gigabytes()
    print(json.dumps(vars(row)))


def alone(table, name, tool, problem, quantity, seconds, environment=None):
    """Add a row measured in a process of its own; `seconds(row, wall)` is the time it shows."""
    try:
        found, wall = in_child("--child", tool, problem, quantity, environment=environment)
        row = Row(**found)
        row.problem, row.seconds = name, seconds(row, wall)
    except Exception as error:
        row = Row(name, quantity, tool, note=str(error).splitlines()[0][:90])
    table.add(row)


def many_events(table, tools):
    name = "100,000 events"
    for quantity in ("solve", "value+gradient"):
        alone(table, name, "saltus", name, quantity, lambda row, wall: row.seconds)


def first_calls(table, tools):
    """Tracing, compiling and running once, in a fresh process, without the imports."""
    time = lambda row, wall: row.compile_seconds + row.seconds
    for quantity in ("value+gradient", "Hessian"):
        for tool in tools:
            alone(table, "first call", tool, "ball", quantity, time)


def second_process(table, tools):
    """A whole process, imports included, that finds its programs in JAX's persistent cache."""
    for tool in tools:
        with tempfile.TemporaryDirectory() as folder:
            cache = {
                "JAX_COMPILATION_CACHE_DIR": folder,
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
            }
            for name in ("first process", "second process"):
                alone(table, name, tool, "ball", "value+gradient", lambda row, wall: wall, cache)


APART = {
    "100,000 events": many_events,
    "first call": first_calls,
    "second process": second_process,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", help="problems whose name contains NAME")
    parser.add_argument("--no-peers", action="store_true", help="saltus alone")
    parser.add_argument("--json", metavar="FILE", help="write the rows and targets there too")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds of repeats per row")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    one_core()
    if options.child:
        return child(*options.child)

    wanted = lambda problem: options.only is None or options.only.lower() in problem.lower()
    sources = ["saltus_core", *([] if options.no_peers else PEERS)]
    cases, missing = [], []
    for source in sources:
        try:
            cases += importlib.import_module(f"tools.{source}").cases()
        except ImportError as problem:
            missing.append(f"{source} is left out: {problem}")
    table = Table(TARGETS)
    order = {}  # by problem and quantity as first met, ours first
    for case in cases:
        order.setdefault(case.problem, len(order))
        order.setdefault((case.problem, case.quantity), len(order))
    for case in sorted(cases, key=lambda c: (order[c.problem], order[c.problem, c.quantity])):
        if wanted(case.problem):
            table.add(measure(case, options.budget))
    tools = ["saltus"] if options.no_peers else ["saltus", "diffrax"]
    for name, run in APART.items():
        if wanted(name):
            run(table, tools)

    table.finish(missing, options.json)


if __name__ == "__main__":
    main()
