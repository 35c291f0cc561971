"""Why steps became too short or too many, in words: guards that jump, stiff modes."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, Fixed, HybridSystem, Instant, StepError, Tsit5, solve, when

START = Instant(t=0.0, x={"x": 0.0})


def jumping(now, p):
    return when(now.x["x"] < 0.5, 1.0, -1.0)


GUARDS = {  # each jumps over zero at a time
    "when": (jumping, 0.5, (1.0, -1.0)),
    "where": (lambda now, p: jnp.where(now.x["x"] < 0.5, 1.0 + now.x["x"], -2.0), 0.5, (1.5, -2)),
    "comparison": (lambda now, p: (now.x["x"] > 0.25) - 0.5, 0.25, (-0.5, 0.5)),
    "mod": (lambda now, p: jnp.mod(now.x["x"], 0.3) - 0.15, 0.3, (0.15, -0.15)),
}
WITH = {"when": "falling", "where": "falling", "comparison": "rising", "mod": "falling"}
CHEAP = [("when", "falling")]
REST = [(name, way) for name in GUARDS for way in (WITH[name], "either")]


def stopped(guard, direction, **options):
    event = Event("cross", guard, direction=direction)
    system = HybridSystem(lambda now, p: {"x": 1.0}, events=[event])
    with pytest.raises(saltus.SolveError) as caught:
        solve(system, START, None, 1.0, **options)
    return caught.value


@pytest.mark.parametrize(
    "name, direction",
    [*CHEAP, *(pytest.param(*c, marks=pytest.mark.slow) for c in REST if c not in CHEAP)],
)
def test_a_guard_that_jumps_over_zero_is_named_with_both_sides_and_what_to_write(name, direction):
    guard, t, (before, after) = GUARDS[name]
    error = stopped(guard, direction, max_steps=2000)
    text = str(error)
    assert error.event == "cross" and abs(error.t - t) < 1e-6
    assert f'guard of event "cross" jumps over zero at t = {t}' in text
    assert abs(error.values["guard before"] - before) < 1e-6
    assert abs(error.values["guard after"] - after) < 1e-6
    assert "Use the quantity itself as the guard" in error.advice
    assert "make it an event (`saltus.when`)" not in text  # no advice in a circle


AGAINST = {  # the direction against which it jumps, and the events there are
    "when": ("rising", []),
    "where": ("rising", []),
    "comparison": ("falling", []),
    "mod": ("rising", [0.15, 0.45, 0.75]),
}


@pytest.mark.parametrize(
    "name, method",
    [
        ("when", Tsit5),
        *(pytest.param(n, Tsit5, marks=pytest.mark.slow) for n in ("mod", "where", "comparison")),
        pytest.param("mod", saltus.Radau5, marks=pytest.mark.slow),
        pytest.param("mod", saltus.Rodas5P, marks=pytest.mark.slow),
    ],
)
def test_a_guard_that_jumps_against_its_direction_is_no_event_and_stops_nothing(name, method):
    direction, times = AGAINST[name]
    event = Event("cross", GUARDS[name][0], direction=direction)
    system = HybridSystem(lambda now, p: {"x": p}, events=[event])
    run = lambda p: solve(system, START, p, 1.0, method=method())
    sol = run(1.0)
    np.testing.assert_allclose(sol.events.t, times, atol=1e-12)
    np.testing.assert_allclose(sol.final.x["x"], 1.0, rtol=1e-12)
    if times:
        slope = jax.grad(lambda p: run(p).events.t[1])(1.0)
        np.testing.assert_allclose(slope, -0.45, rtol=1e-9)


@pytest.mark.parametrize(
    "guard",
    [
        lambda now, p: jnp.sign(now.x - p),
        lambda now, p: jnp.where(now.t < p, -1.0, 3.0),
        lambda now, p: jnp.where(now.x < p, now.x - p - 1.0, now.x - p + 2.0),
    ],
    ids=["sign", "time", "moving"],
)
def test_an_event_located_at_a_jump_of_its_guard_has_no_finite_derivative(guard):
    """The guard does not say how the place of its jump depends on anything."""
    event = Event("cross", guard, direction="rising", reset=lambda now, p: now.replace(x=0.0))
    system = HybridSystem(lambda now, p: 1.0 + 0.0 * now.x, events=[event])

    def when_and_where(p):
        sol = solve(system, Instant(t=0.0, x=0.0), p, 1.5)
        return sol.events.t[0], sol.final.x

    t, end = when_and_where(1.0)
    assert t == pytest.approx(1.0, abs=1e-12) and end == pytest.approx(0.5, abs=1e-9)
    for derivative in (jax.jacfwd, jax.jacrev):
        assert not np.any(np.isfinite(derivative(when_and_where)(1.0)))


def test_the_line_in_which_a_guard_branches_is_told():
    line = inspect.getsourcelines(jumping)[1] + 1
    assert f"It branches in test_step_failures.py:{line}." in str(stopped(jumping, "falling"))


def test_a_steep_guard_that_is_continuous_is_not_said_to_jump():
    """x' = x^2 ends at t = 1; the guard 1 - x runs away with it, but does not jump."""
    system = HybridSystem(
        lambda now, p: {"x": now.x["x"] ** 2}, events=[Event("low", lambda now, p: now.x["x"])]
    )
    with pytest.raises(saltus.SolveError) as caught:
        solve(system, Instant(t=0.0, x={"x": 1.0}), None, 2.0)
    assert "jumps over zero" not in str(caught.value).replace("Or a guard jumps over zero", "")


