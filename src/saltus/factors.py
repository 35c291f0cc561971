"""Factored matrices: each with `solve`, linear in its right-hand side, and a ratio of pivots.

Elimination written out on scalars, an explicit inverse in plain operations, LAPACK, or a large
sparse structure; `linalg` chooses.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from .banded import Banded
from .extras import available
from .sparse import Sparse
from .sparsity import Pattern

Vec = tuple[Any, ...]


# -- written out on scalars -----------------------------------------------------------------------


@functools.partial(jax.tree_util.register_dataclass, data_fields=["rows", "swaps"], meta_fields=[])
@dataclasses.dataclass
class Eliminated:
    """Gaussian elimination with partial pivoting: factors, inverse pivots, and which rows swap."""

    rows: Any
    swaps: Any

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

    def ratio(self) -> Any:
        inverse = [jnp.abs(self.rows[k][k]) for k in range(len(self.rows))]
        return functools.reduce(jnp.minimum, inverse) / functools.reduce(jnp.maximum, inverse)


def eliminate(matrix: Any) -> Eliminated:
    a = [list(row) for row in matrix]
    n = len(a)
    swaps = []
    for k in range(n):
        here = []
        for i in range(k + 1, n):
            swap = jnp.abs(a[i][k]) > jnp.abs(a[k][k])
            here.append(swap)
            for j in range(k, n):  # multipliers stay: `solve` swaps as it goes
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


# -- an explicit inverse, in operations that fit into one kernel -----------------------------------


@functools.partial(jax.tree_util.register_dataclass, data_fields=["inverse"], meta_fields=[])
@dataclasses.dataclass
class Inverse:
    inverse: Any

    def solve(self, rhs: Vec) -> Vec:
        if jnp.ndim(rhs[0]) == 0:
            return tuple(self.inverse @ jnp.stack(rhs))
        return (self.inverse @ rhs[0],)

    def ratio(self) -> Any:
        size = jnp.sum(jnp.abs(self.inverse), axis=1)
        return jnp.min(size) / jnp.max(size)


def invert(matrix: Any) -> Any:
    """Gauss-Jordan with partial pivoting and scaled rows."""
    n = matrix.shape[0]
    scale = 1.0 / jnp.max(jnp.abs(matrix), axis=1)
    rows = jnp.arange(n)
    state = jnp.concatenate([matrix * scale[:, None], jnp.diag(scale).astype(matrix.dtype)], axis=1)

    def clear(k: Any, a: Any) -> Any:
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


# -- large and sparse -----------------------------------------------------------------------------


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["factors"],
    meta_fields=["structure", "stages"],
)
@dataclasses.dataclass
class Structured:
    factors: Any
    structure: Any
    stages: int

    def solve(self, rhs: Vec) -> Vec:
        if self.stages == 1:
            return (self.structure.solve(self.factors, rhs[0]),)
        wide = jnp.reshape(rhs[0], (self.stages, -1))
        return (jnp.reshape(self.structure.solve_stages(self.factors, wide), (-1,)),)

    def ratio(self) -> Any:
        if not isinstance(self.structure, Banded):
            return jnp.ones(())
        size = jnp.abs(self.factors.inverse)
        return jnp.min(size) / jnp.max(size)


# -- LAPACK ---------------------------------------------------------------------------------------


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["lu", "pivots", "scale"], meta_fields=[]
)
@dataclasses.dataclass
class Lapack:
    lu: Any
    pivots: Any
    scale: Any

    def solve(self, rhs: Vec) -> Vec:
        scaled = self.scale * rhs[0]
        return (jax.scipy.linalg.lu_solve((self.lu, self.pivots), scaled),)

    def ratio(self) -> Any:
        size = jnp.abs(jnp.diagonal(self.lu))
        return jnp.min(size) / jnp.max(size)


# -- which of them --------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def structure_of(pattern: Pattern | None) -> Any:
    """How a Jacobian of this pattern is best factored; `None` for a dense one.

    A band wins over a dense matrix when it is narrow; KLU (if installed) when no order of the
    unknowns makes it narrow but most entries are zero.
    """
    if pattern is None:
        return None
    if pattern.bandwidth[0] <= 100 and 4 * (sum(pattern.bandwidth) + 1) <= pattern.size:
        return Banded(pattern)
    if pattern.size >= 200 and 20 * pattern.count <= pattern.size**2 and available("klujax"):
        return Sparse(pattern)
    return None
