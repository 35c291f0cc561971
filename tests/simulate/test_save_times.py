"""Saved values of implicit methods: the same as dense output, by another way through the sweeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dae_problems import dae_problem
from saltus import Event, HybridSystem, Instant, Radau5, Rodas5P, Tsit5, solve

PROBLEM = dae_problem("two_rates")
METHODS = {"radau5": Radau5(), "rodas5p": Rodas5P(), "tsit5": Tsit5()}
P = {name: jnp.asarray(value, float) for name, value in PROBLEM.p.items()}
END = float(P["T"])


def run(p, ts=None, method=METHODS["radau5"], **options):
    return solve(PROBLEM.system, PROBLEM.start(p), p, END, ts=ts, method=method, **options)


@pytest.fixture(scope="module")
def times():
    """Unsorted, twice the same, the start, the end, and the time of the event."""
    event = float(run(P).events.t[0])
    return jnp.array([0.7 * END, 0.0, END, event, 0.3 * END, 0.7 * END, 0.5 * event])


def close(a, b, tolerance=1e-11):
    for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(u, v, rtol=tolerance, atol=tolerance)


def weighed(y):
    return jnp.sum(jnp.arange(1.0, 8.0) * y["x"] ** 2)


@pytest.mark.parametrize("name", METHODS)
def test_saved_values_and_their_derivatives_are_those_of_dense_output(name, times):
    method = METHODS[name]
    saved = lambda p, ts: weighed(run(p, ts, method).y)
    dense = lambda p, ts: weighed(run(p, method=method)(ts))
    value, there = jax.value_and_grad(saved, (0, 1))(P, times)
    other, slopes = jax.value_and_grad(dense, (0, 1))(P, times)
    close(value, other)
    close(there, slopes)
    close(jax.jacfwd(saved)(P, times), slopes[0])


@pytest.mark.slow
def test_second_derivatives_and_lanes_agree_too(times):
    saved = lambda p: weighed(run(p, times).y)
    dense = lambda p: weighed(run(p)(times))
    close(jax.hessian(saved)(P), jax.hessian(dense)(P), 1e-9)
    lanes = jax.tree.map(lambda v: v * jnp.array([1.0, 1.02, 0.97]), P)
    one_by_one = [jax.grad(saved)(jax.tree.map(lambda v, k=k: v[k], lanes)) for k in range(3)]
    together = jax.vmap(jax.grad(saved))(lanes)
    close(together, jax.tree.map(lambda *v: jnp.stack(v), *one_by_one), 1e-7)
    close(jax.vmap(jax.jacfwd(saved))(lanes), together)


def test_what_lies_behind_a_terminal_event_is_nan_and_disturbs_no_gradient():
    system = HybridSystem(
        lambda now, p: {"x": -now.z["z"]},
        lambda now, p: {"rate": now.z["z"] - p},
        [Event("empty", lambda now, p: now.x["x"], terminal=True)],
        output=lambda now, p: {"x": now.x["x"], "z": now.z["z"] ** 2},
    )
    start = Instant(t=0.0, x={"x": 1.0}, z={"z": 0.0})

    def loss(p):
        y = solve(system, start, p, 9.0, ts=jnp.array([0.25, 0.5, 3.0])).y
        return jnp.sum(y["x"][:2]) + y["z"][0]

    sol = solve(system, start, 2.0, 9.0, ts=jnp.array([0.25, 0.5, 3.0]))
    assert list(np.isnan(sol.y["x"])) == [False, False, True]
    np.testing.assert_allclose(jax.grad(loss)(2.0), -0.75 + 4.0, rtol=1e-10)


def test_backward_in_time_excursions_go_backward():
    system = HybridSystem(lambda now, p: {"x": -now.z}, lambda now, p: now.z - p * now.x["x"])
    start = Instant(t=1.0, x={"x": 1.0}, z=0.0)
    value = lambda p: solve(system, start, p, 0.0, ts=jnp.array([0.4, 0.9])).y["x"][0]
    np.testing.assert_allclose(jax.value_and_grad(value)(0.7), [np.exp(0.42), 0.6 * np.exp(0.42)],
                               rtol=1e-7)  # fmt: skip


@pytest.mark.parametrize("way", [jax.jit, jax.vmap])
def test_a_save_time_that_is_a_parameter_has_a_derivative(way):
    value = lambda t: run(P, jnp.atleast_1d(t)).y["x"][0]
    slope = way(jax.grad(value))(jnp.asarray(0.6) if way is jax.jit else jnp.array([0.6]))
    at = run(P)
    step = 1e-4
    around = (at(0.6 + step)["x"] - at(0.6 - step)["x"]) / (2 * step)
    np.testing.assert_allclose(jnp.ravel(slope)[0], around, rtol=1e-6)
