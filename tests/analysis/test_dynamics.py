"""Periodic motions, equilibria and linearisations, against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ellipk

import saltus
from pendulums import pendulum_constraint, pendulum_flow, pendulum_start
from saltus import Event, Exit, HybridSystem, Instant, Mode, Ramps, equilibrium, linearise, orbit
from saltus.analysis import NotFound

# -- a ball that is kicked at every bounce: v+ = k - e v-, so that v = k / (1 - e) returns --------

BALL = HybridSystem(
    lambda now, p: {"h": now.x["v"], "v": -p["g"]},
    events=[
        Event(
            "bounce",
            guard=lambda now, p: now.x["h"],
            reset=lambda now, p: now.replace(
                x={"h": now.x["h"], "v": p["k"] - p["e"] * now.x["v"]}
            ),
        )
    ],
)
P = {"g": 9.81, "e": 0.8, "k": 1.0}
UP = Instant(t=0.0, x={"h": 0.0, "v": 4.0})


def kicked(p=P, **options):
    return orbit(BALL, UP, p, event="bounce", **options)


def test_a_ball_kicked_at_every_bounce_returns_with_its_closed_form():
    found = kicked()
    assert abs(found.start.x["v"] - 5.0) < 1e-12
    assert abs(found.period - 2 * 5.0 / 9.81) < 1e-12
    np.testing.assert_allclose(found.multipliers, [1.0, 0.8], atol=1e-12)
    assert found.stable
    np.testing.assert_allclose(found.section[:, 1], [0.0, 0.8], atol=1e-12)


def test_two_bounces_are_a_period_too():
    found = kicked(count=2)
    assert abs(found.period - 4 * 5.0 / 9.81) < 1e-12
    np.testing.assert_allclose(found.multipliers, [1.0, 0.64], atol=1e-12)
    assert int(found.solution.events.count) == 2


def test_the_solution_of_an_orbit_ends_with_the_event_that_closes_it():
    found = kicked()
    assert found.solution.names == ("bounce",)
    assert abs(found.solution.events.t[0] - found.period) < 1e-12


def test_the_derivatives_of_a_period_are_exact():
    slopes = jax.grad(lambda p: kicked(p).period)(P)
    period = lambda p: 2 * p["k"] / (1 - p["e"]) / p["g"]
    for name, exact in jax.grad(period)(P).items():
        assert abs(slopes[name] - exact) < 1e-11, name


@pytest.mark.slow
def test_the_second_derivative_of_a_period_is_exact():
    curvature = jax.hessian(lambda e: kicked({**P, "e": e}).period)(0.8)
    assert abs(curvature - 4 / 0.2**3 / 9.81) < 1e-9


@pytest.mark.slow
def test_a_multiplier_has_derivatives():
    trace = lambda e: jnp.trace(kicked({**P, "e": e}).monodromy)  # 1 + e
    assert abs(jax.jacfwd(trace)(0.8) - 1.0) < 1e-10


def test_an_orbit_reads_as_its_period_start_and_stability():
    text = repr(kicked())
    assert 'period 1.019368 from "bounce" to "bounce": stable' in text
    assert "h = 0., v = 5." in text and "multipliers  1, 0.8" in text


def test_a_motion_that_cannot_close_says_how_near_it_came():
    with pytest.raises(NotFound, match="no periodic motion was found; the residual is") as error:
        kicked(free=["h"])  # v = 4 returns as 4.2
    assert error.value.best.x["v"] == 4.0 and error.value.residual > 1e-3


def test_an_event_that_does_not_come_again_is_named():
    with pytest.raises(NotFound, match=r'"bounce" does not happen again before t = 0\.5'):
        kicked(t1=0.5)


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(), "neither of event and period"),
        (dict(event="bounce", period=1.0), "both of event and period"),
        (dict(event="hop"), 'no event is called "hop"'),
        (dict(event="bounce", count=0), "count is 0"),
        (dict(event="bounce", free=["w"]), 'no state is called "w"'),
    ],
)
def test_mistakes_in_an_orbit_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        orbit(BALL, UP, P, **options)


def test_an_orbit_inside_jit_says_where_to_call_it():
    with pytest.raises(TypeError, match="Call it outside"):
        jax.jit(lambda e: kicked({**P, "e": e}).period)(0.8)


def test_states_that_are_not_free_stay():
    elastic = {**P, "e": 1.0, "k": 0.0}  # every speed returns
    found = orbit(BALL, UP, elastic, event="bounce", free=["h"])
    assert found.start.x["v"] == 4.0
    assert not found.stable and "neutral" in repr(found)


# -- other sections and drives --------------------------------------------------------------------


@pytest.mark.slow
def test_the_section_may_be_an_event_that_changes_nothing():
    """Van der Pol's limit cycle; Liouville: the multipliers' product is exp of the divergence."""
    system = HybridSystem(
        lambda now, p: {"x": now.x["y"], "y": p * (1 - now.x["x"] ** 2) * now.x["y"] - now.x["x"]},
        rate=lambda now, p: p * (1 - now.x["x"] ** 2),
        events=[Event("up", lambda now, p: now.x["x"], direction="rising")],
    )
    found = orbit(system, Instant(t=0.0, x={"x": 0.0, "y": 1.0}), 1.0, event="up")
    assert abs(found.period - 6.663286859323130) < 1e-9
    assert abs(np.prod(found.multipliers) - np.exp(found.solution.integral)) < 1e-9
    assert found.stable


def test_a_reset_that_leaves_the_state_on_its_guard_fires_once_per_period():
    """A damped oscillator kicked where it passes zero: the kick must not fire at the start."""
    kick = Event(
        "kick",
        guard=lambda now, p: now.x["x"],
        direction="rising",
        reset=lambda now, p: now.replace(x={**now.x, "v": now.x["v"] + 1.0}),
    )
    flow = lambda now, p: {"x": now.x["v"], "v": -now.x["x"] - p * now.x["v"]}
    found = orbit(
        HybridSystem(flow, events=[kick]), Instant(t=0.0, x={"x": 0.0, "v": 1.0}), 0.2, event="kick"
    )
    period = 2 * np.pi / np.sqrt(1 - 0.1**2)
    left = np.exp(-0.1 * period)
    assert abs(found.period - period) < 1e-9
    assert abs(found.start.x["v"] - 1 / (1 - left)) < 1e-9
    np.testing.assert_allclose(found.multipliers, [1.0, left], atol=1e-9)
    assert int(found.solution.events.of("kick").count) == 1


def test_a_thermostat_closes_its_cycle_in_the_mode_it_started_in():
    cold = Exit(lambda now, p: now.x["T"] - 18.0, to="on", name="cold")
    warm = Exit(lambda now, p: now.x["T"] - 22.0, to="off", direction="rising", name="warm")
    room = saltus.automaton(
        {
            "off": Mode(lambda now, p: {"T": -now.x["T"]}, exits=[cold]),
            "on": Mode(lambda now, p: {"T": 30.0 - now.x["T"]}, exits=[warm]),
        }
    )
    found = orbit(room, Instant(t=0.0, x={"T": 18.0}, mode="on"), None, event="cold")
    assert abs(found.period - np.log(22 / 18) - np.log(12 / 8)) < 1e-9
    assert found.stable


def test_a_motion_that_ends_in_another_mode_is_no_orbit():
    flip = Event(
        "flip",
        guard=lambda now, p: 1.0 - now.x["s"],
        reset=lambda now, p: now.replace(x={"s": 0.0}, mode=1 - now.mode),
    )
    modes = {name: Mode(lambda now, p: {"s": 1.0}) for name in ("left", "right")}
    system = saltus.automaton(modes, events=[flip])
    start = Instant(t=0.0, x={"s": 0.0}, mode="left")
    with pytest.raises(NotFound, match='starts in mode "left" and is in "right"'):
        orbit(system, start, None, event="flip")
    assert abs(orbit(system, start, None, event="flip", count=2).period - 2.0) < 1e-12


OSCILLATOR = HybridSystem(
    lambda now, p: {
        "x": now.x["v"],
        "v": -now.x["x"] - p["c"] * now.x["v"] + jnp.cos(p["w"] * now.t),
    },
    events=[Event("up", lambda now, p: now.x["x"], direction="rising")],
)
REST = Instant(t=0.0, x={"x": 0.0, "v": 0.0})


def test_a_driven_oscillator_has_the_response_and_the_multipliers_of_its_equation():
    p = {"c": 0.3, "w": 1.7}
    response = lambda p: jnp.real(1 / (1 - p["w"] ** 2 + 1j * p["c"] * p["w"]))
    steady = lambda p: orbit(OSCILLATOR, REST, p, period=2 * jnp.pi / p["w"])
    found = steady(p)
    assert abs(found.start.x["x"] - response(p)) < 1e-9
    exact = np.exp(np.roots([1, p["c"], 1]) * 2 * np.pi / p["w"])
    np.testing.assert_allclose(np.sort(found.multipliers), np.sort(exact), atol=1e-9)
    assert found.stable
    slopes = jax.grad(lambda p: steady(p).start.x["x"])(p)
    for name, slope in jax.grad(response)(p).items():
        assert abs(slopes[name] - slope) < 1e-8, name


def test_a_return_to_an_event_does_not_close_a_driven_motion():
    with pytest.raises(ValueError, match="driven"):
        orbit(OSCILLATOR, REST, {"c": 0.3, "w": 1.7}, event="up")


@pytest.mark.slow
def test_a_ball_on_a_vibrating_table_has_its_unstable_orbit():
    """One hit per period, at the phase with A w cos = g T (1 - e) / (2 (1 + e)); det M = e^2."""
    e, g, w = 0.6, 9.81, 4 * np.pi
    table = lambda now, p: p * jnp.sin(w * now.t)
    hit = Event(
        "hit",
        guard=lambda now, p: now.x["h"] - table(now, p),
        reset=lambda now, p: now.replace(
            x={"h": now.x["h"], "v": -e * now.x["v"] + (1 + e) * p * w * jnp.cos(w * now.t)}
        ),
    )
    system = HybridSystem(lambda now, p: {"h": now.x["v"], "v": -g}, events=[hit])
    period, later, size = 0.5, 0.1, 0.1
    phase = np.arccos(g * period / 2 * (1 - e) / (1 + e) / (size * w))
    v = g * period / 2 - g * later
    h = size * np.sin(phase) + (g * period / 2 + v) / 2 * later
    start = Instant(t=phase / w + later, x={"h": h + 1e-3, "v": v - 0.02})
    found = orbit(system, start, size, period=period)
    assert abs(found.start.x["h"] - h) < 1e-9 and abs(found.start.x["v"] - v) < 1e-9
    assert abs(np.prod(found.multipliers) - e**2) < 1e-9
    assert not found.stable


# -- coordinates that obey constraints ------------------------------------------------------------

LENGTH, GRAVITY = 1.3, 9.81
PENDULUM = HybridSystem(
    pendulum_flow,
    constraint=lambda now, p: pendulum_constraint(now, p["L"]),
    events=[Event("pass", lambda now, p: now.x["x"], direction="rising")],
)
ROD = {"L": LENGTH, "g": GRAVITY}


def test_a_pendulum_in_cartesian_coordinates_hangs_and_swings_as_it_should():
    hanging = lambda p: equilibrium(PENDULUM, pendulum_start(0.4, 0.5, 1.1), p)
    found = hanging(ROD)
    assert abs(found.x["y"] + LENGTH) < 1e-12 and abs(found.x["x"]) < 1e-12
    assert abs(found.z["lam"] - GRAVITY / LENGTH) < 1e-10
    frequency = np.sqrt(GRAVITY / LENGTH)
    values = linearise(PENDULUM, found, ROD).eigenvalues
    np.testing.assert_allclose(np.sort(values.imag), [-frequency, frequency], atol=1e-9)
    assert np.max(np.abs(values.real)) < 1e-9
    slopes = jax.jacfwd(lambda p: hanging(p).z["lam"])(ROD)
    assert abs(slopes["L"] + GRAVITY / LENGTH**2) < 1e-9


@pytest.mark.slow
def test_a_pendulum_of_index_2_swings_with_its_elliptic_period():
    start = pendulum_start(0.0, 0.5, LENGTH)
    found = orbit(PENDULUM, start, ROD, event="pass", tol=1e-8)
    speed = float(jnp.hypot(found.start.x["u"], found.start.x["w"]))
    exact = 4 * np.sqrt(LENGTH / GRAVITY) * ellipk(speed**2 / (4 * GRAVITY * LENGTH))
    assert abs(found.period - exact) < 1e-8
    np.testing.assert_allclose(np.abs(found.multipliers), [1.0, 1.0], atol=1e-5)


def test_directions_that_break_an_invariant_do_not_count():
    """The same pendulum with its multiplier written out: four states, two invariants."""

    def flow(now, p):
        x, y, u, w = (now.x[k] for k in "xyuw")
        pull = (u**2 + w**2 - p["g"] * y) / (x**2 + y**2)
        return {"x": u, "y": w, "u": -pull * x - 0.3 * u, "w": -p["g"] - pull * y - 0.3 * w}

    system = HybridSystem(flow, invariant=lambda now, p: pendulum_constraint(now, p["L"]))
    found = equilibrium(system, Instant(t=0.0, x=pendulum_start(0.4, 0.0, 1.1).x), ROD)
    values = linearise(system, found, ROD).eigenvalues
    exact = np.roots([1.0, 0.3, GRAVITY / LENGTH])
    np.testing.assert_allclose(np.sort(values), np.sort(exact), atol=1e-9)


# -- equilibria -----------------------------------------------------------------------------------


def test_an_equilibrium_follows_its_parameters():
    system = HybridSystem(lambda now, p: {"x": p - now.x["x"] ** 2, "y": now.x["x"] - now.x["y"]})
    place = lambda p: equilibrium(system, Instant(t=0.0, x={"x": 1.0, "y": 0.0}), p).x["y"]
    assert abs(place(2.0) - np.sqrt(2.0)) < 1e-12
    assert abs(jax.grad(place)(2.0) - 0.5 / np.sqrt(2.0)) < 1e-12


def test_a_system_without_equilibrium_says_so():
    system = HybridSystem(lambda now, p: {"x": 1 + now.x["x"] ** 2})
    with pytest.raises(NotFound, match=r"none was found near the guess.*x' is 1") as error:
        equilibrium(system, Instant(t=0.0, x={"x": 0.3}), None)
    assert abs(error.value.best.x["x"]) < 0.3


# -- linearisation --------------------------------------------------------------------------------

DAE = HybridSystem(
    lambda now, p: {
        "x": -now.z["z"] + p["a"] * now.x["y"],
        "y": -now.x["y"] * now.z["z"] + now.u["F"],
    },
    constraint=lambda now, p: now.z["z"] + now.z["z"] ** 3 - p["k"] * now.x["x"],
    inputs=lambda p: {"F": Ramps([0.0, 1.0], [p["f"], 2 * p["f"]])},
    output=lambda now, p: {"q": now.z["z"] * now.x["y"], "u": now.u["F"]},
)
DAE_P = {"a": 2.0, "k": 3.0, "f": 1.0}
HERE = Instant(t=0.0, x={"x": 2 / 3, "y": 0.5}, z={"z": 0.9})  # there z = 1, dz/dx = k / 4


def test_algebraic_states_are_eliminated_as_by_hand():
    found = linearise(DAE, HERE, DAE_P)
    np.testing.assert_allclose(found.A, [[-0.75, 2.0], [-0.375, -1.0]], atol=1e-12)
    np.testing.assert_allclose(found.B, [[0.0], [1.0]], atol=1e-12)
    np.testing.assert_allclose(found.C, [[0.375, 1.0], [0.0, 0.0]], atol=1e-12)
    np.testing.assert_allclose(found.D, [[0.0], [1.0]], atol=1e-12)
    assert (found.states, found.inputs, found.outputs) == (("x", "y"), ("F",), ("q", "u"))
    assert "-0.375" in repr(found)


@pytest.mark.parametrize("inputs", [["k", "f"], lambda p: (p["k"], p["f"])], ids=["names", "where"])
def test_parameters_may_be_inputs(inputs):
    found = linearise(DAE, HERE, DAE_P, inputs=inputs)
    np.testing.assert_allclose(found.B, [[-1 / 6, 0.0], [-1 / 12, 1.0]], atol=1e-12)
    np.testing.assert_allclose(found.D, [[1 / 12, 0.0], [0.0, 1.0]], atol=1e-12)


def test_along_a_motion_matrices_are_stacked_and_jumps_are_saltation_matrices():
    p = {**P, "k": 0.0}
    sol = saltus.solve(BALL, Instant(t=0.0, x={"h": 1.0, "v": 0.0}), p, 1.0)
    found = linearise(BALL, sol, p, ts=[0.0, 0.5, 0.9], inputs="g")
    assert found.A.shape == (3, 2, 2) and found.B.shape == (3, 2, 1)
    speed = np.sqrt(2 * 9.81)
    exact = [[-0.8, 0.0], [1.8 * 9.81 / speed, -0.8]]
    np.testing.assert_allclose(found.jumps.matrix, [exact], atol=1e-12)
    assert found.jumps.names == ("bounce",) and abs(found.jumps.t[0] - speed / 9.81) < 1e-12
    with pytest.raises(ValueError, match="no ts"):
        linearise(BALL, sol, p)
    with pytest.raises(ValueError, match="varies along a motion"):
        _ = found.eigenvalues


def test_flows_and_jumps_together_are_the_derivative_of_the_motion():
    p = {**P, "k": 0.0}
    fall = lambda h: saltus.solve(BALL, Instant(t=0.0, x={"h": h, "v": 0.0}), p, 1.0)
    jump = linearise(BALL, fall(1.0), p, ts=[0.0]).jumps
    t = float(jump.t[0])
    flow = lambda dt: np.array([[1.0, dt], [0.0, 1.0]])
    product = flow(1.0 - t) @ np.asarray(jump.matrix[0]) @ flow(t)
    slope = jax.jacfwd(lambda h: fall(h).final.x)(1.0)
    np.testing.assert_allclose(product[:, 0], [slope["h"], slope["v"]], atol=1e-10)


# -- instants along a solution --------------------------------------------------------------------


def test_a_solution_gives_the_instant_at_any_time_from_either_side():
    sol = saltus.solve(BALL, Instant(t=0.0, x={"h": 1.0, "v": 0.0}), {**P, "k": 0.0}, 1.0)
    hit = np.sqrt(2 / 9.81)
    assert abs(sol.at(0.2).x["h"] - (1 - 9.81 * 0.02)) < 1e-10
    speeds = [float(sol.at(hit, side).x["v"]) for side in ("left", "right")]
    np.testing.assert_allclose(speeds, [-9.81 * hit, 0.8 * 9.81 * hit], atol=1e-8)
    assert sol.at([0.1, 0.2, 0.3]).x["h"].shape == (3,)
