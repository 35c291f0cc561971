"""Models that cannot be gone on with: NaN by function, component and time; poles; bad lanes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import (
    Dopri5,
    Dopri8,
    Event,
    Fixed,
    HybridSystem,
    Instant,
    Radau5,
    Result,
    Rodas5P,
    SolveError,
    TimeEvent,
    Tsit5,
    solve,
)
from saltus.base.results import ConstraintError, NonFiniteError

METHODS = [Tsit5, Dopri5, Dopri8, Radau5, Rodas5P]


def name_of(method):
    return getattr(method, "__name__", type(method).__name__)


# -- NaN ----------------------------------------------------------------------------------------


def from_on(now, onset, where=True):
    """Zero, and NaN after the time `onset` (in the entries given)."""
    return jnp.where((now.t > onset) & where, jnp.nan, 0.0)


def drop(now, p):
    return now.replace(x={"v": now.x["v"] + from_on(now, p["reset"], jnp.arange(5) == 2)})


def store(now, p):
    return now.replace(d={"k": now.d["k"] + from_on(now, p["store"])})


FIVE = HybridSystem(
    flow=lambda now, p: {
        "v": -p["k"] * now.d["k"] * now.x["v"] + from_on(now, p["flow"], jnp.arange(5) == 3)
    },
    rate=lambda now, p: {"cost": 1.0 + from_on(now, p["rate"])},
    events=[
        Event(
            "low", lambda now, p: now.x["v"] - 1e-3 + from_on(now, p["guard"], jnp.arange(5) == 4)
        ),
        Event("half", lambda now, p: now.x["v"][0] - 0.5, reset=drop),
        Event("third", lambda now, p: now.x["v"][0] - 0.3, reset=store),
    ],
)
SAFE = {
    "k": jnp.ones(5),
    **dict.fromkeys(("flow", "rate", "guard", "reset", "store"), jnp.inf),
}
START = Instant(t=0.0, x={"v": 1.0 + jnp.arange(5.0)}, d={"k": 1.0})


def stopped(system, start, p, t1=3.0, **options):
    with pytest.raises(SolveError) as caught:
        solve(system, start, p, t1, **options)
    return caught.value


def test_without_nan_the_model_runs():
    assert solve(FIVE, START, SAFE, 3.0).result == Result.success


@pytest.mark.parametrize(
    "where, t, name, event",
    [
        ("flow", 1.3, 'the flow of x["v"][3]', "third"),
        ("flow", 0.0, 'the flow of x["v"][3]', None),
        ("rate", 0.4, 'the rate["cost"]', None),
        ("guard", 0.4, 'the guard of event "low", member 4', "low"),
        ("reset", np.log(2.0), 'the reset of event "half": x["v"][2]', "half"),
        ("store", np.log(1 / 0.3), 'the reset of event "third": d["k"]', "third"),
    ],
)
def test_nan_is_reported_by_function_component_and_time(where, t, name, event):
    onset = t if where in ("flow", "rate", "guard") else 0.0
    error = stopped(FIVE, START, {**SAFE, where: onset})
    assert type(error) is NonFiniteError and error.event == event
    assert np.isnan(error.values[name]) and f"{name} is nan" in str(error)
    assert abs(error.t - t) < 1e-6
    assert "domain" in error.advice
    assert int(error.solution.stats.rejected) < 60  # a few reductions of the step, no hanging


def test_a_parameter_that_is_nan_is_named_first():
    error = stopped(FIVE, START, {**SAFE, "k": SAFE["k"].at[2].set(jnp.nan)})
    assert error.t == 0.0
    assert list(error.values) == ["v", 'p["k"][2]', 'the flow of x["v"][2]']
    assert 'p["k"][2] is nan; the flow' in str(error)


def test_a_start_that_is_nan_is_named():
    error = stopped(FIVE, START.replace(x={"v": START.x["v"].at[1].set(jnp.nan)}), SAFE)
    assert error.t == 0.0 and np.isnan(error.values['the start\'s x["v"][1]'])


def test_an_input_that_is_nan_is_named():
    system = HybridSystem(
        lambda now, p: -now.u * now.x, inputs=lambda p: saltus.Steps([0.0, 1.0], [1.0, jnp.nan])
    )
    error = stopped(system, Instant(t=0.0, x=1.0), None)
    assert error.t == 1.0 and "input number 0, its values[1] is nan" in str(error)


LOGARITHM = HybridSystem(lambda now, p: -now.x + 0.0 * jnp.log(1.3 - now.t))


@pytest.mark.parametrize(
    "method", [Dopri8(), Radau5(), Rodas5P(), Tsit5(control=Fixed(0.25))], ids=name_of
)
def test_the_time_at_which_nan_begins_is_found_by_every_method(method):
    """A logarithm that is undefined from 1.3 on. Fixed steps stop before; the text says where."""
    error = stopped(LOGARITHM, Instant(t=0.0, x=1.0), None, method=method)
    reached = 1.25 if isinstance(method.control, Fixed) else 1.3
    assert 0 <= reached - error.t < 1e-9
    told = float(str(error).split("is nan at t = ")[1].split(". ")[0])
    assert abs(told - 1.3) < 1e-3


def test_an_equation_that_becomes_nan_is_named_with_its_time():
    system = HybridSystem(
        lambda now, p: {"v": -now.z["a"]},
        lambda now, p: {"root": now.z["a"] - (1.3 - now.t) ** 0.5},
    )
    error = stopped(system, Instant(t=0.0, x={"v": 1.0}, z={"a": 1.0}), None)
    assert type(error) is ConstraintError and abs(error.t - 1.3) < 1e-6
    assert 'equation "root" is nan at t = 1.3' in str(error)


def test_an_output_that_is_nan_is_a_warning_and_no_failure():
    """The states are right, so the solve is; the missing value is named."""
    system = HybridSystem(lambda now, p: -now.x, output=lambda now, p: {"y": (1 - now.t) ** 0.5})
    run = functools.partial(solve, system, Instant(t=0.0, x=1.0), None, 2.0, ts=[0.5, 1.5])
    with pytest.warns(RuntimeWarning, match=r'output\["y"\] is nan at t = 1.5.*domain'):
        run()
    np.testing.assert_array_equal(np.isnan(run(throw=False).y["y"]), [False, True])


def test_a_state_whose_error_has_no_measure_is_told_from_nan():
    """x = 0 with x' = 0 and atol = 0: the scaled error is 0 / 0."""
    system = HybridSystem(lambda now, p: {"u": -now.x["u"], "w": 0.0})
    error = stopped(system, Instant(t=0.0, x={"u": 1.0, "w": 0.0}), None, method=Tsit5(atol=0.0))
    assert 'error of x["w"] has no scale' in str(error) and "atol" in error.advice


