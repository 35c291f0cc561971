"""Tangent and adjoint sweeps: equal, symmetric, and the same under every transformation of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from problems import PROBLEMS, problem
from saltus import Event, HybridSystem, Instant, solve

METHOD = saltus.Tsit5(rtol=1e-9, atol=1e-9)

# Two sweeps over the same rows differ by the order of additions only; 1e-12 leaves room for a few
# hundred rows and for sensitivities of several hundred.
ROUNDING = 1e-12


def drag_ball(k):
    """A ball with drag; `k` is closed over, possibly traced."""
    return HybridSystem(
        flow=lambda now, p: {"h": now.x["v"], "v": -p["g"] - k * now.x["v"]},
        rate=lambda now, p: now.x["h"] ** 2,
        events=[
            Event(
                "bounce",
                guard=lambda now, p: now.x["h"],
                reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]}),
            )
        ],
    )


SYSTEM = HybridSystem(
    flow=lambda now, p: {"h": now.x["v"], "v": -p["g"] - p["k"] * now.x["v"]},
    rate=lambda now, p: now.x["h"] ** 2,
    events=drag_ball(0.0).events,
)
P = {"g": 9.81, "e": 0.8, "k": 0.3}
START = Instant(t=0.0, x={"h": 1.0, "v": 0.2})
END = 1.4  # after two bounces


def loss(p):
    sol = solve(SYSTEM, START, p, END, method=METHOD)
    return sol.final.x["h"] * sol.final.x["v"] + sol.integral + sol.events.t[1] ** 2


@pytest.fixture(scope="module")
def truth():
    """The plain eager answers that every transformation has to reproduce."""
    return {"value": loss(P), "gradient": jax.grad(loss)(P), "hessian": jax.hessian(loss)(P)}


def flat(tree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def same(got, expected, tolerance=ROUNDING):
    got, expected = flat(got), flat(expected)
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * np.max(np.abs(expected)))


# -- tangent = adjoint, symmetry ----------------------------------------------------------------


TWINS = {"drag_ball_modes", "thermostat_thresholds", "breaking_spring_discrete"}  # of others
EVERY = [pytest.param(n, marks=[pytest.mark.slow] if n in TWINS else []) for n in PROBLEMS]


@pytest.mark.parametrize("name", EVERY)
def test_the_tangent_and_the_adjoint_sweep_are_transposes(answers, name):
    got = answers(name)
    for y in got.value:
        scale = max(np.max(np.abs(got.forward[y])), 1.0)
        np.testing.assert_allclose(got.reverse[y], got.forward[y], rtol=0, atol=ROUNDING * scale)


@pytest.mark.parametrize("name", EVERY)
def test_hessians_are_symmetric(answers, name):
    for matrix in answers(name).hessian.values():
        scale = max(np.max(np.abs(matrix)), 1.0)
        np.testing.assert_allclose(matrix, matrix.T, rtol=0, atol=ROUNDING * scale)


def test_dot_test_with_random_directions():
    rng = np.random.default_rng(0)
    v = {a: rng.normal() for a in P}
    f = lambda p: solve(SYSTEM, START, p, END, ts=jnp.linspace(0.1, 1.4, 9), method=METHOD).y
    y, tangent = jax.jvp(f, (P,), (v,))
    u = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), y)
    (cotangent,) = jax.vjp(f, P)[1](u)
    left, right = flat(u) @ flat(tangent), flat(cotangent) @ flat(v)
    assert abs(left - right) < ROUNDING * np.linalg.norm(flat(u)) * np.linalg.norm(flat(tangent))


# -- transformations ----------------------------------------------------------------------------


def test_jvp_and_linearize_give_the_directional_derivative(truth):
    v = {"g": 0.3, "e": -1.0, "k": 0.5}
    exact = sum(truth["gradient"][a] * v[a] for a in P)
    value, tangent = jax.jvp(loss, (P,), (v,))
    same(value, truth["value"])
    same(tangent, exact)
    value, linear = jax.linearize(loss, P)
    same(value, truth["value"])
    same(linear(v), exact)


@pytest.mark.parametrize("derivative", [jax.jacfwd, jax.jacrev, jax.grad])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_every_first_derivative_is_the_same_eager_and_compiled(truth, derivative, wrap):
    same(wrap(derivative(loss))(P), truth["gradient"])


@pytest.mark.parametrize(
    "second",
    [
        lambda f: jax.jacfwd(jax.jacrev(f)),
        lambda f: jax.jacfwd(jax.jacfwd(f)),
        lambda f: jax.jacrev(jax.jacfwd(f)),
        lambda f: jax.jit(jax.hessian(f)),
        lambda f: jax.jacfwd(jax.jit(jax.grad(f))),
    ],
    ids=["forward-reverse", "forward-forward", "reverse-forward", "jit", "inner-jit"],
)
def test_every_second_derivative_is_the_same(truth, second):
    same(second(loss)(P), truth["hessian"])


def test_a_hessian_vector_product_is_the_hessian_times_the_vector(truth):
    v = {"g": 0.3, "e": -1.0, "k": 0.5}
    product = jax.jvp(jax.grad(loss), (P,), (v,))[1]
    matrix = np.array([[truth["hessian"][a][b] for b in P] for a in P])
    same([product[a] for a in P], matrix @ np.array([v[a] for a in P]))


def test_reverse_over_reverse_is_refused_with_the_line_to_write_instead():
    with pytest.raises(NotImplementedError, match=r"jax\.hessian\(loss\)"):
        jax.jacrev(jax.jacrev(loss))(P)


def test_compiled_code_that_takes_derivatives_inside_gives_the_same(truth):
    @jax.jit
    def both(p):
        value, gradient = jax.value_and_grad(loss)(p)
        return value, gradient, jax.jacfwd(jax.grad(loss))(p)

    value, gradient, hessian = both(P)
    same(value, truth["value"])
    same(gradient, truth["gradient"])
    same(hessian, truth["hessian"])


# -- vmap ---------------------------------------------------------------------------------------

LANES = {
    "g": jnp.array([9.81, 9.0, 1.62]),
    "e": jnp.array([0.8, 0.7, 0.9]),
    "k": jnp.array([0.3, 0.1, 0.2]),
}


def lane(i):
    return {a: float(LANES[a][i]) for a in LANES}


def end_state(p):
    """Lanes have 2, 2 and 1 bounces, so their rows differ."""
    sol = solve(SYSTEM, START, p, END, method=METHOD)
    return sol.final.x["h"] + sol.integral


@pytest.mark.parametrize(
    "f",
    [end_state, jax.grad(end_state), jax.hessian(end_state)],
    ids=["value", "gradient", "hessian"],
)
@pytest.mark.parametrize(
    "wrap", [lambda f: f, pytest.param(jax.jit, marks=pytest.mark.slow)], ids=["eager", "jit"]
)
def test_vmap_is_a_loop(f, wrap):
    batched = wrap(jax.vmap(f))(LANES)
    for i in range(3):
        same(jax.tree.map(lambda leaf, i=i: leaf[i], batched), f(lane(i)))


def test_the_gradient_of_a_sum_over_lanes_is_the_lanes_gradient():
    total = lambda lanes: jnp.sum(jax.vmap(end_state)(lanes))
    same(jax.grad(total)(LANES), jax.vmap(jax.grad(end_state))(LANES))


def test_vmap_over_starts_only_leaves_the_parameters_unbatched():
    def f(h, p):
        return solve(SYSTEM, Instant(t=0.0, x={"h": h, "v": 0.0}), p, END, method=METHOD).final.x[
            "h"
        ]

    heights = jnp.array([0.5, 1.0, 1.5])
    batched = jax.vmap(jax.grad(f, argnums=1), in_axes=(0, None))(heights, P)
    for i in range(3):
        same(
            jax.tree.map(lambda leaf, i=i: leaf[i], batched),
            jax.grad(f, argnums=1)(float(heights[i]), P),
        )


def test_two_nested_vmaps_are_two_loops():
    f = lambda g, e: end_state({"g": g, "e": e, "k": 0.1})
    gs, es = jnp.array([9.81, 5.0]), jnp.array([0.6, 0.9])
    grid = jax.vmap(lambda g: jax.vmap(lambda e: jax.grad(f)(g, e))(es))(gs)
    expected = [[jax.grad(f)(float(g), float(e)) for e in es] for g in gs]
    np.testing.assert_allclose(grid, expected, rtol=1e-11)


# -- closures -----------------------------------------------------------------------------------


def test_a_system_that_closes_over_a_traced_value_has_its_derivative(truth):
    def closed(k):
        sol = solve(drag_ball(k), START, P, END, method=METHOD)
        return sol.final.x["h"] * sol.final.x["v"] + sol.integral + sol.events.t[1] ** 2

    same(closed(P["k"]), truth["value"])
    same(jax.grad(closed)(P["k"]), truth["gradient"]["k"])
    same(jax.jacfwd(closed)(P["k"]), truth["gradient"]["k"])
    same(jax.hessian(closed)(P["k"]), truth["hessian"]["k"]["k"])
    same(jax.jit(jax.grad(closed))(P["k"]), truth["gradient"]["k"])


def test_a_system_that_closes_over_a_batched_value_is_a_loop_too():
    closed = lambda k: solve(drag_ball(k), START, P, END, method=METHOD).final.x["h"]
    ks = jnp.array([0.1, 0.3, 0.6])
    np.testing.assert_allclose(
        jax.vmap(jax.grad(closed))(ks), [jax.grad(closed)(float(k)) for k in ks], rtol=1e-11
    )


def test_guards_and_resets_may_close_over_traced_values():
    def f(floor, e):
        system = HybridSystem(
            flow=lambda now, p: {"h": now.x["v"], "v": -10.0},
            events=[
                Event(
                    "bounce",
                    guard=lambda now, p: now.x["h"] - floor,
                    reset=lambda now, p: now.replace(x={**now.x, "v": -e * now.x["v"]}),
                )
            ],
        )
        start = Instant(t=0.0, x={"h": 1.0, "v": 0.0})
        return solve(system, start, None, 0.6, method=METHOD).final.x["h"]

    def formula(floor, e):
        fall = jnp.sqrt(2 * (1.0 - floor) / 10.0)
        s = 0.6 - fall
        return floor + e * 10.0 * fall * s - 5.0 * s**2

    at = (0.1, 0.8)
    same(jax.grad(f, (0, 1))(*at), jax.grad(formula, (0, 1))(*at), 1e-11)
    same(jax.hessian(f, (0, 1))(*at), jax.hessian(formula, (0, 1))(*at), 1e-10)


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


# -- inside other transformations ---------------------------------------------------------------


def in_scan(f):
    def wrapped(p):
        total, _ = jax.lax.scan(
            lambda carry, w: (carry + w * f(p), None), 0.0, jnp.array([0.25, 0.75])
        )
        return total

    return wrapped


def in_map(f):
    return lambda p: jnp.sum(jax.lax.map(lambda w: w * f(p), jnp.array([0.25, 0.75])))


def in_cond(f):
    return lambda p: jax.lax.cond(p["g"] > 0, f, lambda p: 0.0 * p["g"], p)


def in_checkpoint(f):
    return jax.checkpoint(f)


def in_inner_jit(f):
    return jax.jit(f)


OTHERS = [pytest.param(f, marks=pytest.mark.slow) for f in (in_map, in_checkpoint, in_inner_jit)]


@pytest.mark.parametrize("inside", [in_scan, in_cond, *OTHERS])
def test_value_gradient_and_hessian_are_the_same_inside(truth, inside):
    wrapped = inside(loss)
    same(wrapped(P), truth["value"])
    same(jax.grad(wrapped)(P), truth["gradient"])
    same(jax.jacfwd(wrapped)(P), truth["gradient"])
    same(jax.hessian(wrapped)(P), truth["hessian"])


def test_a_chain_of_solves_in_a_scan_is_differentiable():
    """Receding horizon: each solve starts from the state at the end of the one before."""

    def chained(p):
        def piece(state, t0):
            start = Instant(t=t0, x=state)
            return solve(SYSTEM, start, p, t0 + 0.35, method=METHOD).final.x, None

        end, _ = jax.lax.scan(
            piece, {"h": jnp.float64(1.0), "v": jnp.float64(0.2)}, 0.35 * jnp.arange(4)
        )
        return end["h"]

    whole = lambda p: solve(SYSTEM, START, p, END, method=METHOD).final.x["h"]
    same(chained(P), whole(P), 1e-7)  # other steps, so equal to the tolerance only
    same(jax.grad(chained)(P), jax.grad(whole)(P), 1e-6)


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
