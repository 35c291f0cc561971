"""Optimisers stay within reach of the linearisation, and learn nothing where no gradient exists."""

import itertools

import numpy as np
import pytest
import scipy.optimize

from saltus.estimate.monitor import Monitor
from saltus.estimate.optimisers import (
    Limits,
    Unconstrained,
    l_bfgs_b,
    least_squares,
    restarting,
)
from saltus.estimate.step_limits import FREE_STEP, REACH_FACTOR, Cautious, leave
from saltus.trust.verdict import TRUSTED, UNTRUSTED


class Steps(Unconstrained):
    """(u - 3)^2 with a sequence of events that changes at every whole number."""

    low, high = np.array([-np.inf]), np.array([np.inf])

    def __init__(self, forbidden=(np.inf, np.inf), nonsense=1e3):
        self.forbidden, self.nonsense = forbidden, nonsense
        self.asked = []

    def residuals(self, u):
        return u - 3.0

    def jacobian(self, u):
        return np.eye(1)

    def value(self, u):
        return 0.5 * float((u[0] - 3.0) ** 2)

    def gradient(self, u):
        self.asked.append(float(u[0]))
        wrong = self.level(u) == UNTRUSTED
        return self.value(u), np.array([self.nonsense]) if wrong else u - 3.0

    def signature(self, u):
        return str(int(np.floor(u[0])))

    def reach(self, u, step):
        """To the next whole number, in units of the step."""
        way = step[0]
        edge = np.floor(u[0]) + 1.0 if way > 0 else np.floor(u[0])
        return float((edge - u[0]) / way)

    def level(self, u):
        low, high = self.forbidden
        return UNTRUSTED if low < u[0] < high else TRUSTED

    def events(self):
        return 0

    def evaluations(self):
        return 0


def test_a_step_within_one_sequence_is_free_and_a_longer_one_is_cut():
    target = Cautious(Steps(), np.array([0.25]))
    assert target.share(np.array([0.95])) == 1.0
    assert target.share(np.array([2.25])) == pytest.approx(REACH_FACTOR * 0.75 / 2.0)
    target.settle(np.array([1.0 - 1e-9]))
    assert target.share(np.array([2.0])) == pytest.approx(FREE_STEP, rel=1e-6)


def test_accepted_steps_of_least_squares_are_no_longer_than_the_trust_radius_allows():
    monitor = Monitor(["u"], progress=False)
    target = Steps()
    ending = least_squares(Cautious(target, np.array([0.25])), np.array([0.25]), monitor, Limits())
    assert ending.u[0] == pytest.approx(3.0, abs=1e-6)
    crossings = [
        (here, there - here)
        for here, there in itertools.pairwise(monitor.path)
        if target.signature(here) != target.signature(there)
    ]
    assert len(crossings) == 3  # of 1, 2 and 3
    for here, step in crossings:
        allowed = max(REACH_FACTOR * target.reach(here, step), FREE_STEP / abs(step[0]))
        assert allowed * (1 + 1e-9) >= 1.0


def test_a_quasi_newton_method_never_starts_from_a_gradient_that_does_not_exist():
    """Up to 0.305 the gradient is nonsense; the search starts there, and leaves by hand."""
    first = np.array([0.3])
    target = Steps(forbidden=(0.2, 0.305), nonsense=-1e3)
    assert leave(target, first) == pytest.approx([0.31])
    assert leave(Steps(forbidden=(0.2, 0.4), nonsense=-1e3), first) is None  # too far to the edge
    assert leave(Steps(forbidden=(0.2, 0.305), nonsense=1e3), first) is None  # uphill
    target.asked.clear()
    ending = l_bfgs_b(Cautious(target, first), first, Monitor(["u"], progress=False), Limits())
    assert ending.u[0] == pytest.approx(3.0, abs=1e-5)
    assert {u for u in target.asked if target.level(np.array([u])) == UNTRUSTED} == {0.3}


def test_where_no_way_out_is_found_the_search_says_that_no_gradient_exists():
    target = Steps(forbidden=(-np.inf, np.inf))
    ending = l_bfgs_b(
        Cautious(target, np.array([0.3])), np.array([0.3]), Monitor(["u"], progress=False), Limits()
    )
    assert not ending.satisfied and "No gradient exists" in ending.message


def test_iterations_before_the_sequence_changed_count():
    """Three iterations to each whole number, and an optimiser that lets the callback end it."""
    monitor = Monitor(["u"], progress=False)

    def once(u, each, left):
        for _ in range(left):
            u = u + 0.35
            each(u)
        return scipy.optimize.OptimizeResult(x=u, success=False, message="out of iterations")

    restarting(once, Steps(), np.array([-50.0]), monitor, Limits(iterations=10))
    assert len(monitor.history) == 10
