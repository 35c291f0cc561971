"""Arguments on the edge: save times in any order, tolerances, counts, whole numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Dopri8, Event, Fixed, HybridSystem, Instant, Radau5, Tsit5, consistent, solve

BALL = HybridSystem(
    flow=lambda now, p: {"h": now.x["v"], "v": -9.81},
    events=[
        Event(
            "bounce",
            guard=lambda now, p: now.x["h"],
            reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -0.8 * now.x["v"]}),
        )
    ],
)
CUBE = HybridSystem(
    lambda now, p: {"h": -now.z["a"]},
    lambda now, p: {"cube": now.z["a"] ** 3 + now.z["a"] - now.x["h"]},
)
START = Instant(t=0.0, x={"h": 1.0, "v": 0.0})
CASES = {  # explicit methods read save times side by side, implicit ones visit them in order
    "explicit": (BALL, START, Tsit5()),
    "algebraic": (CUBE, Instant(t=0.0, x={"h": 1.0}, z={"a": 0.5}), Radau5()),
}


def saved(case, ts, t1=1.0):
    system, start, method = CASES[case]
    return solve(system, start, None, t1, ts=ts, method=method)


# -- save times ---------------------------------------------------------------------------------

MIXED = np.array([0.9, 0.1, 0.5, 0.5, 0.0, 1.0, 0.9, 0.45])


@pytest.mark.parametrize("case", list(CASES))
def test_save_times_may_come_in_any_order_and_more_than_once(case):
    """Values come in the order of the times, inside `jit` and under derivatives too."""
    order = np.argsort(MIXED, kind="stable")
    sorted_, mixed = saved(case, MIXED[order]), saved(case, MIXED)
    np.testing.assert_array_equal(mixed.t, MIXED)
    np.testing.assert_array_equal(mixed.y["h"][order], sorted_.y["h"])
    heights = lambda ts: (saved(case, ts).y["h"],) * 2
    slopes, values = jax.jit(jax.jacrev(heights, has_aux=True))(MIXED)
    np.testing.assert_allclose(values, mixed.y["h"], rtol=1e-12)
    moving = mixed.y["v"] if case != "algebraic" else -mixed.at(MIXED).z["a"]
    np.testing.assert_allclose(slopes, np.diag(moving), atol=1e-8)


@pytest.mark.parametrize("case", ["explicit", "algebraic"])
def test_no_save_times_save_nothing(case):
    sol = saved(case, [])
    assert sol.y["h"].shape == sol.reached.shape == (0,)
    if case == "explicit":  # it bounces once
        fall = np.sqrt(2 / 9.81)
        end = 0.8 * 9.81 * fall * (1 - fall) - 9.81 / 2 * (1 - fall) ** 2
        np.testing.assert_allclose(sol.final.x["h"], end, rtol=1e-12)
    else:  # 3 a^2 / 2 + log(a) falls as time grows
        clock = lambda a: 1.5 * a**2 + np.log(a)
        first, last = consistent(CUBE, CASES[case][1], None).z["a"], sol.final.z["a"]
        np.testing.assert_allclose(clock(last), clock(first) - 1.0, rtol=1e-7)
        np.testing.assert_allclose(sol.final.x["h"], last**3 + last, rtol=1e-12)


@pytest.mark.parametrize("case", ["explicit", "algebraic"])
def test_an_empty_interval_saves_the_start(case):
    np.testing.assert_array_equal(saved(case, [0.0, 0.0], t1=0.0).y["h"], [1.0, 1.0])


def test_save_times_that_are_no_times_are_refused_and_nan_inside_jit():
    with pytest.raises(ValueError, match="ts contains nan"):
        saved("explicit", [0.5, np.nan])
    inside = jax.jit(lambda ts: saved("explicit", ts).y["h"])(jnp.array([0.5, jnp.nan]))
    np.testing.assert_array_equal(np.isnan(inside), [False, True])


@pytest.mark.parametrize("t", [np.nan, np.inf])
def test_a_start_that_is_no_time_is_refused(t):
    with pytest.raises(ValueError, match=r"the start's t is .*finite"):
        solve(BALL, START.replace(t=t), None, 1.0)


@pytest.mark.parametrize("t1", [None, "soon"])
def test_an_end_that_is_no_number_is_refused(t1):
    with pytest.raises(TypeError, match=r"t1 is .*expected a number"):
        solve(BALL, START, None, t1)


# -- tolerances and lengths ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting, words",
    [
        ({"rtol": 0.0, "atol": 0.0}, "both 0"),
        ({"rtol": -1e-3}, "rtol is -0.001.*>= 0"),
        ({"rtol": jnp.asarray(-1.0)}, "rtol is -1.0"),
        ({"rtol": np.nan}, "rtol is nan"),
        ({"atol": np.inf}, "atol is inf"),
        ({"atol": {"h": 1e-8, "v": -1e-8}}, "atol is -1e-08"),
        ({"rtol": "fine"}, "rtol is 'fine'.*a number"),
        ({"rtol": {"h": 1e-8, "v": 1e-8}}, "rtol is {'h'.*one number for all states; atol may"),
        ({"rtol": [1e-8, 1e-6]}, "rtol is .*one number"),
        ({"rtol": np.full(2, 1e-8)}, "rtol is array.*one number"),
        ({"rtol": None}, "rtol is None.*one number"),
        ({"max_step": np.ones(2)}, "max_step is .*expected a number"),
        ({"rtol": 1e-20}, "rtol is 1e-20, finer than float64.*rtol=0"),
        ({"rtol": 2.0}, "rtol is 2.0, with which no digit"),
        ({"max_step": 0.0}, "max_step is 0.0.*above 0"),
        ({"max_step": -1.0}, "max_step is -1.0"),
        ({"max_step": np.nan}, "max_step is nan"),
        ({"first_step": 0.0}, "first_step is 0.0.*above 0"),
        ({"first_step": np.inf}, "first_step is inf"),
        ({"control": Fixed(0.0)}, r"h of control=Fixed\(h\) is 0.0"),
        ({"control": 0.1}, r"control is 0.1.*Fixed\(h\)"),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, dict) else "",
)
def test_settings_that_no_step_can_meet_are_refused_at_once(setting, words):
    with pytest.raises((TypeError, ValueError), match=words):
        Dopri8(**setting)


def test_tolerances_inside_jit_are_bounded_by_rounding():
    """What cannot be looked at cannot be refused; 1e-30 then means as fine as float64 is."""

    @jax.jit
    def end(tolerance):
        method = Tsit5(rtol=tolerance, atol=tolerance)
        sol = solve(BALL, START, None, 0.4, method=method, max_steps=2000)
        return sol.final.x["h"], sol.stats.steps

    h, steps = end(1e-30)
    np.testing.assert_allclose(h, 1 - 9.81 * 0.08, rtol=1e-14)
    assert steps < 200


def test_an_absolute_tolerance_alone_holds_to_it():
    """rtol = 0 leaves atol as it is, also where a method works with other tolerances inside."""
    for method in (Tsit5(rtol=0.0, atol=1e-9), Radau5(rtol=0.0, atol=1e-9)):
        system = HybridSystem(lambda now, p: -now.x)
        end = solve(system, Instant(t=0.0, x=1.0), None, 2.0, method=method).final.x
        assert 1e-15 < abs(end - np.exp(-2.0)) < 1e-8


@pytest.mark.parametrize("value", [0, -1, 2.5, True, np.nan, "many", 10**12])
@pytest.mark.parametrize("name", ["max_steps", "max_events"])
def test_counts_are_whole_numbers_that_are_known(name, value):
    with pytest.raises(ValueError, match=f"{name} is .*whole number"):
        solve(BALL, START, None, 1.0, **{name: value})


# -- whole numbers ------------------------------------------------------------------------------


def test_whole_numbers_in_states_and_times_are_taken_as_floats():
    """In the start, in what the flow returns, in what a reset returns, and in t0, t1 and ts."""
    counter = HybridSystem(
        flow=lambda now, p: {"n": 1, "c": 0},
        events=[
            Event(
                "two",
                guard=lambda now, p: now.x["n"] - 2,
                direction="rising",
                reset=lambda now, p: now.replace(x={"n": 0, "c": now.x["c"] + 1}),
            )
        ],
    )
    sol = solve(counter, Instant(t=0, x={"n": 0, "c": 0}), None, 5, ts=[1, 3])
    assert sol.final.x["n"].dtype == sol.t.dtype == jnp.float64
    np.testing.assert_allclose([sol.final.x["n"], sol.final.x["c"]], [1.0, 2.0], atol=1e-13)
    np.testing.assert_allclose(sol.y["n"], [1.0, 1.0], atol=1e-13)
    arrays = HybridSystem(lambda now, p: -now.x)
    end = solve(arrays, Instant(t=0.0, x=np.array([1, 2])), None, 1.0).final.x
    np.testing.assert_allclose(end, np.exp(-1.0) * np.array([1, 2]), rtol=1e-7)


def test_a_method_may_be_rebuilt_inside_a_transformation():
    """Checks look at numbers only; a method with traced or mapped tolerances is made as it is."""
    method = jax.tree.map(lambda v: 10 * v, saltus.Tsit5())
    assert method.rtol == 1e-7
    ends = jax.vmap(lambda r: solve(BALL, START, None, 0.4, method=Tsit5(rtol=r)).final.x["h"])
    np.testing.assert_allclose(ends(jnp.array([1e-6, 1e-9])), 1 - 9.81 * 0.08, rtol=1e-9)
