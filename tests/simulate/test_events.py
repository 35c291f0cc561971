"""What an event is: when it fires, in which order, and what is seen of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from problems import ceiling, problem
from saltus import (
    Event,
    Exit,
    HybridSystem,
    Instant,
    Mode,
    Result,
    TimeEvent,
    automaton,
    every,
    solve,
)

G = 9.81
TIGHT = saltus.Tsit5(rtol=1e-10, atol=1e-10)

# Times of events on polynomial motions come out to a few units in the last place.
ROUNDING = 1e-13


def bounce(e):
    return lambda now, p: now.replace(x={"h": now.x["h"], "v": -e * now.x["v"]})


def ball(e=0.8, **more):
    return HybridSystem(
        flow=lambda now, p: {"h": now.x["v"], "v": -G},
        events=[Event("bounce", guard=lambda now, p: now.x["h"], reset=bounce(e))],
        **more,
    )


def run(system, x, t1, t0=0.0, d=None, mode=None, p=None, **options):
    return solve(system, Instant(t=t0, x=x, d=d, mode=mode), p, t1, **{"method": TIGHT, **options})


def names(sol):
    """The names of the events that happened, in order."""
    return [sol.events.names[int(k)] for k in sol.events.which]


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


# -- save times, ends, starts -------------------------------------------------------------------


def kicked(u4, ts):
    """C6: u3' = u4; at u3 = 10 the speed is reversed, at t = 5 for u4 = 2."""
    system = HybridSystem(
        flow=lambda now, p: {"u3": now.x["u4"], "u4": 0.0},
        events=[
            Event(
                "turn",
                guard=lambda now, p: now.x["u3"] - 10.0,
                direction="rising",
                reset=lambda now, p: now.replace(x={"u3": now.x["u3"], "u4": -now.x["u4"]}),
            )
        ],
    )
    return run(system, {"u3": 0.0, "u4": u4}, 6.0, ts=ts)


def test_an_event_at_a_saved_time_saves_the_value_after_it():
    sol = kicked(2.0, jnp.array([4.0, 5.0, 6.0]))
    np.testing.assert_allclose(sol.y["u4"], [2.0, -2.0, -2.0], atol=ROUNDING)
    np.testing.assert_allclose(sol.y["u3"], [8.0, 10.0, 8.0], atol=ROUNDING)


def test_the_derivative_at_a_kinked_save_time_is_one_sided_and_never_an_average():
    slope = jax.grad(lambda u4: kicked(u4, jnp.array([5.0])).y["u3"][0])(2.0)
    assert abs(slope + 5.0) < 1e-12  # of the side that was saved: after the event


def test_left_and_right_limits_at_an_event():
    sol = run(ball(), {"h": 1.0, "v": 0.0}, 0.6)
    t = sol.events.t[0]
    impact = np.sqrt(2 * G)
    np.testing.assert_allclose(sol(t, side="left")["v"], -impact, atol=1e-11)
    np.testing.assert_allclose(sol(t)["v"], 0.8 * impact, atol=1e-11)
    np.testing.assert_allclose(sol.events.before.x["v"], [-impact], atol=1e-11)
    np.testing.assert_allclose(sol.events.after.x["v"], [0.8 * impact], atol=1e-11)


@pytest.mark.parametrize("t0", [100.0, -1e3, 1e6])
def test_times_of_the_log_are_those_of_the_jumps_wherever_the_clock_starts(t0):
    """t0 + tau - t0 is tau up to the rounding of t0, times the slopes here (at most 10)."""
    sol = run(ball(), {"h": 1.0, "v": 0.0}, t0 + 2.0, t0=t0)
    log, rounding = sol.events, 10 * np.finfo(float).eps * abs(t0)
    np.testing.assert_allclose(sol(log.t, side="left")["v"], log.before.x["v"], atol=rounding)
    np.testing.assert_allclose(sol(log.t)["v"], log.after.x["v"], atol=rounding)
    saved = run(ball(), {"h": 1.0, "v": 0.0}, t0 + 2.0, t0=t0, ts=log.t)
    np.testing.assert_allclose(saved.y["v"], log.after.x["v"], atol=rounding)


@pytest.mark.parametrize("t0", [100.0, -1e3, 1e6])
def test_the_time_of_the_end_can_be_read_wherever_the_clock_starts(t0):
    system = HybridSystem(
        flow=lambda now, p: {"h": now.x["v"], "v": -G},
        events=[Event("floor", guard=lambda now, p: now.x["h"], terminal=True)],
    )
    for h in (1.0, 2.0, 3.0, 4.0):
        sol = run(system, {"h": h, "v": 0.0}, t0 + 2.0, t0=t0)
        np.testing.assert_allclose(sol(sol.final.t)["v"], sol.final.x["v"], rtol=1e-8)


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


