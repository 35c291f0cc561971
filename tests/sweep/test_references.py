"""Event times, values, gradients and Hessians against independent references.

All at rtol = atol = 1e-10. The bounds are those a user may rely on: a global error of a few times
the tolerance for values, one digit less for gradients, and 1e-6 for Hessians, whose error no step
size control looks at. Motions that are quadratic in time between events have no discretisation
error at all, and their Hessians are held to 1e-9.

Errors are relative to the largest entry of the output's own value y, gradient or Hessian. Where a
derivative is small because contributions cancel or decay (dx(5)/dp of the simple hybrid ODE is
0.0016, after sensitivities of 2.7), its error is relative to y/p, or y/p^2, instead.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from problem import Problem, data, from_closed_forms
from problems import DRAG_FREE, PROBLEMS, problem
from problems_balls import ceiling
from problems_switches import double_crossing

VALUE, GRADIENT, HESSIAN, EXACT_HESSIAN = 1e-9, 1e-8, 1e-6, 1e-9

# Every problem with the default method; the other methods on one of each kind.
CASES = [(name, "tsit5") for name in PROBLEMS] + [
    (name, method)
    for method in ("dopri5", "dopri8")
    for name in ("simple_hybrid_ode", "seven_bounces", "drag_ball")
]
# Other ways to write a model that is there, and methods of the same kind.
TWINS = {
    ("breaking_spring_discrete", "tsit5"), ("drag_ball_modes", "tsit5"), ("ball_until", "tsit5"),
    ("thermostat_thresholds", "tsit5"), ("drag_ball", "dopri5"), ("simple_hybrid_ode", "dopri5"),
    ("seven_bounces", "dopri5"),
}  # fmt: skip
each_case = pytest.mark.parametrize(
    "name, method",
    [pytest.param(*c, marks=pytest.mark.slow) if c in TWINS else c for c in CASES],
)


def error(got, exact, floor=0.0) -> float:
    """The largest error relative to the largest entry of the truth, or to `floor` if larger."""
    exact = np.asarray(exact, dtype=float)
    scale = max(np.max(np.abs(exact)), floor) or 1.0
    return float(np.max(np.abs(np.asarray(got) - exact)) / scale)


def size(case: Problem, y: str, power: int) -> float:
    """|y| / |p|^power, with the largest parameter."""
    return abs(case.exact.values[y]) / max(map(abs, case.p.values())) ** power


def gradient_errors(case: Problem, got: dict) -> dict[str, float]:
    """The outputs whose gradient is off by more than the bound."""
    errors = {
        y: error(got[y], exact_gradient(case, y), size(case, y, 1)) for y in case.exact.gradients
    }
    return {y: e for y, e in errors.items() if e > GRADIENT}


def exact_gradient(case: Problem, y: str) -> np.ndarray:
    return np.array([case.exact.gradients[y].get(a, 0.0) for a in case.p])


@each_case
def test_values_and_event_times_agree_with_the_reference(answers, name, method):
    got, exact = answers(name, method).value, problem(name).exact.values
    assert got.keys() == exact.keys()
    assert {y: e for y in got if (e := error(got[y], exact[y])) > VALUE} == {}


@each_case
def test_the_adjoint_sweep_gives_the_gradient_of_the_reference(answers, name, method):
    assert gradient_errors(problem(name), answers(name, method).reverse) == {}


@each_case
def test_the_tangent_sweep_gives_the_gradient_of_the_reference(answers, name, method):
    assert gradient_errors(problem(name), answers(name, method).forward) == {}


@each_case
def test_hessians_agree_with_the_reference(answers, name, method):
    case = problem(name)
    got, order = answers(name, method).hessian, list(case.p)
    bound = EXACT_HESSIAN if name in DRAG_FREE else HESSIAN
    bad = {}
    for y, (names, exact) in case.exact.hessians.items():
        places = [order.index(a) for a in names]
        block = got[y][np.ix_(places, places)]
        if (e := error(block, exact, size(case, y, 2))) > bound:
            bad[y] = e
    assert bad == {}


@pytest.mark.parametrize(
    "name, count",
    [
        ("seven_bounces", 7),
        ("one_bounce", 1),
        ("simple_hybrid_ode", 3),
        ("breaking_spring", 1),
        ("nested_chain", 2),
        ("thermostat", 10),
        ("drag_ball", 6),
        ("sampled_controller", 7),
        ("ball_until", 4),
    ],
)
def test_the_number_of_events_is_that_of_the_reference(answers, name, count):
    assert answers(name).solution.events.count == count


@pytest.mark.parametrize("name", ["terminal_time"])
def test_a_terminal_event_ends_the_solve_and_says_so(answers, name):
    sol = answers(name).solution
    assert sol.result == saltus.Result.terminated
    assert sol.events.count == 1


@pytest.mark.parametrize("margin", ["0.1", "0.01", "0.0001", "1e-06", "1e-08"])
def test_event_times_near_grazing_lose_no_more_than_the_crossing_speed_takes(margin):
    case = ceiling(margin)
    got = case.evaluate(method=saltus.Tsit5(rtol=1e-10, atol=1e-10))
    slope = jax.grad(lambda p: case.evaluate(p)["t_hit"])(case.p)["v0"]
    speed = case.exact.values["crossing_speed"]
    # The position is known to a few units in the last place of 1; t = position / speed. The speed
    # itself is g times that time error, and dt/dv0 is inversely proportional to the speed.
    rounding = 1e-14 / speed
    assert abs(got["t_hit"] - case.exact.values["t_hit"]) < rounding
    assert abs(got["crossing_speed"] - speed) < 10 * rounding
    exact = case.exact.gradients["t_hit"]["v0"]
    assert abs(slope / exact - 1) < 1e-12 + 20 * rounding / speed


@pytest.mark.parametrize("w", [0.1, 1e-3, 1e-6])
def test_two_crossings_inside_one_step_are_both_found_with_their_derivatives(w):
    case = double_crossing(w)
    sol = case.solve(method=saltus.Tsit5(rtol=1e-6, atol=1e-6))
    assert sol.events.count == 2
    rounding = 2e-15 / (2 * w)  # a few units in the last place of y, over the crossing speed 2 w
    np.testing.assert_allclose(sol.events.t, [1 - w, 1 + w], rtol=0, atol=1e-15 + rounding)
    slopes = jax.jacrev(case.evaluate)(case.p)
    # y(0) = 1 - w^2 carries the derivative -2 w over the crossing speed, which is 2 (t - 1)
    np.testing.assert_allclose(
        [slopes["in"]["w"], slopes["out"]["w"]], [-1.0, 1.0], rtol=1e-12 + rounding / w
    )


@pytest.mark.parametrize("name", ["simple_hybrid_ode"])
def test_the_jump_quantities_of_serban_and_recuero_are_those_of_the_rows(answers, name):
    """s-, s+ and dt/dp at the three switches, and the adjoint at the start, from derivatives of
    the event log: s = dx - x' dt (M24)."""
    case, method = problem(name), answers(name).method

    def log(p):
        events = case.solve(p, method=method).events
        return events.t, events.before.x["x"], events.after.x["x"]

    _, before, after = log(case.p)
    dt, d_before, d_after = (np.asarray(v["p"]) for v in jax.jacfwd(log)(case.p))
    a, b = lambda x: 4 - x, lambda x: 10 - 2 * x
    slope_before = np.array([a(before[0]), b(before[1]), a(before[2])])
    slope_after = np.array([b(after[0]), a(after[1]), b(after[2])])
    got = np.stack([d_before - slope_before * dt, d_after - slope_after * dt, dt], axis=1)
    extra = case_extra("P1")
    exact = np.array(extra["s_minus_s_plus_tau_at_events"], dtype=float)
    np.testing.assert_allclose(got, exact, atol=1e-8)

    def cost_from(x0):
        start = case.start(case.p).replace(x={"x": x0})
        return saltus.solve(case.system, start, case.p, 5.0, method=method).integral

    # their adjoint multiplies x' - f, so its sign is opposite to that of a gradient
    assert abs(jax.grad(cost_from)(0.0) + float(extra["adjoint_lambda(0)"])) < 1e-8


