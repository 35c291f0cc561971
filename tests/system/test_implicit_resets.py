"""Resets by equations and resets that remember: right, differentiable, and explained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from messages import mentions
from saltus import Event, HybridSystem, Instant, solve

# -- implicit resets ----------------------------------------------------------------------------
# Two discs on a line meet; after it momentum and energy are what they were.


def collide(after, before, p):
    def momentum(x):
        return p["m"] * x["u"] + x["v"]

    def energy(x):
        return p["m"] * x["u"] ** 2 + x["v"] ** 2

    a, b = after.x, before.x
    return {
        "momentum": momentum(a) - momentum(b),
        "energy": energy(a) - energy(b),
        "where": (a["x"] - b["x"], a["y"] - b["y"]),
    }


def swapped(now, p):  # the other root is that nothing happens
    return now.replace(x={**now.x, "u": now.x["v"], "v": now.x["u"]})


DISCS = Instant(t=0.0, x={"x": 0.0, "u": 1.0, "y": 1.0, "v": -0.5})


def meeting(reset):
    return HybridSystem(
        lambda now, p: {"x": now.x["u"], "u": 0.0, "y": now.x["v"], "v": 0.0},
        events=[Event("meet", lambda now, p: now.x["y"] - now.x["x"], reset=reset)],
    )


def explicitly(now, p):
    m, u, v = p["m"], now.x["u"], now.x["v"]
    new = {"u": ((m - 1) * u + 2 * v) / (m + 1), "v": (2 * m * u - (m - 1) * v) / (m + 1)}
    return now.replace(x={**now.x, **new})


def after_meeting(reset):
    system = meeting(reset)
    return lambda m: solve(system, DISCS, {"m": m}, 2.0).final.x


@pytest.mark.slow
def test_an_elastic_collision_by_its_conservation_laws_is_the_explicit_one():
    ours = after_meeting(saltus.implicit_reset(collide, guess=swapped))
    exact = after_meeting(explicitly)
    for derivative in (lambda f: f, jax.jacfwd, jax.jacrev, jax.hessian):
        a, b = derivative(ours)(2.0), derivative(exact)(2.0)
        assert all(np.isclose(a[k], b[k], atol=1e-11) for k in b), (a, b)


def test_an_implicit_reset_is_right_under_every_transformation():
    # x+ is the cube root of a x-, and a is closed over
    def root(a):
        reset = saltus.implicit_reset(lambda after, before, p: after.x**3 - a * before.x)
        return reset(Instant(t=0.0, x=1.0), None).x

    a, cube = 8.0, lambda a: a ** (1 / 3)
    nest = [
        jax.grad,
        jax.hessian,
        lambda f: jax.jacfwd(jax.hessian(f)),
        lambda f: lambda a: jax.jvp(jax.grad(f), (a,), (1.0,))[1],
        lambda f: lambda a: jax.jit(jax.vmap(jax.grad(f)))(jnp.stack([a, 2 * a])),
        lambda f: lambda a: jax.vmap(jax.jit(jax.hessian(f)))(jnp.stack([a, 2 * a])),
    ]
    for derivative in nest:
        assert np.allclose(derivative(root)(a), derivative(cube)(a), rtol=1e-11)


def test_an_implicit_reset_may_solve_for_algebraic_and_for_discrete_states():
    both = saltus.implicit_reset(lambda after, before, p: [after.x - after.z, after.z - 3.0])
    now = Instant(t=0.0, x=1.0, z=0.0, d={"k": 0.0, "n": 2})
    after = both(now, None)
    assert (after.x, after.z) == (3.0, 3.0)
    chosen = saltus.implicit_reset(
        lambda after, before, p: [after.d["k"] - before.d["n"], after.x - after.d["k"] ** 2],
        unknowns=("x", "d"),
    )
    after = chosen(now, None)
    assert (after.x, after.d["k"], after.d["n"]) == (4.0, 2.0, 2)


def test_a_reset_without_a_solution_is_reported_with_the_name_of_its_event():
    reset = saltus.implicit_reset(
        lambda after, before, p: {**after.x, "u": after.x["u"] ** 2 + 1.0}
    )
    with pytest.raises(saltus.SolveError) as caught:
        after_meeting(reset)(2.0)
    assert caught.value.result is saltus.Result.non_finite
    mentions(caught, "meet")


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: saltus.implicit_reset(None), ("implicit_reset", "residual")),
        (lambda: saltus.implicit_reset(collide, guess=1), ("implicit_reset", "guess")),
        (
            lambda: saltus.implicit_reset(collide, unknowns="v"),
            ("implicit_reset", "'v'", "unknowns"),
        ),
        (lambda: saltus.remember(), ("remember", "nothing", 'x="u"')),
        (lambda: saltus.remember("u"), ("remember", "reset", 'x="u"')),
    ],
)
def test_a_reset_that_cannot_be_made(make, words):
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    mentions(caught, *words)


def test_an_implicit_reset_with_too_few_equations():
    reset = saltus.implicit_reset(lambda after, before, p: after.x["u"])
    with pytest.raises(ValueError) as caught:
        after_meeting(reset)(2.0)
    mentions(caught, "implicit_reset", "1 equations", "x has 4", "unknowns=")


# -- memory -------------------------------------------------------------------------------------


def test_a_system_remembers_its_state_at_the_last_event():
    # x' = 1 until x = theta, then x' = -alpha x*; x* is what x was at the turn
    down = saltus.remember(lambda now, p: now.replace(d={**now.d, "n": now.d["n"] + 1}), x="x")
    system = HybridSystem(
        lambda now, p: {"x": jnp.where(now.d["n"] == 0, 1.0, -p["alpha"] * now.d["x*"])},
        events=[Event("turn", lambda now, p: now.x["x"] - p["theta"], down, "rising")],
    )
    start = Instant(t=0.0, x={"x": 0.0}, d={"x*": 0.0, "n": 0})
    end = lambda p: solve(system, start, p, 3.0).final.x["x"]
    exact = lambda p: p["theta"] - p["alpha"] * p["theta"] * (3.0 - p["theta"])
    p = {"alpha": 0.4, "theta": 1.2}
    assert np.isclose(end(p), exact(p))
    ours, want = jax.grad(end)(p), jax.grad(exact)(p)
    assert all(np.isclose(ours[k], want[k]) for k in p)


def test_memory_keeps_algebraic_states_and_what_another_reset_made_of_x():
    reset = saltus.remember(lambda now, p: now.replace(x={"a": -now.x["a"]}), x=["a"], z="s")
    now = Instant(t=0.0, x={"a": 2.0}, z={"s": 5.0}, d={"a*": 0.0, "s*": 0.0, "other": 1})
    assert reset(now, None).d == {"a*": -2.0, "s*": 5.0, "other": 1}


@pytest.mark.parametrize(
    "reset, words",
    [
        (saltus.remember(x="b"), ("remember", "x is", "'b'")),
        (saltus.remember(x="a", z="s"), ("remember", "z is", "'s'")),
        (saltus.remember(x="a"), ("remember", "d is", "'a*'", 'd={"a*": 0.0')),
    ],
)
def test_memory_of_something_that_is_not_there(reset, words):
    with pytest.raises(ValueError) as caught:
        reset(Instant(t=0.0, x={"a": 2.0}, d={"n": 1}), None)
    mentions(caught, *words)
