"""Algebraic systems at the edges: branches, steady starts, impasses, failed starts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from saltus import HybridSystem, Instant, Radau5, Result, Rodas5P, SolveError, Tsit5, solve


def started(x, z, **more):
    return Instant(t=0.0, x={"v": x}, z={"q": z}, **more)


def test_z_keeps_its_branch_up_to_the_end():
    system = HybridSystem(
        lambda now, p: {"v": 0.5},
        lambda now, p: {"e": jnp.sin(now.z["q"]) - 0.1 * now.x["v"]},
        output=lambda now, p: now.z["q"],
    )
    sol = solve(system, started(1.0, 6.2), None, 1.0, ts=[0.0, 0.5, 1.0])
    exact = 2 * np.pi + np.arcsin(0.1 * np.array([1.0, 1.25, 1.5]))
    np.testing.assert_allclose(sol.y, exact, rtol=1e-9)
    for side in ("left", "right"):
        np.testing.assert_allclose(sol(1.0, side=side), exact[-1], rtol=1e-9)


CUBIC = HybridSystem(
    lambda now, p: {"v": p * now.z["q"]},
    lambda now, p: {"e": now.z["q"] ** 3 + now.z["q"] - now.x["v"]},
)


def test_a_solve_may_start_at_rest_where_newtons_corrections_are_rounding():
    final = jax.jit(lambda x: solve(CUBIC, started(x, 0.4), 0.0, 1.0, max_steps=100).result)
    assert {int(final(x)) for x in np.linspace(-2.0, 2.0, 50)} == {int(Result.success)}


def test_a_guess_in_single_precision_is_only_a_guess():
    sol = solve(CUBIC, started(1.0, np.float32(0.0)), 1.0, 1.0)
    assert sol.final.z["q"].dtype == jnp.float64
    assert abs(sol.final.z["q"] ** 3 + sol.final.z["q"] - sol.final.x["v"]) < 1e-12


def test_a_far_guess_for_a_diode_is_near_enough():
    system = HybridSystem(
        lambda now, p: {"v": -now.x["v"]},
        lambda now, p: {"e": now.x["v"] - now.z["q"] - 2e-6 * jnp.sinh(now.z["q"] / 0.026)},
    )
    q = solve(system, started(1.0, 1.0), None, 0.1, method=Rodas5P()).final.z["q"]
    assert abs(np.exp(-0.1) - q - 2e-6 * np.sinh(q / 0.026)) < 1e-8


def test_a_violation_beyond_the_tolerance_is_inconsistent_and_nothing_else():
    system = HybridSystem(
        lambda now, p: {"v": now.z["q"]}, lambda now, p: {"e": now.x["v"] - jnp.cos(now.t)}
    )
    assert solve(system, started(1.0 + 1e-8, 0.0), None, 1.0).result == Result.success
    for off in (1e-6, 1e-4):
        with pytest.raises(SolveError, match="inconsistent") as caught:
            solve(system, started(1.0 + off, 0.0), None, 1.0)
        assert caught.value.solution.result == Result.inconsistent


@pytest.mark.parametrize("method", [Radau5(), Rodas5P(), Tsit5()], ids=lambda m: type(m).__name__)
def test_an_impasse_is_called_singular_by_every_method(method):
    system = HybridSystem(
        lambda now, p: {"v": -1.0}, lambda now, p: {"e": now.z["q"] ** 2 - now.x["v"]}
    )
    sol = solve(system, started(1.0, 1.0), None, 2.0, method=method, throw=False)
    assert sol.result == Result.singular
    np.testing.assert_allclose(sol.last.t, 1.0, atol=1e-6)


def test_a_solve_that_fails_at_its_start_has_no_derivative_in_any_mode():
    system = HybridSystem(
        lambda now, p: {"v": -now.z["q"]}, lambda now, p: {"e": now.z["q"] ** 2 - p - now.x["v"]}
    )
    value = lambda p: solve(system, started(1.0, 1.0), p, 1.0).final.x["v"]
    lanes = jnp.array([0.5, -2.0])
    for derivative in (jax.grad, jax.jacfwd):
        slopes = jax.vmap(derivative(value))(lanes)
        np.testing.assert_allclose(slopes[0], -1 / np.sqrt(6), rtol=1e-6)
        assert np.isnan(slopes[1])
