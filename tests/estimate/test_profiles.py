"""Profiles: what they cost, and what is kept of them."""

import numpy as np
import pytest

import saltus
from saltus.estimate import monitor, search
from saltus.estimate.search import REFIT_ITERATIONS

DECAY = saltus.HybridSystem(
    lambda now, p: {"x": -p["k"] * now.x["x"], "y": p["b"] - now.x["y"]},
)
START = saltus.Instant(t=0.0, x={"x": 1.0, "y": 0.0})
GUESS = {"k": 0.8, "b": 1.2}


def data(*names):
    rng = np.random.default_rng(0)
    t = np.linspace(0.1, 3.0, 20)
    clean = {"x": np.exp(-t), "y": 2.0 * (1.0 - np.exp(-t))}
    return {"t": t, **{n: clean[n] + 0.01 * rng.normal(size=t.size) for n in names}}


def fitted(**options):
    given = {"search": "local", "noise": {"x": 0.01, "y": 0.01}, **options}
    return saltus.fit(DECAY, data("x", "y"), GUESS, start=START, t1=3.0, **given)


def stop(monkeypatch, when):
    """Interrupts at an iteration, `when(stage, number)`."""
    iteration = monitor.Monitor.iteration

    def impatient(self, *args):
        iteration(self, *args)
        if when(self.stage, len(self.history)):
            raise KeyboardInterrupt

    monkeypatch.setattr(monitor.Monitor, "iteration", impatient)


@pytest.fixture(scope="module")
def whole():
    fit = fitted()
    return fit, fit.profile("k", points=7)


def test_a_profile_takes_few_iterations_whatever_found_the_fit(monkeypatch, whole):
    with monkeypatch.context() as patch:
        stop(patch, lambda stage, number: number == 3)
        begun = fitted(optimiser="adam", max_iterations=200_000)
    assert begun.result == "interrupted" and not np.isfinite(begun.sd).any()
    counted = []
    iteration = monitor.Monitor.iteration

    def counting(self, *args):
        counted.append(self.stage)
        iteration(self, *args)

    monkeypatch.setattr(monitor.Monitor, "iteration", counting)
    wide = begun.profile("k", points=81)  # within 0.5 of the guess, as no deviation is known
    assert len(counted) < 81 * 10 < 81 * REFIT_ITERATIONS
    assert counted[0] == "profile of k, value 1 of 81"
    fine = whole[1]
    # linear interpolation of a parabola between values that are 0.0125 apart
    assert wide.low == pytest.approx(fine.low, abs=0.0125)
    assert wide.high == pytest.approx(fine.high, abs=0.0125)


def test_a_profile_of_many_numbers_uses_a_method_for_many(monkeypatch, whole):
    fit, fine = whole
    monkeypatch.setattr(search, "LEAST_SQUARES_NUMBERS", 0)
    object.__setattr__(fit._search, "name", "trust")
    try:
        assert fit.profile("k", points=7).low == pytest.approx(fine.low, rel=1e-5)
    finally:
        object.__setattr__(fit._search, "name", "lm")


def test_a_profile_shows_where_it_is_and_can_be_interrupted(monkeypatch, capsys, whole):
    fit, fine = whole
    with monkeypatch.context() as patch:
        stop(patch, lambda stage, number: "value 5 of 7" in stage)
        part = fit.profile("k", points=7, progress=True)
    shown = capsys.readouterr().err
    assert "profile of k, value 1 of 7" in shown and shown.endswith("\r")
    assert part.interrupted and "(interrupted after 4 of 7 values)" in repr(part)
    assert np.isfinite(part.losses[3:]).all() and np.isnan(part.losses[:3]).all()
    assert part.high == fine.high and np.isnan(part.low)
    stop(monkeypatch, lambda stage, number: True)
    with pytest.raises(KeyboardInterrupt):
        fit.profile("k", points=7)
