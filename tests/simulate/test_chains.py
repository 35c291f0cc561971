"""Jumps at one instant: resets that land on guards, cross them, or keep triggering each other."""

import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from problems import problem
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
from saltus.base.results import EventError

G = 9.81
TIGHT = saltus.Tsit5(rtol=1e-10, atol=1e-10)

# Times of events on polynomial motions come out to a few units in the last place.
ROUNDING = 1e-13


def run(system, x, t1, t0=0.0, d=None, mode=None, p=None, **options):
    return solve(system, Instant(t=t0, x=x, d=d, mode=mode), p, t1, **{"method": TIGHT, **options})


def names(sol):
    """The names of the events that happened, in order."""
    return [sol.events.names[int(k)] for k in sol.events.which]


# -- resets that land on guards -----------------------------------------------------------------


def test_a_reset_that_lands_exactly_on_its_own_guard_does_not_fire_it_again():
    snap = lambda now, p: now.replace(x={"h": 0.0, "v": -0.5 * now.x["v"]})
    system = HybridSystem(
        flow=lambda now, p: {"h": now.x["v"], "v": -G},
        events=[Event("bounce", guard=lambda now, p: now.x["h"], reset=snap)],
    )
    sol = run(system, {"h": 1.0, "v": 0.0}, 1.0)
    fall = np.sqrt(2.0 / G)
    np.testing.assert_allclose(sol.events.t, [fall, 2 * fall], atol=ROUNDING)


@pytest.mark.parametrize(
    "direction, expected", [("rising", ["jump", "line"]), ("falling", ["jump"])]
)
def test_a_reset_that_lands_on_another_guard_fires_it_when_left_to_its_side(direction, expected):
    """The jump puts u on the line exactly; the flow then leaves it upwards."""
    system = HybridSystem(
        flow=lambda now, p: {"u": 1.0, "n": 0.0},
        events=[
            Event(
                "jump",
                guard=lambda now, p: now.t - 0.5,
                direction="rising",
                reset=lambda now, p: now.replace(x={**now.x, "u": 2.0}),
            ),
            Event(
                "line",
                guard=lambda now, p: now.x["u"] - 2.0,
                direction=direction,
                reset=lambda now, p: now.replace(x={**now.x, "n": now.x["n"] + 1.0}),
            ),
        ],
    )
    sol = run(system, {"u": 0.0, "n": 0.0}, 1.0)
    assert names(sol) == expected
    assert np.ptp(sol.events.t) == 0.0


@pytest.mark.parametrize("name", ["nested_chain"])
def test_a_reset_that_crosses_another_guard_fires_it_at_the_same_instant(answers, name):
    """The chain of C5: two rows at one time, each with its own before and after."""
    case, sol = problem(name), answers(name).solution
    assert names(sol) == ["spill", "refill"]
    assert sol.events.t[0] == sol.events.t[1]
    before, after = sol.events.before.x, sol.events.after.x
    np.testing.assert_allclose(after["x2"][0], before["x2"][0] - 1.0 / sol.events.t[0], rtol=1e-14)
    assert before["x2"][1] == after["x2"][0]
    np.testing.assert_allclose(after["x2"][1], before["x2"][1] + case.p["bolus"], rtol=1e-14)
    np.testing.assert_allclose(after["x1"][1], before["x1"][1] + case.p["bolus"], rtol=1e-14)


def test_a_reset_that_crosses_a_guard_against_its_direction_does_not_fire_it():
    system = HybridSystem(
        flow=lambda now, p: {"u": 0.0},
        events=[
            TimeEvent("lift", lambda now, p: 0.5, reset=lambda now, p: now.replace(x={"u": 1.0})),
            Event("fall", guard=lambda now, p: now.x["u"], direction="falling"),
        ],
    )
    assert names(run(system, {"u": -1.0}, 1.0)) == ["lift"]


def test_a_chain_passes_through_several_resets():
    """Carry digits: each overflow throws the next digit over its threshold."""
    digits = 4

    def carry(k):
        def reset(now, p):
            n = now.x["n"]
            return now.replace(x={"n": n.at[k].set(0.0).at[k + 1].add(1.0)})

        return reset

    system = HybridSystem(
        flow=lambda now, p: {"n": jnp.zeros(digits + 1).at[0].set(1.0)},
        events=[
            Event(
                f"carry{k}", lambda now, p, k=k: now.x["n"][k] - 9.5, carry(k), direction="rising"
            )
            for k in range(digits)
        ],
    )
    sol = run(system, {"n": jnp.array([9.0, 9.0, 9.0, 9.0, 0.0])}, 1.0)
    assert names(sol) == ["carry0", "carry1", "carry2", "carry3"]
    np.testing.assert_allclose(sol.events.t, 0.5, atol=ROUNDING)
    np.testing.assert_allclose(sol.final.x["n"], [0.5, 0.0, 0.0, 0.0, 1.0], atol=ROUNDING)


