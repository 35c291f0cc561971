"""Kinks that no event marks are found on the finished solve: where, what, and whether they jump."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from saltus import Event, Exit, HybridSystem, Instant, Mode, Tsit5, automaton, solve, when
from saltus.trust.hidden_kinks import crossed, hidden_kinks

METHOD = Tsit5(rtol=1e-8, atol=1e-8)
TABLE = np.array([-0.4, 0.35, 0.9]), np.array([0.0, 1.0, 0.5])


@jax.jit
def inner(x):
    return jnp.abs(x - 0.6)  # inner


def many(now, p):
    """x = t - 1, so that every kink below has a known time."""
    x = now.x["x"]
    safe = jnp.where(x == 0, 1.0, x)
    return {
        "x": 1.0,
        "abs": jnp.abs(x - 0.1),  # abs
        "where": jnp.where(x > 0.3, 1.0, 2.0),  # where
        "max": jnp.maximum(x, -0.5),  # max
        "clip": jnp.clip(x, -0.2, 0.7),  # clip
        "interp": jnp.interp(x, *TABLE),  # interp
        "floor": jnp.floor(now.t),  # floor
        "inner": inner(x),
        "smooth join": jnp.where(x > 0.45, (x - 0.45) ** 3, 0.0),  # join
        "mod": x % 0.8,  # mod
        "safe": jnp.where(x == 0, 1.0, jnp.sin(x) / safe),
        "softplus": jax.nn.softplus(x) + jnp.hypot(x, 0.2),
        "parameter": jnp.where(p > 0, x, -x) + jnp.where(now.d == 0, x, jnp.abs(x - 0.2)),
        "same": jnp.where(x > 0.2, x, x),
    }


EXPECTED = {  # times, jump relative to the largest flow of that state
    "abs": ([1.1], 0.0),
    "where": ([1.3], 0.5),
    "max": ([0.5], 0.0),
    "clip": ([0.8, 1.7], 0.0),
    "interp": ([0.6, 1.35, 1.9], 0.0),
    "floor": ([1.0], 1.0),
    "inner": ([1.6], 0.0),
    "join": ([1.45], 0.0),
    "mod": ([0.2, 1.0, 1.8], 1.0),
}


def line(mark):
    """The line of this file that ends with a comment."""
    text = Path(__file__).read_text().splitlines()
    return f"{Path(__file__).name}:{[v.endswith('# ' + mark) for v in text].index(True) + 1}"


@pytest.fixture(scope="module")
def passed():
    zeros = jax.eval_shape(lambda: many(Instant(0.0, {"x": 0.0}, d=0), 1.0))
    start = Instant(t=0.0, x={**{k: 0.0 for k in zeros}, "x": -1.0}, d=0)
    return solve(HybridSystem(many), start, 1.0, 1.95, method=METHOD)


@pytest.fixture(scope="module")
def kinks(passed):
    return hidden_kinks(passed)


@pytest.mark.parametrize("mark", EXPECTED)
def test_a_kink_is_found_with_its_line_its_time_and_its_jump(kinks, mark):
    times, jump = EXPECTED[mark]
    mine = [k for k in kinks if k.where == line(mark)]
    assert [round(k.t, 5) for k in mine] == times
    assert np.allclose([k.jump for k in mine], jump, atol=1e-6)


def test_what_is_no_kink_is_not_reported(kinks):
    """Safe divisions, smooth functions in pieces, branches by parameter, equal branches."""
    assert {k.where for k in kinks} == {line(mark) for mark in EXPECTED}


def test_operations_are_named_as_they_were_written(kinks):
    words = {k.where: k.what for k in kinks}
    expected = {
        "abs": "abs(x - 0.1)", "where": "x > 0.3", "max": "max(x, -0.5)", "clip": "clip(x)",
        "interp": "interp(x)", "floor": "floor(t)", "inner": "abs(x - 0.6)",
    }  # fmt: skip
    assert {mark: words[line(mark)] for mark in expected} == expected


def test_kinks_come_in_order_of_time(kinks):
    assert [k.t for k in kinks] == sorted(k.t for k in kinks)


def test_every_crossing_is_reported_once(kinks):
    assert len(kinks) == sum(len(times) for times, _ in EXPECTED.values())


def test_looking_again_compiles_nothing(passed, compilations):
    hidden_kinks(passed)
    assert compilations.during(lambda: [k.t for k in hidden_kinks(passed)]) == 0


def test_a_smooth_model_has_none():
    sol = solve(HybridSystem(lambda now, p: jnp.sin(now.x)), Instant(0.0, 0.1), None, 3.0)
    assert hidden_kinks(sol) == ()
    assert int(crossed(sol.spec, sol.tape)) == 0


def test_marked_kinks_are_not_hidden_ones():
    flow = lambda now, p: {"x": 1.0, "y": when(now.x["x"] > 0.3, 1.0, 2.0)}
    sol = solve(HybridSystem(flow), Instant(0.0, {"x": 0.0, "y": 0.0}), None, 1.0)
    assert hidden_kinks(sol) == ()


OSCILLATOR = HybridSystem(
    lambda now, p: jnp.stack([now.x[1], -now.x[0] - p * jnp.abs(now.x[1]) * now.x[1]])
)
START = Instant(0.0, jnp.array([1.0, 0.0]))


def test_a_kink_on_a_curved_path_is_located_far_inside_its_step():
    """The swing turns where v = 0; there the dense solution has to vanish."""
    sol = solve(OSCILLATOR, START, 0.3, 4.0)
    (kink,) = hidden_kinks(sol)
    rows = np.asarray(sol.tape.tau)[: int(sol.tape.n) + 1]
    step = np.diff(rows)[np.searchsorted(rows, kink.t) - 1]
    assert abs(float(sol(kink.t)[1])) < 1e-3 * step  # v' is about 1


def test_a_start_on_a_kink_is_no_crossing():
    """v = 0 at the start, where `abs(v)` has its kink."""
    assert hidden_kinks(solve(OSCILLATOR, START, 0.3, 3.0)) == ()


def test_lanes_have_their_own_kinks():
    ends = jnp.array([3.0, 4.0, 7.0])

    @jax.jit
    @jax.vmap
    def run(t1):
        sol = solve(OSCILLATOR, START, 0.3, t1, max_steps=512)
        return sol, crossed(sol.spec, sol.tape)

    sol, counts = run(ends)
    assert counts.tolist() == [0, 1, 2]
    assert [len(hidden_kinks(sol[k])) for k in range(3)] == [0, 1, 2]
    with pytest.raises(TypeError, match=re.escape("hidden_kinks(sol[k])")):
        hidden_kinks(sol)


def test_only_the_flow_of_the_current_mode_counts():
    """Both modes have a kink on their way; the other mode's operations pass theirs unused."""
    system = automaton(
        {
            "first": Mode(
                lambda now, p: {"x": 1.0, "y": jnp.abs(now.x["x"] - 0.5)},  # first
                exits=[Exit(lambda now, p: now.x["x"] - 1.0, to="second", direction="rising")],
            ),
            "second": Mode(
                lambda now, p: {
                    "x": 2.0,
                    "y": jnp.where(now.x["x"] > 1.6, 3.0, jnp.sign(now.x["x"] - 0.7)),  # second
                }
            ),
        }
    )
    start = Instant(0.0, {"x": 0.0, "y": 0.0}, mode="first")
    sol = solve(system, start, None, 1.5, method=METHOD)
    found = [(k.where, round(k.t, 5), k.what) for k in hidden_kinks(sol)]
    assert found == [
        (line("first"), 0.5, "abs(x - 0.5)"),
        (line("second"), 1.3, "x > 1.6"),
    ]


