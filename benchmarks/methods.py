"""Ways to a gradient against sizes: python benchmarks/methods.py [--states 4,32,256] [--json FILE].

A chain of damped springs that hits a stop: n states and as many stiffnesses as asked for. For every
way of `saltus.compare` the time of one gradient in ms (compiled, the smallest of five calls, one
core), its working memory in MB, and its difference from the adjoint sweep. The last column says
what finite differences would cost at least: one solve for each parameter, and one more.
"""

import argparse
import json

from harness import one_core

one_core()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import saltus  # noqa: E402
from saltus import (  # noqa: E402
    Event,
    HybridSystem,
    Instant,
    Tsit5,
)
from saltus.trust.comparison import (  # noqa: E402
    judged,
    measured,
    seconds_of,
    ways_of,
)

METHOD = Tsit5(rtol=1e-8, atol=1e-8)


def chain(masses, parameters):
    """Masses on a line; the last one is stopped at 0.6. Stiffnesses are shared by neighbours."""

    def flow(now, k):
        q, v = now.x["q"], now.x["v"]
        stiff = jnp.repeat(k, masses // parameters + 1, total_repeat_length=masses)
        left = jnp.concatenate([jnp.zeros(1), q[:-1]])
        right = jnp.concatenate([q[1:], q[-1:]])
        after = jnp.concatenate([stiff[1:], stiff[-1:]])
        return {"q": v, "v": stiff * (left - q) + after * (right - q) - 0.1 * v}

    def back(now, k):
        return now.replace(x={"q": now.x["q"], "v": now.x["v"].at[-1].multiply(-0.5)})

    stop = Event("stop", lambda now, k: 0.6 - now.x["q"][-1], reset=back)
    return HybridSystem(flow, rate=lambda now, k: jnp.sum(now.x["q"] ** 2), events=[stop])


def loss_of(masses, parameters):
    system = chain(masses, parameters)
    speed = jnp.zeros(masses).at[-1].set(2.0)
    start = Instant(t=0.0, x={"q": jnp.zeros(masses), "v": speed})

    def loss(k):
        sol = saltus.solve(system, start, k, 4.0, method=METHOD, max_steps=512)
        return sol.integral + sol.final.x["q"][-1] ** 2

    return loss


def measure(states, parameters):
    masses = states // 2
    loss, k = loss_of(masses, parameters), jnp.full(parameters, 4.0)
    ways = [measured(*way, loss, k, 5) for way in ways_of(1e-8)]
    solve = jax.jit(loss).lower(k).compile()
    one = min(seconds_of(solve, k) for _ in range(5))
    names = tuple(map(str, range(parameters)))
    ways = [judged(w, ways[0], names) for w in ways]
    rows = [(w.name, w.seconds, w.megabytes, w.compile_seconds, w.off) for w in ways]
    return rows, one * (parameters + 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", default="4,32,256")
    parser.add_argument("--parameters", default="1,16,128")
    parser.add_argument("--json")
    args = parser.parse_args()
    sizes = [
        (n, m)
        for n in map(int, args.states.split(","))
        for m in map(int, args.parameters.split(","))
        if m <= n // 2 or m == 1
    ]
    table = {}
    for n, m in sizes:
        rows, differences = measure(n, m)
        least = f"finite differences: at least {1e3 * differences:.3g} ms"
        print(f"\n{n} states, {m} parameters ({least})")
        print(f"{'method':36}{'ms':>10}{'MB':>9}{'compile s':>11}{'off':>10}")
        for name, seconds, size, compiling, off in rows:
            print(
                f"{name:36}{1e3 * seconds:10.3g}{size:9.3g}{compiling:11.2g}{off:10.1e}", flush=True
            )
        table[f"{n} states, {m} parameters"] = [*map(list, rows), differences]
    if args.json:
        with open(args.json, "w") as file:
            json.dump(table, file, indent=1)


if __name__ == "__main__":
    main()
