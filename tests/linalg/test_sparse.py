"""Large linear systems, solved in a band or by KLU, and their derivatives."""

import dataclasses
import functools
import importlib.util
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import saltus
from saltus.base.extras import MissingExtra
from saltus.base.kernel import _fits
from saltus.linalg.banded import Banded
from saltus.linalg.klu import Sparse, _library
from saltus.linalg.pattern import Pattern
from sparse_functions import pattern_of, ring

HAS_KLU = importlib.util.find_spec("klujax") is not None
KINDS = [
    Banded,
    pytest.param(Sparse, marks=pytest.mark.skipif(not HAS_KLU, reason="klujax is not installed")),
]


RADAU = np.array(
    [[0.1968, -0.0655, 0.0238], [0.3944, 0.2921, -0.0415], [0.3764, 0.5125, 0.1111]]
)  # enough digits for a matrix of this form


@dataclasses.dataclass
class Case:
    """A system of differential and algebraic equations with its dense matrices."""

    pattern: Pattern
    mass: np.ndarray
    jacobians: np.ndarray  # three of them

    def values(self):
        return self.jacobians[:, self.pattern.rows, self.pattern.cols]

    def shifted(self, shift):
        return shift * np.diag(self.mass) - self.jacobians[0]

    def stages(self, h):
        m = np.diag(self.mass)
        rest = np.eye(len(m)) - m
        blocks = [
            [
                (i == j) * m - h * RADAU[i, j] * m @ jacobian - (i == j) * rest @ jacobian
                for j, jacobian in enumerate(self.jacobians)
            ]
            for i in range(3)
        ]
        return np.block(blocks)


def banded_case(size, below, above):
    """Random, with zeros on the diagonal of half of the algebraic rows, in a shuffled order."""
    rng = np.random.default_rng(size + below)
    offset = np.subtract.outer(np.arange(size), np.arange(size))
    inside = (offset <= below) & (-offset <= above)
    mass = (rng.random(size) < 0.6).astype(float)
    inside[np.diag_indices(size)] = (mass == 1) | (rng.random(size) < 0.5)
    shuffled = rng.permutation(size)
    inside, mass = inside[np.ix_(shuffled, shuffled)], mass[shuffled]
    return Case(Pattern.of(inside), mass, np.where(inside, rng.normal(size=(3, size, size)), 0))


CASES = [(5, 1, 1), (30, 2, 1), (30, 1, 4), (60, 5, 3)]


def close(found, exact, matrix):
    """Backward stable: the error is that of a matrix changed by rounding."""
    scale = np.linalg.cond(matrix) * np.abs(exact).max()
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-14 * scale)


