"""Hard events: Zeno, contacts that come to rest, chattering, guards faster than the steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, Exit, HybridSystem, Instant, Mode, Result, automaton, solve

G = 9.81


# -- Zeno -----------------------------------------------------------------------------------------


def bounced(now, p):
    return now.replace(x={"h": now.x["h"], "v": -p * now.x["v"]})


def still(now, p):
    return now.replace(x=jax.tree.map(jnp.zeros_like, now.x), d={"rest": jnp.ones(())})


def ball(zeno=None):
    return HybridSystem(
        flow=lambda now, p: {
            "h": now.x["v"] * (1 - now.d["rest"]), "v": -G * (1 - now.d["rest"])
        },
        events=[Event("bounce", guard=lambda now, p: now.x["h"], reset=bounced, zeno=zeno)],
    )  # fmt: skip


def dropped(system, e, t1=5.0, **options):
    start = Instant(t=0.0, x={"h": 1.0, "v": 0.0}, d={"rest": 0.0})
    return solve(system, start, e, t1, **options)


def zeno_time(e):
    return jnp.sqrt(2 / G) * (1 + e) / (1 - e)


def test_a_zeno_ball_is_told_when_its_bounces_pile_up():
    with pytest.raises(saltus.SolveError) as caught:
        dropped(ball(), 0.5)
    error = caught.value
    assert error.result == Result.events_accumulate and error.event == "bounce"
    assert error.values["accumulation time"] == pytest.approx(float(zeno_time(0.5)), rel=1e-9)
    sol = error.solution
    assert float(sol.last.t) == pytest.approx(float(zeno_time(0.5)), rel=1e-9)
    assert np.min(np.asarray(sol(jnp.linspace(0.0, float(sol.last.t), 200))["h"])) > -1e-8


def test_with_a_resting_mode_a_zeno_ball_goes_on():
    sol = dropped(ball(still), 0.5)
    assert sol.result == Result.success and float(sol.final.t) == 5.0
    assert float(sol.final.x["h"]) == 0.0 and float(sol.final.x["v"]) == 0.0
    assert sol.events.names == ("bounce", "bounce: zeno")
    assert int(sol.events.of("bounce: zeno").count) == 1


def test_the_time_at_which_it_comes_to_rest_has_the_derivative_of_the_limit():
    system = ball(still)
    rests = lambda e: dropped(system, e).events.of("bounce: zeno").t[0]
    for derive in (jax.grad, jax.jacfwd):
        assert derive(rests)(0.5) == pytest.approx(float(jax.grad(zeno_time)(0.5)), rel=1e-7)


def test_a_ball_that_starts_at_rest_goes_on_resting():
    start = Instant(t=0.0, x={"h": 0.0, "v": 0.0}, d={"rest": 0.0})
    sol = solve(ball(still), start, 0.5, 1.0)
    assert sol.result == Result.success and float(sol.final.x["h"]) == 0.0


def test_the_mode_to_go_on_in_may_be_named():
    fly = Mode(flow=lambda now, p: {"h": now.x["v"], "v": -G})
    system = automaton(
        {"fly": fly, "lie": Mode(flow=lambda now, p: {"h": 0.0, "v": 0.0})},
        events=[
            Event(
                "bounce", guard=lambda now, p: now.x["h"], reset=bounced, zeno="lie",
                active=lambda now, p: now.mode == 0,
            )
        ],
    )  # fmt: skip
    sol = solve(system, Instant(t=0.0, x={"h": 1.0, "v": 0.0}, mode="fly"), 0.4, 5.0)
    assert sol.result == Result.success and int(sol.final.mode) == 1


def test_each_ball_of_a_family_piles_up_on_its_own():
    """Two balls whose bounces alternate: neither pattern alone would be seen in the sequence."""

    def reset(now, p):
        mine = jnp.arange(2) == now.member
        return now.replace(x={"h": now.x["h"], "v": jnp.where(mine, -p * now.x["v"], now.x["v"])})

    system = HybridSystem(
        flow=lambda now, p: {"h": now.x["v"], "v": -G * jnp.ones(2)},
        events=[Event("bounce", guard=lambda now, p: now.x["h"], reset=reset)],
    )
    start = Instant(t=0.0, x={"h": jnp.array([1.0, 1.3]), "v": jnp.zeros(2)})
    sol = solve(system, start, jnp.array([0.5, 0.8]), 9.0, throw=False)
    assert sol.result == Result.events_accumulate
    assert float(sol.last.t) == pytest.approx(float(zeno_time(0.5)), rel=1e-9)


# -- chattering -----------------------------------------------------------------------------------


def relay(choose):
    """x' = -1/2 above zero and 3/2 below: both sides lead to x = 0 (C9 of the reference)."""
    return HybridSystem(
        flow=lambda now, p: {
            "x": choose(now.x["x"] > 0, -0.5, 1.5), "y": choose(now.x["x"] > 0, 1.0, 3.0)
        }
    )  # fmt: skip


