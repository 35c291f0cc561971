"""Tangent and adjoint sweeps: equal, symmetric, and the same under every transformation of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from problems import PROBLEMS
from saltus import Event, HybridSystem, Instant, solve
from swept_ball import END, METHOD, ROUNDING, START, SYSTEM, P, drag_ball, flat, loss, same


@pytest.fixture(scope="module")
def truth():
    """The plain eager answers that every transformation has to reproduce."""
    return {"value": loss(P), "gradient": jax.grad(loss)(P), "hessian": jax.hessian(loss)(P)}


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
