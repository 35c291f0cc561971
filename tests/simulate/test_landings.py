"""A jump that lands exactly on the guard of another event, and starts on guards.

The guard counts as not yet crossed: its event happens at that instant if, and only if, the guard
leaves zero to the side it fires on, wherever it came from and in whatever order events are written.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from saltus import Event, Exit, HybridSystem, Instant, Mode, Result, automaton, solve

WAYS = [("edge", "falling"), ("edge", "rising"), ("level", "falling"), ("edge", "either")]


def counting(place, ways, ages):
    """Events at x = 1 that count themselves: in force always ("old"), or from the landing on."""
    events = []
    for when, direction in ways:
        for age in ages:
            name = f"{place} {when} {direction} {age}"
            events.append(
                Event(
                    name,
                    guard=lambda now, p: now.x["x"] - 1.0,
                    reset=lambda now, p, name=name: now.replace(d={**now.d, name: now.d[name] + 1}),
                    direction=direction,
                    when=when,
                    active=(lambda now, p: now.d["on"]) if age == "new" else None,
                )
            )
    return events


LAND = Event(
    "land",
    guard=lambda now, p: now.x["clock"] - 1.0,
    direction="rising",
    reset=lambda now, p: now.replace(
        x={**now.x, "x": 1.0 + 0.0 * now.x["x"], "v": p["v"]}, d={**now.d, "on": True}
    ),
)


def flow(now, p):
    return {"x": now.x["v"], "v": p["a"], "clock": 1.0}


@functools.lru_cache
def landing(few):
    """The names of the events, and a function that counts them: at the landing, and in all."""
    ways, ages = (WAYS[::3], ["old"]) if few else (WAYS, ["old", "new"])
    before, after = counting("before", ways, ages), counting("after", ways, ages)
    names = [e.name for e in (*before, *after)]
    system = HybridSystem(flow, events=[*before, LAND, *after])

    @jax.jit
    def landed(x0, v, a):
        count = {"on": False, **dict.fromkeys(names, 0)}
        start = Instant(t=0.0, x={"x": x0, "v": 0.0, "clock": 0.0}, d=count)
        sol = solve(system, start, {"v": v, "a": a}, 1.5, max_steps=128, max_events=64)
        now = jnp.abs(sol.events.t - 1.0) < 1e-12
        at = [jnp.sum(now & (sol.events.which == sol.names.index(n))) for n in names]
        return jnp.stack(at), jnp.stack([sol.last.d[n] for n in names]), sol.result

    return names, landed


def check_landing(few, side, v, a):
    names, landed = landing(few)
    at, total, result = landed(1.0 + 3.0 * side, v, a)
    leaving, fired = np.sign(v or a), 0
    for name, here, whole in zip(names, at, total, strict=True):
        _, when, direction, age = name.split()
        if direction == "either":  # across: to the other side than that it came from
            want = int(leaving == -side and age == "old")
        else:
            want = int(leaving == {"falling": -1, "rising": 1}[direction])
            fired += want
        started = int(when == "level" and age == "old" and side < 0)  # beyond zero at the start
        assert (int(here), int(whole)) == (want, want + started), name
    # without speed, a reset that moves nothing leaves the state pressed against the guard
    rests = fired and v == 0.0
    assert Result(int(result)) == (Result.resting_contact if rests else Result.success)


SIDES = pytest.mark.parametrize("side", [+1, -1], ids=["from above", "from below"])
LEAVING = pytest.mark.parametrize(
    "v, a", [(-1.0, 0.0), (1.0, 0.0), (0.0, 0.0), (0.0, -2.0), (0.0, 2.0)],
    ids=["falls", "rises", "rests", "bends down", "bends up"],
)  # fmt: skip


@SIDES
@LEAVING
def test_a_landing_fires_what_then_leaves_to_its_firing_side(side, v, a):
    check_landing(True, side, v, a)


@pytest.mark.slow
@SIDES
@LEAVING
def test_a_landing_does_so_for_every_kind_and_in_all_orders(side, v, a):
    check_landing(False, side, v, a)


# -- contacts: their resets keep the state on its side --------------------------------------------


def bounced(order, restitution=1.0):
    """A wall at x = 1 that is hit from above, and a landing on it at t = 1."""
    wall = Event(
        "wall",
        guard=lambda now, p: now.x["x"] - 1.0,
        reset=lambda now, p: now.replace(x={**now.x, "v": -restitution * now.x["v"]}),
        when="contact",
    )
    events = [wall, LAND] if order == "before" else [LAND, wall]
    return HybridSystem(flow, events=events)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["before", "after"])
def test_a_landing_on_a_contact_bounces_if_it_is_pushed_into_it(order):
    system = bounced(order)

    @jax.jit
    def run(v):
        start = Instant(t=0.0, x={"x": 3.0, "v": 0.0, "clock": 0.0}, d={"on": False})
        sol = solve(system, start, {"v": v, "a": 0.0}, 1.5, max_steps=64, max_events=8)
        return sol.final.x["x"], sol.events.of("wall").count, sol.result

    for v, hits in ((-1.0, 1), (1.0, 0), (0.0, 0)):
        x, count, result = run(v)
        assert Result(int(result)) == Result.success
        assert int(count) == hits
        np.testing.assert_allclose(x, 1.0 + 0.5 * abs(v), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["before", "after"])
def test_a_landing_on_a_contact_that_is_pressed_against_it_rests(order):
    """Without speed, accelerated into the wall: nothing moves, and the solve says so."""
    start = Instant(t=0.0, x={"x": 5.0, "v": 0.0, "clock": 0.0}, d={"on": False})
    sol = solve(bounced(order), start, {"v": 0.0, "a": -2.0}, 1.5, throw=False)
    assert Result(int(sol.result)) == Result.resting_contact
    np.testing.assert_allclose(sol.last.t, 1.0, rtol=1e-12)


# -- starts on a guard, and modes entered on one --------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("when", ["edge", "level", "contact"])
@pytest.mark.parametrize("v, fires", [(-1.0, 1), (1.0, 0), (0.0, 0)])
def test_a_start_on_a_guard_fires_if_it_leaves_to_the_firing_side(when, v, fires):
    hit = Event(
        "hit",
        guard=lambda now, p: now.x["x"],
        reset=lambda now, p: now.replace(x={"x": now.x["x"], "v": -now.x["v"]}),
        when=when,
    )
    system = HybridSystem(lambda now, p: {"x": now.x["v"], "v": 0.0}, events=[hit])
    sol = solve(system, Instant(t=0.0, x={"x": 0.0, "v": v}), None, 1.0)
    assert sol.events.count == fires
    np.testing.assert_allclose(sol.final.x["x"], abs(v), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["edge", "level"])
@pytest.mark.parametrize("speed, end", [(1.0, "c"), (-1.0, "b")])
def test_a_mode_entered_on_the_guard_of_an_exit_is_left_if_it_leads_there(when, speed, end):
    """a -> b at x = 1, where the exit of b to c is exactly zero."""
    level = lambda now, p: now.x - 1.0
    system = automaton(
        {
            "a": Mode(lambda now, p: 1.0, exits=[Exit(level, to="b", direction="rising")]),
            "b": Mode(lambda now, p: p, exits=[Exit(level, to="c", direction="rising", when=when)]),
            "c": Mode(lambda now, p: 0.0),
        }
    )
    sol = solve(system, Instant(t=0.0, x=0.0, mode="a"), speed, 2.0)
    assert sol.modes[int(sol.final.mode)] == end
    np.testing.assert_allclose(sol.events.t, [1.0] * (1 + (end == "c")), rtol=1e-12)
