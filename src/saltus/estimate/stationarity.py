"""Whether a point is stationary: its active constraints and bounds, and their multipliers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import scipy.optimize

if TYPE_CHECKING:
    from .constrained_loss import Problem

ACTIVE_DISTANCE, FLAT_SLOPE = 1e-4, 1e-3  # to a bound that holds a point; of a gradient, relative
HOLDING_FORCE = 1e-6  # relative to the gradient: a constraint with a smaller force is not firm


@dataclasses.dataclass(frozen=True)
class Standing:
    """The active constraints and bounds at a point, and their forces (multipliers)."""

    rows: np.ndarray  # the gradient of each
    forces: np.ndarray
    firm: np.ndarray  # whether it is an equality, or has a force
    which: np.ndarray  # its index among the constraints, followed by the bounds
    off: float  # the unbalanced part of the gradient, relative; without forces, its norm


def standing(problem: Problem, u: np.ndarray) -> Standing:
    """Forces of active constraints and bounds that balance the gradient (Karush–Kuhn–Tucker)."""
    _, slope = problem.gradient(u)
    values = np.concatenate([problem.constraints(u), u])
    rows = np.concatenate([problem.constraint_jacobian(u), np.eye(u.size)])
    ends = [
        np.concatenate(pair)
        for pair in ((problem.below, problem.low), (problem.above, problem.high))
    ]
    near = [
        np.isfinite(end)
        & (np.abs(values - np.where(np.isfinite(end), end, 0.0)) <= ACTIVE_DISTANCE * _size(end))
        for end in ends
    ]
    which = np.flatnonzero(near[0] | near[1])
    size = float(np.linalg.norm(slope))
    if not which.size:
        return Standing(rows[:0], np.zeros(0), np.zeros(0, bool), which, size)
    low = np.where(near[1][which], -np.inf, 0.0)
    high = np.where(near[0][which], np.inf, 0.0)
    balance = scipy.optimize.lsq_linear(rows[which].T, slope, (low, high))
    firm = np.abs(balance.x) * np.linalg.norm(rows[which], axis=1) > HOLDING_FORCE * max(1.0, size)
    firm |= ends[0][which] == ends[1][which]
    off = float(np.linalg.norm(balance.fun)) / max(size, 1e-12)
    return Standing(rows[which], balance.x, firm, which, off)


def _size(end: np.ndarray) -> np.ndarray:
    return np.maximum(1.0, np.abs(np.where(np.isfinite(end), end, 0.0)))


def is_stationary(problem: Problem, u: np.ndarray) -> bool:
    """Whether forces of active constraints and bounds balance the gradient."""
    return standing(problem, u).off <= FLAT_SLOPE