def test_a_bounce_at_a_given_time_has_another_gradient_than_a_bounce_on_the_floor():
    """Explicit and implicit events of Schaefer and Schauer: same trajectory, other derivatives."""
    case = problem("one_bounce")
    tau = case.exact.values["t1"]
    system = saltus.HybridSystem(
        flow=case.system.flow,
        events=[
            saltus.TimeEvent(
                "bounce",
                lambda now, p: tau,
                reset=lambda now, p: now.replace(
                    x={"z": now.x["z"], "v": -p["gamma"] * now.x["v"]}
                ),
            )
        ],
    )
    end = lambda p: saltus.solve(system, case.start(p), p, 1.9).final.x["z"]
    assert abs(end(case.p) - case.exact.values["z(T)"]) < 1e-12
    exact = {a: float(v) for a, v in case_extra("P4b")["explicit_time_event_grad_zT"].items()}
    got = jax.grad(end)(case.p)
    assert error([got[a] for a in exact], list(exact.values())) < 1e-12


def case_extra(key: str) -> dict:
    return data("papers")["problems"][key]["extra"]


def test_a_hundred_thousand_switches_and_their_gradient():
    """C8: the time of switch 100000 after 50000 cycles, and its gradient by the adjoint sweep.

    Errors of single steps add up over 1e5 switches as the times do, so relative errors stay.
    """
    case = problem("thermostat")
    outputs = {"t_switch_100000": None}
    p, exact = from_closed_forms(data("closed_forms")["cases"]["C8"], outputs)
    end = exact.values["t_switch_100000"] + 0.1
    method = saltus.Dopri8(rtol=1e-10, atol=1e-10)

    def last(p):
        sol = saltus.solve(
            case.system,
            case.start(p),
            p,
            end,
            method=method,
            max_events=100_001,
            max_steps=4_000_000,
        )
        return sol.events.t[99_999]

    value, gradient = jax.value_and_grad(last)(p)
    assert error(value, exact.values["t_switch_100000"]) < VALUE
    truth = exact.gradients["t_switch_100000"]
    assert error([gradient[a] for a in p], [truth[a] for a in p]) < GRADIENT


@pytest.mark.parametrize("name", ["seven_bounces"])
def test_saved_values_are_those_of_solves_that_end_there(answers, name):
    case, method = problem(name), answers(name).method
    ts = jnp.linspace(0.05, 6.9, 30)
    saved = case.solve(ts=ts, method=method).y
    ends = [saltus.solve(case.system, case.start(case.p), case.p, t, method=method) for t in ts]
    for name in ("z", "v"):
        np.testing.assert_allclose(saved[name], [e.final.x[name] for e in ends], atol=1e-11)
