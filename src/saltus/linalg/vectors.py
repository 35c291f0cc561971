"""Vectors as tuples of scalars or arrays: layout, sums, norms."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves, Shapes, blank, float_shapes
from ..base.types import Array, Scalar
from .structure import Structure

Vec: TypeAlias = tuple[Array, ...]  # one array, or scalars
MAX_SCALARS = 4  # most entries for which a vector is a tuple of scalars


@dataclasses.dataclass(frozen=True)
class Layout:
    """How leaves of these shapes are packed into a vector."""

    shapes: tuple[tuple[int, ...], ...]
    structure: Structure | None = None  # of a large sparse Jacobian

    @property
    def sizes(self) -> list[int]:
        return [int(np.prod(s)) for s in self.shapes]

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def scalar(self) -> bool:
        return self.size <= MAX_SCALARS

    @property
    def packed(self) -> Shapes:
        """The shapes of a packed vector."""
        return float_shapes([()] * self.size if self.scalar else [(self.size,)])

    def zeros(self) -> Vec:
        return blank(self.packed)

    def pack(self, leaves: Sequence[Any]) -> Vec:
        if self.scalar:
            out: list = []
            for leaf, shape in zip(leaves, self.shapes, strict=True):
                flat = [leaf] if shape == () else list(jnp.reshape(leaf, (-1,)))
                out += [jnp.asarray(v, jnp.float64) for v in flat]
            return tuple(out)
        flat = [jnp.reshape(jnp.asarray(v, jnp.float64), (-1,)) for v in leaves]
        return (flat[0] if len(flat) == 1 else jnp.concatenate(flat),)

    def unpack(self, vec: Vec) -> Leaves:
        entries = list(vec) if self.scalar else None
        out, k = [], 0
        for shape, size in zip(self.shapes, self.sizes, strict=True):
            if entries is None:
                out.append(jnp.reshape(vec[0][k : k + size], shape))
            elif shape == ():
                out.append(entries[k])
            else:
                out.append(jnp.reshape(jnp.stack(entries[k : k + size]), shape))
            k += size
        return tuple(out)

    def weights(self, per_leaf: Sequence[Any]) -> Vec:
        """A vector from one number (or array) per leaf."""
        return self.pack(
            [jnp.broadcast_to(v, s) for v, s in zip(per_leaf, self.shapes, strict=True)]
        )


def add(*terms: tuple[Any, Vec]) -> Vec:
    """`sum_i a_i v_i` of (a, v) pairs."""
    out = []
    for j in range(len(terms[0][1])):
        total = None
        for a, v in terms:
            if isinstance(a, float) and a == 0.0:
                continue
            term = v[j] if isinstance(a, float) and a == 1.0 else a * v[j]
            total = term if total is None else total + term
        out.append(jnp.zeros_like(terms[0][1][j]) if total is None else total)
    return tuple(out)


def times(a: Vec, b: Vec) -> Vec:
    return tuple(u * v for u, v in zip(a, b, strict=True))


def mean_square(v: Vec) -> Scalar:
    """The mean of squares over all entries (moduli of complex ones)."""
    size = sum(int(np.prod(jnp.shape(e))) for e in v)
    total: Any = sum(jnp.sum(jnp.square(e)) if jnp.ndim(e) else jnp.square(e) for e in v)
    return total / max(size, 1)
