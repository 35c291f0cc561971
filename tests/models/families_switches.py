"""Families with closed forms in which the equations change: modes, switches, kinks."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import duals as du
import saltus
from families import RADAU, Family, margin, run
from saltus import Event, Exit, HybridSystem, Instant, Mode, automaton

# -- a thermostat -------------------------------------------------------------------------------

THERMOSTAT = automaton(
    {
        "cool": Mode(
            lambda now, q: {"x": -q[0] * now.x["x"]},
            exits=[Exit(lambda now, q: now.x["x"] - q[2], to="heat")],
        ),
        "heat": Mode(
            lambda now, q: {"x": -q[0] * (now.x["x"] - q[1])},
            exits=[Exit(lambda now, q: now.x["x"] - q[3], to="cool", direction="rising")],
        ),
    }
)


def thermostat(q):
    sol = run(THERMOSTAT, Instant(t=0.0, x={"x": q[4]}, mode="cool"), q, q[5])
    return sol.final.x["x"][None], sol


def draw_thermostat(rng, n, near):
    a, lo = rng.uniform(0.5, 2, n), rng.uniform(1, 2, n)
    band = np.where(near & (rng.random(n) < 0.3), np.abs(margin(rng, n, 0.03, 0.2)), 0.0)
    hi = lo + np.where(band > 0, band, rng.uniform(0.2, 1, n))
    H, x0 = hi + rng.uniform(0.3, 2, n), lo + (hi - lo) * rng.uniform(0.2, 2, n)
    flat = near & (rng.random(n) < 0.4)
    H = np.where(flat, hi * (1 + margin(rng, n)), H)  # heats to just above, or below, `hi`
    T = rng.uniform(0.3, 4, n) / a
    off = np.log(x0 / lo) / a  # the first switch
    T = np.where(near & ~flat & (rng.random(n) < 0.5), off * (1 + margin(rng, n)), T)
    return [a, H, lo, hi, x0, T]


def true_thermostat(q):
    a, H, lo, hi, x0, T = q
    t, x, heating = 0.0 * T, x0, np.zeros(T.value.shape, bool)
    for _ in range(400):
        goal = du.where(heating, H, 0.0)
        level = du.where(heating, hi, lo)
        reach = (x - goal).value / np.where(heating, hi.value - H.value, lo.value)
        comes = reach > 1
        wait = du.log(du.where(comes, (x - goal) / (level - goal), 2.0 + 0.0 * x)) / a
        go = comes & ((t + wait).value <= T.value)
        t, x = du.where(go, t + wait, t), du.where(go, level, x)
        heating = heating ^ go
    goal = du.where(heating, H, 0.0)
    return [goal + (x - goal) * du.exp(-a * (T - t))]


# -- integrate and fire -------------------------------------------------------------------------

NEURON = HybridSystem(
    lambda now, q: {"u": (q[0] - now.x["u"]) / q[1]},
    events=[
        Event(
            "spike",
            lambda now, q: now.x["u"] - q[2],
            reset=lambda now, q: now.replace(x={"u": 0.0 * q[2]}),
            direction="rising",
        )
    ],
)


def neuron(q):
    sol = run(NEURON, Instant(t=0.0, x={"u": q[3]}), q, q[4])
    return sol.final.x["u"][None], sol


def draw_neuron(rng, n, near):
    tau, level, u0 = rng.uniform(0.5, 2, n), rng.uniform(0.5, 2, n), rng.uniform(-1, 0.4, n)
    drive = level * (1 + rng.uniform(0.05, 1, n))
    weak = near & (rng.random(n) < 0.5)
    drive = np.where(weak, level * (1 + margin(rng, n)), drive)
    period = tau * np.log(drive / np.maximum(drive - level, 1e-12))
    first = tau * np.log((drive - u0) / np.maximum(drive - level, 1e-12))
    T = first + period * (rng.integers(0, 6, n) + rng.uniform(-0.9, -0.1, n))
    at_spike = (first + period * rng.integers(0, 4, n)) * (1 + margin(rng, n))
    T = np.where(near & ~weak, at_spike, T)
    T = np.where(weak, first * rng.uniform(0.5, 2, n), T)
    T = np.where(near & weak & (drive < level), tau * rng.uniform(1, 20, n), T)
    return [drive, tau, level, u0, np.maximum(T, 0.1)]


def true_neuron(q):
    drive, tau, level, u0, T = q
    reaches = drive.value > level.value
    gap = du.where(reaches, drive - level, 1.0 + 0.0 * level)
    first = tau * du.log((drive - u0) / gap)
    fired = reaches & (first.value <= T.value)
    period = tau * du.log(drive / gap)
    count = np.floor((T.value - first.value) / np.where(reaches, period.value, 1))
    s = du.where(fired, T - first - np.where(fired, count, 0.0) * period, T)
    begin = du.where(fired, 0.0, u0)
    return [drive + (begin - drive) * du.exp(-s / tau)]


# -- an algebraic state whose equation changes --------------------------------------------------

SWITCH = HybridSystem(
    lambda now, q: {"x": -now.z["z"]},
    constraint=lambda now, q: {"rate": now.z["z"] - now.d["k"] * now.x["x"]},
    events=[
        Event(
            "switch",
            lambda now, q: now.x["x"] - q[3],
            reset=lambda now, q: now.replace(d={"k": q[2]}),
        )
    ],
)


def switch(q):
    start = Instant(t=0.0, x={"x": q[0]}, z={"z": q[0] * q[1]}, d={"k": q[1]})
    sol = run(SWITCH, start, q, q[4], method=RADAU)
    return jnp.stack([sol.final.x["x"], sol.final.z["z"]]), sol


def draw_switch(rng, n, near):
    x0, k1, k2 = rng.uniform(1, 3, n), rng.uniform(0.3, 2, n), rng.uniform(0.3, 3, n)
    level = x0 * rng.uniform(0.2, 0.9, n)
    kind = rng.random(n)
    level = np.where(near & (kind < 0.5), x0 * (1 - margin(rng, n, 1e-12)), level)
    t = np.log(x0 / level) / k1
    T = np.abs(t) + rng.choice([0.0, 1.0], n, p=[0.3, 0.7]) * rng.uniform(0.1, 1, n)
    T = np.where(near, T, np.where(rng.random(n) < 0.3, t * rng.uniform(0.3, 0.9, n), T + 0.1))
    T = np.where(near & (kind >= 0.5), t * (1 + margin(rng, n, 1e-12)), T)
    return [x0, k1, k2, level, np.maximum(T, 0.05)]


def true_switch(q):
    x0, k1, k2, level, T = q
    below = level.value < x0.value
    t = du.log(x0 / level) / k1
    late = below & (t.value <= T.value)
    x = du.where(late, level * du.exp(-k2 * (T - t)), x0 * du.exp(-k1 * T))
    return [x, x * du.where(late, k2, k1)]


# -- a body that lands, slides and stops --------------------------------------------------------

LANDING = automaton(
    {
        "fly": Mode(
            lambda now, q: {"h": now.x["v"], "v": -q[2], "x": now.x["u"], "u": 0.0},
            exits=[
                Exit(
                    lambda now, q: now.x["h"],
                    to="slide",
                    reset=lambda now, q: now.replace(x={**now.x, "h": 0.0, "v": 0.0}),
                )
            ],
        ),
        "slide": Mode(
            lambda now, q: {"x": now.x["u"], "u": -q[3] * q[2]},
            exits=[
                Exit(
                    lambda now, q: now.x["u"],
                    to="rest",
                    reset=lambda now, q: now.replace(x={**now.x, "u": 0.0}),
                )
            ],
        ),
        "rest": Mode(lambda now, q: {"h": 0.0}),
    }
)


def landing(q):
    start = Instant(t=0.0, x={"h": q[0], "v": 0.0, "x": 0.0, "u": q[1]}, mode="fly")
    sol = run(LANDING, start, q, q[4])
    return jnp.stack([sol.final.x["x"], sol.final.x["u"], sol.final.x["h"]]), sol


def draw_landing(rng, n, near):
    h, u, g = rng.uniform(0.2, 2, n), rng.uniform(0.2, 3, n), rng.uniform(5, 12, n)
    mu = rng.uniform(0.1, 1, n)
    kind = rng.random(n)
    u = np.where(near & (kind < 0.3), 10 ** rng.uniform(-12, -2, n), u)
    h = np.where(near & (kind > 0.8), 10 ** rng.uniform(-10, -2, n), h)
    land = np.sqrt(2 * h / g)
    stop = land + u / (mu * g)
    T = stop * rng.uniform(0.2, 1.5, n)
    away = (np.abs(T - land) > 0.02) & (np.abs(T - stop) > 0.02)
    T = np.where(away, T, stop + 0.3)
    place = np.where(rng.random(n) < 0.5, land, stop)
    T = np.where(near & (kind > 0.2), place * (1 + margin(rng, n, 1e-12)), T)
    return [h, u, g, mu, T]


def true_landing(q):
    h, u, g, mu, T = q
    land = du.sqrt(2 * h / g)
    stop = land + u / (mu * g)
    slide = T - land
    x = du.where(T.value < land.value, u * T, u * T - 0.5 * mu * g * slide * slide)
    x = du.where(T.value < stop.value, x, u * land + 0.5 * u * u / (mu * g))
    speed = du.where(T.value < land.value, u, u - mu * g * slide)
    speed = du.where(T.value < stop.value, speed, 0.0)
    height = du.where(T.value < land.value, h - 0.5 * g * T * T, 0.0)
    return [x, speed, height]


# -- a tank that runs dry -----------------------------------------------------------------------

TANK = HybridSystem(
    lambda now, q: {"h": -q[0] * jnp.sqrt(now.x["h"])},
    events=[
        Event(
            "refill",
            lambda now, q: now.x["h"] - q[1],
            reset=lambda now, q: now.replace(x={"h": q[2]}),
        )
    ],
)


def tank(q):
    sol = run(TANK, Instant(t=0.0, x={"h": q[3]}), q, q[4])
    return sol.final.x["h"][None], sol


def draw_tank(rng, n, near):
    k, full, h0 = rng.uniform(0.5, 2, n), rng.uniform(1, 3, n), rng.uniform(1, 3, n)
    low = rng.uniform(0.02, 0.5, n)
    kind = rng.random(n)
    low = np.where(near & (kind < 0.6), 10 ** rng.uniform(-12, -2, n), low)
    first, period = (2 * (np.sqrt(h) - np.sqrt(low)) / k for h in (h0, full))
    count = rng.integers(0, 5, n)
    T = np.where(count == 0, first * rng.uniform(0.1, 0.9, n), first)
    T = T + np.where(count == 0, 0.0, period * (count - 1 + rng.uniform(0.1, 0.9, n)))
    at_refill = (first + period * count) * (1 + margin(rng, n, 1e-12))
    return [k, low, full, h0, np.where(near & (kind > 0.4), at_refill, T)]


def true_tank(q):
    k, low, full, h0, T = q
    first, period = (2 * (du.sqrt(h) - du.sqrt(low)) / k for h in (h0, full))
    count = np.floor((T.value - first.value) / period.value)
    dry = first.value <= T.value
    s = du.where(dry, T - first - np.where(dry, count, 0.0) * period, T)
    root = du.sqrt(du.where(dry, full, h0)) - 0.5 * k * s
    return [root * root]


# -- a flow with a kink that `when` makes an event ----------------------------------------------

BRAKE = HybridSystem(
    lambda now, q: {
        "v": saltus.when(now.x["v"] > q[2], -q[0] * now.x["v"], -q[1]),
        "x": now.x["v"],
    }
)


def brake(q):
    sol = run(BRAKE, Instant(t=0.0, x={"v": q[3], "x": 0.0}), q, q[4])
    return jnp.stack([sol.final.x["v"], sol.final.x["x"]]), sol


def draw_brake(rng, n, near):
    k, a, v = rng.uniform(0.3, 1.5, n), rng.uniform(0.1, 1, n), rng.uniform(2, 4, n)
    level = rng.uniform(0.5, 1.8, n)
    kind = rng.random(n)
    level = np.where(near & (kind < 0.5), v * (1 - margin(rng, n, 1e-12)), level)
    t = np.abs(np.log(v / level)) / k
    T = t * np.where(rng.random(n) < 0.3, rng.uniform(0.3, 0.9, n), 1.0) + 0.2
    T = np.where(near & (kind > 0.5), t * (1 + margin(rng, n, 1e-12)), T)
    return [k, a, level, v, T]


def true_brake(q):
    k, a, level, v, T = q
    above = v.value > level.value
    t = du.where(above, du.log(v / level) / k, 0.0)
    begin = du.where(above, level, v)
    slow = T.value >= t.value
    fade = du.exp(-k * T)
    s = T - t
    far = du.where(above, (v - level) / k, 0.0)
    return [
        du.where(slow, begin - a * s, v * fade),
        du.where(slow, far + begin * s - 0.5 * a * s * s, v / k * (1 - fade)),
    ]


FAMILIES = {
    "thermostat": Family("a H lo hi x T", thermostat, draw_thermostat, true_thermostat),
    "neuron": Family("drive tau level u T", neuron, draw_neuron, true_neuron),
    "switch": Family("x k1 k2 level T", switch, draw_switch, true_switch),
    "landing": Family("h u g mu T", landing, draw_landing, true_landing),
    "tank": Family("k low full h T", tank, draw_tank, true_tank),
    "brake": Family("k a level v T", brake, draw_brake, true_brake),
}