def test_an_event_at_the_kink_makes_it_a_known_one():
    flow = lambda now, p: {"x": 1.0, "y": jnp.where(now.x["x"] > 0.3, 1.0, 2.0)}
    seen = Event("there", lambda now, p: now.x["x"] - 0.3, direction="rising")
    start = Instant(0.0, {"x": 0.0, "y": 0.0})
    assert len(hidden_kinks(solve(HybridSystem(flow), start, None, 1.0))) == 1
    assert hidden_kinks(solve(HybridSystem(flow, events=(seen,)), start, None, 1.0)) == ()


def test_kinks_of_a_constraint_reach_the_flow_through_the_algebraic_states():
    system = HybridSystem(
        flow=lambda now, p: {"x": 1.0, "y": now.z["i"], "q": now.z["j"]},
        constraint=lambda now, p: {
            "source": 2 * now.z["i"] + now.z["j"] - jnp.where(now.x["x"] > 0.6, 2.0, 8.0),  # jumps
            "load": now.z["j"] + 0.1 * now.z["j"] ** 3 - jnp.abs(now.x["x"] - 0.2),  # bends
        },
    )
    start = Instant(0.0, {"x": 0.0, "y": 0.0, "q": 0.0}, z={"i": 4.0, "j": 0.2})
    sol = solve(system, start, None, 1.0, method=METHOD)
    bent, jumped = hidden_kinks(sol)
    assert (bent.where, jumped.where) == (line("bends"), line("jumps"))
    assert np.allclose([bent.t, jumped.t], [0.2, 0.6], atol=1e-6)
    assert bent.jump == 0.0
    assert abs(jumped.jump - 3.0 / 4.0) < 0.01  # i falls by 3; it is at most 4


