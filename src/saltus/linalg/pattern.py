"""The sparsity of large Jacobians: the pattern, few directions that give all entries, an order.

The pattern is detected once per system, on the host; compiled programs contain it as constants.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.types import Array, Matrix, Vector

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True)
class Pattern:
    """Where a square matrix can be nonzero; hashable, and cheap to compare."""

    size: int
    data: bytes  # rows, then columns, both int32, sorted by rows

    @classmethod
    def of(cls, matrix: Any) -> Pattern:
        """A pattern from a dense matrix, or from anything that SciPy accepts as a sparse one."""
        from scipy.sparse import csr_array

        matrix = csr_array(matrix, dtype=bool)
        matrix.eliminate_zeros()
        if matrix.shape[0] != matrix.shape[1]:
            raise ValueError(
                f"a sparsity pattern is square, but this one has the shape {matrix.shape}: one row "
                "per equation (the flow, then the constraint), one column per state (x, then z)."
            )
        rows, cols = matrix.nonzero()
        order = np.lexsort((cols, rows))
        return cls(matrix.shape[0], np.stack([rows, cols])[:, order].astype(np.int32).tobytes())

    @property
    def count(self) -> int:
        """How many entries there are."""
        return len(self.data) // 8

    @property
    def rows(self) -> np.ndarray:
        return np.frombuffer(self.data, np.int32)[: self.count]

    @property
    def cols(self) -> np.ndarray:
        return np.frombuffer(self.data, np.int32)[self.count :]

    @property
    def matrix(self) -> csr_array:
        return _matrix(self)

    @property
    def colours(self) -> Colours:
        """Groups of columns (or rows): one direction for each gives all values."""
        return _colours(self)

    @property
    def order(self) -> np.ndarray:
        """The better order for a narrow band: reverse Cuthill-McKee, or the order as it is."""
        return _order(self)

    @property
    def bandwidth(self) -> tuple[int, int]:
        """The numbers of diagonals below and above the main one, if entries are in `order`."""
        return _bandwidth(self, self.order)

    def values(self, fn: Callable, y: Vector) -> Vector:
        """The entries [count] of the Jacobian of `fn`, vector to vector, at `y`."""
        colours = self.colours
        seeds = jnp.asarray(colours.seeds(), y.dtype)
        if colours.by_rows:
            _, back = jax.vjp(fn, y)
            compressed = jax.vmap(lambda s: back(s)[0])(seeds)
            places = colours.group[self.rows] * self.size + self.cols
        else:
            compressed = jax.vmap(lambda s: jax.jvp(fn, (y,), (s,))[1])(seeds)
            places = colours.group[self.cols] * self.size + self.rows
        return take(compressed.reshape(-1), places)

    def dense(self, values: Array) -> Matrix:
        """The dense matrix [size, size] with the values [count]."""
        return jnp.zeros((self.size, self.size), values.dtype).at[self.rows, self.cols].set(values)

    def multiply(self, values: Array, vector: Vector) -> Vector:
        """The matrix times a vector."""
        wide, nothing = _by_rows(self), jnp.zeros((1,), values.dtype)
        entries = take(jnp.concatenate([values, nothing]), wide)
        columns = np.append(self.cols, 0)[wide]
        return jnp.sum(entries * take(vector, columns), 1)


def missing(pattern: Pattern, fn: Callable, y: Vector) -> tuple[int, int, float] | None:
    """An entry of the Jacobian of `fn` at `y` that a pattern leaves out: row, column, value.

    Found by a product with a random vector, which costs little if the pattern is right."""
    direction = jnp.asarray(np.random.default_rng(0).uniform(0.5, 1.5, pattern.size), y.dtype)

    @jax.jit
    def products(y: Vector) -> tuple[Any, Any, Any]:
        exact = jax.jvp(fn, (y,), (direction,))[1]
        values = pattern.values(fn, y)
        room = pattern.multiply(jnp.abs(values), direction)
        return exact, pattern.multiply(values, direction), room

    exact, sparse, room = map(np.asarray, products(y))
    wrong = np.abs(exact - sparse) > 1e-9 * (room + np.abs(exact))
    inside = pattern.matrix
    pull = jax.vjp(fn, y)[1] if wrong.any() else None
    for row in np.flatnonzero(wrong):
        whole = np.asarray(pull(jnp.zeros_like(y).at[row].set(1.0))[0])  # type: ignore[misc]
        out = np.abs(whole) > 1e-12 * np.abs(whole).max()
        out &= ~inside[[row], :].toarray().ravel()
        if out.any():
            column = int(np.argmax(out))
            return int(row), column, float(whole[column])
    return None


@dataclass(frozen=True)
class Colours:
    """Groups of columns that share no row (`by_rows`: of rows that share no column).

    One derivative, in the direction of the sum of a group, has the entries of all its columns."""

    group: np.ndarray
    count: int
    by_rows: bool

    def seeds(self) -> np.ndarray:
        return (self.group == np.arange(self.count)[:, None]).astype(float)


def take(values: Array, places: np.ndarray) -> Array:
    """`values[places]` for places that are all inside the array."""
    return values.at[places].get(mode="promise_in_bounds")


@functools.lru_cache(maxsize=64)
def _matrix(pattern: Pattern) -> csr_array:
    from scipy.sparse import csr_array

    entries = np.ones(pattern.count, bool), (pattern.rows, pattern.cols)
    return csr_array(entries, shape=(pattern.size, pattern.size))


@functools.lru_cache(maxsize=64)
def _colours(pattern: Pattern) -> Colours:
    """Groups of columns or of rows: at least as many as the fullest row (column) has entries."""
    ways = [(pattern.matrix, pattern.rows, False), (pattern.matrix.T.tocsr(), pattern.cols, True)]
    ways = sorted((int(np.bincount(at).max(initial=0)), flag, m) for m, at, flag in ways)
    best = Colours(np.arange(pattern.size), pattern.size, False)
    for fullest, by_rows, matrix in ways:
        if fullest < min(best.count, pattern.size // 2 + 1):
            group = _greedy(matrix)
            best = min(best, Colours(group, int(group.max()) + 1, by_rows), key=lambda c: c.count)
    return best


def _greedy(matrix: csr_array) -> np.ndarray:
    """A group for each column: the first that no column with a common row has.

    Tried in natural order (best for bands) and by number of neighbours; the better is returned.
    """
    counts = matrix.astype(np.int32)
    shared = (counts.T @ counts).tocsr()
    start, neighbours = shared.indptr, shared.indices
    degree = np.diff(start)
    best = None
    for order in (np.arange(len(degree)), np.argsort(-degree, kind="stable")):
        group = np.full(len(degree), -1)
        for j in order:
            taken = group[neighbours[start[j] : start[j + 1]]]
            free = np.ones(len(taken) + 1, bool)
            free[taken[(taken >= 0) & (taken <= len(taken))]] = False
            group[j] = np.argmax(free)
        if best is None or group.max(initial=0) < best.max(initial=0):
            best = group
    return np.asarray(best)


@functools.lru_cache(maxsize=64)
def _order(pattern: Pattern) -> np.ndarray:
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    either = (pattern.matrix + pattern.matrix.T).tocsr()
    order = np.asarray(reverse_cuthill_mckee(either, symmetric_mode=True))
    none = np.arange(pattern.size)
    widths = [sum(_bandwidth(pattern, o)) for o in (none, order)]
    return none if widths[0] <= widths[1] else order


def _bandwidth(pattern: Pattern, order: np.ndarray) -> tuple[int, int]:
    place = np.argsort(order)
    offset = place[pattern.rows] - place[pattern.cols]
    return int(offset.max(initial=0)), int(-offset.min(initial=0))


@functools.lru_cache(maxsize=64)
def _by_rows(pattern: Pattern) -> np.ndarray:
    """The numbers of the entries of each row, each row filled up with `count`."""
    lengths = np.bincount(pattern.rows, minlength=pattern.size)
    first = np.cumsum(lengths) - lengths
    wide = np.full((pattern.size, max(int(lengths.max(initial=0)), 1)), pattern.count)
    wide[pattern.rows, np.arange(pattern.count) - first[pattern.rows]] = np.arange(pattern.count)
    return wide
