"""Touches up to the errors of the states, and guards that are flat at a zero but pass it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from saltus import (
    Dopri8,
    Event,
    HybridSystem,
    Instant,
    Radau5,
    Rodas5P,
    Tsit5,
    solve,
)

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
        exact = 1 / CLIMBS[name].speed(CLIMBS[name].top - SURPLUS[2])
        np.testing.assert_allclose(found[1:, 2], exact, rtol=0.05)


@pytest.mark.slow
def test_second_derivatives_at_a_touch_are_not_finite_either():
    assert not np.isfinite(jax.jit(jax.hessian(lambda a: top(a)[1]))(1.0))
    # a sin(3) - 1/2 is linear in a
    np.testing.assert_allclose(jax.jit(jax.hessian(lambda a: top(a)[1]))(1.1), 0.0, atol=1e-6)


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
