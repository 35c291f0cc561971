"""Dense output without the model: the polynomial through `NODES` points of every step."""

from __future__ import annotations

import jax
import numpy as np

from ..base.types import HostArray, Numbers
from ..simulate.save_times import tolerance
from .trajectory import Course

NODES = 0.5 - 0.5 * np.cos(np.pi * np.arange(9) / 8)  # Chebyshev points, including both ends
BETWEEN = 0.5 * (NODES[1:] + NODES[:-1])


def matrix_to(fractions: Numbers) -> np.ndarray:
    """Barycentric interpolation from the nodes to `fractions` of a step (rows sum to 1)."""
    signs = np.where(np.arange(len(NODES)) % 2, -1.0, 1.0)
    signs[[0, -1]] *= 0.5
    off = np.reshape(fractions, -1)[:, None] - NODES
    hit = np.abs(off) < 1e-14
    weights = signs / np.where(hit, 1.0, off)
    weights = np.where(hit.any(axis=1, keepdims=True), hit.astype(float), weights)
    return weights / weights.sum(axis=1, keepdims=True)


def interpolated(kept: Course, start: HostArray, t: np.ndarray, side: str) -> HostArray:
    first, last = kept.t[:, 0], kept.t[:, -1]
    sign = -1.0 if last[-1] < first[0] else 1.0
    flat = t.reshape(-1)
    slack = np.asarray(tolerance(start, flat - start))
    if side == "right":
        row = np.searchsorted(sign * first, sign * flat + slack, side="right") - 1
    else:
        row = np.searchsorted(sign * last, sign * flat - slack, side="left")
    row = np.clip(row, 0, len(first) - 1)
    inside = (sign * (flat - first[0]) >= -slack) & (sign * (flat - last[-1]) <= slack)
    length = last[row] - first[row]
    fraction = (flat - first[row]) / np.where(length == 0, 1.0, length)
    matrix = matrix_to(np.clip(fraction, 0.0, 1.0))

    def one(v: np.ndarray) -> np.ndarray:
        if not np.issubdtype(v.dtype, np.floating):
            return v[row, 0].reshape(t.shape + v.shape[2:])
        y = np.einsum("pk,pk...->p...", matrix, v[row])
        y[~inside] = np.nan
        return y.reshape(t.shape + v.shape[2:])

    return jax.tree.map(one, kept.y)
