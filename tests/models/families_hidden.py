"""Families with closed forms in which something hides: jumps in loops, short dips, tiny states."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import duals as du
from families import Family, margin, run
from saltus import Event, HybridSystem, Instant

# -- a flow that jumps inside the body of a loop ------------------------------------------------


def _inside(now, q):
    """q[0] for x > q[1], 0 before, out of a loop with a conditional inside."""
    above = lambda c: c + 0.5 * q[0] * jnp.where(now.x["x"] > q[1], 1.0, 0.0)
    step = lambda c, k: (jax.lax.cond(k >= 0, above, lambda c: c, c), None)
    return jax.lax.scan(step, 0.0 * q[0], jnp.arange(2))[0]


HIDDEN = HybridSystem(lambda now, q: {"x": 1.0, "y": _inside(now, q)})


def hidden(q):
    sol = run(HIDDEN, Instant(t=0.0, x={"x": 0.0, "y": 0.0}), q, q[2])
    return sol.final.x["y"][None], sol


def draw_hidden(rng, n, near):
    """Away: the jump comes after the end."""
    rate, T = rng.uniform(0.5, 2, n), rng.uniform(1, 3, n)
    later = rng.uniform(1.1, 2, n)
    place = np.where(rng.random(n) < 0.5, rng.uniform(0.05, 0.95, n), 1 + margin(rng, n))
    return [rate, T * np.where(near, place, later), T]


def true_hidden(q):
    rate, place, T = q
    return [du.where(place.value < T.value, rate * (T - place), 0.0)]


# -- a guard that dips for a short time ---------------------------------------------------------

DIP = HybridSystem(
    lambda now, q: {"x": 1.0, "s": 0.0},
    events=(
        Event(
            "dip",
            lambda now, q: 1.0 - q[2] * jnp.exp(-(((now.x["x"] - q[0]) / q[1]) ** 2)),
            reset=lambda now, q: now.replace(x={**now.x, "s": now.x["s"] + now.t}),
        ),
    ),
)


def dip(q):
    """s is the time at which the guard falls through zero."""
    sol = run(DIP, Instant(t=0.0, x={"x": 0.0, "s": 0.0}), q, q[3])
    return sol.final.x["s"][None], sol


def draw_dip(rng, n, near):
    """Near: as short as a hundredth of the span, or as shallow as a billionth."""
    T, place = rng.uniform(5, 20, n), rng.uniform(0.2, 0.8, n)
    width, depth = rng.uniform(0.1, 0.2, n), rng.choice([0.7, 1.5], n) * rng.uniform(0.9, 1.1, n)
    kind = rng.random(n)
    width = np.where(near & (kind < 0.6), 10 ** rng.uniform(-2, -1, n), width)
    depth = np.where(near & (kind > 0.4), 1 + margin(rng, n), depth)
    return [place * T, width * T, depth, T]


def true_dip(q):
    place, width, depth, _ = q
    falls = depth.value > 1
    return [du.where(falls, place - width * du.sqrt(du.log(du.where(falls, depth, 2.0))), 0.0)]


# -- growth from below the tolerance ------------------------------------------------------------

TINY = HybridSystem(lambda now, q: {"x": q[0] * now.x["x"]})


def tiny(q):
    sol = run(TINY, Instant(t=0.0, x={"x": q[1]}), q, q[2])
    return sol.final.x["x"][None], sol


def draw_tiny(rng, n, near):
    size = np.where(near, 10 ** rng.uniform(-15, -4, n), rng.uniform(0.3, 2, n))
    size = np.where(near & (rng.random(n) < 0.1), 0.0, size)
    return [rng.uniform(0.5, 2, n), size, rng.uniform(0.5, 4, n)]


def true_tiny(q):
    k, x, T = q
    return [x * du.exp(k * T)]


# -- a swing about a rest, from below the tolerance ---------------------------------------------

SWING = HybridSystem(lambda now, q: {"x": now.x["v"], "v": -(q[2] ** 2) * now.x["x"]})


def swing(q):
    sol = run(SWING, Instant(t=0.0, x={"x": q[0], "v": q[1]}), q, q[3])
    return jnp.stack([sol.final.x["x"], sol.final.x["v"]]), sol


def draw_swing(rng, n, near):
    size = np.where(near, 10 ** rng.uniform(-15, -4, n), rng.uniform(0.3, 2, n))
    size = np.where(near & (rng.random(n) < 0.1), 0.0, size)
    w, phase = rng.uniform(1, 5, n), rng.uniform(0, 6, n)
    return [size * np.cos(phase), size * w * np.sin(phase), w, rng.uniform(0.5, 4, n)]


def true_swing(q):
    x, v, w, T = q
    c, s = du.cos(w * T), du.sin(w * T)
    return [x * c + v / w * s, v * c - w * x * s]


FAMILIES = {
    "hidden": Family("rate place T", hidden, draw_hidden, true_hidden),
    "dip": Family("place width depth T", dip, draw_dip, true_dip),
    "tiny": Family("k x T", tiny, draw_tiny, true_tiny),
    "swing": Family("x v w T", swing, draw_swing, true_swing),
}
