"""Factor a matrix once, solve with it many times, also transposed: all methods go through here.

Unknowns are tuples of leaves. A `Layout` packs them into a vector: a tuple of scalars if the system
is very small, so that elimination is written out and stays in registers, otherwise one array.
`solve` is linear in its right-hand side and made of plain operations, so that its transpose is the
transposed solve.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ..base.types import Array, Matrix, Scalar, Tree
from .banded import Banded
from .dense import Factored, Inverse, Lapack, eliminate, invert, invert_semidefinite
from .klu import Sparse
from .pattern import Pattern, take
from .primitives import inverse
from .structure import Structure
from .vectors import Layout, Vec, times

# Rows of scalars for very small systems, else a matrix, or the entries of a structure.
Jacobian: TypeAlias = tuple[Vec, ...] | Array
STRUCTURES: tuple[type[Structure], ...] = (Banded, Sparse)  # the first that suits a pattern is used
MAX_ELIMINATED = 9  # most unknowns for which elimination on scalars is written out
MAX_INVERTED = 64  # most unknowns for which an inverse is computed; above, LAPACK is used


def jacobian(fn: Callable[[Vec], Vec], at: Vec, structure: Structure | None = None) -> Jacobian:
    """The Jacobian of a vector function: rows of scalars, an array, or a structure's entries."""
    if structure is not None:
        return structure.values(lambda v: fn((v,))[0], at[0])
    if jnp.ndim(at[0]) == 0:
        columns = []
        for j in range(len(at)):  # one entry at a time, so that zeros stay symbolic

            def along(v: Scalar, j: int = j) -> Vec:
                return fn((*at[:j], v, *at[j + 1 :]))

            columns.append(jax.jvp(along, (at[j],), (jnp.ones_like(at[j]),))[1])
        return tuple(zip(*columns, strict=True))
    eye = jnp.eye(at[0].size, dtype=at[0].dtype)
    columns = jax.vmap(lambda e: jax.jvp(fn, (at,), ((e,),))[1])(eye)
    if len(columns) > 1:  # the rows are scalars: few equations of many unknowns
        return jnp.stack(columns)
    return columns[0].T if columns[0].ndim == 2 else columns[0][None]


def dense(matrix: Jacobian) -> Matrix:
    """A Jacobian as one array (rows, columns)."""
    if not isinstance(matrix, tuple):
        return matrix
    out = jnp.stack([jnp.stack(row) for row in matrix])
    return out if out.ndim == 2 else out[0].T


def with_columns(layout: Layout, jac: Jacobian, scale: Vec) -> Jacobian:
    """A Jacobian with each column multiplied by an entry of `scale`."""
    if layout.structure is not None:
        return _array(jac) * take(scale[0], layout.structure.pattern.cols)
    if layout.scalar:
        return tuple(times(row, scale) for row in jac)
    return _array(jac) * scale[0][None, :]


def _array(jac: Jacobian) -> Array:
    """A Jacobian that is an array: with a structure, or with more than a few unknowns."""
    assert not isinstance(jac, tuple)
    return jac


def factor_shifted(
    layout: Layout, jac: Jacobian, mass: np.ndarray, shift: Scalar | float
) -> Factored:
    """Factors of `shift * M - J` for a diagonal `M` of zeros and ones."""
    if layout.structure is not None:
        return Structured(layout.structure.factor(_array(jac), mass, shift), layout.structure, 1)
    if layout.scalar:
        n = layout.size
        return eliminate(
            tuple(
                tuple((shift if i == j and mass[i] else 0.0) - jac[i][j] for j in range(n))
                for i in range(n)
            )
        )
    return factor(shift * jnp.diag(jnp.asarray(mass)) - _array(jac))


def factor_stages(
    layout: Layout,
    jacs: Sequence[Jacobian],
    mass: np.ndarray,
    a: np.ndarray,
    h: Scalar,
    compact: bool = False,
) -> Factored:
    """Factors of a collocation step: `M - h a_ij M J_j` and `-J_i` in algebraic rows (M42).

    `compact` prefers a short program to a fast one.
    """
    s = len(jacs)
    if layout.structure is not None:
        made = layout.structure.factor_stages(jnp.stack([*map(_array, jacs)]), mass, a, h)
        return Structured(made, layout.structure, s)
    if layout.scalar:
        matrix = _scalar_stages(jacs, mass, a, h)
        if compact or s * layout.size > MAX_ELIMINATED:
            return Inverse(invert(dense(matrix)))
        return eliminate(matrix)
    m, whole = jnp.asarray(mass)[:, None], [*map(_array, jacs)]
    blocks = []
    for i in range(s):
        row = [-float(a[i, j]) * h * (m * whole[j]) for j in range(s)]
        row[i] = row[i] + jnp.diag(m[:, 0]) - (1.0 - m) * whole[i]
        blocks.append(jnp.concatenate(row, axis=1))
    return factor(jnp.concatenate(blocks, axis=0))


