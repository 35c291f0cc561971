"""Optimisers stay within reach of the linearisation, and learn nothing where no gradient exists."""

import itertools

import numpy as np
import pytest

from saltus.estimate.monitor import Monitor
from saltus.estimate.optimisers import Limits, Unconstrained, l_bfgs_b, least_squares
from saltus.estimate.step_limits import BEYOND, SMALL, Cautious, leave
from saltus.trust.verdict import TRUSTED, UNTRUSTED


class Steps(Unconstrained):
    """(u - 3)^2 with a sequence of events that changes at every whole number."""

    low, high = np.array([-np.inf]), np.array([np.inf])

    def __init__(self, forbidden=(np.inf, np.inf)):
        self.forbidden = forbidden
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
        return self.value(u), np.array([1e3]) if wrong else u - 3.0

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
    assert target.share(np.array([2.25])) == pytest.approx(BEYOND * 0.75 / 2.0)
    target.settle(np.array([1.0 - 1e-9]))
    assert target.share(np.array([2.0])) == pytest.approx(SMALL, rel=1e-6)


def test_accepted_steps_of_least_squares_are_no_longer_than_the_trust_radius_allows():
    monitor = Monitor(["u"], progress=False)
    target = Steps()
    ending = least_squares(Cautious(target, np.array([0.25])), np.array([0.25]), monitor, Limits())
    assert ending.u[0] == pytest.approx(3.0, abs=1e-6)
    path = np.ravel(monitor.path)
    for here, there in itertools.pairwise(path):
        step = np.array([there - here])
        if step[0] and target.signature(np.array([here])) != target.signature(np.array([there])):
            allowed = max(BEYOND * target.reach(np.array([here]), step), SMALL / abs(step[0]))
            assert allowed * (1 + 1e-9) >= 1.0


def test_a_quasi_newton_method_never_starts_from_a_gradient_that_does_not_exist():
    """Between 0.2 and 0.4 the gradient is nonsense; the search starts there, and leaves by hand."""
    target = Steps(forbidden=(0.2, 0.4))
    first = np.array([0.3])
    there = leave(target, first)
    assert there is None or target.level(there) == TRUSTED
    ending = l_bfgs_b(
        Cautious(Steps(forbidden=(0.2, 0.25)), np.array([0.5])), np.array([0.5]),
        Monitor(["u"], progress=False), Limits(),
    )  # fmt: skip
    assert ending.u[0] == pytest.approx(3.0, abs=1e-5)


def test_where_no_way_out_is_found_the_search_says_that_no_gradient_exists():
    target = Steps(forbidden=(-np.inf, np.inf))
    ending = l_bfgs_b(
        Cautious(target, np.array([0.3])), np.array([0.3]), Monitor(["u"], progress=False), Limits()
    )
    assert not ending.satisfied and "No gradient exists" in ending.message
