"""Kinks inside a flow that make their own events."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

from saltus import HybridSystem, Instant, Tsit5, solve, when

METHOD = Tsit5(rtol=1e-11, atol=1e-11)
P = {"g": 9.81, "k": 1000.0}


def floor(choose):
    """A ball on an elastic floor; the integral is the time in contact."""
    return HybridSystem(
        flow=lambda now, p: {
            "h": now.x["v"],
            "v": -p["g"] + choose(now.x["h"] < 0, -p["k"] * now.x["h"], 0.0),
        },
        rate=lambda now, p: choose(now.x["h"] < 0, 1.0, 0.0),
    )


def drop(p, choose=when):
    start = Instant(t=0.0, x={"h": 1.0, "v": 0.0})
    return solve(floor(choose), start, p, 1.0, method=METHOD)


def contact_time(p):
    """The half swing below zero of h'' = -g - k h from (0, -sqrt(2 g)): closed form, one root."""
    w, v = np.sqrt(p["k"]), np.sqrt(2 * p["g"])
    sag = p["g"] / p["k"]

    def height(t):
        return -sag + sag * np.cos(w * t) - v / w * np.sin(w * t)

    return brentq(height, 0.5 * np.pi / w, 1.5 * np.pi / w, xtol=1e-15)


def test_a_kink_is_located_as_an_event():
    assert abs(drop(P).integral - contact_time(P)) < 1e-10


def test_derivatives_pass_through_a_kink():
    gradient = jax.grad(lambda p: drop(p).integral)(P)
    for name in P:
        step = 1e-4 * P[name]
        more, less = {**P, name: P[name] + step}, {**P, name: P[name] - step}
        exact = (contact_time(more) - contact_time(less)) / (2 * step)
        assert abs(gradient[name] - exact) < 1e-6 * abs(exact)  # the difference has h**2 error


def test_kinks_do_not_show_in_the_event_log():
    assert int(drop(P).events.count) == 0


def test_a_marked_kink_costs_fewer_steps_than_a_hidden_one():
    marked, hidden = drop(P).stats, drop(P, jnp.where).stats
    assert int(marked.steps) < 0.7 * int(hidden.steps)
    assert int(marked.rejected) < 0.3 * int(hidden.rejected)


def test_conditions_may_be_combined_and_nested_in_jit():
    """|x| by a two-sided band: slope 1 inside (-1, 1), 0 outside; closed form in time."""

    @jax.jit
    def band(x):
        return when((x > -1.0) & (x < 1.0), 1.0, 0.25)

    system = HybridSystem(flow=lambda now, p: p * band(now.x))

    def end(p):
        return solve(system, Instant(t=0.0, x=-2.0), p, 10.0, method=METHOD).final.x

    # 4/p to reach -1, 2/p to reach 1, then a quarter of the rate
    assert abs(end(1.0) - 2.0) < 1e-12
    assert abs(jax.grad(end)(1.0) - 2.5) < 1e-12
    assert abs(jax.jvp(end, (1.0,), (1.0,))[1] - 2.5) < 1e-12


def test_a_kink_at_the_start_takes_the_side_it_moves_to():
    system = HybridSystem(flow=lambda now, p: {"x": 1.0, "y": when(now.x["x"] > 0, 2.0, -5.0)})
    sol = solve(system, Instant(t=0.0, x={"x": 0.0, "y": 0.0}), None, 1.0, method=METHOD)
    assert abs(sol.final.x["y"] - 2.0) < 1e-12


def test_outside_of_flows_it_selects():
    assert when(True, 1.0, 2.0) == 1.0
    assert np.array_equal(jax.vmap(lambda x: when(x, x, 0.0))(jnp.array([-1.0, 3.0])), [0.0, 3.0])


def test_equality_is_refused():
    system = HybridSystem(flow=lambda now, p: when(now.x == 0.0, 1.0, 2.0))
    with pytest.raises(ValueError, match="Compare with"):
        solve(system, Instant(t=0.0, x=1.0), None, 1.0)


def test_a_kink_inside_a_loop_says_what_to_do():
    def flow(now, p):
        return jax.lax.fori_loop(0, 3, lambda i, s: s + when(now.x > 0, 1.0, 0.0), now.x)

    with pytest.raises(NotImplementedError, match="outside of loops"):
        solve(HybridSystem(flow=flow), Instant(t=0.0, x=1.0), None, 1.0)


@pytest.mark.slow
def test_lanes_have_their_own_kinks():
    ks = jnp.array([500.0, 1000.0, 2000.0])
    together = jax.vmap(lambda k: drop({**P, "k": k}).integral)(ks)
    alone = [contact_time({**P, "k": float(k)}) for k in ks]
    assert np.allclose(together, alone, atol=1e-9)
