"""Nothing is compiled twice. A compilation costs a second; a repeated call should cost nothing."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, solve
from saltus.build import build
from saltus.parts import dismantle


def make_ball(e):
    """A system built anew on every call, that closes over `e`."""
    return HybridSystem(
        flow=lambda now, p: {"h": now.x["v"], "v": -p["g"]},
        events=[
            Event(
                "bounce",
                guard=lambda now, p: now.x["h"],
                reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -e * now.x["v"]}),
            )
        ],
    )


BALL = make_ball(0.8)


def height(p, system=BALL, tolerance=1e-8, h0=1.0, t1=1.0):
    method = saltus.Tsit5(rtol=tolerance, atol=tolerance)
    return solve(system, Instant(t=0.0, x={"h": h0, "v": 0.0}), p, t1, method=method).final.x["h"]


def rebuilt(p):
    return height(p, system=make_ball(0.8))


def closing_over_traced(p):
    return height({"g": p["g"]}, system=make_ball(p["g"] / 12.0))


DERIVATIVES = {
    "value": lambda f: f,
    "gradient": jax.grad,
    "jacobian": jax.jacfwd,
    "hessian": jax.hessian,
    "vmap": lambda f: lambda p: jax.vmap(f)({"g": jnp.full(3, p["g"])}),
    "vmap of gradient": lambda f: lambda p: jax.vmap(jax.grad(f))({"g": jnp.full(3, p["g"])}),
}


@pytest.mark.parametrize("f", [height, rebuilt, closing_over_traced])
@pytest.mark.parametrize("derivative", list(DERIVATIVES))
def test_the_second_call_compiles_nothing(compilations, f, derivative):
    """Eager calls with other numbers: same system, a rebuilt one, one that closes over a tracer."""
    call = DERIVATIVES[derivative](f)
    one, other = {"g": jnp.asarray(9.81)}, {"g": jnp.asarray(9.5)}
    call(one)
    assert compilations.during(lambda: call(other)) == 0


def test_changing_a_tolerance_never_recompiles(compilations):
    f = jax.grad(lambda p, tolerance: height(p, tolerance=tolerance))
    f({"g": 9.81}, 1e-8)
    assert compilations.during(lambda: f({"g": 9.81}, 1e-5)) == 0
    assert compilations.during(lambda: f({"g": 9.81}, 1e-10)) == 0


def test_changing_start_and_end_never_recompiles(compilations):
    f = jax.grad(lambda p, h0, t1: height(p, h0=h0, t1=t1))
    f({"g": 9.81}, 1.0, 1.0)
    assert compilations.during(lambda: f({"g": 9.81}, 0.9, 1.1)) == 0


def test_changing_the_step_of_a_fixed_control_never_recompiles(compilations):
    def f(h):
        method = saltus.Dopri5(control=saltus.Fixed(h))
        start = Instant(t=0.0, x={"h": 1.0, "v": 0.0})
        return solve(BALL, start, {"g": 9.81}, 1.0, method=method).final.x["h"]

    f(0.1)
    assert compilations.during(lambda: f(0.05)) == 0


def test_another_number_of_events_compiles_nothing_but_the_sizes_of_its_log(compilations):
    """The sweeps run over as many rows as there are; only arrays cut to `count` have new shapes."""
    f = jax.grad(lambda p, t1: height(p, t1=t1))
    f({"g": 9.81}, 1.0)
    f({"g": 9.81}, 1.5)
    assert compilations.during(lambda: f({"g": 9.81}, 1.9)) == 0


def test_a_rebuilt_system_is_found_by_what_it_computes(compilations):
    """The gradient through a rebuilt system uses the programs of the original."""
    jax.grad(height)({"g": 9.81})
    assert compilations.during(lambda: jax.grad(rebuilt)({"g": 9.81})) == 0


def test_saving_at_other_times_compiles_nothing(compilations):
    def f(ts):
        start = Instant(t=0.0, x={"h": 1.0, "v": 0.0})
        return solve(BALL, start, {"g": 9.81}, 1.0, ts=ts).y["h"]

    f(jnp.array([0.2, 0.4]))
    assert compilations.during(lambda: f(jnp.array([0.3, 0.9]))) == 0


def test_models_of_systems_that_are_gone_take_no_memory():
    def model(k):
        system = HybridSystem(lambda now, p: -k * now.x, sparsity=np.ones((1, 1), bool))
        built = build(system, *dismantle(system, Instant(t=0.0, x=1.0), None))
        return weakref.ref(built.model)

    models = [model(float(k)) for k in range(5)]
    gc.collect()
    assert [m() for m in models] == [None] * 5
