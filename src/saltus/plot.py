"""Figures of solutions, and the look that all figures of this project share. Needs matplotlib."""

from __future__ import annotations

from typing import Any

import numpy as np

from .extras import need
from .tables import is_traced, label, named, unit_of

COLOURS = ["#1b6ca8", "#d1495b", "#2e8b6f", "#e39b2d", "#7a5195", "#5c6b73", "#a0522d", "#3aa6b9"]
EVENT_COLOURS = ["#8a94a0", "#c77f5a", "#6d9a7c", "#9b7fb8", "#b8a04a"]
PANELS = 8
LINES = 40  # more events than this are drawn as ticks on the axis instead of lines

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


def pyplot() -> Any:
    """matplotlib's pyplot with our look, or an error that says what to install."""
    plt = need("matplotlib.pyplot", "plot", "plotting")
    from cycler import cycler  # comes with matplotlib

    plt.rcParams.update(LOOK | {"axes.prop_cycle": cycler(color=COLOURS)})
    return plt


def plot(sol: Any, *names: str, points: int = 2000) -> Any:
    """Outputs over time with the events marked: one panel per output. Returns the figure."""
    plt = need("matplotlib.pyplot", "plot", "sol.plot()")
    _one_concrete(sol)
    steps = max(1, int(sol.stats.rows))
    fractions = np.linspace(0.0, 1.0, int(np.clip(points // steps, 3, 65)))
    course = sol.course(fractions)
    chosen = _choose(named(course.y, "y"), names)
    with plt.rc_context(LOOK):
        n = len(chosen)
        size = (7.2, min(2.4 * n + 0.9, 11.0))
        figure, axes = plt.subplots(n, 1, sharex=True, squeeze=False, figsize=size)
        axes = axes[:, 0]
        _modes(sol, course, axes)
        _events(sol, axes)
        for axis, (name, values) in zip(axes, chosen.items(), strict=True):
            flat = values.reshape(*values.shape[:2], -1)
            for k in range(flat.shape[-1]):
                text = f"{name}[{k}]" if flat.shape[-1] > 1 else None
                curve(axis, course, flat[..., k], COLOURS[k % len(COLOURS)], text)
            if 1 < flat.shape[-1] <= len(COLOURS):
                axis.legend(loc="best", ncols=2)
            axis.set_ylabel(label(name, sol.units))
            axis.margins(x=0.01)
        unit = unit_of(sol.units, "t")
        axes[-1].set_xlabel(f"t [{unit}]" if unit else "t")
    return figure


def _one_concrete(sol: Any) -> None:
    if is_traced((sol.t, sol.result, sol.y)):
        raise TypeError(
            "sol.plot() needs numbers, but this is traced by jit, vmap or grad. Plot outside of "
            "the traced function."
        )
    if np.ndim(sol.result):
        raise ValueError(
            f"sol.plot(): a batch of {np.shape(sol.result)} solutions. Plot one of them: "
            "sol[0].plot()."
        )


def _choose(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    unknown = [name for name in names if name not in values]
    if unknown:
        raise KeyError(f'sol.plot(): no output is called "{unknown[0]}"; there are {list(values)}.')
    if names:
        return {name: values[name] for name in names}
    if len(values) > PANELS:
        raise ValueError(
            f"sol.plot(): {len(values)} outputs are too many for one figure. Name some: "
            f'sol.plot("{next(iter(values))}"). There are {list(values)}.'
        )
    return values


def curve(
    axis: Any, course: Any, values: Any, colour: str, text: str | None = None, **style: Any
) -> None:
    """One output: a line per piece, and both limits where it jumps. `style` is of the line."""
    breaks = np.flatnonzero(np.diff(course.piece)) + 1
    known = values[np.isfinite(values)]
    span = np.ptp(known) if known.size else 0.0
    for k, rows in enumerate(np.split(np.arange(len(values)), breaks)):
        axis.plot(
            course.t[rows].reshape(-1), values[rows].reshape(-1), color=colour,
            label=text if k == 0 else None, **style,
        )  # fmt: skip
    before, after = values[breaks - 1, -1], values[breaks, 0]
    jumps = np.abs(after - before) > 1e-9 * span
    at = course.t[breaks, 0][jumps]
    if 0 < len(at) <= LINES:
        size = 4 if style.get("lw", 2) > 1 else 2.5
        axis.vlines(at, before[jumps], after[jumps], color=colour, lw=0.9, ls=(0, (1, 2)))
        axis.plot(at, before[jumps], "o", mfc="white", mec=colour, ms=size, mew=1.1)
        axis.plot(at, after[jumps], "o", color=colour, ms=size, mew=1.1)


def _events(sol: Any, axes: Any) -> None:
    """Vertical lines, one colour per event, named above the first panel."""
    line = need("matplotlib.lines", "plot", "sol.plot()").Line2D
    log = sol.events
    count = int(log.count)
    which = np.asarray(log.which)[:count]
    kinds = list(dict.fromkeys(which.tolist()))
    handles = []
    for j, kind in enumerate(kinds):
        colour = EVENT_COLOURS[j % len(EVENT_COLOURS)]
        times = np.asarray(log.t)[:count][which == kind]
        for axis in axes:
            if count > LINES:
                blended = axis.get_xaxis_transform()
                axis.plot(times, np.full(len(times), 0.01), "|", color=colour, transform=blended)
            else:
                for t in times:
                    axis.axvline(t, color=colour, lw=0.9, alpha=0.6, zorder=0.9)
        many = f" ({len(times)})" if len(times) > 1 else ""
        handles.append(line([], [], color=colour, lw=1.4, label=f"{log.names[kind]}{many}"))
    if handles:
        axes[0].figure.legend(
            handles=handles, loc="outside upper left", ncols=min(len(handles), 5), handlelength=1.2
        )


def _modes(sol: Any, course: Any, axes: Any) -> None:
    """A band of colour for each stay in a mode, named where there is room."""
    if not sol.modes or course.mode is None or not len(course.mode):
        return
    borders = np.flatnonzero(np.diff(course.mode)) + 1
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
