"""Uncertainty: intervals of the estimates, their correlations, and weak directions."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ...base.extras import need
from ...base.names import unit_of
from ...base.text import number
from ..uncertainty import SINGULAR_PART, WEAK_DEVIATION
from .style import ALARM, DIVERGING, FIGURE_WIDTH, FIT, GUESS, INK, QUIET, counted, drawing, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

    from ..result import Fit

MOST_NUMBERS = 40  # that are shown one by one
WRITTEN_NUMBERS = 9  # up to which correlations are written out
SHOWN_DIRECTIONS = 4
SHOWN_DECADES = 6


# -- intervals ------------------------------------------------------------------------------------
def parameter_intervals(fit: Fit) -> Figure | None:
    """Estimates with their 95 % intervals and first guesses, relative to the estimates.

    None if no number has an interval."""
    n = min(len(fit.names), MOST_NUMBERS)
    size = relative_to(fit)[:n]
    at = lambda v: 100.0 * (np.asarray(v)[:n] - fit.values[:n]) / size
    low, high, first = at(fit.low), at(fit.high), at(fit.initial)
    held = np.asarray(fit.at_bound[:n])
    sure = np.isfinite(low) & np.isfinite(high) & ~held
    if not sure.any():
        return None
    with drawing() as plt:
        figure, axis = plt.subplots(figsize=(FIGURE_WIDTH, 0.29 * n + 1.25))
        rows = np.arange(n)
        edge = _scaled(axis, np.maximum(-low, high)[sure], first)
        unknown = {"arrowstyle": "<->", "color": ALARM, "lw": 1.0, "ls": ":"}
        for k in rows[~sure & ~held]:
            axis.annotate("", (edge, k), (-edge, k), zorder=1, arrowprops=unknown)
        axis.hlines(
            rows[sure], low[sure], high[sure], color=FIT, lw=5.0, alpha=0.35, label="95 % interval"
        )
        marks = [(~held, 0.0 * first, "o", FIT, "estimate"),
                 (held, 0.0 * first, "s", ALARM, "estimate at a bound"),
                 (held | True, first, "D", GUESS, "first guess")]  # fmt: skip
        for which, x, mark, colour, text in marks:
            if which.any():
                axis.plot(x[which], rows[which], mark, color=colour, ms=5.5, mew=0, label=text)
        axis.set_xlim(-edge, edge)
        _rows(axis, fit, n)
        axis.axvline(0.0, color=INK, lw=0.8, zorder=0.8)
        axis.set_xlabel("difference from the estimate [%]")
        figure.legend(loc="outside upper left", ncols=4, handlelength=1.2)
    return figure


def _rows(axis: Axes, fit: Fit, n: int) -> None:
    """A row for each number: its name on the left, its value on the right."""
    axis.set_yticks(range(n), [plain(name) for name in fit.names[:n]])
    axis.set_ylim(n - 0.4, -0.6)
    for k in range(n):
        axis.annotate(
            _written(fit, k), (1.0, k), xycoords=axis.get_yaxis_transform(), xytext=(8, 0),
            textcoords="offset points", va="center", fontsize=9, color="#4a525a",
        )  # fmt: skip


def relative_to(fit: Fit) -> np.ndarray:
    """What 100 % of each number is: its estimate, or its first guess or deviation if that is 0."""
    size = np.abs(fit.values)
    for other in (np.abs(fit.initial), np.asarray(fit.sd), np.ones(len(fit.names))):
        size = np.where((size > 0) & np.isfinite(size), size, other)
    return size


def _scaled(axis: Axes, half: np.ndarray, first: np.ndarray) -> float:
    """Choose the scale: linear, or logarithmic in both directions if widths differ much."""
    far = np.abs(first[np.isfinite(first)])
    widths = half[half > 0]
    edge = 1.15 * max([*half, *far, 1e-12])
    if not widths.size or edge <= 30 * np.median(widths):
        return edge
    small = max(widths.min(), edge * 10.0**-SHOWN_DECADES)
    start = int(np.floor(np.log10(small)))
    axis.set_xscale("symlog", linthresh=10.0**start, linscale=0.8)
    stop = int(np.floor(np.log10(edge)))
    step = max(1, -(-(stop - start + 1) // 4))
    marks = [10.0**e for e in range(stop, start - 1, -step)]
    axis.set_xticks(
        [-m for m in marks] + [0.0] + marks[::-1],
        [f"-{m:g}" for m in marks] + ["0"] + [f"{m:g}" for m in marks[::-1]],
    )
    axis.minorticks_off()
    return 10.0 ** (np.log10(edge) + 0.12)


def _written(fit: Fit, k: int) -> str:
    """`9.81 ± 0.02 m/s^2`."""
    unit = unit_of(fit.units, fit.names[k].removeprefix("start."))
    text = number(float(fit.values[k]), 5)
    if fit.at_bound[k]:
        return f"{text} {plain(unit)}".rstrip() + ", at its bound"
    if not np.isfinite(fit.sd[k]):
        return f"{text} {plain(unit)}".rstrip() + ", not determined"
    return f"{text} ± {number(float(fit.sd[k]), 2)} {plain(unit)}".rstrip()


# -- identifiability ------------------------------------------------------------------------------
def identifiability(fit: Fit) -> Figure | None:
    """Correlations, the worst determined directions, and how well each direction is determined.

    None for a single number, which has no directions.
    """
    s, rows = directions(fit)
    n = len(fit.names)
    if n < 2 or not s.size:
        return None
    k = min(SHOWN_DIRECTIONS, s.size)
    side = float(np.clip(0.34 * n + 1.4, 3.4, 5.4))
    matrices = {"Correlations": correlations(fit), "Directions": rows[:k].T}
    if not np.isfinite(fit.sd).any():
        del matrices["Correlations"]
    widths = {"Correlations": 1.0, "Directions": max(k / n, 0.22)}
    with drawing() as plt:
        figure, axes = plt.subplots(
            1, 1 + len(matrices), figsize=(FIGURE_WIDTH, side),
            width_ratios=[*(widths[name] for name in matrices), 0.8],
        )  # fmt: skip
        picture = None
        for axis, (title, values) in zip(axes, matrices.items(), strict=False):
            picture = _heat(axis, values, n <= WRITTEN_NUMBERS)
            _named(axis, fit.names, square=title == "Correlations")
            axis.set_title(title)
        turn = 0 if n <= 4 else 90
        axes[-2].set_xticks(range(k), [_percent(v) for v in s[:k]], fontsize=8.5, rotation=turn)
        axes[-2].tick_params(labelleft=len(matrices) == 1)
        _spectrum(axes[-1], s)
        bar = figure.colorbar(picture, ax=axes[:-1], shrink=0.8, pad=0.015, aspect=30)
        bar.set_ticks([-1, -0.5, 0, 0.5, 1])
        bar.outline.set_visible(False)
    return figure


def directions(fit: Fit) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviations of the directions, relative, worst first; inf where undetermined.

    The largest component of each direction is 1."""
    s, rows = (np.asarray(v) for v in fit.spectrum)
    order = np.argsort(s)
    with np.errstate(divide="ignore"):
        sd = np.where(s > SINGULAR_PART * s.max(initial=0.0), 1.0 / s, np.inf)
    rows = rows[order]
    lead = np.take_along_axis(rows, np.argmax(np.abs(rows), axis=1)[:, None], axis=1)
    return sd[order], rows / np.where(lead == 0, 1.0, lead)


