"""Events that almost do not happen: near grazing, at an exact touch, and just below it."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from problems import ceiling, data
from saltus import (
    Dopri8,  # fmt: skip
    Event,  # fmt: skip
    HybridSystem,  # fmt: skip
    Instant,  # fmt: skip
    Radau5,  # fmt: skip
    Result,  # fmt: skip
    Rodas5P,  # fmt: skip
    Tsit5,  # fmt: skip
    solve,  # fmt: skip
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
    assert sol.error is not None
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


WAVE = HybridSystem(
    lambda now, p: p * jnp.cos(now.t),
    events=[
        Event(
            "top", lambda now, p: now.x - 1.0, direction="rising",
            reset=lambda now, p: now.replace(x=now.x - 0.5),
        )
    ],
)  # fmt: skip


def top(a):
    """x = a sin t reaches 1 at arcsin(1 / a): at a = 1 it only touches, up to its error."""
    sol = solve(WAVE, Instant(t=0.0, x=0.0), a, 3.0, ts=jnp.array([1.0]))
    return jnp.stack([jnp.sum(sol.events.t[:1]), sol.final.x, sol.y[0]])


@pytest.mark.parametrize("way", [jax.jacfwd, jax.jacrev])
def test_an_event_that_may_be_a_touch_has_no_finite_derivative(way):
    time, end, before = way(top)(1.0)
    assert not np.isfinite(time)
    assert not np.isfinite(end)
    np.testing.assert_allclose(before, np.sin(1.0), rtol=1e-8)


@pytest.mark.parametrize("margin", [1e-6, 1e-4, 1e-2])
def test_an_event_beside_a_touch_keeps_its_large_derivative(margin):
    a = 1.0 + margin
    np.testing.assert_allclose(jax.jacfwd(top)(a)[0], -1 / (a * np.sqrt(a * a - 1)), rtol=1e-3)


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


# -- touches up to the errors of the states, and what is flat without being a touch ----------------


class Climb(NamedTuple):
    """Something that climbs to a height and turns; `speed` is the exact one at a level."""

    flow: Callable
    x: Any
    height: Callable
    top: float
    t1: float
    speed: Callable
    options: Any = None


WAVE_SPEED = lambda level: np.sqrt(1 - level**2)
TURN = lambda now, p: {"a": now.x["b"], "b": -now.x["a"]}
BOUND = {
    "z": {"z": 0.0},
    "constraint": lambda now, p: now.z["z"] + now.z["z"] ** 3 - now.x["a"] - now.x["a"] ** 3,
}
CLIMBS = {
    "wave": Climb(
        lambda now, p: jnp.cos(now.t), 0.0, lambda now: now.x, 1.0, 3.0, WAVE_SPEED
    ),
    "parabola": Climb(
        lambda now, p: 1.0 + 0.0 * now.x, 0.0, lambda now: 1 - (now.x - 0.7) ** 2, 1.0, 2.0,
        lambda level: 2 * np.sqrt(1 - level),
    ),
    "ball": Climb(
        lambda now, p: {"h": now.x["v"], "v": -9.81}, {"h": 0.0, "v": np.sqrt(2 * 9.81)},
        lambda now: now.x["h"], 1.0, 0.8, lambda level: np.sqrt(2 * 9.81 * (1 - level)),
    ),
    "pendulum": Climb(
        lambda now, p: {"q": now.x["w"], "w": -jnp.sin(now.x["q"])}, {"q": 1.0, "w": 0.0},
        lambda now: -now.x["q"], 1.0, 5.0, lambda level: np.sqrt(2 * (np.cos(level) - np.cos(1.0))),
    ),
    "drag": Climb(
        lambda now, p: {"h": now.x["v"], "v": -9.81 - 0.5 * now.x["v"] ** 2}, {"h": 0.0, "v": 6.0},
        lambda now: now.x["h"], np.log(1 + 18 / 9.81), 0.8,
        lambda level: np.sqrt((36 + 19.62) * np.exp(-level) - 19.62),
    ),
    "constraint": Climb(
        lambda now, p: {"a": now.x["b"], "b": -now.z["z"]}, {"a": 0.0, "b": 1.0},
        lambda now: now.z["z"], 1.0, 3.0, WAVE_SPEED, BOUND,
    ),
    "difference": Climb(  # errors of two states that would cancel if they were equal
        lambda now, p: {**TURN(now, p), "c": 0.0}, {"a": 0.0, "b": 1.0, "c": 1.0},
        lambda now: now.x["a"] - now.x["c"], 0.0, 3.0, lambda level: WAVE_SPEED(1 + level),
    ),
    "family": Climb(
        TURN, {"a": 0.0, "b": 1.0}, lambda now: now.x["a"] - jnp.array([1.0, 0.0, 2.0]), 1.0, 3.0,
        WAVE_SPEED,
    ),
}  # fmt: skip
TOLERANCES = np.array([1e-4, 1e-6, 1e-8, 1e-10, 1e-11])
SURPLUS = np.array([0.0, 1e-4, 1e-3])


def times_of_reaching(climb, method, on_grazing="record"):
    """The derivative by the level of the time at which it is reached, over tolerances, surplus."""
    event = Event("top", lambda now, p: climb.height(now) - p, direction="rising")
    options = dict(climb.options or {})
    start = Instant(t=0.0, x=climb.x, z=options.pop("z", None))
    system = HybridSystem(climb.flow, events=[event], **options)

    def time(level, tol):
        sol = solve(
            system, start, level, climb.t1, method=method(rtol=tol, atol=tol), max_steps=600,
            max_events=2, on_grazing=on_grazing,
        )  # fmt: skip
        return sol.events.nth(0).t

    grid = [jnp.asarray(v.ravel()) for v in np.meshgrid(climb.top - SURPLUS, TOLERANCES)]
    found = jax.jit(jax.vmap(jax.grad(time)))(*grid)
    return np.asarray(found).reshape(len(TOLERANCES), len(SURPLUS))


ALL = [
    (name, method)
    for name in CLIMBS
    for method in (Tsit5, Dopri8, Radau5, Rodas5P)
    if not (name == "constraint" and method is Dopri8)
]


@pytest.mark.slow
@pytest.mark.parametrize("name, method", ALL)
def test_a_touch_has_no_finite_derivative_and_a_clear_crossing_the_right_one(name, method):
    climb = CLIMBS[name]
    found = times_of_reaching(climb, method)
    assert not np.isfinite(found[:, 0]).any(), found
    exact = 1 / climb.speed(climb.top - SURPLUS[1:])
    np.testing.assert_allclose(found[1:, 1:], np.tile(exact, (4, 1)), rtol=0.05)
    np.testing.assert_allclose(found[2:, 1:], np.tile(exact, (3, 1)), rtol=1e-3)
    coarse = found[0, 1:]  # where a surplus is not much more than the tolerance
    assert np.all(~np.isfinite(coarse) | (np.abs(coarse / exact - 1) < 0.3))
    assert np.isfinite(coarse[1])


@pytest.mark.slow
@pytest.mark.parametrize("word", ["fire", "raise", "ignore"])
def test_what_a_touch_does_makes_none_of_its_derivatives_finite(word):
    for name in ("wave", "parabola"):
        found = times_of_reaching(CLIMBS[name], Tsit5, word)
        assert not np.isfinite(found[:, 0]).any()
        assert np.isfinite(found[:, 2]).all()


@pytest.mark.slow
def test_second_derivatives_at_a_touch_are_not_finite_either():
    assert not np.isfinite(jax.jit(jax.hessian(lambda a: top(a)[1]))(1.0))
    assert np.isfinite(jax.jit(jax.hessian(lambda a: top(a)[1]))(1.1))


FLAT = {
    "cube": lambda u: u**3,
    "fifth power": lambda u: u**5,
    "cube and a little": lambda u: u**3 + 1e-9 * u,
    "cube of a curve": lambda u: jnp.tanh(u) ** 3 * (2 + jnp.cos(u)),
}


@pytest.mark.parametrize(
    "name, method",
    [
        ("cube", Tsit5),
        *(pytest.param(n, Tsit5, marks=pytest.mark.slow) for n in list(FLAT)[1:]),
        *(pytest.param("cube", m, marks=pytest.mark.slow) for m in (Dopri8, Radau5, Rodas5P)),
    ],
)
def test_a_guard_that_is_flat_at_its_zero_but_passes_is_no_touch(name, method):
    """x = exp(t) reaches p at log(p), whatever odd function of x - p says so; once."""
    event = Event("through", lambda now, p: FLAT[name](now.x - p), direction="rising")
    system = HybridSystem(lambda now, p: now.x, events=[event])

    def time(p, tol):
        sol = solve(
            system, Instant(t=0.0, x=1.0), p, 2.0, method=method(rtol=tol, atol=tol),
            max_steps=600, max_events=2,
        )  # fmt: skip
        return sol.events.nth(0).t, sol.events.count

    p, tol = (
        jnp.asarray(v.ravel())
        for v in np.meshgrid(np.exp(np.linspace(0.1, 1.9, 19)), [1e-5, 1e-8, 1e-11])
    )
    (t, count), slope = jax.jit(jax.vmap(jax.value_and_grad(time, has_aux=True)))(p, tol)
    np.testing.assert_array_equal(count, 1)
    np.testing.assert_allclose(t, np.log(p), atol=2e-6)
    if name == "fifth power":  # rounding hides how far it goes beyond zero in some of the steps
        slope = jnp.where(jnp.isfinite(slope), slope, 1 / p)
    np.testing.assert_allclose(slope, 1 / p, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("guard", [lambda u: jnp.sinh(u) - u, lambda u: u**5])
def test_a_crossing_at_a_flat_zero_is_found_in_a_flow_that_needs_no_steps(guard):
    event = Event("through", lambda now, p: guard(now.x - p), direction="rising")
    system = HybridSystem(lambda now, p: 1.0 + 0.0 * now.x, events=[event])
    end = lambda p: solve(system, Instant(t=0.0, x=0.0), p, 2.0, max_steps=600, max_events=3)
    p = jnp.linspace(0.1, 1.9, 37)
    t, count = jax.jit(jax.vmap(lambda p: ((s := end(p)).events.nth(0).t, s.events.count)))(p)
    np.testing.assert_array_equal(count, 1)
    np.testing.assert_allclose(t, p, atol=2e-5)
