"""Mistakes are found before the first step: what was wrong, what was expected, what to write."""

import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from messages import mentions
from saltus import Event, Exit, HybridSystem, Instant, Mode, TimeEvent, automaton, every, solve

START = Instant(t=0.0, x={"h": 1.0, "v": 0.0})
fall = lambda now, p: {"h": now.x["v"], "v": -9.81}
floor = lambda now, p: now.x["h"]


def attempt(flow=fall, start=START, t1=1.0, p=None, events=(), ts=None, method=None, **system):
    return solve(HybridSystem(flow, events=events, **system), start, p, t1, ts=ts, method=method)


def bounce(**changes):
    return Event("bounce", **{"guard": floor, **changes})


# -- model functions ----------------------------------------------------------------------------


def test_a_flow_with_other_fields_than_the_state():
    with pytest.raises((TypeError, ValueError)) as caught:
        attempt(flow=lambda now, p: {"h": now.x["v"]})
    mentions(caught, "flow", "v")


def test_a_flow_with_another_shape_than_the_state():
    with pytest.raises((TypeError, ValueError)) as caught:
        attempt(flow=lambda now, p: {"h": jnp.zeros(2), "v": -9.81})
    mentions(caught, "flow", "(2,)", "h")


def test_a_guard_that_is_a_comparison_instead_of_a_number():
    with pytest.raises((TypeError, ValueError)) as caught:
        attempt(events=[bounce(guard=lambda now, p: now.x["h"] < 0)])
    mentions(caught, 'event "bounce"', "guard", "truth value", "lambda now, p")


def test_a_guard_that_returns_a_tree():
    with pytest.raises((TypeError, ValueError)) as caught:
        attempt(events=[bounce(guard=lambda now, p: {"h": now.x["h"]})])
    mentions(caught, 'event "bounce"', "guard")


def test_a_reset_that_returns_the_state_instead_of_the_instant():
    with pytest.raises((TypeError, ValueError)) as caught:
        attempt(events=[bounce(reset=lambda now, p: {"h": 0.0, "v": -now.x["v"]})])
    mentions(caught, 'event "bounce"', "reset", "now.replace(x=")


def test_a_reset_that_forgets_a_field():
    with pytest.raises((TypeError, ValueError)) as caught:
        attempt(events=[bounce(reset=lambda now, p: now.replace(x={"v": -now.x["v"]}))])
    mentions(caught, 'event "bounce"', "reset", "now.replace(x=")


def test_a_reset_that_changes_a_shape():
    with pytest.raises((TypeError, ValueError)) as caught:
        attempt(events=[bounce(reset=lambda now, p: now.replace(x={"h": 0.0, "v": jnp.zeros(3)}))])
    mentions(caught, 'event "bounce"', "reset", "(3,)")


def test_a_reset_that_invents_discrete_state():
    with pytest.raises((TypeError, ValueError)) as caught:
        attempt(events=[bounce(reset=lambda now, p: now.replace(d={"n": 1}))])
    mentions(caught, 'event "bounce"', "reset", "d")


def test_a_reset_that_replaces_a_field_that_is_none():
    with pytest.raises(TypeError) as caught:
        attempt(events=[bounce(reset=lambda now, p: now.replace(y=1.0))])
    mentions(caught, "y", "now.replace(x=")


def test_a_time_event_whose_time_is_an_array():
    event = TimeEvent("alarm", lambda now, p: jnp.array([1.0, 2.0]))
    with pytest.raises((TypeError, ValueError)) as caught:
        attempt(events=[event])
    mentions(caught, '"alarm"', "next_time")


def test_an_activity_that_is_a_number():
    with pytest.raises((TypeError, ValueError)) as caught:
        attempt(events=[bounce(active=lambda now, p: now.x["h"])])
    mentions(caught, 'event "bounce"', "active", "bool")


# -- objects ------------------------------------------------------------------------------------


