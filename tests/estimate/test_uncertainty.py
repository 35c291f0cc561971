"""Weak directions in words: percentages where there are any, changes of numbers near zero."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus.estimate.uncertainty import certainty, weak_directions

NONE = np.nan


def test_the_change_of_a_number_at_zero_is_absolute_and_stands_last():
    (words,) = weak_directions(
        ["c", "e"], np.array([1.0]), np.array([[0.8, -0.6]]), np.array([3.0, NONE])
    )
    assert words.startswith("e and c trade off: changing e by +10 %, c by -0.4 together ")
    assert words.endswith("determined only to 1e+02 % (one standard deviation).")


def test_where_all_numbers_are_zero_nothing_is_told_in_percent():
    (words,) = weak_directions(["c", "e"], np.array([1.0]), np.array([[0.8, 0.6]]), [3.0, 1.0])
    assert "changing c by +0.3, e by +0.075 together" in words
    assert words.endswith("determined only to 2.4 in c (one standard deviation).")
    (alone,) = weak_directions(["c", "e"], np.array([1.0]), np.array([[1.0, 0.0]]), [3.0, 1.0])
    assert alone == "c is determined only to 3 (one standard deviation)."
    (lost,) = weak_directions(["c", "e"], np.array([0.0]), np.array([[1.0, 0.0]]), [3.0, 1.0])
    assert lost == "c is determined not at all."


def test_a_fit_that_stands_at_zero_says_by_how_much_its_numbers_trade_off():
    """Only c + 2 e is seen; c is 0 and counted in units of 5, e is 4."""
    unit = np.array([5.0, 1.0])
    slope = unit * np.array([[1.0, 2.0], [2.0, 4.0]])
    free = types.SimpleNamespace(
        size=2, names=["c", "e"], natural=lambda u: unit * jnp.asarray(u),
        slopes=lambda u: unit, units=lambda: unit,
    )  # fmt: skip
    problem = types.SimpleNamespace(
        free=free, jacobian=lambda u: slope, residuals=lambda u: np.ones(2),
        low=np.full(2, -np.inf), high=np.full(2, np.inf),
    )  # fmt: skip
    (words,) = certainty(problem, np.array([0.0, 4.0]), None).weak  # type: ignore[arg-type]
    assert words.startswith("e and c trade off: changing e by +10 %, c by -0.8 together")
    assert words.endswith("not at all.")


# -- what is printed first, and what is not printed -----------------------------------------------
line = saltus.HybridSystem(
    lambda now, p: {"x": p["a"] * p["b"] + 0.0 * p["c"], "y": 1.0},
    events=[
        saltus.Event("one", lambda now, p: now.x["x"] - 1.0, direction="rising"),
        saltus.Event("two", lambda now, p: now.x["x"] - 2.0, direction="rising"),
    ],
)
START = saltus.Instant(t=0.0, x={"x": 0.0, "y": 0.0})


def line_data(noise=0.01):
    rng = np.random.default_rng(0)
    t = np.linspace(0.1, 3.0, 30)
    return {"t": t, "x": t + noise * rng.normal(size=t.size)}


def line_fit(data, p, **options):
    guess = {"a": 0.9, "b": 1.0, "c": 1.0}
    return saltus.fit(line, data, guess, start=START, t1=3.0, free=p, search="local", **options)


def test_what_is_not_determined_comes_first():
    fit = line_fit(line_data(), ["a", "b", "c"])
    assert fit.undetermined == ["a", "b", "c"]
    assert repr(fit).startswith("Fit: 3 of 3 numbers are not determined")
    assert "3 of 3 numbers are not determined by these data (a, b, c)" in fit.message
    sound = line_fit(line_data(), ["a"])
    assert sound.undetermined == []
    assert repr(sound).startswith("Fit: converged")


def test_few_event_times_of_several_kinds_share_their_noise():
    rng = np.random.default_rng(1)
    many = [
        saltus.Experiment(
            line_data(), t1=3.0, events={"one": [1.0 + 0.05 * n], "two": [2.0 + 0.05 * m]}
        )
        for n, m in rng.normal(size=(3, 2))
    ]
    fit = line_fit(many, ["a"])
    assert fit.noise_origin == {"x": "estimated", "one": "pooled", "two": "pooled"}
    assert fit.noise["one"] == fit.noise["two"]
    assert 0.01 < fit.noise["one"] < 0.15
    assert "(pooled)" in repr(fit)


def test_noise_that_cannot_be_estimated_is_called_assumed_with_its_number():
    fit = line_fit(saltus.Experiment(line_data(), t1=3.0, events={"one": [1.0]}), ["a"])
    assert fit.noise_origin == {"x": "estimated", "one": "assumed"}
    assert f"assumed: one (1 observed): {fit.noise['one']:.3g}" in fit.message
    assert 'noise={"one"' in fit.message
    given = line_fit(
        saltus.Experiment(line_data(), t1=3.0, events={"one": [1.0]}), ["a"], noise={"one": 0.1}
    )
    assert given.noise_origin["one"] == "given"
    assert "assumed" not in given.message


@pytest.mark.parametrize("when, intervals", [(1, False), (100, True)])
def test_intervals_are_printed_at_a_minimum_only(monkeypatch, when, intervals):
    from saltus.estimate import monitor

    iteration = monitor.Monitor.iteration

    def impatient(self, *args):
        iteration(self, *args)
        if len(self.history) == when:
            raise KeyboardInterrupt

    monkeypatch.setattr(monitor.Monitor, "iteration", impatient)
    fit = line_fit(line_data(), ["a"], noise={"x": 0.01})
    assert (fit.result == "interrupted") is not intervals
    assert ("95 %" in repr(fit)) is intervals
    assert ("No intervals: this is not a minimum" in repr(fit)) is not intervals
    assert bool(np.isfinite(fit.sd).all()) is intervals
