"""Backward in time: what a solve has done forward, a solve backward undoes, where that is possible.

The law is that forward and backward again is the identity; so is its derivative.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import (
    Event,
    Exit,
    HybridSystem,
    Instant,
    Mode,
    Ramps,
    Result,
    Steps,
    TimeEvent,
    automaton,
    every,
    solve,
    when,
)

METHOD = saltus.Tsit5(rtol=1e-10, atol=1e-10)


def there_and_back(system, start, p, t1, **options):
    there = solve(system, start, p, t1, method=METHOD, **options)
    return there, solve(system, there.final, p, start.t, method=METHOD, **options)


def check_law(system, start, p, t1, count=None, atol=1e-7):
    """The same events at the same times in the other order, and the start at the end."""
    there, back = there_and_back(system, start, p, t1)
    assert there.events.count == back.events.count
    if count is not None:
        assert there.events.count == count
    np.testing.assert_array_equal(back.events.which, there.events.which[::-1])
    np.testing.assert_allclose(back.events.t, there.events.t[::-1], atol=atol)
    for got, want in zip(jax.tree.leaves(back.final.x), jax.tree.leaves(start.x), strict=True):
        np.testing.assert_allclose(got, want, atol=atol)
    if system.modes:
        assert system.modes[int(back.final.mode)] == start.mode
    return there, back


# -- exits ----------------------------------------------------------------------------------------
RISING = automaton(
    {
        "a": Mode(
            lambda now, p: 1.0,
            exits=[Exit(lambda now, p: now.x - 1.0, to="b", direction="rising")],
        ),
        "b": Mode(lambda now, p: 2.0),
    }
)
ROOM = automaton(
    {
        "off": Mode(
            lambda now, p: {"T": -p["a"] * now.x["T"]},
            exits=[Exit(lambda now, p: now.x["T"] - p["low"], to="on")],
        ),
        "on": Mode(
            lambda now, p: {"T": -p["a"] * (now.x["T"] - 30.0)},
            exits=[Exit(lambda now, p: now.x["T"] - p["high"], to="off", direction="rising")],
        ),
    }
)
WARM, P = Instant(t=0.0, x={"T": 20.0}, mode="off"), {"a": 0.5, "low": 18.0, "high": 22.0}


def test_an_exit_that_lies_ahead_in_time_is_not_taken_backward():
    sol = solve(RISING, Instant(t=0.0, x=0.0, mode="a"), None, -1.0)
    np.testing.assert_allclose(sol.final.x, -1.0, rtol=1e-12)
    assert sol.modes[int(sol.final.mode)] == "a" and sol.events.count == 0


def test_an_exit_is_undone_backward():
    check_law(RISING, Instant(t=0.0, x=0.0, mode="a"), None, 3.0, count=1)


@pytest.mark.slow
def test_a_thermostat_backward_switches_where_it_did_forward():
    """Exits that turn the motion around: the guard comes to zero from the side it left it to."""
    check_law(ROOM, WARM, P, 5.0, count=8)


@pytest.mark.slow
def test_the_derivative_of_there_and_back_is_that_of_the_identity():
    def back(T, p):
        start = Instant(t=0.0, x={"T": T}, mode="off")
        return there_and_back(ROOM, start, p, 5.0)[1].final.x["T"]

    by_start, by_p = jax.grad(back, argnums=(0, 1))(20.0, P)
    np.testing.assert_allclose(by_start, 1.0, atol=1e-6)
    np.testing.assert_allclose([by_p[k] for k in P], 0.0, atol=1e-5)


@pytest.mark.slow
def test_a_surface_that_a_mode_crosses_by_itself_is_no_exit_backward():
    """a -> b where x rises through 1; b swings back through it, which no exit explains."""
    swing = lambda now, p: {"x": now.x["v"], "v": -now.x["x"]}
    high = Exit(lambda now, p: now.x["x"] - 1.0, to="b", direction="rising")
    system = automaton({"a": Mode(swing, exits=[high]), "b": Mode(swing)})
    start = Instant(t=0.0, x={"x": 0.0, "v": 2.0}, mode="a")
    _, back = check_law(system, start, None, 4.0, count=1)
    np.testing.assert_allclose(back.events.t, [np.pi / 6], atol=1e-7)


@pytest.mark.slow
def test_an_exit_with_a_reset_is_undone_by_its_inverse_or_refused():
    def fall(**options):
        bounce = Exit(
            lambda now, p: now.x["h"],
            to="up",
            reset=lambda now, p: now.replace(x={**now.x, "v": -0.5 * now.x["v"]}),
            **options,
        )
        flow = lambda now, p: {"h": now.x["v"], "v": -9.81}
        return automaton({"down": Mode(flow, exits=[bounce]), "up": Mode(flow)})

    start = Instant(t=0.0, x={"h": 1.0, "v": 0.0}, mode="down")
    undo = lambda now, p: now.replace(x={**now.x, "v": -2.0 * now.x["v"]})
    check_law(fall(undo=undo), start, None, 0.6, count=1)
    with pytest.raises(ValueError, match=r'exit "down -> up" has a reset.*undo='):
        there_and_back(fall(), start, None, 0.6)


# -- events ---------------------------------------------------------------------------------------
def ball(**options):
    bounce = Event(
        "bounce",
        guard=lambda now, p: now.x["h"],
        reset=lambda now, p: now.replace(x={**now.x, "v": -p * now.x["v"]}),
        **options,
    )
    return HybridSystem(lambda now, p: {"h": now.x["v"], "v": -9.81}, events=[bounce])


INVERSE = {"undo": lambda now, p: now.replace(x={**now.x, "v": -now.x["v"] / p})}
HIGH = Instant(t=0.0, x={"h": 1.0, "v": 0.0})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["edge", "level", "contact"])
def test_an_event_with_an_inverse_is_undone(kind):
    check_law(ball(when=kind, **INVERSE), HIGH, 0.8, 1.5, count=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["level", "contact"])
def test_an_event_without_one_is_an_edge_backward(kind):
    """Up from the floor at t = 0: before that, nothing is known of a bounce."""
    start = Instant(t=0.2, x={"h": 1.0, "v": 6.0})
    sol = solve(ball(when=kind), start, 0.8, 0.0)
    assert sol.events.count == 0
    np.testing.assert_allclose(sol.final.x["h"], 1.0 - 1.2 - 0.5 * 9.81 * 0.04, rtol=1e-9)


@pytest.mark.slow
def test_a_family_of_events_with_an_inverse_is_undone():
    hit = Event(
        "hit",
        guard=lambda now, p: now.x["h"],
        reset=lambda now, p: now.replace(
            x={**now.x, "v": now.x["v"].at[now.member].multiply(-0.9)}
        ),
        undo=lambda now, p: now.replace(x={**now.x, "v": now.x["v"].at[now.member].divide(-0.9)}),
    )
    system = HybridSystem(lambda now, p: {"h": now.x["v"], "v": -9.81 + 0 * now.x["v"]}, events=hit)
    start = Instant(t=0.0, x={"h": jnp.array([1.0, 1.3]), "v": jnp.zeros(2)})
    check_law(system, start, None, 1.4)


# -- times, inputs, kinks -------------------------------------------------------------------------


@pytest.mark.slow
def test_ticks_inputs_and_kinks_are_passed_backward_where_they_were_forward():
    """A time event that only logs, steps and ramps, and a flow with a kink."""
    system = HybridSystem(
        lambda now, p: when(now.x > 1.0, 1.0, 3.0) + now.u["a"] + now.u["b"],
        events=[TimeEvent("tick", every(0.4)), TimeEvent("once", lambda now, p: 0.7)],
        inputs={"a": Steps([0.0, 0.5, 1.0], [1.0, 2.0, 0.5]), "b": Ramps([0.2, 0.9], [0.0, 1.0])},
    )
    there, back = there_and_back(system, Instant(t=0.05, x=0.0), None, 1.5)
    ticks = lambda sol: sol.events.of("tick").t
    np.testing.assert_allclose(ticks(back), ticks(there)[::-1], atol=1e-12)
    np.testing.assert_allclose(back.final.x, 0.0, atol=1e-8)


# -- what has no meaning backward -----------------------------------------------------------------


def test_sliding_backward_is_refused():
    belt = saltus.sliding(lambda now, p: now.x, above=lambda now, p: -1.0, below=lambda now, p: 1.0)
    with pytest.raises(ValueError, match=r"t1 lies before the start.*slide"):
        solve(belt, Instant(t=1.0, x=0.5, mode="above"), None, 0.0)


def test_times_that_are_numbers_say_the_direction_inside_jit():
    start = Instant(t=3.0, x=5.0, mode="b")
    back = lambda x: solve(RISING, start.replace(x=x), None, 0.0).final.x
    value, slope = jax.jit(jax.value_and_grad(back))(5.0)
    np.testing.assert_allclose([value, slope], [0.0, 0.5], atol=1e-12)


@pytest.mark.slow
def test_a_direction_of_time_that_is_traced_is_refused_by_name():
    @jax.jit
    def end(t1):
        sol = solve(ROOM, WARM, P, t1)
        return sol.final.x["T"], sol.result

    T, result = end(-1.0)
    assert np.isnan(T) and Result(int(result)) == Result.backward_unknown
    T, result = end(0.1)
    np.testing.assert_allclose(T, 20.0 * np.exp(-0.05), rtol=1e-7)
    assert Result(int(result)) == Result.success
