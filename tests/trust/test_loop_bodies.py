"""Jumps inside the bodies of loops and conditionals, and guards that jump or dip unseen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from saltus import Event, HybridSystem, Instant, Result, solve
from saltus.trust.hidden_kinks import hidden_kinks

# Each is 1 for x > p and 0 before; x = t, so that y(T) = T - p has the derivative -1. AD says 0.
STEPS = {
    "scan": lambda x, p: jax.lax.scan(
        lambda c, i: (c + 0.5 * jnp.where(x > p, 1.0, 0.0), None), 0.0, jnp.arange(2)
    )[0],
    "map": lambda x, p: jnp.mean(
        jax.lax.map(lambda v: jnp.where(v > p, 1.0, 0.0), jnp.stack([x, x]))
    ),
    "while": lambda x, p: jax.lax.while_loop(
        lambda s: s[0] < 2, lambda s: (s[0] + 1, s[1] + 0.5 * jnp.floor(jnp.exp2(x - p))), (0, 0.0)
    )[1],
    "cond": lambda x, p: jax.lax.cond(x > p, lambda: 1.0, lambda: 0.0),
    "inside of a branch": lambda x, p: jax.lax.cond(
        x > -1.0, lambda v: jnp.sign(v - p) * 0.5 + 0.5, lambda v: 0.0 * v, x
    ),
    "a loop in a loop": lambda x, p: jax.lax.fori_loop(
        0,
        2,
        lambda i, c: jax.lax.cond(
            i > 0, lambda v: v + jnp.round(0.5 * jnp.exp2(x - p)), lambda v: v, c
        ),
        0.0,
    ),
    "argmax": lambda x, p: jax.lax.map(
        lambda v: jnp.argmax(jnp.stack([p, v])).astype(float), x[None]
    )[0],
}
CHEAP = ("scan", "while")


def stepped(step):
    system = HybridSystem(lambda now, p: {"x": 1.0, "y": step(now.x["x"], p)})
    return lambda p, **o: solve(system, Instant(0.0, {"x": 0.0, "y": 0.0}), p, 1.7, **o)


@pytest.mark.parametrize(
    "kind", [k if k in CHEAP else pytest.param(k, marks=pytest.mark.slow) for k in STEPS]
)
def test_a_jump_in_the_body_of_a_loop_or_conditional_is_found(kind):
    (kink,) = hidden_kinks(stepped(STEPS[kind])(1.0))
    assert kink.t == pytest.approx(1.0) and kink.jump == pytest.approx(1.0)
    assert kink.where.startswith("test_loop_bodies.py:")


@pytest.mark.slow
@pytest.mark.parametrize("kind", STEPS)
def test_a_flow_with_such_a_jump_is_not_trusted_inside_jit_either(kind):
    run = stepped(STEPS[kind])
    assert run(1.0).certificate.verdict == "UNTRUSTED"
    levels = jax.jit(jax.vmap(lambda p: run(p, max_steps=64).certificate.level))
    np.testing.assert_array_equal(levels(jnp.array([1.0, 2.0])), [2, 0])  # 2: after the end


def test_smooth_loops_are_no_kinks():
    """Newton's method for the square root, in a loop, with a branch that never changes."""

    def root(x, p):
        step = lambda i, c: c - (c * c - (2 + x)) / (2 * c)
        return jax.lax.fori_loop(0, 5, step, jax.lax.cond(x > -1, lambda: 1.0, lambda: 2.0))

    assert hidden_kinks(stepped(root)(1.0)) == ()


def test_what_cannot_be_looked_into_is_named_with_its_line():
    def outside(x, p):
        like = jax.ShapeDtypeStruct((), x.dtype)
        given = jax.lax.stop_gradient(x)
        return jax.pure_callback(np.floor, like, given, vmap_method="sequential")  # outside

    sol = stepped(outside)(1.0)
    (kink,) = hidden_kinks(sol)
    assert "cannot be examined" in kink.what and "test_loop_bodies.py" in kink.where
    assert np.isnan(kink.jump)


@pytest.mark.slow
def test_a_callback_degrades_the_certificate():
    def outside(x, p):
        like = jax.ShapeDtypeStruct((), x.dtype)
        given = jax.lax.stop_gradient(x)
        return jax.pure_callback(np.sin, like, given, vmap_method="sequential")

    cert = stepped(outside)(1.0).certificate
    assert cert.verdict == "DEGRADED" and "may jump" in repr(cert)