def correlations(fit: Fit) -> np.ndarray:
    """Correlations of the estimates; NaN where one of them is not determined."""
    known = np.isfinite(fit.sd)
    return np.where(np.outer(known, known), np.asarray(fit.correlation, dtype=float), np.nan)


def _percent(sd: float) -> str:
    return "none" if not np.isfinite(sd) else f"{100 * sd:.2g} %"


def _heat(axis: Axes, values: np.ndarray, written: bool) -> AxesImage:
    """A matrix of numbers from -1 to 1 as colours."""
    shades = need("matplotlib.colors", "plot", "figures of a fit").LinearSegmentedColormap
    colours = shades.from_list("correlation", DIVERGING).with_extremes(bad="#d5dade")
    picture = axis.imshow(values, cmap=colours, vmin=-1, vmax=1, aspect="auto")
    axis.grid(visible=False)
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    if written:
        for (i, j), v in np.ndenumerate(values):
            if np.isfinite(v):
                colour = "white" if abs(v) > 0.75 else INK if abs(v) >= 0.1 else QUIET
                word = f"{round(v, 2) + 0.0:.2f}".replace("-", "−")
                axis.text(j, i, word, ha="center", va="center", fontsize=8, color=colour)
    return picture


def _named(axis: Axes, names: list[str], square: bool) -> None:
    """Names of the numbers; if there are many, the names of their arrays."""
    if len(names) <= MOST_NUMBERS:
        size = 9 if len(names) <= 20 else 7
        words = [plain(name, 22) for name in names]
        turn = 0 if max(map(len, words)) <= 3 and len(names) <= 12 else 90
        axis.set_yticks(range(len(names)), words, fontsize=size)
        if square:
            axis.set_xticks(range(len(names)), words, rotation=turn, fontsize=size)
        return
    stems = [name.rpartition("[")[0] or name for name in names]
    cuts = [k for k in range(1, len(stems)) if stems[k] != stems[k - 1]]
    ends = [0, *cuts, len(stems)]
    wide = [(a, b) for a, b in pairwise(ends) if b - a >= 0.03 * len(names)]
    for c in cuts if len(cuts) <= 30 else ():
        axis.axhline(c - 0.5, color="white", lw=0.8)
        if square:
            axis.axvline(c - 0.5, color="white", lw=0.8)
    middles = [(a + b - 1) / 2 for a, b in wide]
    words = [f"{plain(stems[a], 20)} ({b - a})" for a, b in wide]
    axis.set_yticks(middles, words, fontsize=8)
    if square:
        axis.set_xticks(middles, words, rotation=90, fontsize=8)


