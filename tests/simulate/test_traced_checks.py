"""Every check outside of `jit` has its counterpart inside: NaN, and a result with a name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Instant, Mode, Ramps, Result, SolveError, Steps, TimeEvent, Tsit5, every, solve

GOOD = {
    "t0": 0.0, "t1": 2.5, "mode": 0, "ts": [0.0, 0.5, 2.0], "steps": [0.0, 1.0, 2.0],
    "ramps": [0.0, 1.0, 2.0], "period": 1.0, "offset": 0.25, "by": 0, "rtol": 1e-8, "atol": 1e-8,
    "first_step": 0.01, "max_step": 1.0,
}  # fmt: skip


def run(q):
    """x' = u + w + 1 with steps and ramps, a tick that counts modes, and every number given."""
    flow = lambda now, p: now.u["steps"] + now.u["ramps"] + 1.0
    tick = TimeEvent(
        "tick", every(q["period"], q["offset"]), lambda now, p: now.replace(mode=now.mode + p)
    )
    system = saltus.automaton(
        {"a": Mode(flow), "b": Mode(flow)},
        events=[tick],
        inputs={
            "steps": Steps(q["steps"], [1.0, 2.0, 3.0]),
            "ramps": Ramps(q["ramps"], [0.0, 1.0, 0.0]),
        },
    )
    method = Tsit5(
        rtol=q["rtol"], atol=q["atol"], first_step=q["first_step"], max_step=q["max_step"]
    )
    start = Instant(t=q["t0"], x=0.0, mode=q["mode"])
    return solve(system, start, q["by"], q["t1"], ts=jnp.asarray(q["ts"]), method=method)


@jax.jit
def inside(q):
    sol = run(q)
    return sol.result, sol.final.x, sol.y


def numbers(**changes):
    return jax.tree.map(jnp.asarray, {k: np.asarray(v) for k, v in {**GOOD, **changes}.items()})


CASES = [
    ("t0", np.nan, "invalid_time"),
    ("t0", -np.inf, "invalid_time"),
    ("t1", np.nan, "invalid_time"),
    ("t1", np.inf, "invalid_time"),
    ("ts", [0.5, 3.0], "invalid_save_time"),
    ("ts", [0.5, -1.0], "invalid_save_time"),
    ("ts", [0.5, np.nan], "invalid_save_time"),
    ("steps", [0.0, 2.0, 1.0], "invalid_input"),
    ("steps", [0.0, 1.0, 1.0], "invalid_input"),
    ("steps", [0.0, np.nan, 2.0], "invalid_input"),
    ("ramps", [1.0, 0.0, 2.0], "invalid_input"),
    ("ramps", [0.0, 0.0, 2.0], "invalid_input"),
    ("period", 0.0, "invalid_period"),
    ("period", -1.0, "invalid_period"),
    ("period", np.nan, "invalid_period"),
    ("period", np.inf, "invalid_period"),
    ("offset", np.nan, "invalid_period"),
    ("mode", 2, "invalid_mode"),
    ("mode", -1, "invalid_mode"),
    ("by", 7, "invalid_mode"),
    ("rtol", -1e-8, "invalid_setting"),
    ("rtol", np.nan, "invalid_setting"),
    ("rtol", 2.0, "invalid_setting"),
    ("atol", -1e-8, "invalid_setting"),
    ("atol", np.inf, "invalid_setting"),
    ("first_step", 0.0, "invalid_setting"),
    ("first_step", np.inf, "invalid_setting"),
    ("max_step", -1.0, "invalid_setting"),
    ("max_step", np.nan, "invalid_setting"),
]


@pytest.mark.parametrize("name, value, result", CASES)
def test_what_raises_outside_of_jit_is_nan_with_a_name_inside(name, value, result):
    found, x, y = inside(numbers(**{name: value}))
    assert Result(int(found)).name == result
    if name == "ts":  # the end was reached
        assert np.isnan(y[-1]) and np.isfinite(x)
    elif name == "by":  # a tick on the way computes the mode
        np.testing.assert_array_equal(np.isnan([*y, x]), [False, True, True, True])
    else:
        assert np.isnan([*y, x]).all()
    words = {"t0": "the start's t", "by": "invalid_mode"}.get(name, name)
    with pytest.raises((ValueError, SolveError), match=f"(?i){words}"):
        run({**GOOD, name: value})


@pytest.mark.parametrize("rate, t1", [(1.0, np.nan), (np.nan, 1.0)])
def test_a_solve_that_cannot_begin_has_no_value_at_its_start(rate, t1):
    system = saltus.HybridSystem(lambda now, p: -p * now.x)

    @jax.jit
    def saved(p, end):
        return solve(system, Instant(t=0.0, x=1.0), p, end, ts=jnp.array([0.0, 0.5])).y

    assert np.isnan(saved(rate, t1)).all()
    np.testing.assert_allclose(saved(1.0, 1.0), [1.0, np.exp(-0.5)], rtol=1e-7)
    assert np.isnan(jax.grad(lambda p: saved(p, t1)[0])(rate))


