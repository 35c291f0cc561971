"""Families of index 2 with closed forms in which all multipliers pass through zero together."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import duals as du
from families import RADAU, Family, margin, run
from saltus import Event, Exit, HybridSystem, Instant, Mode, automaton

# -- a pendulum on a string ---------------------------------------------------------------------

NODES, WEIGHTS = np.polynomial.legendre.leggauss(40)


def _pull(now, q):
    """The stabilised form, with multipliers for velocity and position."""
    x, lam, eta = now.x, now.z["lam"], now.z["eta"]
    along = {"x": x["vx"] - eta * x["x"], "y": x["vy"] - eta * x["y"]}
    return {**along, "vx": -lam * x["x"], "vy": -q[0] - lam * x["y"], "s": 0.0}


def _held(now, q):
    x, y, vx, vy = (now.x[k] for k in ("x", "y", "vx", "vy"))
    return {"eta": x * x + y * y - q[1] ** 2, "lam": x * vx + y * vy}


STRING = HybridSystem(
    _pull,
    _held,
    (
        Event(
            "slack",
            lambda now, q: now.z["lam"],
            reset=lambda now, q: now.replace(x={**now.x, "s": now.t}),
        ),
    ),
    index=2,
)


def string(q):
    """s is the time at which a pendulum that starts level, upwards, has no tension."""
    x = {"x": q[1], "y": 0.0, "vx": 0.0, "vy": q[2], "s": 0.0}
    start = Instant(t=0.0, x=x, z={"lam": (q[2] / q[1]) ** 2, "eta": 0.0})
    sol = run(STRING, start, q, q[3], method=RADAU)
    return sol.final.x["s"][None], sol


def _slack(g, length, v):
    """With the angle a, the speed is v^2 - 2 g L sin a, the tension v^2 / L - 3 g sin a."""
    sine = v * v / (3 * g * length)
    end = du.arctan2(sine, du.sqrt(1 - sine * sine))
    out = 0.0 * v
    for node, weight in zip(NODES, WEIGHTS, strict=True):
        out = out + weight / du.sqrt(v * v - 2 * g * length * du.sin(0.5 * (1 + node) * end))
    return 0.5 * length * end * out


def draw_string(rng, n, near):
    """Near: slack at the top, where the tension only touches zero, or at the end."""
    g, length = rng.uniform(5, 12, n), rng.uniform(0.5, 2, n)
    part, kind = rng.uniform(0.1, 0.85, n), rng.random(n)
    part = np.where(near & (kind < 0.5), 1 - margin(rng, n), part)
    v = np.sqrt(3 * g * length * part)
    inside = np.minimum(part, 1 - 1e-12)
    q = [du.Dual(x, np.zeros((1, n))) for x in (g, length, np.sqrt(3 * g * length * inside))]
    t = np.asarray(_slack(*q).value, float)
    T = t * rng.uniform(1.1, 1.4, n)
    return [g, length, v, np.where(near & (kind > 0.5), t * (1 + margin(rng, n)), T)]


def true_string(q):
    g, length, v, T = q
    comes = (v * v).value < (3 * g * length).value
    t = _slack(g, length, du.where(comes, v, du.sqrt(g * length)))
    return [du.where(comes & (t.value <= T.value), t, 0.0)]


# -- a bead on a moving line, which it may leave ------------------------------------------------


def _line(now, q):
    return q[1] * jnp.cos(q[2] * now.t)


BEAD = automaton(
    {
        "on": Mode(
            lambda now, q: {
                "h": now.x["v"],
                "v": now.z["lam"] - q[0],
                "u": now.z["eta"] - q[3] * q[0],
            },
            lambda now, q: {
                "lam": now.x["v"] - _line(now, q),
                "eta": now.x["u"] - q[3] * _line(now, q),
            },
            [Exit(lambda now, q: now.z["lam"], "off")],
        ),
        "off": Mode(lambda now, q: {"h": now.x["v"], "v": -q[0], "u": -q[3] * q[0]}),
    },
    index=2,
)


def bead(q):
    """A line that moves up and down pushes by lam, and aside by eta = aside * lam."""
    x = {"h": 0.0, "v": q[1], "u": q[3] * q[1]}
    start = Instant(t=0.0, x=x, z={"lam": q[0], "eta": q[3] * q[0]}, mode="on")
    sol = run(BEAD, start, q, q[4], method=RADAU)
    return jnp.stack([sol.final.x[k] for k in ("h", "v", "u")]), sol


def draw_bead(rng, n, near):
    """Near: the push only touches zero, or the bead leaves at the end."""
    g, w, aside = rng.uniform(5, 12, n), rng.uniform(1, 4, n), rng.uniform(-2, 2, n)
    kind = rng.random(n)
    part = np.where(rng.random(n) < 0.7, rng.uniform(1.1, 3, n), rng.uniform(0.3, 0.9, n))
    part = np.where(near & (kind < 0.5), 1 + margin(rng, n), part)
    t = np.arcsin(np.minimum(1 / part, 1.0)) / w
    T = t * np.where(rng.random(n) < 0.2, rng.uniform(0.5, 0.9, n), rng.uniform(1.2, 3, n))
    T = np.where(near & (kind > 0.5), t * (1 + margin(rng, n)), T)
    return [g, part * g / w, w, aside, T]


def true_bead(q):
    g, size, w, aside, T = q
    ratio = g / (size * w)
    leaves = ratio.value < 1
    sine = du.where(leaves, ratio, 0.5 + 0.0 * ratio)
    t = du.arctan2(sine, du.sqrt(1 - sine * sine)) / w
    free = leaves & (t.value <= T.value)
    last = du.where(free, t, T)
    v, h = size * du.cos(w * last), size / w * du.sin(w * last)
    go = du.where(free, T - t, 0.0 * T)
    speed = v - g * go
    return [h + v * go - 0.5 * g * go * go, speed, aside * speed]


FAMILIES = {
    "string": Family("g L v T", string, draw_string, true_string),
    "bead": Family("g size w aside T", bead, draw_bead, true_bead),
}
