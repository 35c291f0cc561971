"""Tighter tolerances give smaller errors, at the rate of each method, across events.

The error control holds the estimate of a step's error, which goes with h^k, at the tolerance, and
the error of the solution goes with h^p. So it goes with tol^(p/k), where Radau5 holds its estimate
at 0.01 tol^(2/3). The slope of log(error) over log(tol) is fitted; errors are the worst over all
outputs of a kind, relative to the truth.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from dae_problems import DAE_PROBLEMS, dae_problem
from problem import Problem
from problems import problem

TOLERANCES = 10.0 ** -np.arange(4.0, 10.6, 0.25)
ROUNDING = 2e-13
# What a slope may be, in units of the expected one: errors of either sign add up from steps whose
# number changes with the tolerance, so that single errors are half or twice what is usual.
LOW, HIGH = 0.75, 1.5

# At loose tolerances the first steps after a jump, which grow by limited factors, and the next
# event determine the steps, not the error estimate. A ladder is fitted from where there are a
# quarter more steps than on its first rung.
GROWN = 1.25

ALL = ("Tsit5", "Dopri5", "Dopri8", "Radau5", "Rodas5P")
LADDERS = {
    "drag_ball": ALL,
    "breaking_spring": ALL,
    # Without Dopri8: its steps are as long as the time between events down to 1e-10, where errors
    # are 1e-13.
    "simple_hybrid_ode": ("Tsit5", "Dopri5", "Radau5", "Rodas5P"),
    # Without Rodas5P: its errors are 1e-12 before it takes a quarter more steps.
    "memory_of_z": ("Tsit5", "Radau5"),
    "hysteresis": ("Tsit5", "Radau5", "Rodas5P"),
    "pendulum_wall": ("Radau5",),
}
QUICK = [("simple_hybrid_ode", "Tsit5")]
PAIRS = [
    pytest.param(name, method, marks=[] if (name, method) in QUICK else pytest.mark.slow)
    for name, methods in LADDERS.items()
    for method in methods
]
# dt/dp is a function of the thresholds alone: right to rounding at any tolerance.
EXACT = {("simple_hybrid_ode", "gradients of times")}


class Ladder(NamedTuple):
    """The errors of each kind at every tolerance."""

    rows: np.ndarray
    errors: dict[str, np.ndarray]
    expected: float

    def slope(self, kind: str) -> float:
        """The fitted slope, in units of the expected one."""
        error = self.errors[kind]
        used = (error > ROUNDING) & (self.rows >= GROWN * self.rows[0])
        assert np.sum(used) >= 8, f"too few rungs to fit: {self}"
        fit = np.polyfit(np.log(TOLERANCES[used]), np.log(error[used]), 1)
        return float(fit[0]) / self.expected

    def __str__(self) -> str:
        every = slice(None, None, 2)
        lines = [f"{'tolerance':20}" + "".join(f"{t:9.1e}" for t in TOLERANCES[every])]
        lines.append(f"{'rows':20}" + "".join(f"{n:9d}" for n in self.rows[every]))
        for kind, errors in self.errors.items():
            lines.append(f"{kind:20}" + "".join(f"{e:9.1e}" for e in errors[every]))
        return "\n" + "\n".join(lines)


def _case(name: str) -> Problem:
    return dae_problem(name) if name in DAE_PROBLEMS else problem(name)


def _is_time(output: str) -> bool:
    return re.fullmatch(r"t\d+|t_break|apex\d", output) is not None


def _program(case: Problem, method: str, names: list[str]) -> Any:
    """Outputs, their Jacobian and the number of rows, at a list of tolerances."""

    def outputs(p: Any, tol: Any) -> tuple:
        stepper = getattr(saltus, method)(rtol=tol, atol=tol)
        sol = case.solve(p, method=stepper, max_steps=4096, max_events=32)
        return jnp.stack([case.outputs[y](sol, p) for y in names]), sol.tape.n

    def one(tol: Any) -> tuple:
        first = jax.jacfwd(lambda p: outputs(p, tol)[0])(case.p)
        return *outputs(case.p, tol), jnp.stack([first[a] for a in case.p], axis=-1)

    return jax.jit(lambda tolerances: jax.lax.map(one, tolerances))


@cache
def climbed(name: str, method: str) -> Ladder:
    case = _case(name)
    names = [y for y in case.exact.values if y in case.exact.gradients]
    found, rows, slopes = map(np.asarray, _program(case, method, names)(TOLERANCES))
    exact = np.array([case.exact.values[y] for y in names])
    gradient = np.array([[case.exact.gradients[y].get(a, 0.0) for a in case.p] for y in names])
    size = np.array([v if v else 1.0 for v in case.p.values()])
    value = np.abs(found - exact) / np.abs(exact)
    first = np.max(np.abs((slopes - gradient) * size), axis=2)
    first = first / np.max(np.abs(gradient * size), axis=1)
    times = np.array([_is_time(y) for y in names])
    errors = {
        "times": value[:, times].max(axis=1),
        "states": value[:, ~times].max(axis=1),
        "gradients of times": first[:, times].max(axis=1),
        "gradients of states": first[:, ~times].max(axis=1),
    }
    stepper = getattr(saltus, method)().stepper
    power = 2 / 3 if method == "Radau5" else 1.0
    return Ladder(rows, errors, power * stepper.order / stepper.error_order)


@pytest.mark.parametrize("name, method", PAIRS)
def test_errors_fall_with_the_tolerance_at_the_rate_of_the_method(name, method):
    ladder = climbed(name, method)
    kinds = [kind for kind in ladder.errors if (name, kind) not in EXACT]
    slopes = {kind: ladder.slope(kind) for kind in kinds}
    print(f"\n{name}, {method}: { ({k: round(v, 2) for k, v in slopes.items()}) }{ladder}")
    outside = {kind: v for kind, v in slopes.items() if not LOW <= v <= HIGH}
    assert not outside, f"{outside}{ladder}"


def test_gradients_of_times_that_thresholds_determine_are_exact_at_any_tolerance():
    for name, kind in EXACT:
        assert np.all(climbed(name, "Tsit5").errors[kind] < ROUNDING)
