"""Mechanisms by their size and form: chains of pendulums, and five bars.

python benchmarks/multibody.py [--quick] [--only NAME] [--json FILE]

A chain of N pendulums in Cartesian coordinates has N masses, 2 N coordinates and N distances to
keep. It swings for half a second from a straight line; the answer is where its end is, and the
gradient is with respect to gravity and all lengths. Times are per step, the smallest of many calls
on one core; "error" is the change of the energy, and what is left of the constraints (positions,
velocities) comes last. Ratios are between sizes (linear growth is 2), and with dense matrices: the
constraints of a chain couple in a band, which "index1" finds and "index1, dense" does not look for.
"""

import argparse
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

from harness import Case, Table, Target, measure, one_core

SIZES = (2, 4, 8, 16, 32, 64)
SMALL = {"index1": 64, "index1, dense": 64, "index2": 8, "penalty": 8}  # the longest chain
END, LEAN = 0.5, 0.8
PENALTY = {"alpha": 1e5, "omega": 100.0, "xi": 1.0}
STEP, GRADIENT = "step", "value+gradient, per step"
GROWTH = 3.5  # for twice the size
GAIN = {8: 0.7, 16: 0.4, 32: 0.2, 64: 0.1}  # of what dense matrices cost


def targets(sizes):
    band, dense = "index1", "index1, dense"
    for quantity in (STEP, GRADIENT):
        key = lambda n, tool=band, quantity=quantity: (f"chain of {n}", quantity, tool)
        for n, half in zip(sizes[1:], sizes, strict=False):
            yield Target(key(n), GROWTH, key(half))
        for n in sizes:
            if n in GAIN:
                yield Target(key(n), GAIN[n], key(n, dense))
    for n in sizes:
        chain = f"chain of {n}"
        yield Target((chain, GRADIENT, band), 8.0, (chain, STEP, band))


@cache
def chain(n, sparsity):
    """Masses of 1/n on rods, hanging from the origin."""
    import jax.numpy as jnp

    from saltus.multibody import Mechanism

    def rods(now, p):
        bars = jnp.diff(now.q, axis=0, prepend=jnp.zeros((1, 2)))
        return 0.5 * (jnp.sum(bars**2, axis=1) - p["length"] ** 2)

    return Mechanism(
        mass=1.0 / n,
        potential=lambda now, p: p["g"] * jnp.mean(now.q[:, 1]),
        constraint=rods,
        sparsity=sparsity,
    )


def swing(n, tool):
    """`p -> (where the end is, what to look at)`, and the parameters."""
    import jax
    import jax.numpy as jnp

    import saltus

    form, *more = tool.split(", ")
    mechanism = chain(n, *more or ["detect"])
    system = mechanism.system(form, **(PENALTY if form == "penalty" else {}))
    kind = saltus.Tsit5 if form == "index1" else saltus.Radau5
    method = kind(rtol=1e-8, atol=1e-8)
    line = jnp.array([jnp.sin(LEAN), -jnp.cos(LEAN)])

    def end(p):
        start = mechanism.start(jnp.cumsum(p["length"])[:, None] * line, None, p)
        sol = saltus.solve(system, start, p, END, method=method, max_steps=4096)
        left = mechanism.residuals(sol.final, p)
        change = mechanism.energy(sol.final, p) - mechanism.energy(start, p)
        seen = {"steps": sol.stats.steps, "energy": jnp.abs(change) / p["g"]}
        seen |= {k: jnp.max(jnp.abs(jnp.stack(jax.tree.leaves(v)))) for k, v in left.items()}
        return sol.final.x["q"][-1, 0], seen

    return end, {"g": jnp.asarray(9.81), "length": jnp.full(n, 1.0 / n)}


def chain_cases(sizes, tools):
    import jax

    for tool, n in ((tool, n) for tool in tools for n in sizes if n <= SMALL[tool]):
        for quantity in (STEP, GRADIENT):

            def build(n=n, tool=tool, quantity=quantity):
                end, p = swing(n, tool)
                whole = end if quantity == STEP else jax.value_and_grad(end, has_aux=True)
                return jitted(whole, p)

            yield Case(f"chain of {n}", quantity, tool, build, per_step=True)


def jitted(function, *arguments):
    """A call without arguments that waits for its result."""
    import jax

    compiled = jax.jit(function)
    return lambda: jax.block_until_ready(compiled(*arguments))


def look(case, budget):
    """Measure a case whose result says more than the time it took."""
    kept = {}

    def build():
        call = case.build()

        def kept_call():
            kept["result"] = call()
            return kept["result"]

        return kept_call

    def steps(result):
        kept["seen"] = result[1] if case.quantity == STEP else result[0][1]
        return kept["seen"]["steps"]

    row = measure(replace(case, build=build, steps=steps), budget)
    if "seen" in kept and not row.note:
        seen = kept["seen"]
        row.error = float(seen["energy"])
        row.note = f"residuals {seen['position']:.0e}, {seen['velocity']:.0e}"
    return row


class Growing(Table):
    """The table, with what is left of the constraints behind every verdict."""

    def verdict(self, target, row):
        *cells, verdict = super().verdict(target, row)
        return (*cells, verdict if verdict == row.note else f"{verdict:7} {row.note}")


def five_bar_cases(forms):
    """Five bars and nine bounces, against the reference (values; derivatives by two springs)."""
    import numpy as np

    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "models"))
    from mechanisms import LENGTHS, ends, five_bar_answers, five_bar_outputs, five_bar_truth

    values, slopes = five_bar_truth("P6a")
    known = ~np.isnan(values)
    for form in forms:
        yield Case(
            "five bars", "solve", form,
            lambda form=form: jitted(five_bar_outputs(form), LENGTHS, ends("P6a")),
            exact=values[known], answer=lambda result: np.asarray(result[0])[known],
        )  # fmt: skip
        yield Case(
            "five bars", "value+Jacobian", form,
            lambda form=form: jitted(five_bar_answers(form), LENGTHS, ends("P6a")),
            exact=slopes[known], answer=lambda result: np.asarray(result[1])[known],
        )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short chains, the index-1 form")
    parser.add_argument("--only", metavar="NAME", help="problems whose name contains NAME")
    parser.add_argument("--json", metavar="FILE", help="write the rows and targets there too")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds of repeats per row")
    options = parser.parse_args()
    one_core()

    sizes = SIZES[:4] if options.quick else SIZES
    tools = ("index1",) if options.quick else tuple(SMALL)
    wanted = lambda name: options.only is None or options.only.lower() in name.lower()
    table = Growing(list(targets(sizes)))
    for case in chain_cases(sizes, tools):
        if wanted(case.problem):
            table.add(look(case, options.budget))
    if wanted("five bars"):
        for case in five_bar_cases([tool for tool in tools if "dense" not in tool]):
            table.add(measure(case, options.budget))
    table.finish([], options.json)


if __name__ == "__main__":
    main()
