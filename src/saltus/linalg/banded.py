r"""LU of banded matrices with partial pivoting, as loops over columns in plain operations.

A window of `below + 1` rows slides down the band. Per column: choose the pivot row, eliminate,
shift. Pivoting is over the whole column, as in dense Gaussian elimination, so that singular
diagonal blocks, as in DAEs, do no harm; fill stays within `below + above` columns:

$$ A = (E_{n-1} \cdots E_0)^{-1} U, \qquad E_k = \text{(eliminate)} \cdot \text{(swap)} $$

One column costs `below * (below + above)` multiplications; as one kernel this is as fast as LAPACK.
`Banded` uses it for any sparse matrix, in the order of its pattern that makes the band narrow.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.control_flow import staged
from ..base.types import Array, HostArray, Matrix, Scalar, Vector, Whole
from .pattern import Pattern, take
from .primitives import Program, linear, run
from .structure import Structure

MAX_BELOW = 100  # most diagonals below the main one for which a band is factored


class Factors(NamedTuple):
    """Factors of a banded matrix: each array has one row per column of the matrix."""

    pivot: Vector  # how far below the diagonal the pivot was
    lower: Matrix  # multipliers [n, below]
    inverse: Vector  # 1 / pivot
    upper: Matrix  # the pivot row right of the diagonal [n, below + above]


@dataclass(frozen=True)
class Banded(Structure):
    """A structure for patterns that are narrow in some order. A transposed solve costs the same."""

    @staticmethod
    def suits(pattern: Pattern) -> bool:
        below, above = pattern.bandwidth
        return below <= MAX_BELOW and 4 * (below + above + 1) <= pattern.size

    def factor(self, values: Vector, mass: HostArray, shift: Scalar | float) -> Factors:
        layout = _layout(self.pattern)
        rows = jnp.asarray(_diagonal(layout, mass), values.dtype) * shift - layout.rows(values)
        return Factors(*run(_Factor(layout.below), rows))

    def solve(self, factors: Factors, vector: Vector) -> Vector:
        return self._solve(factors, vector, 1)

    def factor_stages(self, values: Array, mass: HostArray, a: HostArray, h: Scalar) -> Factors:
        """The stages of one unknown are neighbours: s stages make the band s times as wide."""
        stages, layout = len(a), _layout(self.pattern)
        blocks = jnp.concatenate([layout.rows(values[j])[..., None] for j in range(stages)], 2)
        blocks = blocks.reshape(self.pattern.size, -1)  # entries (column, stage j) of each row
        width, dtype = blocks.shape[1], values.dtype
        m = np.asarray(mass, dtype)[layout.order][:, None]
        lines = []
        for i in range(stages):
            coupled = jnp.asarray(np.tile(a[i], width // stages), dtype) * h
            alone = np.tile(np.eye(stages, dtype=dtype)[i], width // stages)
            diagonal = np.eye(width, dtype=dtype)[stages * layout.below + i]
            line = m * diagonal - blocks * (m * coupled + (1 - m) * alone)
            lines.append(jnp.pad(line, ((0, 0), (stages - 1 - i, i)))[:, None])
        rows = jnp.concatenate(lines, 1).reshape(stages * self.pattern.size, -1)
        return Factors(*run(_Factor(stages * layout.below + stages - 1), rows))

    def solve_stages(self, factors: Factors, vectors: Matrix) -> Matrix:
        return self._solve(factors, vectors, vectors.shape[0])

    def ratio(self, factors: Factors) -> Scalar:
        size = jnp.abs(factors.inverse)
        return jnp.min(size) / jnp.max(size)

    def _solve(self, factors: Factors, vector: Array, stages: int) -> Array:
        vector = vector.astype(jnp.result_type(vector, factors.inverse))
        ahead, back = (
            _Ordered(_Solve(factors.lower.shape[1], transposed), self.pattern, stages)
            for transposed in (False, True)
        )
        return linear(ahead, back, factors, vector)


class _Layout(NamedTuple):
    """Where the entries of a pattern go in a band: row by row, in the pattern's order."""

    order: np.ndarray
    place: np.ndarray  # of each unknown in the order
    below: int
    above: int
    entries: np.ndarray  # number of the entry at each place of the band; without one, `count`

    def rows(self, values: Vector) -> Matrix:
        return take(jnp.concatenate([values, jnp.zeros((1,), values.dtype)]), self.entries)


