"""Families of losses with closed forms: some are not numbers, some bend or jump.

Their models are harmless. What has to be seen is what the loss, or a reset, makes of them.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import duals as du
from families import Family, margin, run
from saltus import Event, HybridSystem, Instant

# -- the time of an event that may not happen ---------------------------------------------------

RISE = HybridSystem(
    lambda now, q: {"x": q[0] - q[1] * now.x["x"]},
    events=[Event("full", lambda now, q: now.x["x"] - q[2], direction="rising")],
)


def reach(q):
    sol = run(RISE, Instant(t=0.0, x={"x": 0.0}), q, q[3])
    return sol.events.nth(0).t[None], sol


def draw_reach(rng, n, near):
    """Near: it comes at the end, or almost never."""
    drive, k = rng.uniform(1, 3, n), rng.uniform(0.3, 1, n)
    part, kind = rng.uniform(0.1, 0.8, n), rng.random(n)
    part = np.where(near & (kind < 0.4), 1 - margin(rng, n), part)
    t = -np.log1p(-np.minimum(part, 0.999)) / k
    T = t * np.where(rng.random(n) < 0.1, rng.uniform(0.5, 0.9, n), rng.uniform(1.1, 2, n))
    T = np.where(near & (kind > 0.6), t * (1 + margin(rng, n)), T)
    return [drive, k, part * drive / k, T]


def true_reach(q):
    drive, k, level, T = q
    part = level * k / drive
    comes = part.value < 1
    t = -du.log(1 - du.where(comes, part, 0.5)) / k
    return [du.where(comes & (t.value <= T.value), t, np.nan)]


# -- a loss that bends or jumps -----------------------------------------------------------------

DECAY = HybridSystem(lambda now, q: {"x": -q[1] * now.x["x"]})


def hinge(q):
    """It bends where x is `place`; with `step` it jumps."""
    sol = run(DECAY, Instant(t=0.0, x={"x": q[0]}), q, q[4])
    over = sol.final.x["x"] / q[2] - 1.0
    return jnp.where(over > 0, 3.0 * over + q[3], 0.5 * over)[None], sol


def _draw_decay(rng, n):
    x, k, T = rng.uniform(0.5, 3, n), rng.uniform(0.3, 2, n), rng.uniform(0.3, 2, n)
    return x, k, T


def _beside(rng, n, near):
    wide = rng.choice([-1.0, 1.0], n) * rng.uniform(0.05, 0.6, n)
    return 1 + np.where(near, margin(rng, n, 1e-12), wide)


def draw_hinge(rng, n, near):
    x, k, T = _draw_decay(rng, n)
    step = rng.choice([0.0, 0.3], n)
    return [x, k, x * np.exp(-k * T) * _beside(rng, n, near), step, T]


def true_hinge(q):
    x, k, place, step, T = q
    over = x * du.exp(-k * T) / place - 1
    return [du.where(over.value > 0, 3 * over + step, 0.5 * over)]


# -- a reset that bends -------------------------------------------------------------------------

RATCHET = HybridSystem(
    lambda now, q: {"x": -q[1] * now.x["x"], "clock": 1.0},
    events=[
        Event(
            "click",
            lambda now, q: now.x["clock"] - q[3],
            direction="rising",
            reset=lambda now, q: now.replace(
                x={**now.x, "x": now.x["x"] + 3.0 * jnp.maximum(now.x["x"] - q[2], 0.0)}
            ),
        )
    ],
)


def ratchet(q):
    sol = run(RATCHET, Instant(t=0.0, x={"x": q[0], "clock": 0.0}), q, q[4])
    return sol.final.x["x"][None], sol


def draw_ratchet(rng, n, near):
    x, k, t = _draw_decay(rng, n)
    place = x * np.exp(-k * t) * _beside(rng, n, near)
    return [x, k, place, t, t + rng.uniform(0.2, 1, n)]


def true_ratchet(q):
    x, k, place, t, T = q
    x = x * du.exp(-k * t)
    x = du.where(x.value > place.value, x + 3 * (x - place), x)
    return [x * du.exp(-k * (T - t))]


FAMILIES = {
    "reach": Family("drive k level T", reach, draw_reach, true_reach, loss=True),
    "hinge": Family("x k place step T", hinge, draw_hinge, true_hinge, loss=True),
    "ratchet": Family("x k place t T", ratchet, draw_ratchet, true_ratchet, loss=True),
}
