"""A timeline of events: observed, fitted, and at the first guess."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...base.names import unit_of
from ..uncertainty import quantile
from .style import (
    ALARM,
    FIGURE_WIDTH,
    FIT,
    GUESS,
    INK,
    QUIET,
    axis_label,
    counted,
    drawing,
    event_times,
    plain,
    rms,
    solution_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..result import Fit, Fitted

MOST_EXPERIMENTS = 4
MOST_KINDS = 8  # of events in one experiment
MOST_DOTS = 60  # more events of a kind are ticks
HEADING_HEIGHT = 0.95  # of the name above its lanes, in lanes


class Kind(NamedTuple):
    """One kind of event in one experiment. `observed` is None if it was not measured."""

    name: str
    observed: np.ndarray | None
    fitted: np.ndarray
    guessed: np.ndarray | None  # None where the first guess could not be simulated
    pairs: list[tuple[int, int]]

    @property
    def seen(self) -> np.ndarray:
        """The observed times; empty if they were not measured."""
        return np.zeros(0) if self.observed is None else self.observed

    def lanes(self) -> list[tuple[str, np.ndarray, str]]:
        """From top to bottom: label, times and colour."""
        every = [("observed", self.observed, INK), ("fit", self.fitted, FIT),
                 ("first guess", self.guessed, GUESS)]  # fmt: skip
        return [lane for lane in every if lane[1] is not None]

    def alone(self) -> tuple[np.ndarray, np.ndarray]:
        """Observed and fitted events without a partner."""
        if self.observed is None:
            return np.zeros(0), np.zeros(0)
        left = set(range(len(self.observed))) - {i for i, _ in self.pairs}
        right = set(range(len(self.fitted))) - {j for _, j in self.pairs}
        return self.observed[sorted(left)], self.fitted[sorted(right)]

    def off(self) -> np.ndarray:
        """Fitted minus observed time of every pair."""
        return np.array([self.fitted[j] - self.seen[i] for i, j in self.pairs])


def kinds_of(experiment: Fitted) -> list[Kind]:
    """The events of an experiment by kind, with observed kinds first."""
    fitted = event_times(solution_of(experiment))
    first = solution_of(experiment, initial=True)
    guessed = event_times(first)
    none = np.zeros(0)
    found = []
    for name, m in experiment.events.items():
        guess = guessed.get(name, none) if first is not None and "[" not in name else None
        found.append(Kind(name, m.observed, m.predicted, guess, m.pairs))
    seen = {name.partition("[")[0] for name in experiment.events}
    for name in dict.fromkeys([*fitted, *guessed]):
        if name not in seen:
            guess = guessed.get(name, none) if first is not None else None
            found.append(Kind(name, None, fitted.get(name, none), guess, []))
    return found


def timelines(fit: Fit) -> dict[int, list[Kind]]:
    """The experiments with events, those with observed events first."""
    ranked = sorted(range(len(fit.experiments)), key=lambda k: not fit.experiments[k].events)
    found: dict[int, list[Kind]] = {}
    for k in ranked:
        kinds = kinds_of(fit.experiments[k])
        if kinds:
            found[k] = kinds[:MOST_KINDS]
        if len(found) == MOST_EXPERIMENTS:
            break
    return dict(sorted(found.items()))


def event_timeline(fit: Fit) -> Figure | None:
    """Events over time, a lane for each source, partners connected; None without any events.

    Below it, how far the fitted times are from the observed ones.
    """
    shown = timelines(fit)
    if not shown:
        return None
    heights = []
    for kinds in shown.values():
        heights.append(0.25 * sum(len(k.lanes()) + HEADING_HEIGHT for k in kinds) + 0.25)
        heights += [1.25] if any(k.pairs for k in kinds) else []
    with drawing() as plt:
        size = (FIGURE_WIDTH, sum(heights) + 0.55 * len(heights) + 0.2)
        figure, axes = plt.subplots(
            len(heights), 1, squeeze=False, figsize=size, height_ratios=heights
        )
        rest = iter(axes[:, 0])
        for k, kinds in shown.items():
            axis = next(rest)
            _lanes(axis, kinds)
            axis.set_xlim(*_span(fit.experiments[k]))
            last = axis
            if any(kind.pairs for kind in kinds):
                last = next(rest)
                _differences(last, fit, k, kinds)
                last.set_xlim(axis.get_xlim())
                axis.tick_params(labelbottom=False)
            last.set_xlabel(axis_label("t", fit))
            if len(fit.experiments) > 1:
                axis.set_title(plain(fit.experiments[k].name, 40))
    return figure


def _span(experiment: Fitted) -> tuple[float, float]:
    """The whole experiment, with a margin."""
    sol = solution_of(experiment)
    first = 0.0 if sol is None else float(sol.start)
    room = 0.015 * (experiment.t1 - first)
    return first - room, experiment.t1 + room


def _lanes(axis: Axes, kinds: list[Kind]) -> None:
    """Every kind of event: its name, and a lane for each source below it."""
    y, ticks = 0.0, []
    for kind in kinds:
        axis.annotate(
            plain(kind.name, 40), (0.0, y), xycoords=axis.get_yaxis_transform(), xytext=(4, -1),
            textcoords="offset points", va="center", color=INK, weight="bold", fontsize=9.5,
        )  # fmt: skip
        places = {}
        for what, times, colour in kind.lanes():
            y += 1.0
            places[what] = y
            ticks.append((y, what, colour))
            axis.axhline(y, color="#e6e9ec", lw=0.9, zorder=0.5)
            many = len(times) > MOST_DOTS
            style = {"ms": 9, "mew": 0.8} if many else {"ms": 5.5, "mew": 0}
            axis.plot(times, np.full(len(times), y), "|" if many else "o", color=colour, **style)
        _connections(axis, kind, places)
        y += HEADING_HEIGHT
    axis.set_yticks([t[0] for t in ticks], [t[1] for t in ticks])
    for text, (_, _, colour) in zip(axis.get_yticklabels(), ticks, strict=True):
        text.set_color(colour)
    axis.set_ylim(y - 0.35, -0.55)
    axis.grid(visible=False, axis="y")
    axis.tick_params(left=False)
    axis.spines["left"].set_visible(False)


def _connections(axis: Axes, kind: Kind, places: dict[str, float]) -> None:
    """Lines between partners; rings around events that have none."""
    for i, j in kind.pairs:
        axis.plot([kind.seen[i], kind.fitted[j]], [places["observed"], places["fit"]],
                  color=QUIET, lw=1.1, zorder=1.5)  # fmt: skip
    if kind.guessed is not None and max(len(kind.guessed), len(kind.fitted)) <= MOST_DOTS:
        for a, b in zip(kind.fitted, kind.guessed, strict=False):
            axis.plot([a, b], [places["fit"], places["first guess"]], color=QUIET, lw=0.7,
                      ls=(0, (1, 2)), zorder=1.4)  # fmt: skip
    for times, what in zip(kind.alone(), ("observed", "fit"), strict=True):
        if times.size:
            axis.plot(times, np.full(times.size, places[what]), "o", mfc="none", mec=ALARM,
                      ms=10, mew=1.5, zorder=3)  # fmt: skip


def _differences(axis: Axes, fit: Fit, k: int, kinds: list[Kind]) -> None:
    """Fitted minus observed times; 95 % of the noise of the first kind is shaded."""
    marks = "osD^vP*X"
    paired = [kind for kind in kinds if kind.pairs]
    for kind, mark in zip(paired, marks, strict=False):
        at = np.array([kind.seen[i] for i, _ in kind.pairs])
        axis.vlines(at, 0.0, kind.off(), color=FIT, lw=1.0, alpha=0.5)
        axis.plot(at, kind.off(), mark, color=FIT, ms=4.5, mew=0, label=plain(kind.name))
    sd = fit.noise.get(paired[0].name, np.nan)
    if len(paired) == 1 and np.isfinite(sd):
        reach = quantile(0.95, fit._freedom) * sd
        axis.axhspan(-reach, reach, color=INK, alpha=0.06, lw=0, zorder=0.4)
    axis.axhline(0.0, color=INK, lw=0.8)
    if len(paired) > 1:
        axis.legend(loc="best", ncols=4, handlelength=1.0)
    unit = unit_of(fit.units, "t")
    axis.set_ylabel("fit - observed" + (f" [{unit}]" if unit else ""))


def match_words(fit: Fit) -> list[tuple[str, str, int, int, int, float, float]]:
    """For every observed kind: experiment, kind, numbers of observed, fitted and paired events,
    root mean square difference, and the standard deviation of the noise."""
    return [
        (
            e.name, name, len(m.observed), len(m.predicted), len(m.pairs),
            rms([m.predicted[j] - m.observed[i] for i, j in m.pairs]), fit.noise.get(name, np.nan),
        )
        for e in fit.experiments
        for name, m in e.events.items()
    ]  # fmt: skip


def describe(fit: Fit) -> str:
    """The figure in words."""
    parts = []
    for k, kinds in timelines(fit).items():
        for kind in kinds:
            counts = [f"{len(times)} {what}" for what, times, _ in kind.lanes()]
            parts.append(f"{fit.experiments[k].name}, {kind.name}: {', '.join(counts)}")
    return f"{counted(len(parts), 'kind')} of events over time. " + "; ".join(parts)
