r"""What a structure is: a way to factor large Jacobians most of whose entries are zero.

A structure is chosen once for the pattern of a Jacobian (`linalg.factor.STRUCTURES`); the methods
use only the interface that is defined here. A Jacobian without a structure is dense: rows of
scalars or a matrix, see `linalg/factor.py`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass

from ..base.types import Array, HostArray, Matrix, Scalar, Tree, Vector
from .pattern import Pattern


@dataclass(frozen=True)
class Structure(abc.ABC):
    r"""Linear systems with the Jacobian $J$ of a large system.

    `values` are the entries of $J$ in the order of the pattern, `mass` is 1 for differential rows
    and 0 for algebraic ones: $M$ is its diagonal matrix. Factors are pytrees of arrays. Solves are
    linear in the vector and can be transposed; both come from `linalg.primitives.linear`.
    """

    pattern: Pattern

    @staticmethod
    @abc.abstractmethod
    def suits(pattern: Pattern) -> bool:
        """Whether this is a good way to factor a matrix of the pattern, and available."""

    def values(self, fn: Callable[[Vector], Vector], y: Vector) -> Vector:
        """The entries of the Jacobian of `fn`, vector to vector, at `y`."""
        return self.pattern.values(fn, y)

    @abc.abstractmethod
    def factor(self, values: Vector, mass: HostArray, shift: Scalar | float) -> Tree:
        r"""Factors of $s M - J$; a complex shift $s$ gives complex factors."""

    @abc.abstractmethod
    def solve(self, factors: Tree, vector: Vector) -> Vector:
        r"""$(s M - J)^{-1} b$ for a vector [size]."""

    @abc.abstractmethod
    def factor_stages(self, values: Array, mass: HostArray, a: HostArray, h: Scalar) -> Tree:
        r"""Factors of a whole collocation step, for the Jacobians `values[j]` at its stages.

        Block $(i, j)$ is $\delta_{ij} M - h a_{ij} M J_j - \delta_{ij} (1 - M) J_i$: differential
        rows couple the stages, algebraic rows hold at each.
        """

    @abc.abstractmethod
    def solve_stages(self, factors: Tree, vectors: Matrix) -> Matrix:
        """The solution [stages, size] of a whole step for right hand sides [stages, size]."""

    @abc.abstractmethod
    def ratio(self, factors: Tree) -> Scalar:
        """The ratio of the smallest to the largest pivot; 1 where pivots are not known."""
