"""Families with closed forms that land on guards, or go backward in time."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import duals as du
from families import Family, margin, run
from saltus import Event, Exit, HybridSystem, Instant, Mode, automaton

# -- a jump that lands on the guards of other events --------------------------------------------


def _marked(weight):
    """s grows by the time, so that it tells which event happened when."""
    return lambda now, q: now.replace(x={**now.x, "s": now.x["s"] + weight * now.t})


def _landed(now, q):
    return now.replace(
        x={
            **now.x,
            "x": q[1] + q[9] * q[2],
            "v": q[3],
            "l": q[1] + 2 * q[9] * q[2],
            "y": q[1] + q[9] * q[5],
            "w": q[6],
        }
    )


LANDED = HybridSystem(
    lambda now, q: {
        "x": now.x["v"], "v": now.d["a"], "l": now.d["w"], "y": now.x["w"], "w": 0.0,
        "clock": 1.0, "s": 0.0,
    },
    events=[
        Event("edge", lambda now, q: now.x["x"] - q[1], _marked(1.0)),
        Event(
            "land",
            lambda now, q: now.x["clock"] - q[0],
            direction="rising",
            reset=lambda now, q: _landed(now, q).replace(d={"a": q[4], "w": q[6]}),
        ),
        Event("level", lambda now, q: now.x["l"] - q[1], _marked(3.0), when="level"),
        Event(
            "wall",
            lambda now, q: now.x["y"] - q[1],
            reset=lambda now, q: now.replace(x={**now.x, "w": -q[7] * now.x["w"]}),
            when="contact",
        ),
    ],
)  # fmt: skip


def landed(q):
    """x from above, or from below, to its guard or beside it; l and y from above to theirs.

    With `free` = 0 they land on the guards whatever the parameters are. With `free` = 1 and
    `off` = 0 they do so by chance, and no derivative by `off` exists."""
    high, none = q[1] + 1.0, 0.0
    x = {"x": q[1] + q[8], "v": none, "l": high, "y": high, "w": none, "clock": none, "s": none}
    sol = run(LANDED, Instant(t=0.0, x=x, d={"a": 0.0, "w": 0.0}), q, q[10])
    return jnp.stack([sol.final.x[k] for k in ("s", "x", "y")]), sol


def _either_sign(rng, n, low, high):
    return rng.choice([-1.0, 1.0], n) * rng.uniform(low, high, n)


def draw_landed(rng, n, near):
    """Away: exactly on the guards, or far from them. Near: almost on them, almost without speed, at
    the end, or on them by chance."""
    t, place = rng.uniform(0.5, 1.5, n), rng.uniform(0.5, 2, n)
    v, a, w = (_either_sign(rng, n, 0.4, 2) for _ in range(3))
    exact, kind = rng.random(n) < 0.7, rng.integers(0, 4, n)
    off = np.where(exact, 0.0, _either_sign(rng, n, 0.2, 0.5))
    high = np.where(exact, 0.0, rng.uniform(0.2, 0.5, n))
    T = t + rng.uniform(0.2, 1.0, n)
    small = margin(rng, n, 1e-13, 1e-2)
    off = np.where(near & (kind == 0), small, off)
    high = np.where(near & (kind == 0), np.abs(small), high)
    v = np.where(near & (kind == 1), small, v)
    w = np.where(near & (kind == 1), -small, w)
    T = np.where(near & (kind == 2), t * (1 + small), T)
    clear = (np.abs(t + _falling(off, v, a) - T) > 0.05) & (np.abs(v * v - 2 * a * off) > 0.05)
    clear &= (high == 0) | (np.abs(t - high / w - T) > 0.05)
    clear &= (off == 0) | (np.abs(t - 2 * off / w - T) > 0.05)
    move = ~near & ~clear
    a, v, off, high = np.where(move, [np.abs(a), np.abs(v), 0 * a, 0 * a], [a, v, off, high])
    chance = near & (kind == 3)
    off, high = np.where(chance, 0.0, [off, high])
    free = np.where((off == 0) & ~chance, 0.0, 1.0)
    side = rng.choice([-1.0, 1.0], n)
    return [t, place, off, v, a, high, w, rng.uniform(0.4, 0.9, n), side, free, T]


def _falling(off, v, a):
    """When `off + v s + a s^2 / 2` falls through zero."""
    inner = v * v - 2 * a * off
    return np.where(inner > 0, (-v - np.sqrt(np.where(inner > 0, inner, 1.0))) / a, -1.0)


def _marks_of_x(t, off, v, a, side, T):
    inner = v * v - 2 * a * off
    falls = inner.value > 0
    s = (-v - du.sqrt(du.where(falls, inner, 1.0))) / a
    on = off.value == 0
    s = du.where(on, du.where(v.value > 0, -2 * v / a, 0.0), s)  # the same, exactly
    thrown = np.where(on, v.value < 0, (off.value < 0) & (side.value > 0))
    later = falls & (s.value > 0) & ((t + s).value <= T.value)
    return du.where(thrown, t, 0.0 * t) + du.where(later, t + s, 0.0 * t)


def _marks_of_l(t, off, w, T):
    thrown = np.where(off.value == 0, w.value < 0, off.value < 0)
    s = -2 * off / w
    later = (off.value > 0) & (w.value < 0) & ((t + s).value <= T.value)
    return du.where(thrown, t, 0.0 * t) + du.where(later, t + s, 0.0 * t)


def true_landed(q):
    t, place, off, v, a, high, w, e, side, free, T = q
    off, high = free * off, free * high
    here, go = T.value >= t.value, T - t
    marks = _marks_of_x(t, off, v, a, side, T) + 3 * _marks_of_l(t, off, w, T)
    x = place + off + v * go + 0.5 * a * go * go
    hit = du.where(high.value > 0, -high / w, 0.0)
    bounced = (w.value < 0) & (go.value >= hit.value)
    y = place + high + du.where(bounced, w * hit - e * w * (go - hit), w * go)
    chance = (free.value > 0) & (off.value == 0)
    marks, y = _no_slope(marks, chance), _no_slope(y, chance & (high.value == 0))
    late = [du.where(here, marks, 0.0 * T), du.where(here, x, place + side)]
    return [*late, du.where(here, y, place + 1.0)]


def _no_slope(x, where):
    return du.Dual(x.value, np.where(where, np.nan, x.partials))


# -- a thermostat, backward in time -------------------------------------------------------------

REWIND = automaton(
    {
        "cool": Mode(
            lambda now, q: {"x": -q[0] * q[5] * now.x["x"]},
            exits=[Exit(lambda now, q: now.x["x"] - q[2], to="heat")],
        ),
        "heat": Mode(
            lambda now, q: {"x": -q[0] * q[5] * (now.x["x"] - q[1])},
            exits=[Exit(lambda now, q: now.x["x"] - q[3], to="cool", direction="rising")],
        ),
    }
)


def rewind(q):
    """Exits are levels; backward each is undone where it was taken. T is in the flow."""
    sol = run(REWIND, Instant(t=0.0, x={"x": q[4]}, mode="cool"), q, -1.0)
    return sol.final.x["x"][None], sol


def _past(a, H, lo, hi, x):
    """How long ago each mode began: cooling at hi, heating at lo, in turn."""
    first = du.log(hi / x) / a
    return first, du.log((H - lo) / (H - hi)) / a, du.log(hi / lo) / a


def draw_rewind(rng, n, near):
    a, lo = rng.uniform(0.5, 2, n), rng.uniform(1, 2, n)
    hi = lo + rng.uniform(0.2, 1, n)
    H = hi + rng.uniform(0.3, 2, n)
    x = lo + (hi - lo) * rng.uniform(0.1, 0.9, n)
    kind = rng.random(n)
    small = margin(rng, n)
    x = np.where(near & (kind < 0.2), lo * (1 + np.abs(small)), x)
    x = np.where(near & (kind > 0.8), hi * (1 + small), x)
    waits = [np.log(hi / x) / a, np.log((H - lo) / (H - hi)) / a, np.log(hi / lo) / a]
    count = rng.integers(0, 6, n)
    begun = waits[0] + (count // 2) * (waits[1] + waits[2]) + (count % 2) * waits[1]
    begun = np.where(begun > 0, begun, 0.5)
    lasts = np.where(count % 2 == 0, waits[1], waits[2])
    T = begun + lasts * rng.uniform(0.1, 0.9, n)
    T = np.where(near & (kind > 0.2) & (kind < 0.8), begun * (1 + small), T)
    return [a, H, lo, hi, x, T]


def true_rewind(q):
    a, H, lo, hi, x, T = q
    left, cool, fresh = T, np.ones(T.value.shape, bool), np.zeros(T.value.shape, bool)
    for _ in range(60):
        level, goal = du.where(cool, hi, lo), du.where(cool, 0.0, H)
        comes = np.where(cool, x.value < hi.value, True)
        ratio = du.where(comes, (level - goal) / (x - goal), 2.0 + 0.0 * x)
        wait = du.log(ratio) / a
        go = comes & (wait.value <= left.value) & ~fresh
        left, x = du.where(go, left - wait, left), du.where(go, level, x)
        cool, fresh = cool ^ go, fresh | ~go
    goal = du.where(cool, 0.0, H)
    return [goal + (x - goal) * du.exp(a * left)]


# -- a ball that bounces, backward in time ------------------------------------------------------

UNBOUNCE = HybridSystem(
    lambda now, q: {"h": q[4] * now.x["v"], "v": -q[4] * q[2]},
    events=[
        Event(
            "bounce",
            lambda now, q: now.x["h"],
            reset=lambda now, q: now.replace(x={**now.x, "v": -q[3] * now.x["v"]}),
            undo=lambda now, q: now.replace(x={**now.x, "v": -now.x["v"] / q[3]}),
            when="level",
        )
    ],
)


def unbounce(q):
    sol = run(UNBOUNCE, Instant(t=0.0, x={"h": q[0], "v": q[1]}), q, -1.0)
    return jnp.stack([sol.final.x["h"], sol.final.x["v"]]), sol


def _last_bounce(h, v, g):
    speed = du.sqrt(v * v + 2 * g * h)
    return (speed - v) / g, speed  # how long ago, and the speed just after


def draw_unbounce(rng, n, near):
    h, v, g = rng.uniform(0.3, 2, n), rng.uniform(-2, 2, n), rng.uniform(3, 12, n)
    e, k = rng.uniform(0.6, 0.95, n), rng.integers(0, 5, n)
    speed = np.sqrt(v * v + 2 * g * h)
    flights = [np.where(k > j, 2 * speed / (g * e ** (j + 1)), 0.0) for j in range(5)]
    begun = (speed - v) / g + sum(flights)
    lasts = 2 * speed / (g * e ** (k + 1))
    short = begun * rng.uniform(0.1, 0.9, n)
    T = np.where((k == 0) & (rng.random(n) < 0.5), short, begun + lasts * rng.uniform(0.1, 0.9, n))
    low = near & (rng.random(n) < 0.3)
    h = np.where(low, 10 ** rng.uniform(-12, -2, n), h)
    return [h, v, g, e, np.where(near & ~low, begun * (1 + margin(rng, n)), T)]


def true_unbounce(q):
    h, v, g, e, T = q
    ago, speed = _last_bounce(h, v, g)
    left, now = T, v
    for _ in range(40):
        past = left.value >= ago.value
        left, h = du.where(past, left - ago, left), du.where(past, 0.0, h)
        now = du.where(past, -speed / e, now)
        speed = du.where(past, speed / e, speed)
        ago = du.where(past, 2 * speed / g, ago)
    return [h - now * left - 0.5 * g * left * left, now + g * left]


FAMILIES = {
    "landed": Family("t place off v a high w e side free T", landed, draw_landed, true_landed),
    "rewind": Family("a H lo hi x T", rewind, draw_rewind, true_rewind),
    "unbounce": Family("h v g e T", unbounce, draw_unbounce, true_unbounce),
}
