"""Where algebraic states stop being determined: impasse points."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from ..base.leaves import Leaves
from ..base.results import Result
from ..base.types import Flag, Matrix, Scalar, Whole
from ..linalg.dense import invert
from ..linalg.factor import factor, solve
from .algebraic_states import (
    MAX_STEEPNESS,
    MIN_PIVOT_RATIO,
    _equations,
    _jacobian,
    _product,
    _runs_away,
    layout,
    regularity,
    steepness,
)
from .model import At, Model, Par

MAX_FOLLOWED = 64  # most algebraic numbers for which g_z is compared between the ends of a step
MIN_PIVOT_LEFT = 1e-3  # least part of a pivot left after a step that passed no singular point


def near_impasse(model: Model, at: At, par: Par, k: Leaves, atol: Leaves) -> Flag:
    """Whether g_z is nearly singular, or changes much within a small distance.

    Used where a solve stops, to name the cause. `k` is the flow there.
    """
    flat = ~(regularity(model, at, par) > MIN_PIVOT_RATIO)
    if model.pattern is not None:
        return flat
    steep = ~(steepness(model, at, par) < MAX_STEEPNESS)
    return steep | flat | _runs_away(model, at, par, k, atol)


def with_cause(model: Model, at: At, par: Par, k: Leaves, atol: Leaves, code: Whole) -> Whole:
    """The result `code`, or `singular` if steps fail because z is nearly undetermined."""
    failures = (Result.step_underflow, Result.newton_failed, Result.non_finite)
    failed = functools.reduce(jnp.logical_or, [code == int(f) for f in failures])
    ask = lambda: near_impasse(model, at, par, k, atol)
    near = jax.lax.cond(failed, ask, lambda: jnp.zeros((), bool))
    return jnp.where(near, int(Result.singular), code).astype(code.dtype)


def followed(model: Model) -> bool:
    """Whether steps are checked for singular points of g_z between their ends."""
    rule = model.constraint
    if rule is None or rule.highest > 1 or model.pattern is not None:
        return False
    return layout(model).size <= MAX_FOLLOWED


def collapses(model: Model, before: At, after: At, par: Par, strict: bool) -> Flag:
    """Whether g_z may have been singular between two states, or nearly is at the second.

    `A = g_z(before)^-1 g_z(after)` is the identity for a step of length zero. On the way to a
    singular point, a pivot of its elimination falls to zero. That can also happen without one, but
    not after a shorter step. For a step that cannot be shortened (`strict`), the sign of the
    determinant decides.
    """
    first, last = (
        _jacobian(model, _equations(model, at, par), layout(model).pack(at.z))
        for at in (before, after)
    )
    if not isinstance(first, tuple) and not isinstance(last, tuple):
        least, product = _pivots(_product(invert(first), last))
    else:
        made = factor(first)
        columns = [list(solve(made, column)) for column in zip(*last, strict=True)]
        least, product = _few_pivots(columns)
    return product <= 0.0 if strict else least <= MIN_PIVOT_LEFT


def _few_pivots(a: list[list[Scalar]]) -> tuple[Scalar, Scalar]:
    """The least pivot without exchanging rows, and the product of all; `a` holds columns."""
    n = len(a)
    for k in range(n):
        for j in range(k + 1, n):
            share = a[j][k] / a[k][k]
            for i in range(k + 1, n):
                a[j][i] = a[j][i] - a[k][i] * share
    pivots = [a[k][k] for k in range(n)]
    return functools.reduce(jnp.fmin, pivots), functools.reduce(jnp.multiply, pivots)


def _pivots(matrix: Matrix) -> tuple[Scalar, Scalar]:
    """The same for an array, in operations that fit into one kernel."""
    rows = jnp.arange(matrix.shape[0])

    def clear(k: Whole, state: tuple) -> tuple:
        a, least, product = state
        row = jax.lax.dynamic_index_in_dim(a, k, 0, keepdims=False)
        column = jax.lax.dynamic_index_in_dim(a, k, 1, keepdims=False)
        pivot = jnp.sum(jnp.where(rows == k, row, 0.0))
        below = jnp.where(rows > k, column / pivot, 0.0)
        return a - below[:, None] * row[None, :], jnp.fmin(least, pivot), product * pivot

    first = (matrix, jnp.full((), jnp.inf), jnp.ones(()))
    return jax.lax.fori_loop(0, matrix.shape[0], clear, first)[1:]
