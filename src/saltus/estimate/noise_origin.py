"""The noise of measurements estimated from residuals, and the origin of each estimate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from . import search as searching
from .monitor import Monitor
from .noise import Likelihood
from .objective import Objective
from .optimisers import Ending
from .result import compared
from .search import Found, Search
from .setup import Setup

NOISE_ROUNDS = 12  # of estimating the noise and fitting again
GIVEN, ESTIMATED, POOLED, ASSUMED = "given", "estimated", "pooled", "assumed"
FEWEST_RESIDUALS = 3  # no more than this many are too few to estimate a spread


def with_noise(
    setup: Setup,
    objective: Objective,
    found: Found,
    plan: Search,
    monitor: Monitor,
    chosen: Likelihood,
    again: bool = True,
) -> tuple[Found, Objective, dict[str, str]]:
    """Estimates standard deviations from the residuals and fits again, until they agree (M52).

    The last result is the origin of each: given, estimated, pooled or assumed.
    """
    unknown, sd = [name for name in setup.noise if name not in setup.known], dict(setup.noise)
    origin = {n: GIVEN if n in setup.known else ASSUMED for n in setup.noise}
    for _ in range(NOISE_ROUNDS):
        if not unknown or not np.isfinite(found.loss):
            break
        new, origins = estimated(setup, objective, found.u, chosen, unknown, sd)
        new, origin = {**sd, **new}, {**origin, **origins}
        change = max(abs(np.log(new[name] / sd[name])) for name in unknown)
        sd = new
        objective = objective.reweighted(
            [_own(setup, k, sd, unknown) for k in range(len(setup.runs))]
        )
        exact = all(sd[name] <= 1e-7 * setup.noise[name] for name in unknown)
        alone = len(setup.noise) == 1 and chosen.transform is None
        alone = alone and not setup.free.believed
        if exact or alone or not again or change < 0.01:
            break
        monitor.enter("noise estimated", objective)
        found = searching.judged(objective, plan.local(objective, found.u, monitor), plan)
    if not again and np.isfinite(found.loss):  # with this noise it may be a minimum no longer
        found = searching.judged(objective, Ending(found.u, False, found.message), plan)
    return dataclasses.replace(found, loss=objective.value(found.u)), objective, origin


def _own(setup: Setup, k: int, sd: Mapping[str, float], unknown: Sequence[str]) -> dict[str, float]:
    """Estimated deviations of an experiment, for what it does not give itself."""
    given = {n for n, m in {**setup.measured[k], **setup.events[k]}.items() if m.sd is not None}
    return {name: sd[name] for name in unknown if name not in given}


def estimated(
    setup: Setup,
    objective: Objective,
    u: np.ndarray,
    chosen: Likelihood,
    unknown: Sequence[str],
    sd: Mapping[str, float],
) -> tuple[dict[str, float], dict[str, str]]:
    """Root mean square residuals, corrected for the number of fitted values; and their origin.

    Kinds of events with too few observations are pooled, since all are times. If these are still
    too few, the noise is assumed to be the same, relative to the data, as that of the others.
    """
    total: dict[str, list[np.ndarray]] = {name: [] for name in unknown}
    times: set[str] = set()
    for e in compared(setup, objective, u, chosen):
        for name, s in e.outputs.items():
            if name in total:
                total[name].append(s.predicted - s.observed)
        for name, m in e.events.items():
            if name in total:
                total[name].append(m.off)
                times.add(name)
    found = {name: np.concatenate(parts or [np.zeros(0)]) for name, parts in total.items()}
    if objective.samples() <= setup.free.size and not setup.free.believed:
        return {n: sd[n] for n in unknown}, dict.fromkeys(unknown, ASSUMED)  # no degrees of freedom
    share = max(1.0 - setup.free.size / max(sum(r.size for r in found.values()), 1), 0.1)
    least = max(FEWEST_RESIDUALS, setup.free.size)

    def spread(r: np.ndarray, scale: float, first: float) -> float:
        return max(chosen.spread(r, scale) / np.sqrt(share), 1e-9 * first)

    new, origin = {}, {}
    for name, r in found.items():
        if r.size > least or len(sd) == 1:
            new[name] = spread(r, sd[name], setup.noise[name]) if r.size else sd[name]
            origin[name] = ESTIMATED if r.size else ASSUMED
    together = np.concatenate([found[n] for n in sorted(times)] or [np.zeros(0)])
    rest = [n for n in found if n not in new]
    for name in rest:
        if name in times and together.size > least and found[name].size:
            new[name], origin[name] = spread(together, sd[name], setup.noise[name]), POOLED
    common = [new[n] / setup.noise[n] for n in new if origin[n] == ESTIMATED]
    others = float(np.exp(np.mean(np.log(common)))) if common else 0.1
    for name in rest:
        if name not in new:
            new[name], origin[name] = others * setup.noise[name], ASSUMED
    return new, origin


def assumptions(setup: Setup, origin: Mapping[str, str], noise: Mapping[str, float]) -> str:
    """Deviations that are only assumed, in words."""
    words = []
    for name in (n for n, kind in origin.items() if kind == ASSUMED and n in noise):
        count = sum(
            m[name].t.size for group in (setup.measured, setup.events) for m in group if name in m
        )
        words.append(f"{name} ({count} observed): {noise[name]:.3g}")
    if not words:
        return ""
    first = words[0].partition(" ")[0]
    return (
        f" Too few observations to estimate their noise, so it is assumed: {', '.join(words)}. It "
        f'decides how much they count: give it, as in noise={{"{first}": 0.01}}.'
    )
