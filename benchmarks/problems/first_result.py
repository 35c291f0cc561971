"""The models of first_result.py: small ones that stand for kinds, and three that are large.

Each is a function that returns a `Job`: a system, a start, parameters by which everything is
differentiated, an end, and what is summed up at it. Only public names are used, so that any version
can run them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import saltus


class Job(NamedTuple):
    system: Any
    start: Callable[[Any], Any]  # from parameters
    p: Any
    t1: float
    method: Any = None  # the default one
    free: tuple[str, ...] = ()  # names of what a fit estimates; all without

    def solve(self, p: Any, **options: Any) -> Any:
        if self.method is not None:
            options["method"] = self.method
        return saltus.solve(self.system, self.start(p), p, self.t1, **options)

    def loss(self, p: Any, **options: Any) -> Any:
        """The sum of all differential states at the end."""
        return sum(jnp.sum(v) for v in jax.tree.leaves(self.solve(p, **options).final.x))


def ball() -> Job:
    bounce = saltus.Event(
        "bounce",
        guard=lambda now, p: now.x["h"],
        reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]}),
    )
    flow = lambda now, p: {"h": now.x["v"], "v": -p["g"]}
    system = saltus.HybridSystem(flow, events=[bounce])
    start = lambda p: saltus.Instant(t=0.0, x={"h": 5.0, "v": 0.0})
    return Job(system, start, {"g": 9.81, "e": 0.8}, 7.0)


def ball_with_drag() -> Job:
    bounce = saltus.Event(
        "bounce",
        guard=lambda now, p: now.x["h"],
        reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]}),
    )
    drag = lambda v, p: p["k"] * v * jnp.abs(v)
    flow = lambda now, p: {"h": now.x["v"], "v": -p["g"] - drag(now.x["v"], p)}
    system = saltus.HybridSystem(flow, events=[bounce])
    start = lambda p: saltus.Instant(t=0.0, x={"h": 5.0, "v": 0.0})
    return Job(system, start, {"g": 9.81, "e": 0.8, "k": 0.1}, 4.0)


def breaking_spring() -> Job:
    def intact(now, p):
        x, v = now.x["x"], now.x["v"]
        return {"x": v, "v": (-p["k"] * x - p["c"] * v) / p["m"]}

    def broken(now, p):
        return {"x": now.x["v"], "v": -p["c"] * now.x["v"] / p["m"]}

    stretched = saltus.Exit(lambda now, p: now.x["x"] - 2.0, to="broken", direction="rising")
    modes = {
        "intact": saltus.Mode(intact, exits=[stretched]),
        "broken": saltus.Mode(broken),
    }
    system = saltus.automaton(modes, rate=lambda now, p: now.x["x"] ** 2)
    start = lambda p: saltus.Instant(t=0.0, x={"x": -1.0, "v": -5.0}, mode="intact")
    return Job(system, start, {"m": 1.0, "k": 2.0, "c": 0.1}, 5.0, free=("k", "c"))


def cauer_ladder() -> Job:
    def currents(now, p):
        x, dv = now.x, now.z
        u = 0.5 * (1 + jnp.tanh(50 * (now.t - 1)))
        low, high = p["C2"] * (dv["v1"] - dv["v3"]), p["C4"] * (dv["v3"] - dv["v5"])
        return {
            "node 1": (u - x["v1"]) - x["i1"] - p["C1"] * dv["v1"] - low,
            "node 3": x["i1"] - x["i2"] - p["C3"] * dv["v3"] + low - high,
            "node 5": x["i2"] - x["v5"] - p["C5"] * dv["v5"] + high,
        }

    def flow(now, p):
        x = now.x
        i1, i2 = (x["v1"] - x["v3"]) / p["L1"], (x["v3"] - x["v5"]) / p["L2"]
        return {"i1": i1, "i2": i2, **now.z}

    discharge = saltus.Event(
        "discharge",
        guard=lambda now, p: now.x["v3"] - 0.5,
        direction="rising",
        reset=lambda now, p: now.replace(x={**now.x, "v3": jnp.zeros_like(now.x["v3"])}),
    )
    system = saltus.HybridSystem(flow, constraint=currents, events=[discharge])
    x = dict.fromkeys(("i1", "i2", "v1", "v3", "v5"), 0.0)
    start = lambda p: saltus.Instant(t=0.0, x=x, z=dict.fromkeys(("v1", "v3", "v5"), 0.0))
    p = {"C1": 1.072, "C2": 0.2638, "C3": 1.682, "C4": 0.8365, "C5": 0.7262}
    return Job(system, start, {**p, "L1": 1.304, "L2": 0.8586}, 20.0, free=("C1", "L1"))


def hysteretic_spring() -> Job:
    def law(now, p):
        u, u_last, s_last, xi = now.x["u"], now.d["u*"], now.d["s*"], now.d["xi"]
        plateau = xi * (p["ka"] - p["kb"]) / (2 * p["alpha"])
        backbone = lambda u: p["kb"] * u + plateau
        decay = jnp.exp(-p["alpha"] * xi * (u - u_last))
        return {"s": backbone(u) - decay * (backbone(u_last) - s_last) - now.z["s"]}

    turn = saltus.Event(
        "reversal",
        guard=lambda now, p: now.d["xi"] * now.x["v"],
        reset=saltus.remember(
            lambda now, p: now.replace(d={**now.d, "xi": -now.d["xi"]}), x="u", z="s"
        ),
    )
    push = lambda now: 0.5 * now.t * jnp.sin(2 * jnp.pi * now.t)
    flow = lambda now, p: {"u": now.x["v"], "v": push(now) - now.z["s"]}
    system = saltus.HybridSystem(flow, constraint=law, events=[turn])

    def start(p):
        d = {"u*": 0.0, "s*": 0.0, "xi": 1}
        return saltus.Instant(t=0.0, x={"u": 0.0, "v": 0.0}, z={"s": 0.0}, d=d)

    p = {"ka": 5.0, "kb": 0.5, "alpha": 5.0}
    return Job(system, start, p, 4.0, free=("ka", "kb"))


def pendulum_against_a_wall() -> Job:
    def flow(now, p):
        x, z = now.x, now.z
        return {
            "x": x["u"] - x["x"] * z["eta"],
            "y": x["w"] - x["y"] * z["eta"],
            "u": -x["x"] * z["lambda"],
            "w": -p["g"] - x["y"] * z["lambda"],
        }

    def string(now, p):
        x = now.x
        return {
            "lambda": x["x"] * x["u"] + x["y"] * x["w"],
            "eta": 0.5 * (x["x"] ** 2 + x["y"] ** 2 - p["L"] ** 2),
        }

    def reflect(now, p):
        x = now.x
        return now.replace(x={**x, "u": -p["e"] * x["u"], "w": -p["e"] * x["w"]})

    wall = saltus.Event("wall", guard=lambda now, p: now.x["x"] + 0.3, reset=reflect)
    system = saltus.HybridSystem(flow, constraint=string, events=[wall], index=2)

    def start(p):
        x = {"x": p["L"] * np.sin(1.0), "y": -p["L"] * np.cos(1.0), "u": 0.0, "w": 0.0}
        return saltus.Instant(t=0.0, x=x, z={"lambda": 5.0, "eta": 0.0})

    p = {"g": 9.81, "L": 1.0, "e": 0.8}
    return Job(system, start, p, 2.0, saltus.Radau5(), free=("g", "e"))


def five_bar() -> Job:
    A, B = np.array([-0.5, 0.0]), np.array([0.5, 0.0])
    crank, coupler, level = 1.4142, 1.8027, -2.35
    inertia = np.array([[5 / 6, 1 / 4, 0], [1 / 4, 1, 1 / 4], [0, 1 / 4, 5 / 6]])
    weight = 9.81 * np.array([1.25, 1.5, 1.25])

    def potential(now, p):
        q = now.q
        heights = jnp.stack([q["p1"][1], q["p2"][1], q["p3"][1]])
        first = jnp.linalg.norm(A - q["p3"]) - p["L01"]
        second = jnp.linalg.norm(B - q["p2"]) - p["L02"]
        return weight @ heights + 50.0 * (first**2 + second**2)

    def bars(now, p):
        q = now.q
        ends = {
            "A1": (q["p1"] - A, crank),
            "12": (q["p2"] - q["p1"], coupler),
            "23": (q["p3"] - q["p2"], coupler),
            "3B": (q["p3"] - B, crank),
        }
        return {name: bar @ bar - length**2 for name, (bar, length) in ends.items()}

    floor = saltus.multibody.jump(
        "floor",
        guard=lambda now, p: now.q["p2"][1] - level,
        velocities=lambda now, p: {"p2": now.v["p2"] * jnp.array([1.0, -1.0])},
    )
    system = saltus.multibody.Mechanism(
        mass=np.kron(inertia, np.eye(2)), potential=potential, constraint=bars, contacts=floor
    )
    guess = {"p1": [-1.1, -1.3], "p2": [0.53029, -2.10283], "p3": [1.7, -0.7]}

    def start(p):
        q = {name: jnp.array(place) for name, place in guess.items()}
        return system.start(q, None, p, assemble=True, hold="p2")

    return Job(system, start, {"L01": 2.2360, "L02": 2.0615}, 1.0)


def heat_rod(cells: int = 100) -> Job:
    """100 conductivities, a capacity and the temperature of the end; it is switched off once."""

    def flow(now, p):
        T = now.x["T"]
        ends = jnp.concatenate([jnp.array([0.0]) + p["T0"] * now.d["on"], T])
        flux = p["k"] * (ends[:-1] - T)
        return {"T": (flux - jnp.concatenate([flux[1:], jnp.zeros(1)])) / p["c"]}

    off = saltus.Event(
        "off",
        guard=lambda now, p: now.x["T"][10] - 0.5,
        direction="rising",
        reset=lambda now, p: now.replace(d={"on": 0.0 * now.d["on"]}),
    )
    system = saltus.HybridSystem(flow, events=[off])
    start = lambda p: saltus.Instant(t=0.0, x={"T": jnp.zeros(cells)}, d={"on": 1.0})
    p = {"k": jnp.full(cells, 50.0), "c": 1.0, "T0": 1.0}
    return Job(system, start, p, 4.0, saltus.Radau5(), free=("c", "T0"))


def coupled_oscillators(n: int = 20) -> Job:
    """A chain of masses, each against a stop of its own."""

    def flow(now, p):
        x, v = now.x["x"], now.x["v"]
        stretch = jnp.diff(x, prepend=0.0, append=0.0)
        return {"x": v, "v": p["k"] * jnp.diff(stretch) - p["c"] * v}

    def stop(k: int):
        def reset(now, p):
            return now.replace(x={**now.x, "v": now.x["v"].at[k].multiply(-p["e"])})

        return saltus.Event(f"stop {k}", lambda now, p: now.x["x"][k] + 0.3 + 0.01 * k, reset)

    system = saltus.HybridSystem(flow, events=[stop(k) for k in range(n)])

    def start(p):
        x = {"x": jnp.sin(jnp.arange(n) * 0.7), "v": jnp.zeros(n)}
        return saltus.Instant(t=0.0, x=x)

    return Job(system, start, {"k": 4.0, "c": 0.1, "e": 0.7}, 3.0)


def automaton_of_16_modes(n: int = 16) -> Job:
    def mode(k: int):
        flow = lambda now, p: {"x": p["a"] * (1.0 + 0.1 * k) - p["b"] * now.x["x"]}
        reset = lambda now, p: now.replace(x={"x": p["low"] + 0.01 * k})
        leave = saltus.Exit(
            lambda now, p: now.x["x"] - 1.0, to=f"m{(k + 1) % n}", direction="rising", reset=reset
        )
        return saltus.Mode(flow, exits=[leave])

    system = saltus.automaton({f"m{k}": mode(k) for k in range(n)})
    start = lambda p: saltus.Instant(t=0.0, x={"x": 0.0}, mode="m0")
    return Job(system, start, {"a": 2.0, "b": 0.5, "low": 0.1}, 10.0)


PROBLEMS = {
    "ball": ball,
    "ball with drag": ball_with_drag,
    "breaking spring": breaking_spring,
    "Cauer ladder": cauer_ladder,
    "hysteretic spring": hysteretic_spring,
    "pendulum": pendulum_against_a_wall,
    "five-bar": five_bar,
    "heat rod": heat_rod,
    "oscillators": coupled_oscillators,
    "automaton": automaton_of_16_modes,
}
