"""Which crossings are seen: several in one step, either order, at the ends, at multiple zeros."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, Result, Tsit5, solve

LONG = saltus.Dopri8(rtol=1e-3, atol=1e-3, first_step=2.0)  # the whole interval in one step

# Times of events on polynomial motions come out to a few units in the last place.
ROUNDING = 1e-13


def clock(*events, **more):
    """u is the time; what else there is stands still."""
    return HybridSystem(lambda now, p: {k: 1.0 if k == "u" else 0.0 for k in now.x}, events=events)


def run(system, x, t1, p=None, t0=0.0, method=LONG, **options):
    return solve(system, Instant(t=t0, x=x), p, t1, method=method, **options)


def names(sol):
    """The names of the events that happened, in order."""
    return [sol.events.names[int(k)] for k in sol.events.which]


# -- several in one step ------------------------------------------------------------------------

CUBIC = clock(
    Event(
        "root",
        lambda now, p: (now.x["u"] - p[0]) * (now.x["u"] - p[1]) * (now.x["u"] - p[2]),
        direction="either",
    )
)


@pytest.mark.parametrize(
    "roots",
    [(0.3, 0.5, 0.7), (0.3, 0.301, 0.9), (0.3, 0.8999, 0.9), (0.49, 0.5, 0.51), (0.1, 0.11, 0.12)],
)
def test_all_three_roots_of_a_cubic_in_one_step_are_found(roots):
    sol = run(CUBIC, {"u": 0.0}, 1.0, p=jnp.array(roots))
    np.testing.assert_allclose(sol.events.t, roots, atol=1e-13)


@pytest.mark.parametrize("w", [1e-1, 1e-3, 1e-6])
@pytest.mark.parametrize("direction, side", [("falling", -1), ("rising", 1)])
def test_each_of_two_crossings_inside_a_step_is_found_alone_too(w, direction, side):
    """A dip of width 2 w below zero (C13), watched in one direction, in very long steps."""
    dip = Event("cross", lambda now, p: (now.x["u"] - 1) ** 2 - p**2, direction=direction)
    sol = run(clock(dip), {"u": 0.0}, 2.0, p=w)
    np.testing.assert_allclose(sol.events.t, [1.0 + side * w], atol=ROUNDING + 2e-15 / w)


def test_the_reset_at_the_first_of_two_crossings_prevents_the_second():
    system = HybridSystem(
        flow=lambda now, p: {"y": 2.0 * (now.t - 1.0)},
        events=[
            Event(
                "cross",
                guard=lambda now, p: now.x["y"],
                direction="either",
                reset=lambda now, p: now.replace(x={"y": 1.0}),
            )
        ],
    )
    sol = run(system, {"y": 1.0 - 1e-6}, 2.0, method=Tsit5())
    np.testing.assert_allclose(sol.events.t, [1.0 - 1e-3], atol=1e-11)
    np.testing.assert_allclose(sol.final.x["y"], 2.0 - 1e-6, atol=1e-11)


def phase(now, p):
    """The cosine of t + c, from an oscillator."""
    return jnp.cos(p["c"]) * now.x["x"] - jnp.sin(p["c"]) * now.x["v"]


SHAPES = {
    "sine": (lambda now, p: 1 + phase(now, p) - p["d"], lambda d: np.arccos(1 - d)),
    "exp": (
        lambda now, p: jnp.exp(phase(now, p)) - jnp.exp(-1.0) - p["d"],
        lambda d: np.arccos(-np.log(np.exp(-1.0) + d)),
    ),
    "bell": (
        lambda now, p: 1 - p["d"] - jnp.exp(-((now.t + p["c"] - jnp.pi) ** 2)),
        lambda d: np.sqrt(-np.log1p(-d)),
    ),
}


@pytest.mark.slow
def test_dips_of_guards_that_are_no_polynomials_are_seen_wherever_they_lie():
    """Depths of 1e-1, 1e-3 and 1e-6 at 40 places, with default tolerances. A crossing of a dip of
    depth d has a speed of about sqrt(2 d): an error of 1e-8 in the states moves it by that much
    divided by the speed."""
    system = HybridSystem(
        lambda now, p: {"x": -now.x["v"], "v": now.x["x"]},
        events=[Event(name, guard, direction="either") for name, (guard, _) in SHAPES.items()],
    )

    @jax.jit
    @jax.vmap
    def crossings(c, d):
        start = Instant(t=0.0, x={"x": 1.0, "v": 0.0})
        log = solve(system, start, {"c": -c, "d": d}, 6.0, max_steps=500, max_events=12).events
        return {name: (log.of(name).t[:2], log.of(name).count) for name in SHAPES}

    c, d = (v.ravel() for v in np.meshgrid(np.linspace(-1.4, 1.4, 40), [1e-1, 1e-3, 1e-6]))
    for name, (t, count) in crossings(jnp.asarray(c), jnp.asarray(d)).items():
        np.testing.assert_array_equal(count, 2)
        width = SHAPES[name][1](d)
        error = np.abs(t.T - (np.pi + c + np.stack([-width, width])))
        assert np.all(error < 3e-8 / np.sqrt(d)), name


def test_dips_are_seen_where_the_flow_needs_no_steps():
    """Guards of the clock while u' = 1 is followed in steps as long as the interval."""
    away = lambda now, p: now.t - p["c"] - 3
    shapes = {
        "sine": lambda now, p: 1 - jnp.cos(away(now, p)) - p["d"],
        "quartic": lambda now, p: away(now, p) ** 4 + away(now, p) ** 2 - p["d"],
    }
    system = clock(*[Event(name, guard, direction="either") for name, guard in shapes.items()])

    @jax.jit
    @jax.vmap
    def crossings(c, d):
        sol = run(system, {"u": 0.0}, 6.0, {"c": c, "d": d}, method=Tsit5(), max_events=8)
        return {name: sol.events.of(name).count for name in shapes}

    c, d = np.meshgrid(np.linspace(-1.4, 1.4, 40), [1e-1, 1e-3, 1e-6, 1e-8])
    for count in crossings(jnp.asarray(c.ravel()), jnp.asarray(d.ravel())).values():
        np.testing.assert_array_equal(count, 2)


