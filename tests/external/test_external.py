"""Derivatives on a mesh that SUNDIALS chose, and models that are not JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from dae_problems import DAE_PROBLEMS, dae_problem
from problems import PROBLEMS, problem
from saltus import Event, HybridSystem, Instant, Result, solve, when
from saltus.external import CVODE, IDA, from_callbacks

pytest.importorskip("sksundae")

FINE = {"rtol": 1e-10, "atol": 1e-12}
QUICK = {"kicked_ball", "nested_chain", "sampled_controller", "memory_of_z", "two_rates"}
INDEX_2 = {name for name in DAE_PROBLEMS if name.startswith("pendulum")}
LONG = {"cauer", "cauer_start"}  # a test of its own below


def cases():
    every = {**dict.fromkeys(PROBLEMS, CVODE), **dict.fromkeys(DAE_PROBLEMS, IDA)}
    for name, method in every.items():
        if name not in INDEX_2 | LONG:
            marks = [] if name in QUICK else [pytest.mark.slow]
            yield pytest.param(name, method, marks=marks)


def case_of(name):
    return problem(name) if name in PROBLEMS else dae_problem(name)


def worst(case, method):
    """The largest error of gradients, relative to their largest entry or to y / p."""
    wanted, out = case.exact.gradients, {}
    outputs = lambda p: {y: v for y, v in case.evaluate(p, method=method).items() if y in wanted}
    jacobian = jax.jacrev(outputs)({k: jnp.asarray(v) for k, v in case.p.items()})
    for y, exact in wanted.items():
        floor = abs(case.exact.values[y]) / max(map(abs, case.p.values()))
        size = max([floor, *(abs(v) for v in exact.values())]) or 1.0
        out[y] = max(abs(float(jacobian[y][k]) - v) / size for k, v in exact.items())
    return max(out.values())


@pytest.mark.parametrize("name, method", list(cases()))
def test_gradients_on_the_mesh_of_sundials_are_those_of_the_reference(name, method):
    case = case_of(name)
    got = case.evaluate(method=method(**FINE))
    for y, value in case.exact.values.items():
        assert float(got[y]) == pytest.approx(value, rel=1e-6, abs=1e-8)
    assert worst(case, method(**FINE)) < 1e-6


def test_the_trapezoidal_rule_is_as_rough_as_in_the_paper():
    """Order 2 on the same mesh: four digits where collocation has seven."""
    case = case_of("two_rates")
    assert 1e-5 < worst(case, IDA(**FINE, mesh="trapezoidal")) < 1e-3


def test_equations_on_the_mesh_are_solved_where_they_are_not_linear():
    """x' = -p sqrt(x) has no flow at zero; z of the other is one of two roots."""
    root = HybridSystem(lambda now, p: -p * jnp.sqrt(now.x))
    end = lambda p, method: solve(root, Instant(t=0.0, x=4.0), p, 2.0, method=method).final.x
    for method in (CVODE(**FINE), CVODE(**FINE, mesh="trapezoidal")):
        assert float(jax.grad(end)(0.5, method)) == pytest.approx(-3.0, rel=1e-6)
    pump = HybridSystem(
        lambda now, p: {"x": -now.z["q"]},
        lambda now, p: {"q": now.z["q"] ** 2 + p * now.z["q"] - now.x["x"]},
    )
    start = Instant(t=0.0, x={"x": 4.0}, z={"q": 1.0})
    level = lambda p, method: solve(pump, start, p, 1.0, method=method).final.x["x"]
    exact = jax.grad(level)(1.0, saltus.Radau5(rtol=1e-9, atol=1e-10))
    assert float(jax.grad(level)(1.0, IDA())) == pytest.approx(float(exact), rel=1e-6)


@pytest.mark.slow
def test_the_trapezoidal_rule_has_order_two():
    prey = HybridSystem(lambda now, p: {
        "a": now.x["a"] * (1 - now.x["b"]), "b": p * now.x["b"] * (now.x["a"] - 1)
    })  # fmt: skip
    start = Instant(t=0.0, x={"a": 3.0, "b": 1.0})
    total = lambda p, m: sum(solve(prey, start, p, 3.0, method=m).final.x.values())
    exact = float(jax.grad(total)(2.0, saltus.Tsit5(rtol=1e-11, atol=1e-12)))
    rough, fine = (
        abs(float(jax.grad(total)(2.0, CVODE(mesh="trapezoidal", max_step=h, **FINE))) - exact)
        for h in (0.004, 0.002)
    )
    assert 3.0 < rough / fine < 5.0


def test_an_equation_that_the_mesh_does_not_meet_is_named():
    fast = HybridSystem(lambda now, p: {"x": now.x["v"], "v": -p * now.x["x"]})
    start, few = (
        Instant(t=0.0, x={"x": 1.0, "v": 0.0}),
        CVODE(mesh="trapezoidal", rtol=0.5, atol=1.0),
    )
    with pytest.warns(RuntimeWarning, match="equations on its mesh"):
        solve(fast, start, 9.0, 8.0, method=few)


