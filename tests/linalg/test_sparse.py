"""Large systems: the sparsity of Jacobians, and linear systems solved in a band or by KLU."""

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
from saltus.linalg.dependence import pattern
from saltus.linalg.klu import Sparse, _library
from saltus.linalg.pattern import Pattern

N = 24
HAS_KLU = importlib.util.find_spec("klujax") is not None
KINDS = [
    Banded,
    pytest.param(Sparse, marks=pytest.mark.skipif(not HAS_KLU, reason="klujax is not installed")),
]
SHUFFLED = np.random.default_rng(1).permutation(N)
COUPLING = np.where(np.random.default_rng(2).random((N, N)) < 0.1, 1.5, 0.0)
RADAU = np.array(
    [[0.1968, -0.0655, 0.0238], [0.3944, 0.2921, -0.0415], [0.3764, 0.5125, 0.1111]]
)  # enough digits for a matrix of this form


def laplacian(u):
    """On a grid of 4 by 6 with zeros around it."""
    g, wide = u.reshape(4, 6), jnp.pad(u.reshape(4, 6), 1)
    around = wide[2:, 1:-1] + wide[:-2, 1:-1] + wide[1:-1, 2:] + wide[1:-1, :-2]
    return (around - 4 * g + g**3).reshape(-1)


def heat(u):
    inside = u[2:] - 2 * u[1:-1] + u[:-2]
    return jnp.concatenate([u[1:2] - u[:1], inside * u[1:-1], u[-2:-1] - u[-1:]])


def ring(u):
    return jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1) + jnp.sin(u)


def two_fields(y):
    """A reaction and diffusion of two substances, one after the other in the vector."""
    a, b = jnp.split(y, 2)
    return jnp.concatenate([heat(a) + a * b, heat(b) - a * b])


def network(u):
    return jnp.stack([u[k] * u[(7 * k + 1) % N] - u[(5 * k) % N] for k in range(N)])


