"""Events that almost do not happen: near grazing, at an exact touch, and just below it."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from problem import data
from problems_balls import ceiling
from saltus import (
    Event,
    HybridSystem,
    Instant,
    Result,
    Tsit5,
    solve,
)

TOL = 1e-9
METHOD = Tsit5(rtol=TOL, atol=TOL)
TRUSTED, DEGRADED, UNTRUSTED = range(3)
GRAVITY = 9.81
AT_GRAZING = np.sqrt(2 * np.longdouble(GRAVITY))  # the speed that just reaches the ceiling of C4
MARGINS = 10.0 ** -np.arange(1.0, 8.01, 0.25)

# -- a throw to a ceiling -------------------------------------------------------------------------


@cache
def thrown() -> dict[str, np.ndarray]:
    """C4 for speeds above and below grazing: what one compiled program says of each."""

    def lane(speed):
        def hit(v0):
            start = Instant(t=0.0, x={"x": 0.0, "v": v0})
            options = {"method": METHOD, "throw": False, "max_steps": 64, "max_events": 2}
            sol = solve(ceiling("0.1").system, start, None, 0.9, **options)
            return sol.events.t[0], sol

        (t, sol), slope = jax.value_and_grad(hit, has_aux=True)(speed)
        guard = sol.certificate.guards.distance[0]
        return t, slope, sol.events.count, sol.certificate.level, guard, sol.stats.touches

    margins = np.concatenate([MARGINS, -MARGINS, [-1e-10, -1e-12]])
    speeds = np.asarray((1 + margins.astype(np.longdouble)) * AT_GRAZING, float)
    found = jax.jit(lambda v: jax.lax.map(lane, v))(speeds)
    names = ("t", "slope", "count", "level", "distance", "touches")
    named = dict(zip(names, map(np.asarray, found), strict=True))
    return {"margin": margins, "speed": speeds, **named}


def above() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Lanes that reach the ceiling, with the exact time and its derivative."""
    found = {k: v[: len(MARGINS)] for k, v in thrown().items()}
    v0 = found["speed"].astype(np.longdouble)
    speed = np.sqrt(v0**2 - AT_GRAZING**2)
    t = (v0 - speed) / np.longdouble(GRAVITY)
    return found, np.asarray(t, float), np.asarray(-t / speed, float)


def test_the_closed_form_is_that_of_the_reference():
    """The table of C4 holds margins 0.1 to 1e-8, with 20 digits."""
    for margin, row in data("closed_forms")["cases"]["C4"]["table_by_margin_m"].items():
        place = np.argmin(np.abs(MARGINS - float(margin)))
        _, t, slope = above()
        # speeds are rounded to double: dt/dv0 = -720 and d2t/dv0^2 = 1e9 at the smallest margin
        np.testing.assert_allclose(t[place], float(row["t_hit"]), atol=1e-12)
        np.testing.assert_allclose(slope[place], float(row["dt_dv0"]), rtol=1e-8)


def test_a_hit_near_grazing_is_found_at_its_time():
    found, t, slope = above()
    np.testing.assert_array_equal(found["count"], 1)
    assert np.all(np.abs(found["t"] - t) < TOL * np.maximum(np.abs(slope), 1))


def test_the_gradient_of_a_hit_is_right_where_it_is_trusted():
    found, _, slope = above()
    error = np.abs(found["slope"] / slope - 1)
    assert np.all(error[found["level"] == TRUSTED] < 1e-6)


def test_trust_ends_as_a_hit_comes_close_to_grazing_and_does_not_come_back():
    found, _, _ = above()
    level = found["level"]  # from far to close
    assert level[0] == TRUSTED
    assert level[-1] == UNTRUSTED
    assert np.all(np.diff(level) >= 0), level


def test_below_grazing_nothing_is_hit():
    found = thrown()
    below = found["margin"] < 0
    np.testing.assert_array_equal(found["count"][below], 0)
    assert found["level"][np.argmin(np.abs(found["margin"] + 0.1))] == TRUSTED


def test_a_miss_within_the_error_of_the_solution_is_never_trusted():
    """The apex is 2 |margin| below the ceiling, at height 1, where rtol and atol leave 2e-9."""
    found = thrown()
    close = (found["margin"] < 0) & (-2 * found["margin"] < 2 * TOL)
    assert close.sum() >= 2
    assert np.all(found["level"][close] == UNTRUSTED)


def test_the_certificate_tells_by_how_much_a_guard_was_missed():
    found = thrown()
    below = found["margin"] < -1e-6
    np.testing.assert_allclose(found["distance"][below], -2 * found["margin"][below], rtol=0.06)


# -- a touch ---------------------------------------------------------------------------------------
#
# One system for all of them, compiled once: which guard, and which direction, are parameters.


def _guard(now, p):
    bowl, wave = now.x["y"], 1 - jnp.cos(now.x["u"] - 1.0)
    return p["bowl"] * bowl + p["wave"] * wave + p["motion"] * (1 - now.x["c"]) + p["lift"]


