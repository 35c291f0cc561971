"""Sweeps with respect to everything a solve is given, in leaves of every kind."""

import jax
import jax.numpy as jnp
import numpy as np

import saltus
from problems import problem
from saltus import Event, HybridSystem, Instant, solve
from swept_ball import END, METHOD, START, SYSTEM, P, same

# -- with respect to everything -----------------------------------------------------------------


def parabola_with_bounces(h0, v0, g, e, span, n):
    """Height and speed after `n` bounces, a time `span` after the start."""
    impact = jnp.sqrt(v0**2 + 2 * g * h0)
    t = (v0 + impact) / g
    for _ in range(n - 1):
        impact = e * impact
        t = t + 2 * impact / g
    v, s = e * impact, span - t
    return v * s - g * s**2 / 2, v - g * s


NO_DRAG = {**P, "k": 0.0}


def test_derivatives_with_respect_to_start_state_start_time_and_end_time():
    def f(h0, v0, t0, t1):
        end = solve(SYSTEM, Instant(t=t0, x={"h": h0, "v": v0}), NO_DRAG, t1, method=METHOD).final
        return end.x["h"] + 2.0 * end.x["v"]

    def formula(h0, v0, t0, t1):
        h, v = parabola_with_bounces(h0, v0, P["g"], P["e"], t1 - t0, 2)
        return h + 2.0 * v

    at, every = (1.0, 0.2, 0.5, 1.9), (0, 1, 2, 3)
    same(f(*at), formula(*at), 1e-11)
    same(jax.grad(f, every)(*at), jax.grad(formula, every)(*at), 1e-11)
    same(jax.jacfwd(f, every)(*at), jax.grad(formula, every)(*at), 1e-11)
    same(jax.hessian(f, every)(*at), jax.hessian(formula, every)(*at), 1e-10)


def test_derivatives_with_respect_to_save_times_are_the_flow():
    def f(ts, t0):
        start = Instant(t=t0, x={"h": 1.0, "v": 0.2})
        return solve(SYSTEM, start, NO_DRAG, 1.4, ts=ts, method=METHOD).y["h"]

    def formula(ts, t0):
        span = ts - t0
        once = parabola_with_bounces(1.0, 0.2, P["g"], P["e"], span[1], 1)[0]
        twice = parabola_with_bounces(1.0, 0.2, P["g"], P["e"], span[2], 2)[0]
        return jnp.stack([1.0 + 0.2 * span[0] - P["g"] * span[0] ** 2 / 2, once, twice])

    at = (jnp.array([0.3, 0.7, 1.39]), 0.0)
    same(f(*at), formula(*at), 1e-11)
    same(jax.jacrev(f, (0, 1))(*at), jax.jacrev(formula, (0, 1))(*at), 1e-11)
    same(jax.jacfwd(f, (0, 1))(*at), jax.jacrev(formula, (0, 1))(*at), 1e-11)
    same(jax.hessian(f)(*at), jax.hessian(formula)(*at), 1e-10)


def test_derivatives_with_respect_to_an_array_of_input_values():
    times = jnp.arange(5.0)
    system = HybridSystem(
        flow=lambda now, u: -now.x + now.u, inputs=lambda u: saltus.Steps(times, u)
    )
    f = lambda u: solve(system, Instant(t=0.0, x=0.3), u, 4.5, method=METHOD).final.x

    def formula(u):
        x = 0.3
        for value, span in zip(u, [1.0, 1.0, 1.0, 1.0, 0.5], strict=True):
            x = value + (x - value) * jnp.exp(-span)
        return x

    u = jnp.array([0.5, -1.0, 2.0, 0.0, 1.0])
    same(f(u), formula(u), 1e-8)
    same(jax.grad(f)(u), jax.grad(formula)(u), 1e-8)


def test_event_logs_are_differentiable_like_any_output():
    """Sum of kinetic energies before the bounces: a loss at event times."""
    f = lambda p: jnp.sum(solve(SYSTEM, START, p, END, method=METHOD).events.before.x["v"][:2] ** 2)

    def formula(p):
        first = 0.2**2 + 2 * p["g"] * 1.0
        return first * (1 + p["e"] ** 2)

    got, exact = jax.grad(f)(NO_DRAG), jax.grad(formula)(NO_DRAG)
    same([got["g"], got["e"]], [exact["g"], exact["e"]], 1e-11)


