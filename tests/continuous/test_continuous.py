"""Continuous forward and adjoint equations against references, and against the sweeps.

Gradients at rtol = 1e-10 of the continuous equations and of the solve are held to 1e-6, relative to
the largest entry, as in the tests of the sweeps (there 1e-8).
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.interpolate import CubicSpline

import saltus
from dae_problems import DAE_PROBLEMS, dae_problem
from mechanisms import LENGTHS, ends, five_bar_outputs, five_bar_truth
from problem import data
from problems import PROBLEMS, problem
from saltus import Event, HybridSystem, Instant, Radau5, Tsit5, continuous, solve
from saltus.continuous import Continuous
from saltus.solver.context import asking

GRADIENT = 1e-6
TSIT, RADAU = Tsit5(rtol=1e-10, atol=1e-10), Radau5(rtol=1e-10, atol=1e-10)
VARIANTS = ("interpolating", "quadrature", "backsolve")
WAYS = {"forward": jax.jacfwd, **dict.fromkeys(VARIANTS, jax.jacrev)}

QUICK = {("simple_hybrid_ode", way) for way in WAYS} | {
    ("kicked_ball", "interpolating"), ("memory", "interpolating"),
    ("nested_chain", "forward"), ("sampled_controller", "interpolating"),
    ("two_rates", "interpolating"), ("memory_of_z", "forward"),
}  # fmt: skip
SKIPPED = {"hysteresis", "cauer", "cauer_start"}  # those have tests of their own


def cases():
    ways = {**dict.fromkeys(PROBLEMS, tuple(WAYS))}
    ways |= {n: ("forward", "interpolating") for n in DAE_PROBLEMS if n not in SKIPPED}
    for name, these in ways.items():
        for way in these:
            marks = [] if (name, way) in QUICK else [pytest.mark.slow]
            yield pytest.param(name, way, marks=marks)


def worst(case, jacobian):
    """The largest error of a gradient, relative to its largest entry or to y / p."""
    out = {}
    for y, exact in case.exact.gradients.items():
        floor = abs(case.exact.values[y]) / max(map(abs, case.p.values()))
        size = max([floor, *(abs(v) for v in exact.values())]) or 1.0
        out[y] = max(abs(float(jacobian[y][k]) - v) / size for k, v in exact.items())
    return {y: e for y, e in out.items() if not e <= GRADIENT}


def jacobian(case, way, method):
    variant = "interpolating" if way == "forward" else way
    wanted = case.exact.gradients

    def outputs(p):
        found = case.evaluate(p, method=method, sensitivity=Continuous(variant))
        return {y: found[y] for y in wanted}

    return jax.jit(WAYS[way](outputs))({k: jnp.asarray(v) for k, v in case.p.items()})


@pytest.mark.parametrize("name, way", list(cases()))
def test_gradients_agree_with_the_reference(name, way):
    case, method = (problem(name), TSIT) if name in PROBLEMS else (dae_problem(name), RADAU)
    assert worst(case, jacobian(case, way, method)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["forward", "interpolating", "quadrature"])
def test_memory_is_carried_along_as_in_algorithm_1(way):
    """P2: 19 reversals whose memory of u and z is differentiated."""
    case = dae_problem("hysteresis")
    assert worst(case, jacobian(case, way, TSIT)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["forward", "interpolating"])
def test_five_bars_with_impacts(way):
    """P6: a mechanism of index 1 with nine impacts, by the equations of Corner et al."""
    exact = five_bar_truth("P6a")[1]
    outputs = lambda lengths: five_bar_outputs("index1")(lengths, ends("P6a"))[0]
    with asking(Continuous()):
        found = np.asarray(jax.jit(WAYS[way](outputs))(LENGTHS))
    happened = np.isfinite(exact)
    np.testing.assert_allclose(found[happened], exact[happened], rtol=1e-6)


# -- adjoint variables -----------------------------------------------------------------------------


def test_adjoints_jump_as_in_the_paper():
    """P1: lambda before and after each switch, with the sign of the paper's equations."""
    sol = problem("simple_hybrid_ode").solve(method=TSIT)
    found = continuous.adjoints(lambda s: s.integral, sol)
    exact = data("papers")["problems"]["P1"]["extra"]["adjoint_lambda_plus_minus_(t3,t2,t1)"]
    lam, places = found.lam["x"], np.flatnonzero(found.jump)[:3]
    pairs = [(-lam[k + 1], -lam[k]) for k in places[::-1]]
    np.testing.assert_allclose(pairs, np.array(exact, float), rtol=1e-7)