WAYS = ("falling", "rising", "either")
TOUCH = HybridSystem(
    lambda now, p: {"y": 2.0 * (now.t - 1.0), "u": 1.0, "c": -now.x["s"], "s": now.x["c"]},
    events=[
        Event(way, _guard, direction=way, active=lambda now, p, k=k: p["way"] == k)
        for k, way in enumerate(WAYS)
    ],
)
# y = (t - 1)^2; 1 - cos(t - 1), no polynomial; cos(t - 1) from an oscillator, with its error
START = Instant(t=0.0, x={"y": 1.0, "u": 0.0, "c": np.cos(1.0), "s": -np.sin(1.0)})
PLAIN = {"bowl": 0.0, "wave": 0.0, "motion": 0.0, "lift": 0.0, "way": 0}
TOUCHES = {
    "bowl": {**PLAIN, "bowl": 1.0},
    "bowl, from below": {**PLAIN, "bowl": -1.0, "way": 1},
    "bowl, either way": {**PLAIN, "bowl": 1.0, "way": 2},
    "wave": {**PLAIN, "wave": 1.0},
    "wave, from below": {**PLAIN, "wave": -1.0, "way": 1},
}
# A touch is found where the slope of the guard is zero to rounding.
PLACE = 1e-8


@cache
def touching(name, on_grazing="record"):
    options = {"method": METHOD, "on_grazing": on_grazing, "throw": False}
    return solve(TOUCH, START, TOUCHES[name], 2.0, **options)


@pytest.mark.parametrize("name", TOUCHES)
def test_a_touch_is_recorded_and_is_no_event(name):
    sol = touching(name)
    assert sol.result == Result.success
    assert sol.stats.touches == 1
    assert sol.events.count == 0


@pytest.mark.parametrize("name", TOUCHES)
def test_nothing_has_a_derivative_where_a_guard_touches_zero(name):
    certificate = touching(name).certificate
    assert certificate.verdict == "UNTRUSTED"
    assert certificate.reasons[0] == "a guard touches zero"


def test_a_touch_of_a_computed_motion_is_never_trusted():
    """The level is the amplitude of an oscillator: the error of the solution decides."""
    sol = solve(TOUCH, START, {**PLAIN, "motion": 1.0}, 2.0, method=METHOD)
    assert sol.certificate.verdict == "UNTRUSTED"


@pytest.mark.parametrize("name", TOUCHES)
def test_a_touch_may_be_an_error(name):
    sol = touching(name, "raise")
    assert sol.result == Result.grazing
    assert abs(float(sol.last.t) - 1.0) < PLACE
    assert "touches zero" in str(sol.error)


@pytest.mark.parametrize("name", TOUCHES)
def test_a_touch_may_be_an_event(name):
    sol = touching(name, "fire")
    assert sol.result == Result.success
    np.testing.assert_allclose(sol.events.t, [1.0], atol=PLACE)


def test_the_time_of_an_event_at_a_touch_has_no_finite_derivative():
    def time(lift):
        p = {**TOUCHES["bowl"], "lift": lift}
        return solve(TOUCH, START, p, 2.0, method=METHOD, on_grazing="fire").events.t[0]

    assert not np.isfinite(jax.grad(time)(0.0))


def test_a_touch_may_be_ignored():
    """The guard is then no event here; that a gradient would jump beside it is still said."""
    assert touching("bowl", "ignore").certificate.verdict == "DEGRADED"


@pytest.mark.parametrize(
    "lift, count, touches", [(-1e-2, 2, 0), (-1e-6, 2, 0), (0.0, 0, 1), (1e-6, 0, 0), (1e-2, 0, 0)]
)
def test_crossing_touch_and_miss_are_told_apart(lift, count, touches):
    p = {**TOUCHES["bowl, either way"], "lift": lift}
    sol = solve(TOUCH, START, p, 2.0, method=METHOD)
    assert sol.events.count == count
    assert sol.stats.touches == touches


FAMILY = HybridSystem(
    lambda now, p: {"y": 2.0 * (now.t - 1.0)},
    events=[Event("touch", lambda now, p: now.x["y"] + p)],
)


@pytest.mark.parametrize("lifts, member", [([0.5, 0.0, 0.3], None), ([0.5, 0.0, -0.25], 2)])
def test_a_member_of_a_family_touches_and_the_others_do_what_they_do(lifts, member):
    run = lambda word: solve(
        FAMILY, Instant(t=0.0, x={"y": 1.0}), jnp.array(lifts), 2.0, method=METHOD, on_grazing=word,
        throw=False,
    )  # fmt: skip
    crossing = [] if member is None else [(0.5, member)]
    for word, expected in (("record", crossing), ("fire", [*crossing, (1.0, 1)])):
        sol = run(word)
        assert sol.stats.touches == 1
        np.testing.assert_allclose(sol.events.t, [t for t, _ in expected], atol=PLACE)
        np.testing.assert_array_equal(sol.events.member, [m for _, m in expected])
    assert run("raise").result == Result.grazing
