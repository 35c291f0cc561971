"""Certificates of losses: the loss itself is judged, numbers are numbers, both sides are seen."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, solve
from saltus.base.losses import numbers_of
from saltus.trust import certify
from saltus.trust.differences import Differences, OneSided

P = {"a": 1.5, "b": 1.0, "c": 0.0}


def turned(now, p):
    """u jumps by max(3 (b - 1), 0) and by max(2 c, 0): bent at b = 1 and at c = 0."""
    b, c = p["b"], p["c"]
    leap = jnp.where(b > 1, 3 * (b - 1), 0.0) + jnp.where(c > 0, 2 * c, 0.0)
    return now.replace(x={"u": now.x["u"] + leap, "v": p["a"] * now.x["v"]})


WALL = HybridSystem(
    lambda now, p: {"u": now.x["v"], "v": 0.0},
    events=(Event("wall", lambda now, p: now.x["u"] - 1.0, turned, direction="rising"),),
)


def solved(p):
    return solve(WALL, Instant(t=0.0, x={"u": 0.0, "v": 1.0}), p, 2.0)


def end(p):
    """1 + leap + a."""
    return solved(p).final.x["u"]


def smooth(p):
    """1 + a: no kink of the reset is near."""
    return end({**p, "b": 0.5 + 0.0 * p["b"], "c": -1.0 + 0.0 * p["c"]})


def tenfold(p):
    return 10.0 * end(p)


AWAY = {"a": 1.5, "b": 1.2, "c": 0.3}  # 1 + 0.6 + 0.6 + 1.5


# -- which function is certified ------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [
        functools.wraps(end)(tenfold),
        functools.wraps(end)(jax.jit(tenfold)),
        functools.partial(jax.jit(lambda k, p: k * end(p)), 10.0),
    ],
    ids=["decorated", "decorated and compiled", "partial"],
)
def test_a_decorated_loss_is_certified_as_it_is(loss):
    cert = certify(loss, AWAY)
    assert cert.trusted and cert.value == pytest.approx(37.0)
    assert {k: float(v) for k, v in cert.gradient.items()} == pytest.approx(
        {"a": 10.0, "b": 30.0, "c": 20.0}
    )


def test_error_estimates_are_those_of_the_decorated_loss():
    found = saltus.error_estimate(functools.wraps(end)(tenfold), AWAY)
    assert found.value == pytest.approx(37.0) and found.gradient["b"] == pytest.approx(30.0)


def test_a_compiled_method_keeps_its_object():
    class Task:
        scale = 10.0

        @functools.partial(jax.jit, static_argnums=0)
        def loss(self, p):
            return self.scale * end(p)

    assert certify(Task().loss, AWAY).value == pytest.approx(37.0)


def test_costates_take_the_loss_that_was_given():
    sol = solved(AWAY)
    plain = lambda s: s.final.x["u"]
    wrapped = functools.wraps(plain)(lambda s: 10.0 * plain(s))
    one, ten = (saltus.costates(loss, sol) for loss in (plain, wrapped))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(ten), strict=True):
        if np.any(np.asarray(a) != np.asarray(b)):
            np.testing.assert_allclose(10.0 * np.asarray(a), b)
            return
    raise AssertionError("the costates of ten times a loss are those of the loss")


def test_derivatives_as_losses_are_refused_not_unwrapped():
    with pytest.raises(ValueError, match=r"inside jax\.vmap"):
        certify(jax.jacfwd(lambda a: end({**AWAY, "a": a})), 1.5)


# -- numbers that are none ------------------------------------------------------------------------


def second_hit(p):
    """The time of an event that does not happen."""
    return solved(p).events.of("wall").nth(1).t


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_loss_that_is_no_number_is_untrusted_and_has_no_gradient(jit):
    run = lambda p: certify(second_hit, p)
    cert = (jax.jit(run) if jit else run)(AWAY)
    assert cert.verdict == "UNTRUSTED" and np.isnan(cert.value)
    assert all(np.all(np.isnan(v)) for v in jax.tree.leaves(cert.gradient))
    assert "not a finite number" in cert.reasons[0]
    assert "not a finite number" in repr(cert)


def test_an_estimate_of_a_loss_that_is_no_number_has_no_gradient():
    found = saltus.error_estimate(second_hit, AWAY)
    assert all(np.all(np.isnan(v)) for v in jax.tree.leaves((found.gradient, found.gradient_error)))


def test_comparisons_with_nan_never_agree():
    nan = float("nan")
    assert not OneSided(nan, 1.0, 0.0).agree and not OneSided(1.0, 1.0, nan).agree
    assert Differences(nan, 1.0, 0.1, 1e-3).disagree
    assert Differences(1.0, nan, 0.1, 1e-3).disagree


# -- both sides -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name, sides", [("b", (0.0, 3.0)), ("c", (0.0, 2.0))])
def test_a_parameter_on_a_kink_of_a_reset_is_looked_at_from_both_sides(name, sides):
    """AD says 0 in both; c is exactly 0, and has no size of its own."""
    p = {**AWAY, name: P[name]}
    cert = certify(end, p)
    assert cert.verdict == "UNTRUSTED" and "both sides" in cert.reasons[0]
    (bend,) = cert.bends
    scale = p[name] or 1.0
    assert bend.along.endswith(name)
    assert (bend.sides.left, bend.sides.right) == pytest.approx(tuple(scale * v for v in sides))
    assert f"along {bend.along}" in repr(cert)


CORNER = lambda p: smooth(p) + jnp.maximum(jnp.minimum(p["b"] - 1.0, p["c"]), 0.0)
RARE = ("in the loss", "a jump", "in a loop", "a minimum", "no effect")
KINKS = {
    "in the loss": lambda p: smooth(p) + jnp.where(p["b"] > 1, 3 * (p["b"] - 1), 0.0),
    "of zero": lambda p: smooth(p) + jnp.abs(p["c"]),
    "a jump": lambda p: smooth(p) + jnp.where(p["c"] > 0, 1e-3, 0.0),
    "a corner that no axis shows": CORNER,
    "a single point": lambda p: smooth(p) + jnp.where(p["b"] == 1, 3.0, 3 * p["b"]),
    "in a loop": lambda p: smooth(p) + jax.lax.map(jnp.abs, p["c"][None])[0],
}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow) if k in RARE else k for k in KINKS]
)
def test_a_loss_that_bends_or_jumps_where_it_stands_is_untrusted(kind):
    cert = certify(KINKS[kind], P)
    assert cert.verdict == "UNTRUSTED" and cert.bends, cert


SMOOTH = {
    "a minimum": lambda p: (p["b"] - 1.0) ** 2 + p["c"] ** 2 + 0.0 * smooth(p),
    "a flat minimum": lambda p: (p["b"] - 1.0) ** 4 + 0.0 * smooth(p),
    "a small size": lambda p: smooth(p) + jnp.sin(1e6 * p["c"]),
    "no effect": smooth,
}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow) if k in RARE else k for k in SMOOTH]
)
def test_a_smooth_loss_is_trusted_at_zeros_and_minima(kind):
    cert = certify(SMOOTH[kind], P)
    assert cert.trusted, cert


def test_the_boundary_of_what_a_parameter_may_be_is_named():
    cert = certify(lambda p: smooth(p) + jnp.where(p["c"] >= 0, p["c"], jnp.nan), P)
    assert cert.verdict == "DEGRADED" and "one side only" in cert.reasons[0]


@pytest.mark.slow
def test_many_parameters_share_directions_and_none_is_left_out():
    def loss(q):
        bent = jnp.where(q[1:] > 1, 3 * (q[1:] - 1), 0.0)
        return smooth({**P, "a": q[0]}) + jnp.sum(bent)

    away = jnp.full(60, 0.7)
    assert certify(loss, away).trusted
    for k in (1, 30, 59):
        assert certify(loss, away.at[k].set(1.0)).verdict == "UNTRUSTED"


@pytest.mark.slow
def test_both_sides_are_seen_inside_jit():
    level = jax.jit(lambda p: certify(end, p).level)
    assert [int(level(p)) for p in (AWAY, {**AWAY, "b": 1.0}, {**AWAY, "c": 0.0})] == [0, 2, 2]


def test_numbers_are_found_among_parameters_that_are_traced():
    """The first thing that `certify` and `error_estimate` do inside `jit`."""
    found = jax.eval_shape(lambda p: numbers_of(p, "certify")[0], {"a": 1.0, "b": jnp.ones(2)})
    assert [v.shape for v in found.values()] == [(), (2,)]
