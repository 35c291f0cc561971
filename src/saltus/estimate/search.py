"""Searches that escape poor local minima: stages over the horizon, many starts, smoother losses.

A loss with events has many local minima, and jumps where an event passes a sample. So after a local
search the result is tested: is it a minimum, and do the residuals look like noise? If not, other
searches follow, and the best result is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from .doubts import EXACT_PART, doubts
from .monitor import Monitor
from .objective import Objective
from .optimisers import (
    LEAST_SQUARES,
    Ending,
    Limits,
    OptimiserLike,
    Unconstrained,
    l_bfgs_b,
    least_squares,
    sobol,
    steepest,
)
from .step_limits import Cautious

SEARCHES = ("auto", "local", "horizon", "multistart", "shooting")
FLAT_COSINE = 1e-4  # largest between residuals and a column of the Jacobian at a minimum
FLAT_SLOPE = 1e-3  # largest entry of the gradient there, in units of the loss, for many numbers
LEAST_SQUARES_NUMBERS = 300  # with more free numbers, least squares is not the default
REFIT_ITERATIONS, REFIT_TOLERANCE = 100, 1e-10  # of each point of a profile
SHORTEST_STAGE = 1 / 64  # of a horizon
MOST_STAGES = 40
STAGE_LEASH, WHOLE_LEASH = (
    1e-4,
    1e-8,
)  # strength of the pull towards the first point, in a stage and with all data


@dataclasses.dataclass(frozen=True)
class Search:
    """The settings of a search."""

    method: Callable[..., Ending]
    name: OptimiserLike
    limits: Limits
    options: dict[str, Any]
    starts: int
    seed: int
    known: frozenset = frozenset()  # outputs and events whose noise is known

    def afresh(self) -> Search:
        """The same without the optimiser state of a checkpoint, which is for the first search."""
        return dataclasses.replace(
            self, options={k: v for k, v in self.options.items() if k != "resume"}
        )

    def local(
        self, target: Unconstrained, u: np.ndarray, monitor: Monitor, few: bool = False
    ) -> Ending:
        limits = self.limits
        if few:
            limits = dataclasses.replace(
                limits, iterations=min(30, limits.iterations), tolerance=1e-8
            )
        if not isinstance(target, Objective):
            return self.method(target, u, monitor, limits, **self.options)
        squares = self.name in LEAST_SQUARES and np.isfinite(target.value(u))
        tied = Leashed(target, u, WHOLE_LEASH) if squares else target
        ending = self.method(Cautious(tied, u), u, monitor, limits, **self.options)
        if target.best is not None and target.best[0] < target.value(ending.u) and not squares:
            return dataclasses.replace(ending, u=target.best[1])
        return ending

    def refit(self, target: Unconstrained, u: np.ndarray, monitor: Monitor) -> Ending:
        """A minimum near `u`, by few iterations of second order, however the fit was found."""
        limits = Limits(REFIT_ITERATIONS, max(self.limits.tolerance, REFIT_TOLERANCE))
        if self.name in LEAST_SQUARES:
            return self.method(target, u, monitor, limits, **self.options)
        method: Callable[..., Ending] = l_bfgs_b
        if u.size <= LEAST_SQUARES_NUMBERS:
            method = least_squares
        return method(target, u, monitor, limits)


@dataclasses.dataclass(frozen=True)
class Found:
    """A candidate, judged on all data."""

    u: np.ndarray
    loss: float
    minimum: bool
    noise: bool
    message: str
    doubt: str = ""  # why the residuals are not taken for noise

    @property
    def good(self) -> bool:
        return self.minimum and self.noise


def run(kind: str, objective: Objective, u: np.ndarray, search: Search, monitor: Monitor) -> Found:
    """Search from `u` by the search called `kind`."""
    if kind == "local":
        return local(objective, u, search, monitor)
    if kind == "horizon":
        return horizon(objective, u, search, monitor)
    if kind == "multistart":
        return multistart(objective, u, search, monitor)
    return automatic(objective, u, search, monitor)


def automatic(objective: Objective, u: np.ndarray, search: Search, monitor: Monitor) -> Found:
    """A local search; if its result is not good, one by stages, then one from many starts."""
    if not np.isfinite(objective.value(u)):  # its beginning may still be simulated
        return horizon(objective, u, search, monitor)
    best = local(objective, u, search, monitor)
    if best.good or search.name not in LEAST_SQUARES:
        return best
    if objective.events():
        best = min(best, horizon(objective, u, search, monitor), key=_order)
    if best.good:
        return best
    few = dataclasses.replace(search, starts=min(search.starts, 8))
    return min(best, multistart(objective, u, few, monitor, skip_first=True), key=_order)


def _order(found: Found) -> tuple:
    return (found.loss, not found.minimum)


def local(objective: Objective, u: np.ndarray, search: Search, monitor: Monitor) -> Found:
    monitor.enter(objective.how.loss, objective)
    ending = search.local(objective, u, monitor)
    return judged(objective, ending, search)


def multistart(
    objective: Objective, u: np.ndarray, search: Search, monitor: Monitor, skip_first: bool = False
) -> Found:
    """Many first guesses, ranked by their loss; local searches from the best of them."""
    guesses = [*([] if skip_first else [u]), *sobol(objective.free, 4 * search.starts, search.seed)]
    losses = [objective.value(guess) for guess in guesses]
    ranked = [guesses[k] for k in np.argsort(losses) if np.isfinite(losses[k])][: search.starts]
    if not ranked:
        return judged(objective, Ending(u, False, "no start could be simulated"), search)
    best = None
    for k, guess in enumerate(ranked):
        monitor.enter(f"start {k + 1} of {len(ranked)}", objective)
        ending = search.local(objective, guess, monitor, few=True)
        value = objective.value(ending.u)
        best = (value, ending.u) if best is None or value < best[0] else best
    assert best is not None
    monitor.enter("best start", objective)
    return judged(objective, search.local(objective, best[1], monitor), search)


def horizon(objective: Objective, u: np.ndarray, search: Search, monitor: Monitor) -> Found:
    """Fit the beginning first, then more and more, so that events are added one by one (M53)."""
    done, step, shortest, before = 0.0, 1 / 8, SHORTEST_STAGE, np.inf
    known = search.known >= {n for r in objective.runs for n in (*r.outputs, *r.events)}
    for _ in range(MOST_STAGES):
        part = min(1.0, done + step)
        stage = objective.variant(fraction=part)
        many = stage.samples()
        if many <= objective.free.size and part < 1.0:
            step = shortest = 1.5 * step
            continue
        monitor.enter(f"first {100 * part:.0f} %")
        possible = np.isfinite(stage.value(u))
        if not possible and step <= shortest:
            break
        if possible:
            target = stage if part == 1.0 else Leashed(stage, u)
            ending = search.local(target, u, monitor, few=part < 1.0)
            spread = np.sqrt(2 * stage.value(ending.u) / many)
            if spread <= (2.0 if known else 3 * before + 0.01) or step <= shortest:
                u, done, before = ending.u, part, max(spread, 1e-9)
                step, shortest = min(2 * step, 0.5), SHORTEST_STAGE
                if done == 1.0:
                    break
                continue
        step = max(step / 2, shortest)
    if not np.isfinite(objective.value(u)):
        return judged(objective, Ending(u, False, "a simulation failed"), search)
    monitor.enter("all", objective)
    return judged(objective, search.local(objective, u, monitor), search)


class Leashed(Unconstrained):
    """A target with a weak pull towards a point, which fixes undetermined directions."""

    def __init__(self, target: Objective, u: np.ndarray, strength: float = STAGE_LEASH):
        self._target, self._home = target, np.array(u)
        columns = np.linalg.norm(target.jacobian(u), axis=0)
        self._weight = strength * max(float(np.max(columns)), 1e-12)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def residuals(self, u: np.ndarray) -> np.ndarray:
        return np.concatenate([self._target.residuals(u), self._weight * (u - self._home)])

    def jacobian(self, u: np.ndarray) -> np.ndarray:
        return np.concatenate([self._target.jacobian(u), self._weight * np.eye(u.size)])

    def value(self, u: np.ndarray) -> float:
        r = self._weight * (u - self._home)
        return self._target.value(u) + 0.5 * float(r @ r)

    def gradient(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = self._target.gradient(u)
        off = self._weight**2 * (u - self._home)
        return value + 0.5 * float(off @ (u - self._home)), slope + off

    def hessian(self, u: np.ndarray) -> np.ndarray:
        return self._target.hessian(u) + self._weight**2 * np.eye(u.size)


# -- judging --------------------------------------------------------------------------------------
def judged(objective: Objective, ending: Ending, search: Search) -> Found:
    """Whether the end of a search is a minimum, and whether it explains the data."""
    u = np.clip(ending.u, objective.low, objective.high)
    value = objective.value(u)
    if not np.isfinite(value):
        return Found(u, value, False, False, "a simulation failed")
    doubt = doubts(objective, u, search.known)
    minimum = is_minimum(objective, u, search.name)
    return Found(u, value, minimum, not doubt, ending.message, doubt)


def is_minimum(objective: Objective, u: np.ndarray, name: OptimiserLike) -> bool:
    """Whether no direction within the bounds reduces the linearised loss noticeably."""
    if name not in LEAST_SQUARES and objective.free.size > 100:
        value, slope = objective.gradient(u)
        if np.sqrt(2 * value) <= EXACT_PART * objective.size_of_data():
            return True
        return steepest(objective, u, slope) <= FLAT_SLOPE * value
    r, j = objective.residuals(u), objective.jacobian(u)
    size = np.linalg.norm(r)
    if size <= EXACT_PART * objective.size_of_data():
        return True
    slope = j.T @ r
    edge = 1e-6 * np.maximum(1.0, np.abs(u))
    stopped = ((u <= objective.low + edge) & (slope > 0)) | (
        (u >= objective.high - edge) & (slope < 0)
    )
    length = np.linalg.norm(j, axis=0)
    cosine = np.abs(slope) / np.where(length > 0, length * size, 1.0)
    return bool(np.max(np.where(stopped, 0.0, cosine), initial=0.0) <= FLAT_COSINE)
