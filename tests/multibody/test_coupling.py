"""Constraints that couple in a band: the same motion as with dense matrices, for less."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus.multibody import Mechanism
from saltus.multibody.coupling import CONSTRAINTS_FOR_A_BAND, Band, band_of
from saltus.multibody.equations import Equations

RODS = 10
SHUFFLED = tuple(int(k) for k in np.random.default_rng(3).permutation(RODS))
PARAMETERS = {"g": jnp.asarray(9.81), "length": jnp.linspace(0.5, 1.5, RODS) / RODS}


@cache
def chain(sparsity="detect", order=tuple(range(RODS)), phases=None, mass=1.0):
    """Masses on rods that hang from the origin; `order` is that of the rods in the constraint."""

    def rods(now, p):
        bars = jnp.diff(now.q, axis=0, prepend=jnp.zeros((1, 2)))
        left = 0.5 * (jnp.sum(bars**2, axis=1) - p["length"] ** 2)
        return {f"rod{k}.{n}": left[k] for n, k in enumerate(order)}

    return Mechanism(
        mass=mass,
        potential=lambda now, p: p["g"] * jnp.sum(now.q[:, 1]),
        constraint=rods,
        phases=None if phases is None else {k: list(v) for k, v in phases},
        sparsity=sparsity,
    )


def zigzag(mechanism, p, phase=None):
    """An instant that obeys the constraints, with rods in all directions."""
    angles = jnp.sin(3.0 * jnp.arange(RODS))
    bars = jnp.stack([jnp.sin(angles), -jnp.cos(angles)], axis=1)
    turns = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1) * jnp.cos(angles)[:, None]
    q, v = (jnp.cumsum(p["length"][:, None] * b, axis=0) for b in (bars, turns))
    return saltus.Instant(0.0, {"q": q, "v": v}, mode=phase)


def everything(p, mechanism, phase=None):
    """Accelerations and multipliers, hard and soft, and a projection from nearby."""
    now = zigzag(mechanism, p, phase)
    off = now.replace(x={"q": now.x["q"] * 1.001, "v": now.x["v"] + 0.01})
    at = Equations(mechanism.model, now, p)
    pairs = at.constrained, at.softened(1e3, 2.0, 1.0)
    return [*pairs[0], *pairs[1], *Equations(mechanism.model, off, p).projected()]


def gradient_and_curvature(fn, p):
    """Of `fn(p) -> (number, more)`: its gradient, the change of that in a direction, and more."""
    along = jax.tree.map(jnp.cos, p)
    gradient = jax.grad(fn, has_aux=True)
    return jax.jit(lambda p: jax.jvp(gradient, (p,), (along,), has_aux=True))(p)


def agree(a, b, tolerance=1e-10):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * np.max(np.abs(y)))


def weighed(values):
    """One number of many, each seen, and all of them."""
    parts = [jnp.cos(jnp.arange(v.size)) * v / jnp.max(jnp.abs(v)) for v in values]
    return sum(map(jnp.sum, parts)), values


CUT = (("whole", tuple(f"rod{k}.{k}" for k in range(RODS))), ("cut", ("rod0.0", "rod7.7")))
TWICE = (*range(RODS), 4)


CHAINS = {
    "chain": ({}, None),
    "shuffled rows": ({"order": SHUFFLED}, None),
    "phase with two of the rods": ({"phases": CUT}, 1),
    "one rod twice": ({"order": TWICE}, None),
}


def both_ways(name):
    """Values, all of them, of a chain in a band and of a dense one: two functions of p."""
    options, mode = CHAINS[name]
    pair = [chain(s, **options) for s in ("detect", "dense")]
    assert [band(m, mode) is None for m in pair] == [False, True]
    return [lambda p, m=m: weighed(everything(p, m, mode)) for m in pair]


def band(mechanism, mode=None):
    return band_of(Equations(mechanism.model, zigzag(mechanism, PARAMETERS, mode), PARAMETERS))


@pytest.mark.parametrize("name", CHAINS)
def test_a_band_gives_what_dense_matrices_give(name):
    agree(*(jax.jit(fn)(PARAMETERS) for fn in both_ways(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CHAINS))
def test_gradients_and_curvatures_too(name):
    agree(*(gradient_and_curvature(fn, PARAMETERS) for fn in both_ways(name)))


@pytest.mark.slow
def test_a_swing_and_its_derivatives_are_those_of_dense_matrices():
    def end(p, sparsity):
        mechanism = chain(sparsity)
        method = saltus.Tsit5(rtol=1e-7, atol=1e-7)
        start = zigzag(mechanism, p)
        sol = saltus.solve(mechanism.system(), start, p, 0.05, method=method, max_steps=64)
        return jnp.sum(sol.final.x["q"][-1] + sol.final.x["v"][3]), sol.final.x

    ways = [lambda p, s=s: end(p, s) for s in ("detect", "dense")]
    agree(*(gradient_and_curvature(fn, PARAMETERS) for fn in ways))


def test_the_band_depends_on_what_constraints_share():
    assert band(chain()) == Band(tuple(range(RODS)), 1)
    assert band(chain("dense")) is None


def test_few_constraints_or_a_mass_matrix_stay_dense():
    assert CONSTRAINTS_FOR_A_BAND > 4
    assert band(chain(order=(0, 1, 2, 3))) is None
    mechanism = Mechanism(
        kinetic=lambda now, p: 0.5 * jnp.sum(now.v**2),
        constraint=lambda now, p: jnp.sum(now.q**2, axis=1) - 1.0,
    )
    assert band(mechanism) is None


def test_constraints_that_all_share_a_body_stay_dense():
    star = Mechanism(1.0, constraint=lambda now, p: jnp.sum((now.q - now.q[:1]) ** 2, axis=1))
    assert band(star) is None


def test_an_unknown_sparsity_is_named():
    with pytest.raises(ValueError, match='sparsity is \'sparse\', expected "detect" or "dense"'):
        chain("sparse")


def test_a_model_may_solve_linear_systems_itself():
    """Their programs call a library, which no kernel can hold."""
    factors = jax.scipy.linalg.lu_factor(jnp.array([[2.0, 1.0], [1.0, 3.0]]))
    system = saltus.HybridSystem(lambda now, p: -jax.scipy.linalg.lu_solve(factors, now.x))
    sol = saltus.solve(system, saltus.Instant(0.0, jnp.ones(2)), None, 1.0)
    exact = jax.scipy.linalg.expm(-jnp.array([[0.6, -0.2], [-0.2, 0.4]])) @ jnp.ones(2)
    np.testing.assert_allclose(sol.final.x, exact, rtol=1e-5)
