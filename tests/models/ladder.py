"""The Cauer ladder of Matei et al., with its three losses and their exact derivatives."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from problem import Exact, Problem, data, integral, number, time_of
from saltus import Event, HybridSystem, Instant

LADDER = ("L2_i", "L1_i", "C5_v", "C3_v", "C1_v")
GRID = 20.0 * np.arange(501) / 500


def ladder_flow(t, x, z, c):
    _, _, v5, v3, v1 = x
    return jnp.stack([(v3 - v5) / c["L2"], (v1 - v3) / c["L1"], *z])


def ladder_constraint(t, x, z, c):
    """Kirchhoff's current law at the three nodes; z holds the slopes of their voltages."""
    (i2, i1, v5, _, v1), (dv5, dv3, dv1) = x, z
    through2, through4 = c["C2"] * (dv1 - dv3), c["C4"] * (dv3 - dv5)
    supply = (1 + jnp.tanh(50 * (t - 1))) / 2
    return {
        "node 1": c["C1"] * dv1 + through2 - (supply - v1 - i1),
        "node 3": c["C3"] * dv3 - through2 + through4 - (i1 - i2),
        "node 5": c["C5"] * dv5 - through4 - (i2 - v5),
    }


def blended(ts, y, log, count, name, sharpness=150.0, horizon=20.0 + 1e-6):
    """Samples blended across segments, as Matei et al. do it (their A.5).

    Segment k, from a to b, has the weight sigmoid(s (t - a)) sigmoid(s (b - t)), normalised over
    the segments; outside of it, its solution stays where it begins or ends.
    """
    a = jnp.concatenate([jnp.zeros(1), log.t[:count]])[:, None]
    b = jnp.concatenate([log.t[:count], jnp.array([horizon])])[:, None]
    first = jnp.concatenate([y[:1], log.after.x[name][:count]])[:, None]
    last = jnp.concatenate([log.before.x[name][:count], y[-1:]])[:, None]
    weights = jax.nn.sigmoid(sharpness * (ts - a)) * jax.nn.sigmoid(sharpness * (b - ts))
    weights = weights / jnp.sum(weights, axis=0)
    held = jnp.where((ts < a)[..., None], first, jnp.where((ts >= b)[..., None], last, y))
    return jnp.sum(weights[..., None] * held, axis=0)


def cauer(at: str = "at_1.05_truth") -> Problem:
    """A ladder to be fitted, and beside it the ladder that made the data.

    Both in one system, so that the running cost can compare them. When the voltage of C3 rises to
    1/2, it is reset to 0. All three losses of one solve.
    """
    reference = data("cauer")
    case = reference[at]
    truth = {a: number(v) for a, v in reference["truth"].items()}
    p = {a: number(v) for a, v in zip(case["names"], case["p"], strict=True)}

    def both(f):
        return lambda now, p: {
            who: f(now.t, now.x[who], now.z[who], c) for who, c in (("model", p), ("truth", truth))
        }

    def reset(who):
        return Event(
            f"{who} reset",
            guard=lambda now, p: now.x[who][3] - 0.5,
            direction="rising",
            reset=lambda now, p: now.replace(x={**now.x, who: now.x[who].at[3].set(0.0)}),
        )

    system = HybridSystem(
        flow=both(ladder_flow),
        constraint=both(ladder_constraint),
        rate=lambda now, p: jnp.sum((now.x["model"] - now.x["truth"]) ** 2) / 100,
        events=[reset("model"), reset("truth")],
    )
    start = lambda p: Instant(
        t=0.0,
        x={"model": jnp.zeros(5), "truth": jnp.zeros(5)},
        z={"model": jnp.zeros(3), "truth": jnp.zeros(3)},
    )

    counts = {"model": len(case["events"]), "truth": len(case["events_nominal"])}

    def blended_loss(sol, p):
        samples = [
            blended(GRID, sol.y[who], sol.events.of(f"{who} reset"), count, who)
            for who, count in counts.items()
        ]
        return jnp.mean((samples[0] - samples[1]) ** 2)

    outputs = {
        "hard": lambda sol, p: jnp.mean((sol.y["model"] - sol.y["truth"]) ** 2),
        "blended": blended_loss,
        "integral": integral,
        **{f"t{k + 1}": time_of("model reset", k) for k in range(len(case["events"]))},
        **{name: _component(k) for k, name in enumerate(LADDER)},
    }
    exact = _cauer_truth(case)
    return Problem(f"cauer_{at}", system, start, p, 20.0, outputs, exact, {"ts": GRID})


def _component(k: int) -> Callable:
    return lambda sol, p: sol.final.x["model"][k]


def _cauer_truth(case: dict) -> Exact:
    names = case["names"]
    row = lambda numbers: {a: number(v) for a, v in zip(names, numbers, strict=True)}
    matrix = lambda rows: (names, np.array([[number(v) for v in r] for r in rows]))
    times = [f"t{k + 1}" for k in range(len(case["events"]))]
    ends = dict(zip(LADDER, case["xf"], strict=True))
    by_time = dict(zip(times, zip(*case["dtau_dp"], strict=True), strict=True))
    by_end = dict(zip(LADDER, zip(*case["dxf_dp"], strict=True), strict=True))
    losses = {"hard": "mean", "blended": "blend"}
    return Exact(
        {
            "hard": number(case["loss_mean"]),
            "blended": number(case["loss_blend"]),
            "integral": number(case["J_int"]),
            **{y: number(v) for y, v in zip(times, case["events"], strict=True)},
            **{y: number(v) for y, v in ends.items()},
        },
        {
            **{y: row(case[f"grad_{key}"]) for y, key in losses.items()},
            "integral": row(case["grad_int"]),
            **{y: row(v) for y, v in (by_time | by_end).items()},
        },
        {y: matrix(case[f"hess_{key}"]) for y, key in losses.items() if f"hess_{key}" in case},
    )