# -- simultaneous events ------------------------------------------------------------------------


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_simultaneous_events_fire_in_the_order_of_declaration(order):
    """Two guards that vanish together; the resets do not commute: 2 (u + 1) or 2 u + 1."""
    events = {
        "a": Event(
            "a",
            guard=lambda now, p: now.x["c"] - 0.5,
            direction="rising",
            reset=lambda now, p: now.replace(x={**now.x, "u": now.x["u"] + 1.0}),
        ),
        "b": Event(
            "b",
            guard=lambda now, p: 3.0 * (now.t - 0.5),
            direction="rising",
            reset=lambda now, p: now.replace(x={**now.x, "u": 2.0 * now.x["u"]}),
        ),
    }
    system = HybridSystem(
        flow=lambda now, p: {"u": 0.0, "c": 1.0}, events=[events[name] for name in order]
    )
    sol = run(system, {"u": 1.0, "c": 0.0}, 1.0)
    assert names(sol) == list(order)
    assert np.ptp(sol.events.t) < ROUNDING
    assert sol.final.x["u"] == {"a": 4.0, "b": 3.0}[order[0]]
    np.testing.assert_array_equal(sol.events.before.x["u"][1], sol.events.after.x["u"][0])


def test_a_time_event_and_a_guard_at_the_same_instant_both_fire_once():
    system = HybridSystem(
        flow=lambda now, p: {"u": 1.0},
        events=[
            TimeEvent("clock", every(0.5)),
            Event("line", guard=lambda now, p: now.x["u"] - 0.5, direction="rising"),
        ],
    )
    sol = run(system, {"u": 0.0}, 0.9)
    assert sorted(names(sol)) == ["clock", "line"]
    np.testing.assert_allclose(sol.events.t, 0.5, atol=ROUNDING)


@pytest.mark.parametrize("name", ["corner"])
def test_events_of_a_corner_are_differentiable_one_by_one(answers, name):
    """C7: each wall has its own root, so moving one start coordinate moves one event only."""
    got = answers(name).reverse
    np.testing.assert_allclose(got["t_x"], [1.0, 0.0, 1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(got["t_y"], [0.0, 1.0, 0.0, 1.0], atol=1e-12)


@pytest.mark.parametrize("stays, expected", [(1.0, ["a", "b", "c"]), (0.0, ["a", "a"])])
def test_identical_guards_fire_in_order_as_long_as_the_state_is_there(stays, expected):
    """The first reset may carry the state away from all three."""

    def event(k, name):
        def reset(now, p):
            return now.replace(x={"u": p * now.x["u"], "n": 10 * now.x["n"] + k})

        return Event(name, lambda now, p: now.x["u"] - 0.5, direction="rising", reset=reset)

    events = [event(k + 1, name) for k, name in enumerate("abc")]
    system = HybridSystem(lambda now, p: {"u": 1.0, "n": 0.0}, events=events)
    sol = run(system, {"u": 0.0, "n": 0.0}, 1.2, p=stays)
    assert names(sol) == expected
    np.testing.assert_allclose(sol.events.t, [0.5] * 3 if stays else [0.5, 1.0], atol=ROUNDING)
    assert sol.final.x["n"] == (123.0 if stays else 11.0)


# -- multiple zeros -----------------------------------------------------------------------------


def landing(direction, speed, reset):
    """At 0.5 u is put on the triple zero of the guard (u - 2)^3, and the flow carries it on."""
    put = lambda now, p: now.replace(x={"u": 2.0}, d={"n": 1})
    system = HybridSystem(
        lambda now, p: {"u": p},
        events=[
            TimeEvent("put", lambda now, p: jnp.where(now.d["n"] == 0, 0.5, jnp.inf), reset=put),
            Event("line", lambda now, p: (now.x["u"] - 2) ** 3, reset=reset, direction=direction),
        ],
    )
    return run(system, {"u": 0.0}, 0.9, d={"n": 0}, p=speed, throw=False)


def test_a_landing_on_a_triple_zero_fires_where_the_state_leaves_to_the_firing_side():
    away = lambda now, p: now.replace(x={"u": 1.0})
    for direction, speed, expected in (
        ("rising", 1.0, ["put", "line"]),
        ("rising", -1.0, ["put"]),
        ("falling", 1.0, ["put"]),
    ):
        sol = landing(direction, speed, away)
        assert sol.result == Result.success and names(sol) == expected
        assert np.ptp(sol.events.t) == 0.0
        here = 1.0 if "line" in expected else 2.0
        np.testing.assert_allclose(sol.final.x["u"], here + 0.4 * speed, atol=ROUNDING)


# -- endless ------------------------------------------------------------------------------------


def test_modes_that_hand_over_to_each_other_for_ever_are_stopped_and_named():
    """Each hand-over lifts u a little, beyond the level at which the other mode hands it back."""
    lift = lambda now, p: now.replace(x={"u": now.x["u"] + 0.5})
    to = lambda name: Exit(lambda now, p: now.x["u"] - 1.0, name, lift, direction="rising")
    up = lambda now, p: {"u": 1.0}
    system = automaton({"a": Mode(up, exits=[to("b")]), "b": Mode(up, exits=[to("a")])})
    with pytest.raises(EventError, match="endless_chain") as caught:
        run(system, {"u": 0.0}, 2.0, mode="a")
    error = caught.value
    assert error.mode in "ab" and error.event in ("a -> b", "b -> a")
    np.testing.assert_allclose(error.t, 1.0, atol=ROUNDING)
    assert int(error.solution.stats.events) < 200