def modes():
    return automaton(
        {
            "above": Mode(
                lambda now, p: {"x": -0.5, "y": 1.0},
                exits=[Exit(lambda now, p: now.x["x"], to="below")],
            ),
            "below": Mode(
                lambda now, p: {"x": 1.5, "y": 3.0},
                exits=[Exit(lambda now, p: now.x["x"], to="above", direction="rising")],
            ),
        }
    )


@pytest.mark.parametrize("kind", ["when", "modes"])
def test_chattering_is_named_with_the_directions_of_both_sides(kind):
    system = relay(saltus.when) if kind == "when" else modes()
    start = Instant(t=0.0, x={"x": 1.0, "y": 0.0}, mode=None if kind == "when" else "above")
    with pytest.raises(saltus.SolveError) as caught:
        solve(system, start, None, 4.0)
    error = caught.value
    assert error.result == Result.chattering
    assert error.t == pytest.approx(2.0, abs=1e-12)
    slopes = sorted(float(v) for k, v in error.values.items() if "side" in k)
    np.testing.assert_allclose(slopes, [-0.5, 1.5], atol=1e-12)
    assert "sliding" in error.advice
    assert int(error.solution.stats.steps) < 500


# -- guards faster than the steps -----------------------------------------------------------------

FAST = HybridSystem(
    flow=lambda now, p: {"y": -now.x["y"]},
    events=[Event("c", guard=lambda now, p: jnp.cos(p * now.t) - 0.3, direction="either")],
)


@pytest.mark.parametrize("resolve", [False, True])
@pytest.mark.parametrize("speed", [50.0, 300.0, 3000.0])
def test_a_guard_that_oscillates_faster_than_the_states_misses_nothing(speed, resolve):
    start = Instant(t=0.0, x={"y": 1.0})
    sol = solve(FAST, start, speed, 1.0, resolve_guards=resolve)
    turns = 2 * np.pi * np.arange(int(speed))
    exact = np.sort(np.concatenate([turns + np.arccos(0.3), turns - np.arccos(0.3)])) / speed
    exact = exact[(exact > 0) & (exact <= 1.0)]
    np.testing.assert_allclose(sol.events.t, exact, rtol=1e-13)


def test_resolving_guards_takes_the_steps_that_they_need():
    start = Instant(t=0.0, x={"y": 1.0})
    plain = solve(FAST, start, 50.0, 1.0)
    careful = solve(FAST, start, 50.0, 1.0, resolve_guards=True)
    assert int(careful.stats.steps) > 5 * int(plain.stats.steps)


def test_a_word_that_on_grazing_does_not_know():
    with pytest.raises(ValueError, match="on_grazing is 'warn'"):
        solve(FAST, Instant(t=0.0, x={"y": 1.0}), 50.0, 1.0, on_grazing="warn")


@pytest.mark.parametrize("width", [0.3, 0.01])
def test_a_dip_of_a_thousandth_of_the_span_is_resolved_on_request(width):
    dip = lambda now, p: 1 - 1.5 * jnp.exp(-(((now.x["x"] - p[1]) / p[0]) ** 2))
    system = HybridSystem(lambda now, p: {"x": 1.0}, events=[Event("dip", guard=dip)])
    start = Instant(t=0.0, x={"x": 0.0})
    count = lambda p: solve(system, start, p, 10.0, resolve_guards=True).stats.events
    places = jnp.stack([jnp.full(20, width), jnp.linspace(1.0, 9.5, 20)], axis=1)
    assert jax.jit(jax.vmap(count))(places).tolist() == [1] * 20