FUNCTIONS = {
    "heat": heat,
    "ring": ring,
    "two fields": two_fields,
    "laplacian": laplacian,
    "network": network,
    "boundary by .at": lambda u: heat(u).at[0].set(0.0).at[-1].add(u[3]),
    "indices": lambda u: u[SHUFFLED] * u[::2].repeat(2) + u.at[SHUFFLED[:3]].set(u[:3] ** 2),
    "segments": lambda u: jnp.zeros(N).at[SHUFFLED // 2].add(u**2)[SHUFFLED // 2] * u,
    "matrix": lambda u: jnp.asarray(COUPLING) @ jnp.tanh(u) - u,
    "stencil": lambda u: jnp.convolve(u, jnp.array([1.0, 0.0, -2.0]), mode="same") * u,
    "mask": lambda u: jnp.where(np.arange(N) < 5, u, u[::-1]) + (np.arange(N) % 3 == 0) * ring(u),
    "rows": lambda u: (u.reshape(4, 6) / jnp.sum(u.reshape(4, 6) ** 2, 1)[:, None]).reshape(-1),
    "map": lambda u: lax.map(lambda v: v[0] * v, u.reshape(-1, 2)).reshape(-1),
    "chain": lambda u: lax.scan(lambda c, v: (v, v * c), u[0], u)[1],
    "branches": lambda u: lax.cond(u[0] > 0, lambda v: v**2, lambda v: v[::-1], u),
    "when": lambda u: saltus.when(u > 0, u, jnp.roll(u, 1)),
    "activation": lambda u: jax.nn.softplus(u) * jax.nn.relu(jnp.roll(u, 2)),
    "running sum": lambda u: jnp.cumsum(u[::-1])[::-1],
}


def pattern_of(fn, size=N):
    return Pattern.of(pattern(lambda u: [fn(u)], [jax.ShapeDtypeStruct((size,), float)], [0]))


def seen_nonzeros(fn):
    """Nonzeros of the Jacobian at several points, so that every branch is taken somewhere."""
    points = np.random.default_rng(0).normal(size=(40, N))
    return np.any(np.asarray(jax.jit(jax.vmap(jax.jacfwd(fn)))(points)) != 0, 0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_pattern_is_where_the_jacobian_is_not_zero(name):
    found = pattern_of(FUNCTIONS[name]).matrix.toarray()
    np.testing.assert_array_equal(found, seen_nonzeros(FUNCTIONS[name]))


@pytest.mark.parametrize("fn", [jnp.sort, lambda u: jnp.fft.fft(u).real])
def test_an_operation_that_is_not_understood_couples_everything(fn):
    assert pattern_of(fn).matrix.toarray().all()


def test_a_custom_derivative_of_a_rounded_value_is_not_missed():
    @jax.custom_jvp
    def rounded(u):
        return jnp.round(u)

    rounded.defjvp(lambda p, t: (jnp.round(p[0]), t[0]))
    np.testing.assert_array_equal(pattern_of(rounded).matrix.toarray(), np.eye(N, dtype=bool))


def test_leaves_are_counted_in_order_and_other_inputs_are_left_out():
    def flow(t, height, speeds, p):
        return [speeds[0] * p, jnp.stack([height * t, speeds[1]])]

    avals = [jax.ShapeDtypeStruct(s, float) for s in [(), (), (2,), ()]]
    found = pattern(flow, avals, [1, 2]).toarray()
    np.testing.assert_array_equal(found, [[0, 1, 0], [1, 0, 0], [0, 0, 1]])


def test_an_input_that_never_changes_may_be_given_as_numbers():
    avals = [jax.ShapeDtypeStruct((2, 2), float), jax.ShapeDtypeStruct((2,), float)]
    product = lambda a, u: [a @ u]
    assert pattern(product, avals, [1]).toarray().all()
    known = {0: np.array([[1.0, 0.0], [2.0, 0.0]])}
    np.testing.assert_array_equal(pattern(product, avals, [1], known).toarray(), [[1, 0], [1, 0]])


def check_values(found, fn):
    """The entries, and products with them, against the dense Jacobian."""

    def both(y):
        values, dense = found.values(fn, y), jax.jacfwd(fn)(y)
        return [(found.dense(values), dense), (found.multiply(values, y), dense @ y)]

    for ours, exact in jax.jit(both)(np.random.default_rng(3).normal(size=N)):
        np.testing.assert_allclose(ours, exact, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name, most", [("heat", 3), ("ring", 5), ("laplacian", 8)])
def test_few_directions_reveal_the_jacobian(name, most):
    found = pattern_of(FUNCTIONS[name])
    assert found.colours.count <= most
    check_values(found, FUNCTIONS[name])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_columns_of_one_colour_share_no_row(name):
    found = pattern_of(FUNCTIONS[name])
    colours, matrix = found.colours, found.matrix.toarray().astype(int)
    matrix = matrix.T if colours.by_rows else matrix
    assert (matrix @ colours.seeds().T <= 1).all()


def test_a_balance_over_everything_is_read_off_by_rows():
    def balanced(u):
        return heat(u).at[0].set(jnp.sum(u**2) - 1)

    found = pattern_of(balanced)
    assert found.colours.by_rows
    assert found.colours.count <= 5
    check_values(found, balanced)


@pytest.mark.parametrize("name, widest", [("heat", 1), ("ring", 2), ("two fields", 3)])
def test_the_order_makes_the_band_narrow(name, widest):
    assert max(pattern_of(FUNCTIONS[name]).bandwidth) <= widest


def test_patterns_compare_by_what_they_say():
    assert pattern_of(heat) == pattern_of(lambda u: 2 * heat(u))
    assert hash(pattern_of(heat)) == hash(pattern_of(lambda u: 2 * heat(u)))
    assert pattern_of(heat) != pattern_of(ring)


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
