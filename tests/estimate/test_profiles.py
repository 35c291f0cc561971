"""Profiles: what they cost, and intervals of a fit that was stopped: where they are given."""

import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus.estimate import monitor, noise_origin, search
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


# -- where intervals are given --------------------------------------------------------------------
@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_fit_that_was_stopped_has_intervals_where_it_is_a_minimum(monkeypatch, at_the_end):
    """Interrupted after its search: at the minimum. After one iteration: elsewhere."""

    def impatient(*_, **options):
        if options.get("again", True):
            raise KeyboardInterrupt
        return noise(*_, **options)

    noise = noise_origin.with_noise
    if at_the_end:
        monkeypatch.setattr("saltus.estimate.fitting.with_noise", impatient)
    else:
        stop(monkeypatch, lambda stage, number: number == 1)
    fit = fitted()
    assert fit.result == "interrupted"
    assert np.isfinite(fit.sd).all() == at_the_end
    words = "and a minimum" if at_the_end else "not a minimum: no intervals are given"
    assert words in fit.message
    assert ("No intervals" in repr(fit)) is not at_the_end


def test_a_minimum_for_other_noise_is_not_a_minimum(monkeypatch):
    """x and y disagree about k; with the noise found at the end, another value is best."""
    both = saltus.HybridSystem(
        lambda now, p: {"x": -p["k"] * now.x["x"], "y": -p["k"] * now.x["y"]}
    )
    t = np.linspace(0.1, 3.0, 20)
    rough = np.exp(-1.5 * t) + 0.1 * jnp.sin(7.0 * t)
    table = {"t": t, "x": np.exp(-t), "y": np.asarray(rough)}
    start = saltus.Instant(t=0.0, x={"x": 1.0, "y": 1.0})
    stop(monkeypatch, lambda stage, number: stage == "noise estimated")
    fit = saltus.fit(both, table, {"k": 1.2}, start=start, t1=3.0, search="local")
    assert fit.result == "interrupted"
    assert "not a minimum" in fit.message and not np.isfinite(fit.sd).any()
