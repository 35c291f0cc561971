"""Points at which a constraint stops determining z: named by every method, never stepped over."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from saltus import Fixed, HybridSystem, Instant, Radau5, Result, Rodas5P, Tsit5, solve
from saltus.base.results import ConstraintError
from saltus.model.impasse import MIN_PIVOT_LEFT, _few_pivots, _pivots

# z^2 = v with v' = -p z has z = 1 - p t / 2: nothing grows, and g_z = 2 z is zero at t = 2 / p.
# From there z = 0 goes on as well as z < 0.
SMOOTH = HybridSystem(
    lambda now, p: {"v": -p * now.z["q"]}, lambda now, p: {"e": now.z["q"] ** 2 - now.x["v"]}
)


def started(v, q):
    return Instant(t=0.0, x={"v": v}, z={"q": q})


SPEEDS_AND_ENDS = [(1.0, 2.5), (1.0, 3.0), (1.0, 5.0), (1.0, 300.0), (0.3, 20.0), (-1.0, -5.0)]
# v is of size 1 at the start: z = sqrt(v) is known up to the root of some rounding errors.
ROOT_OF_ROUNDING = np.sqrt(1000 * np.finfo(float).eps)


@pytest.mark.parametrize("method", [Radau5, Rodas5P, Tsit5])
def test_no_method_steps_over_a_singular_point_that_a_solution_could_pass(method):
    """From v = tol, which is as good as zero, the point is a time of end sqrt(tol) away."""
    for tol, (p, t1) in itertools.product((1e-6, 1e-8, 1e-10), SPEEDS_AND_ENDS):
        end, exactly = 2 / p, method(rtol=tol, atol=tol)
        sol = solve(
            SMOOTH, started(1.0, 1.0), p, t1, ts=[0.5 * end, 1.1 * end], method=exactly, throw=False
        )
        assert sol.result == Result.singular
        np.testing.assert_allclose(sol.last.t, end, rtol=np.sqrt(tol))
        np.testing.assert_array_equal(sol.reached, [True, False])
        np.testing.assert_allclose(sol.y["v"][0], 0.25, rtol=10 * tol)
        assert abs(sol.last.z["q"]) < ROOT_OF_ROUNDING and np.isnan(sol.final.z["q"])
        assert int(sol.stats.steps) < 1000
    assert type(sol.error) is ConstraintError and "derivative by q" in str(sol.error)
    short = solve(SMOOTH, started(1.0, 1.0), 1.0, 1.9, method=exactly)
    np.testing.assert_allclose(short.final.z["q"], 0.05, rtol=1e-7)


def test_a_fixed_step_over_a_singular_point_is_refused():
    sol = solve(SMOOTH, started(1.0, 1.0), 1.0, 5.0, method=Radau5(control=Fixed(0.3)), throw=False)
    assert sol.result == Result.singular
    np.testing.assert_allclose(sol.last.t, 1.8)


def test_lanes_at_singular_points_leave_the_others_alone():
    """Many speeds, so that rounding near the point comes out in many ways: none gets past it."""
    end = jax.jit(jax.vmap(lambda p: solve(SMOOTH, started(1.0, 1.0), p, 1.0).final.z["q"]))
    fast, slow = jnp.linspace(2.1, 9.0, 98), jnp.linspace(0.1, 0.2, 98)
    two = jnp.array([0.5, -1.0])
    mixed, good = (end(jnp.concatenate([two, more])) for more in (fast, slow))
    assert np.all(np.isnan(mixed[2:]))
    np.testing.assert_array_equal(mixed[:2], good[:2])
    np.testing.assert_allclose(mixed[:2], [0.75, 1.5], rtol=1e-8)


@pytest.mark.parametrize("size", [2, 6])
def test_components_that_turn_singular_in_pairs_are_seen(size):
    """The determinant does not change its sign where two of them pass zero together."""
    speeds = jnp.array([1.0, 1.0, 0.4, 0.4, 0.2, 0.2])[:size]
    mixed = jnp.eye(size) + 0.3 * jnp.ones((size, size))
    system = HybridSystem(
        lambda now, p: {"v": -speeds * now.z["q"]},
        lambda now, p: {"e": mixed @ (now.z["q"] ** 2 - now.x["v"])},
    )
    method = Radau5(rtol=1e-10, atol=1e-10)
    start = started(jnp.ones(size), jnp.ones(size))
    sol = solve(system, start, None, 7.0, method=method, throw=False)
    assert sol.result == Result.singular
    np.testing.assert_allclose(sol.last.t, 2.0, rtol=1e-5)  # the root of the tolerance, as above


def diode(now, p):
    """An ideal one: g_z jumps by six powers of ten where q changes its sign."""
    return {"e": now.x["v"] - now.z["q"] * jnp.where(now.z["q"] > 0, 1e6, 1.0)}


def turned(now, p):
    """g_z jumps from 1 to -1 where v changes its sign."""
    return {"e": jnp.where(now.x["v"] > 0, 1.0, -1.0) * (now.z["q"] - now.x["v"])}


@pytest.mark.parametrize("constraint", [diode, turned])
def test_a_kink_of_the_constraint_is_no_impasse(constraint):
    system = HybridSystem(lambda now, p: {"v": -1.0 + 0.0 * now.x["v"]}, constraint)
    sol = solve(system, started(0.7, 0.7), None, 2.0)
    np.testing.assert_allclose(sol.final.z["q"], -1.3, rtol=1e-6)


def test_a_jacobian_that_turns_without_being_singular_is_followed():
    """g_z is a rotation by 3 t: its diagonal changes sign, its determinant is 1."""
    system = HybridSystem(
        lambda now, p: {"v": -now.x["v"]},
        lambda now, p: {
            "a": jnp.cos(3 * now.t) * now.z["q"][0] - jnp.sin(3 * now.t) * now.z["q"][1]
            - now.x["v"],
            "b": jnp.sin(3 * now.t) * now.z["q"][0] + jnp.cos(3 * now.t) * now.z["q"][1],
        },
    )  # fmt: skip
    exact = np.exp(-4.0) * np.array([np.cos(12.0), -np.sin(12.0)])
    for method, atol in ((Radau5(), 1e-8), (Rodas5P(control=Fixed(0.8)), 1e-4)):
        sol = solve(system, started(1.0, jnp.array([1.0, 0.0])), None, 4.0, method=method)
        np.testing.assert_allclose(sol.final.z["q"], exact, atol=atol)


def test_pivots_are_quotients_of_leading_minors():
    matrix = np.random.default_rng(1).normal(size=(4, 4)) + 2 * np.eye(4)
    minors = [1.0, *(np.linalg.det(matrix[:k, :k]) for k in range(1, 5))]
    quotients = np.array(minors[1:]) / minors[:-1]
    columns = [list(map(jnp.asarray, column)) for column in matrix.T]
    for least, product in (_few_pivots(columns), _pivots(jnp.asarray(matrix))):
        np.testing.assert_allclose(least, min(quotients), rtol=1e-12)
        np.testing.assert_allclose(product, minors[-1], rtol=1e-12)
    assert _pivots(jnp.eye(6)[::-1])[0] <= MIN_PIVOT_LEFT  # exchanged rows are no small change