@pytest.mark.slow
def test_adjoints_of_index_2_are_those_of_the_paper():
    """P3a: f_z^T lambda + g_z = 0 at all times, and dG/dg = int lambda^T f_g dt, as (21) says.

    Gravity enters neither start nor wall, so that no other term is left; f_g = -1 in w'. Another
    choice of lambda (by multiples of the constraint's gradient) would give another integral.
    """
    case = dae_problem("pendulum_wall")
    sol = case.solve(method=RADAU)
    found = continuous.adjoints(lambda s: s.integral["G1"], sol)
    pieces = np.split(np.arange(len(found.t)), np.flatnonzero(found.jump) + 1)
    total = 0.0
    for piece in (piece for piece in pieces if len(piece) > 3):
        t, keep = np.unique(found.t[piece], return_index=True)
        rows = piece[keep]
        total -= CubicSpline(t, np.asarray(found.lam["w"])[rows]).integrate(t[0], t[-1])
        x = jax.vmap(lambda t: sol.at(t).x)(jnp.asarray(t[1:-1]))
        inner = {k: np.asarray(v)[rows[1:-1]] for k, v in found.lam.items()}
        np.testing.assert_allclose(x["x"] * inner["u"] + x["y"] * inner["w"], 1.0, atol=1e-7)
    assert total == pytest.approx(case.exact.gradients["G1=int lambda"]["g"], rel=1e-7)


BALL = HybridSystem(
    lambda now, p: {"h": now.x["v"], "v": -p["g"] - p["c"] * now.x["v"]},
    rate=lambda now, p: {"work": now.x["h"] ** 2},
    events=[
        Event(
            "bounce",
            lambda now, p: now.x["h"],
            reset=lambda now, p: now.replace(x={**now.x, "v": -p["e"] * now.x["v"]}),
        )
    ],
)
P = {"g": 9.81, "c": 0.05, "e": 0.8, "h": 1.0}


def everything(p, **options):
    """Final state, integral, an event time, saved values."""
    start = Instant(t=0.0, x={"h": p["h"], "v": 0.0})
    ts = jnp.array([0.3, 1.0, 1.7])
    sol = solve(BALL, start, p, 2.0, ts=ts, method=Tsit5(rtol=1e-11, atol=1e-11), **options)
    return (
        sol.final.x["h"] + sol.integral["work"] + sol.events.t[1] + jnp.sum(sol.y["v"] ** 2)
        + sol.events.before.x["v"][0]
    )  # fmt: skip


@cache
def by_sweeps():
    return jax.grad(everything)(P), jax.hessian(everything)(P)


def gap(a, b):
    return max(
        float(jnp.max(jnp.abs(u - v))) for u, v in zip(*map(jax.tree.leaves, (a, b)), strict=True)
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_loss_has_the_gradient_of_the_sweeps(variant):
    value, gradient = continuous.adjoint(everything, P, variant=variant)
    assert float(value) == float(everything(P))
    assert gap(gradient, by_sweeps()[0]) < 1e-9


def test_forward_is_the_jacobian_of_any_pytree():
    got = continuous.forward(lambda p: {"all": everything(p), "p": p["g"] ** 2}, P)
    assert gap(got["all"], by_sweeps()[0]) < 1e-9
    assert float(got["p"]["g"]) == pytest.approx(2 * P["g"])


def test_forward_over_adjoint_gives_the_hessian_of_the_sweeps():
    """With save times, event times and states before events in the loss."""
    hessian = continuous.hessian(everything, P)
    assert gap(hessian, by_sweeps()[1]) < 1e-7
    column = {"g": 0.0, "c": 0.0, "e": 1.0, "h": 0.0}
    assert gap(continuous.hvp(everything, P, column), {k: hessian[k]["e"] for k in P}) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["quadrature", "backsolve"])
