"""Factored dense matrices: each has `solve`, linear in its right-hand side, and `ratio` of pivots.

They are: elimination written out on scalars, an explicit inverse in plain operations, and LAPACK.
`linalg/factor.py` chooses one of them, or a structure for a large sparse matrix.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ..base.types import Array, Flag, Matrix, Scalar, Vector, Whole
from .vectors import Vec

MIN_PIVOT = 1e-12  # relative to the diagonal; below it, a row depends on the others
MAX_UNROLLED = 8  # most rows for which elimination is written out


class Factored(Protocol):
    """A factored matrix, as the functions of `linalg/factor.py` return it."""

    def solve(self, rhs: Vec) -> Vec:
        """$A^{-1} b$, linear in $b$."""
        ...

    def ratio(self) -> Scalar:
        """The ratio of the smallest to the largest pivot: small where it is near singular."""
        ...


@functools.partial(jax.tree_util.register_dataclass, data_fields=["rows", "swaps"], meta_fields=[])
@dataclasses.dataclass
class Eliminated:
    """Gaussian elimination with partial pivoting: factors, inverse pivots, rows that swap."""

    rows: tuple[tuple[Scalar, ...], ...]
    swaps: tuple[tuple[Flag, ...], ...]

    def solve(self, rhs: Vec) -> Vec:
        b, n = list(rhs), len(rhs)
        for k in range(n):
            for i, swap in zip(range(k + 1, n), self.swaps[k], strict=True):
                b[k], b[i] = jnp.where(swap, b[i], b[k]), jnp.where(swap, b[k], b[i])
            for i in range(k + 1, n):
                b[i] = b[i] - self.rows[i][k] * b[k]
        for k in reversed(range(n)):
            for j in range(k + 1, n):
                b[k] = b[k] - self.rows[k][j] * b[j]
            b[k] = b[k] * self.rows[k][k]
        return tuple(b)

    def ratio(self) -> Scalar:
        inverse = [jnp.abs(self.rows[k][k]) for k in range(len(self.rows))]
        return functools.reduce(jnp.minimum, inverse) / functools.reduce(jnp.maximum, inverse)


def eliminate(matrix: Sequence[Vec]) -> Eliminated:
    a = [list(row) for row in matrix]
    n = len(a)
    swaps = []
    for k in range(n):
        here = []
        for i in range(k + 1, n):
            swap = jnp.abs(a[i][k]) > jnp.abs(a[k][k])
            here.append(swap)
            for j in range(k, n):  # multipliers are not swapped: `solve` swaps at each row
                a[k][j], a[i][j] = (
                    jnp.where(swap, a[i][j], a[k][j]),
                    jnp.where(swap, a[k][j], a[i][j]),
                )
        swaps.append(tuple(here))
        a[k][k] = 1.0 / a[k][k]
        for i in range(k + 1, n):
            a[i][k] = a[i][k] * a[k][k]
            for j in range(k + 1, n):
                a[i][j] = a[i][j] - a[i][k] * a[k][j]
    return Eliminated(tuple(map(tuple, a)), tuple(swaps))


@functools.partial(jax.tree_util.register_dataclass, data_fields=["inverse"], meta_fields=[])
@dataclasses.dataclass
class Inverse:
    inverse: Matrix

    def solve(self, rhs: Vec) -> Vec:
        if jnp.ndim(rhs[0]) == 0:
            return tuple(self.inverse @ jnp.stack(rhs))
        return (self.inverse @ rhs[0],)

    def ratio(self) -> Scalar:
        size = jnp.sum(jnp.abs(self.inverse), axis=1)
        return jnp.min(size) / jnp.max(size)


def invert(matrix: Matrix) -> Matrix:
    """Gauss-Jordan with partial pivoting and scaled rows."""
    n = matrix.shape[0]
    scale = 1.0 / jnp.max(jnp.abs(matrix), axis=1)
    rows = jnp.arange(n)
    state = jnp.concatenate([matrix * scale[:, None], jnp.diag(scale).astype(matrix.dtype)], axis=1)

    def clear(k: Whole, a: Matrix) -> Matrix:
        column = jax.lax.dynamic_index_in_dim(a, k, 1, keepdims=False)
        pivot = jnp.argmax(jnp.where(rows >= k, jnp.abs(column), -1.0))
        top = jax.lax.dynamic_index_in_dim(a, k, 0, keepdims=False)
        best = jax.lax.dynamic_index_in_dim(a, pivot, 0, keepdims=False)
        head = jax.lax.dynamic_index_in_dim(column, pivot, 0, keepdims=False)
        old = jax.lax.dynamic_index_in_dim(column, k, 0, keepdims=False)
        best = best / head
        below = jnp.where(rows == pivot, old, column)
        swapped = jnp.where((rows == pivot)[:, None], top[None, :], a)
        reduced = swapped - below[:, None] * best[None, :]
        return jnp.where((rows == k)[:, None], best[None, :], reduced)

    return jax.lax.fori_loop(0, n, clear, state)[:, n:]


def invert_semidefinite(matrix: Matrix) -> Matrix:
    r"""The inverse of a regular block of a symmetric $A \ge 0$, and zero elsewhere.

    Computed by the sweep operator, row after row, on the matrix scaled to a unit diagonal, which is
    stable for such matrices. A row that depends on those before it has no pivot, and is left out.
    """
    a, kept, scale = _swept(matrix)
    both = kept[:, None] & kept[None, :]
    return jnp.where(both, -a, 0.0) * scale[:, None] * scale[None, :]


def leading(matrix: Matrix) -> Array:
    r"""Which rows of a symmetric $A \ge 0$ do not depend on those before them."""
    return _swept(matrix)[1]


def _swept(matrix: Matrix) -> tuple[Matrix, Array, Vector]:
    n = matrix.shape[0]
    a, scale = _unit_diagonal(matrix)
    kept = jnp.zeros((n,), bool)
    if n <= MAX_UNROLLED:
        for k in range(n):
            a, kept = _sweep(a, kept, k)
        return a, kept, scale
    return *jax.lax.fori_loop(0, n, lambda k, s: _sweep(s[0], s[1], k), (a, kept)), scale


def independent(matrix: Matrix) -> Array:
    r"""Which rows of a symmetric $A \ge 0$ make up a regular block, chosen by largest pivots."""

    def best(_: Whole, state: tuple[Matrix, Array]) -> tuple[Matrix, Array]:
        a, kept = state
        return _sweep(a, kept, jnp.argmax(jnp.where(kept, 0.0, _diagonal(a))))

    n = matrix.shape[0]
    first = (_unit_diagonal(jax.lax.stop_gradient(matrix))[0], jnp.zeros((n,), bool))
    return jax.lax.fori_loop(0, n, best, first)[1]


def _diagonal(matrix: Matrix) -> Vector:
    """The diagonal, by operations that fit into one kernel."""
    return jnp.sum(jnp.where(np.eye(matrix.shape[0], dtype=bool), matrix, 0.0), axis=1)


def _unit_diagonal(matrix: Matrix) -> tuple[Matrix, Vector]:
    size = _diagonal(matrix)
    scale = jnp.where(size > 0, 1.0 / jnp.sqrt(jnp.where(size > 0, size, 1.0)), 0.0)
    return matrix * scale[:, None] * scale[None, :], scale


def _sweep(a: Matrix, kept: Array, k: Whole | int) -> tuple[Matrix, Array]:
    """One pivot of the sweep operator; swept blocks hold the negative inverse."""
    mine = np.arange(a.shape[0]) == k
    row = a[k] if isinstance(k, int) else jax.lax.dynamic_index_in_dim(a, k, 0, keepdims=False)
    pivot = row[k] if isinstance(k, int) else jnp.sum(jnp.where(mine, row, 0.0))
    regular = (pivot > MIN_PIVOT) & ~jnp.any(mine & kept)
    safe = 1.0 / jnp.where(regular, pivot, 1.0)
    rest = jnp.where(mine, 0.0, row)
    part = jnp.where(mine, -safe, rest * safe)
    new = a - rest[:, None] * (rest * safe)[None, :]
    new = jnp.where(mine[:, None], part[None, :], jnp.where(mine[None, :], part[:, None], new))
    return jnp.where(regular, new, a), kept | (mine & regular)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["lu", "pivots", "scale"], meta_fields=[]
)
@dataclasses.dataclass
class Lapack:
    lu: Matrix
    pivots: Vector
    scale: Vector

    def solve(self, rhs: Vec) -> Vec:
        scaled = self.scale * rhs[0]
        return (jax.scipy.linalg.lu_solve((self.lu, self.pivots), scaled),)

    def ratio(self) -> Scalar:
        size = jnp.abs(jnp.diagonal(self.lu))
        return jnp.min(size) / jnp.max(size)
