"""Sampled controllers and tanks with inputs, with their exact answers."""

from __future__ import annotations

import jax.numpy as jnp

import saltus
from problem import Problem, from_formula, integral, state, time_of
from saltus import HybridSystem, Instant, TimeEvent, every


def sampled_controller() -> Problem:
    """x' = a x + u, and u := -k x at every tick; the period is a parameter."""
    system = HybridSystem(
        flow=lambda now, p: {"x": p["a"] * now.x["x"] + now.d["u"]},
        rate=lambda now, p: now.x["x"] ** 2,
        events=[
            TimeEvent(
                "sample",
                every(lambda now, p: p["period"], lambda now, p: p["offset"]),
                reset=lambda now, p: now.replace(d={"u": -p["k"] * now.x["x"]}),
            )
        ],
    )
    p = {"a": 0.8, "k": 2.5, "period": 0.3, "offset": 0.1, "x0": 1.3}
    end = 2.0

    def formula(p):
        a, x, u, t, cost = p["a"], p["x0"], 0.0, 0.0, 0.0
        ticks = [p["offset"] + i * p["period"] for i in range(7)]
        for k, stop in enumerate([*ticks, end]):
            s, c = stop - t, x + u / a  # x(s) = c e^(a s) - u/a
            cost += (
                c**2 * jnp.expm1(2 * a * s) / (2 * a)
                - 2 * c * u * jnp.expm1(a * s) / a**2
                + u**2 / a**2 * s
            )
            x, t = c * jnp.exp(a * s) - u / a, stop
            if k < len(ticks):
                u = -p["k"] * x
        return {"x(T)": x, "cost": cost, "t_last": ticks[-1]}

    outputs = {"x(T)": state("x"), "cost": integral, "t_last": time_of("sample", 6)}
    start = lambda p: Instant(t=0.0, x={"x": p["x0"]}, d={"u": 0.0})
    exact = from_formula(formula, p)
    return Problem("sampled_controller", system, start, p, end, outputs, exact)


def driven_tank() -> Problem:
    """x' = -a x + u(t) with u in steps: the values and the breakpoints are parameters."""
    system = HybridSystem(
        flow=lambda now, p: {"x": -p["a"] * now.x["x"] + now.u["pump"]},
        inputs=lambda p: {
            "pump": saltus.Steps(
                jnp.stack([jnp.zeros(()), jnp.asarray(p["b1"]), jnp.asarray(p["b2"])]),
                jnp.stack([jnp.asarray(p[name]) for name in ("u0", "u1", "u2")]),
            )
        },
    )
    p = {"a": 0.7, "u0": 1.0, "u1": -0.5, "u2": 2.0, "b1": 0.8, "b2": 1.7, "x0": 0.4}
    end = 2.5

    def formula(p):
        a, x, t = p["a"], p["x0"], 0.0
        for u, stop in ((p["u0"], p["b1"]), (p["u1"], p["b2"]), (p["u2"], end)):
            x, t = u / a + (x - u / a) * jnp.exp(-a * (stop - t)), stop
        return {"x(T)": x}

    start = lambda p: Instant(t=0.0, x={"x": p["x0"]})
    outputs = {"x(T)": state("x")}
    return Problem("driven_tank", system, start, p, end, outputs, from_formula(formula, p))


def ramped_tank() -> Problem:
    """x' = -a x + u(t) with u piecewise linear."""
    system = HybridSystem(
        flow=lambda now, p: {"x": -p["a"] * now.x["x"] + now.u},
        inputs=lambda p: saltus.Ramps(
            jnp.stack([jnp.zeros(()), jnp.asarray(p["b1"]), jnp.asarray(2.0)]),
            jnp.stack([jnp.asarray(p[name]) for name in ("u0", "u1", "u2")]),
        ),
    )
    p = {"a": 0.7, "u0": 1.0, "u1": -0.5, "u2": 2.0, "b1": 0.8, "x0": 0.4}

    def formula(p):
        a, x, t = p["a"], p["x0"], 0.0
        for u, v, stop in ((p["u0"], p["u1"], p["b1"]), (p["u1"], p["u2"], 2.0)):
            s = stop - t
            slope = (v - u) / s
            steady = u / a - slope / a**2  # x = steady + slope t / a + c e^(-a t)
            x, t = steady + slope * s / a + (x - steady) * jnp.exp(-a * s), stop
        return {"x(T)": x}

    start = lambda p: Instant(t=0.0, x={"x": p["x0"]})
    outputs = {"x(T)": state("x")}
    return Problem("ramped_tank", system, start, p, 2.0, outputs, from_formula(formula, p))
