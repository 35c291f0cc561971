"""Residuals over time, and whether they look like noise."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import beta

from ...solution.plotting import COLOURS, MAX_EVENT_LINES
from .style import (
    ALARM,
    FIGURE_WIDTH,
    FIT,
    INK,
    QUIET,
    axis_label,
    drawing,
    event_times,
    finite,
    noise_law,
    plain,
    rms,
    solution_of,
    worst,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..result import Fit

MOST_ROWS = 6
MOST_DOTS = 2000
NOISE_FLOOR = 0.5  # standard deviations: residuals that are all smaller are not noise


@dataclasses.dataclass(frozen=True)
class Leftover:
    """Statistics of the residuals of one output in all experiments."""

    count: int
    noise: float  # standard deviation that was given or estimated
    given: bool
    rms: float  # in units of the output
    bias: float  # mean of the residuals, in standard deviations
    correlation: float  # of neighbours
    largest: float  # in standard deviations


def leftovers(fit: Fit) -> dict[str, Leftover]:
    """Statistics of the residuals of every measured output, for a table."""
    return {name: _leftover(fit, name) for name in output_names(fit)}


def output_names(fit: Fit) -> list[str]:
    """All measured outputs, of all experiments."""
    return list(dict.fromkeys(name for e in fit.experiments for name in e.outputs))


def _leftover(fit: Fit, name: str) -> Leftover:
    series = [e.outputs[name] for e in fit.experiments if name in e.outputs]
    r = [finite(s.residual) for s in series]
    every = np.concatenate(r)
    products, squares = sum(v[1:] @ v[:-1] for v in r), sum(v @ v for v in r)
    own = [m.get(name) for m in fit._setup.measured]
    given = name in fit._setup.known or all(m is None or m.sd is not None for m in own)
    return Leftover(
        sum(s.t.size for s in series),
        float(np.mean(np.concatenate([s.sd for s in series]))),
        given,
        rms(np.concatenate([s.predicted - s.observed for s in series])),
        float(np.mean(every)) if every.size else np.nan,
        float(products / squares) if squares else np.nan,
        float(np.max(np.abs(every), initial=0.0)) if every.size else np.nan,
    )


def residuals(fit: Fit) -> Figure | None:
    """Residuals in standard deviations: over time, as a histogram, and against noise.

    None where no output was measured, or none predicted.
    """
    scores = {n: left.largest for n, left in leftovers(fit).items() if np.isfinite(left.largest)}
    shown = worst(scores, MOST_ROWS)
    if not shown:
        return None
    with drawing() as plt:
        figure, axes = plt.subplots(
            len(shown), 3, squeeze=False, figsize=(FIGURE_WIDTH, 2.05 * len(shown) + 0.8),
            width_ratios=[3.4, 1.0, 1.35],
        )  # fmt: skip
        for name, row in zip(shown, axes, strict=True):
            _over_time(row[0], fit, name)
            _histogram(row[1], row[0], fit, name)
            _against_noise(row[2], fit, name)
        for axis, title in zip(axes[0], ("Over time", "Histogram", "Against noise"), strict=True):
            axis.set_title(title)
        figure.align_ylabels()
        axes[-1, 0].set_xlabel(axis_label("t", fit))
        axes[-1, 1].set_xlabel("density")
        axes[-1, 2].set_xlabel("quantile of the noise")
        if 1 < len(fit.experiments) <= len(COLOURS):
            _legend(figure, axes[0, 0])
    return figure


def _every(fit: Fit, name: str) -> np.ndarray:
    series = [e.outputs[name].residual for e in fit.experiments if name in e.outputs]
    return finite(np.concatenate(series))


def _over_time(axis: Axes, fit: Fit, name: str) -> None:
    """Residuals of each experiment in its colour; 19 of 20 should be between the dashed lines."""
    few = len(fit.experiments) <= len(COLOURS)
    if len(fit.experiments) == 1:
        times = event_times(solution_of(fit.experiments[0]))
        every = np.concatenate([np.zeros(0), *times.values()])
        for t in every if every.size <= MAX_EVENT_LINES else ():
            axis.axvline(t, color=QUIET, lw=0.9, alpha=0.5, zorder=0.9)
    for k, e in enumerate(fit.experiments):
        if name not in e.outputs:
            continue
        s = e.outputs[name]
        colour = COLOURS[k] if few else FIT
        size = float(np.clip(8.5 - 1.5 * np.log10(max(s.t.size, 1) / 3), 2.4, 5.5))
        if s.t.size <= 120 and few:
            axis.vlines(s.t, 0.0, s.residual, color=colour, lw=0.8, alpha=0.35)
        axis.plot(
            s.t, s.residual, ".", color=colour, ms=size, mew=0, alpha=0.8 if few else 0.4,
            label=plain(e.name, 30),
        )  # fmt: skip
    edge = float(noise_law(fit).ppf(0.975))
    axis.axhline(0.0, color=INK, lw=0.8)
    for y in (-edge, edge):
        axis.axhline(y, color=ALARM, lw=0.9, ls=(0, (4, 3)))
    top = _top(fit, name)
    axis.set_ylim(-top, top)
    axis.margins(x=0.015)
    if top <= NOISE_FLOOR:
        axis.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
    axis.set_ylabel(f"{plain(name, 18)}: residual / sd")


def _top(fit: Fit, name: str) -> float:
    """The limit of the residual axis; residuals that are not noise fill the panel."""
    largest = float(np.max(np.abs(_every(fit, name)), initial=0.0))
    return 1.1 * (largest if 0.0 < largest < NOISE_FLOOR else max(largest, 3.0))


def _histogram(axis: Axes, beside: Axes, fit: Fit, name: str) -> None:
    """A histogram of the residuals, with the density of the noise."""
    r = _every(fit, name)
    low, high = beside.get_ylim()
    grid = np.linspace(low, high, 300)
    if r.size:
        bins = np.linspace(low, high, int(np.clip(2 * np.sqrt(r.size), 12, 60)) | 1)
        axis.hist(
            r, bins=bins.tolist(), density=True, orientation="horizontal", color=FIT, alpha=0.55
        )
    if high > NOISE_FLOOR:
        axis.plot(noise_law(fit).pdf(grid), grid, color=INK, lw=1.1)
    axis.set_ylim(low, high)
    axis.tick_params(labelbottom=high > NOISE_FLOOR)
    axis.tick_params(labelleft=False)
    axis.set_xlim(left=0.0)


def _against_noise(axis: Axes, fit: Fit, name: str) -> None:
    """Sorted residuals over the quantiles of the noise, with the band expected for 95 %."""
    r = np.sort(_every(fit, name))
    law, n = noise_law(fit), r.size
    rank = np.arange(1, n + 1)
    if n > MOST_DOTS:  # a selection that includes the tails
        rank = np.unique(np.concatenate([rank[:100], rank[:: n // MOST_DOTS], rank[-100:]]))
    r = r[rank - 1]
    ideal = law.ppf((rank - 0.5) / n)
    low, high = (law.ppf(beta.ppf(q, rank, n + 1 - rank)) for q in (0.025, 0.975))
    top = _top(fit, name)
    if top > NOISE_FLOOR:
        axis.fill_between(ideal, low, high, color=INK, alpha=0.09, lw=0)
        axis.plot(ideal, ideal, color=INK, lw=1.0)
    axis.plot(ideal, r, ".", color=FIT, ms=3.5, mew=0)
    axis.margins(x=0.03)
    axis.set_ylim(-top, top)
    axis.tick_params(labelleft=False)


def _legend(figure: Figure, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper left", ncols=6, markerscale=1.5, handlelength=1.0
    )


def describe(fit: Fit) -> str:
    """The figure in words."""
    parts = [
        f"{name}: {left.count} residuals, the largest {left.largest:.3g} standard deviations"
        for name, left in leftovers(fit).items()
    ]
    return "Residuals over time, their histogram, and their quantiles. " + "; ".join(
        parts[:MOST_ROWS]
    )