def test_time_events_at_the_start_belong_to_the_interval_before():
    """Half-open intervals: ticks at 0, 1, 2 in (0, 2] are those at 1 and 2."""
    system = HybridSystem(flow=lambda now, p: {"u": 1.0}, events=[TimeEvent("tick", every(1.0))])
    sol = run(system, {"u": 0.0}, 2.0)
    np.testing.assert_array_equal(sol.events.t, [1.0, 2.0])
    again = solve(system, sol.final, None, 3.0, method=TIGHT)
    np.testing.assert_array_equal(again.events.t, [3.0])


def test_a_save_time_at_the_start_saves_the_start_and_at_the_end_the_end():
    sol = run(ball(), {"h": 1.0, "v": 0.0}, 0.6, ts=jnp.array([0.0, 0.6]))
    assert sol.y["h"][0] == 1.0
    np.testing.assert_allclose(sol.y["h"][1], sol.final.x["h"], atol=ROUNDING)


def test_an_empty_interval_is_the_start():
    sol = run(ball(), {"h": 1.0, "v": 0.0}, 0.0)
    assert sol.result == Result.success
    assert sol.final.x["h"] == 1.0 and sol.final.t == 0.0


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


# -- time events --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["kicked_ball"])
def test_time_events_depend_on_parameters_and_on_the_state_that_planned_them(answers, name):
    got, exact = answers(name), problem(name).exact
    np.testing.assert_allclose(got.value["t_kick"], exact.values["t_kick"], atol=1e-12)
    for a, derivative in zip(problem(name).p, got.reverse["t_kick"], strict=True):
        np.testing.assert_allclose(derivative, exact.gradients["t_kick"][a], atol=1e-11)


def test_a_planned_time_in_the_past_is_none():
    system = HybridSystem(
        flow=lambda now, p: {"u": 1.0}, events=[TimeEvent("never", lambda now, p: now.t - 1.0)]
    )
    assert run(system, {"u": 0.0}, 2.0).events.count == 0


def test_plans_are_made_anew_after_every_jump():
    """An alarm 0.4 after the last jump: the knock at 0.3 postpones it from 0.4 to 0.7."""
    system = HybridSystem(
        flow=lambda now, p: {"u": 1.0},
        events=[
            TimeEvent("alarm", lambda now, p: now.t + 0.4),
            Event("knock", guard=lambda now, p: now.x["u"] - 0.3, direction="rising"),
        ],
    )
    sol = run(system, {"u": 0.0}, 1.0)
    assert names(sol) == ["knock", "alarm"]
    np.testing.assert_allclose(sol.events.t, [0.3, 0.7], atol=ROUNDING)


def test_inputs_change_exactly_at_their_breakpoints():
    """Order 5 across a step of the input: a segment looked up by t would leave order 1."""
    system = HybridSystem(
        flow=lambda now, p: -now.x + now.u,
        inputs=lambda p: saltus.Steps([0.0, 0.37, 0.81], [1.0, -2.0, 0.5]),
    )
    sol = run(system, 0.0, 1.0, method=saltus.Dopri8(control=saltus.Fixed(0.25)))
    x = 0.0
    for u, span in ((1.0, 0.37), (-2.0, 0.44), (0.5, 0.19)):
        x = u + (x - u) * np.exp(-span)
    np.testing.assert_allclose(sol.final.x, x, atol=1e-12)
    assert sol.events.count == 0  # breakpoints are the solver's business, not the model's events


# -- families -----------------------------------------------------------------------------------

HEIGHTS = np.array([1.0, 0.5, 2.0])


def family(e):
    def reset(now, p):
        v = now.x["v"]
        return now.replace(x={"h": now.x["h"], "v": v.at[now.member].multiply(-p["e"])})

    return HybridSystem(
        flow=lambda now, p: {"h": now.x["v"], "v": -G * jnp.ones(3)},
        events=[Event("bounce", guard=lambda now, p: now.x["h"], reset=reset)],
    )


