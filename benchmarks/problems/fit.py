"""The learning problems of Matei et al.: a Cauer ladder with a reset, and balls in a box."""

from __future__ import annotations

import math
import random

import jax.numpy as jnp
import numpy as np

import saltus

LADDER = ("i2", "i1", "v5", "v3", "v1")
ELEMENTS = {
    "C1": 1.072, "C2": 0.26380177746657757, "C3": 1.682, "C4": 0.8365378334947966,
    "C5": 0.7262, "L1": 1.304, "L2": 0.8586,
}  # fmt: skip
GRID = 20.0 * np.arange(501) / 500
BALLS = {"g": 9.81, "e_g": 0.5, "e_b": 0.6}
BALLS_END = 1.9
NEAR = 0.05  # square of the distance at which two balls touch


def ladder() -> saltus.Scenario:
    """Currents and voltages of the ladder; the voltage of C3 is reset when it rises to 1/2."""

    def flow(now, p):
        x, z = now.x, now.z
        return {
            "i2": (x["v3"] - x["v5"]) / p["L2"],
            "i1": (x["v1"] - x["v3"]) / p["L1"],
            **{name: z[f"d{name}"] for name in ("v5", "v3", "v1")},
        }

    def currents(now, p):
        x, z = now.x, now.z
        through2 = p["C2"] * (z["dv1"] - z["dv3"])
        through4 = p["C4"] * (z["dv3"] - z["dv5"])
        supply = (1 + jnp.tanh(50 * (now.t - 1))) / 2
        return {
            "node 1": p["C1"] * z["dv1"] + through2 - (supply - x["v1"] - x["i1"]),
            "node 3": p["C3"] * z["dv3"] - through2 + through4 - (x["i1"] - x["i2"]),
            "node 5": p["C5"] * z["dv5"] - through4 - (x["i2"] - x["v5"]),
        }

    reset = saltus.Event(
        "reset",
        guard=lambda now, p: now.x["v3"] - 0.5,
        direction="rising",
        reset=lambda now, p: now.replace(x={**now.x, "v3": 0.0}),
    )
    start = saltus.Instant(
        t=0.0, x=dict.fromkeys(LADDER, 0.0), z={"dv5": 0.0, "dv3": 0.0, "dv1": 0.0}
    )
    system = saltus.HybridSystem(flow, constraint=currents, events=[reset])
    method = saltus.Tsit5(rtol=1e-8, atol=1e-8)
    return saltus.Scenario(system, start, dict(ELEMENTS), 20.0, method, name="Cauer ladder")


def ladder_guess() -> dict[str, float]:
    """The start of the paper: every element off by up to 10 %."""
    off = np.random.default_rng(0).uniform(-1, 1, 7)
    return {k: v * math.exp(0.1 * r) for (k, v), r in zip(ELEMENTS.items(), off, strict=True)}


def balls(n: int) -> saltus.Scenario:
    """`n` balls in a box of 10 by 10; walls damp the normal velocity, pairs turn both around."""
    first, second = np.triu_indices(n, 1)

    def walls(now, p):
        x, y = now.x["x"], now.x["y"]
        return jnp.concatenate([y, 10.0 - y, x, 10.0 - x])

    def bounce(now, p):
        side, ball = now.member // n, now.member % n
        turn = lambda v: jnp.where(jnp.arange(n) == ball, -p["e_g"] * v, v)
        vx = jnp.where(side >= 2, turn(now.x["vx"]), now.x["vx"])
        vy = jnp.where(side < 2, turn(now.x["vy"]), now.x["vy"])
        return now.replace(x={**now.x, "vx": vx, "vy": vy})

    def gaps(now, p):
        x, y = now.x["x"], now.x["y"]
        return (x[first] - x[second]) ** 2 + (y[first] - y[second]) ** 2 - NEAR

    def hit(now, p):
        one, other = jnp.asarray(first)[now.member], jnp.asarray(second)[now.member]
        both = (jnp.arange(n) == one) | (jnp.arange(n) == other)
        turn = lambda v: jnp.where(both, -p["e_b"] * v, v)
        return now.replace(x={**now.x, "vx": turn(now.x["vx"]), "vy": turn(now.x["vy"])})

    system = saltus.HybridSystem(
        lambda now, p: {
            "x": now.x["vx"],
            "y": now.x["vy"],
            "vx": jnp.zeros(n),
            "vy": jnp.full(n, -1.0) * p["g"],
        },
        events=[saltus.Event("wall", walls, bounce), saltus.Event("pair", gaps, hit)],
        output=lambda now, p: {"x": now.x["x"], "y": now.x["y"]},
    )
    start = saltus.Instant(t=0.0, x=_places(n))
    return saltus.Scenario(system, start, dict(BALLS), BALLS_END, name=f"{n} balls")


def _places(n: int) -> dict:
    columns = math.ceil(math.sqrt(n))
    rows = math.ceil(n / columns)
    c, r = np.arange(n) % columns, np.arange(n) // columns
    spread = 1e-3 if n == 15 else 0.1
    draw = random.Random(0)
    jitter = [np.array([draw.uniform(-spread, spread) for _ in range(n)]) for _ in range(4)]
    return {
        "x": (c + 0.5) * 10 / columns + jitter[0],
        "y": 5 + (r + 0.5) * 5 / rows + jitter[1],
        "vx": -0.6 + 1.2 * c / (columns - 1) + jitter[2],
        "vy": -0.55 + 1.1 * r / (rows - 1) + jitter[3],
    }


def balls_guess() -> dict[str, float]:
    """The start of the paper: truth + (-1, 0.1, 0.1)."""
    return {"g": BALLS["g"] - 1.0, "e_g": BALLS["e_g"] + 0.1, "e_b": BALLS["e_b"] + 0.1}
