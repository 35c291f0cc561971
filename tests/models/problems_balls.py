"""Balls that bounce, with drag, kicks, a ceiling or a corner, and their exact answers."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import saltus
from problem import (
    Exact,
    Problem,
    before,
    data,
    from_closed_forms,
    from_formula,
    from_papers,
    integral,
    state,
    time_of,
)
from saltus import Event, Exit, HybridSystem, Instant, Mode, TimeEvent, automaton


def ball(restitution: str, gravity: str = "g", height: str = "h", **more: Any) -> HybridSystem:
    """h' = v, v' = -g; at h = 0 falling v := -e v."""

    def bounce(now, p):
        return now.replace(x={**now.x, "v": -p[restitution] * now.x["v"]})

    return HybridSystem(
        flow=lambda now, p: {height: now.x["v"], "v": -p[gravity]},
        events=[Event("bounce", guard=lambda now, p: now.x[height], reset=bounce)],
        **more,
    )


def paper_ball(name: str, case: str, t1: float, targets: list[float]) -> Problem:
    """P4a and P4b: the balls of Andersson-Goppert and of Schaefer-Schauer."""
    n = len(targets)

    def loss(sol, p):
        speeds = sol.events.of("bounce").before.x["v"][:n]
        return jnp.sum((speeds - jnp.array(targets)) ** 2)

    outputs = {
        "z(T)": state("z"),
        "v(T)": state("v"),
        "int_z": integral,
        "L_implicit": loss,
        **{f"t{k + 1}": time_of("bounce", k) for k in range(n)},
        **{f"v(t{k + 1}-)": before("bounce", k, "v") for k in range(n)},
    }
    p, exact = from_papers(data("papers")["problems"][case], outputs)
    system = ball("gamma", height="z", rate=lambda now, p: now.x["z"])
    start = lambda p: Instant(t=0.0, x={"z": p["z0"], "v": p["v0"]})
    return Problem(name, system, start, p, t1, outputs, exact)


def ball_until() -> Problem:
    """C3: the end time is a parameter."""
    outputs = {"h(T)": state("h"), "v(T)": state("v"), "t_bounce4": time_of("bounce", 3)}
    p, exact = from_closed_forms(data("closed_forms")["cases"]["C3"], outputs)
    start = lambda p: Instant(t=0.0, x={"h": p["h0"], "v": 0.0})
    return Problem("ball_until", ball("e"), start, p, lambda p: p["T"], outputs, exact)


def _drag_outputs(values: dict) -> dict:
    outputs = {"h(T)": state("h"), "v(T)": state("v"), "int_h": integral}
    for y in values:
        k = int(y[-1]) - 1 if y[-1].isdigit() else None
        if k is not None and y.startswith("apex"):
            outputs[y] = time_of("apex", k)
        elif k is not None and y.startswith("v-"):
            outputs[y] = before("bounce", k, "v")
        elif k is not None:
            outputs[y] = time_of("bounce", k)
    return outputs


def drag_ball(name: str, case: str = "long") -> Problem:
    """v' = -g - k v|v|, with the sign of v an integer of d that the events set."""
    entry = data("drag_ball")["problems"][case]
    outputs = _drag_outputs(entry["values"])
    p, exact = from_papers(entry, outputs)

    def bounce(now, p):
        return now.replace(x={**now.x, "v": -p["e"] * now.x["v"]}, d={"sign": 1})

    system = HybridSystem(
        flow=lambda now, p: {
            "h": now.x["v"],
            "v": -p["g"] - p["k"] * now.d["sign"] * now.x["v"] ** 2,
        },
        rate=lambda now, p: now.x["h"],
        events=[
            Event("bounce", guard=lambda now, p: now.x["h"], reset=bounce),
            Event(
                "apex",
                guard=lambda now, p: now.x["v"],
                reset=lambda now, p: now.replace(d={"sign": -1}),
            ),
        ],
    )
    sign = 1 if p["v0"] > 0 else -1
    start = lambda p: Instant(t=0.0, x={"h": p["h0"], "v": p["v0"]}, d={"sign": sign})
    return Problem(name, system, start, p, float(entry["T"]), outputs, exact)


def drag_ball_modes() -> Problem:
    """The same motion as an automaton: no kink anywhere."""
    entry = data("drag_ball")["problems"]["long"]
    outputs = _drag_outputs(entry["values"])
    p, exact = from_papers(entry, outputs)

    def bounce(now, p):
        return now.replace(x={**now.x, "v": -p["e"] * now.x["v"]})

    def flow(sign):
        return lambda now, p: {
            "h": now.x["v"],
            "v": -p["g"] - sign * p["k"] * now.x["v"] ** 2,
        }

    height = lambda now, p: now.x["h"]
    apex = Exit(lambda now, p: now.x["v"], to="down", name="apex")
    floor = Exit(height, to="up", reset=bounce, name="bounce")
    system = automaton(
        {
            "up": Mode(flow(1.0), exits=[apex], rate=height),
            "down": Mode(flow(-1.0), exits=[floor], rate=height),
        }
    )
    start = lambda p: Instant(t=0.0, x={"h": p["h0"], "v": p["v0"]}, mode="up")
    return Problem("drag_ball_modes", system, start, p, float(entry["T"]), outputs, exact)


