"""Kernels: what is compiled as one function, and the table of back ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus.base import kernel


def summed(scale, limit):
    """A loop that fits into one kernel."""

    def body(state):
        k, total = state
        return k + 1, total + jnp.sin(scale * k)

    return [jax.lax.while_loop(lambda s: s[0] < limit, body, (0, jnp.zeros(())))[1]]


def sorted_sum(scale, limit):
    """One that does not: a library sorts."""
    return [jnp.sort(scale * jnp.arange(5.0))[-1] + 0 * limit]


@pytest.mark.parametrize("program", [summed, sorted_sum])
@pytest.mark.parametrize("lanes", [False, True])
def test_a_kernel_computes_what_its_program_does(program, lanes):
    scale = jnp.array([0.3, 0.7]) if lanes else jnp.asarray(0.3)
    plain = jax.vmap(program, in_axes=(0, None)) if lanes else program
    inside = jax.jit(kernel.one_kernel(plain, "cpu"))
    got, exact = inside(scale, jnp.asarray(5)), plain(scale, jnp.asarray(5))
    np.testing.assert_allclose(got[0], exact[0], rtol=1e-15)


def test_a_platform_without_a_kernel_runs_the_program_itself():
    assert kernel.one_kernel(summed, "tpu")(jnp.asarray(0.3), 5)[0].shape == ()


def test_simulation_and_sweeps_use_the_back_end_of_the_table(monkeypatch):
    used = []

    def counted(fn):
        used.append(fn)
        return fn

    monkeypatch.setitem(kernel.KERNELS, "cpu", counted)
    system = saltus.HybridSystem(lambda now, p: -p * now.x * jnp.cos(0.123 * now.t))
    end = lambda p: saltus.solve(system, saltus.Instant(t=0.0, x=1.0), p, 1.0).final.x
    slope = jax.grad(end)(1.5)
    assert len(used) >= 2  # the loop, and the adjoint sweep
    exact = np.sin(0.123) / 0.123
    np.testing.assert_allclose(slope, -exact * np.exp(-1.5 * exact), rtol=1e-7)
