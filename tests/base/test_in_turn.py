"""Lanes in turn: the same numbers as side by side, until another program pays."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, solve
from saltus.base import in_turn, resumable
from saltus.base.in_turn import Budget

BOUNCE = Event(
    "bounce",
    guard=lambda now, p: now.x["h"],
    reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]}),
)
LANES = {"g": jnp.array([9.81, 5.0, 1.6]), "e": jnp.array([0.8, 0.9, 0.85])}


def ball():
    return HybridSystem(lambda now, p: {"h": now.x["v"], "v": -p["g"]}, events=[BOUNCE])


def loss(system, **options):
    def value(p):
        sol = solve(system, Instant(0.0, {"h": 5.0, "v": 0.0}), p, 4.0, ts=[0.5, 3.5], **options)
        return sol.final.x["h"] + jnp.sum(sol.y["v"]) + sol.events.t[0]

    return value


@pytest.mark.parametrize("transform", [jax.value_and_grad, jax.hessian])
def test_lanes_in_turn_are_lanes_side_by_side(transform, monkeypatch):
    every = jax.vmap(transform(loss(ball())))
    first = every(LANES)
    monkeypatch.setattr(in_turn, "COMPILE_RATIO", 0.0)
    same = functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-11)
    jax.tree.map(same, every(LANES), first)


def test_implicit_methods_nested_lanes_and_shared_parameters():
    f = jax.grad(lambda e, g: loss(ball(), method=saltus.Rodas5P())({"g": g, "e": e}))
    grid = jax.vmap(jax.vmap(f, (0, None)), (None, 0))(LANES["e"], LANES["g"][:2])
    expected = [[f(e, g) for e in LANES["e"]] for g in LANES["g"][:2]]
    np.testing.assert_allclose(grid, expected, rtol=1e-9)


def test_lanes_may_need_different_numbers_of_reels():
    """Steps of 1/300 up to t1: 300, 1,500 and 6,000 rows, in reels of 1,024 and more."""
    system = HybridSystem(lambda now, p: -p * now.x)
    method = saltus.Tsit5(control=saltus.Fixed(1 / 300))
    end = lambda t1: solve(system, Instant(0.0, 1.0), 0.1, t1, method=method, max_steps=9000)
    sol = jax.vmap(end)(jnp.array([1.0, 5.0, 20.0]))
    np.testing.assert_array_equal(sol.stats.steps, [300, 1500, 6000])
    np.testing.assert_allclose(sol.final.x, np.exp([-0.1, -0.5, -2.0]), rtol=1e-12)


def test_once_compiled_either_way_compiles_nothing(compilations, monkeypatch):
    every = jax.vmap(jax.value_and_grad(loss(ball(), method=saltus.Dopri5())))
    every(LANES)
    assert compilations.during(lambda: every(LANES)) == 0
    monkeypatch.setattr(in_turn, "COMPILE_RATIO", 0.0)
    assert compilations.during(lambda: every(LANES)) > 0  # the programs for all lanes
    assert compilations.during(lambda: every(LANES)) == 0


def test_a_budget_ends_when_the_other_program_would_have_paid():
    budget = Budget()
    assert budget.suffices(1000) and not budget.suffices(10**6)  # 50 s, by the first guess
    budget.compile_seconds, budget.seconds, budget.lanes = 2.0, 1.0, 10**5
    assert budget.suffices(10**6) and not budget.suffices(10**7)  # 1e-5 s each, 16 s in all
    budget.seconds = 17.0
    assert not budget.suffices(1)


def test_a_large_tape_needs_no_second_program(monkeypatch):
    """Large reels used to be made by a first program, and to be filled further by a second one."""
    made = []

    class Counted(resumable.Program):
        def __init__(self, call):
            made.append(self)
            super().__init__(call)

    monkeypatch.setattr(resumable, "Program", Counted)
    every = jax.vmap(lambda g: loss(ball(), method=saltus.Dopri8())({"g": g, "e": 0.8}))
    every(jnp.linspace(9.0, 10.0, 2000))
    assert len(made) == 1
