r"""Multipliers of coupled constraints: $S\lambda = b$ with $S = G W G^T$.

A constraint is coupled only with those that act on the same bodies. In a long mechanism, like a
chain, $S$ has a narrow band in some order of its rows. The band is then found by a few products and
factored, and neither $G$ nor $S$ is formed; derivatives are those of the products.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..base.captured_values import current
from ..base.types import Array, Matrix, Scalar, Vector
from ..linalg.dense import MIN_PIVOT
from ..linalg.dependence import pattern
from ..linalg.pattern import Pattern, take
from ..linalg.primitives import linear, run

if TYPE_CHECKING:
    from .description import Description
    from .equations import Equations

CONSTRAINTS_FOR_A_BAND = 6  # with fewer, a band does not pay off; see benchmarks/multibody.py
BAND_PRODUCTS = 0.75  # the most products to find a band, relative to its rows


# -- which rows are coupled -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Band:
    """An order of the rows in which rows more than `width` apart are not coupled."""

    order: tuple[int, ...]
    width: int

    @property
    def colours(self) -> int:
        """Columns this far apart share no row, so one product gives the entries of both."""
        return 2 * self.width + 1


def band_of(at: Equations) -> Band | None:
    """The band of $S$ if using one pays off; `None` for a dense matrix."""
    if at.model.sparsity == "dense" or at.count < CONSTRAINTS_FOR_A_BAND:
        return None
    numbers, rest = eqx.partition((at.now, at.p), eqx.is_array_like)
    leaves, tree = jax.tree.flatten(numbers)
    shapes = tuple((jnp.shape(v), jnp.result_type(v)) for v in leaves)
    others, rest_tree = jax.tree.flatten(rest)
    reads = current(at.model).key
    return _band(type(at), at.model, tree, shapes, rest_tree, tuple(others), reads)


@functools.lru_cache(maxsize=64)
def _band(
    make: type[Equations],
    model: Description,
    tree: Any,
    shapes: tuple[tuple[tuple[int, ...], np.dtype], ...],
    rest_tree: Any,
    others: tuple[object, ...],
    reads: Hashable,
) -> Band | None:
    """The band from the dependencies of the constraint, independent of the numbers."""
    rest = jax.tree.unflatten(rest_tree, others)
    numbers = [jax.ShapeDtypeStruct(*s) for s in shapes]

    def equations(leaves: Sequence[Array]) -> Equations:
        return make(model, *eqx.combine(jax.tree.unflatten(tree, leaves), rest))

    def position(*inputs: Array) -> list[Vector]:
        at = equations(inputs[:-1])
        return [at.position(at.t, inputs[-1])]

    mass, q = jax.eval_shape(lambda *v: (equations(v).mass, equations(v).q), *numbers)
    if mass.ndim == 2:
        return None
    slope = pattern(position, [*numbers, q], [len(numbers)]).astype(np.int32)
    coupled = Pattern.of(slope @ slope.T + np.eye(slope.shape[0], dtype=np.int32))
    band = Band(tuple(map(int, coupled.order)), max(*coupled.bandwidth, 1))
    return band if band.colours <= BAND_PRODUCTS * coupled.size else None


# -- factors in a band ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Factor:
    r"""$L D L^T$ of a symmetric $A \ge 0$ with a unit diagonal, from its rows up to the diagonal.

    A row that depends on those before it has no pivot, and is left out.
    """

    def __call__(self, rows: Matrix) -> list[Array]:
        wide = rows.shape[1]
        i, j = np.indices((wide, wide))
        leading = take(rows.reshape(-1), np.maximum(i, j) * wide + wide - 1 - np.abs(i - j))

        def step(window: Matrix, row: Vector) -> tuple[Matrix, tuple[Scalar, Vector]]:
            regular = window[0, 0] > MIN_PIVOT
            inverse = jnp.where(regular, 1.0 / jnp.where(regular, window[0, 0], 1.0), 0.0)
            lower = window[1:, 0] * inverse
            rest = window[1:, 1:] - lower[:, None] * window[0, 1:][None, :]
            rest = jnp.concatenate([rest, row[:-1][:, None]], axis=1)
            return jnp.concatenate([rest, row[None]], axis=0), (inverse, lower)

        after = jnp.concatenate([rows[wide:], jnp.zeros((wide, wide))])
        return list(jax.lax.scan(step, leading, after)[1])


@dataclasses.dataclass(frozen=True)
class _Solve:
    """A solve with these factors; symmetric, so it is its own transpose."""

    order: tuple[int, ...]

    def __call__(self, inverse: Vector, lower: Matrix, scale: Vector, b: Vector) -> list[Vector]:
        wide, order = lower.shape[1] + 1, np.array(self.order)

        def ahead(window: Vector, row: tuple[Vector, Scalar]) -> tuple[Vector, Scalar]:
            column, new = row
            return jnp.concatenate([window[1:] - column * window[0], new[None]]), window[0]

        def back(window: Vector, row: tuple[Vector, Scalar]) -> tuple[Vector, Scalar]:
            column, value = row
            x = value - jnp.sum(column * window)
            return jnp.concatenate([x[None], window[:-1]]), x

        scaled = take(b * scale, order)
        after = jnp.concatenate([scaled[wide:], jnp.zeros((wide,))])
        y = jax.lax.scan(ahead, scaled[:wide], (lower, after))[1]
        x = jax.lax.scan(back, jnp.zeros((wide - 1,)), (lower, y * inverse), reverse=True)[1]
        return [take(x, np.argsort(order)) * scale]


# -- multipliers ----------------------------------------------------------------------------------


class Dense:
    """By matrices."""

    def __init__(self, at: Equations):
        self.at = at

    def across(self, motion: Vector) -> Vector:
        r"""$G v$."""
        return self.at.slope @ motion

    def moved(self, lam: Vector) -> Vector:
        r"""$W G^T \lambda$."""
        return self.at.give @ lam

    def solver(self, soft: Vector | None = None) -> Callable[[Vector], Vector]:
        r"""$b \mapsto (S + \operatorname{diag}(soft))^{-1} b$, dependent rows left out."""
        inverse = self.at.compliance if soft is None else self.at.softer(soft)
        return lambda b: inverse @ b


class Narrow:
    """Multipliers by products with the derivative of the constraint, and a band."""

    def __init__(self, at: Equations, band: Band):
        self.at, self.band = at, band

    def across(self, motion: Vector) -> Vector:
        at = self.at
        return jax.jvp(lambda q: at.position(at.t, q), (at.q,), (motion,))[1]

    def moved(self, lam: Vector) -> Vector:
        return self.at.divide(self.at.pull(lam))

    def solver(self, soft: Vector | None = None) -> Callable[[Vector], Vector]:
        def product(lam: Vector) -> Vector:
            whole = self.across(self.moved(lam))
            return whole if soft is None else whole + soft * lam

        program, factors = _Solve(self.band.order), jax.lax.stop_gradient(self._factors(product))
        known = lambda _, b: linear(program, program, factors, b)
        return lambda b: jax.lax.custom_linear_solve(product, b, known, symmetric=True)

    def _factors(self, product: Callable[[Vector], Vector]) -> tuple[Vector, Matrix, Vector]:
        """The factors of the matrix scaled to a unit diagonal, in the order of the band."""
        band, size = self.band, self.at.count
        order = np.array(band.order)
        place = np.argsort(order)
        seeds = place[None, :] % band.colours == np.arange(band.colours)[:, None]
        columns = jax.vmap(product)(jnp.asarray(seeds, jnp.float64))
        column = np.arange(size)[:, None] + np.arange(-band.width, 1)
        rows = take(columns.reshape(-1), (column % band.colours) * size + order[:, None])
        some = rows[:, -1] > 0
        scale = jnp.where(some, 1.0 / jnp.sqrt(jnp.where(some, rows[:, -1], 1.0)), 0.0)
        both = scale[:, None] * take(scale, np.maximum(column, 0))
        inverse, lower = run(_Factor(), jnp.where(column >= 0, rows * both, 0.0))
        return inverse, lower, take(scale, place)


def multipliers(at: Equations) -> Dense | Narrow:
    """The way to compute multipliers that suits the mechanism."""
    band = band_of(at)
    return Dense(at) if band is None else Narrow(at, band)
