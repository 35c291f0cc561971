r"""Sparse LU by KLU, through the package `klujax`: for patterns that no order makes narrow.

KLU is fast (its symbolic analysis is done once per pattern), but a compiled program cannot keep its
factors without leaking memory. So the factors here are the entries of the matrix, and each solve
factors it again. For two-dimensional grids that is as fast as `Banded` from about 4000 unknowns on,
for networks from far fewer. It runs on CPUs only, and an exactly singular matrix raises an error.
"""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.extras import available, need
from ..base.types import Array, HostArray, Matrix, Scalar, Vector
from .pattern import Pattern, take
from .primitives import linear
from .structure import Structure

MIN_SIZE = 200  # unknowns; with fewer, a dense matrix is as fast


@dataclass(frozen=True)
class Sparse(Structure):
    """A structure for any pattern of which most entries are zero."""

    @staticmethod
    def suits(pattern: Pattern) -> bool:
        few = 20 * pattern.count <= pattern.size**2
        return pattern.size >= MIN_SIZE and few and available("klujax")

    def factor(self, values: Vector, mass: HostArray, shift: Scalar | float) -> Vector:
        r"""The entries of $s M - J$; a complex shift $s$ makes them complex."""
        whole, source, diagonal = _with_diagonal(self.pattern)
        entries = take(jnp.concatenate([values, jnp.zeros((1,), values.dtype)]), source)
        masses = np.where(diagonal, np.asarray(mass)[whole.rows], 0.0)
        return jnp.asarray(masses, values.dtype) * shift - entries

    def solve(self, factors: Vector, vector: Vector) -> Vector:
        return _solve(_with_diagonal(self.pattern)[0], factors, vector)

    def factor_stages(self, values: Array, mass: HostArray, a: HostArray, h: Scalar) -> Vector:
        """The entries of the matrix of a whole collocation step."""
        whole, source, diagonal = _with_diagonal(self.pattern)
        stages, m = len(a), np.asarray(mass, values.dtype)[whole.rows]
        nothing = jnp.zeros((1,), values.dtype)
        blocks = [take(jnp.concatenate([values[j], nothing]), source) for j in range(stages)]
        entries = [
            m * diagonal * (i == j) - blocks[j] * (m * (h * float(a[i, j])) + (1 - m) * (i == j))
            for i in range(stages)
            for j in range(stages)
        ]
        return take(jnp.concatenate(entries), _stages(self.pattern, stages)[1])

    def solve_stages(self, factors: Vector, vectors: Matrix) -> Matrix:
        return _solve(_stages(self.pattern, vectors.shape[0])[0], factors, vectors)

    def ratio(self, factors: Vector) -> Scalar:
        return jnp.ones(())  # klujax does not return the pivots


def _solve(pattern: Pattern, factors: Vector, vector: Array) -> Array:
    _library()
    vector = vector.astype(jnp.result_type(vector, factors))
    ahead, back = _Klu(pattern, False), _Klu(pattern, True)
    return linear(ahead, back, [factors], vector, outside=True)


@dataclass(frozen=True)
class _Klu:
    pattern: Pattern
    transposed: bool

    def __call__(self, entries: Vector, vector: Array) -> list[Array]:
        dtype = jnp.result_type(entries, vector, jnp.float64)  # KLU has double precision only
        kind = "c128" if jnp.issubdtype(dtype, jnp.complexfloating) else "f64"
        name = f"{'t' if self.transposed else ''}solve_with_symbol_{kind}"
        rows, cols = jnp.asarray(self.pattern.rows), jnp.asarray(self.pattern.cols)
        handle = jnp.asarray(np.uint64(_analysis(self.pattern).raw))
        entries, column = entries.astype(dtype)[None], vector.astype(dtype).reshape(1, -1, 1)
        out = getattr(_library(), name).bind(rows, cols, entries, column, handle)
        return [out.reshape(vector.shape).astype(vector.dtype)]


@functools.cache
def _library() -> types.ModuleType:
    """The module klujax; it makes the CPU JAX's default platform, which is undone here."""
    platform = jax.config.read("jax_platform_name")
    library = need("klujax", "sparse", "A sparse factorisation of a matrix that has no narrow band")
    jax.config.update("jax_platform_name", platform)
    return library


@functools.cache
def _analysis(pattern: Pattern) -> Any:
    """KLU's symbolic analysis, never freed because compiled programs contain its address."""
    with jax.ensure_compile_time_eval():
        return _library().analyze(pattern.rows, pattern.cols, pattern.size)


@functools.lru_cache(maxsize=64)
def _with_diagonal(pattern: Pattern) -> tuple[Pattern, np.ndarray, np.ndarray]:
    """The pattern with its diagonal, the source of each entry (`count` if new), and the diagonal's
    places."""
    from scipy.sparse import eye_array

    whole = Pattern.of(pattern.matrix + eye_array(pattern.size, dtype=bool))
    number = np.full(whole.count, pattern.count)
    key = [p.rows.astype(np.int64) * p.size + p.cols for p in (whole, pattern)]
    number[np.searchsorted(key[0], key[1])] = np.arange(pattern.count)
    return whole, number, whole.rows == whole.cols


@functools.lru_cache(maxsize=64)
def _stages(pattern: Pattern, stages: int) -> tuple[Pattern, np.ndarray]:
    """The pattern of a whole step, stage by stage, and the order of the blocks' entries in it."""
    whole, _, _ = _with_diagonal(pattern)
    n = whole.size
    pairs = [(i, j) for i in range(stages) for j in range(stages)]
    rows = np.concatenate([whole.rows.astype(np.int64) + i * n for i, _ in pairs])
    cols = np.concatenate([whole.cols.astype(np.int64) + j * n for _, j in pairs])
    order = np.lexsort((cols, rows))
    data = np.stack([rows[order], cols[order]]).astype(np.int32)
    return Pattern(stages * n, data.tobytes()), order