RELAX = HybridSystem(lambda now, p: {"x": -p * (now.x["x"] - jnp.cos(now.t))})


def test_steps_that_stability_keeps_short_are_called_stiff_and_the_remedy_is_written_out():
    with pytest.raises(StepError) as caught:
        solve(RELAX, Instant(t=0.0, x={"x": 1.0}), 1e6, 1000.0, max_steps=2000)
    text = str(caught.value)
    assert "The system is stiff here: a part of it decays at a rate of 1e+06" in text
    assert "Write method=saltus.Radau5()" in caught.value.advice


def test_many_steps_that_accuracy_demands_are_not_called_stiff():
    turn = HybridSystem(lambda now, p: {"x": now.x["v"], "v": -p * now.x["x"]})
    with pytest.raises(StepError) as caught:
        solve(turn, Instant(t=0.0, x={"x": 1.0, "v": 0.0}), 1e6, 1000.0, max_steps=2000)
    assert "The system is stiff here" not in str(caught.value)
    assert "may be stiff" in str(caught.value)


@pytest.mark.slow
def test_fixed_steps_that_are_too_long_for_a_stiff_system_are_told():
    method = Tsit5(control=Fixed(0.1))
    with pytest.raises(saltus.NonFiniteError, match=r"stiff here.*method=saltus.Radau5\(\)"):
        solve(RELAX, Instant(t=0.0, x={"x": 1.0}), 1e4, 1000.0, method=method)


@pytest.mark.slow
def test_radau_solves_what_it_is_recommended_for():
    sol = solve(RELAX, Instant(t=0.0, x={"x": 1.0}), 1e6, 10.0, method=saltus.Radau5())
    assert abs(sol.final.x["x"] - jnp.cos(10.0)) < 1e-5 and sol.stats.steps < 2000


def test_a_summary_says_what_kept_the_steps_of_a_slow_solve_short():
    sol = solve(RELAX, Instant(t=0.0, x={"x": 1.0}), 1e3, 6.0)
    lines = [line for line in str(sol).splitlines() if line.startswith("  stiff")]
    assert len(lines) == 1 and "limited by stability" in lines[0]
    assert "try method=saltus.Radau5()" in lines[0] and "decays in 0.001" in lines[0]
    assert "stiff" not in str(solve(RELAX, Instant(t=0.0, x={"x": 1.0}), 1.0, 6.0))


@pytest.mark.slow
def test_a_summary_does_not_call_stiff_what_needs_many_steps_for_accuracy():
    turn = HybridSystem(lambda now, p: {"x": now.x["v"], "v": -p * now.x["x"] - 0.1 * now.x["v"]})
    sol = solve(turn, Instant(t=0.0, x={"x": 1.0, "v": 0.0}), 1e4, 5.0)
    assert sol.stats.steps > 1000 and "stiff" not in str(sol)
    jax.grad(lambda p: (s := solve(turn, sol.last, p, 6.0), str(s))[0].final.x["x"])(1e4)
    assert "stiff" not in str(
        solve(RELAX, Instant(t=0.0, x={"x": 1.0}), 1e6, 10.0, method=saltus.Radau5())
    )