@functools.lru_cache(maxsize=64)
def _layout(pattern: Pattern) -> _Layout:
    if pattern.size < 2:
        raise ValueError("a banded system has at least two unknowns; use a dense one for less.")
    order = pattern.order
    place = np.argsort(order)
    below, above = (max(k, 1) for k in pattern.bandwidth)
    entries = np.full((pattern.size, below + 1 + above), pattern.count)
    row, column = place[pattern.rows], place[pattern.cols]
    entries[row, column - row + below] = np.arange(pattern.count)
    return _Layout(order, place, below, above, entries)


def _diagonal(layout: _Layout, mass: np.ndarray) -> np.ndarray:
    band = np.zeros(layout.entries.shape)
    band[:, layout.below] = np.asarray(mass)[layout.order]
    return band


@dataclass(frozen=True)
class _Ordered:
    """A program for vectors in the order of the band, applied to vectors in their own order."""

    program: Program
    pattern: Pattern
    stages: int

    def __call__(self, *args: Array) -> list[Array]:
        *factors, vector = args
        layout = _layout(self.pattern)
        unknowns = vector.reshape(self.stages, -1).T
        (out,) = self.program(*factors, take(unknowns, layout.order).reshape(-1))
        return [take(out.reshape(-1, self.stages), layout.place).T.reshape(vector.shape)]


@dataclass(frozen=True)
class _Factor:
    below: int

    def __call__(self, rows: Matrix) -> list[Array]:
        k, width = self.below, rows.shape[1]
        zeros = jnp.zeros((k + 1, width), rows.dtype)
        number = np.arange(k + 1, dtype=np.int32)
        last = number[k]

        def step(window: Array, row: Any) -> tuple[Array, Any]:
            column = jax.lax.stop_gradient(window[:, 0])
            pivot = staged(lambda: _largest(column, number))
            chosen = jax.lax.dynamic_index_in_dim(window, pivot, 0, False)
            swapped = jnp.where((number == pivot)[1:, None], window[0], window[1:])
            inverse = _reciprocal(chosen[0])
            lower = swapped[:, 0] * inverse
            rest = swapped[:, 1:] - lower[:, None] * chosen[1:]
            rest = jnp.concatenate([rest, zeros[:k, :1]], 1)
            return jnp.concatenate([rest, row[None]], 0), (pivot, lower, inverse, chosen[1:])

        # Row i comes in when column i - below is eliminated, so that its entries fit the window.
        place = number[:, None] * width + np.arange(width) + last - number[:, None]
        inside = np.arange(width) < width - last + number[:, None]
        head = jnp.concatenate([rows[: k + 1].reshape(-1), zeros[0, :1]])
        window = take(head, np.where(inside, place, (k + 1) * width))
        _, factors = jax.lax.scan(step, window, jnp.concatenate([rows[k + 1 :], zeros]))
        return list(factors)


