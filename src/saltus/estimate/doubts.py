"""Whether the residuals of a fit look like noise, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from .objective import Objective, Residuals

EXACT_PART = 1e-6  # of the data: smaller residuals are not judged
FEWEST_RESIDUALS = 8  # fewer are not tested for structure
MANY_RESIDUALS = 200  # from which von Neumann's ratio has its limit distribution
SHUFFLES = 4000  # random orders with which few residuals are compared
SMOOTH_PART = 0.002  # of the shuffles may be as smooth as the residuals
SURE_DEVIATIONS = 3.0  # by which a test of noise must fail
WEAK_CORRELATION = 0.2  # of neighbours: a good model of much data may leave as much
OUTLIER_DEVIATIONS = 6.0  # a residual farther from zero is not noise


def doubts(objective: Objective, u: np.ndarray, known: frozenset) -> str:
    """Why the residuals are not noise, in words; empty if they may be."""
    series = objective.residual_series(u)
    for s in series:
        size = _size(s.values)
        if s.name in known and size > too_large(s.values.size):
            return f"residuals of {s.name} are {size:.3g} times as large as the noise given for it"
        if size <= EXACT_PART * s.scale:
            continue
        if objective.how.transform is None and (far := _far_out(s)):
            return far
        if _has_structure(s.values):
            return f"the residuals of {s.name} have structure"
    return _uneven(series) or _doubtful_events(objective, u, known)


def _size(r: np.ndarray) -> float:
    return float(np.sqrt(np.mean(r**2))) if r.size else 0.0


def _has_structure(r: np.ndarray) -> bool:
    """Whether neighbours are correlated: von Neumann's ratio and the first autocorrelation.

    Few residuals are compared with shuffles of themselves with random signs, which would be equally
    likely if they were noise; for many the ratio is 2, with variance 4 (n - 2) / (n^2 - 1)."""
    n, total = r.size, float(np.sum(r**2))
    if n < FEWEST_RESIDUALS or float(np.sum(r[1:] * r[:-1])) <= WEAK_CORRELATION * total:
        return False
    ratio = float(np.sum(np.diff(r) ** 2)) / total
    if n > MANY_RESIDUALS:
        return ratio < 2.0 - SURE_DEVIATIONS * 2.0 * np.sqrt((n - 2) / (n**2 - 1))
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], (SHUFFLES, n))
    others = signs * rng.permuted(np.tile(r, (SHUFFLES, 1)), axis=1)
    smoother = np.sum(np.diff(others, axis=1) ** 2, axis=1) <= ratio * total
    return bool(np.mean(smoother) < SMOOTH_PART)


def _far_out(s: Residuals) -> str:
    """A residual that is much larger than the others, in words; empty if there is none."""
    if s.values.size < FEWEST_RESIDUALS:
        return ""
    typical = 1.4826 * float(np.median(np.abs(s.values)))  # the deviation of normal noise
    worst = int(np.argmax(np.abs(s.values)))
    # the median of few values is uncertain, and may be small by chance
    limit = OUTLIER_DEVIATIONS * (1.0 + 5.0 / np.sqrt(s.values.size)) * typical
    if not np.abs(s.values[worst]) > max(limit, EXACT_PART * s.scale):
        return ""
    many = int(np.sum(np.abs(s.values) > limit))
    others = "" if many == 1 else f", and {many - 1} more like it"
    return (
        f"the residual of {s.name} at t = {s.t[worst]:.6g} is "
        f"{abs(s.values[worst]) / max(typical, 1e-300):.3g} times as large as most{others} (a "
        'wrong sample? likelihood="student" gives outliers less weight)'
    )


def _uneven(series: Sequence[Residuals]) -> str:
    """An output that fits much worse in one experiment than in all others, in words."""
    for s in series:
        rest = [o.values for o in series if o.name == s.name and o is not s]
        other = np.concatenate(rest or [np.zeros(0)])
        if (
            min(s.values.size, other.size) < FEWEST_RESIDUALS
            or _size(s.values) <= EXACT_PART * s.scale
        ):
            continue
        # the logarithm of a variance of n values has the variance 2 / n
        deviation = np.sqrt(0.5 / s.values.size + 0.5 / other.size)
        larger = _size(s.values) / max(_size(other), 1e-300)
        if np.log(larger) > np.log(1.5) + (SURE_DEVIATIONS + 1) * deviation:
            return (
                f"the residuals of {s.name} are {larger:.3g} times as large in experiment "
                f"{s.experiment} as in the others"
            )
    return ""


def _doubtful_events(objective: Objective, u: np.ndarray, known: frozenset) -> str:
    """Events whose pairs are too far apart, or most of which have no partner, in words."""
    for run, own in zip(objective.runs, objective.matches(u), strict=True):
        for name, m in own.items():
            if m.lonely > len(m.pairs):
                return f"most events {name} have no partner in the data or in the prediction"
            r: np.ndarray = run.events[name].weight[[i for i, _ in m.pairs]] * m.off
            if objective.how.transform is not None:
                r = np.asarray(objective.how.transform(jnp.asarray(r)))
            spread = _size(r)
            if name in known and spread > too_large(r.size):
                return f"times of {name} are off by {spread:.3g} times the noise given for them"
    return ""


def too_large(n: int) -> float:
    """A root mean square of n weighted residuals that is too large to be chance."""
    return 1.5 + 5.0 / np.sqrt(2 * max(n, 1))