def test_a_guard_with_cancellation_is_logged_once_per_crossing():
    """exp(-s) + s - 1 - d is noise of 1e-16 where it is zero, and its slope there is sqrt(2 d): the
    noise moves a root by 1e-16 / sqrt(2 d), and makes none. The flow needs no steps at all."""
    s = lambda now, p: now.x["u"] - p["c"] - 3
    curve = lambda now, p: jnp.exp(-s(now, p)) + s(now, p) - 1 - p["d"]
    system = clock(Event("cross", curve, direction="either"))
    for d in (1e-2, 1e-4, 1e-6, 1e-8):
        for c in np.linspace(-1.2, 1.2, 13):
            sol = run(system, {"u": 0.0}, 6.0, p={"c": c, "d": d}, method=Tsit5())
            assert sol.events.count == 2
            place = np.asarray(sol.events.t) - c - 3
            assert np.all(np.abs(np.expm1(-place) + place - d) < 1e-14)
            assert place[0] < 0 < place[1]


def test_a_crossing_at_a_triple_zero_is_logged_once():
    """(u - q)^3 is zero to rounding within 1e-5 of q."""
    system = clock(Event("cross", lambda now, p: (now.x["u"] - p) ** 3, direction="either"))
    for q in (0.5, 0.3, 0.123):
        sol = run(system, {"u": 0.0}, 1.0, p=q, method=Tsit5())
        np.testing.assert_allclose(sol.events.t, [q], atol=1e-5)


# -- order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_first_crossing_in_time_wins_in_either_order_of_declaration(order):
    """One long step contains both crossings; each reset would undo the other."""
    again = lambda n: lambda now, p: now.replace(x={"u": 0.0, "n": now.x["n"] + n})
    late = Event("late", lambda now, p: now.x["u"] - 0.6, again(10.0), direction="rising")
    early = Event("early", lambda now, p: now.x["u"] - 0.4, again(1.0), direction="rising")
    sol = run(clock(*[(early, late)[i] for i in order]), {"u": 0.0, "n": 0.0}, 1.0)
    assert names(sol) == ["early", "early"]
    np.testing.assert_allclose(sol.events.t, [0.4, 0.8], atol=ROUNDING)
    assert sol.final.x["n"] == 2.0


def test_crossings_a_billionth_apart_keep_their_order():
    system = clock(
        Event("second", lambda now, p: now.x["u"] - 0.5 - 1e-9, direction="rising"),
        Event("first", lambda now, p: now.x["u"] - 0.5, direction="rising"),
    )
    sol = run(system, {"u": 0.0}, 1.0)
    assert names(sol) == ["first", "second"]
    np.testing.assert_allclose(sol.events.t, [0.5, 0.5 + 1e-9], atol=ROUNDING)


# -- the start ----------------------------------------------------------------------------------

FROM_ZERO = clock(Event("root", lambda now, p: now.x["u"] * (now.x["u"] - p), direction="either"))


