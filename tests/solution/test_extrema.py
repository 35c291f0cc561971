"""The least and the largest value over a whole trajectory, against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus

G, E = 9.81, 0.8
ball = saltus.HybridSystem(
    lambda now, p: {"h": now.x["v"], "v": -p["g"]},
    events=[
        saltus.Event(
            "bounce", lambda now, p: now.x["h"],
            reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]}),
        )
    ],
)  # fmt: skip
P = {"g": G, "e": E, "h": 1.0, "v": 10.0}


def thrown_down(p, t1=3.0, **options):
    start = saltus.Instant(t=0.0, x={"h": p["h"], "v": -p["v"]})
    return saltus.solve(ball, start, p, t1, **options)


def apex(p):
    """The height after the first bounce, which is the largest: e² (v² / 2 g + h)."""
    return p["e"] ** 2 * (p["v"] ** 2 / (2 * p["g"]) + p["h"])


def close(got, wanted, **tolerance):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), **tolerance)


def test_the_highest_apex_of_a_bouncing_ball_and_its_gradient():
    highest = lambda p: thrown_down(p).max("h")
    assert thrown_down(P, ts=[0.1, 2.9]).max("h") == pytest.approx(apex(P), rel=1e-9)
    close(jax.grad(highest)(P), jax.grad(apex)(P), rel=1e-7)


@pytest.mark.slow
def test_jacobians_and_hessians_of_an_extremum_are_exact_too():
    highest = lambda p: thrown_down(p).max("h")
    close(jax.jacfwd(highest)(P), jax.grad(apex)(P), rel=1e-7)
    close(jax.jit(jax.hessian(highest))(P), jax.hessian(apex)(P), rel=1e-6, abs=1e-7)


@pytest.mark.slow
def test_the_time_of_an_extremum_is_differentiable():
    def when(p):
        down = jnp.sqrt(p["v"] ** 2 + 2 * p["g"] * p["h"])
        return (down - p["v"]) / p["g"] + p["e"] * down / p["g"]

    assert thrown_down(P).argmax("h") == pytest.approx(float(when(P)), rel=1e-9)
    close(jax.grad(lambda p: thrown_down(p).argmax("h"))(P), jax.grad(when)(P), rel=1e-7)


def test_both_sides_of_a_jump_count_and_carry_the_derivative_of_its_time():
    impact = lambda p: jnp.sqrt(p["v"] ** 2 + 2 * p["g"] * p["h"])
    down, up = (lambda p: thrown_down(p).min("v")), (lambda p: thrown_down(p).max("v"))
    assert down(P) == pytest.approx(-float(impact(P)), rel=1e-9)
    assert up(P) == pytest.approx(E * float(impact(P)), rel=1e-9)
    close(jax.grad(down)(P), jax.grad(lambda p: -impact(p))(P), rel=1e-7)
    close(jax.grad(up)(P), jax.grad(lambda p: p["e"] * impact(p))(P), rel=1e-7)
    assert thrown_down(P).min("h") == pytest.approx(0.0, abs=1e-12)


@pytest.mark.slow
def test_a_batch_has_one_extremum_each():
    es = jnp.array([0.6, 0.7, 0.8])
    wanted = jax.vmap(lambda e: apex({**P, "e": e}))(es)
    highest = lambda e: thrown_down({**P, "e": e}, 2.5).max("h")
    assert np.asarray(jax.vmap(highest)(es)) == pytest.approx(np.asarray(wanted), rel=1e-9)
    batch = jax.vmap(lambda e: thrown_down({**P, "e": e}, 2.5))(es)
    assert np.asarray(batch.max("h")) == pytest.approx(np.asarray(wanted), rel=1e-9)
    assert np.asarray(jax.vmap(jax.grad(highest))(es)) == pytest.approx(
        np.asarray(2 * wanted / es), rel=1e-7
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [saltus.Tsit5(), saltus.Rodas5P(), saltus.Radau5()],
)
def test_the_overshoot_of_a_damped_oscillator(method):
    system = saltus.HybridSystem(
        lambda now, p: {"x": now.x["v"], "v": -2 * p["z"] * now.x["v"] - (now.x["x"] - 1.0)}
    )

    def peak(p):
        start = saltus.Instant(t=0.0, x={"x": 0.0, "v": 0.0})
        return saltus.solve(system, start, p, 10.0, method=method, max_steps=256).max("x")

    exact = lambda p: 1.0 + jnp.exp(-jnp.pi * p["z"] / jnp.sqrt(1 - p["z"] ** 2))
    value, slope = jax.value_and_grad(peak)({"z": 0.3})
    assert value == pytest.approx(float(exact({"z": 0.3})), rel=1e-7)
    close(slope, jax.grad(exact)({"z": 0.3}), rel=1e-5)


# -- what counts ----------------------------------------------------------------------------------
def ramp(reset, t1=1.5, x=0.0, **more):
    system = saltus.HybridSystem(
        lambda now, p: {"x": p["a"]},
        events=[
            saltus.Event("top", lambda now, p: now.x["x"] - p["top"], direction="rising",
                         reset=reset, **more)
        ],
    )  # fmt: skip
    start = saltus.Instant(t=0.0, x={"x": x})
    return lambda p: saltus.solve(system, start, p, t1, max_steps=64, max_events=8)


def test_a_peak_just_before_a_jump_is_the_threshold():
    solved = ramp(lambda now, p: now.replace(x={"x": 0.0 * now.x["x"]}))
    p = {"a": 1.0, "top": 1.2}
    assert solved(p).max("x") == pytest.approx(1.2, rel=1e-12)
    close(jax.grad(lambda p: solved(p).max("x"))(p), {"a": 0.0, "top": 1.0}, abs=1e-9)
    close(jax.grad(lambda p: solved(p).argmax("x"))(p), {"a": -1.2, "top": 1.0}, abs=1e-9)


@pytest.mark.slow
def test_the_end_counts_with_the_derivative_of_the_end_time():
    solved = lambda t1, p: ramp(None, t1)(p).max("x")
    slopes = jax.grad(solved, argnums=(0, 1))(0.5, {"a": 1.0, "top": 1.2})
    close(slopes, (1.0, {"a": 0.5, "top": 0.0}), abs=1e-9)
    ended = lambda p: ramp(None, 5.0, terminal=True)(p).max("x")
    close(jax.grad(ended)({"a": 1.0, "top": 1.2}), {"a": 0.0, "top": 1.0}, abs=1e-9)


@pytest.mark.slow
def test_backward_in_time_it_is_the_same():
    solved = ramp(None, -2.0)
    assert solved({"a": 1.0, "top": 9.0}).min("x") == pytest.approx(-2.0)
    assert solved({"a": 1.0, "top": 9.0}).argmin("x") == pytest.approx(-2.0)
    assert jax.grad(lambda p: solved(p).min("x"))({"a": 1.0, "top": 9.0})["a"] == pytest.approx(-2)


@pytest.mark.slow
def test_states_within_a_chain_of_jumps_do_not_count():
    system = saltus.HybridSystem(
        lambda now, p: {"x": 1.0},
        events=[
            saltus.Event("up", lambda now, p: now.x["x"] - 1.0, direction="rising",
                         reset=lambda now, p: now.replace(x={"x": 50.0})),
            saltus.Event("down", lambda now, p: now.x["x"] - 40.0, direction="rising",
                         reset=lambda now, p: now.replace(x={"x": -3.0})),
        ],
    )  # fmt: skip
    sol = saltus.solve(system, saltus.Instant(t=0.0, x={"x": 0.0}), None, 2.0)
    assert sol.events.count == 2
    assert sol.max("x") == pytest.approx(1.0, abs=1e-9)
    assert sol.min("x") == pytest.approx(-3.0)


def test_functions_of_time_parameters_and_what_they_close_over_are_followed_too():
    still = saltus.HybridSystem(lambda now, p: {"x": 0.0 * now.x["x"]})
    start = saltus.Instant(t=0.0, x={"x": 1.0})

    def largest(p, c):
        sol = saltus.solve(still, start, p, 1.0, max_steps=16)  # one step, or a few
        return sol.max(lambda now, p: p["a"] * jnp.sin(40.0 * now.t + c) * now.t)

    t = np.linspace(0.0, 1.0, 2_000_001)
    values = 2.0 * np.sin(40.0 * t + 0.3) * t
    here = t[np.argmax(values)]
    value, (by_p, by_c) = jax.value_and_grad(largest, argnums=(0, 1))({"a": 2.0}, 0.3)
    assert value == pytest.approx(values.max(), rel=1e-9)
    assert by_p["a"] == pytest.approx(values.max() / 2.0, rel=1e-8)
    assert by_c == pytest.approx(-values.max() / (40.0 * here), rel=1e-5)  # where the slope is 0


@pytest.mark.slow
def test_arrays_are_searched_entry_by_entry_and_inputs_by_name():
    system = saltus.HybridSystem(
        lambda now, p: {"w": jnp.stack([jnp.cos(now.t), -now.u * jnp.sin(now.t)])},
        inputs=saltus.Steps([0.0, 2.0], [1.0, -1.0]),
    )
    start = saltus.Instant(t=0.0, x={"w": jnp.array([0.0, 1.0])})
    sol = saltus.solve(system, start, None, 4.0)
    corner = np.cos(2.0)  # at t = 2 the input changes sign
    assert np.asarray(sol.max("w")) == pytest.approx([1.0, 1.0], abs=1e-6)
    assert np.asarray(sol.min("w")) == pytest.approx([np.sin(4.0), corner], abs=1e-6)
    assert sol.max("w[0]") == pytest.approx(1.0, abs=1e-6)
    assert sol.min("u") == -1.0


@pytest.mark.slow
@pytest.mark.parametrize("method", [saltus.Tsit5(), saltus.Radau5()])
def test_algebraic_states_have_extrema_too(method):
    system = saltus.HybridSystem(
        lambda now, p: {"w": now.z["f"]},
        constraint=lambda now, p: now.z["f"] - p["a"] * jnp.cos(now.t),
    )
    start = saltus.Instant(t=0.0, x={"w": 0.0}, z={"f": 2.0})
    lowest = lambda p: saltus.solve(system, start, p, 4.0, method=method, max_steps=128).min("f")
    value, slope = jax.value_and_grad(lowest)({"a": 2.0})
    assert value == pytest.approx(-2.0, rel=1e-9)
    assert slope["a"] == pytest.approx(-1.0, rel=1e-7)


@pytest.mark.slow
def test_a_constant_is_its_own_extremum():
    still = saltus.HybridSystem(lambda now, p: {"x": 0.0 * now.x["x"]})
    solved = lambda a: saltus.solve(still, saltus.Instant(t=0.0, x={"x": a}), None, 1.0)
    assert jax.value_and_grad(lambda a: solved(a).max("x"))(2.0) == pytest.approx((2.0, 1.0))


# -- never wrong in silence ----------------------------------------------------------------------
def test_at_a_kink_of_the_quantity_the_derivative_is_nan():
    folded = lambda p: thrown_down(p).max(lambda now, p: -jnp.abs(now.x["h"] - 2.0 * p["h"]))
    value, slope = jax.value_and_grad(folded)(P)
    assert value == pytest.approx(0.0, abs=1e-9)
    assert np.isnan(slope["h"])


@pytest.mark.slow
def test_of_a_solve_that_failed_nothing_is_known():
    few = lambda p: thrown_down(p, max_steps=3, throw=False).max("h")
    value, slope = jax.jit(jax.value_and_grad(few))(P)
    assert np.isnan(value)
    assert all(np.isnan(v) for v in slope.values())


@pytest.mark.slow
def test_a_quantity_that_is_not_a_number_somewhere_has_no_extremum():
    sol = thrown_down(P)
    assert np.isnan(sol.max(lambda now, p: jnp.sqrt(now.x["h"] - 0.5)))


def test_wrong_wishes_are_answered_in_words():
    sol = thrown_down(P)
    with pytest.raises(ValueError, match='no output, state or input is called "height"'):
        sol.max("height")
    with pytest.raises(TypeError, match="neither the name of a quantity nor a function"):
        sol.min(3)
    with pytest.raises(TypeError, match="expected a number"):
        sol.min(lambda now, p: now.x)
    with pytest.raises(TypeError, match="Python condition"):
        sol.min(lambda now, p: now.x["h"] if now.x["h"] > 0 else 0.0)
    kept = thrown_down(P, checkpoints=100)
    with pytest.raises(RuntimeError, match="does not keep its rows"):
        kept.min("h")