# -- guards ---------------------------------------------------------------------------------------


def fired(guard):
    """x' = 1 until the guard rises through zero, then x jumps by 2 t."""
    reset = lambda now, p: now.replace(x={"x": now.x["x"] + 2 * now.t})
    event = Event("e", guard, reset, direction="rising")
    system = HybridSystem(lambda now, p: {"x": 1.0}, events=(event,))
    return solve(system, Instant(0.0, {"x": 0.0}), 1.0, 1.7, throw=False)


STAIRS = {
    "stairs": lambda now, p: jnp.floor(4 * (now.x["x"] - p)) / 4 + 0.125,
    "a slope that jumps": lambda now, p: now.x["x"] - 2.0 + jnp.where(now.x["x"] > p, 1.5, 0.0),
    "a loop": lambda now, p: now.x["x"] - 2.0 + 1.5 * STEPS["scan"](now.x["x"], p),
}


@pytest.mark.parametrize(
    "kind", [k if k == "a loop" else pytest.param(k, marks=pytest.mark.slow) for k in STAIRS]
)
def test_a_guard_that_jumps_over_zero_is_not_trusted(kind):
    """Its event is at t = p, which no derivative of the guard shows; where the guard itself is not
    close to zero on either side, the solve stops there."""
    sol = fired(STAIRS[kind])
    cert = sol.certificate
    assert cert.verdict == "UNTRUSTED"
    if kind == "stairs":
        assert sol.events.count == 1 and "a guard jumps at an event" in cert.reasons
    else:
        assert sol.events.count == 0 and cert.reasons == ("the solve failed",)
        assert sol.result == Result.step_underflow and 'guard of event "e" jumps' in str(sol.error)


@pytest.mark.parametrize(
    "guard",
    [
        lambda now, p: jnp.where(now.x["x"] > p, 2 * (now.x["x"] - p), now.x["x"] - p),
        pytest.param(lambda now, p: jnp.exp(50 * (now.x["x"] - p)) - 1.0, marks=pytest.mark.slow),
        pytest.param(
            lambda now, p: (now.x["x"] - p) ** 3 + 0.01 * (now.x["x"] - p), marks=pytest.mark.slow
        ),
    ],
)
def test_a_guard_that_only_bends_at_its_event_is_trusted(guard):
    assert fired(guard).certificate.trusted


def dipped(width, depth, dae=False):
    """x' = 1 over (0, 10): a few steps, and a guard that dips and comes back."""
    dip = lambda x, p: 1 - depth * jnp.exp(-(((x - 5.03) / p) ** 2))
    event = Event("dip", lambda now, p: now.z["g"] if dae else dip(now.x["x"], p))
    rows = (lambda now, p: {"g": now.z["g"] - dip(now.x["x"], p)}) if dae else None
    system = HybridSystem(lambda now, p: {"x": 1.0}, constraint=rows, events=(event,))
    start = Instant(0.0, {"x": 0.0}, z={"g": 1.0}) if dae else Instant(0.0, {"x": 0.0})
    return solve(system, start, width, 10.0)


@pytest.mark.parametrize("width, depth", [(0.085, 1.5), (0.05, 1.5), (0.17, 1.02)])
def test_a_short_or_shallow_dip_between_two_steps_is_named(width, depth):
    """Of 1.7 % of the span, of 1 %, and one that goes only 2 % below zero."""
    sol = dipped(width, depth)
    assert int(sol.events.count) == 0
    assert "a guard seems to have crossed zero unseen" in sol.certificate.reasons


@pytest.mark.parametrize("width, depth", [(0.17, 0.9), (2.0, 1.5)])
def test_a_dip_that_stays_above_zero_or_is_an_event_is_trusted(width, depth):
    assert dipped(width, depth).certificate.trusted


@pytest.mark.slow
@pytest.mark.parametrize("depth, verdict", [(1.5, "UNTRUSTED"), (0.9, "TRUSTED")])
def test_dips_of_algebraic_states_are_seen(depth, verdict):
    assert dipped(0.17, depth, dae=True).certificate.verdict == verdict