@pytest.mark.parametrize("root", [0.5, 1e-3, 1e-6, 1e-9])
def test_a_guard_that_is_zero_at_the_start_still_has_its_later_root(root):
    """The zero at the start is no event, the one after it is, however soon it comes."""
    sol = run(FROM_ZERO, {"u": 0.0}, 1.0, p=root)
    np.testing.assert_allclose(sol.events.t, [root], rtol=1e-12)


def test_a_guard_that_is_zero_at_the_start_and_leaves_for_good_is_no_event():
    assert run(FROM_ZERO, {"u": 0.0}, 1.0, p=-0.5).events.count == 0


def test_a_multiple_zero_at_the_start_hides_no_root_and_makes_none():
    multiple = lambda u, order: jnp.where(order == 2, u**2, u**3)
    system = clock(
        Event(
            "root",
            lambda now, p: multiple(now.x["u"], p["order"]) * (now.x["u"] - p["root"]),
            direction="either",
        )
    )
    for order in (2, 3):
        for root in (0.5, 1e-3, 1e-6):
            sol = run(system, {"u": 0.0}, 1.0, {"order": order, "root": root}, method=Tsit5())
            np.testing.assert_allclose(sol.events.t, [root], rtol=1e-9)


def test_a_terminal_event_that_is_zero_at_the_start_does_not_end_the_solve_there():
    home = Event("home", lambda now, p: now.x["u"], direction="rising", terminal=True)
    sol = run(clock(home), {"u": 0.0}, 1.0)
    assert sol.result == Result.success
    assert sol.events.count == 0


# -- the end ------------------------------------------------------------------------------------

LEVEL = clock(
    Event(
        "one",
        lambda now, p: now.x["u"] - p,
        direction="rising",
        reset=lambda now, p: now.replace(x={"u": 0.0}),
    )
)


@pytest.mark.parametrize("t1", [1.0, 0.1, 1 / 3, np.pi, 1e-3, 1e5])
def test_an_event_at_the_end_time_belongs_to_the_interval(t1):
    """u reaches the level t1 at t1, to rounding; its reset is made, and nothing is left of it for
    a solve that goes on from there."""
    sol = run(LEVEL, {"u": 0.0}, t1, p=t1)
    assert names(sol) == ["one"]
    assert sol.final.t == t1 and abs(sol.final.x["u"]) < ROUNDING * t1
    again = solve(LEVEL, sol.final, t1, 1.5 * t1, method=LONG)
    assert again.events.count == 0
    np.testing.assert_allclose(again.final.x["u"], 0.5 * t1, rtol=1e-12)


def test_five_roots_in_two_long_steps_are_all_found():
    """Nothing moves but time, so steps are as long as guards allow."""
    times = [0.653095767, 0.766046908, 1.070742445, 1.238504836, 1.636960019]
    log = HybridSystem(
        lambda now, p: 0.0 * now.x,
        events=[Event("root", lambda now, p: -0.018 * jnp.prod(now.t - p), direction="either")],
    )
    sol = solve(log, Instant(t=0.0, x=0.0), jnp.asarray(times), 2.079644452)
    np.testing.assert_allclose(sol.events.t, times, atol=1e-9)


@pytest.mark.parametrize("power", [3, 5])
@pytest.mark.parametrize("place", [0.2, 0.37, 0.61, 0.8])
def test_a_guard_passes_a_multiple_zero_whatever_its_reset_leaves_alone(power, place):
    """It is not at rest there, though its slope is zero and it goes on to its firing side."""
    count = Event(
        "count",
        guard=lambda now, p: (now.x["s"] - p) ** power,
        direction="rising",
        reset=lambda now, p: now.replace(d={"n": now.d["n"] + 1.0}),
    )
    system = HybridSystem(lambda now, p: {"s": 1.0, "y": now.d["n"]}, events=[count])
    start = Instant(t=0.0, x={"s": 0.0, "y": 0.0}, d={"n": 0.0})
    sol = solve(system, start, place, 1.0)
    assert sol.events.count == 1
    np.testing.assert_allclose(sol.final.x["y"], 1 - place, atol=2e-8)
    slope = jax.grad(lambda p: solve(system, start, p, 1.0).final.x["y"])(place)
    np.testing.assert_allclose(slope, -1.0, atol=1e-6)


def test_a_body_that_is_pressed_harder_and_harder_rests_though_nothing_pushes_yet():
    bounce = Event(
        "bounce",
        guard=lambda now, p: now.x["h"],
        reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -p * now.x["v"]}),
    )
    system = HybridSystem(lambda now, p: {"h": now.x["v"], "v": -now.t}, events=[bounce])
    with pytest.raises(saltus.EventError, match="resting_contact"):
        solve(system, Instant(t=0.0, x={"h": 0.0, "v": 0.0}), 0.5, 1.0)