@pytest.mark.slow
def test_the_gradient_of_the_ladder_has_five_digits():
    """Where the code of Matei et al. is 2.7 % off."""
    assert worst(case_of("cauer"), IDA(rtol=1e-8, atol=1e-10)) < 1e-5


BALL = HybridSystem(
    lambda now, p: {"h": now.x["v"], "v": -p["g"] - 0.1 * now.x["v"]},
    rate=lambda now, p: {"area": now.x["h"]},
    events=[
        Event(
            "bounce",
            lambda now, p: now.x["h"],
            reset=lambda now, p: now.replace(x={**now.x, "v": -p["e"] * now.x["v"]}),
        )
    ],
)
P = {"g": 9.81, "e": 0.8}
START = Instant(t=0.0, x={"h": 1.0, "v": 0.0})


def everything(p, **options):
    sol = solve(BALL, START, p, 1.5, ts=jnp.array([0.2, 0.9]), **options)
    return sol.final.x["h"] + sol.integral["area"] + sol.events.t[1] + jnp.sum(sol.y["v"] ** 2)


@pytest.mark.slow
def test_any_loss_and_second_derivatives_work_on_it():
    exact = jax.hessian(everything)(P)
    found = jax.hessian(lambda p: everything(p, method=CVODE(**FINE)))(P)
    for a in P:
        for b in P:
            assert float(found[a][b]) == pytest.approx(float(exact[a][b]), rel=1e-5)


def test_it_says_that_it_runs_outside_of_jax():
    with pytest.raises(TypeError, match=r"not inside jax\.jit"):
        jax.jit(lambda p: everything(p, method=CVODE()))(P)
    with pytest.raises(ValueError, match="IDA"):
        dae_problem("two_rates").solve(method=CVODE())
    with pytest.raises(ValueError, match="trapezoidal"):
        IDA(mesh="simpson")


def test_failures_have_their_names_and_partial_solutions():
    sol = solve(BALL, START, P, 1.5, method=CVODE(), max_events=1, throw=False)
    assert Result(int(sol.result)) is Result.too_many_events and float(sol.last.t) > 0
    few = solve(BALL, START, P, 1.5, method=CVODE(), max_steps=5, throw=False)
    assert Result(int(few.result)) is Result.too_many_steps and 0 < float(few.last.t) < 0.1


def named(system, x, p, method):
    sol = solve(system, Instant(t=0.0, x=x), p, 3.0, method=method, throw=False)
    return Result(int(sol.result)), float(sol.last.t)


@pytest.mark.parametrize("method", [CVODE(**FINE), IDA(**FINE)])
def test_contacts_settle_under_the_same_names(method):
    """Bounces end where they are as low as the tolerances: earlier than in the library's loop."""
    hard = {"g": 9.81, "e": 0.3}
    why, when_ = named(BALL, {"h": 1.0, "v": 0.0}, hard, None)
    assert why is Result.events_accumulate
    found, when_found = named(BALL, {"h": 1.0, "v": 0.0}, hard, method)
    assert found is why and when_found == pytest.approx(when_, abs=1e-5)
    assert named(BALL, {"h": 0.0, "v": 0.0}, hard, method) == (Result.resting_contact, 0.0)


def test_an_event_that_passes_through_zero_is_no_contact_however_shallow():
    """A guard that goes below zero by 1e-9, ten tolerances, and comes back: nothing rests there."""
    count = lambda now, p: now.replace(d=now.d + 1.0)
    swing = HybridSystem(
        lambda now, p: {"x": now.x["v"], "v": -now.x["x"]},
        events=[Event("top", lambda now, p: p - now.x["x"], reset=count)],
    )
    start = Instant(t=0.0, x={"x": 0.0, "v": 1.0}, d=0.0)
    sol = solve(swing, start, 1.0 - 1e-9, 3.0, method=CVODE(**FINE))
    assert float(sol.final.d) == 1.0 and float(sol.final.t) == 3.0


def test_what_cannot_go_on_is_named_as_by_other_methods():
    stuck = HybridSystem(lambda now, p: {"x": 1.0 - when(now.x["x"] > 0.5, p, 0.0)})
    blind = HybridSystem(lambda now, p: {"x": 1.0 + jnp.sqrt(p - now.x["x"])})
    for system, p, wanted in ((stuck, 2.0, Result.chattering), (blind, 1.0, Result.non_finite)):
        why, at = named(system, {"x": 0.0}, p, None)
        found, at_found = named(system, {"x": 0.0}, p, CVODE(**FINE))
        assert found is why is wanted and at_found == pytest.approx(at, abs=1e-6)


