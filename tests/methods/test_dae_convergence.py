"""Measured orders of the methods for DAEs, with fixed steps, across events (M35).

Index 1: order 5 for Radau IIA with three stages and for Rodas5P, values and gradients alike.
Index 2: order 5 for the differential states of Radau IIA. The algebraic values of its stages have
order 3 only; what a solution reports is solved from the hidden constraint at the end of the step,
and so inherits the order of the differential states.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from dae_problems import dae_problem

STEPS = {
    "drag_ball_dae_short": 2.0 ** -np.arange(4.0, 7.6, 0.5),
    "pendulum_wall": 2.0 ** -np.arange(3.5, 6.6, 0.5),
}
ROUNDING, SLACK = 1e-13, 0.5
DIFFERENTIAL = ("x(T)", "y(T)", "u(T)", "w(T)", "t1", "t2", "t3")
INTEGRALS = ("G1=int lambda", "G2=int x^2+0.05 lambda^2")


@cache
def errors(name: str, method: str) -> dict[str, dict[str, np.ndarray]]:
    """For every output the errors of its value and of its gradient, one for each step size."""
    case = dae_problem(name)
    order = list(case.p)

    def outputs(p, h):
        stepper = getattr(saltus, method)(control=saltus.Fixed(h))
        return case.evaluate(p, method=stepper, max_steps=1024, max_events=16)

    @jax.jit
    def everything(p, h):
        first = jax.jacrev(outputs)(p, h)
        return outputs(p, h), {y: jnp.stack([row[a] for a in order]) for y, row in first.items()}

    truth = {
        y: (v, np.array([case.exact.gradients[y].get(a, 0.0) for a in order]))
        for y, v in case.exact.values.items()
        if y in case.exact.gradients
    }
    found = [everything(case.p, h) for h in STEPS[name]]
    relative = lambda got, exact: np.max(np.abs(got - exact)) / np.max(np.abs(exact))
    return {
        y: {
            "value": np.array([relative(v[y], value) for v, _ in found]),
            "gradient": np.array([relative(g[y], gradient) for _, g in found]),
        }
        for y, (value, gradient) in truth.items()
    }


def order(name: str, method: str, outputs, quantity: str) -> float:
    """The fitted slope of the largest error, over the four finest steps above rounding.

    At coarser steps errors of different sign cancel here and there."""
    table = errors(name, method)
    worst = np.max([table[y][quantity] for y in outputs], axis=0)
    used = worst > ROUNDING
    assert used.sum() >= 4, worst
    steps, worst = STEPS[name][used][-4:], worst[used][-4:]
    return float(np.polyfit(np.log(steps), np.log(worst), 1)[0])


@pytest.mark.parametrize("quantity", ["value", "gradient"])
@pytest.mark.parametrize("method", ["Radau5", "Rodas5P"])
def test_order_five_on_an_index_1_problem_across_a_bounce(method, quantity):
    name = "drag_ball_dae_short"
    outputs = dae_problem(name).exact.values
    assert order(name, method, outputs, quantity) > 5 - SLACK


@pytest.mark.parametrize("quantity", ["value", "gradient"])
def test_order_five_for_differential_states_and_event_times_of_index_2(quantity):
    assert order("pendulum_wall", "Radau5", DIFFERENTIAL, quantity) > 5 - SLACK


@pytest.mark.parametrize("quantity", ["value", "gradient"])
def test_reported_multipliers_have_the_order_of_the_differential_states(quantity):
    """Order 5 from the hidden constraint; those of the stages would have order 3."""
    assert order("pendulum_wall", "Radau5", ["lambda(T)"], quantity) > 5 - SLACK


@pytest.mark.parametrize("quantity", ["value", "gradient"])
def test_integrals_of_multipliers_have_it_too(quantity):
    """An integral is one more differential state, whatever its rate reads."""
    assert order("pendulum_wall", "Radau5", INTEGRALS, quantity) > 5 - SLACK