# The motion comes to rest at the edge of the domain, where every longer step is NaN.
SINKING = HybridSystem(lambda now, p: {"x": p - jnp.sqrt(now.x["x"] - 0.5), "s": jnp.cos(now.t)})
EDGE = Instant(t=0.0, x={"x": 1.0, "s": 0.0})
# The same without a derivative, so that no tangent tells how long steps may be.
BLUNT = HybridSystem(
    lambda now, p: {
        "x": p - jnp.sqrt(jax.lax.stop_gradient(now.x["x"]) - 0.5),
        "s": jnp.cos(now.t),
    }
)


def test_nan_between_tiny_steps_is_named_after_a_few_hundred_attempts():
    """x' = -sqrt(x - 1/2) ends at the edge at t = sqrt(2); another state goes on."""
    error = stopped(SINKING, EDGE, 0.0, 5.0)
    assert type(error) is NonFiniteError and abs(error.t - np.sqrt(2.0)) < 1e-3
    assert 'the flow of x["x"] is nan at t = 1.41' in str(error)
    assert int(error.solution.stats.steps) < 500


def test_nan_that_longer_steps_meet_again_and_again_does_not_stop_a_motion_that_gets_on():
    """An equilibrium near the edge: thousands of attempts are NaN."""
    sol = solve(BLUNT, EDGE, 1e-4, 5.0)
    assert int(sol.stats.rejected) > 1000
    np.testing.assert_allclose(sol.final.x["s"], np.sin(5.0), atol=1e-6)
    assert 0.0 <= sol.final.x["x"] - 0.5 < 1e-7


