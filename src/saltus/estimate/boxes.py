"""Searches in boxes around the best point, and searches with a limited number of iterations.

Boxes are for optima that optimisers for smooth losses miss: those where the sequence of events
changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .bounds import clipped, widths
from .constrained_optimisers import slsqp
from .monitor import Monitor
from .optimisers import OUT_OF_ITERATIONS, ConstrainedTarget, Ending, Limits
from .starts import AT_A_KINK, IT_JUMPS, STUCK, VIOLATION_LIMIT
from .stationarity import is_stationary
from .step_limits import Cautious

if TYPE_CHECKING:
    from .constrained_loss import Problem

MOST_BOXES, SMALLEST_BOX, SMALL_BOX = 60, 1e-5, 1e-2


class Boxed:
    """A problem within a box around a point."""

    def __init__(self, problem: Problem, u: np.ndarray, width: np.ndarray):
        self._problem = problem
        self.low, self.high = (clipped(problem, u + s * width) for s in (-1, 1))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)


class Spent(Exception):
    """The iterations for one start are used up."""


class Counted:
    """A monitor that stops a search after a number of iterations, with any optimiser.

    Once the sequence of events has changed, half of them are reserved for boxes.
    """

    def __init__(self, monitor: Monitor, problem: Problem, limit: int):
        self._monitor, self._problem, self._limit = monitor, problem, limit
        self.left, self.boxes = limit, False
        problem.sequences = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._monitor, name)

    @property
    def extra(self) -> dict[str, np.ndarray]:
        return self._monitor.extra

    @extra.setter
    def extra(self, given: dict[str, np.ndarray]) -> None:
        self._monitor.extra = given

    def iteration(self, *args: Any) -> None:
        if self.left <= self._kept():
            raise Spent
        self.left -= 1
        self._monitor.iteration(*args)

    def _kept(self) -> int:
        return 0 if self.boxes or len(self._problem.sequences) < 2 else self._limit // 2


def counted(
    method: Callable, problem: Problem, u: np.ndarray, monitor: Counted, limits: Limits, given: dict
) -> Ending:
    """A search with the iterations that are left; when these are used up, the best point."""
    few = dataclasses.replace(limits, iterations=min(limits.iterations, monitor.left))
    try:
        if few.iterations > 0:
            return method(Cautious(problem, u), u, monitor, few, **given)
    except Spent:
        pass
    return Ending(u if problem.best is None else problem.best[1], False, OUT_OF_ITERATIONS)


def boxed(
    method: Callable, problem: Problem, u: np.ndarray, monitor: Counted, limits: Limits, given: dict
) -> Ending:
    """The optimiser itself; if it does not converge, a search in boxes from the best point."""
    monitor.boxes = False
    ending = counted(method, problem, u, monitor, limits, given)
    if (
        ending.satisfied and problem.violation(ending.u) <= VIOLATION_LIMIT
    ) or problem.best is None:
        return ending
    return in_boxes(problem, u, monitor, limits)


def in_boxes(problem: Problem, u: np.ndarray, monitor: Counted, limits: Limits) -> Ending:
    """Search from the best point, in boxes of changing size.

    Where the sequence of events changes, loss and constraints jump or have a kink, and an optimiser
    for smooth problems may cycle. In a box around the best point it either finds a better one, and
    the box grows, or it does not, and the box shrinks (M59).
    """
    monitor.boxes = True
    size = widths(problem, u)
    fraction, few, changes = 0.1, dataclasses.replace(limits, iterations=12), False
    for _ in range(MOST_BOXES):
        rank, here = _best(problem)
        if monitor.left <= 0:
            return Ending(here, False, OUT_OF_ITERATIONS)
        monitor.enter(f"box of {100 * fraction:.2g} %", problem)
        problem.sequences = set()
        inside: Any = Boxed(problem, here, fraction * size)
        _in_box(inside, here, monitor, few)
        changes |= fraction <= SMALL_BOX and len(problem.sequences) > 1
        new, _ = _best(problem)
        gained = new < (rank[0] * (1 - 1e-6), np.inf) or (
            new < (rank[0], rank[1] - limits.tolerance * max(1.0, abs(rank[1])))
        )
        fraction = min(2 * fraction, 0.5) if gained else fraction / 3
        if fraction < SMALLEST_BOX:
            break
    else:
        return Ending(_best(problem)[1], False, OUT_OF_ITERATIONS)
    rank, here = _best(problem)
    if rank[0] <= VIOLATION_LIMIT and is_stationary(problem, here):
        return Ending(here, True, "found in boxes")
    return Ending(here, False, AT_A_KINK if changes else _stuck(problem, here, size))


def _best(problem: Problem) -> tuple[tuple[float, float], np.ndarray]:
    """(violation, loss) at the best point so far, and the point."""
    assert problem.best is not None
    return problem.best


def _in_box(inside: ConstrainedTarget, u: np.ndarray, monitor: Any, few: Limits) -> None:
    """A short search in a box; the problem keeps its best point."""
    with contextlib.suppress(Spent):
        slsqp(inside, u, monitor, dataclasses.replace(few, iterations=min(12, monitor.left)))


def _stuck(problem: Problem, u: np.ndarray, size: np.ndarray) -> str:
    """Why nothing better was found: whether anything jumps along the gradient."""
    slope = problem.gradient(u)[1] * size
    step = size * slope / max(float(np.linalg.norm(slope)), 1e-300)
    jumps = []
    for length in (1e-5, 1e-6):  # smooth functions change ten times less, jumps do not
        ends = [clipped(problem, u + s * length * step) for s in (-1, 1)]
        (before, left), (after, right) = (problem._evaluate(end) for end in ends)
        across = (left + right) / 2 @ (ends[1] - ends[0])
        large = np.abs(right - left) > 0.1 * np.maximum(np.abs(left), np.abs(right))
        far = np.abs(after - before - across) > 0.5 * np.abs(across) + 1e-9 * np.abs(before)
        jumps.append(bool(np.any(large) or np.any(far)))
    return IT_JUMPS if all(jumps) else STUCK
