"""Figures of solutions, and the look that all figures of this project share. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.extras import need
from ..base.names import entry_name, label, named, unit_of
from ..base.tracing import is_traced
from ..base.types import HostArray, Numbers

if TYPE_CHECKING:
    from types import ModuleType

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .event_log import EventLog
    from .files import SavedSolution
    from .solution import Solution
    from .trajectory import Course

COLOURS = ["#1b6ca8", "#d1495b", "#2e8b6f", "#e39b2d", "#7a5195", "#5c6b73", "#a0522d", "#3aa6b9"]
EVENT_COLOURS = ["#8a94a0", "#c77f5a", "#6d9a7c", "#9b7fb8", "#b8a04a"]
MAX_PANELS = 8
MAX_EVENT_LINES = 40  # more events are drawn as ticks on the axis
PANEL_COLUMNS = 800  # about; with more than eight times as many steps, ranges are drawn
MAX_DRAWN_STEPS = 8 * PANEL_COLUMNS
MAX_MODE_BANDS = 400  # more intervals in one mode are not shaded
HELD_CHANGE = 1e-12  # relative to the range of a curve: one that changes less is constant

LOOK = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.edgecolor": "#8a94a0",
    "axes.labelcolor": "#2b3137",
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.labelsize": 10,
    "figure.constrained_layout.use": True,
    "font.size": 9.5,
    "grid.color": "#e6e9ec",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
    "savefig.dpi": 110,
    "xtick.color": "#4a525a",
    "ytick.color": "#4a525a",
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
}


def pyplot() -> ModuleType:
    """matplotlib's pyplot with our look, or an error that says what to install."""
    plt = need("matplotlib.pyplot", "plot", "plotting")
    from cycler import cycler  # comes with matplotlib

    plt.rcParams.update(LOOK | {"axes.prop_cycle": cycler(color=COLOURS)})
    return plt


