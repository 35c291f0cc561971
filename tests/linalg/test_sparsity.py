"""The sparsity of Jacobians: where they are zero, and how few directions reveal the rest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from saltus.linalg.dependence import pattern
from sparse_functions import FUNCTIONS, N, heat, pattern_of, ring


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
