"""What is seen of events: values on both sides of them, planned times, families, the log."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from bouncing import ROUNDING, TIGHT, G, ball, names, run
from problems import problem
from saltus import (
    Event,
    HybridSystem,
    Instant,
    Result,
    TimeEvent,
    every,
    solve,
)

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
