"""What an event is: when it fires, in which order, and when it ends a solve."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bouncing import ROUNDING, TIGHT, G, ball, bounce, names, run
from problems_balls import ceiling
from saltus import (
    Event,
    Exit,
    HybridSystem,
    Instant,
    Mode,
    Result,
    TimeEvent,
    automaton,
    solve,
)

# -- direction ----------------------------------------------------------------------------------

ZEROS = np.array([0.5, 1.5, 2.5]) * np.pi  # of the cosine: falling, rising, falling


@pytest.mark.parametrize(
    "direction, seen", [("falling", [0, 2]), ("rising", [1]), ("either", [0, 1, 2])]
)
def test_an_event_sees_crossings_in_its_direction_only(direction, seen):
    system = HybridSystem(
        flow=lambda now, p: {"c": -now.x["s"], "s": now.x["c"]},
        events=[Event("zero", guard=lambda now, p: now.x["c"], direction=direction)],
    )
    sol = run(system, {"c": 1.0, "s": 0.0}, 9.0)
    np.testing.assert_allclose(sol.events.t, ZEROS[seen], atol=1e-8)


def test_directions_are_along_increasing_time_also_when_integrating_backwards():
    system = HybridSystem(
        flow=lambda now, p: {"c": -now.x["s"], "s": now.x["c"]},
        events=[Event("zero", guard=lambda now, p: now.x["c"], direction="falling")],
    )
    sol = run(system, {"c": np.cos(9.0), "s": np.sin(9.0)}, 0.0, t0=9.0)
    np.testing.assert_allclose(sol.events.t, ZEROS[[2, 0]], atol=1e-8)


def test_a_backward_solve_undoes_a_forward_one_through_log_only_events():
    system = HybridSystem(
        flow=lambda now, p: {"h": now.x["v"], "v": -G},
        events=[Event("pass", guard=lambda now, p: now.x["h"] - 1.0, direction="either")],
    )
    there = run(system, {"h": 0.5, "v": 5.0}, 1.0)
    back = solve(system, there.final, None, 0.0, method=TIGHT)
    np.testing.assert_allclose(back.events.t, there.events.t[::-1], atol=1e-11)
    np.testing.assert_allclose([back.final.x["h"], back.final.x["v"]], [0.5, 5.0], atol=1e-11)


# -- arming -------------------------------------------------------------------------------------


def test_an_event_that_only_logs_fires_once_per_crossing_and_touches_nothing():
    plain = HybridSystem(flow=lambda now, p: {"h": now.x["v"], "v": -G})
    logged = HybridSystem(
        flow=plain.flow,
        events=[Event("apex", guard=lambda now, p: now.x["v"])],
    )
    sol = run(logged, {"h": 0.0, "v": 3.0}, 1.0)
    assert sol.events.count == 1
    np.testing.assert_allclose(sol.events.t, [3.0 / G], atol=ROUNDING)
    before, after = sol.events.before.x, sol.events.after.x
    for name in ("h", "v"):
        np.testing.assert_allclose(before[name], after[name], atol=1e-15)
    np.testing.assert_allclose(
        sol.final.x["h"], run(plain, {"h": 0.0, "v": 3.0}, 1.0).final.x["h"], atol=ROUNDING
    )


def test_a_guard_that_is_zero_at_the_start_waits_until_it_has_left_zero():
    """Thrown up from the floor: no bounce at the start, one when it comes back."""
    sol = run(ball(), {"h": 0.0, "v": 3.0}, 1.0)
    np.testing.assert_allclose(sol.events.t, [6.0 / G], atol=ROUNDING)


def test_a_guard_left_to_its_firing_side_at_the_start_fires_at_once():
    """Thrown down from the floor: the ball bounces, it does not fall through."""
    sol = run(ball(), {"h": 0.0, "v": -3.0}, 0.1)
    assert names(sol) == ["bounce"]
    assert sol.events.t[0] == 0.0
    assert sol.final.x["h"] > 0.0


def test_a_solve_continued_from_an_event_does_not_fire_it_again():
    """The final state of a terminal event starts the next solve."""
    first = HybridSystem(
        flow=lambda now, p: {"h": now.x["v"], "v": -G},
        events=[Event("floor", guard=lambda now, p: now.x["h"], reset=bounce(0.5), terminal=True)],
    )
    one = run(first, {"h": 1.0, "v": 0.0}, 9.0)
    two = solve(first, one.final, None, 9.0, method=TIGHT)
    fall = np.sqrt(2.0 / G)
    np.testing.assert_allclose([one.final.t, two.final.t], [fall, 2 * fall], atol=ROUNDING)


# -- grazing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("margin", [-1e-2, -1e-4, -1e-6, -1e-8])
def test_a_near_miss_is_no_event(margin):
    """Thrown towards the ceiling of C4 with a little less than the speed that reaches it."""
    speed = (1.0 + margin) * np.sqrt(2 * 9.81)
    sol = solve(ceiling("0.1").system, Instant(t=0.0, x={"x": 0.0, "v": speed}), None, 0.9)
    assert sol.events.count == 0
    assert sol.result == Result.success


def test_a_touch_without_a_crossing_is_no_event_and_has_no_part_in_a_gradient():
    """y = (t - 1)^2 + c touches zero at c = 0. (An event there would have no derivative.)"""
    system = HybridSystem(
        flow=lambda now, p: {"y": 2.0 * (now.t - 1.0)},
        events=[Event("touch", guard=lambda now, p: now.x["y"])],
    )

    def first(c):
        sol = solve(system, Instant(t=0.0, x={"y": 1.0 + c}), None, 2.0, throw=False)
        return jnp.sum(jnp.where(jnp.arange(sol.events.t.shape[0]) == 0, sol.events.t, 0.0)), sol

    slope, sol = jax.grad(first, has_aux=True)(0.0)
    assert sol.events.count == 0
    assert sol.stats.touches == 1
    assert slope == 0.0  # no event, and nothing that depends on one


def unit_clock(terminal=False):
    return HybridSystem(
        flow=lambda now, p: {"u": 1.0},
        events=[
            Event(
                "one",
                guard=lambda now, p: now.x["u"] - 1.0,
                direction="rising",
                reset=lambda now, p: now.replace(x={"u": 0.0}),
                terminal=terminal,
            )
        ],
    )


# -- contact ------------------------------------------------------------------------------------


def test_a_ball_at_rest_on_the_floor_never_falls_through():
    sol = run(ball(), {"h": 0.0, "v": 0.0}, 1.0, throw=False)
    assert sol.result == Result.resting_contact
    assert sol.last.x["h"] >= -1e-12


def test_a_ball_that_stays_on_the_floor_after_an_inelastic_impact_is_a_resting_contact():
    sol = run(ball(e=0.0), {"h": 1.0, "v": 0.0}, 1.0, throw=False)
    assert sol.result == Result.resting_contact
    np.testing.assert_allclose(sol.last.t, np.sqrt(2.0 / G), atol=1e-9)
    assert sol.last.x["h"] >= -1e-12


def test_with_a_resting_mode_the_ball_lies_on_the_floor():
    system = automaton(
        {
            "fly": Mode(
                lambda now, p: {"h": now.x["v"], "v": -G},
                exits=[
                    Exit(
                        lambda now, p: now.x["h"],
                        to="rest",
                        reset=lambda now, p: now.replace(x={"h": 0.0, "v": 0.0}),
                        name="land",
                    )
                ],
            ),
            "rest": Mode(lambda now, p: {"h": 0.0, "v": 0.0}),
        }
    )
    sol = run(system, {"h": 1.0, "v": 0.0}, 1.0, mode="fly")
    assert sol.result == Result.success
    assert sol.final.x["h"] == 0.0


def test_a_ball_bounces_until_it_is_told_that_events_accumulate():
    """Bounces pile up at the Zeno time; the height is never below the floor before."""
    sol = run(ball(e=0.5), {"h": 1.0, "v": 0.0}, 5.0, throw=False, max_events=2000)
    assert sol.result == Result.events_accumulate
    zeno = np.sqrt(2.0 / G) * 1.5 / 0.5
    np.testing.assert_allclose(sol.last.t, zeno, rtol=1e-6)
    assert sol.last.x["h"] >= -1e-12


# -- coming into force --------------------------------------------------------------------------


@pytest.mark.parametrize("when, expected", [("level", ["go", "low"]), ("edge", ["go"])])
def test_a_guard_that_comes_into_force_beyond_zero_fires_by_level_and_waits_by_edge(when, expected):
    """In mode "two" the level u = 0.5 has long been passed when the mode begins at u = 0.2."""
    system = automaton(
        {
            "one": Mode(
                lambda now, p: {"u": -1.0},
                exits=[Exit(lambda now, p: now.x["u"] - 0.2, to="two", name="go")],
            ),
            "two": Mode(
                lambda now, p: {"u": -1.0},
                exits=[Exit(lambda now, p: now.x["u"] - 0.5, to="three", name="low", when=when)],
            ),
            "three": Mode(lambda now, p: {"u": 0.0}),
        }
    )
    sol = run(system, {"u": 1.0}, 1.0, mode="one")
    assert names(sol) == expected
    np.testing.assert_allclose(sol.events.t, 0.8, atol=ROUNDING)


def test_exits_fire_by_level_unless_told_otherwise():
    system = automaton(
        {
            "one": Mode(
                lambda now, p: {"u": -1.0},
                exits=[Exit(lambda now, p: now.x["u"] - 0.2, to="two", name="go")],
            ),
            "two": Mode(
                lambda now, p: {"u": -1.0},
                exits=[Exit(lambda now, p: now.x["u"] - 0.5, to="three", name="low")],
            ),
            "three": Mode(lambda now, p: {"u": 0.0}),
        }
    )
    assert names(run(system, {"u": 1.0}, 1.0, mode="one")) == ["go", "low"]


@pytest.mark.parametrize("when, expected", [("level", ["on", "low"]), ("edge", ["on"])])
def test_an_event_put_in_force_beyond_zero_follows_the_same_rule(when, expected):
    system = HybridSystem(
        flow=lambda now, p: {"u": -1.0},
        events=[
            TimeEvent("on", lambda now, p: 0.6, reset=lambda now, p: now.replace(d={"on": 1})),
            Event(
                "low",
                guard=lambda now, p: now.x["u"] - 0.5,
                active=lambda now, p: now.d["on"] == 1,
                when=when,
            ),
        ],
    )
    sol = run(system, {"u": 1.0}, 1.0, d={"on": 0})
    assert names(sol) == expected
    np.testing.assert_allclose(sol.events.t, 0.6, atol=ROUNDING)


def test_an_event_out_of_force_sees_nothing():
    system = HybridSystem(
        flow=lambda now, p: {"u": -1.0},
        events=[
            Event(
                "low", guard=lambda now, p: now.x["u"] - 0.5, active=lambda now, p: now.d["on"] == 1
            )
        ],
    )
    assert run(system, {"u": 1.0}, 1.0, d={"on": 0}).events.count == 0


def test_events_of_an_automaton_hold_in_every_mode():
    system = automaton(
        {
            "up": Mode(
                lambda now, p: {"u": 1.0},
                exits=[
                    Exit(lambda now, p: now.x["u"] - 1.0, to="down", direction="rising", name="top")
                ],
            ),
            "down": Mode(lambda now, p: {"u": -1.0}),
        },
        events=[Event("half", guard=lambda now, p: now.x["u"] - 0.5, direction="either")],
    )
    sol = run(system, {"u": 0.0}, 1.8, mode="up")
    assert names(sol).count("half") == 2
    np.testing.assert_allclose(sol.events.of("half").t, [0.5, 1.5], atol=ROUNDING)


# -- terminal events ----------------------------------------------------------------------------


def test_a_terminal_event_makes_its_reset_and_ends_the_solve():
    sol = run(unit_clock(terminal=True), {"u": 0.0}, 5.0)
    assert sol.result == Result.terminated
    np.testing.assert_allclose(sol.final.t, 1.0, atol=ROUNDING)
    assert sol.final.x["u"] == 0.0


def test_a_terminal_time_event_ends_the_solve_exactly_on_time():
    system = HybridSystem(
        flow=lambda now, p: {"u": 1.0},
        events=[TimeEvent("alarm", lambda now, p: p["T"], terminal=True)],
    )
    stop = lambda T: run(system, {"u": 0.0}, 5.0, p={"T": T})
    assert stop(1.3).result == Result.terminated
    assert stop(1.3).final.t == 1.3
    assert abs(jax.grad(lambda T: stop(T).final.x["u"] ** 2)(1.3) - 2.6) < 1e-12