@dataclass(frozen=True)
class _Solve:
    below: int
    transposed: bool

    def __call__(
        self, pivot: Vector, lower: Matrix, inverse: Vector, upper: Matrix, b: Vector
    ) -> list[Array]:
        if self.transposed:
            return [self._eliminate_back(pivot, lower, _upper_transposed(inverse, upper, b))]
        return [_upper(inverse, upper, self._eliminate(pivot, lower, b))]

    def _eliminate(self, pivot: Vector, lower: Matrix, b: Vector) -> Vector:
        r"""$E_{n-1} \cdots E_0 b$."""
        k = self.below
        number = np.arange(k + 1, dtype=np.int32)

        def step(window: Array, row: Any) -> tuple[Array, Any]:
            p, m, new = row
            y = jax.lax.dynamic_index_in_dim(window, p, 0, False)
            rest = jnp.where((number == p)[1:], window[0], window[1:]) - m * y
            return jnp.concatenate([rest, new[None]]), y

        more = jnp.concatenate([b[k + 1 :], jnp.zeros((k + 1,), b.dtype)])
        return jax.lax.scan(step, b[: k + 1], (pivot, lower, more))[1]

    def _eliminate_back(self, pivot: Vector, lower: Matrix, b: Vector) -> Vector:
        r"""$E_0^T \cdots E_{n-1}^T b$."""
        k = self.below
        number = np.arange(k + 1, dtype=np.int32)

        def step(window: Array, row: Any) -> tuple[Array, Any]:
            p, m, new = row
            y = new - _sum(m * window[:k])
            swapped = jnp.where((number == p)[1:], y, window[:k])
            first = jnp.where(p == 0, y, _pick(window, p - 1))
            return jnp.concatenate([first[None], swapped]), window[k]

        zeros = jnp.zeros((k + 1,), b.dtype)
        first, out = jax.lax.scan(step, zeros, (pivot, lower, b), reverse=True)
        return jnp.concatenate([first, out])[: b.shape[0]]


def _upper(inverse: Vector, upper: Matrix, b: Vector) -> Vector:
    r"""$U^{-1} b$."""

    def step(window: Array, row: Any) -> tuple[Array, Any]:
        d, u, y = row
        x = (y - _sum(u * window)) * d
        return jnp.concatenate([x[None], window[:-1]]), x

    zeros = jnp.zeros((upper.shape[1],), b.dtype)
    return jax.lax.scan(step, zeros, (inverse, upper, b), reverse=True)[1]


def _upper_transposed(inverse: Vector, upper: Matrix, b: Vector) -> Vector:
    r"""$U^{-T} b$; the window holds what is to be subtracted from the next entries of `b`."""

    def step(window: Array, row: Any) -> tuple[Array, Any]:
        d, u, y = row
        x = (y - window[0]) * d
        return jnp.concatenate([window[1:], jnp.zeros((1,), b.dtype)]) + u * x, x

    zeros = jnp.zeros((upper.shape[1],), b.dtype)
    return jax.lax.scan(step, zeros, (inverse, upper, b))[1]


def _pick(window: Array, k: Whole) -> Scalar:
    return jax.lax.dynamic_index_in_dim(window, jnp.maximum(k, 0), 0, False)


# Reductions by repeated halving: for large ones (windows of many lanes) the compiler would call a
# library, which it cannot do from within a kernel, and small ones are faster this way, too.


def _sum(terms: Array) -> Scalar:
    rest = jnp.zeros((), terms.dtype)
    while (n := terms.shape[0]) > 1:
        if n % 2:
            rest = rest + terms[-1]
        terms = terms[: n // 2] + terms[n // 2 : n - n % 2]
    return terms[0] + rest


def _largest(column: Vector, number: np.ndarray) -> Whole:
    """The place of the largest entry."""
    size, place = jnp.abs(column), jnp.asarray(number)
    if jnp.iscomplexobj(column):
        size = jnp.abs(column.real) + jnp.abs(column.imag)
    odd = []

    def larger(a: tuple, b: tuple) -> tuple:
        second = b[0] > a[0]
        return jnp.where(second, b[0], a[0]), jnp.where(second, b[1], a[1])

    while (n := size.shape[0]) > 1:
        half = n // 2
        if n % 2:
            odd.append((size[-1:], place[-1:]))
        size, place = larger(
            (size[:half], place[:half]), (size[half : 2 * half], place[half : 2 * half])
        )
    for last in odd:
        size, place = larger((size, place), last)
    return place[0]


def _reciprocal(z: Scalar) -> Scalar:
    """$1 / z$; for complex z without the scaling of the compiler's own division."""
    if not jnp.iscomplexobj(z):
        return 1 / z
    size = z.real * z.real + z.imag * z.imag
    return jax.lax.complex(z.real / size, -z.imag / size)
