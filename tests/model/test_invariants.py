"""Invariants: steps end on them, derivatives too, and states that violate them are named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus

METHODS = {
    "Tsit5": saltus.Tsit5(rtol=1e-7, atol=1e-7),
    "Radau5": saltus.Radau5(rtol=1e-7, atol=1e-7),
    "Rodas5P": saltus.Rodas5P(rtol=1e-7, atol=1e-7),
}


def flow(now, p):
    """A unit vector that turns, faster and faster."""
    w = p["w"] * (1.0 + now.t)
    return {"s": -w * now.x["v"], "v": w * now.x["s"]}


def length(now, p):
    return now.x["s"] ** 2 + now.x["v"] ** 2 - 1.0


def half(now, p):
    """Turn over at an event: lengths stay."""
    return now.replace(x={"s": -now.x["s"], "v": now.x["v"]})


flip = saltus.Event("flip", guard=lambda now, p: now.x["s"] - 0.3, reset=half)
kept = saltus.HybridSystem(flow, invariant=length, events=[flip])
START = saltus.Instant(0.0, {"s": 1.0, "v": 0.0})
P = {"w": 0.6}


def norm(x):
    return x["s"] ** 2 + x["v"] ** 2


@pytest.mark.parametrize(
    "method",
    [METHODS["Tsit5"], METHODS["Radau5"], pytest.param(METHODS["Rodas5P"], marks=pytest.mark.slow)],
)
def test_steps_saved_values_and_events_stay_on_an_invariant(method):
    ts = np.linspace(0.0, 10.0, 37)
    sol = saltus.solve(kept, START, P, 10.0, ts=ts, method=method)
    assert sol.events.count > 1
    for x in (sol.y, sol.final.x, sol.events.before.x, sol.events.after.x):
        np.testing.assert_allclose(norm(x), 1.0, atol=1e-13)
    free = saltus.HybridSystem(flow, events=[flip])
    drifted = saltus.solve(free, START, P, 10.0, method=method).final.x
    assert abs(norm(drifted) - 1.0) > 1e-9


def end(p, system=kept, tol=1e-11):
    method = saltus.Tsit5(rtol=tol, atol=tol)
    return saltus.solve(system, START, p, 4.0, method=method).final.x


def test_derivatives_of_projected_steps_are_those_of_the_flow():
    """Tangent, adjoint and second derivatives, against the same flow left to itself."""
    free = saltus.HybridSystem(flow, events=[flip])

    def number(p, system):
        x = end(p, system)
        return x["s"] + 2.0 * x["v"]

    for derivative in (jax.grad, jax.jacfwd, jax.hessian):
        ours = jax.tree.leaves(derivative(number)(P, kept))
        theirs = jax.tree.leaves(derivative(number)(P, free))
        np.testing.assert_allclose(ours, theirs, rtol=1e-7)


def test_tangents_lie_in_the_tangent_space():
    x, dx = jax.jvp(end, (P,), ({"w": 1.0},))
    np.testing.assert_allclose(x["s"] * dx["s"] + x["v"] * dx["v"], 0.0, atol=1e-12)


@pytest.mark.slow
def test_lanes_are_projected_like_single_solves():
    ws = jnp.array([0.4, 0.6, 0.9])
    many = jax.vmap(lambda w: end({"w": w}, tol=1e-7))(ws)
    for k, w in enumerate(ws):
        one = end({"w": w}, tol=1e-7)
        np.testing.assert_allclose(many["v"][k], one["v"], rtol=1e-12, atol=1e-14)


def test_a_start_off_the_invariant_is_named_and_repaired_on_request():
    off = saltus.Instant(0.0, {"s": 1.1, "v": 0.1})
    with pytest.raises(saltus.SolveError, match="of the start violate an invariant") as error:
        saltus.solve(kept, off, P, 1.0)
    assert error.value.result is saltus.Result.inconsistent
    sol = saltus.solve(kept, off, P, 1.0, repair=True)
    np.testing.assert_allclose(norm(sol.final.x), 1.0, atol=1e-14)


def test_a_reset_off_the_invariant_is_named():
    grow = saltus.Event(
        "grow",
        guard=lambda now, p: now.x["s"] - 0.3,
        reset=lambda now, p: now.replace(x={"s": 1.0 + now.x["s"], "v": now.x["v"]}),
    )
    system = saltus.HybridSystem(flow, invariant=length, events=[grow])
    with pytest.raises(saltus.SolveError, match='reset of event "grow" violate an invariant'):
        saltus.solve(system, START, P, 10.0)


def test_invariants_that_depend_on_each_other_do_no_harm():
    twice = saltus.HybridSystem(
        flow, invariant=lambda now, p: {"once": length(now, p), "twice": 2.0 * length(now, p)}
    )
    sol = saltus.solve(twice, START, P, 3.0)
    np.testing.assert_allclose(norm(sol.final.x), 1.0, atol=1e-14)


@pytest.mark.parametrize(
    "invariant, words",
    [
        (lambda now, p: "length", "invariant returned"),
        (lambda now, p: length(now, p) == 0.0, "a difference and not a comparison"),
    ],
)
def test_an_invariant_that_is_no_number_is_refused(invariant, words):
    system = saltus.HybridSystem(flow, invariant=invariant)
    with pytest.raises(TypeError, match=words):
        saltus.solve(system, START, P, 1.0)


def test_a_flow_that_works_against_its_invariant_is_no_success():
    """The projection cannot hold two numbers that contradict each other."""
    torn = saltus.HybridSystem(
        lambda now, p: {"a": 0.0, "b": 1.0},
        invariant=lambda now, p: {"one": now.x["a"], "other": now.x["a"] - 0.1 * now.t**2},
    )
    start = saltus.Instant(0.0, {"a": 0.0, "b": 0.0})
    for method in (saltus.Tsit5(), saltus.Radau5()):
        with pytest.raises(saltus.SolveError, match="contradict each other"):
            saltus.solve(torn, start, None, 1.0, method=method)
    sol = jax.jit(lambda b: saltus.solve(torn, start.replace(x={"a": 0.0, "b": b}), None, 1.0))(0.0)
    assert sol.result == saltus.Result.inconsistent and np.isnan(sol.final.x["b"])