def test_what_happens_at_the_start_between_steps_and_at_the_end_is_seen():
    """A contact at the start, a guard that dips for 2e-3 of three seconds, a hit just at t1."""
    for method in (CVODE(**FINE), IDA(**FINE)):
        sol = solve(BALL, Instant(t=0.0, x={"h": 0.0, "v": -1.0}), P, 0.1, method=method)
        assert sol.events.t.tolist() == [0.0]
    hop = lambda now, p: now.replace(x=now.x + 1.0)
    dip = Event("dip", lambda now, p: (now.t - 1.0) ** 2 - p**2, reset=hop)
    end = Event("end", lambda now, p: 3.0 - now.t, reset=hop)
    watched = HybridSystem(lambda now, p: 0.0 * now.x, events=[dip, end])
    sol = solve(watched, Instant(t=0.0, x=0.0), 1e-3, 3.0, method=CVODE(**FINE))
    np.testing.assert_allclose(sol.events.t, [0.999, 3.0], rtol=1e-12)
    assert float(sol.final.x) == 2.0


def test_what_it_does_not_do_is_refused():
    with pytest.raises(ValueError, match="on_grazing"):
        solve(BALL, START, P, 1.5, method=CVODE(), on_grazing="raise")
    with pytest.raises(ValueError, match="checkpoints"):
        solve(BALL, START, P, 1.5, method=CVODE(), checkpoints=100)
    with pytest.raises(TypeError, match="float64"):
        solve(
            BALL, Instant(t=0.0, x={"h": np.float32(1), "v": np.float32(0)}), P, 1.5, method=IDA()
        )
    with pytest.raises(ValueError, match="its own steps"):
        CVODE(control=saltus.Fixed(0.1))


def test_time_may_run_backward():
    def end(p, **options):
        """Back in time the ball comes up from below, and bounces where it falls in time."""
        start = Instant(t=0.6, x={"h": -0.3, "v": -3.0})
        return solve(BALL, start, p, 0.4, **options).final.x["h"]

    exact, found = jax.grad(end)(P), jax.grad(lambda p: end(p, method=CVODE(**FINE)))(P)
    assert abs(float(exact["e"])) > 0.01
    assert float(found["e"]) == pytest.approx(float(exact["e"]), rel=1e-6)
    assert float(found["g"]) == pytest.approx(float(exact["g"]), rel=1e-6)


# -- models that are not JAX ----------------------------------------------------------------------


def swing(x, p):
    return np.array([x[1], -p[0] * np.sin(x[0]) - p[1] * x[1]])


def swing_jacobian(x, p):
    by_x = np.array([[0.0, 1.0], [-p[0] * np.cos(x[0]), -p[1]]])
    return by_x, np.array([[0.0, 0.0], [-np.sin(x[0]), -x[1]]])


def stop_at(flow):
    flip = lambda now, p: now.replace(x={"x": now.x["x"] * jnp.array([1.0, -0.9])})
    guard = lambda now, p: now.x["x"][0] + 0.5
    return HybridSystem(flow, events=[Event("stop", guard, reset=flip)])


@pytest.mark.parametrize("method", [CVODE(**FINE), saltus.Tsit5(rtol=1e-10, atol=1e-10)])
def test_values_and_jacobians_by_callback_are_enough(method):
    outside = from_callbacks(swing, swing_jacobian, 2)
    inside = lambda x, p: jnp.stack([x[1], -p[0] * jnp.sin(x[0]) - p[1] * x[1]])
    start, p = Instant(t=0.0, x={"x": jnp.array([1.0, 0.0])}), jnp.array([4.0, 0.1])

    def end(p, f, **options):
        system = stop_at(lambda now, p: {"x": f(now.x["x"], p)})
        return solve(system, start, p, 3.0, **options).final.x["x"][0]

    exact = jax.grad(end)(p, inside, method=saltus.Tsit5(rtol=1e-11, atol=1e-11))
    np.testing.assert_allclose(jax.grad(end)(p, outside, method=method), exact, rtol=1e-6)


def test_constraints_by_callback_are_for_ida():
    """z^3 + k z = x, as values and Jacobians and as JAX."""
    outside = from_callbacks(
        lambda x, z, k: z**3 + k * z - x,
        lambda x, z, k: (-np.eye(1), np.diag(3 * z**2 + k), np.diag(z)),
        size=1,
    )

    def end(k, equation, method):
        flow = lambda now, k: {"x": -k * now.z["z"]}
        law = lambda now, k: {"law": equation(now.x["x"], now.z["z"], k)}
        start = Instant(t=0.0, x={"x": 1.0}, z={"z": 0.5})
        return solve(HybridSystem(flow, law), start, k, 1.0, method=method).final.x["x"]

    inside = lambda x, z, k: z**3 + k * z - x
    by_callback = lambda x, z, k: outside(x, z, k)[0]
    exact = jax.grad(end)(1.2, inside, saltus.Radau5(rtol=1e-9, atol=1e-10))
    found = jax.grad(end)(1.2, by_callback, IDA(**FINE))
    assert float(found) == pytest.approx(float(exact), rel=1e-6)
    with pytest.raises(NotImplementedError, match="IDA"):
        end(1.2, by_callback, saltus.Radau5())


def test_wrong_shapes_of_callbacks_are_named():
    wrong = from_callbacks(lambda x: np.zeros(3), lambda x: (np.zeros((2, 2)),), 2)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"expected \(2,\)"):
        jax.block_until_ready(wrong(jnp.ones(2)))
