"""Modes with constraints of their own: algebraic states that a mode lacks are pinned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from messages import mentions
from saltus import Exit, Instant, Mode, automaton, solve

TIGHT = saltus.Radau5(rtol=1e-10, atol=1e-10)


# A hopper flies, lands, stands on a spring and damper with the contact force as algebraic state,
# and leaves when the force is gone. In the air there is no contact force: it is pinned to zero.


def hopper(**changes):
    land = Exit(lambda now, p: now.x["h"], to="stand", name="land", when="edge")
    leave = Exit(lambda now, p: now.z["force"], to="fly", name="leave", when="edge")
    spring = lambda now, p: {"force": now.z["force"] + p["k"] * now.x["h"] + p["c"] * now.x["v"]}
    stand = {"constraint": spring, "exits": [leave], **changes}
    flow = lambda now, p: {"h": now.x["v"], "v": now.z["force"] - 9.81}
    return automaton({"fly": Mode(flow, exits=[land]), "stand": Mode(flow, **stand)})


def hop(system, p, end=0.7, method=TIGHT, **start):
    given = {"x": {"h": 0.2, "v": 0.0}, "z": {"force": 0.0}, "mode": "fly", **start}
    return solve(system, Instant(t=0.0, **given), p, end, method=method)


@pytest.mark.slow
def test_an_algebraic_state_is_pinned_in_modes_that_do_not_determine_it():
    system, p = hopper(), {"k": 400.0, "c": 4.0}

    def landing(p):
        """Speed and time of leaving, from the matrix exponential of the stance."""
        t, v = jnp.sqrt(0.4 / 9.81), -jnp.sqrt(0.4 * 9.81)
        A = jnp.array([[0.0, 1.0], [-p["k"], -p["c"]]])
        rest = jnp.array([-9.81 / p["k"], 0.0])
        stance = lambda s: rest + jax.scipy.linalg.expm(s * A) @ (jnp.array([0.0, v]) - rest)
        force = lambda s: -p["k"] * stance(s)[0] - p["c"] * stance(s)[1]
        s = 0.13
        for _ in range(30):
            s = s - force(s) / jax.grad(force)(s)
        return t + s, stance(s)

    sol = hop(system, p)
    assert [sol.events.names[k] for k in sol.events.which] == ["land", "leave", "land"]
    when, state = landing(p)
    assert np.isclose(sol.events.t[1], when, atol=1e-8)
    left = sol.events.of("leave")
    assert np.allclose([left.before.x["h"][0], left.before.x["v"][0]], state, atol=1e-7)
    assert abs(float(left.after.z["force"][0])) < 1e-9
    first = sol.events.of("land").after.z["force"][0]
    assert np.isclose(first, p["c"] * np.sqrt(0.4 * 9.81), atol=1e-7)
    slope = jax.grad(lambda p: hop(system, p).events.t[1])(p)
    exact = jax.jacfwd(lambda p: landing(p)[0])(p)
    assert all(np.isclose(slope[k], exact[k], rtol=1e-6) for k in p)


def test_pins_do_not_let_a_singular_mode_spoil_gradients_elsewhere():
    # The second mode's equation is singular at the first mode's states.
    modes = {
        "a": Mode(lambda now, p: {"x": -p}, exits=[Exit(lambda now, p: now.x["x"] + 1, to="b")]),
        "b": Mode(
            lambda now, p: {"x": -now.z["r"]},
            constraint=lambda now, p: {"r": now.z["r"] - jnp.sqrt(-1 - now.x["x"] + 1e-3)},
        ),
    }
    start = Instant(t=0.0, x={"x": 0.0}, z={"r": 0.0}, mode="a")
    end = lambda p: solve(automaton(modes), start, p, 0.5).final.x["x"]
    assert np.isclose(jax.grad(end)(1.0), -0.5)


def test_an_equation_for_an_algebraic_state_that_does_not_exist():
    with pytest.raises(ValueError) as caught:
        hop(hopper(constraint=lambda now, p: {"push": now.z["force"]}), {"k": 1.0, "c": 1.0})
    mentions(caught, 'mode "stand"', '"push"', "'force'")


def test_an_equation_of_another_shape_than_its_algebraic_state():
    with pytest.raises(ValueError) as caught:
        hop(hopper(constraint=lambda now, p: {"force": jnp.zeros(2)}), {"k": 1.0, "c": 1.0})
    mentions(caught, 'mode "stand"', "constraint", "pinned")


def test_modes_with_constraints_and_a_start_without_algebraic_states():
    with pytest.raises(ValueError) as caught:
        hop(hopper(), {"k": 1.0, "c": 1.0}, z=None)
    mentions(caught, "z")


def test_exits_in_the_place_of_the_constraint():
    exit = Exit(lambda now, p: now.x, to="a")
    with pytest.raises(TypeError) as caught:
        automaton({"a": Mode(lambda now, p: 1.0, [exit])})
    mentions(caught, 'mode "a"', "constraint", "exits=[")
