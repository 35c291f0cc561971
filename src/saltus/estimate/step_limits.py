"""Limits on steps, so that they stay where the linearisation is valid and gradients exist.

A step that changes the sequence of events leaves the branch on which residuals and Jacobian were
computed. It may go as far as the branch extends by the margins of the events, and a little further,
so that the next branch can be entered; longer steps are refused, so the optimiser shortens them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.types import Scalar
from ..solution.solution import Solution
from ..trust.margins import Margins, measure
from ..trust.solution_certificate import radius
from ..trust.verdict import UNTRUSTED, quick_level
from .bounds import clipped

if TYPE_CHECKING:
    from .optimisers import Target

REACH_FACTOR = 1.25  # how far a step may go, in units of what the margins allow
WHOLE_STEP = 1.0 - 1e-9  # share of a step that is all of it
FREE_STEP = 1e-3  # relative to the parameters: shorter ones are always allowed


class Cautious:
    """A target that refuses steps beyond the range of its linearisation."""

    def __init__(self, target: Any, u: np.ndarray):
        self._target = target
        self._home = np.array(u)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def settle(self, u: np.ndarray) -> None:
        """The optimiser is now at `u`, from which steps are measured."""
        self._home = np.array(u)

    def share(self, u: np.ndarray) -> float:
        """How much of the step to `u` may be taken."""
        step = u - self._home
        size = float(np.max(np.abs(step) / np.maximum(1.0, np.abs(self._home)), initial=0.0))
        if size <= FREE_STEP or self._target.signature(u) == self._target.signature(self._home):
            return 1.0
        return min(1.0, max(REACH_FACTOR * self._target.reach(self._home, step), FREE_STEP / size))

    def residuals(self, u: np.ndarray) -> np.ndarray:
        r = self._target.residuals(u)
        return r if self.share(u) >= WHOLE_STEP else np.full_like(r, np.nan)

    def jacobian(self, u: np.ndarray) -> np.ndarray:
        self.settle(u)
        return self._target.jacobian(u)

    def gradient(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = self._target.gradient(u)
        return (value, slope) if self.share(u) >= WHOLE_STEP else (np.inf, slope)


def reach(simulate: Callable[[Scalar], Sequence[Solution]]) -> float:
    """How far a number may go from 0 to 1 before a sequence of events changes (M74).

    `simulate(s)` gives the solutions at `s`.
    """

    def run(s: Scalar) -> list[Margins]:
        return [measure(sol).margins for sol in simulate(s) if jnp.ndim(sol.result) == 0]

    now, change = jax.jvp(run, (jnp.zeros(()),), (jnp.ones(()),))
    return min((float(radius(a, b)) for a, b in zip(now, change, strict=True)), default=np.inf)


def level(solutions: Sequence[Solution]) -> int:
    """The worst level of the solutions, by a quick check."""
    return max((int(np.max(np.asarray(quick_level(s)))) for s in solutions), default=0)


def leave(target: Target, u: np.ndarray) -> np.ndarray | None:
    """A point near `u`, down the gradient, at which a gradient exists; None if there is none.

    Values from points without a gradient must not enter the memory of a quasi-Newton method, so
    this step is taken outside of it.
    """
    value, slope = target.gradient(u)
    size = float(np.max(np.abs(slope), initial=0.0))
    if not np.isfinite(size) or size == 0.0:
        return None
    length = 0.01 * np.maximum(1.0, np.max(np.abs(u))) / size
    for _ in range(20):
        there = clipped(target, u - length * slope)
        if target.value(there) < value and target.level(there) < UNTRUSTED:
            return there
        length *= 0.5
    return None
