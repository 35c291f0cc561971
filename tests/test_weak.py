"""Weak directions in words: percentages where there are any, changes of numbers near zero."""

import types

import jax.numpy as jnp
import numpy as np

from saltus.estimate.sure import certainty, weak_directions

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
