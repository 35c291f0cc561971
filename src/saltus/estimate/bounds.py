"""The box that bounds define for the parameters: points inside it, and its widths."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Bounded(Protocol):
    """Anything with bounds for every parameter; infinite where there is none."""

    low: np.ndarray
    high: np.ndarray


def clipped(box: Bounded, u: np.ndarray) -> np.ndarray:
    """The nearest point within the bounds."""
    return np.clip(u, box.low, box.high)


def contains(box: Bounded, u: np.ndarray) -> bool:
    """Whether a point is within the bounds."""
    return bool(np.all((u >= box.low) & (u <= box.high)))


def widths(box: Bounded, u: np.ndarray) -> np.ndarray:
    """From the lower to the upper bound; if one is missing, the size of `u`, at least 1."""
    width = box.high - box.low
    return np.where(np.isfinite(width) & (width > 0), width, np.maximum(np.abs(u), 1.0))
