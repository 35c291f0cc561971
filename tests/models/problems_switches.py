"""Flows that switch, chains of resets and thermostats, with their exact answers."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from problem import (
    Problem,
    before,
    data,
    from_closed_forms,
    from_formula,
    from_papers,
    integral,
    number,
    state,
    time_of,
)
from saltus import Event, Exit, HybridSystem, Instant, Mode, automaton


def simple_hybrid_ode() -> Problem:
    """P1: x' = 4 - x (mode A) or 10 - 2x (mode B), by the sign of x^3 - 5x^2 + 7x - p."""
    threshold = lambda now, p: now.x["x"] ** 3 - 5 * now.x["x"] ** 2 + 7 * now.x["x"] - p["p"]
    rate = lambda now, p: now.x["x"]
    system = automaton(
        {
            "A": Mode(
                lambda now, p: {"x": 4 - now.x["x"]},
                exits=[Exit(threshold, to="B", direction="rising", name="up")],
                rate=rate,
            ),
            "B": Mode(
                lambda now, p: {"x": 10 - 2 * now.x["x"]},
                exits=[Exit(threshold, to="A", direction="falling", name="down")],
                rate=rate,
            ),
        }
    )
    outputs = {
        "t1": time_of("up", 0),
        "t2": time_of("down", 0),
        "t3": time_of("up", 1),
        "x(t1)": before("up", 0, "x"),
        "x(t2)": before("down", 0, "x"),
        "x(t3)": before("up", 1, "x"),
        "x(5)": state("x"),
        "G": integral,
    }
    p, exact = from_papers(data("papers")["problems"]["P1"], outputs)
    start = lambda p: Instant(t=0.0, x={"x": 0.0}, mode="A")
    return Problem("simple_hybrid_ode", system, start, p, 5.0, outputs, exact)


def _spring(name: str, system: HybridSystem, start: Callable) -> Problem:
    outputs = {
        "t_break": time_of("break", 0),
        "v_break": before("break", 0, "v"),
        "x(5)": state("x"),
        "v(5)": state("v"),
        "G=int_0^5 x^2 dt": integral,
    }
    p, exact = from_papers(data("papers")["problems"]["P5"], outputs)
    return Problem(name, system, start, p, 5.0, outputs, exact)


def breaking_spring() -> Problem:
    """P5 as an automaton: m v' + c v = -k x + d until x = 2 from below, then 0."""
    flow = lambda pull: (
        lambda now, p: {
            "x": now.x["v"],
            "v": (pull * (p["d"] - p["k"] * now.x["x"]) - p["c"] * now.x["v"]) / p["m"],
        }
    )
    rate = lambda now, p: now.x["x"] ** 2
    limit = Exit(lambda now, p: now.x["x"] - 2.0, to="broken", direction="rising", name="break")
    system = automaton(
        {"whole": Mode(flow(1.0), exits=[limit], rate=rate), "broken": Mode(flow(0.0), rate=rate)}
    )
    start = lambda p: Instant(t=0.0, x={"x": p["x0"], "v": p["v0"]}, mode="whole")
    return _spring("breaking_spring", system, start)


def breaking_spring_discrete() -> Problem:
    """P5 with a float and an integer of d instead of modes."""

    def flow(now, p):
        force = now.d["stiffness"] * (p["d"] / p["k"] - now.x["x"])
        return {"x": now.x["v"], "v": (force - p["c"] * now.x["v"]) / p["m"]}

    system = HybridSystem(
        flow,
        rate=lambda now, p: now.x["x"] ** 2,
        events=[
            Event(
                "break",
                guard=lambda now, p: now.x["x"] - 2.0,
                direction="rising",
                active=lambda now, p: now.d["broken"] == 0,
                reset=lambda now, p: now.replace(d={"stiffness": 0.0 * p["k"], "broken": 1}),
            )
        ],
    )
    start = lambda p: Instant(
        t=0.0, x={"x": p["x0"], "v": p["v0"]}, d={"stiffness": p["k"], "broken": 0}
    )
    return _spring("breaking_spring_discrete", system, start)


def threshold_reset() -> Problem:
    """C1."""
    system = HybridSystem(
        flow=lambda now, p: {"u": 1.0},
        events=[
            Event(
                "fire",
                guard=lambda now, p: now.x["u"] - p["p"],
                direction="rising",
                reset=lambda now, p: now.replace(x={"u": 0.0}),
            )
        ],
    )
    outputs = {"u(1)": state("u"), "tau1": time_of("fire", 0)}
    p, exact = from_closed_forms(data("closed_forms")["cases"]["C1"], outputs)
    start = lambda p: Instant(t=0.0, x={"u": 0.0})
    return Problem("threshold_reset", system, start, p, 1.0, outputs, exact)


def terminal_time() -> Problem:
    """C2: a terminal event; the end time itself is differentiable."""
    system = HybridSystem(
        flow=lambda now, p: {"u": 1.0},
        events=[
            Event(
                "arrive",
                guard=lambda now, p: now.x["u"] - p["q"],
                direction="rising",
                terminal=True,
            )
        ],
    )
    outputs = {"T": lambda sol, p: sol.final.t}
    p, exact = from_closed_forms(data("closed_forms")["cases"]["C2"], outputs)
    start = lambda p: Instant(t=0.0, x={"u": 0.0})
    return Problem("terminal_time", system, start, p, 5.0, outputs, exact)