def _spectrum(axis: Axes, sd: np.ndarray) -> None:
    """Standard deviations of all directions on a logarithmic scale."""
    known = np.isfinite(sd)
    at = np.arange(1, sd.size + 1)
    weak = known & (sd >= WEAK_DEVIATION)
    size = 5.5 if sd.size <= MOST_NUMBERS else 3
    for chosen, colour in ((known & ~weak, FIT), (weak, ALARM)):
        axis.plot(at[chosen], 100 * sd[chosen], "o", color=colour, ms=size, mew=0)
    if known.any():
        axis.set_yscale("log")
    if (~known).any():
        blended = axis.get_xaxis_transform()
        axis.plot(at[~known], np.full((~known).sum(), 0.97), "^", color=ALARM, ms=size + 1, mew=0,
                  transform=blended, clip_on=False)  # fmt: skip
    low, high = axis.get_ylim()
    axis.set_ylim(low / 1.6, max(1.6 * high, 400 * WEAK_DEVIATION))
    axis.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
    axis.axhline(100 * WEAK_DEVIATION, color=QUIET, lw=0.9, ls=(0, (4, 3)))
    axis.set_title("Standard deviation [%]")
    under = bool(weak.any() or not known.all())  # below the dots
    axis.annotate(
        "weak above", (0.0, 100 * WEAK_DEVIATION), xycoords=axis.get_yaxis_transform(),
        fontsize=8.5, xytext=(4, -3 if under else 3), textcoords="offset points", color=QUIET,
        va="top" if under else "bottom",
    )  # fmt: skip
    axis.set_xlabel("direction")
    axis.locator_params(axis="x", integer=True)
    axis.set_xlim(0.4, sd.size + 0.6)


def strongest(fit: Fit, most: int = 5, least: float = 0.9) -> list[tuple[str, str, float]]:
    """The most strongly correlated pairs of numbers."""
    c = np.nan_to_num(np.triu(correlations(fit), 1))
    order = np.argsort(-np.abs(c), axis=None)[:most]
    pairs = [np.unravel_index(k, c.shape) for k in order]
    return [(fit.names[i], fit.names[j], float(c[i, j])) for i, j in pairs if abs(c[i, j]) >= least]


def describe_intervals(fit: Fit) -> str:
    """The figure of intervals in words."""
    shown = [f"{name} {_written(fit, k)}" for k, name in enumerate(fit.names[:8])]
    more = len(fit.names) - len(shown)
    return "Estimates and first guesses: " + "; ".join(shown) + (f" and {more} more" * (more > 0))


def describe_identifiability(fit: Fit) -> str:
    """The figure of correlations and directions in words."""
    s, _ = directions(fit)
    return (
        f"Correlations of {counted(len(fit.names), 'number')}; directions are determined to "
        f"between {_percent(s[-1])} and {_percent(s[0])}."
    )
