"""A gradient is compared with those of finer steps: what a loss makes of errors is seen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import HybridSystem, Instant, solve
from saltus.solver.context import tightening

DECAY = HybridSystem(lambda now, p: -p["k"] * now.x)


def end(p, **options):
    return solve(DECAY, Instant(t=0.0, x=1.0), p, 1.0, **options).final.x


def logarithm(p):
    """Minus k; but the state is known to the absolute tolerance only."""
    return jnp.log(end(p))


@pytest.mark.parametrize(
    ("k", "verdict"), [(3.0, "TRUSTED"), (12.0, "DEGRADED"), (30.0, "UNTRUSTED")]
)
def test_the_logarithm_of_a_state_that_decays_is_trusted_while_it_has_digits(k, verdict):
    cert = saltus.certify(logarithm, {"k": k})
    assert cert.verdict == verdict
    off = abs(float(cert.gradient["k"]) + 1)
    assert off <= float(cert.error)  # it says how many digits there are
    if verdict != "TRUSTED":
        assert "tolerances are finer" in cert.reasons[0]
        assert "with finer steps" in repr(cert)


def test_the_same_is_seen_inside_jit():
    level = jax.jit(lambda k: saltus.certify(logarithm, {"k": k}).level)
    assert [int(level(k)) for k in (3.0, 12.0, 30.0)] == [0, 1, 2]


OSCILLATOR = HybridSystem(lambda now, p: {"x": now.x["v"], "v": -(p["w"] ** 2) * now.x["x"]})
WAVE = HybridSystem(lambda now, p: p["a"] * jnp.cos(now.t + p["phase"]))


def swing(p):
    return solve(OSCILLATOR, Instant(t=0.0, x={"x": 1.0, "v": 0.0}), p, 1.0).final.x["x"]


def wave(p, t0=0.0):
    return solve(WAVE, Instant(t=t0, x=0.0), p, t0 + 1.3).final.x


def hill(p):
    return (end(p) - jnp.exp(-0.5)) ** 2


@pytest.mark.parametrize(
    ("loss", "p"),
    [
        (swing, {"w": 100.0}),
        (lambda p: wave(p, 1e6), {"a": 1.0, "phase": 0.3}),
        (wave, {"a": 1.0, "phase": 1e6}),
        (lambda p: 1e3 * hill(p), {"k": 0.5}),
        (lambda p: 1e9 * end(p) + 1e-3 * p["far"], {"k": 1.0, "far": 1e5}),
        (lambda p: jnp.sin(1e5 * p["a"]) + end(p), {"k": 1.0, "a": 1.0}),
    ],
    ids=["fast", "late", "many turns", "minimum", "large units", "steep"],
)
def test_losses_that_are_steep_large_or_flat_are_no_cause_for_alarm(loss, p):
    assert saltus.certify(loss, p).trusted


def test_a_solve_that_cannot_be_finer_says_nothing():
    """A limit on steps that suffices for the tolerance given, but for no finer one."""
    method = saltus.Tsit5(rtol=1e-6, atol=1e-6)
    stats = solve(DECAY, Instant(t=0.0, x=1.0), {"k": 20.0}, 1.0, method=method).stats
    loss = lambda p: end(p, method=method, max_steps=int(stats.steps + stats.rejected))
    cert = saltus.certify(loss, {"k": 20.0})
    assert np.isnan(cert.error) and np.isfinite(cert.value)


def test_tolerances_are_multiplied_and_starts_are_judged_by_those_given():
    """Ten times finer: more steps, a smaller error; what a user allows at the start stays."""
    loose = saltus.Tsit5(rtol=1e-4, atol=1e-6)
    first = solve(DECAY, Instant(t=0.0, x=1.0), {"k": 2.0}, 1.0, method=loose)
    with tightening(0.01):
        second = solve(DECAY, Instant(t=0.0, x=1.0), {"k": 2.0}, 1.0, method=loose)
    assert int(second.stats.steps) > int(first.stats.steps)
    off = [abs(float(s.final.x) - np.exp(-2.0)) for s in (first, second)]
    assert off[1] < 0.1 * off[0]
    assert [float(s.tolerance[0]) for s in (first, second)] == [1e-4, 1e-4]


# -- solves that cannot be examined ----------------------------------------------------------------


@pytest.mark.parametrize(
    "hidden",
    [
        jax.jit(end),
        lambda p: jnp.sum(jax.lax.map(lambda k: end({"k": k}), jnp.stack([p["k"], 2.0]))),
        lambda p: jax.lax.cond(p["k"] > 0, end, lambda p: 0.0, p),
    ],
    ids=["jit", "map", "cond"],
)
def test_a_solve_inside_of_a_compiled_function_is_refused_every_time(hidden):
    """JAX runs such a function once; the solve beside it can be examined."""
    loss = lambda p: hidden(p) + end(p)
    for _ in range(2):
        with pytest.raises(ValueError, match="a solve happens inside"):
            saltus.certify(loss, {"k": 1.0})


def test_a_loss_that_reads_numbers_by_python_is_certified():
    loss = lambda p: end(p) if p["k"] > 0.5 else 2.0 * end(p)
    assert saltus.certify(loss, {"k": 1.0}).trusted


# -- corners of several parameters, small bends beside large numbers -------------------------------


def corner(p):
    inside = (p["a"] > 1) & (p["b"] > 1) & (p["c"] < 1)
    return end(p) + jnp.where(inside, 3 * (p["a"] - 1), 0.0)


def deep_corner(p):
    """One of 64 orthants."""
    return end(p) + jnp.where(jnp.all(p["q"] > 1), 3 * jnp.min(p["q"] - 1), 0.0)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    ("loss", "p"),
    [
        (corner, {"k": 1.0, "a": 1.0, "b": 1.0, "c": 1.0}),
        (deep_corner, {"k": 1.0, "q": jnp.ones(6)}),
        (lambda p: 1e6 + end(p) + 0.05 * jnp.abs(p["a"] - 1), {"k": 1.0, "a": 1.0}),
        (lambda p: end(p) + jnp.where(p["a"] > 1, 1e-6, 0.0), {"k": 1.0, "a": 1.0}),
    ],
    ids=["corner", "deep corner", "small bend", "small jump"],
)
def test_bends_in_corners_and_beside_large_numbers_are_found(loss, p, jit):
    level = lambda p: saltus.certify(loss, p).level
    assert int((jax.jit(level) if jit else level)(p)) == 2


def test_a_corner_that_is_not_touched_and_a_smooth_offset_are_trusted():
    assert saltus.certify(corner, {"k": 1.0, "a": 1.2, "b": 0.5, "c": 1.0}).trusted
    smooth = lambda p: 1e6 + end(p) + 0.05 * (p["a"] - 1) ** 2
    assert saltus.certify(smooth, {"k": 1.0, "a": 1.0}).trusted
