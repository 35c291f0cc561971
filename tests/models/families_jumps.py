"""Families with closed forms in which jumps meet: clocks, chains, plans, levels close together."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

import duals as du
import saltus
from families import Family, margin, run
from saltus import Event, HybridSystem, Instant, TimeEvent, every

# -- decay with doses at the ticks of a clock ---------------------------------------------------

DOSES = HybridSystem(
    lambda now, q: {"x": -q[1] * now.x["x"]},
    events=[
        TimeEvent(
            "dose",
            every(lambda now, q: q[3], lambda now, q: q[4]),
            reset=lambda now, q: now.replace(x={"x": now.x["x"] + q[2]}),
        )
    ],
)


def doses(q):
    """The second output is saved at a time that may be that of a dose."""
    sol = run(DOSES, Instant(t=0.0, x={"x": q[0]}), q, q[6], ts=q[5][None])
    return jnp.stack([sol.final.x["x"], sol.y["x"][0]]), sol


def draw_doses(rng, n, near):
    x0, k, dose = rng.uniform(0, 2, n), rng.uniform(0.2, 2, n), rng.uniform(0.5, 2, n)
    period, offset = rng.uniform(0.3, 1, n), rng.uniform(0.05, 0.3, n)
    tick, last = rng.integers(0, 5, n), rng.integers(5, 12, n)
    T = offset + (last + rng.uniform(0.1, 0.9, n)) * period
    save = offset + (tick + np.where(near, 0.0, rng.uniform(0.1, 0.9, n))) * period
    kind = rng.random(n)
    save = np.where(near & (kind < 0.7), save * (1 + margin(rng, n, 1e-15, 1e-3)), save)
    T = np.where(near & (kind > 0.5), (offset + last * period) * (1 + margin(rng, n, 1e-15)), T)
    return [x0, k, dose, period, offset, save, T]


def _dosed(x0, k, dose, period, offset, t):
    x, last = x0, 0.0 * t
    for j in range(14):
        tick = offset + float(j) * period
        due = tick.value <= t.value
        x, last = (
            du.where(due, x * du.exp(-k * (tick - last)) + dose, x),
            du.where(due, tick, last),
        )
    return x * du.exp(-k * (t - last))


def true_doses(q):
    x0, k, dose, period, offset, save, T = q
    return [_dosed(x0, k, dose, period, offset, t) for t in (T, save)]


# -- a reset that throws the state to, or past, a second threshold ------------------------------

CHAIN = HybridSystem(
    lambda now, q: {"x": 1.0 - q[0] * now.x["x"], "y": q[1]},
    events=[
        Event(
            "spill",
            lambda now, q: now.x["x"] - q[2],
            direction="rising",
            reset=lambda now, q: now.replace(x={"x": 0.0 * q[2], "y": q[3] * now.x["y"]}),
        ),
        Event(
            "refill",
            lambda now, q: now.x["y"] - q[4],
            reset=lambda now, q: now.replace(x={"x": now.x["x"], "y": now.x["y"] + q[5]}),
        ),
    ],
)


def chain(q):
    sol = run(CHAIN, Instant(t=0.0, x={"x": 0.0, "y": q[6]}), q, q[7])
    return jnp.stack([sol.final.x["x"], sol.final.x["y"]]), sol


def draw_chain(rng, n, near):
    k, level = rng.uniform(0.3, 1, n), rng.uniform(0.3, 0.8, n)
    slope = rng.choice([-1, 1], n) * rng.uniform(0.1, 0.5, n)
    keep, y0, more = rng.uniform(0.3, 0.7, n), rng.uniform(1.5, 3, n), rng.uniform(0.5, 2, n)
    wait = -np.log1p(-k * level) / k
    landing = keep * (y0 + slope * wait)
    far = rng.choice([-1, 1], n) * rng.uniform(0.1, 0.5, n)
    low = landing * (1 + np.where(near, margin(rng, n, 1e-12, 1e-1), far))
    low = np.minimum(low, y0 + np.minimum(slope, 0) * wait - 0.2)
    return [k, slope, level, keep, low, more, y0, wait * rng.uniform(1.1, 1.9, n)]


def true_chain(q):
    k, slope, level, keep, low, more, y0, T = q
    wait = -du.log(1 - k * level) / k
    y = keep * (y0 + slope * wait)
    y = du.where(y.value < low.value, y + more, y)
    t = wait
    for _ in range(12):  # y may fall to the threshold by itself, again and again
        ahead = du.where(slope.value < 0, (low - y) / slope, 1e9 + 0.0 * y)
        due = (ahead.value > 0) & ((t + ahead).value <= T.value)
        t, y = du.where(due, t + ahead, t), du.where(due, low + more, y)
    return [(1 - du.exp(-k * (T - wait))) / k, y + slope * (T - t)]


# -- an event that plans another one ------------------------------------------------------------

PLAN = HybridSystem(
    lambda now, q: {"x": -q[0] * now.x["x"]},
    events=[
        Event(
            "low",
            lambda now, q: now.x["x"] - q[1],
            reset=lambda now, q: now.replace(d={"aim": now.t + q[2]}),
        ),
        TimeEvent(
            "kick",
            lambda now, q: now.d["aim"],
            reset=lambda now, q: now.replace(x={"x": now.x["x"] + q[3]}, d={"aim": 1e9}),
        ),
    ],
)


def plan(q):
    sol = run(PLAN, Instant(t=0.0, x={"x": q[4]}, d={"aim": 1e9}), q, q[5])
    return sol.final.x["x"][None], sol


def draw_plan(rng, n, near):
    k, low, delay = rng.uniform(0.5, 2, n), rng.uniform(0.5, 1.5, n), rng.uniform(0.1, 1, n)
    x0 = low * rng.uniform(1.2, 3, n)
    bottom = low * np.exp(-k * delay)
    kick = np.where(rng.random(n) < 0.8, rng.uniform(1.2, 3, n), 0.5) * (low - bottom)
    kind = rng.random(n)
    kick = np.where(near & (kind < 0.5), (low - bottom) * (1 + margin(rng, n, 1e-12)), kick)
    first = np.log(x0 / low) / k + delay
    T = np.log(x0 / low) / k + rng.uniform(0, 4, n)
    T = np.where(near & (kind > 0.5), first * (1 + margin(rng, n, 1e-12)), T)
    return [k, low, delay, kick, x0, T]


def true_plan(q):
    k, low, delay, kick, x0, T = q
    t, x = 0.0 * T, x0
    for _ in range(80):
        falls = x.value > low.value
        wait = du.log(du.where(falls, x / low, 2.0 + 0.0 * x)) / k + delay
        due = falls & ((t + wait).value <= T.value)
        t = du.where(due, t + wait, t)
        x = du.where(due, low * du.exp(-k * delay) + kick, x)
    return [x * du.exp(-k * (T - t))]


# -- two events whose order matters -------------------------------------------------------------

ORDER = HybridSystem(
    lambda now, q: {"a": q[0] * now.x["a"], "b": q[1], "s": 0.0},
    events=[
        Event(
            "scale",
            lambda now, q: now.x["a"] - q[2],
            direction="rising",
            reset=lambda now, q: now.replace(x={**now.x, "s": q[4] * now.x["s"]}),
        ),
        Event(
            "shift",
            lambda now, q: now.x["b"] - q[3],
            direction="rising",
            reset=lambda now, q: now.replace(x={**now.x, "s": now.x["s"] + now.t}),
        ),
    ],
)


def order(q):
    sol = run(ORDER, Instant(t=0.0, x={"a": 1.0, "b": 0.0, "s": 1.0}), q, 4.0)
    return sol.final.x["s"][None], sol


def draw_order(rng, n, near):
    a, b, scale = rng.uniform(0.3, 1, n), rng.uniform(0.5, 2, n), rng.uniform(1.5, 3, n)
    first = rng.uniform(0.5, 3, n)
    second = np.where(near, first * (1 + margin(rng, n, 1e-15, 1e-2)), rng.uniform(0.5, 3, n))
    second = np.where(near | (np.abs(first - second) > 0.02), second, second + 0.1)
    return [a, b, np.exp(a * first), b * second, scale]


def true_order(q):
    a, b, high, level, scale = q
    first, second = du.log(high) / a, level / b
    scaled_first = first.value < second.value
    return [du.where(scaled_first, scale + second, scale * (1 + second))]


# -- a family of levels, some of them close together --------------------------------------------

LEVELS = HybridSystem(
    lambda now, q: {"u": q[0] - q[1] * now.x["u"], "s": 0.0},
    events=[
        Event(
            "level",
            lambda now, q: now.x["u"] - q[2:6],
            direction="rising",
            reset=lambda now, q: now.replace(
                x={**now.x, "s": 0.7 * now.x["s"] + now.t * (1 + now.member)}
            ),
        )
    ],
)


def levels(q):
    """Each member leaves its mark: s := 0.7 s + (1 + member) t."""
    sol = run(LEVELS, Instant(t=0.0, x={"u": 0.0, "s": 0.0}), q, q[6])
    return jnp.stack([sol.final.x["s"], sol.final.x["u"]]), sol


def draw_levels(rng, n, near):
    drive, k = rng.uniform(1, 3, n), rng.uniform(0.3, 1, n)
    steps = rng.uniform(0.08, 0.24, (4, n))
    close = rng.integers(1, 4, n)
    for j in range(1, 4):
        steps[j] = np.where(near & (close == j), np.abs(margin(rng, n, 1e-12, 1e-2)), steps[j])
    high = np.cumsum(steps, axis=0) * drive / k  # up to 0.96 of where u goes
    high = np.take_along_axis(high, rng.permuted(np.tile(np.arange(4), (n, 1)), axis=1).T, axis=0)
    last = -np.log1p(-np.max(high, axis=0) * k / drive) / k
    T = last * rng.uniform(1.1, 1.5, n)
    return [drive, k, *high, np.where(rng.random(n) < 0.5, T, last * rng.uniform(0.4, 0.97, n))]


def true_levels(q):
    drive, k, *high, T = q
    times = [-du.log(1 - k * level / drive) / k for level in high]
    late = np.argsort(np.stack([level.value for level in high]), axis=0, kind="stable")
    s = 0.0 * T
    for place in range(4):
        for member, t in enumerate(times):
            mine = (late[place] == member) & (t.value <= T.value)
            s = du.where(mine, 0.7 * s + (1.0 + member) * t, s)
    return [s, drive / k * (1 - du.exp(-k * T))]


# -- a tank with a pump that is switched, far from t = 0 ----------------------------------------

PUMP = HybridSystem(
    lambda now, q: {"x": now.u - q[0] * now.x["x"]},
    inputs=lambda q: saltus.Steps(jnp.stack([q[5] - 1.0, q[4]]), q[1:3]),
    events=[
        Event(
            "full",
            lambda now, q: now.x["x"] - q[3],
            reset=lambda now, q: now.replace(x={"x": 0.0 * q[3]}),
            direction="rising",
        )
    ],
)


def pump(q):
    sol = run(PUMP, Instant(t=q[5], x={"x": 0.0}), q, q[6])
    return sol.final.x["x"][None], sol


def draw_pump(rng, n, near):
    a, u0, u1 = rng.uniform(0.3, 1, n), rng.uniform(1.5, 3, n), rng.uniform(0, 3, n)
    level, t0 = rng.uniform(0.4, 1.2, n), rng.choice([0.0, -3.0, 1e3, -1e5], n)
    period = -np.log1p(-a * level / u0) / a
    count = rng.integers(1, 4, n)
    inside = rng.choice([0.3, 0.7], n) + rng.uniform(-0.2, 0.2, n)
    switch = period * np.where(near, count * (1 + margin(rng, n)), count + inside)
    u1 = np.where(near | (np.abs(u1 - a * level) > 0.1), u1, u1 + 0.3)
    low = near & (rng.random(n) < 0.3)
    u1 = np.where(low, a * level * (1 + margin(rng, n)), u1)
    return [a, u0, u1, level, t0 + switch, t0, t0 + switch + rng.uniform(0.1, 2, n)]


def true_pump(q):
    a, u0, u1, level, switch, t0, T = q
    t, x = t0, 0.0 * T
    for _ in range(40):
        before = t.value < switch.value
        goal = du.where(before, u0, u1) / a
        comes = goal.value > level.value
        wait = du.log(du.where(comes, (goal - x) / (goal - level), 2.0 + 0.0 * x)) / a
        stop = du.where(before & (switch.value < T.value), switch, T)
        fills = comes & ((t + wait).value <= stop.value)
        x = du.where(fills, 0.0, goal + (x - goal) * du.exp(-a * (stop - t)))
        t = du.where(fills, t + wait, stop)
    return [x]


# -- a signal that goes up and down in ramps ----------------------------------------------------

RAMP = HybridSystem(
    lambda now, q: {"x": now.u - q[1] * now.x["x"]},
    inputs=lambda q: saltus.Ramps(q[2:5], q[5:8]),
)


def ramp(q):
    """The second output is saved at a time that may be that of a bend."""
    sol = run(RAMP, Instant(t=0.0, x={"x": q[0]}), q, q[9], ts=q[8][None])
    return jnp.stack([sol.final.x["x"], sol.y["x"][0]]), sol


def draw_ramp(rng, n, near):
    x, k, first = rng.uniform(0, 2, n), rng.uniform(0.3, 2, n), rng.uniform(0.2, 0.8, n)
    values = rng.uniform(-2, 2, (3, n))
    small, kind = margin(rng, n, 1e-9), rng.random(n)
    gaps = rng.uniform(0.3, 1, (2, n))
    gaps[0] = np.where(near & (kind < 0.3), np.abs(small), gaps[0])
    times = np.stack([first, first + gaps[0], first + gaps[0] + gaps[1]])
    save, T = times[-1] * rng.uniform(0.1, 1.2, n), times[-1] * rng.uniform(0.5, 1.5, n)
    at = times[rng.integers(0, 3, n), np.arange(n)] * (1 + margin(rng, n, 1e-15))
    save, T = np.where(near & (kind > 0.6), at, save), np.where(near & (kind > 0.3), at, T)
    return [x, k, *times, *values, np.minimum(save, T), T]


def _phi(z, n):
    """`sum_j (-z)^j / (j + n)!`, without the differences of its closed form."""
    out = 0.0 * z
    for j in reversed(range(40)):
        out = 1 - z * out / (j + 1.0 + n)
    return out / math.factorial(n)


def _ramped(x, k, times, values, t):
    """On each piece u = c + m s, so that `x = x0 e^{-k s} + c s phi_1(k s) + m s^2 phi_2(k s)`."""
    start, end = 0.0 * t, [*times, t]
    for j in range(4):
        stop = du.where(t.value < end[j].value, t, end[j])
        s, c = stop - start, values[max(j - 1, 0)]
        rise = 0.0 * t
        if 0 < j < 3:
            rise = (values[j] - c) * (s / (times[j] - times[j - 1]))
        go = s.value > 0
        z = k * du.where(go, s, 0.0)
        x = du.where(go, x * du.exp(-z) + s * (c * _phi(z, 1) + rise * _phi(z, 2)), x)
        start = du.where(go, stop, start)
    return x


def true_ramp(q):
    x, k, times, values = q[0], q[1], q[2:5], q[5:8]
    return [_ramped(x, k, times, values, t) for t in (q[9], q[8])]


FAMILIES = {
    "doses": Family("x k dose period offset save T", doses, draw_doses, true_doses),
    "chain": Family("k slope level keep low more y T", chain, draw_chain, true_chain),
    "plan": Family("k low delay kick x T", plan, draw_plan, true_plan),
    "order": Family("a b high level scale", order, draw_order, true_order),
    "levels": Family("drive k l0 l1 l2 l3 T", levels, draw_levels, true_levels),
    "ramp": Family("x k t0 t1 t2 u0 u1 u2 save T", ramp, draw_ramp, true_ramp),
    "pump": Family("a u0 u1 level switch t0 T", pump, draw_pump, true_pump),
}