def nested_chain() -> Problem:
    """C5: a reset that depends on time throws the state across a second guard."""
    outputs = {"x1(1)": state("x1"), "x2(1)": state("x2"), "tau": time_of("spill", 0)}
    p, exact = from_closed_forms(data("closed_forms")["cases"]["C5"], outputs)

    def spill(now, p):
        return now.replace(x={"x1": now.x["x1"], "x2": now.x["x2"] - 1.0 / now.t})

    def refill(now, p):
        return now.replace(x={"x1": now.x["x1"] + p["bolus"], "x2": now.x["x2"] + p["bolus"]})

    system = HybridSystem(
        flow=lambda now, p: {
            "x1": p["inflow_1"] - p["decay_1"] * now.x["x1"],
            "x2": -p["decay_2"] * now.x["x2"],
        },
        events=[
            Event(
                "spill",
                guard=lambda now, p: now.x["x1"] - p["inflow_1"] / p["decay_2"],
                direction="rising",
                reset=spill,
            ),
            Event("refill", guard=lambda now, p: now.x["x2"] + 0.5, reset=refill),
        ],
    )
    start = lambda p: Instant(t=0.0, x={"x1": p["k1"], "x2": p["k2"]})
    return Problem("nested_chain", system, start, p, 1.0, outputs, exact)


def thermostat_system(a: Callable, heat: Callable) -> HybridSystem:
    """Cooling x' = -a x until x = lo; heating x' = -a (x - H) until x = hi."""
    return automaton(
        {
            "cool": Mode(
                lambda now, p: {"x": -a(p) * now.x["x"]},
                exits=[Exit(lambda now, p: now.x["x"] - p["lo"], to="heat", name="on")],
            ),
            "heat": Mode(
                lambda now, p: {"x": -a(p) * (now.x["x"] - heat(p))},
                exits=[
                    Exit(
                        lambda now, p: now.x["x"] - p["hi"],
                        to="cool",
                        direction="rising",
                        name="off",
                    )
                ],
            ),
        }
    )


def thermostat() -> Problem:
    """C8, its first ten switches; `data` has the hundred-thousandth."""
    case = data("closed_forms")["cases"]["C8"]
    p = {a: number(v) for a, v in case["params"].items()}

    def formula(p):
        down = jnp.log(p["hi"] / p["lo"]) / p["a"]
        up = jnp.log((p["H"] - p["lo"]) / (p["H"] - p["hi"])) / p["a"]
        s = 3.1 - 5 * (down + up)
        return {
            "t_switch_1": down,
            "t_switch_10": 5 * (down + up),
            "x(3.1)": p["hi"] * jnp.exp(-p["a"] * s),
        }

    outputs = {
        "t_switch_1": time_of("on", 0),
        "t_switch_10": time_of("off", 4),
        "x(3.1)": state("x"),
    }
    start = lambda p: Instant(t=0.0, x={"x": p["hi"]}, mode="cool")
    system = thermostat_system(lambda p: p["a"], lambda p: p["H"])
    return Problem("thermostat", system, start, p, 3.1, outputs, from_formula(formula, p))


def thermostat_thresholds() -> Problem:
    """Parameters only in guards: nothing but the event times carries them."""
    p = {"hi": 22.0, "lo": 18.0}

    def formula(p):
        first = jnp.log(20.0 / p["lo"])  # from the fixed start, 20
        up = jnp.log((30.0 - p["lo"]) / (30.0 - p["hi"]))
        down = jnp.log(p["hi"] / p["lo"])
        t3 = first + up + down
        return {"t3": t3, "x(1)": 30.0 + (p["lo"] - 30.0) * jnp.exp(-(1.0 - t3))}

    outputs = {"t3": time_of("on", 1), "x(1)": state("x")}
    start = lambda p: Instant(t=0.0, x={"x": 20.0}, mode="cool")
    system = thermostat_system(lambda p: 1.0, lambda p: 30.0)
    exact = from_formula(formula, p)
    return Problem("thermostat_thresholds", system, start, p, 1.0, outputs, exact)


def memory() -> Problem:
    """C11: the flow depends on the state at the last transition, a float of d."""
    outputs = {"x(T)": state("x")}
    p, exact = from_closed_forms(data("closed_forms")["cases"]["C11"], outputs)
    turn = Exit(
        lambda now, p: now.x["x"] - p["p"],
        to="down",
        direction="rising",
        reset=lambda now, p: now.replace(d={"x_sw": now.x["x"]}),
        name="turn",
    )
    system = automaton(
        {
            "up": Mode(lambda now, p: {"x": 1.0}, exits=[turn]),
            "down": Mode(lambda now, p: {"x": -p["alpha"] * now.d["x_sw"]}),
        }
    )
    start = lambda p: Instant(t=0.0, x={"x": 0.0}, d={"x_sw": 0.0}, mode="up")
    return Problem("memory", system, start, p, 3.0, outputs, exact)


def double_crossing(w: float) -> Problem:
    """C13: y' = 2 (t - 1), y(0) = 1 - w^2: the guard y dips below 0 for a time 2 w."""
    system = HybridSystem(
        flow=lambda now, p: {"y": 2.0 * (now.t - 1.0)},
        events=[Event("cross", guard=lambda now, p: now.x["y"], direction="either")],
    )
    outputs = {"in": time_of("cross", 0), "out": time_of("cross", 1)}
    p = {"w": w}
    formula = lambda p: {"in": 1.0 - p["w"], "out": 1.0 + p["w"]}
    start = lambda p: Instant(t=0.0, x={"y": 1.0 - p["w"] ** 2})
    exact = from_formula(formula, p)
    return Problem(f"double_crossing_{w:g}", system, start, p, 2.0, outputs, exact)
