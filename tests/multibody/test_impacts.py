"""Impacts, contacts and jumps of mechanisms: velocities change as they should."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from mechanisms import (
    BALL,
    LENGTHS,
    PENDULUM,
    ends,
    five_bar,
    five_bar_start,
    hanging,
    pendulum,
    run,
    thrown,
)
from saltus.multibody import Mechanism, contact, ground, jump, release, stop

TIGHT = saltus.Tsit5(rtol=1e-10, atol=1e-10)


def landing(mechanism, p, speed=3.0):
    start = mechanism.start({"x": 0.0, "y": 1.0}, {"x": speed, "y": 0.0}, p)
    return saltus.solve(mechanism.system(), start, p, 1.0, method=TIGHT).final.x["v"]


def test_a_ball_bounces_and_its_derivatives_are_those_of_the_formula():
    ball = thrown(restitution=lambda now, p: p["e"])

    def exact(p):
        fall = jnp.sqrt(2.0 / p["g"])
        return p["e"] * p["g"] * fall - p["g"] * (1.0 - fall)

    np.testing.assert_allclose(landing(ball, BALL)["y"], exact(BALL), rtol=1e-9)
    ours, theirs = jax.grad(lambda p: landing(ball, p)["y"])(BALL), jax.grad(exact)(BALL)
    for name in BALL:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("speed, left", [(3.0, 3.0 - 0.18 * np.sqrt(2 * 9.81)), (0.5, 0.0)])
def test_friction_takes_speed_until_the_point_sticks(speed, left):
    ball = thrown(restitution=lambda now, p: p["e"], friction=lambda now, p: p["mu"])
    np.testing.assert_allclose(landing(ball, BALL, speed)["x"], left, atol=1e-12)


def test_an_impulse_may_act_along_a_normal_of_its_own():
    """Its length does not matter; the gap, which moves, is what bounces."""
    falling = Mechanism(
        mass={"x": 1.0, "y": 2.0},
        force=lambda now, p: {"x": 0.0, "y": 0.0},
        contacts=contact(
            "floor", lambda now, p: 3.0 * (now.q["y"] - 0.5 * now.t), restitution=0.5,
            normal=lambda now, p: {"x": 0.4 * p, "y": 0.8 * p},
        ),
    )  # fmt: skip
    for length in (1.0, 7.0):
        sol = run(falling, {"x": 0.0, "y": 1.0}, {"x": 0.0, "y": -1.0}, p=length, t1=0.8)
        v = sol.events.after.x["v"]
        np.testing.assert_allclose(v["y"][0] - 0.5, 0.5 * 1.5, rtol=1e-12)
        np.testing.assert_allclose(v["x"][0], 0.5 * 2.0 * (v["y"][0] + 1.0), rtol=1e-12)


def rod_on_two_feet(impacts):
    """A uniform rod of length 2 falls flat on two bumps under its ends."""
    feet = [
        contact(
            name,
            gap=lambda now, p, side=side: now.q["y"] + side * jnp.sin(now.q["turn"]),
            restitution=lambda now, p: p["e"],
        )
        for name, side in (("left", -1.0), ("right", 1.0))
    ]
    return Mechanism(
        mass=lambda now, p: {"y": 1.0, "turn": 1 / 3},
        force=lambda now, p: {"y": -9.81, "turn": 0.0},
        contacts=feet,
        impacts=impacts,
    )


def struck_in_turn(fall, e):
    """Speed and rate of the rod after impacts of its left and right end, until none falls."""
    speed, rate, side = fall, 0.0, -1.0
    while min(speed - rate, speed + rate) < 0:
        push = -(1 + e) * (speed + side * rate) / (1.0 + 3.0)
        speed, rate, side = speed + push, rate + 3.0 * side * push, -side
    return speed, rate


@pytest.mark.slow
def test_two_feet_that_land_together_are_two_models():
    """Together, the rod jumps back as it came; one by one, the impacts leave it turning."""
    p = {"e": 0.5}
    fall = -np.sqrt(2 * 9.81)
    expected = {"together": (-0.5 * fall, 0.0), "one by one": struck_in_turn(fall, 0.5)}
    for impacts, (speed, rate) in expected.items():
        rod = rod_on_two_feet(impacts)
        start = rod.start({"y": 1.0, "turn": 0.0}, None, p)
        v = saltus.solve(rod.system(), start, p, 0.6, method=TIGHT).events.after.x["v"]
        np.testing.assert_allclose([v["y"][-1], v["turn"][-1]], [speed, rate], atol=1e-12)


def row_of_balls(count, e, impacts="one by one"):
    """Balls on a line that touch where their coordinates are equal."""
    touching = [
        contact(f"{k}", gap=lambda now, p, k=k: now.q["x"][k + 1] - now.q["x"][k], restitution=e)
        for k in range(count - 1)
    ]
    return Mechanism(mass=1.0, contacts=touching, impacts=impacts)


@pytest.mark.parametrize(
    "x, v, after",
    [
        ([-1.0, 0.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 0.0, 1.0]),
        ([-1.0, -1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]),
        ([-1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]),
    ],
)
def test_touching_balls_are_struck_until_none_approaches(x, v, after):
    balls = row_of_balls(3, 1.0)
    start = balls.start({"x": jnp.array(x)}, {"x": jnp.array(v)})
    final = saltus.solve(balls.system(), start, None, 3.0).final.x
    np.testing.assert_allclose(final["v"]["x"], after, atol=1e-12)
    assert np.all(np.diff(final["q"]["x"]) > -1e-12)


@pytest.mark.parametrize("impacts", ["one by one", "together"])
@pytest.mark.parametrize("e", [0.3, 0.9])
def test_touching_balls_that_lose_energy_never_end_up_approaching(impacts, e):
    balls = row_of_balls(4, e, impacts)
    start = balls.start(
        {"x": jnp.array([-1.0, -1.0, 0.0, 0.0])}, {"x": jnp.array([1.0, 1.0, 0, 0])}
    )
    final = saltus.solve(balls.system(), start, None, 2.0).final
    v, x = final.x["v"]["x"], final.x["q"]["x"]
    np.testing.assert_allclose(jnp.sum(v), 2.0, rtol=1e-9)
    assert np.all(np.diff(v) > -1e-9) and np.all(np.diff(x) > -1e-9)
    assert jnp.sum(v**2) < 1.9  # of 2


def test_bodies_inside_each_other_at_the_start_are_refused():
    ball = thrown()
    start = ball.start({"x": 0.0, "y": -0.1}, None, BALL)
    with pytest.raises(ValueError, match=r'contact "ground" is -0\.1 at the start'):
        saltus.solve(ball.system(), start, BALL, 1.0)


def test_a_gap_within_rounding_of_zero_is_closed():
    """A solve may start where another one ended, at an impact."""
    ball = thrown(restitution=1.0)
    for height in (1e-16, 0.0, -1e-300, -1e-16):
        start = ball.start({"x": 0.0, "y": height}, {"x": 0.0, "y": -1.0}, BALL)
        sol = saltus.solve(ball.system(), start, BALL, 0.1)
        assert sol.events.count == 1 and sol.final.x["q"]["y"] > 0.0


@pytest.mark.slow
def test_only_contacts_in_force_take_part_in_an_impact_together():
    room = Mechanism(
        mass=1.0,
        constraint=lambda now, p: {"held": now.q["x"] - 9.0},
        phases={"open": (), "shut": "held"},
        impacts="together",
        contacts=[
            contact("floor", lambda now, p: now.q["y"], restitution=1.0),
            contact("gate", lambda now, p: now.q["x"], restitution=1.0, phases="shut"),
        ],
    )
    final = run(room, {"x": 1.0, "y": 1.0}, {"x": -1.0, "y": -1.0}, t1=2.0, phase="open").final
    np.testing.assert_allclose([final.x["q"]["x"], final.x["q"]["y"]], [-1.0, 1.0], atol=1e-12)


def test_a_constraint_that_would_have_to_pull_from_the_beginning_lets_go():
    lifted = Mechanism(
        mass=1.0,
        force=lambda now, p: {"y": 1.0},
        constraint=lambda now, p: {"foot": now.q["y"]},
        phases={"fly": (), "stick": "foot"},
        contacts=release("leave", lambda now, p: now.lam["foot"], phases="stick", to="fly"),
    )
    final = run(lifted, {"y": 0.0}, t1=2.0, phase="stick").final
    np.testing.assert_allclose(final.x["q"]["y"], 2.0, rtol=1e-9)


def test_velocities_of_a_jump_that_are_not_given_stay():
    kick = jump(
        "kick",
        guard=lambda now, p: now.q["r"][1],
        velocities=lambda now, p: {"r": jnp.array([99.0, 3.0])},
        given={"r": np.array([False, True])},
    )
    fall = Mechanism(mass=1.0, force=lambda now, p: {"r": jnp.array([0.0, -9.81])}, contacts=kick)
    sol = run(fall, {"r": jnp.array([0.0, 1.0])}, {"r": jnp.array([1.0, 0.0])}, t1=0.6)
    np.testing.assert_allclose(sol.events.after.x["v"]["r"][0], [1.0, 3.0], rtol=1e-12)


def test_a_contact_may_change_the_discrete_state_as_well():
    counted = thrown(
        restitution=0.5, then=lambda now, p: now.replace(d={"hits": now.d["hits"] + 1})
    )
    start = counted.start({"x": 0.0, "y": 1.0}, None, BALL, d={"hits": 0})
    assert saltus.solve(counted.system(), start, BALL, 1.0).final.d["hits"] == 2


@pytest.mark.slow
def test_a_plastic_impact_conserves_momentum_along_what_is_free():
    """Two masses that a third constraint couples when they meet: they go on together."""
    pair = Mechanism(
        mass=lambda now, p: {"a": p["m"], "b": 1.0},
        constraint=lambda now, p: {"coupled": now.q["b"] - now.q["a"]},
        phases={"apart": (), "coupled": "coupled"},
        contacts=contact("couple", lambda now, p: now.q["b"] - now.q["a"], to="coupled"),
    )

    def speed(p, form):
        start = pair.start({"a": 0.0, "b": 1.0}, {"a": 2.0, "b": 0.5}, p, phase="apart")
        sol = saltus.solve(pair.system(form), start, p, 1.0)
        return sol.final.x["v"]["b"]

    for form in ("index1", "index2", "penalty"):
        value, slope = jax.value_and_grad(speed)({"m": 3.0}, form)
        np.testing.assert_allclose(value, (3.0 * 2.0 + 0.5) / 4.0, rtol=1e-9)
        np.testing.assert_allclose(slope["m"], (2.0 - 0.5) / 16.0, rtol=1e-8)


def hopper():
    """A mass on a springy, massless leg: it flies, lands, and leaves when the leg stops pushing."""
    return Mechanism(
        mass=lambda now, p: {"y": p["m"], "foot": 0.1},
        potential=lambda now, p: (
            p["m"] * 9.81 * now.q["y"]
            + 0.981 * now.q["foot"]
            + 0.5 * p["k"] * (now.q["y"] - now.q["foot"] - 1.0) ** 2
        ),
        constraint=lambda now, p: {"stance": now.q["foot"]},
        phases={"flight": (), "stance": "stance"},
        contacts=[
            ground("land", point=lambda now, p: (0.0, now.q["foot"]), phases="flight", to="stance"),
            release("leave", lambda now, p: now.lam["stance"], phases="stance", to="flight"),
        ],
        output=lambda now, p: {"y": now.q["y"], "foot": now.q["foot"], "push": now.lam["stance"]},
    )


@pytest.mark.parametrize("form", ["index1", pytest.param("index2", marks=pytest.mark.slow)])
def test_a_hopper_lands_and_leaves(form):
    p = {"m": 1.0, "k": 400.0}
    hop = hopper()
    start = hop.start({"y": 1.6, "foot": 0.6}, None, p, phase="flight")
    sol = saltus.solve(hop.system(form), start, p, 1.5)
    assert sol.events.count >= 3
    land, leave = sol.events.of("land"), sol.events.of("leave")
    np.testing.assert_allclose(land.after.x["v"]["foot"], 0.0, atol=1e-9)
    np.testing.assert_allclose(land.after.x["v"]["y"], land.before.x["v"]["y"], rtol=1e-9)
    assert np.all(leave.t > land.t[: len(leave.t)])


def test_a_slow_impact_comes_to_rest_where_a_bouncing_ball_would_be_zeno():
    ball = Mechanism(
        mass=1.0,
        force=lambda now, p: {"y": -9.81},
        constraint=lambda now, p: {"floor": now.q["y"]},
        phases={"flying": (), "resting": "floor"},
        contacts=ground(
            point=lambda now, p: (0.0, now.q["y"]), restitution=0.5, phases="flying",
            to="resting", below=1e-2,
        ),
        output=lambda now, p: {"y": now.q["y"], "weight": now.lam["floor"]},
    )  # fmt: skip
    start = ball.start({"y": 1.0}, None, None, phase="flying")
    sol = saltus.solve(ball.system(), start, None, 3.0)
    np.testing.assert_allclose(sol.y["weight"], 9.81, rtol=1e-12)
    np.testing.assert_allclose(sol.y["y"], 0.0, atol=1e-12)


def test_a_stop_bounds_a_coordinate_from_either_side():
    cart = Mechanism(
        mass=1.0,
        contacts=[
            stop("left", lambda now, p: now.q["x"], at=-1.0, restitution=1.0),
            stop("right", lambda now, p: now.q["x"], at=lambda now, p: p, side="below",
                 restitution=1.0),
        ],
    )  # fmt: skip
    start = cart.start({"x": 0.0}, {"x": 1.0}, 1.0)
    sol = saltus.solve(cart.system(), start, 1.0, 10.5)
    np.testing.assert_allclose(sol.events.t, [1.0, 3.0, 5.0, 7.0, 9.0], rtol=1e-12)


# -- jumps that are given -------------------------------------------------------------------------
def test_dependent_velocities_follow_the_given_ones():
    bars = five_bar()
    p = {"L0": LENGTHS, "ends": ends("P6a")}
    start = five_bar_start(bars, p)
    system = bars.system()
    now = start.replace(x={"q": start.x["q"], "v": {k: jnp.ones(2) for k in start.x["v"]}})
    floor = system.events[0]
    after = floor.reset(now, p)
    np.testing.assert_array_equal(after.x["v"]["p2"], [1.0, -1.0])
    left = bars.residuals(after, p)["velocity"]
    np.testing.assert_allclose(jax.tree.leaves(left), 0.0, atol=1e-14)


def test_without_given_velocities_the_partition_is_chosen_by_pivoting():
    """Where the rod is upright its length fixes y, where it is level it fixes x."""
    kick = jump(
        "kick",
        guard=lambda now, p: now.q["x"] - 10.0,
        velocities=lambda now, p: {"x": 1.0, "y": 1.0},
    )
    swing = pendulum(contacts=kick)
    reset = swing.system().events[0].reset
    for angle, expected in ((0.1, (1.0, np.tan(0.1))), (1.5, (1 / np.tan(1.5), 1.0))):
        v = reset(hanging(swing, PENDULUM, angle), PENDULUM).x["v"]
        np.testing.assert_allclose([v["x"], v["y"]], expected, rtol=1e-12)