def test_hessians_of_the_other_variants(variant):
    assert gap(continuous.hessian(everything, P, variant=variant), by_sweeps()[1]) < 1e-7


def test_it_works_under_jit_and_vmap_and_leaves_no_trace():
    """A compiled loss is not taken from the cache of another way."""
    loss = jax.jit(everything)
    plain = jax.grad(loss)(P)
    lanes = jax.tree.map(lambda v: jnp.stack([v, 1.01 * v]), jax.tree.map(jnp.asarray, P))
    way = lambda p: jax.grad(lambda q: everything(q, sensitivity=Continuous()))(p)
    together = jax.jit(jax.vmap(way))(lanes)
    assert gap(jax.tree.map(lambda v: v[0], together), plain) < 1e-9
    _, other = continuous.adjoint(loss, P)
    assert 0 < gap(other, plain) < 1e-9
    assert gap(jax.grad(loss)(P), plain) == 0


# -- what can go wrong -----------------------------------------------------------------------------

RELAXES = HybridSystem(lambda now, p: {"x": -p * (now.x["x"] - jnp.cos(now.t))})


def relaxed(p):
    return solve(RELAXES, Instant(t=0.0, x={"x": 0.0}), p, 3.0).final.x["x"]


def test_backsolve_warns_where_states_come_back_elsewhere():
    with pytest.warns(RuntimeWarning, match="return with errors"):
        continuous.adjoint(relaxed, 20.0, variant="backsolve")
    _, right = continuous.adjoint(relaxed, 20.0)
    assert float(right) == pytest.approx(float(jax.grad(relaxed)(20.0)), rel=1e-5)


def test_backsolve_stays_silent_on_a_ball():
    sol = solve(BALL, Instant(t=0.0, x={"h": 1.0, "v": 0.0}), P, 2.0, method=TSIT)
    assert continuous.drift(sol) < 100


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"did not call saltus\.solve"):
        continuous.adjoint(lambda p: p**2, 1.0)
    with pytest.raises(ValueError, match="interpolating"):
        Continuous("backward")
    with pytest.raises(ValueError, match="rtol"):
        Continuous(rtol=0.0)
    stiff = lambda p: solve(RELAXES, Instant(t=0.0, x={"x": 0.0}), p, 1.0, method=Radau5()).final.x[
        "x"
    ]
    with pytest.raises(ValueError, match="backsolve"):
        continuous.adjoint(stiff, 1.0, variant="backsolve")


# -- jumps as matrices ----------------------------------------------------------------------------


def test_saltation_matrices_can_be_printed_and_multiplied():
    """A bounce: dt = -dh / v, and dv+ = -e (dv + a- dt) - a+ dt with the accelerations a."""
    sol = solve(BALL, Instant(t=0.0, x={"h": 1.0, "v": 0.0}), P, 1.5, method=TSIT)
    jumps = saltus.saltations(sol)
    assert len(jumps) == int(sol.events.count) == len(jumps.of("bounce"))
    v, e = float(sol.events.before.x["v"][0]), P["e"]
    before, after = -P["g"] - P["c"] * v, -P["g"] + P["c"] * e * v
    slope = (e * before + after) / v
    np.testing.assert_allclose(jumps[0].matrix, [[-e, 0.0], [slope, -e]], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(jumps[1] @ jumps[0], jumps[1].matrix @ jumps[0].matrix)
    for word in ("bounce", "t = ", "h +", "v -"):
        assert word in repr(jumps)
