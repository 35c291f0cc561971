"""Every way to a gradient in one table, and what it says when they disagree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, continuous, solve

BALL = HybridSystem(
    lambda now, p: {"h": now.x["v"], "v": -p["g"] - p["c"] * now.x["v"]},
    events=[
        Event(
            "bounce",
            lambda now, p: now.x["h"],
            reset=lambda now, p: now.replace(x={**now.x, "v": -p["e"] * now.x["v"]}),
        )
    ],
)
P = {"g": 9.81, "c": 0.1, "e": 0.8, "h": 1.0}
DECAY = HybridSystem(lambda now, p: -p * now.x)
RELAXES = HybridSystem(lambda now, p: {"x": -p * (now.x["x"] - jnp.cos(now.t))})


def height(p):
    return solve(BALL, Instant(t=0.0, x={"h": p["h"], "v": 0.0}), p, 1.0).final.x["h"]


def left(p):
    return solve(DECAY, Instant(t=0.0, x=2.0), p, 1.5).final.x


def relaxed(p):
    return solve(RELAXES, Instant(t=0.0, x={"x": 0.0}), p, 3.0).final.x["x"]


@jax.custom_jvp
def wrong_square(x):
    return x**2


wrong_square.defjvp(lambda x, dx: (wrong_square(x[0]), 1.01 * 2 * x[0] * dx[0]))


@jax.custom_vjp
def backward_square(x):
    return x**2


backward_square.defvjp(lambda x: (x**2, x), lambda x, g: (2 * x * g,))


def test_every_way_is_shown_and_they_agree():
    found = saltus.compare(height, P)
    assert found.agree and found["continuous forward"].off < 1e-6
    assert {w.name for w in found.ways} >= {"adjoint sweep", "tangent sweep", "finite differences"}
    assert all(w.seconds > 0 for w in found.ways)
    compiled = [w for w in found.ways if np.isfinite(w.compile_seconds)]
    assert len(compiled) == 6 and all(w.megabytes > 0 for w in compiled)
    for word in ("method", "d/d c", "d/d h", "off", "MB", "backsolve", "All agree"):
        assert word in repr(found)


def test_the_one_that_disagrees_is_named_with_a_reason():
    found = saltus.compare(relaxed, 60.0, repeat=1)
    assert "continuous adjoint, backsolve" in found.disagree
    assert "integrated backward" in repr(found) and "in p:" in repr(found)
    with pytest.raises(KeyError, match="adjoint sweep"):
        found["adjoint"]


def test_a_wrong_derivative_is_seen_beside_parameters_that_do_not_matter():
    """What is known of one entry says nothing about the others; numbers may stand beside words."""
    p = {"a": 0.7, "unused": 0.0, "whole": 2, "label": "text", "flag": True}
    found = saltus.compare(lambda p: wrong_square(left(p["a"])), p, repeat=1)
    assert found.disagree == ("finite differences",)
    assert found["finite differences"].worst == "a"
    assert found["finite differences"].off == pytest.approx(0.01, rel=0.02)
    assert "may not match its values" in repr(found)
    assert found["adjoint sweep"].gradient["label"] is None


def test_ways_that_do_not_apply_leave_the_others_alone():
    found = saltus.compare(lambda p: backward_square(left(p)), 0.7, repeat=1)
    assert not found["tangent sweep"].applies and "custom_vjp" in found["tangent sweep"].note
    assert found.agree and found["adjoint sweep"].applies
    slopes = saltus.compare(jax.grad(left), 0.7, repeat=1)
    assert not slopes["adjoint sweep"].applies and slopes.agree
    assert float(slopes["tangent sweep"].gradient) == pytest.approx(4.5 * np.exp(-1.05), rel=1e-6)


@pytest.mark.slow
def test_single_precision_is_compared_to_its_own_rounding():
    found = saltus.compare(left, jnp.float32(0.7), repeat=1)
    assert found.agree and found.limit > 1e-6


def test_a_loss_without_a_value_is_one_sentence():
    text = repr(saltus.compare(lambda p: left(p) * jnp.nan, 0.7, repeat=1))
    assert "not finite" in text and "tighten" not in text


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"did not call saltus\.solve"):
        saltus.compare(lambda p: p**2, 3.0)
    with pytest.raises(ValueError, match="no numbers"):
        saltus.compare(lambda p: left(0.7), {})
    with pytest.raises(TypeError, match="comes first"):
        saltus.compare(0.7, left)
    with pytest.raises(TypeError, match="comes first"):
        continuous.adjoint(0.7, 0.7)
    with pytest.raises(ValueError, match="same structure"):
        continuous.hvp(lambda p: left(p["a"]), {"a": 0.7}, {"b": 1.0})
    with pytest.raises(ValueError, match="one number"):
        continuous.hessian(lambda p: jnp.stack([left(p), left(p)]), 0.7)
    with pytest.raises(TypeError, match="a Continuous"):
        solve(DECAY, Instant(t=0.0, x=2.0), 0.7, 1.5, sensitivity="continuous")
    with pytest.raises(TypeError, match="expected a Solution"):
        continuous.drift("backsolve")


def test_a_compiled_loss_may_be_asked_again_and_again():
    loss = jax.jit(left)
    first, again = continuous.adjoint(loss, 0.7)[1], continuous.adjoint(loss, 0.7)[1]
    assert float(first) == float(again)
    assert float(continuous.forward(loss, 0.7)) == pytest.approx(float(first), rel=1e-8)


def test_numbers_of_single_precision_have_adjoints():
    for variant in ("interpolating", "quadrature", "backsolve"):
        gradient = continuous.adjoint(left, jnp.float32(0.7), variant=variant)[1]
        assert gradient.dtype == jnp.float32
        assert float(gradient) == pytest.approx(-3.0 * np.exp(-1.05), rel=1e-6)


def test_backsolve_warns_wherever_it_is_used():
    way = continuous.Continuous("backsolve")
    start = Instant(t=0.0, x={"x": 0.0})
    by_option = lambda p: solve(RELAXES, start, p, 3.0, sensitivity=way).final.x["x"]
    for run in (jax.grad(by_option), lambda p: continuous.hessian(relaxed, p, variant="backsolve")):
        with pytest.warns(RuntimeWarning, match="return with errors"):
            run(20.0)
