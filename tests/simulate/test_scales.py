"""Clocks that tick in femtoseconds or ages, start far from zero, and states of half the digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, Tsit5, solve
from saltus.simulate.record import action_of, is_reset

G = 9.81
BALL = HybridSystem(
    flow=lambda now, p: {"h": now.x["v"], "v": -p["g"] / p["T"] ** 2},
    events=[
        Event(
            "bounce",
            guard=lambda now, p: now.x["h"],
            reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]}),
        )
    ],
)
# Closed forms of a ball dropped from h = 1 with e = 0.7, in units of T (C3).
BOUNCES = np.sqrt(2 / G) * (1 + 2 * np.cumsum([0.0, 0.7, 0.7**2, 0.7**3]))
HEIGHT, HEIGHT_BY_E = 0.04243354780262773, 2.906708634908048


def drop(T=1.0, t0=0.0, e=0.7, number=float, **options):
    """A ball whose motion takes the time T, from t0 on."""
    start = Instant(t=t0, x={"h": number(1.0), "v": number(0.0)})
    p = {"T": number(T), "g": number(G), "e": number(e) if isinstance(e, float) else e}
    return solve(BALL, start, p, t0 + 2.0 * T, **options)


@pytest.mark.parametrize("T", [1e-15, 1.0, 1e15])
@pytest.mark.parametrize("method", [saltus.Tsit5(), saltus.Radau5()], ids=["Tsit5", "Radau5"])
def test_the_scale_of_time_does_not_matter(method, T):
    """A motion of 1e-15 seconds and one of 1e15: the same events and heights, to rounding."""
    sol = drop(T, method=method, ts=jnp.array([0.5, 1.5]) * T)
    np.testing.assert_allclose(sol.events.t / T, BOUNCES, rtol=1e-12)
    np.testing.assert_allclose(sol.final.x["h"], HEIGHT, rtol=1e-11)
    np.testing.assert_allclose(sol.y["v"] * T, drop(method=method, ts=[0.5, 1.5]).y["v"], rtol=1e-9)


def test_derivatives_do_not_depend_on_the_scale_of_time():
    slope = jax.grad(lambda e, T: drop(T, e=e).final.x["h"])
    for T in (1e-15, 1e15):
        np.testing.assert_allclose(slope(0.7, T), HEIGHT_BY_E, rtol=1e-10)


@pytest.mark.parametrize("t0", [1e9, -1e9])
def test_events_far_from_zero_are_resolved_within_their_segment(t0):
    """A float64 resolves 1e-7 there. Offsets from the start are kept to rounding, and so are the
    states; the times in the log are these offsets plus t0, rounded once."""
    sol = drop(t0=t0)
    n = int(sol.tape.n)
    kind = np.asarray(sol.tape.kind)[:n]
    jumps = np.asarray(sol.tape.tau)[:n][np.asarray(is_reset(kind) & (action_of(kind) == 0))]
    np.testing.assert_allclose(jumps, BOUNCES, rtol=1e-12)
    np.testing.assert_array_equal(sol.events.t, t0 + jumps)
    np.testing.assert_allclose(sol.final.x["h"], HEIGHT, rtol=1e-11)


def test_a_pole_is_reported_at_any_scale_of_time():
    """x' = x^2 / T ends at T; the message gives the time in the units of the clock."""
    system = HybridSystem(lambda now, p: now.x**2 / p)
    for T in (1e-15, 1e15):
        sol = solve(system, Instant(t=0.0, x=1.0), T, 5 * T, throw=False)
        assert sol.error.result == saltus.Result.step_underflow
        np.testing.assert_allclose(sol.error.t, T, rtol=1e-7)


# -- float32 ------------------------------------------------------------------------------------

SINGLE = np.finfo(np.float32).eps
LATE = 30 * SINGLE  # what the rounding of heights makes of the time of the fourth bounce


def test_states_of_float32_stay_float32_and_time_stays_float64():
    """The height at the end moves by -0.55 per second of delay (C3), plus its own rounding."""
    sol = drop(number=np.float32)
    assert sol.final.x["h"].dtype == jnp.float32
    assert sol.final.t.dtype == sol.events.t.dtype == jnp.float64
    np.testing.assert_allclose(sol.events.t, BOUNCES, atol=LATE)
    np.testing.assert_allclose(sol.final.x["h"], HEIGHT, atol=0.55 * LATE + 10 * SINGLE)


@pytest.mark.parametrize("method", [saltus.Radau5(), saltus.Rodas5P()], ids=["Radau5", "Rodas5P"])
def test_implicit_methods_take_float32_states_with_events(method):
    sol = drop(number=np.float32, method=method)
    assert sol.final.x["h"].dtype == jnp.float32
    np.testing.assert_allclose(sol.events.t, BOUNCES, atol=LATE)


def test_costs_of_float32_states_by_an_implicit_method():
    """x = 1 / (1 + p t), and the integral of x is log(1 + p t) / p."""
    cubic = HybridSystem(lambda now, p: -p * now.x**2, rate=lambda now, p: now.x)
    sol = solve(cubic, Instant(t=0.0, x=np.float32(1)), 1.2, 3.0, method=saltus.Radau5())
    assert float(sol.integral) == pytest.approx(np.log(4.6) / 1.2, rel=1e-6)


def test_derivatives_of_float32_are_float32_and_right():
    """The derivative by e at the end moves by 40 per second of delay (C3)."""
    slope = jax.grad(lambda e: drop(e=e, number=np.float32).final.x["h"])(jnp.float32(0.7))
    assert slope.dtype == jnp.float32
    np.testing.assert_allclose(slope, HEIGHT_BY_E, atol=40 * LATE)


def test_tolerances_finer_than_float32_cost_no_more_than_its_rounding():
    """Held to 1e-10, steps would chase rounding errors: 9000 of them, and no digit gained."""
    f = np.float32
    lorenz = HybridSystem(
        lambda now, p: {
            "x": 10 * (now.x["y"] - now.x["x"]),
            "y": now.x["x"] * (28 - now.x["z"]) - now.x["y"],
            "z": now.x["x"] * now.x["y"] - f(8 / 3) * now.x["z"],
        }
    )
    start = Instant(t=0.0, x={"x": f(1.0), "y": f(1.0), "z": f(1.0)})
    fine, finest = (
        solve(lorenz, start, None, 1.0, method=Tsit5(rtol=r, atol=r)) for r in (1e-8, 1e-10)
    )
    assert int(finest.stats.steps) < 1.5 * int(fine.stats.steps) < 200
    np.testing.assert_allclose(finest.final.x["z"], 29.36232582, rtol=20 * SINGLE)
