"""Doubtful gradients along a search: told with their reasons, marked where they hide nothing."""

import re
import types

import matplotlib
import numpy as np

from saltus.estimate.report import certificates, loss_figure
from saltus.estimate.result import Fit
from saltus.trust import REASONS

matplotlib.use("agg")

FAILED, GRAZES, SAVED = REASONS[0], "an event is almost grazing", "an event at a saved time"


def search(iterations, **known):
    """A fit of which only the search is known."""
    row = {"stage": "all", "seconds": 0.0}
    history = [row | {"loss": 2 + 0.9**k, "gradient": 0.8**k} for k in range(iterations)]
    fit = Fit.__new__(Fit)
    fit.__dict__.update(history=history, **known)
    return fit


def close(figure):
    import matplotlib.pyplot as plt

    plt.close(figure)


def test_reasons_along_the_search_are_told_with_their_iterations():
    doubts = [(k, {SAVED: "DEGRADED"} if k < 14 else {}) for k in range(0, 80, 2)]
    doubts[9] = (18, {FAILED: "UNTRUSTED"})
    doubts[20] = (40, {GRAZES: "UNTRUSTED", SAVED: "DEGRADED"})
    doubts[21] = (42, {GRAZES: "DEGRADED"})
    words = certificates._along(search(88, doubts=doubts))
    assert words.startswith(
        "<p>Along the search 40 of 88 iterations were checked: 30 TRUSTED, 8 DEGRADED, "
        "2 UNTRUSTED. Why:</p>"
    )
    assert re.findall("<li>(.*)</li>", words) == [
        f"The solve failed: UNTRUSTED at iteration 18.{certificates.PARTS}",
        "An event is almost grazing: UNTRUSTED at iteration 40; DEGRADED at iteration 42.",
        "An event at a saved time: DEGRADED at 8 iterations (0, 2, 4, ...).",
    ]


def test_a_search_without_doubts_says_how_much_of_it_was_looked_at():
    words = certificates._along(search(3, doubts=[(0, {}), (2, {})]))
    assert "2 of 3 iterations were checked: every gradient is TRUSTED." in words
    assert certificates._along(search(0, doubts=[])) == ""


def test_reasons_are_those_of_the_certificates(monkeypatch):
    """The worst of all experiments; of a solve that failed only that it did."""

    def certified(found):
        levels = np.zeros(len(REASONS), int)
        levels[[REASONS.index(name) for name in found]] = list(found.values())
        return types.SimpleNamespace(levels=levels)

    runs = [{GRAZES: 1, SAVED: 2}, {GRAZES: 2}], [{FAILED: 2, SAVED: 2}, {GRAZES: 1}], [{}, {}]
    monkeypatch.setattr("saltus.estimate.result.certificate", certified)
    target = types.SimpleNamespace(solutions=lambda u: runs[int(u)])
    fit = search(3, _path=[0, 1, 2], _objective=target)
    assert fit.doubts == [
        (0, {GRAZES: "UNTRUSTED", SAVED: "UNTRUSTED"}),
        (1, {FAILED: "UNTRUSTED", GRAZES: "DEGRADED"}),
        (2, {}),
    ]
    assert fit.verdicts == [(0, "UNTRUSTED"), (1, "UNTRUSTED"), (2, "TRUSTED")]


def test_doubtful_iterations_are_marked_and_named_where_they_hide_nothing():
    doubts = [(k, {SAVED: "DEGRADED"} if k == 4 else {}) for k in range(10)]
    doubts[9] = (9, {GRAZES: "UNTRUSTED"})  # under the lowest point of the curve
    fit = search(10, doubts=doubts)
    assert "10 of 10 were checked" in loss_figure.caption(fit)
    figure = loss_figure.loss_history(fit)
    figure.draw_without_rendering()
    (legend,), axis = figure.legends, figure.axes[1]
    words = [text.get_text() for text in legend.get_texts()]
    assert words == ["gradient DEGRADED", "gradient UNTRUSTED"]
    assert not any(legend.get_window_extent().overlaps(a.get_window_extent()) for a in figure.axes)
    marks = {line.get_label(): line.get_xdata() for line in axis.lines}
    assert marks[words[0]] == [4] and marks[words[1]] == [9]
    points = axis.transData.transform(axis.lines[0].get_xydata())[:, 1]
    assert points.min() > axis.get_window_extent().y0 + 6  # above marks of 6 points
    close(figure)


def test_without_doubts_there_are_no_marks_and_no_legend():
    fit = search(3, doubts=[(0, {})])
    figure = loss_figure.loss_history(fit)
    assert not figure.legends and "Marks" not in loss_figure.caption(fit)
    close(figure)