def drag_ball_when() -> Problem:
    """The same motion with the kink of v|v| marked in the flow."""
    entry = data("drag_ball")["problems"]["long"]
    outputs = {y: f for y, f in _drag_outputs(entry["values"]).items() if "apex" not in y}
    p, exact = from_papers(entry, outputs)

    def flow(now, p):
        v = now.x["v"]
        return {"h": v, "v": -p["g"] - p["k"] * saltus.when(v > 0, v**2, -(v**2))}

    system = HybridSystem(flow, rate=lambda now, p: now.x["h"], events=ball("e").events)
    start = lambda p: Instant(t=0.0, x={"h": p["h0"], "v": p["v0"]})
    return Problem("drag_ball_when", system, start, p, float(entry["T"]), outputs, exact)


def kicked_ball() -> Problem:
    """A time event that depends on p and on the state: a kick some way after each bounce."""

    def bounce(now, p):
        return now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]}, d={"aim": 1})

    def kick(now, p):
        return now.replace(x={"h": now.x["h"], "v": now.x["v"] + p["dv"]}, d={"aim": 0})

    def next_kick(now, p):
        return jnp.where(now.d["aim"] == 1, now.t + p["c"] * now.x["v"] / p["g"], jnp.inf)

    system = HybridSystem(
        flow=lambda now, p: {"h": now.x["v"], "v": -p["g"]},
        events=[
            Event("bounce", guard=lambda now, p: now.x["h"], reset=bounce),
            TimeEvent("kick", next_kick, reset=kick),
        ],
    )
    p = {"h0": 1.2, "g": 9.81, "e": 0.8, "c": 0.6, "dv": 0.7}
    end = 1.5

    def formula(p):
        g, e, c, dv = p["g"], p["e"], p["c"], p["dv"]
        t1 = jnp.sqrt(2 * p["h0"] / g)
        v1 = e * g * t1
        wait = c * v1 / g
        tk, hk, vk = t1 + wait, v1 * wait - g * wait**2 / 2, v1 - g * wait + dv
        impact = jnp.sqrt(vk**2 + 2 * g * hk)
        t2 = tk + (vk + impact) / g
        s = end - t2
        return {
            "h(T)": e * impact * s - g * s**2 / 2,
            "v(T)": e * impact - g * s,
            "t_kick": tk,
            "t2": t2,
        }

    outputs = {
        "h(T)": state("h"),
        "v(T)": state("v"),
        "t_kick": time_of("kick", 0),
        "t2": time_of("bounce", 1),
    }
    start = lambda p: Instant(t=0.0, x={"h": p["h0"], "v": 0.0}, d={"aim": 0})
    return Problem("kicked_ball", system, start, p, end, outputs, from_formula(formula, p))


def ceiling(margin: str) -> Problem:
    """C4: a ball thrown to a ceiling with a relative surplus of speed; grazing as it goes to 0."""
    row = data("closed_forms")["cases"]["C4"]["table_by_margin_m"][margin]
    system = HybridSystem(
        flow=lambda now, p: {"x": now.x["v"], "v": -9.81},
        events=[Event("hit", guard=lambda now, p: now.x["x"] - 1.0, direction="rising")],
    )
    outputs = {"t_hit": time_of("hit", 0), "crossing_speed": before("hit", 0, "v")}
    exact = Exact({y: float(row[y]) for y in outputs}, {"t_hit": {"v0": float(row["dt_dv0"])}}, {})
    start = lambda p: Instant(t=0.0, x={"x": 0.0, "v": p["v0"]})
    p = {"v0": float(row["v0"])}
    return Problem(f"ceiling_{margin}", system, start, p, 0.6, outputs, exact)


def corner() -> Problem:
    """C7: two walls hit at the same instant; each flips only its own velocity."""

    def flip(name):
        return lambda now, p: now.replace(x={**now.x, name: -now.x[name]})

    system = HybridSystem(
        flow=lambda now, p: {"x": now.x["vx"], "y": now.x["vy"], "vx": 0.0, "vy": 0.0},
        events=[
            Event("wall_x", guard=lambda now, p: now.x["x"], reset=flip("vx")),
            Event("wall_y", guard=lambda now, p: now.x["y"], reset=flip("vy")),
        ],
    )
    p = {"x0": 1.0, "y0": 1.0, "vx0": -1.0, "vy0": -1.0}
    formula = lambda p: {
        "x(3)": -(p["x0"] + 3 * p["vx0"]),
        "y(3)": -(p["y0"] + 3 * p["vy0"]),
        "t_x": -p["x0"] / p["vx0"],
        "t_y": -p["y0"] / p["vy0"],
    }
    outputs = {
        "x(3)": state("x"),
        "y(3)": state("y"),
        "t_x": time_of("wall_x", 0),
        "t_y": time_of("wall_y", 0),
    }
    start = lambda p: Instant(t=0.0, x={"x": p["x0"], "y": p["y0"], "vx": p["vx0"], "vy": p["vy0"]})
    return Problem("corner", system, start, p, 3.0, outputs, from_formula(formula, p))
