"""DAEs with events against independent references: values, event times, gradients, Hessians.

All at rtol = atol = 1e-9. The bounds are those a user may rely on: 1e-7 for values and event times,
1e-6 for gradients, 1e-5 for Hessians. Errors of derivatives are those of p dy/dp (of dy/dp where
p is 0), relative to the largest of them, or to y itself where contributions cancel.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from answers import Answers, matrices, rows
from dae_problems import dae_problem
from pendulums import pendulum_constraint
from problem import Problem, data
from saltus import Event, HybridSystem, Instant

VALUE, GRADIENT, HESSIAN, TRANSPOSE = 1e-7, 1e-6, 1e-5, 1e-10
METHODS = {"radau5": "Radau5", "rodas5p": "Rodas5P", "tsit5": "Tsit5"}


def part_of(output: str) -> str:
    """Where an output comes from: the `end` of a solve, its event `log`, or its `samples`.

    They are differentiated by programs of their own, because those of the log and of the samples
    take the longest to compile.
    """
    if output in ("hard", "blended"):
        return "samples"
    return "log" if re.fullmatch(r"t\d+|t_\w+|v-\d|apex\d|speed", output) else "end"


# (problem, method): parts whose gradients are checked; those after the bar behind `slow`. One of
# each kind at once; models of the same motion written in another way take their time.
CASES = {
    ("two_rates", "radau5"): "end log",
    ("hysteresis", "radau5"): "| end log",
    ("cauer", "radau5"): "| end log samples",
    ("pendulum_wall", "radau5"): "end | log",
    ("pendulum_peg", "radau5"): "| end log",
    ("pendulum_snaps", "radau5"): "| end",
    ("two_rates", "rodas5p"): "end log",
    ("two_rates", "tsit5"): "| end log",
    ("two_rates_modes", "radau5"): "| end log",
    ("memory_of_z", "radau5"): "| end log",
    ("drag_ball_dae", "radau5"): "| end log",
    ("pendulum_peg_discrete", "radau5"): "| end log",
    ("pendulum_quarters", "radau5"): "| log",
    ("hysteresis", "rodas5p"): "| end log",
    ("cauer", "rodas5p"): "| end log samples",
}
LONG = {"pendulum_snaps", "rodas5p"}  # whose Hessians take long to compile
HESSIANS = {
    "two_rates": "end log",
    "cauer": "samples",
    "pendulum_snaps": "end",
    "two_rates_modes": "end log",
    "memory_of_z": "end log",
    "drag_ball_dae": "end log",
}


def marks(slow: bool) -> list:
    return [pytest.mark.slow] if slow else []


each_problem = pytest.mark.parametrize(
    "name, method",
    [pytest.param(*key, marks=marks(parts.startswith("|"))) for key, parts in CASES.items()],
)
PARTS = [
    pytest.param(*key, part, marks=marks(slow))
    for key, parts in CASES.items()
    for slow, some in enumerate(parts.split("|"))
    for part in some.split()
]
each_part = pytest.mark.parametrize("name, method, part", PARTS)


class PartialAnswers(Answers):
    """The same, but for some outputs at a time."""

    def some(self, p: Any, wanted: Any) -> dict[str, Any]:
        sol = self.problem.solve(p, method=self.method, max_steps=4096, max_events=32)
        return {y: f(sol, p) for y, f in self.problem.outputs.items() if y in wanted}

    def hessian_of(self, wanted: tuple[str, ...]) -> dict[str, np.ndarray]:
        """Forward over reverse."""
        p = self.problem.p
        return matrices(jax.jit(jax.hessian(lambda p: self.some(p, wanted)))(p), p)


def answers(name: str, method: str = "radau5") -> PartialAnswers:
    """The answers to a problem, shared by all tests of this file."""
    return _answers(name, method)


@cache
def _answers(name: str, method: str) -> PartialAnswers:
    tight = getattr(saltus, METHODS[method])(rtol=1e-9, atol=1e-9)
    return PartialAnswers(dae_problem(name), tight)


@cache
def program(name: str, method: str, part: str) -> Callable:
    """Values, and gradients by the adjoint and by the tangent sweep, as functions of p."""
    of = answers(name, method)
    wanted = [y for y in of.problem.outputs if part_of(y) == part]
    f = lambda p: of.some(p, wanted)
    return jax.jit(
        lambda p: {"value": f(p), "reverse": jax.jacrev(f)(p), "forward": jax.jacfwd(f)(p)}
    )


@cache
def gradients(name: str, method: str, part: str) -> dict[str, dict[str, np.ndarray]]:
    p = dae_problem(name).p
    found = program(name, method, part)(p)
    return {sweep: rows(found[sweep], p) for sweep in ("reverse", "forward")}


def weights(case: Problem) -> np.ndarray:
    return np.array([abs(v) or 1.0 for v in case.p.values()])


def error(got, exact, floor: float = 0.0) -> float:
    scale = max(np.max(np.abs(exact)), floor) or 1.0
    return float(np.max(np.abs(np.asarray(got) - exact)) / scale)


def gradient_errors(case: Problem, got: dict) -> dict[str, float]:
    """The outputs whose gradient is off by more than the bound."""
    bad, w = {}, weights(case)
    for y in got:
        exact = np.array([case.exact.gradients[y].get(a, 0.0) for a in case.p])
        if not (e := error(w * got[y], w * exact, abs(case.exact.values[y]))) < GRADIENT:
            bad[y] = e
    return bad


@each_problem
def test_values_and_event_times_agree_with_the_reference(name, method):
    got, exact = answers(name, method).value, dae_problem(name).exact.values
    assert got.keys() == exact.keys()
    assert {y: e for y in got if not (e := error(got[y], exact[y])) < VALUE} == {}


@pytest.mark.parametrize("sweep", ["reverse", "forward"])
@each_part
def test_both_sweeps_give_the_gradient_of_the_reference(name, method, part, sweep):
    got = gradients(name, method, part)[sweep]
    assert gradient_errors(dae_problem(name), got) == {}


@each_part
def test_the_tangent_and_the_adjoint_sweep_are_transposes(name, method, part):
    got = gradients(name, method, part)
    for y, row in got["forward"].items():
        scale = max(np.max(np.abs(row)), 1.0)
        np.testing.assert_allclose(got["reverse"][y], row, rtol=0, atol=TRANSPOSE * scale)


@pytest.mark.parametrize(
    "name, method, part",
    [
        pytest.param(*c.values, marks=[*c.marks, pytest.mark.slow]) if set(c.values) & LONG else c
        for c in PARTS
        if c.values[2] in HESSIANS.get(c.values[0], "").split()
    ],
)
def test_hessians_agree_with_the_reference_and_are_symmetric(name, method, part):
    case, bad = dae_problem(name), {}
    wanted = tuple(y for y in case.exact.hessians if part_of(y) == part)
    got, order = answers(name, method).hessian_of(wanted), list(case.p)
    for y in wanted:
        names, exact = case.exact.hessians[y]
        places = [order.index(a) for a in names]
        w = np.outer(weights(case)[places], weights(case)[places])
        block = got[y][np.ix_(places, places)]
        if not (e := error(w * block, w * exact, abs(case.exact.values[y]))) < HESSIAN:
            bad[y] = e
        assert error(w * block, w * block.T, abs(case.exact.values[y])) < TRANSPOSE
    assert bad == {}


# -- the ladder ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cauer"])
def test_the_running_loss_at_the_start_of_the_paper_and_its_gradient(name):
    """Another point for the same program, where the gradients of the losses differ in sign."""
    case = dae_problem("cauer_start")
    found = program(name, "radau5", "end")(case.p)
    assert all(error(v, case.exact.values[y]) < VALUE for y, v in found["value"].items())
    assert gradient_errors(case, rows(found["reverse"], case.p)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cauer_start"])
def test_the_sampled_losses_at_the_start_of_the_paper_and_their_gradients(name):
    case = dae_problem(name)
    found = program(name, "radau5", "samples")(case.p)
    assert all(error(v, case.exact.values[y]) < VALUE for y, v in found["value"].items())
    assert gradient_errors(case, rows(found["reverse"], case.p)) == {}


# -- both sides of an event ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, count",
    [
        ("two_rates", 1),
        ("hysteresis", 19),
        ("cauer", 19),
        ("pendulum_wall", 3),
        ("pendulum_peg", 4),
    ],
)
def test_the_number_of_events_is_that_of_the_reference(name, count):
    assert answers(name).solution.events.count == count


@pytest.mark.parametrize("name", ["hysteresis"])
def test_the_memory_holds_displacement_and_force_at_every_turn(name):
    table = np.array(
        data("papers_dae")["problems"]["P2"]["extra"]["reversal_table_t_u_z_vdot"], dtype=float
    )
    log = answers(name).solution.events
    got = np.stack([log.t, log.before.x["u"], log.before.z["z"]], axis=1)
    np.testing.assert_allclose(got, table[:, :3], rtol=0, atol=VALUE)
    np.testing.assert_array_equal(log.after.d["u"], log.before.x["u"])
    np.testing.assert_array_equal(log.after.d["z"], log.before.z["z"])
    np.testing.assert_array_equal(log.after.d["xi"], (-1) ** np.arange(1, 20))
    # the force is continuous: the next branch starts where the last one ended
    np.testing.assert_allclose(log.after.z["z"], log.before.z["z"], atol=1e-12)


@pytest.mark.parametrize("name", ["pendulum_wall"])
def test_algebraic_states_are_solved_on_both_sides_of_an_impact(name):
    """The pull in the string jumps with the speed: lam = (|v|^2 - g y) / L^2."""
    case, log = dae_problem(name), answers(name).solution.events
    for side in (log.before, log.after):
        x = side.x
        exact = (x["u"] ** 2 + x["w"] ** 2 - case.p["g"] * x["y"]) / case.p["L"] ** 2
        np.testing.assert_allclose(side.z["lam"], exact, rtol=1e-11)
        np.testing.assert_allclose(side.z["eta"], 0.0, atol=1e-11)
    assert np.all(log.after.z["lam"] < log.before.z["lam"])


@pytest.mark.parametrize("name", ["pendulum_wall"])
def test_the_position_and_the_velocity_stay_on_the_circle(name):
    """Over 4 s and three impacts both equations hold to rounding: nothing drifts."""
    case, sol = dae_problem(name), answers(name).solution
    for now in (sol.final, sol.events.before, sol.events.after):
        for residual in pendulum_constraint(now, case.p["L"]).values():
            np.testing.assert_allclose(residual, 0.0, atol=1e-11)


# -- against the same motion in other coordinates -------------------------------------------------


@pytest.mark.slow
def test_the_hessian_of_the_index_2_pendulum_is_that_of_its_angle():
    """theta'' = -g/L sin theta, an ODE, has the same x(T) and the same third impact."""
    case = dae_problem("pendulum_wall")
    angle = HybridSystem(
        flow=lambda now, p: {"a": now.x["w"], "w": -p["g"] / p["L"] * jnp.sin(now.x["a"])},
        events=[
            Event(
                "wall",
                guard=lambda now, p: p["L"] * jnp.sin(now.x["a"]) - p["xw"],
                direction="rising",
                reset=lambda now, p: now.replace(x={**now.x, "w": -p["e"] * now.x["w"]}),
            )
        ],
    )

    def by_angle(p):
        start = Instant(t=0.0, x={"a": -0.9, "w": 0.3})
        sol = saltus.solve(angle, start, p, case.t1, method=saltus.Dopri8(rtol=1e-12, atol=1e-12))
        return {"x(T)": p["L"] * jnp.sin(sol.final.x["a"]), "t3": sol.events.t[2]}

    exact = jax.hessian(by_angle)(case.p)
    got = answers("pendulum_wall").hessian_of(("x(T)", "t3"))
    for y in exact:
        matrix = np.array([[exact[y][a][b] for b in case.p] for a in case.p])
        w = np.outer(weights(case), weights(case))
        assert error(w * got[y], w * matrix) < HESSIAN
