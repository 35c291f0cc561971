"""Data and fit over time: a panel for every output of every experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...base.extras import need
from ...base.names import label
from ...solution.plotting import MAX_EVENT_LINES, curve
from ...solution.solution import Solution
from ...solution.trajectory import Course
from ..experiments import columns
from ..uncertainty import quantile
from .style import (
    ALARM,
    FIGURE_WIDTH,
    FIT,
    GUESS,
    INK,
    axis_label,
    drawing,
    event_colour,
    event_times,
    finite,
    plain,
    rms,
    solution_of,
    stopped_early,
    worst,
)
from .uncertainty_figure import directions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..result import Fit, Fitted

MOST_PANELS = 12
MOST_BANDS = 3  # experiments with a band: each needs one more program to compile
MOST_NUMBERS = 50  # free numbers: with more there are no bands
CURVE_POINTS = 1500
MOST_PIECES = 150  # of a band
COMPILE_SECONDS = 30.0  # of the fit: with more there are no bands
NARROW_BAND = 1e-6  # relative: a narrower band would not be visible


class Run(NamedTuple):
    """What is drawn of one experiment."""

    sol: Solution | None
    fitted: Course | None  # a Course, or None
    first: Course | None
    bands: dict[str, tuple]  # output -> (t, low, middle, high), each a list of pieces


def panels_of(fit: Fit) -> list[tuple[int, str]]:
    """(experiment, output) of every panel: all, or those with the largest residuals."""
    scores = {
        (k, name): rms(s.residual)
        for k, e in enumerate(fit.experiments)
        for name, s in e.outputs.items()
    }
    return worst(scores, MOST_PANELS)


def data_and_fit(fit: Fit) -> Figure | None:
    """Measurements, the fit with its 95 % band, the first guess, and the events."""
    panels = panels_of(fit)
    if not panels:
        from .event_figure import event_timeline

        return event_timeline(fit)
    runs = _runs(fit, list(dict.fromkeys(k for k, _ in panels)))
    with drawing() as plt:
        rows, columns_, ordered = _arranged(panels)
        height = {1: 2.5 if rows > 1 else 3.7, 2: 2.3}.get(columns_, 2.0)
        size = (FIGURE_WIDTH, height * rows + 0.9)
        figure, axes = plt.subplots(rows, columns_, squeeze=False, figsize=size)
        flat = axes.T.reshape(-1) if ordered else axes.reshape(-1)
        for i, (axis, (k, name)) in enumerate(zip(flat, panels, strict=False)):
            _panel(axis, fit, k, name, runs[k], 1.0 if columns_ == 1 else 0.8)
            top = not ordered or i % rows == 0
            if len(fit.experiments) > 1 and top:
                axis.set_title(plain(fit.experiments[k].name, 40))
            last = i % rows == rows - 1 if ordered else i + columns_ >= len(panels)
            if last:
                axis.set_xlabel(axis_label("t", fit))
        for axis in flat[len(panels) :]:
            axis.remove()
        figure.align_ylabels()
        _legend(figure, fit, runs, panels)
    return figure


def _arranged(panels: list[tuple[int, str]]) -> tuple[int, int, bool]:
    """Rows, columns, and whether columns are experiments (panels then go down, not across)."""
    n = len(panels)
    owners = list(dict.fromkeys(k for k, _ in panels))
    groups = [[name for j, name in panels if j == k] for k in owners]
    if 1 < len(owners) <= 3 and all(group == groups[0] for group in groups):
        return n // len(owners), len(owners), True
    across = 1 if n <= 3 else 2 if n <= 8 else 3
    return -(-n // across), across, across == 1 and len(owners) == 1


# -- what is drawn --------------------------------------------------------------------------------
def _runs(fit: Fit, shown: list[int]) -> dict[int, Run]:
    """Simulations of the experiments shown, all at the same number of points per step."""
    both = {
        k: (solution_of(fit.experiments[k]), solution_of(fit.experiments[k], initial=True))
        for k in shown
    }
    most = max([1, *(int(s.stats.rows) for pair in both.values() for s in pair if s is not None)])
    fractions = np.linspace(0.0, 1.0, int(np.clip(CURVE_POINTS // most, 3, 33)))
    runs = {}
    for k, (sol, first) in both.items():
        fitted, guessed = (_course(s, fractions) for s in (sol, first))
        band = {}
        if k in shown[:MOST_BANDS] and fitted is not None and has_bands(fit):
            band = _bands(fit, k, fitted)
        runs[k] = Run(sol, fitted, guessed, band)
    return runs


def _course(sol: Solution | None, fractions: np.ndarray) -> Course | None:
    """A simulation at points of its steps; None if it has fewer than two."""
    if sol is None:
        return None
    course = sol.course(fractions)
    values = columns(course.y, axes=2).values()
    return course if any(finite(v).size > 1 for v in values) else None


def has_bands(fit: Fit) -> bool:
    """Whether bands are known and cheap enough."""
    if len(fit.names) > MOST_NUMBERS or fit.compile_seconds > COMPILE_SECONDS:
        return False
    if not (np.isfinite(fit.loss) and np.isfinite(fit.sd).any()):
        return False
    return bool(np.max(directions(fit)[0], initial=0.0) > NARROW_BAND)


def _bands(fit: Fit, k: int, course: Course) -> dict[str, tuple]:
    """95 % bands just inside each piece of a course, by output."""
    borders = np.flatnonzero(np.diff(course.piece)) + 1
    pieces = np.split(np.arange(len(course.t)), borders)
    ends = [(course.t[rows[0], 0], course.t[rows[-1], -1]) for rows in pieces]
    ends = [(a, b) for a, b in ends if b > a]
    if len(ends) > MOST_PIECES or not ends:
        ends = [(course.t[0, 0], course.t[-1, -1])]
    whole = sum(b - a for a, b in ends)
    grids = []
    for a, b in ends:
        inset = 1e-6 * (b - a)
        grids.append(np.linspace(a + inset, b - inset, max(4, int(300 * (b - a) / whole))))
    cuts = np.cumsum([g.size for g in grids])[:-1]
    found = fit.bands(k, ts=np.concatenate(grids))
    return {
        name: tuple(np.split(np.asarray(v), cuts) for v in (t, low, middle, high))
        for name, (t, low, middle, high) in found.items()
        if name in fit.experiments[k].outputs
    }


# -- one panel ------------------------------------------------------------------------------------
def _panel(axis: Axes, fit: Fit, k: int, name: str, run: Run, scale: float) -> None:
    experiment = fit.experiments[k]
    series = experiment.outputs[name]
    _marked_events(axis, experiment, run.sol)
    reach: list[Any] = [series.observed]  # must be visible
    extra: list[Any] = []  # visible as far as there is room
    if name in run.bands:
        noise = quantile(0.95, fit._freedom) * float(np.median(series.sd))
        extra += _band(axis, run.bands[name], noise)
    if run.first is not None:
        values = np.asarray(columns(run.first.y, axes=2)[name])
        curve(axis, run.first, values, GUESS, lw=0.9, zorder=2.1)
        extra.append(values)
    many = series.t.size
    size = scale * float(np.clip(6.8 - 2.2 * np.log10(max(many, 1) / 10), 2.2, 5.0))
    edge = 0.5 if many <= 150 else 0.0  # white, so that dots are seen on the curve
    axis.plot(series.t, series.observed, "o", color=INK, ms=size, mec="white", mew=edge,
              alpha=0.85, zorder=2.7 if many <= 150 else 2.3)  # fmt: skip
    if run.fitted is not None:
        values = np.asarray(columns(run.fitted.y, axes=2)[name])
        curve(axis, run.fitted, values, FIT, lw=1.6, zorder=2.5, alpha=0.9)
        reach.append(values)
        if stopped_early(run.sol):
            end = np.flatnonzero(np.isfinite(values.reshape(-1)))[-1]
            axis.plot(run.fitted.t.reshape(-1)[end], values.reshape(-1)[end], "X", color=ALARM,
                      ms=8, zorder=3)  # fmt: skip
    _limit(axis, reach, extra)
    axis.set_ylabel(axis_label(name, fit))
    axis.margins(x=0.015)


def _band(axis: Axes, band: tuple, noise: float) -> list[np.ndarray]:
    """Bands for the curve, and for new measurements."""
    edges = []
    for t, low, middle, high in zip(*band, strict=True):
        wide = np.hypot(high - middle, noise)
        edges += [middle - wide, middle + wide]
        axis.fill_between(t, *edges[-2:], color=FIT, alpha=0.10, lw=0, zorder=1.2)
        axis.fill_between(t, low, high, color=FIT, alpha=0.25, lw=0, zorder=1.3)
    return edges


def _marked_events(axis: Axes, experiment: Fitted, sol: Solution | None) -> None:
    """Lines where events were predicted, and triangles at the top where they were observed."""
    blended = axis.get_xaxis_transform()
    times = event_times(sol)
    many = sum(t.size for t in times.values()) > MAX_EVENT_LINES
    for name, t in times.items():
        colour = event_colour(sol, name)
        if many:
            axis.plot(t, np.full(t.size, 0.015), "|", color=colour, transform=blended, zorder=0.9)
        for at in () if many else t:
            axis.axvline(at, color=colour, lw=0.9, alpha=0.6, zorder=0.9)
    for match in experiment.events.values():
        if match.observed.size:
            axis.plot(
                match.observed, np.full(match.observed.size, 1.0), "v", color=INK, ms=5.5, mew=0,
                transform=blended, clip_on=False, zorder=3,
            )  # fmt: skip


def _limit(axis: Axes, reach: list[Any], extra: list[Any]) -> None:
    """Limits that show data and fit, even if the first guess is far away."""
    seen = finite(np.concatenate([np.ravel(v) for v in reach]))
    if not seen.size:
        return
    low, high = seen.min(), seen.max()
    room = high - low or 0.05 * abs(high) or 1.0
    more = finite(np.concatenate([np.ravel(v) for v in extra])) if extra else seen
    if more.size:
        low = min(low, max(more.min(), low - 0.5 * room))
        high = max(high, min(more.max(), high + 0.5 * room))
    axis.set_ylim(low - 0.06 * room, high + 0.06 * room)


def _legend(figure: Figure, fit: Fit, runs: dict[int, Run], panels: list[tuple[int, str]]) -> None:
    """One legend above all panels, for what is drawn."""
    line = need("matplotlib.lines", "plot", "figures of a fit").Line2D
    patch = need("matplotlib.patches", "plot", "figures of a fit").Patch
    handles = [line([], [], ls="", marker="o", color=INK, ms=4, label="data")]
    if any(run.fitted is not None for run in runs.values()):
        handles.append(line([], [], color=FIT, label="fit"))
    if any(run.bands for run in runs.values()):
        handles.append(patch(color=FIT, alpha=0.35, lw=0, label="95 % of the curve"))
        handles.append(patch(color=FIT, alpha=0.10, lw=0, label="95 % of measurements"))
    if any(run.first is not None for run in runs.values()):
        handles.append(line([], [], color=GUESS, lw=0.9, label="first guess"))
    for name, colour in _kinds(runs).items():
        handles.append(line([], [], color=colour, lw=1.2, label=f"{plain(name)} (fit)"))
    if any(m.observed.size for k in runs for m in fit.experiments[k].events.values()):
        handles.append(line([], [], ls="", marker="v", color=INK, ms=5.5, label="event observed"))
    if any(run.fitted is not None and stopped_early(run.sol) for run in runs.values()):
        handles.append(line([], [], ls="", marker="X", color=ALARM, ms=8, label="simulation stops"))
    across = len(handles) if len(handles) <= 7 else -(-len(handles) // 2)
    figure.legend(
        handles=handles, loc="outside upper left", ncols=across, handlelength=1.4,
        columnspacing=1.5, handletextpad=0.6,
    )  # fmt: skip


def _kinds(runs: dict[int, Run]) -> dict[str, str]:
    return {
        name: event_colour(run.sol, name) for run in runs.values() for name in event_times(run.sol)
    }


def caption(fit: Fit) -> str:
    """How to read the figure."""
    words = "Dots are measurements, the blue curve is the fit, the thin orange one the first guess."
    if any(event_times(solution_of(fit.experiments[k])) for k, _ in panels_of(fit)):
        words += (
            " Vertical lines are events of the fit. Where a curve jumps, an open circle is its "
            "limit from before and a full one its value after."
        )
    if any(m.observed.size for e in fit.experiments for m in e.events.values()):
        words += " Triangles at the top are observed events."
    return words


def describe(fit: Fit) -> str:
    """The figure in words."""
    panels = panels_of(fit)
    names = list(dict.fromkeys(label(name, fit.units) for _, name in panels))
    return (
        f"{', '.join(names)} over time: measurements as dots, the fit as a curve, the first guess "
        f"as a thin line, in {len(panels)} panels."
    )