def _scalar_stages(
    jacs: Sequence[Jacobian], mass: np.ndarray, a: np.ndarray, h: Scalar
) -> tuple[Vec, ...]:
    n, s = len(mass), len(jacs)
    rows = []
    for i in range(s):
        for r in range(n):
            row: list = []
            for j in range(s):
                for k in range(n):
                    if mass[r]:
                        one = 1.0 if (i == j and r == k) else 0.0
                        row.append(one - float(a[i, j]) * h * jacs[j][r][k])
                    else:
                        row.append(-jacs[i][r][k] if i == j else jnp.zeros(()))
            rows.append(tuple(row))
    return tuple(rows)


def solve_stages(factors: Factored, rhs: list[Vec]) -> list[Vec]:
    """Solve a whole collocation step: one vector for each stage."""
    n = len(rhs[0])
    if jnp.ndim(rhs[0][0]):
        size = rhs[0][0].shape[0]
        flat = solve(factors, (jnp.concatenate([r[0] for r in rhs]),))[0]
        return [(flat[size * i : size * (i + 1)],) for i in range(len(rhs))]
    flat = solve(factors, tuple(v for r in rhs for v in r))
    return [tuple(flat[n * i : n * (i + 1)]) for i in range(len(rhs))]


def factor(matrix: Jacobian) -> Factored:
    """The factors of a square matrix, for `solve`; they contain NaN if the matrix is singular."""
    if isinstance(matrix, tuple):
        return eliminate(matrix)
    if matrix.shape[0] <= MAX_INVERTED:
        return Inverse(invert(matrix))
    scale = 1.0 / jnp.max(jnp.abs(matrix), axis=1)
    lu, pivots = jax.scipy.linalg.lu_factor(matrix * scale[:, None])
    return Lapack(lu, pivots, scale)


def factor_jacobian(layout: Layout | None, jac: Jacobian) -> Factored:
    """Factors of a Jacobian that `jacobian` returned."""
    if layout is None or layout.structure is None:
        return factor(jac)
    made = layout.structure.factor(-_array(jac), np.zeros(layout.size), 0.0)
    return Structured(made, layout.structure, 1)


def solve(factors: Factored, rhs: Vec) -> Vec:
    """`A^-1 rhs`."""
    return factors.solve(rhs)


def conditioning(factors: Factored) -> Scalar:
    """The ratio of the smallest to the largest pivot: small where the matrix is near singular."""
    return factors.ratio()


def pseudo_inverse(matrix: Matrix) -> Matrix:
    """The inverse of the regular part of a symmetric positive semidefinite matrix.

    It has all derivatives. Rows that depend on others count as zero."""
    return inverse(invert_semidefinite, matrix)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["factors"],
    meta_fields=["structure", "stages"],
)
@dataclasses.dataclass
class Structured:
    """A matrix factored by a structure: that of one Jacobian, or of all stages of a step."""

    factors: Tree
    structure: Structure
    stages: int

    def solve(self, rhs: Vec) -> Vec:
        if self.stages == 1:
            return (self.structure.solve(self.factors, rhs[0]),)
        wide = jnp.reshape(rhs[0], (self.stages, -1))
        return (jnp.reshape(self.structure.solve_stages(self.factors, wide), (-1,)),)

    def ratio(self) -> Scalar:
        return self.structure.ratio(self.factors)


@functools.lru_cache(maxsize=64)
def structure_of(pattern: Pattern | None) -> Structure | None:
    """The structure by which a Jacobian of this pattern is best factored; `None`: as a dense one.

    `Banded` is used if some order of the unknowns makes the band narrow, and KLU (if installed) if
    none does but most entries are zero.
    """
    if pattern is None:
        return None
    return next((kind(pattern) for kind in STRUCTURES if kind.suits(pattern)), None)
