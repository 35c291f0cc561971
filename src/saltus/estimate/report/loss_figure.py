"""How the search went: loss and gradient, iteration by iteration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .style import ALARM, FIGURE_WIDTH, FIT, GUESS, INK, QUIET, counted, drawing, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..result import Fit

SMALLEST_LOSS = 1e-300  # that has a place on a logarithmic scale


class Stage(NamedTuple):
    """Consecutive iterations with the same kind of loss."""

    name: str
    first: int
    last: int
    before: float  # loss
    after: float
    seconds: float


def stages(fit: Fit) -> list[Stage]:
    """The history, cut where the stage changes."""
    history = fit.history
    if not history:
        return []
    cuts = [k for k in range(1, len(history)) if history[k]["stage"] != history[k - 1]["stage"]]
    borders = [0, *cuts, len(history)]
    found = []
    for a, b in pairwise(borders):
        begun = history[a - 1]["seconds"] if a else 0.0
        found.append(
            Stage(history[a]["stage"], a, b - 1, history[a]["loss"], history[b - 1]["loss"],
                  history[b - 1]["seconds"] - begun)
        )  # fmt: skip
    return found


def loss_history(fit: Fit) -> Figure | None:
    """Loss and gradient over the iterations, on logarithmic scales; None if there were none."""
    parts = stages(fit)
    if not parts:
        return None
    with drawing() as plt:
        figure, axes = plt.subplots(
            2, 1, sharex=True, figsize=(FIGURE_WIDTH, 4.2), height_ratios=[1.7, 1.0]
        )
        for axis, key, text in zip(axes, ("loss", "gradient"), ("loss", "gradient"), strict=True):
            for part in parts:
                rows = np.arange(part.first, part.last + 1)
                values = np.array([fit.history[k][key] for k in rows], dtype=float)
                good = np.isfinite(values) & (values > SMALLEST_LOSS)
                mark = "o-" if len(fit.history) <= 150 else "-"
                axis.plot(rows[good], values[good], mark, color=FIT, ms=3.2, lw=1.3)
            if axis.lines and any(line.get_xdata().size for line in axis.lines):
                axis.set_yscale("log")
            axis.set_ylabel(text)
        axes[1].set_xlabel("iteration")
        axes[1].locator_params(axis="x", integer=True)
        axes[0].set_xlim(-0.5, len(fit.history) - 0.5)
        _shade(axes, parts, len(fit.history))
        _doubts(figure, axes[1], fit)
    return figure


def _doubts(figure: Figure, axis: Axes, fit: Fit) -> None:
    """Marks iterations whose gradient cannot be trusted on the axis, with a legend below it."""
    for verdict, colour, mark in (("DEGRADED", GUESS, "D"), ("UNTRUSTED", ALARM, "X")):
        rows = [k for k, found in fit.verdicts if found == verdict]
        if rows:
            axis.plot(
                rows, np.zeros(len(rows)), mark, color=colour, ms=6, mew=0, clip_on=False,
                label=f"gradient {verdict}", transform=axis.get_xaxis_transform(), zorder=5,
            )  # fmt: skip
    if axis.get_legend_handles_labels()[0]:
        axis.margins(y=0.18)  # the curve stays above the marks
        figure.legend(loc="outside lower right", ncols=2, handlelength=1.0)


def _shade(axes: Sequence[Axes], parts: list[Stage], total: int) -> None:
    """Every other stage shaded, and named where there is room."""
    for k, part in enumerate(parts):
        a, b = part.first - 0.5, part.last + 0.5
        for axis in axes:
            if k % 2:
                axis.axvspan(a, b, color=INK, alpha=0.045, lw=0, zorder=0.3)
            if k:
                axis.axvline(a, color=QUIET, lw=0.8, zorder=0.6)
        room = 118 * (b - a) / total  # characters that fit in a row
        if len(part.name) <= room:
            at, turn, across = (a + b) / 2, 0, "center"
        elif room >= 1.6 and len(part.name) <= 16:
            at, turn, across = (a + b) / 2, 90, "center"
        else:
            continue
        axes[0].annotate(
            plain(part.name, 40), (at, 1.0), xycoords=axes[0].get_xaxis_transform(),
            xytext=(0, 3), textcoords="offset points", rotation=turn, ha=across, va="bottom",
            color="#4a525a", fontsize=8.5, annotation_clip=False,
        )  # fmt: skip


def caption(fit: Fit) -> str:
    """How to read the figure."""
    words = (
        "Loss and norm of its gradient. Stages of the search differ in what the loss is made of, "
        "so it is compared only within a stage."
    )
    if all(verdict == "TRUSTED" for _, verdict in fit.verdicts):
        return words
    return (
        f"{words} Marks on the lower axis: iterations whose gradient cannot be trusted; "
        f"{len(fit.verdicts)} of {len(fit.history)} were checked, with the reasons under Trust."
    )


def describe(fit: Fit) -> str:
    """The figure in words."""
    parts = stages(fit)
    first, last = fit.history[0]["loss"], fit.history[-1]["loss"]
    return (
        f"Loss and gradient over {counted(len(fit.history), 'iteration')} in "
        f"{counted(len(parts), 'stage')}, from {first:.4g} to {last:.4g}."
    )
