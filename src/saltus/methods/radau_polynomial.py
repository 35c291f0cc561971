"""The polynomial through the start and the three stages of Radau IIA."""

from __future__ import annotations

import functools
from typing import TypeVar

import jax
import numpy as np

ROOT = np.sqrt(6.0)
C = np.array([(4 - ROOT) / 10, (4 + ROOT) / 10, 1.0])
NODES = np.array([0.0, *C])
Fraction = TypeVar("Fraction", float, jax.Array)  # of a step


def lagrange(s: Fraction) -> list[Fraction]:
    """The three cubics that are 1 at one of the stages and 0 at the others and at 0."""
    out = []
    for i in (1, 2, 3):
        others = [NODES[j] for j in range(4) if j != i]
        out.append(
            (s - others[0]) * (s - others[1]) * (s - others[2])
            / float(np.prod([NODES[i] - o for o in others]))
        )  # fmt: skip
    return out


def lagrange_slopes(s: float) -> list[float]:
    e = 1e-3  # exact for cubics, up to rounding, with this stencil
    low, high, low2, high2 = (lagrange(s + k * e) for k in (-1, 1, -2, 2))
    return [
        (8 * (b - a) - (d - c)) / (12 * e)
        for a, b, c, d in zip(low, high, low2, high2, strict=True)
    ]


@functools.lru_cache(maxsize=4)
def quadrature(s: float) -> tuple[list[float], list[float]]:
    """Weights of the integral over (0, s), and of the value at s, of a quadratic through stages."""
    inverse = np.linalg.inv(np.vander(C, 3, increasing=True))
    integral = np.array([s ** (k + 1) / (k + 1) for k in range(3)]) @ inverse
    value = np.array([s**k for k in range(3)]) @ inverse
    return list(map(float, integral)), list(map(float, value))
