"""saltus under load: python benchmarks/load.py [--only NAME] [--json FILE] [--budget SECONDS].

Long solves with the whole tape and in pieces (`checkpoints`), a day of ticks, many events, many
guards, many calls. One core; every case has a process of its own, so that the memory is its own:
the largest resident size, of which the case with 1e3 steps shows what is always there.
"""

import argparse
import json
import sys

from harness import Case, Row, Table, Target, in_child, measure, one_core, peak_gigabytes

TOOL = "saltus"
SAVED = 10_000
DAY = 86_400.0

WHOLE, PIECES, LONGER = "whole tape", "pieces of 1000", "pieces of 10000"
ROWS = {WHOLE: None, PIECES: 1000, LONGER: 10_000}


def ours(problem, quantity):
    return (problem, quantity, TOOL)


def beside(problem, quantity, limit, what="seconds"):
    """A target for a quantity in pieces against the same of the whole tape."""
    mine, whole = (ours(problem, f"{quantity}, {way}") for way in (PIECES, WHOLE))
    return Target(mine, limit, whole, what)


TARGETS = [
    beside("1e6 steps", "value", 1.5),
    beside("1e6 steps", "value+gradient", 3.0),
    beside("1e6 steps, 10000 saved", "value+gradient", 3.0),
    beside("3e5 steps, 400 states", "value+gradient", 3.0),
    beside("3e5 steps, 400 states", "value+gradient", 0.6, "gigabytes"),
    Target(
        ours("1e7 steps", f"value+gradient, {LONGER}"),
        1.1,
        ours("1e6 steps", f"value+gradient, {PIECES}"),
        "gigabytes",
    ),
    Target(ours("a day of ticks", "solve"), 5.0),
    Target(ours("1,000 guards", "solve"), 1.0),
    Target(ours("1,000 eager calls", "one of them"), 0.01),
]


def oscillator():
    """Van der Pol's, with its start and (mu, k)."""
    import jax.numpy as jnp

    import saltus

    flow = lambda now, p: {
        "x": now.x["v"],
        "v": p[0] * (1 - now.x["x"] ** 2) * now.x["v"] - p[1] * now.x["x"],
    }
    start = saltus.Instant(t=0.0, x={"x": 2.0, "v": 0.0})
    return saltus.HybridSystem(flow), start, jnp.array([1.0, 1.0])


def chain():
    """Two hundred masses in a row, with their start and (damping, stiffness)."""
    import jax.numpy as jnp

    import saltus

    def flow(now, p):
        x = jnp.pad(now.x["x"], 1)
        return {"x": now.x["v"], "v": p[1] * jnp.diff(x, 2) - p[0] * now.x["v"]}

    at_rest = {"x": jnp.sin(jnp.linspace(0.0, 20.0, 200)), "v": jnp.zeros(200)}
    return saltus.HybridSystem(flow), saltus.Instant(t=0.0, x=at_rest), jnp.array([1e-3, 1.0])


def long_cases():
    import jax
    import jax.numpy as jnp

    import saltus

    def build(make, steps, pieces, saved, gradient):
        system, start, p = make()
        end = 0.01 * steps

        def value(p):
            sol = saltus.solve(
                system,
                start,
                p,
                end,
                ts=jnp.linspace(0.0, end, saved) if saved else None,
                method=saltus.Tsit5(control=saltus.Fixed(0.01)),
                max_steps=steps + 100,
                checkpoints=pieces,
            )
            return jnp.mean(sol.y["x"] ** 2) if saved else jnp.sum(sol.final.x["x"] ** 2)

        f = jax.jit(jax.value_and_grad(value) if gradient else value)
        return lambda: jax.block_until_ready(f(p))

    for name, make, steps, saved, ways in LONG:
        for words in ways:
            for what in ("value", "value+gradient"):
                given = (make, steps, ROWS[words], saved, what != "value")
                yield Case(name, f"{what}, {words}", TOOL, build=lambda given=given: build(*given))


