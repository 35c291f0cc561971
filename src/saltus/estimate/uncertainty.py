r"""Uncertainty: covariance, intervals, weak directions, profiles (M54 to M57).

Near the minimum the loss is $\tfrac12 |r^*|^2 + \tfrac12 |J (u - u^*)|^2$, so the covariance of
the vector is $(J^T J)^{-1}$ when residuals are weighted by their standard deviations; with the
exact Hessian in place of $J^T J$ on request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.special

from ..base.text import number, table
from .monitor import Monitor
from .objective import Objective
from .optimisers import Ending, Unconstrained
from .parameters import Free

WEAK_DEVIATION = 0.5  # a direction with a larger relative standard deviation is weak
BOUND_DISTANCE = 1e-6  # relative: a number closer to a bound is on it
SINGULAR_PART = 1e-12  # of the largest singular value: smaller ones are zero
ZERO_PART = 1e-3  # of its unit: a smaller number has no relative change


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Certainty:
    """Standard deviations and intervals of the free numbers, and weakly determined directions."""

    covariance: np.ndarray  # of the numbers on their own scales; NaN where not determined
    correlation: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray
    at_bound: list[bool]
    spectrum: tuple[np.ndarray, np.ndarray]  # singular values and directions, relative changes
    weak: list[str]
    why: str = ""  # the reason if nothing is known
    names: list[str] = dataclasses.field(default_factory=list)

    def __repr__(self) -> str:
        if self.why:
            return f"No intervals: {self.why}."
        rows = []
        for name, sd, low, high, held in zip(
            self.names, self.sd, self.low, self.high, self.at_bound, strict=True
        ):
            interval = f"{number(low, 5)} to {number(high, 5)}"
            if held or not np.isfinite(sd):
                interval = "at its bound" if held else "not determined"
            rows.append([name, number(float(sd), 2) if np.isfinite(sd) else "-", interval])
        lines = [table(["", "sd", "95 % interval"], rows)]
        return "\n".join([*lines, *(f"  ! {sentence}" for sentence in self.weak[:5])])


def certainty(
    objective: Objective,
    u: np.ndarray,
    freedom: float | None,
    exact: bool = False,
    level: float = 0.95,
) -> Certainty:
    """The uncertainty at `u`. `freedom` is the degrees of freedom of an estimated noise."""
    free = objective.free
    j = objective.jacobian(u)
    held = at_bounds(objective, u, j)
    inside = np.flatnonzero(~held)
    square = objective.hessian(u) if exact else j.T @ j
    cov_u = np.full((free.size, free.size), np.nan)
    cov_u[np.ix_(inside, inside)] = inverse(square[np.ix_(inside, inside)])
    slopes = free.slopes(u)
    covariance = slopes[:, None] * cov_u * slopes
    sd_u = np.sqrt(np.diag(cov_u))
    reach = quantile(level, freedom)
    values = np.asarray(free.natural(u))
    ends = np.stack(
        [np.asarray(free.natural(u - reach * sd_u)), np.asarray(free.natural(u + reach * sd_u))]
    )
    sd = np.sqrt(np.diag(covariance))
    with np.errstate(invalid="ignore"):
        correlation = np.where(np.isinf(np.outer(sd, sd)), np.nan, covariance / np.outer(sd, sd))
    size, unit = np.abs(values), free.units()
    zero = ~(size > ZERO_PART * unit)  # also true for NaN
    size = np.where(zero, np.where(unit, unit, 1.0), size)
    relative = j * (size / np.where(slopes == 0, 1.0, slopes))
    relative[:, held] = 0.0
    _, s, rows = np.linalg.svd(relative, full_matrices=False)
    s = s[: inside.size]
    rows = rows[: inside.size]
    return Certainty(
        covariance, correlation, sd, ends.min(axis=0), ends.max(axis=0), list(map(bool, held)),
        (s, rows), weak_directions(free.names, s, rows, np.where(zero, size, np.nan)),
        names=list(free.names),
    )  # fmt: skip


def undetermined(free: Free, values: np.ndarray, known: Certainty, blind: bool) -> list[str]:
    """Numbers whose standard deviation is at least as large as they are, or as their unit.

    If nothing is known about the noise (`blind`), those that the data cannot determine at all."""
    size = np.inf if blind else np.maximum(np.abs(values), free.units())
    lost = ~(known.sd < size) & ~np.asarray(known.at_bound, bool)
    return [name for name, yes in zip(free.names, lost, strict=True) if yes]


def unknown(known: Certainty, why: str) -> Certainty:
    """The same without uncertainties: not at a minimum, or with unknown noise."""
    nothing = np.full_like(known.sd, np.inf)
    return dataclasses.replace(
        known, sd=nothing, low=-nothing, high=nothing, weak=[], why=why,
        covariance=np.full_like(known.covariance, np.nan),
        correlation=np.full_like(known.correlation, np.nan),
    )  # fmt: skip


def at_bounds(objective: Objective, u: np.ndarray, j: np.ndarray) -> np.ndarray:
    """Which numbers are on a bound, with a gradient that points out of it."""
    slope = j.T @ objective.residuals(u)
    edge = BOUND_DISTANCE * np.maximum(1.0, np.abs(u))
    return ((u <= objective.low + edge) & (slope >= 0)) | (
        (u >= objective.high - edge) & (slope <= 0)
    )


def inverse(square: np.ndarray) -> np.ndarray:
    """The inverse of a symmetric matrix; infinite variance along undetermined directions."""
    if not square.size:
        return square
    scale = np.sqrt(np.abs(np.diag(square)))
    scale = np.where(scale > 0, scale, 1.0)
    values, vectors = np.linalg.eigh(square / np.outer(scale, scale))
    good = values > SINGULAR_PART * values.max(initial=0.0)
    part = vectors[:, good] / values[good] @ vectors[:, good].T
    lost = np.max(np.abs(vectors[:, ~good]), axis=1, initial=0.0) > 1e-3
    part[lost, lost] = np.inf
    return part / np.outer(scale, scale)


def quantile(level: float, freedom: float | None) -> float:
    """The half-width of an interval, in standard deviations."""
    upper = 0.5 + 0.5 * level
    if freedom is None:
        return float(scipy.special.ndtri(upper))
    return float(scipy.special.stdtrit(max(freedom, 1.0), upper))


def weak_directions(
    names: list[str], s: np.ndarray, rows: np.ndarray, absolute: float | np.ndarray = np.nan
) -> list[str]:
    """Directions that the data hardly determine, in words.

    `rows` are relative changes; for numbers with a unit in `absolute`, changes in that unit.
    """
    unit = np.broadcast_to(np.asarray(absolute, dtype=float), (len(names),))
    sentences = []
    for value, row in sorted(zip(s, rows, strict=True), key=lambda pair: pair[0]):
        lost = value <= SINGULAR_PART * s.max()
        if not lost and 1.0 / value < WEAK_DEVIATION:
            break
        sentences.append(_sentence(names, row, np.inf if lost else 1.0 / value, unit))
    return sentences


def _sentence(names: list[str], row: np.ndarray, sd: float, unit: np.ndarray) -> str:
    """One direction; for numbers near zero, absolute changes instead of percentages."""
    order = np.argsort(-np.abs(row))
    main = [k for k in order if abs(row[k]) > 0.2 * abs(row[order[0]])][:5]
    main.sort(key=lambda k: bool(np.isfinite(unit[k])))  # percentages first, otherwise as before
    lead = main[0]

    def change(k: int) -> str:
        part = 0.1 * row[k] / row[lead]
        percent = "+10 %" if k == lead else f"{100 * part:+.2g} %"
        return f"{names[k]} by {part * unit[k]:+.2g}" if unit[k] > 0 else f"{names[k]} by {percent}"

    held = f"only to {100 * sd:.2g} % (one standard deviation)"
    if np.isfinite(unit[lead]):
        within = "" if len(main) == 1 else f" in {names[lead]}"
        held = f"only to {sd * abs(row[lead]) * unit[lead]:.2g}{within} (one standard deviation)"
    if not np.isfinite(sd):
        held = "not at all"
    if len(main) == 1:
        return f"{names[lead]} is determined {held}."
    words = f"{', '.join(names[k] for k in main[:-1])} and {names[main[-1]]}"
    return (
        f"{words} trade off: changing {', '.join(map(change, main))} together hardly changes the "
        f"fit; this combination is determined {held}."
    )


# -- profiles -------------------------------------------------------------------------------------
class Held(Unconstrained):
    """A target with one number held at a value: a vector without that entry."""

    def __init__(self, target: Objective, index: int, value: float):
        self._target, self._index, self._value = target, index, value
        self.low, self.high = np.delete(target.low, index), np.delete(target.high, index)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def whole(self, rest: np.ndarray) -> np.ndarray:
        return np.insert(rest, self._index, self._value)

    def residuals(self, rest: np.ndarray) -> np.ndarray:
        return self._target.residuals(self.whole(rest))

    def jacobian(self, rest: np.ndarray) -> np.ndarray:
        return np.delete(self._target.jacobian(self.whole(rest)), self._index, axis=1)

    def value(self, rest: np.ndarray) -> float:
        return self._target.value(self.whole(rest))

    def gradient(self, rest: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = self._target.gradient(self.whole(rest))
        return value, np.delete(slope, self._index)

    def hessian(self, rest: np.ndarray) -> np.ndarray:
        whole = self._target.hessian(self.whole(rest))
        return np.delete(np.delete(whole, self._index, axis=0), self._index, axis=1)

    def signature(self, rest: np.ndarray) -> str:
        return self._target.signature(self.whole(rest))


@dataclasses.dataclass(frozen=True, eq=False)
class Profile:
    """The least loss for given values of one number, and the resulting interval."""

    name: str
    values: np.ndarray
    losses: np.ndarray
    low: float  # NaN where the profile did not rise far enough within the range
    high: float
    threshold: float
    interrupted: bool = False

    def __repr__(self) -> str:
        note = ""
        if self.interrupted:
            many = int(np.sum(~np.isnan(self.losses)))
            note = f" (interrupted after {many} of {self.losses.size} values)"
        return f"Profile of {self.name}: {self.low:.6g} to {self.high:.6g}{note}"


def profile(
    objective: Objective, u: np.ndarray, name: str, sd: float,
    refit: Callable[[Held, np.ndarray, Monitor], Ending], monitor: Monitor, freedom: float | None,
    points: int = 15, level: float = 0.95, reach: float = 4.0,
) -> Profile:  # fmt: skip
    """Refit everything else for values of `name` around its estimate, outwards from the middle.

    After an interrupt, values that are not finished have NaN as their loss."""
    free: Free = objective.free
    if name not in free.names:
        raise ValueError(f'profile: "{name}" is not free; there are {", ".join(free.names)}.')
    k = free.names.index(name)
    width = reach * sd if np.isfinite(sd) and sd > 0 else 0.5 * max(abs(u[k]), 1.0)
    grid = np.clip(
        u[k] + width * np.linspace(-1, 1, points | 1), objective.low[k], objective.high[k]
    )
    losses = np.full(grid.size, np.nan)
    try:
        for m, loss in _losses(objective, u, k, grid, refit, monitor):
            losses[m] = loss
        interrupted = False
    except KeyboardInterrupt:
        if np.isnan(losses).all():
            raise
        interrupted = True
    rise = 0.5 * quantile(level, freedom) ** 2
    values = np.array([float(free.natural(np.insert(np.delete(u, k), k, g))[k]) for g in grid])
    least = np.nanmin(losses)
    low, high = _crossing(values, losses - least - rise, int(np.nanargmin(losses)))
    return Profile(name, values, losses, low, high, least + rise, interrupted)


def _losses(
    objective: Objective, u: np.ndarray, k: int, grid: np.ndarray,
    refit: Callable[[Held, np.ndarray, Monitor], Ending], monitor: Monitor,
) -> Iterator[tuple[int, float]]:  # fmt: skip
    """The least loss at each value of number `k`; infinite beyond what can be simulated."""
    middle, done = grid.size // 2, 0
    for way in (range(middle, grid.size), range(middle - 1, -1, -1)):
        rest, possible = np.delete(u, k), True
        for m in way:
            held, done = Held(objective, k, float(grid[m])), done + 1
            possible = possible and bool(np.isfinite(held.value(rest)))
            if possible and rest.size:
                name = objective.free.names[k]
                monitor.enter(f"profile of {name}, value {done} of {grid.size}", held)
                rest = refit(held, rest, monitor).u
            yield m, objective.value(held.whole(rest)) if possible else np.inf


def _crossing(values: np.ndarray, off: np.ndarray, best: int) -> tuple[float, float]:
    """Where a curve crosses zero to the left and to the right of its minimum."""
    ends = []
    for way in (range(best, 0, -1), range(best, values.size - 1)):
        step = -1 if way.step == -1 else 1
        end = np.nan
        for m in way:
            a, b = off[m], off[m + step]
            if a <= 0 < b:
                # the profile is nearly a parabola, so its square root is interpolated
                end = values[m] + (values[m + step] - values[m]) * (-a) / (b - a)
                break
        ends.append(float(end))
    low, high = ends if values[0] <= values[-1] else reversed(ends)
    return low, high  # NaN at one end says nothing about the other