def test_an_activity_that_changes_between_events():
    with pytest.raises(ValueError, match=r"active depends on now\.x"):
        attempt(events=[bounce(active=lambda now, p: now.x["h"] > 1.0)])
    with pytest.raises(ValueError, match=r"active depends on now\.t"):
        attempt(events=[bounce(active=lambda now, p: now.t > 1.0)])


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Event("bounce", guard=1.0), ('event "bounce"', "guard", "lambda now, p")),
        (lambda: Event("bounce", guard=floor, reset=2), ('event "bounce"', "reset")),
        (lambda: Event("bounce", guard=floor, active=True), ('event "bounce"', "active")),
        (lambda: Event(floor, "bounce"), ("Event", "name")),
        (lambda: Event("", floor), ("Event", "name")),
        (
            lambda: Event("bounce", guard=floor, direction="down"),
            ('event "bounce"', "direction", "down", "falling"),
        ),
        (lambda: Event("bounce", guard=floor, when="always"), ('event "bounce"', "when", "level")),
        (lambda: TimeEvent("alarm", 3.0), ('"alarm"', "next_time")),
        (lambda: every(0.0), ("every", "period", "positive")),
        (lambda: every(-1.0), ("every", "period", "positive")),
        (lambda: HybridSystem(flow=None), ("HybridSystem", "flow", "lambda now, p")),
        (lambda: HybridSystem(fall, events=[floor]), ("events", "Event")),
        (lambda: HybridSystem(fall, rate=1.0), ("rate",)),
        (lambda: HybridSystem(fall, output="h"), ("output",)),
        (
            lambda: HybridSystem(fall, events=[Event("a", floor), Event("a", floor)]),
            ('"a"', "own"),
        ),
        (lambda: saltus.Steps([0.0, 1.0], [1.0, 2.0, 3.0, 4.0]), ("Steps", "2")),
        (lambda: saltus.Steps([1.0, 0.0], [1.0, 2.0]), ("Steps", "increase")),
        (lambda: saltus.Ramps([0.0, 1.0], [1.0]), ("Ramps", "2")),
        (lambda: START.replace(speed=1.0), ("speed", "now.replace(x=")),
    ],
)
def test_an_object_built_wrongly_says_so_at_once(make, words):
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    mentions(caught, *words)


# -- automata -----------------------------------------------------------------------------------


def modes(**changes):
    one = Mode(fall, exits=[Exit(floor, to="rest", name="land", **changes)])
    return automaton({"fly": one, "rest": Mode(lambda now, p: {"h": 0.0, "v": 0.0})})


def test_an_exit_to_a_mode_that_does_not_exist():
    with pytest.raises((KeyError, ValueError)) as caught:
        automaton({"fly": Mode(fall, exits=[Exit(floor, to="sleep", name="land")])})
    mentions(caught, "fly", "sleep")


def test_a_start_in_a_mode_that_does_not_exist():
    with pytest.raises((KeyError, ValueError)) as caught:
        solve(modes(), START.replace(mode="swim"), None, 1.0)
    mentions(caught, "swim", "fly", "rest")


def test_a_start_without_a_mode():
    with pytest.raises((TypeError, ValueError)) as caught:
        solve(modes(), START, None, 1.0)
    mentions(caught, "mode", "fly")


def test_a_mode_for_a_system_that_has_none():
    with pytest.raises((TypeError, ValueError)) as caught:
        attempt(start=START.replace(mode="fly"))
    mentions(caught, "mode")


def test_a_mode_whose_flow_has_another_structure():
    system = automaton({"fly": Mode(fall), "rest": Mode(lambda now, p: {"h": 0.0, "w": 0.0})})
    with pytest.raises((TypeError, ValueError)) as caught:
        solve(system, START.replace(mode="fly"), None, 1.0)
    mentions(caught, "rest", "flow")


def test_a_reset_of_an_exit_that_forgets_a_field():
    with pytest.raises((TypeError, ValueError)) as caught:
        system = modes(reset=lambda now, p: now.replace(x={"h": 0.0}))
        solve(system, START.replace(mode="fly"), None, 1.0)
    mentions(caught, "land", "reset", "now.replace(x=")


