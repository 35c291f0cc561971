"""`saltus demo`: a spring that breaks, its events, its sensitivities, a picture.

    m v' + c v = -k x + d   until x = 2 from below,   m v' + c v = 0   from then on,   x' = v

The example of Andersson and Goppert (2024), section 4.2. `examples/04_breaking_spring.py` builds it
up step by step.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .automaton import Exit, Mode, automaton
from .methods import Tsit5
from .plot import COLOURS, pyplot
from .solution import Solution
from .solve import solve
from .system import Instant
from .tables import derivatives, number, table, unit_of

PARAMETERS = {"m": 1.0, "k": 2.0, "c": 0.1, "x0": -1.0, "v0": -5.0, "d": 0.0}
MEANING = {
    "m": "mass",
    "k": "stiffness",
    "c": "damping",
    "x0": "displacement at t = 0",
    "v0": "velocity at t = 0",
    "d": "force on the spring",
}
UNITS = {
    "t": "s", "x": "m", "v": "m/s", "m": "kg", "k": "N/m", "c": "N s/m", "x0": "m", "v0": "m/s",
    "d": "N", "integral": "m^2 s",
}  # fmt: skip
QUANTITIES = ["t_break", "v_break", "x(5)", "v(5)", "int x^2 dt"]
END = 5.0

spring = automaton(
    {
        "intact": Mode(
            flow=lambda now, p: {
                "x": now.x["v"],
                "v": (-p["k"] * now.x["x"] + p["d"] - p["c"] * now.x["v"]) / p["m"],
            },
            exits=[
                Exit(lambda now, p: now.x["x"] - 2.0, to="broken", direction="rising", name="break")
            ],
        ),
        "broken": Mode(flow=lambda now, p: {"x": now.x["v"], "v": -p["c"] * now.x["v"] / p["m"]}),
    },
    rate=lambda now, p: now.x["x"] ** 2,
    units=UNITS,
)


def simulate(p: Any) -> Solution:
    """The spring from 0 to 5 s."""
    start = Instant(t=0.0, x={"x": p["x0"], "v": p["v0"]}, mode="intact")
    return solve(spring, start, p, END, method=Tsit5(rtol=1e-10, atol=1e-10))


def quantities(p: Any) -> dict[str, Any]:
    """Five numbers of the motion, differentiable in everything."""
    sol = simulate(p)
    broke = sol.events.of("break")
    return {
        "t_break": broke.t[0],
        "v_break": broke.before.x["v"][0],
        "x(5)": sol.final.x["x"],
        "v(5)": sol.final.x["v"],
        "int x^2 dt": sol.integral,
    }


def tangents(p: Any, ts: Any) -> dict[str, Any]:
    """d(x, v)/dp over time. The last time of each row of `ts` (pieces, times) is a left limit."""

    def states(p: Any) -> Any:
        sol = simulate(p)
        inside, end = sol(ts[:, :-1]), sol(ts[:, -1:], side="left")
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), inside, end)

    return jax.jacfwd(states)(p)


def report(p: Any = PARAMETERS) -> tuple[Solution, str]:
    """The solution, and everything about it as text."""
    sol = simulate(p)
    forward, values = jax.jacfwd(lambda p: (quantities(p),) * 2, has_aux=True)(p)
    reverse = jax.jacrev(quantities)(p)
    gap = max(
        abs(float(forward[y][a] - reverse[y][a])) / max(1.0, abs(float(forward[y][a])))
        for y in values
        for a in p
    )
    rows = [[a, number(v), unit_of(UNITS, a), MEANING[a]] for a, v in p.items()]
    parts = [
        "A spring that breaks at x = 2 m",
        table(["", "value", "unit", "meaning"], rows, left=(0, 2, 3)),
        f"{sol}",
        f"{sol.events}",
        "Sensitivities, exact through the event",
        derivatives({y: values[y] for y in QUANTITIES}, forward, list(p)),
        f"Tangent and adjoint sweeps agree to {gap:.0e}.",
    ]
    return sol, "\n\n".join(parts)


def figure(sol: Solution, p: Any = PARAMETERS) -> Any:
    """States and their sensitivities over time."""
    plt = pyplot()
    borders = [0.0, *np.asarray(sol.events.t), END]
    ts = jnp.asarray([np.linspace(a, b, 200) for a, b in pairwise(borders)])
    jacobian = tangents(p, ts)
    fig, axes = plt.subplots(2, 2, figsize=(10.4, 5.4), sharex=True)
    for row, name in enumerate(("x", "v")):
        left, right = axes[row]
        for t, values in zip(ts, _pieces(sol, ts)[name], strict=True):
            left.plot(t, values, color=COLOURS[0])
        left.set_ylabel(f"{name} [{UNITS[name]}]")
        for j, a in enumerate(p):
            scale, text = (0.1, "c, divided by 10") if a == "c" else (1.0, a)
            for k, t in enumerate(ts):
                shown = text if row == k == 0 else None
                right.plot(t, scale * jacobian[name][a][k], color=COLOURS[j], label=shown, lw=1.5)
        right.set_ylabel(f"d{name}/dp")
    for axis in axes.flat:
        for t in borders[1:-1]:
            axis.axvline(t, color="#8a94a0", lw=1.0, zorder=0.9)
        axis.margins(x=0.01)
    axes[0, 0].axhline(2.0, color=COLOURS[1], lw=1.0, ls="--")
    axes[0, 0].annotate("breaks at 2 m", (0.1, 2.25), color=COLOURS[1], fontsize=9)
    axes[0, 0].set_title("A spring that breaks")
    axes[0, 1].set_title("Its sensitivities, with their jumps")
    fig.legend(loc="outside right center", title="p", alignment="left", handlelength=1.2)
    for axis in axes[1]:
        axis.set_xlabel("t [s]")
    return fig


def _pieces(sol: Solution, ts: Any) -> dict[str, Any]:
    inside, end = sol(ts[:, :-1]), sol(ts[:, -1:], side="left")
    return jax.tree.map(lambda a, b: np.concatenate([a, b], axis=1), inside, end)


def write_figure(sol: Solution, folder: Path) -> Path:
    """The figure as a file in `folder`, which is made if it is not there."""
    fig = figure(sol)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "breaking_spring.png"
    fig.savefig(path)
    return path
