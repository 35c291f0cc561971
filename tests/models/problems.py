"""Models that carry their exact answers.

A `Problem` is a system, its start and end, its parameters, the outputs that are asked of a solve,
and the truth: values, gradients and Hessians from `data/` (independent references, 20 digits or
more) or from a closed form. Nothing here looks at the library's own derivatives.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import saltus
from saltus import Event, Exit, HybridSystem, Instant, Mode, TimeEvent, automaton, every

DATA = Path(__file__).parent / "data"


@dataclasses.dataclass(frozen=True)
class Exact:
    """The truth about outputs: `hessians[y]` holds (names of parameters, matrix)."""

    values: dict[str, float]
    gradients: dict[str, dict[str, float]]
    hessians: dict[str, tuple[list[str], np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Problem:
    name: str
    system: HybridSystem
    start: Callable[[Any], Instant]
    p: dict[str, float]
    t1: float | Callable[[Any], Any]
    outputs: dict[str, Callable[[Any, Any], Any]]  # name -> function of (solution, p)
    exact: Exact
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def solve(self, p: Any = None, **options: Any) -> saltus.Solution:
        p = self.p if p is None else p
        t1 = self.t1(p) if callable(self.t1) else self.t1
        return saltus.solve(self.system, self.start(p), p, t1, **{**self.options, **options})

    def evaluate(self, p: Any = None, **options: Any) -> dict[str, Any]:
        """All outputs as a function of the parameters; `jax` differentiates this."""
        p = self.p if p is None else p
        sol = self.solve(p, **options)
        return {name: output(sol, p) for name, output in self.outputs.items()}

    def __repr__(self) -> str:
        return self.name


# -- reading the truth --------------------------------------------------------------------------


@cache
def data(file: str) -> dict:
    return json.loads((DATA / f"{file}.json").read_text())


def number(text: str) -> float:
    return float(Fraction(text)) if "/" in text else float(text)


def from_papers(case: dict, outputs: Mapping[str, Any]) -> tuple[dict[str, float], Exact]:
    """Parameters and truth of an entry of papers.json or drag_ball.json."""
    order = case["order"]
    hessians = {}
    for y, hessian in case["hessians"].items():
        names, rows = (
            (hessian["order"], hessian["matrix"]) if isinstance(hessian, dict) else (order, hessian)
        )
        hessians[y] = (list(names), np.array([[number(x) for x in row] for row in rows]))
    return (
        {a: number(case["parameters"][a]) for a in order},
        Exact(
            {y: number(v) for y, v in case["values"].items() if y in outputs},
            {
                y: {a: number(v) for a, v in row.items()}
                for y, row in case["gradients"].items()
                if y in outputs
            },
            {y: h for y, h in hessians.items() if y in outputs},
        ),
    )


def from_closed_forms(case: dict, outputs: Mapping[str, Any]) -> tuple[dict[str, float], Exact]:
    """Parameters and truth of an entry of closed_forms.json (entries not listed are 0)."""
    p = {a: number(v) for a, v in case["params"].items()}
    names = list(p)
    values, gradients, hessians = {}, {}, {}
    for y, truth in case["outputs"].items():
        if y not in outputs:
            continue
        values[y] = number(truth["value"])
        gradients[y] = {a: number(v) for a, v in truth["gradient"].items()}
        matrix = np.zeros((len(names), len(names)))
        for pair, v in truth["hessian"].items():
            a, b = (names.index(n) for n in pair.split(","))
            matrix[a, b] = matrix[b, a] = number(v)
        hessians[y] = (names, matrix)
    return p, Exact(values, gradients, hessians)


def from_formula(formula: Callable[[Any], dict[str, Any]], p: dict[str, float]) -> Exact:
    """Truth from a closed form without any solve, differentiated as plain arithmetic."""
    names = list(p)
    values, first, second = formula(p), jax.jacfwd(formula)(p), jax.hessian(formula)(p)
    return Exact(
        {y: float(v) for y, v in values.items()},
        {y: {a: float(v) for a, v in row.items()} for y, row in first.items()},
        {
            y: (names, np.array([[row[a][b] for b in names] for a in names]))
            for y, row in second.items()
        },
    )


# -- outputs that several problems ask for ------------------------------------------------------


def state(name: str) -> Callable:
    return lambda sol, p: sol.final.x[name]


def integral(sol: Any, p: Any) -> Any:
    return sol.integral


def time_of(event: str, k: int) -> Callable:
    return lambda sol, p: sol.events.of(event).t[k]


def before(event: str, k: int, name: str) -> Callable:
    return lambda sol, p: sol.events.of(event).before.x[name][k]


# -- balls --------------------------------------------------------------------------------------


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


# -- switches -----------------------------------------------------------------------------------


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


# -- time events and inputs ---------------------------------------------------------------------


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


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "simple_hybrid_ode": simple_hybrid_ode,
    "seven_bounces": lambda: paper_ball(
        "seven_bounces", "P4a", 7.0, [-9.5, -8.0, -6.0, -5.0, -4.0, -3.0, -2.5]
    ),
    "one_bounce": lambda: paper_ball("one_bounce", "P4b", 1.9, [-9.0]),
    "breaking_spring": breaking_spring,
    "breaking_spring_discrete": breaking_spring_discrete,
    "threshold_reset": threshold_reset,
    "terminal_time": terminal_time,
    "ball_until": ball_until,
    "nested_chain": nested_chain,
    "corner": corner,
    "thermostat": thermostat,
    "thermostat_thresholds": thermostat_thresholds,
    "memory": memory,
    "drag_ball": lambda: drag_ball("drag_ball"),
    "drag_ball_modes": drag_ball_modes,
    "drag_ball_when": drag_ball_when,
    "kicked_ball": kicked_ball,
    "sampled_controller": sampled_controller,
    "driven_tank": driven_tank,
    "ramped_tank": ramped_tank,
}

# Motions that are polynomials of degree 2 between events: any method here is exact on them.
DRAG_FREE = {
    "seven_bounces",
    "one_bounce",
    "threshold_reset",
    "terminal_time",
    "ball_until",
    "corner",
    "kicked_ball",
}


@cache
def problem(name: str) -> Problem:
    return PROBLEMS[name]()
