"""Models with algebraic states that carry their exact answers.

The truth comes from `data/` (independent references), from a closed form, or from an ODE problem
with the same solution. `problem.py` says what a `Problem` is. Here are those of index 1; the
ladder and the pendulums (index 2) have files of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import jax.numpy as jnp

import ladder
import pendulums
from pendulums import algebraic, times_of
from problem import (
    Problem,
    data,
    from_closed_forms,
    from_formula,
    from_papers,
    integral,
    state,
    time_of,
)
from problems_balls import drag_ball
from saltus import Event, Exit, HybridSystem, Instant, Mode, automaton


def _two_rates(name: str, system: HybridSystem, start: Callable) -> Problem:
    outputs = {"x(T)": state("x"), "t_switch": time_of("switch", 0)}
    p, exact = from_closed_forms(data("closed_forms_dae")["cases"]["C10"], outputs)
    return Problem(name, system, start, p, lambda p: p["T"], outputs, exact)


def two_rates() -> Problem:
    """C10: x' = -z, 0 = z - k x, and k changes when x falls to theta."""
    system = HybridSystem(
        flow=lambda now, p: {"x": -now.z["z"]},
        constraint=lambda now, p: {"rate": now.z["z"] - now.d["k"] * now.x["x"]},
        events=[
            Event(
                "switch",
                guard=lambda now, p: now.x["x"] - p["theta"],
                reset=lambda now, p: now.replace(d={"k": p["k2"]}),
            )
        ],
    )
    start = lambda p: Instant(t=0.0, x={"x": p["x0"]}, z={"z": 0.0}, d={"k": p["k1"]})
    return _two_rates("two_rates", system, start)


def two_rates_modes() -> Problem:
    """C10 as an automaton whose modes differ in their constraints."""
    flow = lambda now, p: {"x": -now.z["z"]}
    rate = lambda k: lambda now, p: {"z": now.z["z"] - p[k] * now.x["x"]}
    switch = Exit(lambda now, p: now.x["x"] - p["theta"], to="fast", name="switch")
    system = automaton(
        {
            "slow": Mode(flow, constraint=rate("k1"), exits=[switch]),
            "fast": Mode(flow, constraint=rate("k2")),
        }
    )
    start = lambda p: Instant(t=0.0, x={"x": p["x0"]}, z={"z": 0.0}, mode="slow")
    return _two_rates("two_rates_modes", system, start)


def memory_of_z() -> Problem:
    """x' = z, 0 = z + k x - c until x = theta; then x' = -alpha times the z just before."""
    p = {"c": 2.0, "k": 0.7, "theta": 1.1, "alpha": 0.4}
    end = 2.0

    def formula(p):
        t = -jnp.log1p(-p["k"] * p["theta"] / p["c"]) / p["k"]
        kept = p["c"] - p["k"] * p["theta"]
        return {"x(T)": p["theta"] - p["alpha"] * kept * (end - t), "t1": t, "kept": kept}

    def constraint(now, p):
        z, x = now.z["z"], now.x["x"]
        climb, descend = z + p["k"] * x - p["c"], z + p["alpha"] * now.d["z"]
        return {"slope": jnp.where(now.d["down"] == 0, climb, descend)}

    system = HybridSystem(
        flow=lambda now, p: {"x": now.z["z"]},
        constraint=constraint,
        events=[
            Event(
                "turn",
                guard=lambda now, p: now.x["x"] - p["theta"],
                direction="rising",
                reset=lambda now, p: now.replace(d={"z": now.z["z"], "down": 1}),
            )
        ],
    )
    outputs = {
        "x(T)": state("x"),
        "t1": time_of("turn", 0),
        "kept": lambda sol, p: sol.final.d["z"],
    }
    start = lambda p: Instant(t=0.0, x={"x": 0.0}, z={"z": 1.0}, d={"z": 0.0, "down": 0})
    return Problem("memory_of_z", system, start, p, end, outputs, from_formula(formula, p))


