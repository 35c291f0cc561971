"""Every way a solve can stop has a name, a message, a place, a remedy, and keeps what it has."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, Result, SolveError, solve

G = 9.81


def ball(e):
    return HybridSystem(
        flow=lambda now, p: {"h": now.x["v"], "v": -G},
        events=[
            Event(
                "bounce",
                guard=lambda now, p: now.x["h"],
                reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -e * now.x["v"]}),
            )
        ],
    )


FLIP = [
    Event(
        "plus",
        guard=lambda now, p: now.x["u"] - 1.0,
        direction="rising",
        reset=lambda now, p: now.replace(x={"u": -2.0}),
    ),
    Event(
        "minus",
        guard=lambda now, p: now.x["u"] + 1.0,
        direction="falling",
        reset=lambda now, p: now.replace(x={"u": 2.0}),
    ),
]

# name -> (system, start, end, options, time of the stop, event, words of the remedy)
FAILURES = {
    "too_many_steps": (
        HybridSystem(flow=lambda now, p: {"u": -now.x["u"]}),
        {"u": 1.0},
        10.0,
        {"max_steps": 20, "method": saltus.Tsit5(control=saltus.Fixed(0.1))},
        2.0,
        None,
        "max_steps",
    ),
    "too_many_events": (
        ball(1.0),
        {"h": 1.0, "v": 0.0},
        100.0,
        {"max_events": 5},
        np.sqrt(2 / G) * 11,
        "bounce",
        "max_events",
    ),
    "non_finite": (
        HybridSystem(flow=lambda now, p: {"u": -jnp.sqrt(now.x["u"]) - 1.0}),
        {"u": 1.0},
        5.0,
        {},
        2.0 * (1.0 - np.log(2.0)),
        None,
        "domain",
    ),
    "step_underflow": (
        HybridSystem(flow=lambda now, p: {"u": now.x["u"] ** 2}),
        {"u": 1.0},
        5.0,
        {},
        1.0,
        None,
        "pole",
    ),
    "newton_failed": (
        HybridSystem(flow=lambda now, p: {"u": -1 / now.x["u"]}),
        {"u": 1.0},
        5.0,
        {"method": saltus.Radau5()},
        0.5,
        None,
        "may end here",
    ),
    "endless_chain": (
        HybridSystem(flow=lambda now, p: {"u": 1.0}, events=FLIP),
        {"u": 0.0},
        5.0,
        {},
        1.0,
        "plus",
        "hysteresis",
    ),
    "events_accumulate": (
        ball(0.5),
        {"h": 1.0, "v": 0.0},
        5.0,
        {},
        3 * np.sqrt(2 / G),
        "bounce",
        "Zeno",
    ),
    "resting_contact": (
        ball(0.8),
        {"h": 0.0, "v": 0.0},
        5.0,
        {},
        0.0,
        "bounce",
        "resting mode",
    ),
}


def attempt(name, **more):
    system, x, t1, options, *_ = FAILURES[name]
    return solve(system, Instant(t=0.0, x=x), None, t1, **{**options, **more})


@cache
def raised(name):
    """The error of a failure, caught once."""
    with pytest.raises(SolveError) as caught:
        attempt(name)
    return caught.value


def test_every_named_result_has_a_failure_here():
    good = {"running", "success", "terminated"}
    algebraic = {"inconsistent", "no_consistent_state", "singular"}  # in test_constraints.py
    assert set(FAILURES) | good | algebraic == {r.name for r in Result}


@pytest.mark.parametrize("name", list(FAILURES))
def test_the_error_says_what_stopped_where_and_what_to_do(name):
    *_, t, event, remedy = FAILURES[name]
    error = raised(name)
    assert error.result == Result[name]
    np.testing.assert_allclose(error.t, t, rtol=1e-5, atol=1e-9)
    assert remedy in str(error)
    assert Result[name].message in str(error)
    if event is not None:
        assert error.event in ("plus", "minus") if name == "endless_chain" else error.event == event
        assert f'"{error.event}"' in str(error)


@pytest.mark.parametrize("name", list(FAILURES))
def test_the_partial_solution_is_kept(name):
    sol = raised(name).solution
    assert sol.result == Result[name]
    assert np.isclose(float(sol.last.t), raised(name).t)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(sol.last.x))
    assert all(np.all(np.isnan(leaf)) for leaf in jax.tree.leaves(sol.final.x))  # never reached
    assert np.all(np.isfinite(sol.events.t))


@pytest.mark.parametrize("name", list(FAILURES))
def test_without_throw_the_result_is_returned_and_what_was_not_reached_is_nan(name):
    t = FAILURES[name][4]
    ts = jnp.array([0.5 * t, t + 0.02])
    sol = attempt(name, ts=ts, throw=False)
    assert sol.result == Result[name]
    np.testing.assert_array_equal(sol.reached, [True, False])
    for leaf in jax.tree.leaves(sol.y):
        assert np.isfinite(leaf[0]) and np.isnan(leaf[1])


def test_a_good_solve_and_a_terminated_one_do_not_raise():
    system = HybridSystem(
        flow=lambda now, p: {"u": 1.0},
        events=[Event("end", lambda now, p: now.x["u"] - 1.0, direction="rising", terminal=True)],
    )
    start = Instant(t=0.0, x={"u": 0.0})
    assert solve(system, start, None, 0.5).result == Result.success
    assert solve(system, start, None, 2.0).result == Result.terminated
    assert Result.success.ok and Result.terminated.ok and not Result.non_finite.ok


def test_check_raises_what_throw_would_have_raised():
    sol = attempt("resting_contact", throw=False)
    with pytest.raises(SolveError, match="resting mode"):
        sol.check()
    good = solve(ball(0.8), Instant(t=0.0, x={"h": 1.0, "v": 0.0}), None, 0.1)
    good.check()


def test_a_nan_in_the_start_is_reported_and_not_integrated():
    system = HybridSystem(flow=lambda now, p: {"u": -now.x["u"]})
    sol = solve(system, Instant(t=0.0, x={"u": np.nan}), None, 1.0, throw=False)
    assert sol.result == Result.non_finite


def test_a_nan_from_a_guard_is_reported():
    system = HybridSystem(
        flow=lambda now, p: {"u": -1.0},
        events=[Event("log", guard=lambda now, p: jnp.log(now.x["u"]) + 10.0)],
    )
    sol = solve(system, Instant(t=0.0, x={"u": -1.0}), None, 1.0, throw=False)
    assert sol.result == Result.non_finite


def test_a_nan_from_a_reset_is_reported_with_the_event():
    system = HybridSystem(
        flow=lambda now, p: {"u": 1.0},
        events=[
            Event(
                "bad",
                guard=lambda now, p: now.x["u"] - 0.5,
                direction="rising",
                reset=lambda now, p: now.replace(x={"u": jnp.sqrt(-now.x["u"])}),
            )
        ],
    )
    with pytest.raises(SolveError) as caught:
        solve(system, Instant(t=0.0, x={"u": 0.0}), None, 1.0)
    assert caught.value.result == Result.non_finite
    assert caught.value.event == "bad"


# -- lanes --------------------------------------------------------------------------------------


def lanes(heights):
    def one(h):
        start = Instant(t=0.0, x={"h": h, "v": 0.0})
        sol = solve(
            ball(0.8), start, None, 1.0, ts=jnp.array([0.3, 0.9]), max_events=16, throw=False
        )
        return sol.y["h"], sol.final.x, sol.events.t, sol.result

    return jax.jit(jax.vmap(one))(jnp.asarray(heights))


def test_one_bad_lane_leaves_the_others_bit_for_bit_as_they_were():
    good = lanes([1.0, 0.7, 0.4])
    mixed = lanes([1.0, 0.0, 0.4])  # the middle ball rests on the floor
    for a, b in zip(jax.tree.leaves(good), jax.tree.leaves(mixed), strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[2], b[2])
    assert int(mixed[3][1]) == int(Result.resting_contact)
    assert np.all(np.isnan(mixed[0][1]))


def test_the_gradient_of_good_lanes_stays_finite_beside_a_bad_one():
    def end(h):
        start = Instant(t=0.0, x={"h": h, "v": 0.0})
        sol = solve(ball(0.8), start, None, 1.0, ts=jnp.array([0.9]), max_events=16, throw=False)
        return jnp.where(sol.reached[0], sol.y["h"][0], 0.0)

    heights = jnp.array([1.0, 0.0, 0.4])
    together = jax.grad(lambda h: jnp.sum(jax.vmap(end)(h)))(heights)
    assert np.isfinite(together[0]) and np.isfinite(together[2])
    alone = [jax.grad(end)(h) for h in (1.0, 0.4)]
    np.testing.assert_allclose(together[jnp.array([0, 2])], alone, rtol=1e-12)


def test_a_failure_inside_jit_makes_the_loss_nan_instead_of_wrong():
    system, x, t1, *_ = FAILURES["resting_contact"]

    @jax.jit
    def loss(scale):
        sol = solve(system, Instant(t=0.0, x={k: scale * v for k, v in x.items()}), None, t1)
        return sol.y["h"]

    assert np.isnan(loss(1.0))


def test_running_out_of_the_tape_inside_jit_is_a_named_result():
    system = HybridSystem(flow=lambda now, p: {"u": -now.x["u"]})
    method = saltus.Tsit5(control=saltus.Fixed(0.01))

    @jax.jit
    def f():
        sol = solve(system, Instant(t=0.0, x={"u": 1.0}), None, 10.0, method=method, max_steps=64)
        return sol.result, sol.last.t

    result, t = f()
    assert int(result) == int(Result.too_many_steps)
    assert 0.0 < t < 1.0


# -- under derivatives --------------------------------------------------------------------------

GUARDED = HybridSystem(
    flow=lambda now, p: {"h": now.x["v"], "v": -p["g"]},
    events=[
        Event(
            "bounce",
            guard=lambda now, p: now.x["h"],
            reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]}),
        )
    ],
)


def piled_up(p, **options):
    """A ball whose bounces are over long before the end."""
    start = Instant(t=0.0, x={"h": 1.0, "v": 0.0})
    return solve(GUARDED, start, p, 20.0, **options).final.x["h"]


@pytest.mark.parametrize("derivative", [jax.grad, jax.jacfwd, jax.hessian])
def test_a_failure_inside_a_derivative_is_the_same_error(derivative):
    with pytest.raises(SolveError) as caught:
        derivative(piled_up)({"g": G, "e": 0.5})
    assert caught.value.result == Result.events_accumulate
    assert caught.value.event == "bounce"


def test_a_failed_solve_has_no_finite_gradient_inside_jit():
    value, gradient = jax.jit(jax.value_and_grad(piled_up))({"g": G, "e": 0.5})
    assert np.isnan(value)
    assert np.isnan(gradient["g"]) and np.isnan(gradient["e"])


def test_a_failed_lane_has_no_finite_gradient_and_the_others_do():
    def end(e):
        start = Instant(t=0.0, x={"h": 1.0, "v": 0.0})
        return solve(GUARDED, start, {"g": G, "e": e}, 2.0).final.x["h"]

    gradients = jax.vmap(jax.grad(end))(jnp.array([0.3, 0.8]))
    assert np.isnan(gradients[0]) and np.isfinite(gradients[1])
