"""Derivatives of what a solve did not reach are NaN, and those of what it did reach are right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, Result, continuous, solve

DECAY = HybridSystem(
    lambda now, p: -p * now.x,
    rate=lambda now, p: now.x,
    events=[Event("half", guard=lambda now, p: now.x - 0.5)],
)
TIMES = jnp.array([0.1, 50.0])


def first(log, k):
    return log.nth(k).t


def kept(sol):
    """What every solution has: reached in a good solve, the last never."""
    return [sol.final.x, sol.integral, sol.y[0], sol.integrals[0], sol.y[1]]


def read(sol):
    """The same, and what needs rows: event times and dense output, then three never reached."""
    log = sol.events
    found = [log.t[0], first(log.of("half"), 0), sol(0.2), sol.at(0.2).x]
    return [*kept(sol), *found, log.t[1], first(log, 3), sol(60.0)]


def all_reads(q, reader=read, **options):
    p, x0, t1 = q
    sol = solve(DECAY, Instant(t=0.0, x=x0), p, t1, ts=TIMES, max_steps=64, throw=False, **options)
    return jnp.stack(reader(sol))


def exact(reader):
    """The Jacobian of the reads at p = x0 = 1, t1 = 2, by (p, x0, t1)."""

    def value(q):
        p, x0, t1 = q
        curve = lambda t: x0 * jnp.exp(-p * t)
        total = lambda t: x0 * (1 - jnp.exp(-p * t)) / p
        half, nothing = jnp.log(2 * x0) / p, jnp.nan
        good = [curve(t1), total(t1), curve(0.1), total(0.1), nothing]
        if reader is read:
            good += [half, half, curve(0.2), curve(0.2), nothing, nothing, nothing]
        return jnp.stack(good)

    q = (1.0, 1.0, 2.0)
    rows = np.stack(jax.jacfwd(value)(q), axis=1)
    rows[np.isnan(value(q))] = np.nan
    return rows


# p, x0, t1: a good solve; a NaN parameter; ends that are no times
LANES = tuple(
    jnp.array(v) for v in ([1.0, np.nan, 1.0, 1.0], [1.0] * 4, [2.0, 2.0, np.nan, np.inf])
)


def jacobians(derivative, reader, **options):
    """Of each lane, reads along the rows and (p, x0, t1) along the columns."""
    one = derivative(lambda q: all_reads(q, reader, **options))
    return np.stack(jax.jit(jax.vmap(one))(LANES), axis=-1)


def check_jacobians(found, reader, rtol=1e-6):
    """Right, or NaN, in the good lane; NaN in those that failed."""
    want = exact(reader)
    np.testing.assert_allclose(found[0], want, rtol=rtol, atol=1e-7)
    for lane in (1, 2):
        assert np.isnan(found[lane]).all()
    assert np.isnan(found[3][:2]).all()  # too many steps: the end was not reached


def test_what_was_not_reached_has_no_finite_gradient():
    check_jacobians(jacobians(jax.jacrev, read), read)


def test_second_derivatives_of_what_was_not_reached_are_nan_too():
    def last(q):
        return all_reads(q, lambda sol: [sol.final.x, sol.y[1]])

    found = jax.jit(jax.vmap(jax.hessian(last)))(LANES)
    found = np.stack([np.stack(row, axis=-1) for row in found], axis=-1)
    e = np.exp(-2.0)
    want = [[4 * e, -2 * e, e], [-2 * e, 0.0, -e], [e, -e, e]]
    np.testing.assert_allclose(found[0, 0], want, rtol=1e-5, atol=1e-5)
    assert np.isnan(found[0, 1]).all() and np.isnan(found[1:]).all()


@pytest.mark.slow
@pytest.mark.parametrize("derivative", [jax.jacrev, jax.jacfwd])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": saltus.Radau5()},
        {"method": saltus.Rodas5P()},
        {"checkpoints": 8},
        {"sensitivity": continuous.Continuous()},
    ],
    ids=["Tsit5", "Radau5", "Rodas5P", "checkpoints", "continuous"],
)
def test_the_same_holds_for_every_way_to_solve(options, derivative):
    reader = kept if "checkpoints" in options else read
    check_jacobians(jacobians(derivative, reader, **options), reader, rtol=1e-4)


# -- losses that leave out what was not reached ---------------------------------------------------

SHARED = HybridSystem(lambda now, p: -(p["a"] + p["b"]) * now.x)


@pytest.mark.slow
def test_a_loss_that_leaves_out_a_failed_lane_has_the_gradient_of_the_others():
    """One parameter is shared by all lanes, another is NaN in one of them."""
    own = jnp.array([0.5, jnp.nan, 1.0])

    def losses(shared):
        def lane(a):
            p, start = {"a": a, "b": shared}, Instant(t=0.0, x=1.0)
            sol = solve(SHARED, start, p, 2.0, ts=jnp.array([0.0, 0.1, 2.0]))
            return sol.final.x, sol.result, sol.y

        x, result, y = jax.vmap(lane)(own)
        good = jnp.where(result == int(Result.success), x, 0.0)
        return jnp.stack([jnp.sum(good) + jnp.nansum(y), jnp.sum(x)])

    clean, all_lanes = jax.jit(jax.jacrev(losses))(0.5)
    s = 0.5 + np.array([0.5, 1.0])
    want = -np.sum(2 * 2.0 * np.exp(-2.0 * s) + 0.1 * np.exp(-0.1 * s))
    np.testing.assert_allclose(clean, want, rtol=1e-6)
    assert np.isnan(all_lanes)


# -- every way to fail -----------------------------------------------------------------------------

POLE = HybridSystem(lambda now, p: p * now.x**2)
SAW = HybridSystem(
    lambda now, p: -p,
    events=[Event("hit", lambda now, p: now.x, lambda now, p: now.replace(x=1.0))],
)
ROOT = HybridSystem(lambda now, p: -now.x + now.z, constraint=lambda now, p: now.z**2 + p - 2.0)
BOUND = HybridSystem(
    lambda now, p: {"a": now.z, "b": -p * now.x["b"]},
    constraint=lambda now, p: now.x["a"] + now.x["b"] - p,
)
FAILURES = {  # system, start, p, options
    "step_underflow": (POLE, Instant(t=0.0, x=1.0), 2.0, {}),
    "too_many_steps": (POLE, Instant(t=0.0, x=1.0), 0.1, {"max_steps": 4}),
    "too_many_events": (SAW, Instant(t=0.0, x=1.0), 2.0, {"max_events": 2}),
    "no_consistent_state": (ROOT, Instant(t=0.0, x=1.0, z=1.0), 3.0, {}),
    "inconsistent": (BOUND, Instant(t=0.0, x={"a": 1.0, "b": 1.0}, z=0.0), 1.0, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("result", FAILURES)
def test_no_failure_has_a_finite_derivative(result):
    system, start, p, options = FAILURES[result]

    def ends(p):
        ts = jnp.array([2.5, 3.0])
        sol = solve(system, start, p, 3.0, ts=ts, throw=False, **options)
        return jnp.stack([*jax.tree.leaves(sol.final.x), *jnp.ravel(jax.tree.leaves(sol.y)[0])])

    outcome = jax.jit(lambda p: solve(system, start, p, 3.0, **options).result)
    assert Result(int(outcome(p))).name == result
    for derivative in (jax.jacrev, jax.jacfwd):
        assert np.isnan(jax.jit(derivative(ends))(p)).all()
        assert np.isnan(jax.jit(jax.vmap(derivative(ends)))(jnp.array([p]))).all()
    assert np.isnan(jax.jit(jax.grad(lambda p: jnp.sum(ends(p))))(p))


@pytest.mark.slow
@pytest.mark.parametrize("method", [saltus.Tsit5, saltus.Radau5, saltus.Rodas5P])
def test_a_save_time_at_the_start_has_the_value_of_the_start_whatever_comes_after(method):
    system = HybridSystem(lambda now, p: -now.x + 0.0 * jnp.sqrt(p - now.t))  # NaN beyond t = p

    def saved(p):
        start = Instant(t=0.0, x=2.0)
        sol = solve(system, start, p, 1.0, ts=jnp.array([0.0, 0.5]), method=method())
        return sol.y, sol.reached

    y, reached = jax.jit(jax.vmap(saved))(jnp.array([2.0, 0.3]))
    np.testing.assert_allclose(y[0], [2.0, 2.0 * np.exp(-0.5)], rtol=1e-7)
    np.testing.assert_array_equal(y[1], [2.0, np.nan])
    np.testing.assert_array_equal(reached, [[True, True], [True, False]])
