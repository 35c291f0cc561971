"""Stiff linear equations over one row: Radau IIA of order 5 as a collocation method.

The equations are linear, `y' = A(u) y + b(u)`, so a step is one linear system for its three stages.
The error is the difference between one step and two half steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.types import Array, Scalar, Vector
from .integration import Advance

_ROOT = 6**0.5
NODES = np.array([(4 - _ROOT) / 10, (4 + _ROOT) / 10, 1.0])
MATRIX = np.array(
    [
        [(88 - 7 * _ROOT) / 360, (296 - 169 * _ROOT) / 1800, (-2 + 3 * _ROOT) / 225],
        [(296 + 169 * _ROOT) / 1800, (88 + 7 * _ROOT) / 360, (-2 - 3 * _ROOT) / 225],
        [(16 - _ROOT) / 36, (16 + _ROOT) / 36, 1 / 9],
    ]
)
WEIGHTS = MATRIX[-1]
_TWICE = np.concatenate([WEIGHTS, WEIGHTS])

Linear = Callable[[Any], tuple[Any, Any]]  # u -> (A, b)


def _one(h: Scalar, y: Vector, matrices: Array, pushes: Array) -> Vector:
    """The three stages of a step from `y`; the last one is its end."""
    n = y.shape[0]
    blocks = [
        [jnp.eye(n) * (i == j) - h * MATRIX[i, j] * matrices[j] for j in range(3)] for i in range(3)
    ]
    right = (y[None] + h * MATRIX @ pushes).reshape(-1)
    return jnp.linalg.solve(jnp.block(blocks), right).reshape(3, n)


def collocation_step(parts: Linear, judge: Callable, sums: Callable | None = None) -> Callable:
    """Two half steps, whose error is estimated by comparison with one whole step.

    `sums(u, y)` are integrands to integrate along: `y` is then `(y, *integrals)`.
    """

    def step(u: Scalar, h: Scalar, leaves: tuple) -> Advance:
        y, *rest = leaves
        half = 0.5 * h
        at = u + jnp.concatenate([half * NODES, half + half * NODES, h * NODES])
        matrices, pushes = jax.vmap(parts)(at)  # the model at all nine points at once
        first = _one(half, y, matrices[:3], pushes[:3])
        second = _one(half, first[-1], matrices[3:6], pushes[3:6])
        whole = _one(h, y, matrices[6:], pushes[6:])
        end, off = (second[-1],), (second[-1] - whole[-1],)
        if sums is not None:
            values = jax.vmap(sums)(at, jnp.concatenate([first, second, whole]))
            halves = tuple(half * jnp.tensordot(_TWICE, v[:6], 1) for v in values)
            end += tuple(a + b for a, b in zip(rest, halves, strict=True))
            whole_sums = (h * jnp.tensordot(WEIGHTS, v[6:], 1) for v in values)
            off += tuple(a - b for a, b in zip(halves, whole_sums, strict=True))
        return Advance(end, judge(off, leaves, end))

    return step