def hysteresis() -> Problem:
    """P2: an oscillator on a spring that remembers where it last turned.

    u' = v, v' = -z + f(t), 0 = z - sigma(u; u*, z*, xi), with the memory (u*, z*) and the
    direction xi written by the reset at v = 0.
    """
    outputs = {
        "G": integral,
        "u(10)": state("u"),
        "v(10)": state("v"),
        "z(10)": algebraic("z"),
        **times_of("turn", 19),
    }
    p, exact = from_papers(data("papers_dae")["problems"]["P2"], outputs)

    def force(u, memory, p):
        xi, soft = memory["xi"], p["ka"] - p["kb"]
        e2 = 1e-20 / soft
        offset = xi * soft / p["alpha"] * (e2 + (1 - e2) / 2)
        back = lambda u: 2 * (jnp.sinh(p["beta"] * u) - p["beta"] * u) + p["kb"] * u + offset
        decay = jnp.exp(-p["alpha"] * xi * (u - memory["u"]))
        return back(u) - decay * (back(memory["u"]) - memory["z"])

    def turn(now, p):
        return now.replace(d={"u": now.x["u"], "z": now.z["z"], "xi": -now.d["xi"]})

    system = HybridSystem(
        flow=lambda now, p: {
            "u": now.x["v"],
            "v": -now.z["z"] + 0.5 * now.t * jnp.sin(2 * jnp.pi * now.t),
        },
        constraint=lambda now, p: {"spring": now.z["z"] - force(now.x["u"], now.d, p)},
        rate=lambda now, p: now.x["u"] ** 2,
        events=[Event("turn", guard=lambda now, p: now.d["xi"] * now.x["v"], reset=turn)],
    )
    start = lambda p: Instant(
        t=0.0, x={"u": 0.0, "v": 0.0}, z={"z": 0.0}, d={"u": 0.0, "z": 0.0, "xi": 1}
    )
    return Problem("hysteresis", system, start, p, 10.0, outputs, exact)


def drag_ball_dae(name: str, case: str) -> Problem:
    """A bouncing ball whose drag is an algebraic state, given by an equation that is cubic in it.

    The motion is that of `drag_ball`, and so is the truth."""
    ode = drag_ball("drag_ball", case)

    def constraint(now, p):
        cubic = lambda s: s + s**3 / 100
        drag = p["k"] * now.d["sign"] * now.x["v"] ** 2
        return {"drag": cubic(now.z["drag"]) - cubic(drag)}

    system = HybridSystem(
        flow=lambda now, p: {"h": now.x["v"], "v": -p["g"] - now.z["drag"]},
        constraint=constraint,
        rate=ode.system.rate,
        events=ode.system.events,
    )
    start = lambda p: ode.start(p).replace(z={"drag": 0.0})
    return Problem(name, system, start, ode.p, ode.t1, ode.outputs, ode.exact)


DAE_PROBLEMS: dict[str, Callable[[], Problem]] = {
    "two_rates": two_rates,
    "two_rates_modes": two_rates_modes,
    "memory_of_z": memory_of_z,
    "hysteresis": hysteresis,
    "drag_ball_dae": lambda: drag_ball_dae("drag_ball_dae", "long"),
    "drag_ball_dae_short": lambda: drag_ball_dae("drag_ball_dae_short", "short"),
    "cauer": ladder.cauer,
    "cauer_start": lambda: ladder.cauer("at_paper_start"),
    "pendulum_wall": pendulums.pendulum_wall,
    "pendulum_peg": pendulums.pendulum_peg,
    "pendulum_peg_discrete": pendulums.pendulum_peg_discrete,
    "pendulum_quarters": pendulums.pendulum_quarters,
    "pendulum_snaps": pendulums.pendulum_snaps,
}


@cache
def dae_problem(name: str) -> Problem:
    return DAE_PROBLEMS[name]()
