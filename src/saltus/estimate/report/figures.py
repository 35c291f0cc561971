"""The figures of a fit, one function for each, and all of them as images with texts."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from . import event_figure, fit_figure, loss_figure, uncertainty_figure
from . import residual_figure as leftover
from .event_figure import event_timeline
from .fit_figure import data_and_fit
from .loss_figure import loss_history
from .residual_figure import residuals
from .style import drawing
from .uncertainty_figure import identifiability, parameter_intervals

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..result import Fit

DPI = 160


class Drawn(NamedTuple):
    """How a figure is drawn (None: there is nothing to draw), described and explained."""

    draw: Callable[[Fit], Figure | None]
    describe: Callable[[Fit], str]
    caption: str | Callable[[Fit], str]


class Picture(NamedTuple):
    """A figure as it is written: the file's content, a description, and how to read it."""

    png: bytes
    alt: str
    caption: str
    width: int  # pixels at which it is shown
    height: int


def _data(fit: Fit) -> Figure | None:
    return data_and_fit(fit) if fit_figure.panels_of(fit) else None


FIGURES = {
    "parameters": Drawn(
        parameter_intervals,
        uncertainty_figure.describe_intervals,
        "Estimates with their 95 % intervals and the first guesses, all relative to the estimates. "
        "Where widths differ much, the scale is logarithmic to both sides.",
    ),
    "data_and_fit": Drawn(
        _data,
        fit_figure.describe,
        fit_figure.caption,
    ),
    "residuals": Drawn(
        residuals,
        leftover.describe,
        "Prediction minus measurement, in standard deviations of the noise. If the model is right, "
        "they scatter without a pattern, 19 of 20 within the dashed lines; the histogram follows "
        "the black density, and the dots on the right stay in the grey band.",
    ),
    "events": Drawn(
        event_timeline,
        event_figure.describe,
        "When events happened. Partners are connected; red rings mark events without one. Dotted "
        "lines lead from an event of the fit to the one of the same number at the first guess.",
    ),
    "loss": Drawn(
        loss_history,
        loss_figure.describe,
        loss_figure.caption,
    ),
    "identifiability": Drawn(
        identifiability,
        uncertainty_figure.describe_identifiability,
        "Left: correlations of the estimates, grey where one is not determined. Middle: the "
        "combinations of relative changes that the data determine worst, with their standard "
        "deviations below. Right: the standard deviations of all such combinations, one over the "
        "singular values of the sensitivities.",
    ),
}


def pictures(fit: Fit) -> dict[str, Picture]:
    """All figures that this fit has, as PNG files."""
    found = {}
    for name, how in FIGURES.items():
        figure = how.draw(fit)
        if figure is not None:
            width, height = (round(100 * v) for v in figure.get_size_inches())
            caption = how.caption if isinstance(how.caption, str) else how.caption(fit)
            found[name] = Picture(_png(figure), how.describe(fit), caption, width, height)
    return found


def _png(figure: Figure) -> bytes:
    """The content of the figure's file; closes the figure."""
    content = io.BytesIO()
    with drawing() as plt:
        figure.savefig(content, format="png", dpi=DPI, facecolor="white")
        plt.close(figure)
    return content.getvalue()


__all__ = [
    "data_and_fit", "event_timeline", "identifiability", "loss_history", "parameter_intervals",
    "pictures", "residuals",
]  # fmt: skip
