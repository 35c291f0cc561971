"""Families of hybrid models whose parameters, starts and end times are data, with closed forms.

A family is one system, so that thousands of models are one compiled program. A lane is a vector q
of everything that is drawn: parameters, start, end time. Every family is drawn half away from
degenerate places and half close to them: grazing, events at the end, at save times or at the same
instant, resets that land on a threshold, Zeno times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import duals as du
import saltus
from duals import Dual, Wide
from saltus import Event, HybridSystem, Instant, TimeEvent

TOL = 1e-9
TSIT = saltus.Tsit5(rtol=TOL, atol=TOL)
RADAU = saltus.Radau5(rtol=TOL, atol=TOL)


@dataclasses.dataclass(frozen=True)
class Family:
    """Models that differ in q alone: how to solve one, how to draw many, what is true of them."""

    names: str  # of the entries of q
    solve: Callable[[Any], tuple[Any, Any]]  # q -> (outputs, solution)
    draw: Callable[[Any, int, Any], list]  # (rng, lanes, near) -> the columns of q
    truth: Callable[[list[Dual]], list[Dual]]  # NaN where no solution exists
    loss: bool = False  # what is judged is the certificate of its one output, not of the solution
    reads: Callable[[Any], Any] | None = None  # q -> how much the output changes with a state


def run(system: Any, start: Instant, q: Any, t1: Any, method: Any = TSIT, **options: Any) -> Any:
    sizes = {"max_steps": 512, "max_events": 64, **options}
    return saltus.solve(system, start, q, t1, method=method, throw=False, **sizes)


# -- drawing ------------------------------------------------------------------------------------


def margin(rng: Any, n: int, low: float = 1e-9, high: float = 1e-1) -> np.ndarray:
    """Small numbers of either sign, uniform in their logarithm."""
    return rng.choice([-1.0, 1.0], n) * np.exp(rng.uniform(np.log(low), np.log(high), n))


def plain(x: Any) -> list[Dual]:
    """Columns of a draw as numbers that formulas take."""
    return du.duals(np.stack(x, axis=1))


def value(x: Dual) -> np.ndarray:
    return np.asarray(x.value, float)


# -- a ball that bounces ------------------------------------------------------------------------

BALL = HybridSystem(
    lambda now, q: {"h": now.x["v"], "v": -q[2]},
    events=[
        Event(
            "bounce",
            lambda now, q: now.x["h"],
            reset=lambda now, q: now.replace(x={**now.x, "v": -q[3] * now.x["v"]}),
        )
    ],
)


def ball(q):
    sol = run(BALL, Instant(t=0.0, x={"h": q[0], "v": q[1]}), q, q[4])
    return jnp.stack([sol.final.x["h"], sol.final.x["v"]]), sol


def _first_bounce(h0, v0, g, e):
    speed = du.sqrt(v0 * v0 + 2 * g * h0)
    return (v0 + speed) / g, e * speed  # its time, and the speed just after


def draw_ball(rng, n, near):
    h0, v0, g = rng.uniform(0.3, 2, n), rng.uniform(-2, 3, n), rng.uniform(3, 12, n)
    e, k = rng.uniform(0.3, 0.95, n), rng.integers(0, 8, n)
    first, speed = _first_bounce(*plain([h0, v0, g, e]))
    first, flight = value(first), 2 * value(speed) / g
    begin = np.where(k == 0, 0.0, first + flight * (1 - e ** (k - 1)) / (1 - e))
    length = np.where(k == 0, first, flight * e ** (k - 1))
    inside = begin + length * rng.uniform(0.05, 0.95, n)
    at_bounce = begin + length * (1 + margin(rng, n))
    zeno = first + flight / (1 - e)
    at_zeno = zeno * (1 + margin(rng, n, 1e-6, 0.5))
    T = np.where(near, np.where(rng.random(n) < 0.5, at_bounce, at_zeno), inside)
    return [h0, v0, g, e, T]


def true_ball(q):
    h0, v0, g, e, T = q
    t, v = _first_bounce(h0, v0, g, e)
    s, speed = T, v0  # since the last bounce
    height = h0
    for _ in range(400):
        past = (T.value >= t.value) & (2 * v.value / g.value > 1e-12)
        s, speed = du.where(past, T - t, s), du.where(past, v, speed)
        height = du.where(past, 0.0, height)
        t, v = du.where(past, t + 2 * v / g, t), du.where(past, e * v, v)
    first, after = _first_bounce(h0, v0, g, e)
    beyond = T.value >= (first + 2 * after / (g * (1 - e))).value
    lost = np.where(beyond, np.nan, 0.0)
    return [height + speed * s - 0.5 * g * s * s + lost, speed - g * s + lost]


# -- a throw to a ceiling, with drag ------------------------------------------------------------

THROW = HybridSystem(
    lambda now, q: {"x": now.x["v"], "v": -q[1] - q[2] * now.x["v"]},
    events=[Event("hit", lambda now, q: now.x["x"] - q[3], direction="rising", terminal=True)],
)


def ceiling(q):
    sol = run(THROW, Instant(t=0.0, x={"x": 0.0, "v": q[0]}), q, q[4])
    return jnp.stack([sol.final.t, sol.final.x["v"]]), sol


def _thrown(v0, g, k, t):
    c = v0 + g / k
    decay = du.exp(-k * t)
    return c / k * (1 - decay) - g / k * t, c * decay - g / k


def _apex(v0, g, k):
    t = du.log(1 + k * v0 / g) / k
    return t, v0 / k - g / k * t


def draw_ceiling(rng, n, near):
    v0, g, k = rng.uniform(2, 6, n), rng.uniform(5, 12, n), rng.uniform(0.1, 1, n)
    t, top = (value(v) for v in _apex(*plain([v0, g, k])))
    wide = np.where(rng.random(n) < 0.5, rng.uniform(0.05, 0.8, n), rng.uniform(-1, -0.05, n))
    c = top * (1 - np.where(near, margin(rng, n), wide))
    return [v0, g, k, c, t * rng.uniform(1.2, 1.9, n)]


def true_ceiling(q):
    v0, g, k, c, T = q
    t, top = _apex(v0, g, k)
    hits = top.value > c.value
    level = du.where(hits, c, 0.5 * top)
    hit = du.solved(lambda s: _thrown(v0, g, k, s)[0] - level, 0.0, t.value, v0)
    end = du.where(hits, hit, T)
    return [end, _thrown(v0, g, k, end)[1]]


# -- a guard with prescribed roots in time ------------------------------------------------------

ROOTS = 5


def _polynomial(now, q):
    out = q[ROOTS]
    for k in range(ROOTS):
        out = out * (now.t - q[k])
    return out


POLYNOMIAL = HybridSystem(
    lambda now, q: {"s": 0.0},
    events=[
        Event(
            "root",
            _polynomial,
            direction="either",
            reset=lambda now, q: now.replace(x={"s": 0.7 * now.x["s"] + now.t}),
        )
    ],
)


def roots(q):
    """Every root counts: s := 0.7 s + t."""
    sol = run(POLYNOMIAL, Instant(t=0.0, x={"s": 0.0}), q, q[ROOTS + 1])
    return sol.final.x["s"][None], sol


def draw_roots(rng, n, near):
    gaps = rng.uniform(0.05, 1.0, (n, ROOTS))
    pair = rng.integers(1, ROOTS, n)
    triple = rng.random(n) < 0.3
    for j in range(1, ROOTS):
        close = near & ((pair == j) | (triple & (pair == j - 1)))
        gaps[:, j] = np.where(close, np.abs(margin(rng, n, 1e-7, 1e-3)), gaps[:, j])
        twice = near & ~triple & (pair == j) & (rng.random(n) < 0.2)
        gaps[:, j] = np.where(twice, 0.0, gaps[:, j])  # a touch
    times = np.cumsum(gaps, axis=1)
    scale = rng.choice([-1.0, 1.0], n) * 10 ** rng.uniform(-2, 2, n)
    return [*times.T, scale, times[:, -1] + rng.uniform(0.05, 0.5, n)]


def true_roots(q):
    s, r = 0.0 * q[0], np.stack([v.value for v in q[:ROOTS]])
    for k in range(ROOTS):
        twice = np.sum(r == r[k], axis=0) == 2
        s = du.where((r[k] <= q[ROOTS + 1].value) & ~twice, 0.7 * s + q[k], s)
    return [s]


# -- a particle between walls -------------------------------------------------------------------


def _flip(name):
    return lambda now, q: now.replace(x={**now.x, name: -now.x[name]})


BOX = HybridSystem(
    lambda now, q: {"x": now.x["u"], "y": now.x["w"], "u": 0.0, "w": 0.0},
    events=[
        Event("left", lambda now, q: now.x["x"], _flip("u")),
        Event("right", lambda now, q: q[4] - now.x["x"], _flip("u")),
        Event("floor", lambda now, q: now.x["y"], _flip("w")),
        Event("roof", lambda now, q: q[5] - now.x["y"], _flip("w")),
    ],
)


def box(q):
    start = Instant(t=0.0, x={"x": q[0], "y": q[1], "u": q[2], "w": q[3]})
    x = (sol := run(BOX, start, q, q[6])).final.x
    return jnp.stack([x["x"], x["y"], x["u"], x["w"]]), sol


def draw_box(rng, n, near):
    x, y = rng.uniform(0.1, 0.9, n), rng.uniform(0.1, 0.9, n)
    u, w = (rng.choice([-1, 1], n) * rng.uniform(0.5, 3, n) for _ in range(2))
    W, H, T = rng.uniform(1, 2, n), rng.uniform(1, 2, n), rng.uniform(1, 3, n)
    # the time of the j-th hit of a side wall, and where y has to start to be in a corner then
    j = rng.integers(0, 3, n)
    hit = np.where(u > 0, W * (j + 1) - x, x + W * j) / np.abs(u)
    corner = (-(w * hit)) % H + margin(rng, n, 1e-12, 1e-2)
    kind = rng.random(n)
    inside = (corner > 0.01) & (corner < H - 0.01)
    y = np.where(near & (kind < 0.6) & inside, corner, y)
    T = np.where(near & (kind > 0.5), hit * (1 + margin(rng, n, 1e-12, 1e-2)), T)
    return [x, y, u, w, W, H, T]


def _folded(x, size):
    """Where a free motion is between two walls, and the sign of its velocity."""
    k = np.floor((x / size).value)
    odd = k % 2 == 1
    rest = x - k * size
    return du.where(odd, size - rest, rest), np.where(odd, -1.0, 1.0)


def true_box(q):
    x, y, u, w, W, H, T = q
    (x, a), (y, b) = _folded(x + u * T, W), _folded(y + w * T, H)
    return [x, y, u * a, w * b]


# -- an oscillator that spends time above a level -----------------------------------------------

OSCILLATOR = HybridSystem(
    lambda now, q: {"x": now.x["v"], "v": -(q[2] ** 2) * now.x["x"], "s": now.d["above"]},
    events=[
        Event(
            "cross",
            lambda now, q: now.x["x"] - q[3],
            direction="either",
            reset=lambda now, q: now.replace(d={"above": 1.0 - now.d["above"]}),
        )
    ],
)


def oscillator(q):
    """s is the time above the level."""
    start = Instant(t=0.0, x={"x": q[0], "v": q[1], "s": 0.0}, d={"above": 0.0})
    sol = run(OSCILLATOR, start, q, q[4], max_steps=1024)
    return sol.final.x["s"][None], sol


def draw_oscillator(rng, n, near):
    size, w = rng.uniform(0.5, 2, n), rng.uniform(1, 4, n)
    phase = rng.uniform(1.7, 4.5, n)  # x0 < 0: below the level
    level = size * np.where(rng.random(n) < 0.8, rng.uniform(0.1, 0.95, n), 1.1)
    level = np.where(near, size * (1 - margin(rng, n)), level)
    turns = rng.integers(0, 3, n) + rng.uniform(0.3, 0.7, n)  # the end is on the other side
    T = (2 * np.pi * (1 + turns) - phase) / w
    return [size * np.cos(phase), -size * w * np.sin(phase), w, level, T]


def true_oscillator(q):
    x0, v0, w, level, T = q
    size = du.sqrt(x0 * x0 + (v0 / w) ** 2)
    crosses = size.value > level.value
    half = du.arccos(du.where(crosses, level / size, 0.5 + 0.0 * size))
    phase = du.arctan2(-(v0 / w), x0) + w * T  # of the end; maxima at multiples of 2 pi
    begin = np.arctan2(-(v0 / w).value, x0.value)
    turn = 2 * np.arctan2(Wide(0), Wide(-1))
    s = 0.0 * T
    for k in range(-2, 8):
        up, down = turn * k - half, turn * k + half
        inside = (phase.value > up.value) & (phase.value < down.value)
        begun = crosses & (up.value > begin)
        s = du.where(begun & inside, s + (phase - up) / w, s)
        s = du.where(begun & (phase.value >= down.value), s + 2 * half / w, s)
    return [s]


# -- a motion that starts near rest, and is sent elsewhere later --------------------------------

REST = HybridSystem(
    lambda now, q: {"x": -q[0] * (now.x["x"] - now.d["goal"])},
    events=[
        TimeEvent(
            "move",
            lambda now, q: q[3],
            reset=lambda now, q: now.replace(d={"goal": q[2]}),
        )
    ],
)


def rest(q):
    """Where nothing moves, the error control has nothing to hold on to; sensitivities move."""
    sol = run(REST, Instant(t=0.0, x={"x": q[4]}, d={"goal": q[1]}), q, q[5])
    return sol.final.x["x"][None], sol


def draw_rest(rng, n, near):
    k, goal, later = rng.uniform(0.5, 3, n), rng.uniform(0.5, 2, n), rng.uniform(0.5, 2, n)
    at, x0 = rng.uniform(0.5, 3, n), rng.uniform(0, 3, n)
    x0 = np.where(near, goal * (1 + margin(rng, n, 1e-16, 1e-2)), x0)
    later = np.where(near & (rng.random(n) < 0.5), goal * (1 + margin(rng, n, 1e-16, 1e-2)), later)
    return [k, goal, later, at, x0, at * rng.uniform(1.1, 3, n)]


def true_rest(q):
    k, goal, later, at, x0, T = q
    x = goal + (x0 - goal) * du.exp(-k * at)
    return [later + (x - later) * du.exp(-k * (T - at))]


FAMILIES = {
    "ball": Family("h v g e T", ball, draw_ball, true_ball),
    "ceiling": Family("v g k c T", ceiling, draw_ceiling, true_ceiling),
    "roots": Family("r1 r2 r3 r4 r5 scale T", roots, draw_roots, true_roots),
    "box": Family("x y u w W H T", box, draw_box, true_box),
    "oscillator": Family("x v w level T", oscillator, draw_oscillator, true_oscillator),
    "rest": Family("k goal later at x T", rest, draw_rest, true_rest),
}