LONG = [  # name, problem, steps of 0.01, save times, ways
    ("1e3 steps", oscillator, 1_000, 0, (WHOLE, PIECES)),
    ("1e6 steps", oscillator, 1_000_000, 0, (WHOLE, PIECES)),
    ("1e6 steps, 10000 saved", oscillator, 1_000_000, SAVED, (WHOLE, PIECES)),
    ("1e7 steps", oscillator, 10_000_000, 0, (WHOLE, LONGER)),
    ("3e5 steps, 400 states", chain, 300_000, 0, (WHOLE, PIECES)),
]


def ticking():
    """A thermostat through a day, with a tick every second: its last tick and its switches."""
    import jax

    import saltus

    exits = (
        saltus.Exit(lambda now, p: now.x - p["lo"], to="heating"),
        saltus.Exit(lambda now, p: p["hi"] - now.x, to="cooling"),
    )
    system = saltus.automaton(
        {
            "cooling": saltus.Mode(lambda now, p: -p["a"] * now.x, exits=exits[:1]),
            "heating": saltus.Mode(lambda now, p: -p["a"] * (now.x - p["H"]), exits=exits[1:]),
        },
        events=[
            saltus.TimeEvent(
                "tick", saltus.every(1.0), reset=lambda now, p: now.replace(d=now.d + 1)
            )
        ],
    )
    p = {"a": 0.005, "H": 30.0, "hi": 22.0, "lo": 18.0}
    start = saltus.Instant(t=0.0, x=22.0, d=0, mode="cooling")
    f = jax.jit(lambda p: saltus.solve(system, start, p, DAY, max_steps=2**20, max_events=2**18))
    return lambda: jax.block_until_ready(f(p))


def guarded():
    """A thousand guards of one family, crossed one after the other, ten of them together."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import saltus

    levels = np.linspace(1.0, 2.0, 1000)
    levels[400:410] = levels[400]
    system = saltus.HybridSystem(
        lambda now, p: {"x": jnp.ones(())},
        events=[saltus.Event("level", guard=lambda now, p: now.x["x"] - p, direction="rising")],
    )
    start, room = saltus.Instant(t=0.0, x={"x": 0.0}), {"max_steps": 4096, "max_events": 1000}
    f = jax.jit(lambda p: saltus.solve(system, start, p, 3.0, **room))
    return lambda: jax.block_until_ready(f(jnp.asarray(levels)))


def called():
    """A thousand eager calls with other parameters each."""
    import jax
    import jax.numpy as jnp

    from tools.saltus_core import ball

    parameters = [(5.0, 0.0, jnp.asarray(9.5 + 0.0003 * k), 0.8) for k in range(1000)]
    return lambda: jax.block_until_ready([ball(q, None).final.x["h"] for q in parameters])


def cases():
    from tools import saltus_core

    yield from long_cases()
    yield from saltus_core.switch_cases()
    yield Case(
        "a day of ticks",
        "solve",
        TOOL,
        build=ticking,
        exact=DAY,
        answer=lambda sol: sol.final.d,
        steps=lambda sol: sol.stats.steps,
    )
    yield Case(
        "1,000 guards",
        "solve",
        TOOL,
        build=guarded,
        exact=1000,
        answer=lambda sol: sol.stats.events,
        steps=lambda sol: sol.stats.steps,
    )
    yield Case("1,000 eager calls", "one of them", TOOL, build=called, share=1000)


def child(problem, quantity, budget):
    """In a process of its own: measure one case and print the row as JSON."""
    case = next(c for c in cases() if (c.problem, c.quantity) == (problem, quantity))
    row = measure(case, float(budget))
    if row.note:
        sys.exit(row.note)
    row.gigabytes = peak_gigabytes()
    print(json.dumps(vars(row)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", help="problems whose name contains NAME")
    parser.add_argument("--json", metavar="FILE", help="write the rows and targets there too")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds of repeats per row")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    one_core()
    if options.child:
        return child(*options.child)

    table = Table(TARGETS)
    for case in cases():
        if options.only is None or options.only.lower() in case.problem.lower():
            row = Row(case.problem, case.quantity, case.tool)
            try:
                found, _ = in_child("--child", *row.key[:2], str(options.budget))
                row = Row(**found)
            except Exception as error:
                row.note = str(error).splitlines()[0][:90]
            table.add(row)
    table.finish([], options.json)


if __name__ == "__main__":
    main()
