"""What the figures of a fit share: canvas, colours, labels, simulations."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from scipy import stats

from ...base.extras import need
from ...base.names import label
from ...base.results import Result, SolveError
from ...base.types import Numbers
from ...solution.plotting import COLOURS, EVENT_COLOURS, LOOK
from ...solution.solution import Solution

if TYPE_CHECKING:
    from ..result import Fit, Fitted


class Distribution(Protocol):
    """A distribution of noise: its density and its quantiles."""

    def pdf(self, x: np.ndarray) -> np.ndarray: ...
    def ppf(self, q: Any) -> Any: ...


FIGURE_WIDTH = 9.6  # inches, of every figure: they share one column of the page
INK = "#2b3137"  # data
FIT = COLOURS[0]
GUESS = COLOURS[3]
ALARM = COLOURS[1]
QUIET = "#8a94a0"
PAPER = "#f6f7f8"
DIVERGING = ["#1b6ca8", "#8fb8d6", "#f6f7f8", "#e8a3ab", "#d1495b"]
LABEL_LENGTH = 26  # characters of a name in a figure


@contextlib.contextmanager
def drawing() -> Iterator[Any]:
    """pyplot, with saltus' style inside this context."""
    plt = need("matplotlib.pyplot", "plot", "figures of a fit")
    with plt.rc_context(LOOK):
        yield plt


# -- words ----------------------------------------------------------------------------------------
def plain(text: str, most: int = LABEL_LENGTH) -> str:
    """A name for matplotlib: without mathematics, shortened in its middle."""
    if len(text) > most:
        half = (most - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return text.replace("$", r"\$")


def axis_label(name: str, fit: Fit) -> str:
    """`h [m]`."""
    return plain(label(name, fit.units), 34)


def counted(n: int, what: str) -> str:
    """`1 event`, `2 events`."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def listed(words: Iterable[str]) -> str:
    """`a, b and c`."""
    words = list(words)
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


# -- simulations ----------------------------------------------------------------------------------
def solution_of(experiment: Fitted, initial: bool = False) -> Solution | None:
    """The simulation of an experiment; None if there is none."""
    try:
        return experiment.initial if initial else experiment.solution
    except (SolveError, ValueError):
        return None


def stopped_early(sol: Solution | None) -> bool:
    """Whether a simulation failed before its end."""
    return sol is not None and int(sol.result) > int(Result.terminated)


def event_times(sol: Solution | None) -> dict[str, np.ndarray]:
    """The times of the events of a simulation, by kind; only kinds that happened."""
    if sol is None or not sol.names:
        return {}
    log = sol.events
    count = int(log.count)
    which, t = np.asarray(log.which)[:count], np.asarray(log.t)[:count]
    found = {name: t[which == k] for k, name in enumerate(log.names)}
    return {name: times for name, times in found.items() if times.size}


def event_colour(sol: Solution | None, name: str) -> str:
    """The colour of a kind of event, the same in every figure."""
    stem = name.partition("[")[0]
    names = () if sol is None else sol.names
    k = list(names).index(stem) if stem in names else 0
    return EVENT_COLOURS[k % len(EVENT_COLOURS)]


# -- numbers --------------------------------------------------------------------------------------
def finite(values: Numbers) -> np.ndarray:
    """The finite values."""
    values = np.asarray(values, dtype=float).reshape(-1)
    return values[np.isfinite(values)]


def rms(values: Numbers) -> float:
    """Root mean square of the finite values; NaN if there are none."""
    values = finite(values)
    return float(np.sqrt(np.mean(values**2))) if values.size else float("nan")


def noise_law(fit: Fit) -> Distribution:
    """The distribution that residuals in standard deviations should have."""
    words = str(fit.settings.get("likelihood", "normal"))
    if "student" in words.lower():
        found = re.search(r"freedom=([\d.]+)", words)
        law: Any = stats.t(float(found[1]) if found else 4.0)
        return law
    return stats.norm


def worst(scores: dict[Any, float], most: int) -> list[Any]:
    """At most `most` keys: those with the largest scores, in their original order."""
    rank = sorted(scores, key=lambda k: -np.nan_to_num(scores[k], nan=np.inf))[:most]
    return [k for k in scores if k in set(rank)]
