"""Families of losses that read little: faint states, switches at ends, sums with large constants.

Their solutions are accurate in themselves. What has to be seen is that a loss reads a number below
the tolerances, that a flow jumps exactly where a motion starts or ends, and that a loss bends a
little beside a large constant, or in a corner between several parameters.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import duals as du
from families import Family, margin, run
from saltus import HybridSystem, Instant

# -- the logarithm of a state that decays to the tolerances ------------------------------------

FADING = HybridSystem(lambda now, q: {"x": -q[1] * now.x["x"], "y": q[2] * now.x["x"]})


def faint(q):
    sol = run(FADING, Instant(t=0.0, x={"x": q[0], "y": 0.0}), q, q[3])
    return (jnp.log(sol.final.x["x"]) + sol.final.x["y"])[None], sol


def draw_faint(rng, n, near):
    """Near: down to a thousandth of the absolute tolerance."""
    x, T = rng.uniform(0.5, 3, n), rng.uniform(0.5, 2, n)
    fades = np.where(near, rng.uniform(2, 28, n), rng.uniform(0.5, 2, n))
    return [x, fades / T, rng.uniform(0.1, 1, n), T]


def true_faint(q):
    x, k, g, T = q
    return [du.log(x) - k * T + g * x * (1 - du.exp(-k * T)) / k]


def read_faint(q):
    return np.exp(q[:, 1] * q[:, 3]) / q[:, 0]


# -- a flow that switches inside, at the end, or at the start ------------------------------------

SWITCHED = HybridSystem(
    lambda now, q: {"x": q[1] * jnp.where(now.t > q[2], q[3], 1.0) - q[4] * now.x["x"]}
)


def switched(q):
    sol = run(SWITCHED, Instant(t=0.0, x={"x": q[0]}), q, q[5])
    return sol.final.x["x"][None], sol


def draw_switched(rng, n, near):
    """Near: exactly at an end, or close to it, or inside. Away: after the end."""
    T = rng.uniform(0.5, 2, n)
    end = rng.random(n) < 0.5
    beside = np.where(rng.random(n) < 0.5, 0.0, margin(rng, n, 1e-12, 1e-6))
    at = np.where(end, T, 0.0) + beside
    at = np.where(rng.random(n) < 0.7, at, T * rng.uniform(0.2, 0.8, n))
    at = np.where(near, at, T * rng.uniform(1.1, 2, n))
    drive, other, k = rng.uniform(0.5, 2, n), rng.uniform(1.5, 3, n), rng.uniform(0.3, 1, n)
    return [rng.uniform(0.5, 2, n), drive, at, other, k, T]


def true_switched(q):
    x, g, a, s, k, T = q
    no = x * du.exp(-k * T) + g * (1 - du.exp(-k * T)) / k
    at = du.where(a.value > 0, a, 0.0)
    x = x * du.exp(-k * at) + g * (1 - du.exp(-k * at)) / k
    rest = T - at
    yes = x * du.exp(-k * rest) + g * s * (1 - du.exp(-k * rest)) / k
    result = du.where(a.value < T.value, yes, no)
    tie = (a.value == 0) | (a.value == T.value)  # no derivative
    return [du.where(tie, du.without_slope(result), result)]


# -- a small bend beside a large constant ------------------------------------------------------

DECAY = HybridSystem(lambda now, q: {"x": -q[1] * now.x["x"]})


def constant(q):
    sol = run(DECAY, Instant(t=0.0, x={"x": q[0]}), q, q[4])
    return (q[3] + sol.final.x["x"] + 0.2 * jnp.abs(q[2] - 1.0))[None], sol


def draw_constant(rng, n, near):
    """Near: at the bend or beside it."""
    x, k, T = rng.uniform(0.5, 3, n), rng.uniform(0.3, 2, n), rng.uniform(0.3, 2, n)
    beside = np.where(rng.random(n) < 0.3, 0.0, margin(rng, n, 1e-12))
    wide = rng.choice([-1.0, 1.0], n) * rng.uniform(0.05, 0.6, n)
    return [x, k, 1 + np.where(near, beside, wide), 10.0 ** rng.uniform(0, 5, n), T]


def true_constant(q):
    x, k, b, c, T = q
    off = b - 1
    return [c + x * du.exp(-k * T) + 0.2 * du.where(off.value > 0, off, -off)]


# -- a bend in a corner of several parameters --------------------------------------------------


def corner(q):
    sol = run(DECAY, Instant(t=0.0, x={"x": q[0]}), q, q[5])
    inside = (q[2] > 1.0) & (q[3] > 1.0) & (q[4] < 1.0)
    return (sol.final.x["x"] + jnp.where(inside, 3.0 * (q[2] - 1.0), 0.0))[None], sol


def draw_corner(rng, n, near):
    """Near: in the corner, on one of its edges, or beside it."""
    x, k, T = rng.uniform(0.5, 3, n), rng.uniform(0.3, 2, n), rng.uniform(0.3, 2, n)
    wide = lambda: rng.choice([-1.0, 1.0], n) * rng.uniform(0.05, 0.6, n)
    own = lambda: np.where(rng.random(n) < 0.6, 0.0, wide())
    places = [1 + np.where(near, own(), wide()) for _ in range(3)]
    return [x, k, *places, T]


def true_corner(q):
    x, k, a, b, c, T = q
    inside = (a.value > 1) & (b.value > 1) & (c.value < 1)
    value = x * du.exp(-k * T) + du.where(inside, 3 * (a - 1), 0.0)
    edge = (a.value >= 1) & (b.value >= 1) & (c.value <= 1) & ~inside
    return [du.where(edge, du.without_slope(value), value)]


FAMILIES = {
    "faint": Family("x k g T", faint, draw_faint, true_faint, loss=True, reads=read_faint),
    "switched": Family("x g a s k T", switched, draw_switched, true_switched, loss=True),
    "constant": Family("x k b c T", constant, draw_constant, true_constant, loss=True),
    "corner": Family("x k a b c T", corner, draw_corner, true_corner, loss=True),
}
