"""Results inside `jit`, in lanes and under derivatives: one failure leaves the rest alone."""

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


def test_a_good_solve_and_a_terminated_one_do_not_raise():
    system = HybridSystem(
        flow=lambda now, p: {"u": 1.0},
        events=[Event("end", lambda now, p: now.x["u"] - 1.0, direction="rising", terminal=True)],
    )
    start = Instant(t=0.0, x={"u": 0.0})
    assert solve(system, start, None, 0.5).result == Result.success
    assert solve(system, start, None, 2.0).result == Result.terminated
    assert Result.success.ok and Result.terminated.ok and not Result.non_finite.ok


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


@pytest.mark.slow
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
    @jax.jit
    def loss(h):
        return solve(ball(0.8), Instant(t=0.0, x={"h": h, "v": 0.0}), None, 5.0).y["h"]

    assert np.isnan(loss(0.0))  # at rest on the floor


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
    assert np.isnan(gradients[0])

    def third_flight(e):  # the height after three bounces
        fall = np.sqrt(2 / G)
        s = 2.0 - fall * (1 + 2 * e + 2 * e**2)
        return e**3 * G * fall * s - G / 2 * s**2

    np.testing.assert_allclose(gradients[1], jax.grad(third_flight)(0.8), rtol=1e-9)
