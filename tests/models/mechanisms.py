"""Mechanisms that carry their truth: five bars with springs, pendulums, walkers and balls."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import saltus
from problem import data
from saltus.multibody import Mechanism, ground, jump

# -- five bars: two cranks, two couplers, two springs; the tool point bounces off a line --------
# Where the springs are attached is data, so that all variants share one program.
POINTS = ("A", "B", "1", "2", "3")
SPRINGS = {"P6a": ("A3", "2B"), "P6b": ("1B", "2A"), "P6c": ("1B", "2B"), "P6d": ("A3", "2A")}
LENGTHS = jnp.array([2.2360, 2.0615])
CRANK, COUPLER = 1.4142, 1.8027
A, B = np.array([-0.5, 0.0]), np.array([0.5, 0.0])


def ends(variant: str) -> jnp.ndarray:
    """Which points each spring joins: (spring, end, point), zeros and ones."""
    chosen = [[[float(p == end) for p in POINTS] for end in spring] for spring in SPRINGS[variant]]
    return jnp.array(chosen)


def five_bar() -> Mechanism:
    inertia = np.array([[5 / 6, 1 / 4, 0], [1 / 4, 1, 1 / 4], [0, 1 / 4, 5 / 6]])
    weight = 9.81 * np.array([1.25, 1.5, 1.25])

    def potential(now, p):
        moving = jnp.stack([now.q["p1"], now.q["p2"], now.q["p3"]])
        points = jnp.concatenate([jnp.stack([A, B]), moving])
        joined = jnp.einsum("sep,pk->sek", p["ends"], points)
        stretch = jnp.linalg.norm(joined[:, 0] - joined[:, 1], axis=1) - p["L0"]
        return jnp.sum(weight * moving[:, 1]) + 50.0 * jnp.sum(stretch**2)

    def constraint(now, p):
        q = now.q
        pairs = {
            "A1": (q["p1"] - A, CRANK),
            "12": (q["p2"] - q["p1"], COUPLER),
            "23": (q["p3"] - q["p2"], COUPLER),
            "3B": (q["p3"] - B, CRANK),
        }
        return {name: bar @ bar - length**2 for name, (bar, length) in pairs.items()}

    floor = jump(
        "floor",
        guard=lambda now, p: now.q["p2"][1] + 2.35,
        velocities=lambda now, p: {"p2": now.v["p2"] * jnp.array([1.0, -1.0])},
    )
    return Mechanism(
        mass=np.kron(inertia, np.eye(2)),
        potential=potential,
        constraint=constraint,
        contacts=floor,
        cost=lambda now, p: {"vy": now.v["p2"][1], "ay": now.a["p2"][1]},
        output=lambda now, p: {"q": now.q, "lam": now.lam},
    )


def five_bar_start(mechanism: Mechanism, p: Any) -> saltus.Instant:
    """The tool point is given; the others follow, one crank to the left and one to the right."""
    guess = {"p1": [-1.08, -1.29], "p2": [0.53029, -2.10283], "p3": [1.7, -0.74]}
    q = {k: jnp.array(v) for k, v in guess.items()}
    return mechanism.start(q, None, p, assemble=True, hold="p2")


METHODS = {
    "index1": saltus.Tsit5(rtol=1e-10, atol=1e-10),
    "index2": saltus.Radau5(rtol=1e-9, atol=1e-9),
    "penalty": saltus.Tsit5(rtol=1e-10, atol=1e-10),
}
EVENTS = 9


@cache
def five_bar_outputs(form: str) -> Any:
    """`(L0, ends) -> outputs`, in the order of the reference."""
    mechanism = five_bar()
    system = mechanism.system(form)

    def outputs(lengths, joined):
        p = {"L0": lengths, "ends": joined}
        start = five_bar_start(mechanism, p)
        sol = saltus.solve(system, start, p, 5.0, method=METHODS[form], max_events=16)
        tool = (*sol.final.x["q"]["p2"], *sol.final.x["v"]["p2"])
        costs = (sol.integral["vy"], sol.integral["ay"])
        left = mechanism.residuals(sol.final, p)
        worst = [jnp.max(jnp.abs(jnp.stack(jax.tree.leaves(left[k])))) for k in left]
        return jnp.stack([*tool, *costs, *sol.events.t[:EVENTS]]), jnp.stack(worst)

    return outputs


@cache
def five_bar_answers(form: str) -> Any:
    """`(L0, ends) -> (values, gradients, residuals)`, compiled once for all variants."""

    def everything(lengths, joined):
        slopes, (values, residuals) = jax.jacfwd(
            lambda v: (lambda out: (out[0], out))(five_bar_outputs(form)(v, joined)),
            has_aux=True,
        )(lengths)
        return values, slopes, residuals

    return jax.jit(everything)


def five_bar_truth(variant: str) -> tuple[np.ndarray, np.ndarray]:
    """Values and gradients of the reference, padded to `EVENTS` events."""
    entry = data("five_bar")["problems"][variant]
    names = ["x2(5)", "y2(5)", "vx2(5)", "vy2(5)", "int_vy2", "int_ay2"]
    names += [f"t{k}" for k in range(1, EVENTS + 1)]
    nothing = {"L01": np.nan, "L02": np.nan}
    values = np.array([entry["values"].get(n, np.nan) for n in names])
    slopes = [entry["gradients"].get(n, nothing) for n in names]
    return values, np.array([[g["L01"], g["L02"]] for g in slopes])


# -- a pendulum in Cartesian coordinates ---------------------------------------------------------
def pendulum(**more: Any) -> Mechanism:
    return Mechanism(
        mass=lambda now, p: p["m"],
        potential=lambda now, p: p["m"] * p["g"] * now.q["y"],
        constraint=lambda now, p: {"rod": 0.5 * (now.q["x"] ** 2 + now.q["y"] ** 2 - p["L"] ** 2)},
        **more,
    )


PENDULUM = {"m": 1.3, "g": 9.81, "L": 1.2}


def hanging(mechanism: Mechanism, p: Any, angle: float, speed: float = 0.0) -> saltus.Instant:
    s, c = np.sin(angle), np.cos(angle)
    q = {"x": p["L"] * s, "y": -p["L"] * c}
    return mechanism.start(q, {"x": p["L"] * speed * c, "y": p["L"] * speed * s}, p)


def angle_system() -> saltus.HybridSystem:
    """The same pendulum by its angle."""
    return saltus.HybridSystem(
        lambda now, p: {
            "angle": now.x["speed"],
            "speed": -p["g"] / p["L"] * jnp.sin(now.x["angle"]),
        }
    )


# -- balls over the ground ------------------------------------------------------------------------
def thrown(**more: Any) -> Mechanism:
    """A point mass over the ground."""
    return Mechanism(
        mass=lambda now, p: p["m"],
        force=lambda now, p: {"x": 0.0, "y": -p["m"] * p["g"]},
        contacts=ground(point=lambda now, p: (now.q["x"], now.q["y"]), **more),
    )


BALL = {"m": 2.0, "g": 9.81, "e": 0.8, "mu": 0.1}


def run(
    mechanism: Mechanism, q: Any, v: Any = None, p: Any = None, t1: float = 1.0, **start: Any
) -> saltus.Solution:
    """The motion from positions and velocities to t1."""
    return saltus.solve(mechanism.system(), mechanism.start(q, v, p, **start), p, t1)