def test_the_dense_solution_is_differentiable_in_time_and_parameters():
    def f(t, p):
        return solve(SYSTEM, START, p, END, method=METHOD)(t)["h"]

    def formula(t, p):
        return parabola_with_bounces(1.0, 0.2, p["g"], p["e"], t, 1)[0]

    slope, by_p = jax.grad(f, (0, 1))(0.7, NO_DRAG)
    exact_slope, exact_by_p = jax.grad(formula, (0, 1))(0.7, NO_DRAG)
    same([slope, by_p["g"], by_p["e"]], [exact_slope, exact_by_p["g"], exact_by_p["e"]], 1e-10)


# -- leaves of every kind -----------------------------------------------------------------------


def test_states_may_be_arrays_and_nested_trees():
    matrix = jnp.array([[0.0, 1.0], [-4.0, -0.1]])

    def f(a, x0):
        system = HybridSystem(
            flow=lambda now, p: {"pair": p @ now.x["pair"], "other": (-now.x["other"][0],)}
        )
        start = Instant(t=0.0, x={"pair": x0, "other": (jnp.float64(1.0),)})
        end = solve(system, start, a, 1.0, method=METHOD).final.x
        return jnp.sum(end["pair"]) + end["other"][0]

    x0 = jnp.array([1.0, 0.5])
    exact = lambda a, x0: jnp.sum(jax.scipy.linalg.expm(a) @ x0) + jnp.exp(-1.0)
    same(f(matrix, x0), exact(matrix, x0), 1e-7)
    got, truth = jax.grad(f, (0, 1))(matrix, x0), jax.grad(exact, (0, 1))(matrix, x0)
    for a, b in zip(got, truth, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)


def test_integer_parameters_pass_through_without_a_derivative():
    system = HybridSystem(flow=lambda now, p: {"x": -p["rate"] * now.x["x"] * p["copies"]})
    f = lambda rate: solve(
        system, Instant(t=0.0, x={"x": 1.0}), {"rate": rate, "copies": 3}, 1.0
    ).final.x["x"]
    assert abs(jax.grad(f)(0.5) + 3 * np.exp(-1.5)) < 1e-6


def test_functions_among_the_parameters_are_static():
    system = HybridSystem(flow=lambda now, p: {"x": p["f"](p["a"] * now.x["x"])})
    f = lambda a: solve(
        system, Instant(t=0.0, x={"x": 1.0}), {"a": a, "f": jnp.negative}, 1.0
    ).final.x["x"]
    assert abs(jax.grad(f)(0.5) + np.exp(-0.5)) < 1e-6


def test_derivatives_of_what_was_reached_stay_finite_after_a_failure():
    """Save times after a terminal event are NaN; a loss over the others has its gradient."""
    system = HybridSystem(
        flow=lambda now, p: {"u": p["rate"]},
        events=[Event("stop", lambda now, p: now.x["u"] - 1.0, direction="rising", terminal=True)],
    )

    def f(p):
        sol = solve(system, Instant(t=0.0, x={"u": 0.0}), p, 2.0, ts=jnp.array([0.5, 0.9, 1.5]))
        return jnp.sum(jnp.where(sol.reached, sol.y["u"], 0.0)), sol

    (value, sol), gradient = jax.value_and_grad(f, has_aux=True)({"rate": 1.0})
    np.testing.assert_array_equal(sol.reached, [True, True, False])
    assert np.isnan(sol.y["u"][2])
    assert abs(value - 1.4) < 1e-12
    assert abs(gradient["rate"] - 1.4) < 1e-12


def test_a_problem_without_events_is_an_ordinary_ode():
    case = problem("driven_tank")
    system = HybridSystem(flow=lambda now, p: {"x": -p["a"] * now.x["x"]})
    f = lambda p: solve(system, case.start(p), p, 1.0, method=METHOD).final.x["x"]
    hessian = jax.hessian(f)(case.p)
    assert abs(hessian["a"]["x0"] + np.exp(-0.7)) < 1e-8
