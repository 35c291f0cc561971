"""A fit to report on, changed copies of it, and how tests read a page of HTML."""

import dataclasses
import html
import re

import numpy as np

import saltus
from saltus.base.results import Result, SolveError

UNITS = {"t": "s", "h": "m", "v": "m/s", "g": "m/s^2"}


def measured():
    """A bouncing ball: 40 noisy heights, and when it bounced."""
    bounce = saltus.Event(
        "bounce",
        guard=lambda now, p: now.x["h"],
        reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]}),
    )
    ball = saltus.HybridSystem(
        lambda now, p: {"h": now.x["v"], "v": -p["g"]}, events=[bounce], units=UNITS
    )
    start = saltus.Instant(t=0.0, x={"h": 5.0, "v": 0.0})
    scenario = saltus.Scenario(ball, start, {"g": 9.81, "e": 0.8}, 4.0, name="bouncing ball")
    sol = scenario.solve(ts=np.linspace(0.0, 4.0, 40))
    noise = np.random.default_rng(2)
    heights = np.asarray(sol.y["h"]) + 0.02 * noise.normal(size=40)
    times = np.asarray(sol.events.t) + 0.005 * noise.normal(size=len(sol.events))
    data = {"t": np.asarray(sol.t), "h": heights}
    return scenario, saltus.Experiment(data, events={"bounce": times}, name="drop")


def part(page, name):
    """One section of the page."""
    return page.partition(f'<section id="{name}">')[2].partition("</section>")[0]


def cells(text):
    """The rows of the tables in a piece of HTML: (words, title) of each cell."""
    rows = re.findall(r"<tr>(.*?)</tr>", text, re.S)
    found = [re.findall(r'<td(?: class="[^"]*")?(?: title="([^"]*)")?>(.*?)</td>', r) for r in rows]
    plain = lambda words: html.unescape(re.sub(r"<[^>]*>", "", words))
    return [[(plain(words), title) for title, words in row] for row in found if row]


def like(fit, n, sd=np.nan, names=None):
    """The fit, as if `n` numbers had been free."""
    rng = np.random.default_rng(0)
    square = np.where(np.eye(n, dtype=bool), 1.0, 0.1)
    square = square if np.isfinite(sd) else np.full((n, n), np.nan)
    values = rng.normal(size=n)
    spectrum = (np.geomspace(1e3, 1e-3, n), np.linalg.qr(rng.normal(size=(n, n)))[0])
    known = dataclasses.replace(
        fit.certainty, covariance=sd**2 * square, correlation=square, sd=np.full(n, sd),
        low=values - 2 * sd, high=values + 2 * sd, at_bound=[False] * n, spectrum=spectrum,
        weak=["a and b trade off."] * 30,
    )  # fmt: skip
    names = names or [f"net.layers[{k // 100}].weight[{k % 100}]" for k in range(n)]
    return dataclasses.replace(
        fit, names=names, values=values, initial=np.zeros(n), certainty=known
    )


def without_simulations(fit, first_only=False):
    """The fit, as if its experiments could not be simulated (at the first guess)."""

    def simulate(initial):
        if first_only and not initial:
            return fit.experiments[0].solution
        failed = Result.too_many_steps
        raise SolveError("no", result=failed, t=0.0, event=None, solution=None)

    lone = [dataclasses.replace(e, simulate=simulate, events={}) for e in fit.experiments]
    return dataclasses.replace(fit, experiments=lone)


def labels(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def close(figure):
    import matplotlib.pyplot as plt

    plt.close(figure)