def test_a_kink_that_is_passed_all_the_time_leaves_room_for_others():
    def flow(now, p):
        fast = jnp.abs(jnp.sin(20 * now.t))  # fast
        return {"x": 1.0, "y": fast + jnp.sign(now.x["x"] - 2.95)}  # late

    sol = solve(HybridSystem(flow), Instant(0.0, {"x": 0.0, "y": 0.0}), None, 3.0)
    kinks = hidden_kinks(sol)
    assert len(kinks) <= 20
    assert {k.where for k in kinks} == {line("fast"), line("late")}
    assert int(crossed(sol.spec, sol.tape)) == int(20 * 3 / np.pi) + 1


def test_a_traced_solution_says_what_to_call_instead():
    def ask(p):
        return len(hidden_kinks(solve(OSCILLATOR, START, p, 1.0)))

    with pytest.raises(TypeError, match=r"kinks\.crossed"):
        jax.jit(ask)(0.3)


@pytest.mark.parametrize("width", [1e-2, 0.2])
def test_a_condition_that_holds_for_a_moment_inside_one_step_is_found(width):
    """At rest, steps are as long as they like: the flow is switched on and off within one."""

    def flow(now, p):
        return jnp.where(jnp.abs(now.t - p) < width, 100.0, 0.0) - now.x  # a moment

    sol = solve(HybridSystem(flow), Instant(t=0.0, x=0.0), 2.37123, 5.0)
    assert sol.certificate.verdict == "UNTRUSTED"
    assert any(kink.jump > 0.1 for kink in sol.certificate.kinks)


def test_a_bend_that_is_passed_and_passed_back_inside_one_step_is_no_jump():
    flow = lambda now, p: 1.0 + 1e-9 * jnp.maximum(0.01 - jnp.abs(now.t - p), 0.0)
    sol = solve(HybridSystem(flow), Instant(t=0.0, x=0.0), 2.37123, 5.0)
    assert sol.certificate.verdict != "UNTRUSTED"


# Jumps from 1 to 2 at x = p that no comparison of floats makes.
JUMPS = {
    "copysign": lambda u, p: 1.5 - 0.5 * jnp.copysign(1.0, u),
    "angle": lambda u, p: 1 + jnp.angle(-u + 0j) / jnp.pi,
    "is_finite": lambda u, p: 2.0 - jnp.isfinite(jnp.sqrt(u)),
    "signbit": lambda u, p: 1.0 + jnp.signbit(u),
    "exponent": lambda u, p: 1.0 + jnp.clip(jnp.frexp(p / (p - u))[1], 0, 1),
    "bits": lambda u, p: 1.0 + (jax.lax.bitcast_convert_type(u, jnp.int64) < 0),
    "shifted bits": lambda u, p: 1.0 + (jax.lax.bitcast_convert_type(u, jnp.uint64) >> 63),
}
SMOOTH = {
    "copysign far from zero": lambda u, p: jnp.copysign(u, 3.0 + u),
    "ldexp": lambda u, p: jnp.ldexp(u, 1),
    "angle": lambda u, p: jnp.arctan2(u, 1.0 + u**2),
    "complex": lambda u, p: jnp.real(jnp.exp(1j * u * p)),
}


def crossing(fn):
    """x' = fn from x = 0, past x = p = 1."""
    system = HybridSystem(lambda now, p: 0 * now.x + fn(p - now.x, p))
    return solve(system, Instant(t=0.0, x=0.0), 1.0, 1.5)


@pytest.mark.parametrize(
    "kind",
    [k if k in ("copysign", "angle") else pytest.param(k, marks=pytest.mark.slow) for k in JUMPS],
)
def test_jumps_that_no_comparison_makes_are_found(kind):
    sol = crossing(JUMPS[kind])
    found = hidden_kinks(sol)
    assert any(abs(sol(k.t) - 1.0) < 1e-5 and k.jump > 0.1 for k in found), found


@pytest.mark.parametrize("kind", SMOOTH)
def test_smooth_functions_that_look_at_bits_or_angles_are_no_kinks(kind):
    assert hidden_kinks(crossing(SMOOTH[kind])) == ()
