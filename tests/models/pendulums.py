"""Pendulums in Cartesian coordinates: index-2 models that carry their exact answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from problem import Exact, Problem, before, data, from_formula, from_papers, number, state, time_of
from saltus import Event, Exit, HybridSystem, Instant, Mode, automaton


def algebraic(name: str) -> Callable:
    return lambda sol, p: sol.final.z[name]


def integral_of(name: str) -> Callable:
    return lambda sol, p: sol.integral[name]


def times_of(event: str, count: int) -> dict[str, Callable]:
    return {f"t{k + 1}": time_of(event, k) for k in range(count)}


def pendulum_flow(now, p, pivot=(0.0, 0.0)):
    """A unit mass on a string: lam pulls it towards the pivot, eta keeps it on the circle."""
    x, y = now.x["x"] - pivot[0], now.x["y"] - pivot[1]
    lam, eta = now.z["lam"], now.z["eta"]
    return {
        "x": now.x["u"] - x * eta,
        "y": now.x["w"] - y * eta,
        "u": -x * lam,
        "w": -p["g"] - y * lam,
    }


def pendulum_constraint(now, length, pivot=(0.0, 0.0)):
    """Gear, Gupta and Leimkuhler: the circle and its derivative, both of index 2."""
    x, y = now.x["x"] - pivot[0], now.x["y"] - pivot[1]
    return {
        "circle": (x**2 + y**2 - length**2) / 2,
        "tangent": x * now.x["u"] + y * now.x["w"],
    }


def pendulum_start(angle, spin, length, **more: Any) -> Instant:
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    return Instant(
        t=0.0,
        x={
            "x": length * sin,
            "y": -length * cos,
            "u": length * spin * cos,
            "w": length * spin * sin,
        },
        z={"lam": 0.0, "eta": 0.0, **more.pop("z", {})},
        **more,
    )


def scaled_velocity(now, factor):
    return now.replace(x={**now.x, "u": factor * now.x["u"], "w": factor * now.x["w"]})


def pendulum_wall() -> Problem:
    """P3a: against a wall at x = xw, with restitution e."""
    outputs = {
        **{f"{name}(T)": state(name) for name in ("x", "y", "u", "w")},
        "lambda(T)": algebraic("lam"),
        "G1=int lambda": integral_of("G1"),
        "G2=int x^2+0.05 lambda^2": integral_of("G2"),
        **times_of("wall", 3),
    }
    p, exact = from_papers(data("papers_dae")["problems"]["P3a"], outputs)
    system = HybridSystem(
        flow=pendulum_flow,
        constraint=lambda now, p: pendulum_constraint(now, p["L"]),
        rate=lambda now, p: {
            "G1": now.z["lam"],
            "G2": now.x["x"] ** 2 + 0.05 * now.z["lam"] ** 2,
        },
        events=[
            Event(
                "wall",
                guard=lambda now, p: now.x["x"] - p["xw"],
                direction="rising",
                reset=lambda now, p: scaled_velocity(now, -p["e"]),
            )
        ],
    )
    start = lambda p: pendulum_start(-0.9, 0.3, p["L"])
    return Problem("pendulum_wall", system, start, p, 4.0, outputs, exact)


PEG_ANGLE = 0.15


def _peg(p) -> tuple[Any, Any]:
    return p["d"] * jnp.sin(PEG_ANGLE), -p["d"] * jnp.cos(PEG_ANGLE)


def _beyond_the_peg(now, p):
    return now.x["x"] * jnp.cos(PEG_ANGLE) + now.x["y"] * jnp.sin(PEG_ANGLE)


def _peg_rate(now, p):
    return {"G1": now.z["lam"], "G2": now.x["y"] + 0.02 * now.z["lam"] ** 2}


def _peg_problem(name: str, system: HybridSystem, start: Callable, times: dict) -> Problem:
    outputs = {
        **{f"{x}(T)": state(x) for x in ("x", "y", "u", "w")},
        "lambda(T)": algebraic("lam"),
        "G1=int lambda": integral_of("G1"),
        "G2=int y+0.02 lambda^2": integral_of("G2"),
        **times,
    }
    p, exact = from_papers(data("papers_dae")["problems"]["P3b"], outputs)
    return Problem(name, system, start, p, 4.0, outputs, exact)


def pendulum_peg() -> Problem:
    """P3b as an automaton: the string catches on a peg, and the constraint changes."""
    catch = Exit(
        _beyond_the_peg,
        to="caught",
        direction="rising",
        reset=lambda now, p: scaled_velocity(now, p["kappa"]),
        name="catch",
    )
    by_name = lambda g: {"eta": g["circle"], "lam": g["tangent"]}  # a mode's equations match z
    release = Exit(_beyond_the_peg, to="free", direction="falling", name="release")
    system = automaton(
        {
            "free": Mode(
                pendulum_flow,
                constraint=lambda now, p: by_name(pendulum_constraint(now, p["L"])),
                exits=[catch],
                rate=_peg_rate,
            ),
            "caught": Mode(
                lambda now, p: pendulum_flow(now, p, _peg(p)),
                constraint=lambda now, p: by_name(
                    pendulum_constraint(now, p["L"] - p["d"], _peg(p))
                ),
                exits=[release],
                rate=_peg_rate,
            ),
        }
    )
    times = {
        "t1": time_of("catch", 0),
        "t2": time_of("release", 0),
        "t3": time_of("catch", 1),
        "t4": time_of("release", 1),
    }
    start = lambda p: pendulum_start(-0.8, 0.0, p["L"], mode="free")
    return _peg_problem("pendulum_peg", system, start, times)


def pendulum_peg_discrete() -> Problem:
    """P3b with the pivot and the length of the string as floats of d, and an integer."""

    def reset(now, p):
        free = now.d["caught"] == 0
        xp, yp = _peg(p)
        shorter = {"x": xp, "y": yp, "length": p["L"] - p["d"], "caught": 1}
        whole = {"x": 0.0, "y": 0.0, "length": p["L"], "caught": 0}
        d = {name: jnp.where(free, shorter[name], whole[name]) for name in whole}
        return scaled_velocity(now, jnp.where(free, p["kappa"], 1.0)).replace(d=d)

    def guard(now, p):
        return jnp.where(now.d["caught"] == 0, -1.0, 1.0) * _beyond_the_peg(now, p)

    pivot = lambda now: (now.d["x"], now.d["y"])
    system = HybridSystem(
        flow=lambda now, p: pendulum_flow(now, p, pivot(now)),
        constraint=lambda now, p: pendulum_constraint(now, now.d["length"], pivot(now)),
        rate=_peg_rate,
        events=[Event("peg", guard, reset=reset)],
    )
    start = lambda p: pendulum_start(
        -0.8, 0.0, p["L"], d={"x": 0.0, "y": 0.0, "length": p["L"], "caught": 0}
    )
    return _peg_problem("pendulum_peg_discrete", system, start, times_of("peg", 4))


def pendulum_quarters() -> Problem:
    """C12: released at rest, thrown back by an elastic wall at the vertical."""
    case = data("closed_forms_dae")["cases"]["C12"]
    p = {"L": 1.0, "g": 9.81, "theta0": 0.5}
    system = HybridSystem(
        flow=pendulum_flow,
        constraint=lambda now, p: pendulum_constraint(now, p["L"]),
        events=[
            Event(
                "wall",
                guard=lambda now, p: now.x["x"],
                reset=lambda now, p: scaled_velocity(now, -1.0),
            )
        ],
    )
    outputs = {**times_of("wall", 3), "speed": lambda sol, p: -before("wall", 2, "u")(sol, p)}
    time, slope = number(case["t_hit"]), {a: number(v) for a, v in case["gradient"].items()}
    speed = from_formula(
        lambda p: {"speed": jnp.sqrt(2 * p["g"] * p["L"] * (1 - jnp.cos(p["theta0"])))}, p
    )
    exact = Exact(
        {**{f"t{k}": (2 * k - 1) * time for k in (1, 2, 3)}, **speed.values},
        {
            **{f"t{k}": {a: (2 * k - 1) * v for a, v in slope.items()} for k in (1, 2, 3)},
            **speed.gradients,
        },
        speed.hessians,
    )
    start = lambda p: pendulum_start(p["theta0"], 0.0, p["L"])
    return Problem("pendulum_quarters", system, start, p, 2.9, outputs, exact)


def pendulum_snaps() -> Problem:
    """Index 1 and 2 together: the pull in the string, and an event when it reaches a limit.

    From rest at theta0 the pull is g (3 cos theta - 2 cos theta0), so the height at which it
    reaches the limit is known, and so is the speed there.
    """
    p = {"L": 1.1, "g": 9.81, "theta0": 1.2, "limit": 15.0}

    def formula(p):
        cos = (p["limit"] / p["g"] + 2 * jnp.cos(p["theta0"])) / 3
        speed = jnp.sqrt(2 * p["g"] * p["L"] * (cos - jnp.cos(p["theta0"])))
        return {"height": -p["L"] * cos, "u": -speed * cos, "pull": p["limit"]}

    system = HybridSystem(
        flow=pendulum_flow,
        constraint=lambda now, p: {
            **pendulum_constraint(now, p["L"]),
            "pull": now.z["pull"] - now.z["lam"] * p["L"],
        },
        events=[
            Event(
                "snap",
                guard=lambda now, p: now.z["pull"] - p["limit"],
                direction="rising",
                terminal=True,
            )
        ],
    )
    outputs = {
        "height": state("y"),
        "u": state("u"),
        "pull": algebraic("pull"),
    }
    start = lambda p: pendulum_start(p["theta0"], 0.0, p["L"], z={"pull": 0.0})
    return Problem("pendulum_snaps", system, start, p, 2.0, outputs, from_formula(formula, p))
