"""Nothing is compiled twice. A compilation costs a second; a repeated call should cost nothing."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, solve
from saltus.base import resumable
from saltus.model.builder import build
from saltus.model.start_leaves import dismantle
from saltus.simulate import primitive


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


# -- long solves ----------------------------------------------------------------------------------

DECAY = HybridSystem(lambda now, p: -p * now.x)
STEP = 0.125  # exact, so that the number of steps is


def decayed(p, steps=20_000):
    method = saltus.Dopri5(control=saltus.Fixed(STEP))
    return solve(DECAY, Instant(t=0.0, x=1.0), p, steps * STEP, method=method)


LONG = {
    "value": lambda p: decayed(p).final.x,
    "gradient": jax.grad(lambda p: decayed(p).final.x),
    "hessian": jax.hessian(lambda p: decayed(p).final.x),
    "vmap": lambda p: jax.vmap(lambda q: decayed(q).final.x)(jnp.full(3, p)),
    "dense output": lambda p: decayed(p)(jnp.array([0.3])),
}


@pytest.mark.parametrize("kind", list(LONG))
def test_a_long_solve_compiles_nothing_when_it_is_repeated(compilations, kind):
    """It needs more rows than the first reel of tape has."""
    first = LONG[kind](1e-3)
    assert compilations.during(lambda: LONG[kind](1e-3)) == 0
    np.testing.assert_array_equal(first, LONG[kind](1e-3))


def test_a_longer_solve_takes_no_other_programs_than_a_long_one(compilations):
    """However many rows there are, two programs fill them; only what is done with them is new."""
    decayed(0.5, 100)
    decayed(0.5, 2000)
    assert compilations.during(lambda: decayed(0.5, 1800)) == 0
    assert compilations.during(lambda: decayed(0.5, 90)) == 0
    assert (
        decayed(0.5, 10).tape.tau.shape[0] <= primitive.FIRST_CAPACITY + 1
    )  # a short one carries no long tape


@pytest.fixture
def short_reels(monkeypatch):
    """Reels of 64 rows, also the later ones."""
    primitive._work.cache_clear()
    monkeypatch.setattr(resumable, "MAX_REEL_ENTRIES", 64)
    yield
    primitive._work.cache_clear()


@pytest.mark.parametrize("steps", [62, 63, 64, 127, 128, 300])
def test_a_tape_on_many_reels_is_that_of_one(short_reels, steps):
    """Row by row, also where a reel ends just with the solve; after the end there are zeros."""
    sol = decayed(0.5, steps)
    factor = np.polyval([1 / 600, 1 / 120, 1 / 24, 1 / 6, 0.5, 1, 1], -0.5 * STEP)  # of one step
    n = np.arange(steps + 1)
    np.testing.assert_array_equal(sol.tape.tau[: steps + 1], n * STEP)
    np.testing.assert_allclose(sol.tape.w[0][: steps + 1], factor**n, rtol=1e-12)
    assert int(sol.tape.n) == steps + 1  # and the end
    assert not np.any(sol.tape.tau[steps + 2 :])


def test_lanes_of_different_lengths_share_their_reels(short_reels):
    steps = np.array([10, 62, 63, 64, 127, 191, 200])
    sols = jax.vmap(lambda n: decayed(0.5, n))(jnp.asarray(steps, float))
    for k, n in enumerate(steps):
        alone = decayed(0.5, n)
        mine = np.asarray(sols.tape.w[0][k])
        np.testing.assert_allclose(mine[: n + 1], alone.tape.w[0][: n + 1], rtol=1e-14)
        assert not np.any(mine[n + 2 :])
        assert sols.final.x[k] == pytest.approx(np.exp(-0.5 * n * STEP), rel=1e-6)
    slopes = jax.vmap(jax.grad(lambda p, n: decayed(p, n).final.x), in_axes=(None, 0))
    exact = -steps * STEP * np.exp(-0.5 * steps * STEP)
    np.testing.assert_allclose(slopes(0.5, jnp.asarray(steps, float)), exact, rtol=1e-4)


def test_a_gradient_by_a_python_number_shares_the_programs_of_arrays(compilations):
    """Inside `jax.grad` a Python number has a weak type, which would make every program another."""
    ball = make_ball(0.8)
    gradient = jax.grad(lambda h0: height({"g": 9.81}, system=ball, h0=h0))
    compilations.during(lambda: gradient(jnp.asarray(1.0, jnp.float64)))
    assert compilations.during(lambda: gradient(1.0)) <= 2  # the conversion of the number


def test_reading_events_of_another_number_compiles_nothing(compilations):
    def bounces(g):
        ball = solve(BALL, Instant(t=0.0, x={"h": 1.0, "v": 0.0}), {"g": g}, 2.0)
        return len(ball.events), ball.events.t

    few, _ = bounces(9.0)
    assert compilations.during(lambda: bounces(25.0)) == 0
    more, t = bounces(25.0)
    assert more > few == 3 and t.shape == (more,)
    assert np.allclose(t[0], np.sqrt(2 / 25.0))