def test_numbers_that_are_in_order_pass_inside_jit_too():
    found, x, _ = inside(numbers())
    assert Result(int(found)) == Result.success
    integral = 2.5 + (1 + 2 + 1.5) + 1.0  # of 1, of the steps, of the ramps
    np.testing.assert_allclose(x, integral, rtol=1e-12)


@pytest.mark.slow
def test_tolerances_that_are_both_zero_and_steps_of_no_length_are_refused_inside_jit():
    decay = saltus.HybridSystem(lambda now, p: -now.x)

    def end(method):
        return solve(decay, Instant(t=0.0, x=1.0), None, 1.0, method=method, max_steps=64)

    both = jax.jit(lambda tol: end(Tsit5(rtol=tol, atol=tol)).result)
    fixed = jax.jit(lambda h: end(Tsit5(control=saltus.Fixed(h))).result)
    assert Result(int(both(0.0))) == Result.invalid_setting
    assert Result(int(both(1e-6))) == Result.success
    for h in (0.0, -0.1, np.nan):
        assert Result(int(fixed(h))) == Result.invalid_setting
    assert Result(int(fixed(0.1))) == Result.success


@pytest.mark.slow
def test_a_lane_with_a_bad_number_leaves_the_others_alone():
    lanes = jnp.array([[0.0, 1.0, 2.0], [0.0, 2.0, 1.0]])
    system = saltus.HybridSystem(
        lambda now, p: now.u, inputs=lambda p: Steps(p, jnp.array([1.0, 2.0, 3.0]))
    )
    end = lambda times: solve(system, Instant(t=0.0, x=0.0), times, 3.0).final.x
    values, slopes = jax.vmap(jax.value_and_grad(end))(lanes)
    np.testing.assert_allclose(values[0], 6.0, rtol=1e-12)
    np.testing.assert_allclose(slopes[0, 1:], [-1.0, -1.0], rtol=1e-9)
    assert np.isnan(values[1]) and np.isnan(slopes[1]).all()


@pytest.mark.slow
@pytest.mark.parametrize("m, y", [(-1.0, 1.0), (0.0, 1.0), (1.0, -0.5)])
def test_masses_and_gaps_that_are_no_good_are_noticed_inside_jit(m, y):
    from saltus.multibody import Mechanism, contact

    ball = Mechanism(
        mass=lambda now, p: {"x": 1.0, "y": p},
        force=lambda now, p: {"x": 0.0, "y": -p},
        contacts=[contact("floor", lambda now, p: now.q["y"], restitution=0.5)],
    )

    def end(m, y):
        sol = solve(ball.system(), ball.start({"x": 0.0, "y": y}, p=m), m, 0.1)
        return sol.final.x["q"]["y"], sol.result

    value, result = jax.jit(end)(m, y)
    assert np.isnan(value) and Result(int(result)) == Result.non_finite
    np.testing.assert_allclose(jax.jit(end)(1.0, 1.0)[0], 1.0 - 0.1**2 / 2, rtol=1e-12)
    words = "mass matrix is not positive" if m <= 0 else "bodies overlap"
    with pytest.raises(ValueError, match=words):
        end(m, y)
    with pytest.raises(ValueError, match=words):
        jax.grad(lambda m: end(m, y)[0])(m)


@pytest.mark.slow
@pytest.mark.parametrize("y, alpha", [(-1.2, 1e7), (-1.0, -1.0), (-1.0, np.nan)])
def test_a_start_or_constants_that_springs_cannot_take_are_noticed_inside_jit(y, alpha):
    from saltus.multibody import Mechanism

    rod = Mechanism(
        mass=lambda now, p: {"x": 1.0, "y": 1.0},
        force=lambda now, p: {"x": 0.0, "y": -9.81},
        constraint=lambda now, p: now.q["x"] ** 2 + now.q["y"] ** 2 - 1.0,
    )

    def end(y, alpha):
        system = rod.system("penalty", alpha=alpha)
        sol = solve(system, rod.start({"x": 0.0, "y": y}), None, 0.1, method=saltus.Radau5())
        return sol.final.x["q"]["y"], sol.result

    value, result = jax.jit(end)(y, alpha)
    assert np.isnan(value) and Result(int(result)) == Result.non_finite
    np.testing.assert_allclose(jax.jit(end)(-1.0, 1e7)[0], -1.0, atol=1e-8)  # it hangs at rest
    words = "does not obey the constraints" if y != -1.0 else f"alpha is {alpha}"
    with pytest.raises(ValueError, match=words):
        end(y, jnp.asarray(alpha))


@pytest.mark.slow
def test_a_mass_matrix_that_is_singular_is_noticed_inside_jit():
    system = saltus.mass_matrix(
        lambda now, p: jnp.array([[1.0, p], [p, 1.0]]), lambda now, p: -now.x
    )

    def end(p):
        sol = solve(system, Instant(t=0.0, x=jnp.array([1.0, 2.0])), p, 1.0)
        return sol.final.x[0], sol.result

    value, result = jax.jit(end)(1.0)
    assert np.isnan(value) and Result(int(result)) == Result.non_finite
    with pytest.raises(ValueError, match=r"M is singular at the start \(rank 1 of 2\)"):
        end(1.0)