def test_a_family_of_guards_fires_member_by_member():
    start = {"h": jnp.array(HEIGHTS), "v": jnp.zeros(3)}
    sol = run(family(0.8), start, 0.8, p={"e": 0.8})
    falls = np.sqrt(2 * HEIGHTS / G)
    np.testing.assert_array_equal(sol.events.member, [1, 0, 2])
    np.testing.assert_allclose(sol.events.t, falls[[1, 0, 2]], atol=ROUNDING)
    single = [run(ball(0.8), {"h": h, "v": 0.0}, 0.8).final.x["h"] for h in HEIGHTS]
    np.testing.assert_allclose(sol.final.x["h"], single, atol=1e-11)


def test_members_of_a_family_that_fire_together_are_all_logged():
    start = {"h": jnp.ones(3), "v": jnp.zeros(3)}
    sol = run(family(0.8), start, 0.6, p={"e": 0.8})
    np.testing.assert_array_equal(sol.events.member, [0, 1, 2])
    assert np.ptp(sol.events.t) < ROUNDING
    assert np.all(sol.final.x["h"] > 0)


def test_derivatives_go_through_the_member_that_fired():
    def last(p, h):
        return run(family(0.8), {"h": h, "v": jnp.zeros(3)}, 0.8, p=p).final.x["h"][1]

    def formula(p, h):
        fall = jnp.sqrt(2 * h[1] / G)
        s = 0.8 - fall
        return p["e"] * G * fall * s - G * s**2 / 2

    at = ({"e": 0.8}, jnp.array(HEIGHTS))
    got, exact = jax.grad(last, (0, 1))(*at), jax.grad(formula, (0, 1))(*at)
    np.testing.assert_allclose(got[0]["e"], exact[0]["e"], atol=1e-11)
    np.testing.assert_allclose(got[1], exact[1], atol=1e-11)


# -- the log ------------------------------------------------------------------------------------


def test_the_log_is_padded_inside_jit_and_exact_outside():
    f = lambda: run(ball(), {"h": 1.0, "v": 0.0}, 1.0, max_events=8).events
    outside, inside = f(), jax.jit(f)()
    assert outside.t.shape == (1,)
    assert inside.t.shape == (8,)
    assert int(inside.count) == 1
    assert np.all(np.isnan(inside.t[1:])) and np.all(np.asarray(inside.which[1:]) == -1)
    np.testing.assert_allclose(inside.t[0], outside.t[0], rtol=1e-15)


def test_padding_does_not_poison_the_gradient_of_what_happened():
    @jax.jit
    @jax.grad
    def f(h):
        sol = run(ball(), {"h": h, "v": 0.0}, 1.0, max_events=8)
        return jnp.nansum(sol.events.t)

    assert abs(f(1.0) - 0.5 * np.sqrt(2.0 / G)) < 1e-12


@pytest.mark.parametrize("name", ["memory"])
def test_modes_and_discrete_states_are_in_the_log(answers, name):
    sol = answers(name).solution
    np.testing.assert_array_equal(sol.events.before.d["x_sw"], [0.0])
    np.testing.assert_allclose(sol.events.after.d["x_sw"], [1.0], atol=ROUNDING)
    assert int(sol.events.before.mode[0]) == 0 and int(sol.events.after.mode[0]) == 1


def test_an_event_that_did_not_happen_is_nan_and_not_the_last_one():
    log = run(ball(), {"h": 1.0, "v": 0.0}, 1.0).events.of("bounce")
    first = log.nth(0)
    assert abs(first.t - np.sqrt(2 / G)) < ROUNDING
    assert abs(first.before.x["v"] + np.sqrt(2 * G)) < 1e-12
    assert np.isnan(log.nth(5).t) and np.isnan(log.nth(5).after.x["v"])
    assert int(log.nth(5).count) == 0


def test_a_family_of_165_is_the_same_program_as_one_of_15():
    """Members are entries of arrays: what is compiled does not grow with their number."""

    def lines(n):
        falling = HybridSystem(
            flow=lambda now, p: {"h": now.x["v"], "v": -G * jnp.ones(n)},
            events=[
                Event(
                    "bounce",
                    guard=lambda now, p: now.x["h"],
                    reset=lambda now, p: now.replace(
                        x={"h": now.x["h"], "v": now.x["v"].at[now.member].multiply(-p)}
                    ),
                )
            ],
        )

        def height(e):
            start = Instant(t=0.0, x={"h": 1.0 + jnp.arange(n) / n, "v": jnp.zeros(n)})
            return solve(falling, start, e, 1.0).final.x["h"][0]

        return len(jax.jit(jax.value_and_grad(height)).lower(0.8).as_text().splitlines())

    assert lines(165) == lines(15)