def test_near_an_equilibrium_steps_suit_the_linearised_flow_and_meet_no_nan():
    sol = solve(SINKING, EDGE, 1e-4, 5.0)
    assert int(sol.stats.rejected) < 100 and int(sol.stats.steps) < 10_000
    np.testing.assert_allclose(sol.final.x["s"], np.sin(5.0), atol=1e-6)
    assert sol.final.x["x"] - 0.5 == pytest.approx(1e-8, rel=1e-3)


def test_too_many_steps_among_nan_say_so():
    error = stopped(BLUNT, EDGE, 1e-4, 5.0, max_steps=2000)
    assert error.result is Result.too_many_steps
    assert 'and the flow of x["x"] is nan at t = ' in str(error)


# -- poles --------------------------------------------------------------------------------------

POLE = HybridSystem(lambda now, p: now.x**2)


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_no_method_steps_over_a_pole(method):
    """x' = x^2 ends at t = 1. The computed solution has its pole there up to the tolerance, and
    is followed until steps of rounding: positive and growing all the way."""
    for options in ({}, {"first_step": 3.0}, {"rtol": 1e-3, "atol": 1e-3}):
        made = method(**options)
        sol = solve(POLE, Instant(t=0.0, x=1.0), None, 5.0, method=made, throw=False)
        assert sol.result == Result.step_underflow
        assert abs(sol.last.t - 1.0) < 3 * made.rtol
        x = np.asarray(sol.tape.w[0])[: int(sol.tape.n) + 1]
        assert np.all(np.diff(x) > 0) and x[-1] > 1e12


# -- lanes ----------------------------------------------------------------------------------


def test_one_lane_at_a_pole_leaves_the_others_alone():
    end = jax.jit(jax.vmap(lambda x: solve(POLE, Instant(t=0.0, x=x), None, 1.0).final.x))
    mixed, good = end(jnp.array([0.5, 2.0, -1.0])), end(jnp.array([0.5, 0.1, -1.0]))
    assert np.isnan(mixed[1])
    np.testing.assert_array_equal(mixed[::2], good[::2])
    np.testing.assert_allclose(mixed[::2], [1.0, -0.5], rtol=1e-6)


def planned(time):
    return HybridSystem(lambda now, p: -now.x, events=[TimeEvent("alarm", time)])


def test_a_planned_time_that_is_nan_is_named_by_event():
    error = stopped(planned(lambda now, p: jnp.sqrt(-now.x)), Instant(t=0.0, x=1.0), None)
    assert type(error) is NonFiniteError and error.event == "alarm" and error.t == 0.0
    assert 'next_time of event "alarm" is nan' in str(error)


def test_a_planned_time_that_is_infinite_means_never():
    sol = solve(planned(lambda now, p: jnp.inf), Instant(t=0.0, x=1.0), None, 1.0)
    assert sol.events.count == 0


def test_a_mode_with_a_flow_of_another_shape_is_refused_by_name():
    fall = lambda now, p: {"v": -now.x["v"]}
    still = saltus.Mode(lambda now, p: {"v": jnp.zeros(3)})
    system = saltus.automaton({"fly": saltus.Mode(fall), "rest": still})
    start = Instant(t=0.0, x={"v": jnp.ones(5)}, mode="fly")
    with pytest.raises(ValueError, match=r'mode "rest": .*array\[3\].*array\[5\]'):
        solve(system, start, None, 1.0)