def ahead_and_back(solve, vector):
    return solve(vector), jax.linear_transpose(solve, vector)(vector)[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size, below, above", CASES)
@pytest.mark.parametrize("shift", [3.0, 2.0 - 1.5j])
def test_a_solve_agrees_with_the_dense_one(kind, size, below, above, shift):
    case = banded_case(size, below, above)
    system, matrix = kind(case.pattern), case.shifted(shift)
    b = np.arange(1.0, size + 1).astype(matrix.dtype)

    @jax.jit
    def both(values, b):
        factors = system.factor(values, case.mass, shift)
        return ahead_and_back(lambda v: system.solve(factors, v), b)

    ahead, back = both(case.values()[0], b)
    close(ahead, np.linalg.solve(matrix, b), matrix)
    close(back, np.linalg.solve(matrix.T, b), matrix)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size, below, above", CASES[1:3])
def test_a_whole_collocation_step_agrees_with_the_dense_one(kind, size, below, above):
    case = banded_case(size, below, above)
    system, matrix = kind(case.pattern), case.stages(0.3)
    b = np.arange(1.0, 3 * size + 1).reshape(3, size)

    @jax.jit
    def both(values, b):
        factors = system.factor_stages(values, case.mass, RADAU, 0.3)
        return ahead_and_back(lambda v: system.solve_stages(factors, v), b)

    ahead, back = both(case.values(), b)
    close(ahead.reshape(-1), np.linalg.solve(matrix, b.reshape(-1)), matrix)
    close(back.reshape(-1), np.linalg.solve(matrix.T, b.reshape(-1)), matrix)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axes", [(0, 0), (None, 0), (0, None)])
def test_lanes_are_solved_as_one_by_one(kind, axes):
    case = banded_case(30, 2, 1)
    system, b = kind(case.pattern), np.random.default_rng(0).normal(size=(3, 30))

    @jax.jit
    def solve(values, vector):
        return system.solve(system.factor(values, case.mass, 2.0), vector)

    args = [a if axis == 0 else a[0] for a, axis in zip((case.values(), b), axes, strict=True)]
    lanes = jax.jit(jax.vmap(solve, axes))(*args)
    for k in range(3):
        alone = solve(*[a[k] if axis == 0 else a for a, axis in zip(args, axes, strict=True)])
        np.testing.assert_allclose(lanes[k], alone, rtol=1e-11)


def test_single_precision_stays_single():
    case = banded_case(30, 2, 1)
    system, values = Banded(case.pattern), case.values().astype(np.float32)

    def solve(values, h):
        one = system.factor(values[0], case.mass, 1 / h)
        whole = system.factor_stages(values, case.mass, RADAU, h)
        b = values[:, :30]
        return system.solve(one, b[0]), system.solve_stages(whole, b)

    found = jax.eval_shape(solve, values, np.float32(0.1))
    assert [x.dtype for x in found] == [jnp.float32] * 2


def root(p, solve):
    """Where y = 0.2 p ring(y) + cos(p k), by Newton; then two steps that carry derivatives."""
    residual = lambda y, p: y - 0.2 * p * ring(y) - jnp.cos(p * jnp.arange(8.0))
    fixed = lax.stop_gradient(p)
    at_fixed = lambda y: residual(y, fixed)
    newton = lambda _, y: y - solve(at_fixed, y, at_fixed(y))
    found = y = lax.stop_gradient(lax.fori_loop(0, 8, newton, jnp.zeros(8)))
    for _ in range(2):
        y = y - solve(at_fixed, found, residual(y, p))
    return y


def sparse_solve(kind):
    system = kind(pattern_of(ring, 8))

    def solve(fn, y, b):
        factors = system.factor(lax.stop_gradient(system.values(fn, y)), np.zeros(8), 1.0)
        return -system.solve(factors, b)

    return solve


def dense_solve(fn, y, b):
    return jnp.linalg.solve(lax.stop_gradient(jax.jacfwd(fn)(y)), b)


def derivatives(solve):
    """Of a loss with roots inside a scan: tangent and adjoint, nested both ways, and over lanes."""

    def loss(p):
        step = lambda total, scale: (total + jnp.sum(root(p * scale, solve) ** 2), None)
        return lax.scan(step, 0.0, jnp.array([1.0, 0.7]))[0]

    @jax.jit
    def every(p):
        lanes = jax.vmap(jax.grad(loss))(p * jnp.array([1.0, 0.8]))
        return [jax.jacfwd(jax.grad(loss))(p), jax.grad(jax.jacfwd(loss))(p), *lanes]

    return every(0.9)


@functools.cache
def dense_derivatives():
    return derivatives(dense_solve)


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_of_a_root_inside_a_scan_are_exact_in_every_nesting(kind):
    found = derivatives(sparse_solve(kind))
    np.testing.assert_allclose(found, dense_derivatives(), rtol=1e-11)


def test_the_transpose_of_a_solve_is_one_solve():
    case = banded_case(30, 2, 1)
    system = Banded(case.pattern)
    factors = system.factor(case.values()[0], case.mass, 2.0)
    back = jax.make_jaxpr(jax.vjp(lambda b: system.solve(factors, b), jnp.ones(30))[1])
    names = [eqn.primitive.name for eqn in back(jnp.ones(30)).eqns]
    assert names.count("saltus_solve") == 1
    assert "scan" not in names


def test_derivatives_with_respect_to_the_matrix_are_those_of_the_elimination():
    case = banded_case(5, 1, 1)
    system, values = Banded(case.pattern), case.values()[0]
    b = jnp.arange(1.0, 6.0)
    dense = lambda v: jnp.linalg.solve(2.0 * np.diag(case.mass) - case.pattern.dense(v), b)
    found = lambda v: system.solve(system.factor(v, case.mass, 2.0), b)
    exact = jax.jit(jax.jacfwd(dense))(values)
    for derivative in (jax.jacfwd, jax.jacrev):
        ours = jax.jit(derivative(found))(values)
        np.testing.assert_allclose(ours, exact, rtol=1e-9, atol=1e-9)


def test_factoring_and_solving_fit_into_one_kernel():
    case = banded_case(30, 2, 1)
    system = Banded(case.pattern)

    def inner_programs(fn, *args):
        for eqn in jax.make_jaxpr(fn)(*args).eqns:
            if "program" in eqn.params:
                yield jax.make_jaxpr(eqn.params["program"])(*[v.aval for v in eqn.invars])

    factor = lambda v: system.factor(v, case.mass, 2.0 + 1.0j)
    solve = lambda b: system.solve(factor(case.values()[0]), b)
    both = lambda b: jax.linear_transpose(solve, b)(solve(b))
    programs = list(inner_programs(both, jnp.ones(30, complex)))
    assert len(programs) >= 3
    assert all(_fits(program.jaxpr) for program in programs)


@pytest.mark.parametrize("lanes, size", [(1, 5000), (256, 16)])
def test_states_with_thousands_of_entries_compile(lanes, size):
    decay = saltus.HybridSystem(flow=lambda now, p: -p * now.x)

    def end(p):
        start = saltus.Instant(t=0.0, x=jnp.ones(size))
        return saltus.solve(decay, start, p, 1.0).final.x

    np.testing.assert_allclose(jax.vmap(end)(jnp.ones(lanes)), np.exp(-1.0), rtol=1e-7)


def test_a_pattern_that_is_not_square_is_refused():
    with pytest.raises(ValueError, match="square"):
        Pattern.of(np.ones((2, 3)))


def test_a_single_unknown_has_no_band():
    with pytest.raises(ValueError, match="at least two unknowns"):
        Banded(Pattern.of(np.ones((1, 1)))).factor(jnp.ones(1), np.ones(1), 1.0)


def test_a_pattern_with_too_many_entries_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match="sparsity="):
        pattern_of(jnp.sort, 10_000)


def test_without_klujax_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "klujax", None)
    with pytest.raises(MissingExtra, match=r"saltus\[sparse\]"):
        _library.__wrapped__()


@pytest.mark.skipif(not HAS_KLU, reason="klujax is not installed")
def test_loading_klujax_does_not_change_the_default_platform():
    before = jax.config.read("jax_platform_name")
    _library()
    assert jax.config.read("jax_platform_name") == before