def test_an_automaton_without_modes():
    with pytest.raises((TypeError, ValueError)) as caught:
        automaton({})
    mentions(caught, "mode")


# -- the call -----------------------------------------------------------------------------------


def test_a_start_that_is_no_instant():
    with pytest.raises(TypeError) as caught:
        attempt(start={"h": 1.0, "v": 0.0})
    mentions(caught, "Instant(t=")


def test_a_start_time_with_an_axis():
    with pytest.raises((TypeError, ValueError)) as caught:
        attempt(start=START.replace(t=np.zeros(2)))
    mentions(caught, "t", "(2,)")


def test_an_end_time_with_an_axis():
    with pytest.raises((TypeError, ValueError)) as caught:
        attempt(t1=np.array([1.0, 2.0]))
    mentions(caught, "t1", "(2,)")


def test_save_times_outside_the_interval():
    with pytest.raises(ValueError) as caught:
        attempt(ts=np.array([0.5, 1.5]))
    mentions(caught, "ts", "1.5")


def test_save_times_with_two_axes():
    with pytest.raises((TypeError, ValueError)) as caught:
        attempt(ts=np.ones((2, 2)))
    mentions(caught, "ts", "(2, 2)")


def test_a_state_with_something_that_is_no_number():
    with pytest.raises((TypeError, ValueError)) as caught:
        attempt(start=Instant(t=0.0, x={"h": "high", "v": 0.0}))
    mentions(caught, "x", "high")


def test_a_system_that_is_no_system():
    with pytest.raises(TypeError) as caught:
        solve(fall, START, None, 1.0)
    mentions(caught, "HybridSystem")


def test_a_method_that_is_no_method():
    with pytest.raises(TypeError) as caught:
        attempt(method="tsit5")
    mentions(caught, "method", "Tsit5(")


def test_an_event_name_that_is_not_in_the_log():
    sol = attempt(events=[bounce()])
    with pytest.raises((KeyError, ValueError)) as caught:
        sol.events.of("bouncing")
    mentions(caught, "bouncing", "bounce")


def test_integers_in_the_state_are_taken_as_numbers():
    """`x={"h": 1}` means 1.0: no error, and no integer state."""
    sol = attempt(start=Instant(t=0, x={"h": 1, "v": 0}), t1=0.1)
    np.testing.assert_allclose(sol.final.x["h"], 1 - 9.81 * 0.005, rtol=1e-12)


# -- what a reset and a start may say ------------------------------------------------------------


def test_a_reset_that_changes_time():
    with pytest.raises(ValueError) as caught:
        attempt(events=[bounce(reset=lambda now, p: now.replace(t=now.t + 1.0))])
    mentions(caught, 'event "bounce"', "reset", "changed t")


def test_a_reset_that_names_a_mode_of_a_system_without_modes():
    with pytest.raises(ValueError) as caught:
        attempt(events=[bounce(reset=lambda now, p: now.replace(mode=1))])
    mentions(caught, 'event "bounce"', "no modes", "automaton")


def test_mode_numbers_that_do_not_exist():
    two = automaton({"a": Mode(lambda now, p: 1.0), "b": Mode(lambda now, p: -1.0)})
    with pytest.raises(ValueError) as caught:
        solve(two, Instant(t=0.0, x=0.0, mode=7), None, 1.0)
    mentions(caught, "mode", "7", "'a', 'b'")


@pytest.mark.parametrize("t1", [np.inf, np.nan])
def test_an_end_that_is_no_time(t1):
    with pytest.raises(ValueError) as caught:
        attempt(t1=t1)
    mentions(caught, "t1", "finite")


def test_a_complex_state():
    with pytest.raises(TypeError) as caught:
        attempt(start=Instant(t=0.0, x={"h": 1j, "v": 0.0}))
    mentions(caught, "real numbers")


def test_a_list_where_the_state_is_an_array():
    with pytest.raises(ValueError) as caught:
        attempt(flow=lambda now, p: [now.x[1], -now.x[0]], start=Instant(t=0.0, x=jnp.ones(2)))
    mentions(caught, "jnp.stack")
