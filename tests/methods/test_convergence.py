"""Measured orders of convergence with fixed steps, across events (M35).

The order is the slope of log(error) over log(h), fitted over several step sizes because the steps
that end at an event or at the end time are shorter than h and make single ratios noisy. The step
size is data, so each method compiles once per problem.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from problem import Problem
from problems import problem
from problems_balls import drag_ball

METHODS = {"tsit5": (saltus.Tsit5, 5), "dopri5": (saltus.Dopri5, 5), "dopri8": (saltus.Dopri8, 8)}

# Step sizes 2^-a..2^-b for which errors lie between 1e-5 and rounding: small enough that no event
# is stepped over and the leading term dominates, large enough that rounding does not.
STEPS = {
    ("drag_ball_short", 5): 2.0 ** -np.arange(3.0, 7.1, 0.5),
    ("drag_ball_short", 8): 2.0 ** -np.arange(3.5, 4.8, 0.25),
    ("simple_hybrid_ode", 5): 2.0 ** -np.arange(2.0, 5.6, 0.5),
    ("simple_hybrid_ode", 8): 2.0 ** -np.arange(0.25, 2.1, 0.25),
}
ROUNDING = 1e-14

# A fitted slope may fall short of the order by half of what separates it from the next lower one.
SLACK = 0.5


@cache
def case_named(name: str) -> Problem:
    return drag_ball("drag_ball_short", "short") if name == "drag_ball_short" else problem(name)


@cache
def measured(name: str, method: str) -> dict[str, list[np.ndarray]]:
    """Errors of value, gradient and Hessian for each step size, over all outputs."""
    case = case_named(name)
    make, order_of_method = METHODS[method]
    names = [y for y in case.exact.values if y in case.exact.hessians]
    order = list(case.p)

    def outputs(p, h):
        found = case.evaluate(p, method=make(control=saltus.Fixed(h)), max_steps=512, max_events=16)
        return jnp.stack([found[y] for y in names])

    @jax.jit
    def everything(p, h):
        first, second = jax.jacrev(outputs)(p, h), jax.hessian(outputs)(p, h)
        gradient = jnp.stack([first[a] for a in order], axis=-1)
        hessian = jnp.stack([jnp.stack([second[a][b] for b in order], -1) for a in order], -2)
        return outputs(p, h), gradient, hessian

    exact = case.exact
    truth = (
        np.array([exact.values[y] for y in names]),
        np.array([[exact.gradients[y].get(a, 0.0) for a in order] for y in names]),
        np.array([exact.hessians[y][1] for y in names]),
    )
    errors = [[], [], []]
    for h in STEPS[name, order_of_method]:
        for kind, got, want in zip(errors, everything(case.p, h), truth, strict=True):
            kind.append(np.max(np.abs(np.asarray(got) - want)) / np.max(np.abs(want)))
    return dict(zip(("value", "gradient", "hessian"), errors, strict=True))


def slope(steps, errors) -> float:
    """The fitted order, over the step sizes at which the error is above rounding."""
    steps, errors = np.asarray(steps), np.asarray(errors)
    used = errors > ROUNDING
    assert used.sum() >= 4, errors
    return float(np.polyfit(np.log(steps[used]), np.log(errors[used]), 1)[0])


@pytest.mark.parametrize("quantity", ["value", "gradient", "hessian"])
@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("name", ["drag_ball_short", "simple_hybrid_ode"])
def test_value_gradient_and_hessian_converge_with_the_order_of_the_method(name, method, quantity):
    """At the end and in the event log; the Hessian too, since jump rows use the true flow (M8)."""
    order = METHODS[method][1]
    assert slope(STEPS[name, order], measured(name, method)[quantity]) > order - SLACK


@pytest.mark.parametrize("quantity, lost", [("value", 0), ("gradient", 0), ("hessian", 1)])
def test_saved_values_after_an_event_lose_at_most_one_order_and_in_the_hessian_only(quantity, lost):
    """Between rows the length of the step map depends on the parameters, (M15) and (M35)."""
    case = case_named("drag_ball_short")
    derivative = {"value": lambda f: f, "gradient": jax.grad, "hessian": jax.hessian}[quantity]
    steps = STEPS["drag_ball_short", 5]

    def saved(p, h):
        method = saltus.Dopri5(control=saltus.Fixed(h))
        sol = case.solve(p, method=method, ts=jnp.array([0.78]), max_steps=512, max_events=16)
        return sol.y["h"][0]

    compiled = jax.jit(derivative(saved))
    tight = saltus.Dopri8(rtol=1e-13, atol=1e-13)
    exact_solve = lambda p: saltus.solve(case.system, case.start(p), p, 0.78, method=tight).final.x[
        "h"
    ]
    exact = jnp.array(jax.tree.leaves(derivative(exact_solve)(case.p)))
    errors = [
        float(
            jnp.max(jnp.abs(jnp.array(jax.tree.leaves(compiled(case.p, h))) - exact))
            / jnp.max(jnp.abs(exact))
        )
        for h in steps
    ]
    assert slope(steps, errors) > 5 - lost - SLACK


@pytest.mark.slow
def test_a_kink_inside_the_flow_spoils_the_hessian_and_a_declared_one_does_not():
    """v|v| at the apex: the value does not show it, the Hessian does."""
    case = problem("drag_ball")
    kinked = saltus.HybridSystem(
        flow=lambda now, p: {
            "h": now.x["v"],
            "v": -p["g"] - p["k"] * now.x["v"] * jnp.abs(now.x["v"]),
        },
        events=case.system.events[:1],
    )
    method = saltus.Tsit5(rtol=1e-8, atol=1e-8)
    height = lambda system: (
        lambda p: saltus.solve(system, case.start(p), p, case.t1, method=method).final.x["h"]
    )
    exact = case.exact.hessians["h(T)"][1]

    def error(system):
        got = jax.hessian(height(system))(case.p)
        matrix = np.array([[got[a][b] for b in case.p] for a in case.p])
        return np.max(np.abs(matrix - exact)) / np.max(np.abs(exact))

    assert abs(height(kinked)(case.p) - case.exact.values["h(T)"]) < 1e-6
    assert error(case.system) < 1e-6
    assert error(kinked) > 1e-5


def test_tighter_tolerances_give_smaller_errors():
    """Adaptive steps: two digits more asked, at least one and a half more given, on average."""
    case = problem("simple_hybrid_ode")
    exact = case.exact.values["G"]

    @jax.jit
    def cost(tolerance):
        method = saltus.Tsit5(rtol=tolerance, atol=tolerance)
        return case.evaluate(method=method, max_steps=1024, max_events=8)["G"]

    errors = [abs(float(cost(tolerance)) - exact) for tolerance in (1e-4, 1e-6, 1e-8, 1e-10)]
    assert errors[0] < 1e-3
    assert errors[0] / errors[3] > 10**4.5