def plot(
    sol: Solution | SavedSolution,
    *names: str,
    points: int = 2000,
    inputs: bool = False,
    discrete: bool = False,
) -> Figure:
    """Outputs over time with the events marked: one panel per output. Returns the figure.

    The arguments after `sol` are those of `Solution.plot`.
    """
    plt = need("matplotlib.pyplot", "plot", "sol.plot()")
    _one_concrete(sol)
    steps = max(1, int(sol.stats.rows))
    fractions = np.linspace(0.0, 1.0, int(np.clip(points // steps, 3, 65)))
    fractions = None if steps > MAX_DRAWN_STEPS else fractions
    course = sol.course(fractions)
    chosen = _choose(sol, named(course.y, "y"), fractions, names, inputs, discrete)
    with plt.rc_context(LOOK):
        n = len(chosen)
        size = (7.2, min(2.4 * n + 0.9, 11.0))
        figure, axes = plt.subplots(n, 1, sharex=True, squeeze=False, figsize=size)
        axes = axes[:, 0]
        _modes(sol, course, axes)
        _events(sol, axes)
        for axis, (name, values) in zip(axes, chosen.items(), strict=True):
            flat = values.reshape(*values.shape[:2], -1).astype(float)
            for k in range(flat.shape[-1]):
                text = entry_name(name, [k]) if flat.shape[-1] > 1 else None
                curve(axis, course, flat[..., k], COLOURS[k % len(COLOURS)], text)
            if 1 < flat.shape[-1] <= len(COLOURS):
                axis.legend(loc="best", ncols=2)
            axis.set_ylabel(label(name, sol.units))
            axis.margins(x=0.01)
        unit = unit_of(sol.units, "t")
        axes[-1].set_xlabel(f"t [{unit}]" if unit else "t")
        if len(course.t) > MAX_DRAWN_STEPS:
            words = f"{len(course.t):,} steps: smallest to largest value in each column"
            axes[-1].set_title(words, loc="right", fontsize=8, color="#5c6b73")
    return figure


def _one_concrete(sol: Solution | SavedSolution) -> None:
    if is_traced((sol.t, sol.result, sol.y)):
        raise TypeError(
            "sol.plot() needs numbers, but these are traced by jit, vmap or grad. Plot outside of "
            "the traced function."
        )
    if np.ndim(sol.result):
        raise ValueError(
            f"sol.plot(): this is a batch of shape {np.shape(sol.result)}. Plot one solution: "
            "sol[0].plot()."
        )


def _choose(
    sol: Solution | SavedSolution,
    outputs: dict[str, Any],
    fractions: Numbers | None,
    names: Sequence[str],
    inputs: bool,
    discrete: bool,
) -> dict[str, Any]:
    """What is drawn, by name: outputs, and discrete states, inputs and states if asked for."""
    known, groups = dict(outputs), {}
    if inputs or discrete or any(name not in outputs for name in names):
        groups = _others(sol, fractions)
        for group in groups.values():
            known |= {name: v for name, v in group.items() if name not in known}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise KeyError(f'sol.plot(): nothing is called "{unknown[0]}"; there are {list(known)}.')
    chosen = {name: known[name] for name in names} or dict(outputs)
    for wanted, group in ((inputs, "u"), (discrete, "d")):
        chosen |= groups[group] if wanted else {}
    if len(chosen) > MAX_PANELS:
        raise ValueError(
            f"sol.plot(): {len(chosen)} outputs are too many for one figure. Name some: "
            f'sol.plot("{next(iter(chosen))}"). There are {list(known)}.'
        )
    return chosen


def _others(sol: Solution | SavedSolution, fractions: Numbers | None) -> dict[str, dict[str, Any]]:
    """Everything that an instant has, by group and name."""
    now = sol.course(fractions, whole=True).y
    return {
        group: {
            name: np.asarray(leaf)
            for name, leaf in named(getattr(now, group), group).items()
            if np.asarray(leaf).dtype.kind in "biuf"
        }
        for group in ("x", "z", "d", "u")
    }


def curve(
    axis: Axes,
    course: Course,
    values: HostArray,
    colour: str,
    text: str | None = None,
    **style: Any,
) -> None:
    """Draws one output: a line per piece, and both limits at jumps. `style` is for the line.

    An output that is constant between jumps is drawn as stairs; with many steps, the range in each
    column of the panel is drawn.
    """
    if len(values) > MAX_DRAWN_STEPS:
        _range(axis, course.t, values, colour, text, **style)
        return
    breaks = np.flatnonzero(np.diff(course.piece)) + 1
    known = values[np.isfinite(values)]
    span = np.ptp(known) if known.size else 0.0
    if len(breaks) and _held(values, course.piece, span):
        axis.plot(course.t.reshape(-1), values.reshape(-1), color=colour, label=text, **style)
        return
    pieces = np.split(np.arange(len(values)), breaks)
    lines = [(course.t[rows].reshape(-1), values[rows].reshape(-1)) for rows in pieces]
    if len(lines) > MAX_EVENT_LINES:  # one line with gaps is faster than many
        lines = [
            tuple(
                np.concatenate([np.append(v, np.nan) for v in part])
                for part in zip(*lines, strict=True)
            )
        ]
    for k, (t, v) in enumerate(lines):
        axis.plot(t, v, color=colour, label=text if k == 0 else None, **style)
    before, after = values[breaks - 1, -1], values[breaks, 0]
    jumps = np.abs(after - before) > 1e-9 * span
    at = course.t[breaks, 0][jumps]
    if 0 < len(at) <= MAX_EVENT_LINES:
        size = 4 if style.get("lw", 2) > 1 else 2.5
        axis.vlines(at, before[jumps], after[jumps], color=colour, lw=0.9, ls=(0, (1, 2)))
        axis.plot(at, before[jumps], "o", mfc="white", mec=colour, ms=size, mew=1.1)
        axis.plot(at, after[jumps], "o", color=colour, ms=size, mew=1.1)


def _held(values: np.ndarray, piece: np.ndarray, span: float) -> bool:
    """Whether a curve is constant between jumps, and not everywhere."""
    first = np.searchsorted(piece, piece)  # the row at which each row's piece starts
    return span > 0 and bool(np.nanmax(np.abs(values - values[first, :1])) <= HELD_CHANGE * span)


def _range(
    axis: Axes, t: HostArray, values: HostArray, colour: str, text: str | None, **style: Any
) -> None:
    """Draws the range of values in each column of a panel, with its outline."""
    t, values = t.reshape(-1), values.reshape(-1)
    edges = np.linspace(t[0], t[-1], PANEL_COLUMNS + 1)
    place = np.searchsorted(t, edges[1:-1]) if t[-1] > t[0] else np.searchsorted(-t, -edges[1:-1])
    starts = np.unique(np.concatenate([[0], place[place < len(t)]]))
    low, high = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
    low[1:], high[1:] = (
        np.fmin(low[1:], values[starts[1:] - 1]),
        np.fmax(high[1:], values[starts[1:] - 1]),
    )
    at = 0.5 * (t[starts] + t[np.append(starts[1:], len(t)) - 1])
    at[0], at[-1] = t[0], t[-1]
    width = 0.6 * style.pop("lw", 1.7)
    axis.fill_between(at, low, high, color=colour, alpha=0.25, lw=0)
    axis.plot(at, low, color=colour, lw=width, **style)
    axis.plot(at, high, color=colour, lw=width, label=text, **style)


def _events(sol: Solution | SavedSolution, axes: Sequence[Axes]) -> None:
    """Vertical lines, one colour per event, named above the first panel."""
    line = need("matplotlib.lines", "plot", "sol.plot()").Line2D
    handles = []
    for j, (name, times) in enumerate(_kinds(sol.events).items()):
        colour = EVENT_COLOURS[j % len(EVENT_COLOURS)]
        for axis in axes:
            if int(sol.events.count) > MAX_EVENT_LINES:
                blended, at = axis.get_xaxis_transform(), _columns(times)
                axis.plot(at, np.full(len(at), 0.01), "|", color=colour, transform=blended)
            else:
                for t in times:
                    axis.axvline(t, color=colour, lw=0.9, alpha=0.6, zorder=0.9)
        many = f" ({len(times):,})" if len(times) > 1 else ""
        handles.append(line([], [], color=colour, lw=1.4, label=f"{name}{many}"))
    if handles:
        axes[0].figure.legend(
            handles=handles, loc="outside upper left", ncols=min(len(handles), 5), handlelength=1.2
        )


def _kinds(log: EventLog) -> dict[str, np.ndarray]:
    """The times of each kind of event; those of a sliding surface are named by their modes."""
    count = int(log.count)
    which, times = np.asarray(log.which)[:count], np.asarray(log.t)[:count]
    names = [log.names[k] for k in which]
    if log.modes == ("above", "below", "sliding"):
        modes = [np.asarray(now.mode)[:count] for now in (log.before, log.after)]
        for k, (name, a, b) in enumerate(zip(names, *modes, strict=True)):
            surface = name.removesuffix(": above").removesuffix(": below")
            if surface != name:
                names[k] = f"{surface}: {log.modes[a]} \u2192 {log.modes[b]}"
    return {name: times[[n == name for n in names]] for name in dict.fromkeys(names)}


def _columns(times: np.ndarray) -> np.ndarray:
    """Times thinned out to one per column of a panel."""
    if len(times) <= PANEL_COLUMNS:
        return times
    return times[
        np.unique(
            ((times - times[0]) / np.ptp(times) * PANEL_COLUMNS).astype(int), return_index=True
        )[1]
    ]


def _modes(sol: Solution | SavedSolution, course: Course, axes: Sequence[Axes]) -> None:
    """Shades each interval in one mode, with its name where there is room."""
    if not sol.modes or course.mode is None or not len(course.mode):
        return
    borders = np.flatnonzero(np.diff(course.mode)) + 1
    if len(borders) > MAX_MODE_BANDS:
        return
    whole = abs(course.t[-1, -1] - course.t[0, 0])
    for rows in np.split(np.arange(len(course.mode)), borders):
        mode = int(course.mode[rows[0]])
        a, b = course.t[rows[0], 0], course.t[rows[-1], -1]
        for axis in axes:
            axis.axvspan(a, b, color=COLOURS[mode % len(COLOURS)], alpha=0.06, lw=0)
        if abs(b - a) > 0.012 * len(sol.modes[mode]) * whole:
            axes[0].annotate(
                sol.modes[mode], ((a + b) / 2, 1.0), xycoords=axes[0].get_xaxis_transform(),
                ha="center", va="bottom", color=COLOURS[mode % len(COLOURS)], fontsize=9,
            )  # fmt: skip
