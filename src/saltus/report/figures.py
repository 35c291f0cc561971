"""The figures of a fit, one function for each, and all of them as pictures with words."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, NamedTuple

from . import certain, courses, progress, timeline
from . import residuals as leftover
from .canvas import drawing
from .certain import identifiability, parameter_intervals
from .courses import data_and_fit
from .progress import loss_history
from .residuals import residuals
from .timeline import event_timeline

DPI = 160


class Drawn(NamedTuple):
    """How a figure is made (None: there is nothing to draw), told, and explained."""

    draw: Callable[[Any], Any]
    describe: Callable[[Any], str]
    caption: str | Callable[[Any], str]


class Picture(NamedTuple):
    """A figure as it is written: the file's content, a description, and how to read it."""

    png: bytes
    alt: str
    caption: str
    width: int  # pixels at which it is shown
    height: int


def _data(fit: Any) -> Any:
    return data_and_fit(fit) if courses.panels_of(fit) else None


FIGURES = {
    "parameters": Drawn(
        parameter_intervals,
        certain.describe_intervals,
        "Estimates with their 95 % intervals and the first guesses, all relative to the estimates. "
        "Where widths differ much, the scale is logarithmic to both sides.",
    ),
    "data_and_fit": Drawn(
        _data,
        courses.describe,
        courses.caption,
    ),
    "residuals": Drawn(
        residuals,
        leftover.describe,
        "Prediction minus measurement, in standard deviations of the noise. If the model is right, "
        "they are scattered without a pattern, 19 of 20 within the dashed lines; the histogram "
        "follows the black density, and dots on the right stay in the grey band.",
    ),
    "events": Drawn(
        event_timeline,
        timeline.describe,
        "When events happened. Partners are connected; red rings mark events without one. Dotted "
        "lines lead from an event of the fit to the one of the same number at the first guess.",
    ),
    "loss": Drawn(
        loss_history,
        progress.describe,
        progress.caption,
    ),
    "identifiability": Drawn(
        identifiability,
        certain.describe_identifiability,
        "Left: correlations of the estimates, grey where one is not determined. Middle: the "
        "combinations of relative changes that the data determine worst, with their standard "
        "deviations below. Right: the standard deviations of all such combinations, one over the "
        "singular values of the sensitivities.",
    ),
}


def pictures(fit: Any) -> dict[str, Picture]:
    """All figures that this fit has, as PNG files."""
    found = {}
    for name, how in FIGURES.items():
        figure = how.draw(fit)
        if figure is not None:
            width, height = (round(100 * v) for v in figure.get_size_inches())
            caption = how.caption if isinstance(how.caption, str) else how.caption(fit)
            found[name] = Picture(_png(figure), how.describe(fit), caption, width, height)
    return found


def _png(figure: Any) -> bytes:
    """The figure as a file; it is closed then."""
    content = io.BytesIO()
    with drawing() as plt:
        figure.savefig(content, format="png", dpi=DPI, facecolor="white")
        plt.close(figure)
    return content.getvalue()


__all__ = [
    "data_and_fit", "event_timeline", "identifiability", "loss_history", "parameter_intervals",
    "pictures", "residuals",
]  # fmt: skip
