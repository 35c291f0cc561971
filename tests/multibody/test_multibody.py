"""Mechanisms: the same motion from every formulation, and velocities that jump as they should."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from mechanisms import (
    LENGTHS,
    PENDULUM,
    SPRINGS,
    angle_system,
    ends,
    five_bar,
    five_bar_answers,
    five_bar_outputs,
    five_bar_start,
    five_bar_truth,
    hanging,
    pendulum,
)
from saltus.multibody import Mechanism, contact, ground, jump, release, stop

SLOW = pytest.mark.slow
TIGHT = saltus.Tsit5(rtol=1e-10, atol=1e-10)


# -- five bars against the reference --------------------------------------------------------------
@pytest.mark.parametrize("form", ["index1", pytest.param("index2", marks=SLOW)])
@pytest.mark.parametrize("variant", SPRINGS)
def test_five_bars_agree_with_the_reference(form, variant):
    values, slopes, residuals = five_bar_answers(form)(LENGTHS, ends(variant))
    exact, exact_slopes = five_bar_truth(variant)
    happened = np.isfinite(exact)
    np.testing.assert_array_equal(np.isfinite(values), happened)
    np.testing.assert_allclose(values[happened], exact[happened], rtol=1e-7)
    np.testing.assert_allclose(slopes[happened], exact_slopes[happened], rtol=1e-6)
    assert np.all(residuals < 1e-12)


@SLOW
@pytest.mark.parametrize("form", ["index1", "index2"])
def test_hessians_of_five_bars_are_differences_of_gradients(form):
    def height(lengths):
        return five_bar_outputs(form)(lengths, ends("P6a"))[0][1]

    hessian = jax.hessian(height)(LENGTHS)
    step = 1e-4 * np.eye(2)
    gradient = jax.jit(jax.grad(height))
    weights = {1: 2 / 3, 2: -1 / 12}  # fourth order
    for k in range(2):
        change = sum(
            w * (gradient(LENGTHS + j * step[k]) - gradient(LENGTHS - j * step[k])) / 1e-4
            for j, w in weights.items()
        )
        np.testing.assert_allclose(hessian[k], change, rtol=1e-5)


@SLOW
@pytest.mark.parametrize("variant", ["P6a", "P6d"])
def test_the_penalty_form_is_as_exact_as_its_constants_allow(variant):
    """Residuals are about lam / (alpha omega^2), here 1e-8; impacts multiply them."""
    values, slopes, residuals = five_bar_answers("penalty")(LENGTHS, ends(variant))
    exact, exact_slopes = five_bar_truth(variant)
    happened = np.isfinite(exact)
    np.testing.assert_allclose(values[happened], exact[happened], rtol=1e-6)
    np.testing.assert_allclose(slopes[happened], exact_slopes[happened], rtol=5e-6)
    assert np.all((residuals > 1e-10) & (residuals < 1e-7))


@SLOW
def test_tangent_and_adjoint_of_five_bars_agree():
    def height(lengths):
        return five_bar_outputs("index1")(lengths, ends("P6a"))[0][1]

    adjoint = jax.grad(height)(LENGTHS)
    slopes = five_bar_answers("index1")(LENGTHS, ends("P6a"))[1]
    np.testing.assert_allclose(adjoint, slopes[1], rtol=1e-12)


# -- a pendulum -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "form, method",
    [
        ("index1", saltus.Tsit5(rtol=1e-9, atol=1e-9)),
        pytest.param("index2", saltus.Radau5(rtol=1e-8, atol=1e-8), marks=pytest.mark.slow),
    ],
)
def test_a_pendulum_does_not_drift_in_a_minute(form, method):
    swing = pendulum(output=lambda now, p: {"q": now.q, "v": now.v})
    start = hanging(swing, PENDULUM, 1.5)
    ts = np.linspace(0.0, 60.0, 201)
    y = saltus.solve(swing.system(form), start, PENDULUM, 60.0, ts=ts, method=method).y
    q, v = y["q"], y["v"]
    position = 0.5 * (q["x"] ** 2 + q["y"] ** 2 - PENDULUM["L"] ** 2)
    velocity = q["x"] * v["x"] + q["y"] * v["y"]
    np.testing.assert_allclose(position, 0.0, atol=1e-10)
    np.testing.assert_allclose(velocity, 0.0, atol=1e-10)
    energy = 0.5 * (v["x"] ** 2 + v["y"] ** 2) + PENDULUM["g"] * q["y"]
    np.testing.assert_allclose(energy, energy[0], atol=1e-5)


def test_the_error_of_the_penalty_form_falls_with_its_stiffness():
    swing = pendulum(output=lambda now, p: {"x": now.q["x"], "pull": now.lam["rod"]})

    def end(alpha):
        start = hanging(swing, PENDULUM, 1.0)
        system = swing.system("penalty", alpha=alpha)
        return saltus.solve(system, start, PENDULUM, 2.0, method=TIGHT)

    exact = saltus.solve(swing.system(), hanging(swing, PENDULUM, 1.0), PENDULUM, 2.0, method=TIGHT)
    errors = np.array([abs(float(end(a).y["x"] - exact.y["x"])) for a in (1e4, 1e5, 1e6)])
    np.testing.assert_allclose(errors[:-1] / errors[1:], 10.0, rtol=0.1)
    np.testing.assert_allclose(end(1e6).y["pull"], exact.y["pull"], rtol=1e-4)


@pytest.mark.slow
def test_gradients_of_mechanisms_can_be_batched():
    swing = pendulum(
        contacts=stop("wall", lambda now, p: now.q["x"], at=0.4, side="below", restitution=0.7)
    )

    def end(p):
        start = hanging(swing, p, -0.9)
        return saltus.solve(swing.system(), start, p, 1.5, max_steps=256).final.x["q"]["x"]

    lengths = jnp.array([1.1, 1.2, 1.3])
    slope = jax.grad(lambda length: end({**PENDULUM, "L": length}))
    many = jax.jit(jax.vmap(slope))(lengths)
    np.testing.assert_allclose(many, [slope(v) for v in lengths], rtol=1e-9)


def test_multipliers_accelerations_and_costs_are_those_of_the_angle():
    swing = pendulum(
        cost=lambda now, p: now.lam["rod"] ** 2 + now.a["x"] ** 2,
        output=lambda now, p: {"pull": now.lam["rod"], "a": now.a, "q": now.q},
    )
    p = {**PENDULUM}

    def end(p):
        sol = saltus.solve(swing.system(), hanging(swing, p, 1.0, 0.4), p, 2.0, method=TIGHT)
        return jnp.stack([sol.y["q"]["x"], sol.y["pull"], sol.integral])

    def by_angle(p):
        def pull(now, p):
            return -p["m"] * (p["g"] * jnp.cos(now.x["angle"]) / p["L"] + now.x["speed"] ** 2)

        def sideways(now, p):
            s, c = jnp.sin(now.x["angle"]), jnp.cos(now.x["angle"])
            return -p["g"] * s * c - p["L"] * now.x["speed"] ** 2 * s

        system = saltus.HybridSystem(
            angle_system().flow,
            rate=lambda now, p: pull(now, p) ** 2 + sideways(now, p) ** 2,
            output=lambda now, p: (p["L"] * jnp.sin(now.x["angle"]), pull(now, p)),
        )
        start = saltus.Instant(0.0, {"angle": 1.0, "speed": 0.4})
        sol = saltus.solve(system, start, p, 2.0, method=TIGHT)
        return jnp.stack([*sol.y, sol.integral])

    np.testing.assert_allclose(end(p), by_angle(p), rtol=1e-8)
    ours, theirs = jax.jacfwd(end)(p), jax.jacfwd(by_angle)(p)
    for name in p:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-7, atol=1e-8)


# -- impacts --------------------------------------------------------------------------------------
def thrown(**more):
    """A point mass over the ground."""
    return Mechanism(
        mass=lambda now, p: p["m"],
        force=lambda now, p: {"x": 0.0, "y": -p["m"] * p["g"]},
        contacts=ground(point=lambda now, p: (now.q["x"], now.q["y"]), **more),
    )


BALL = {"m": 2.0, "g": 9.81, "e": 0.8, "mu": 0.1}


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
    """An endless sequence of ever weaker impacts is one the library may also refuse, by name."""
    balls = row_of_balls(4, e, impacts)
    start = balls.start(
        {"x": jnp.array([-1.0, -1.0, 0.0, 0.0])}, {"x": jnp.array([1.0, 1.0, 0, 0])}
    )
    sol = saltus.solve(balls.system(), start, None, 2.0, throw=False)
    v, x = sol.last.x["v"]["x"], sol.last.x["q"]["x"]
    np.testing.assert_allclose(jnp.sum(v), 2.0, rtol=1e-9)
    if sol.result == saltus.Result.success:
        assert np.all(np.diff(v) > -1e-9) and np.all(np.diff(x) > -1e-9)
    else:
        assert sol.result in (saltus.Result.endless_chain, saltus.Result.resting_contact)


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


def test_constraints_that_come_to_contradict_each_other_are_no_success():
    torn = Mechanism(
        mass=1.0,
        constraint=lambda now, p: {"a": now.q["x"], "b": now.q["x"] - 0.1 * now.t**2},
    )
    with pytest.warns(UserWarning, match="follow from the others"):
        start = torn.start({"x": 0.0, "y": 0.0})
    with pytest.raises(saltus.SolveError, match="contradict each other"):
        saltus.solve(torn.system(), start, None, 1.0)


def test_energies_and_residuals_of_many_instants():
    swing = pendulum()
    sol = saltus.solve(swing.system(), hanging(swing, PENDULUM, 1.0), PENDULUM, 1.0)
    now = sol.at(jnp.array([0.1, 0.5, 0.9]))
    energy = swing.energy(hanging(swing, PENDULUM, 1.0), PENDULUM)
    np.testing.assert_allclose(swing.energy(now, PENDULUM), energy, rtol=1e-6)
    assert swing.residuals(now, PENDULUM)["position"]["rod"].shape == (3,)


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


# -- redundant and singular constraints -----------------------------------------------------------
def braced(redundant=True):
    """A parallelogram of two cranks with a brace along its coupler: one constraint too many."""

    def constraint(now, p):
        a, b = now.q["a"], now.q["b"]
        one = jnp.array([1.0, 0.0])
        rows = {"A": a @ a - 1.0, "B": (b - one) @ (b - one) - 1.0, "bar": (b - a) @ (b - a) - 1.0}
        if redundant:
            rows["brace"] = 2.0 * rows["bar"] + rows["A"]
        return rows

    return Mechanism(
        mass=1.0,
        potential=lambda now, p: p["g"] * (now.q["a"][1] + now.q["b"][1]),
        constraint=constraint,
    )


def at_angle(mechanism, p, angle):
    tip = jnp.array([np.sin(angle), -np.cos(angle)])
    return mechanism.start({"a": tip, "b": tip + jnp.array([1.0, 0.0])}, None, p)


def test_redundant_constraints_are_named_and_change_nothing():
    p = {"g": 9.81}
    ends = []
    for redundant in (True, False):
        bars = braced(redundant)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            start = at_angle(bars, p, 0.7)
        assert len(caught) == redundant
        assert not redundant or "brace" in str(caught[0].message)
        report = bars.report(start, p)
        assert (report.rank, report.freedom) == (3, 1)
        assert report.redundant == (("brace",) if redundant else ())

        def end(p, bars=bars, start=start):
            return saltus.solve(bars.system(), start, p, 2.0, method=TIGHT).final.x["q"]["a"][0]

        ends.append((end(p), jax.grad(end)(p)["g"]))
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-9)


def test_the_index_2_form_refuses_redundant_constraints_by_name():
    p = {"g": 9.81}
    bars = braced()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = at_angle(bars, p, 0.7)
    with pytest.raises(ValueError, match="brace"):
        saltus.solve(bars.system("index2"), start, p, 1.0)


def test_a_start_near_a_singular_configuration_is_warned_of():
    """The coupler of a parallelogram lies almost along its cranks."""
    bars = braced(redundant=False)
    with pytest.warns(UserWarning, match="singular configuration"):
        start = at_angle(bars, None, np.pi / 2 - 3e-6)
    assert bars.report(start, None).condition > 1e5


@pytest.mark.slow
def test_an_event_may_change_the_equations_of_motion_only():
    """A spring at a pendulum breaks: velocities stay, accelerations jump."""
    snap = saltus.Event(
        "snap",
        guard=lambda now, p: now.q["x"] - 0.2,
        direction="rising",
        reset=lambda now, p: now.replace(d={"whole": 0.0}),
    )

    def pull(now, p):
        return -p["k"] * now.d["whole"]

    swing = Mechanism(
        mass=1.0,
        force=lambda now, p: {"x": pull(now, p) * now.q["x"], "y": -9.81},
        constraint=lambda now, p: {"rod": now.q["x"] ** 2 + now.q["y"] ** 2 - 1.0},
        events=[snap],
    )
    angle = saltus.HybridSystem(
        lambda now, p: {
            "a": now.x["w"],
            "w": jnp.cos(now.x["a"]) * pull(now, p) * jnp.sin(now.x["a"])
            - 9.81 * jnp.sin(now.x["a"]),
        },
        events=[
            saltus.Event(
                "snap",
                guard=lambda now, p: jnp.sin(now.x["a"]) - 0.2,
                direction="rising",
                reset=lambda now, p: now.replace(d={"whole": 0.0}),
            )
        ],
    )

    def ours(k):
        p, a = {"k": k}, -0.8
        q = {"x": jnp.sin(a), "y": -jnp.cos(a)}
        start = swing.start(q, None, p, d={"whole": 1.0})
        return saltus.solve(swing.system(), start, p, 1.5, method=TIGHT).final.x["q"]["x"]

    def theirs(k):
        start = saltus.Instant(0.0, {"a": -0.8, "w": 0.0}, d={"whole": 1.0})
        return jnp.sin(saltus.solve(angle, start, {"k": k}, 1.5, method=TIGHT).final.x["a"])

    np.testing.assert_allclose(
        jax.value_and_grad(ours)(5.0), jax.value_and_grad(theirs)(5.0), rtol=1e-8
    )


# -- motion as a whole -----------------------------------------------------------------------------
@pytest.mark.parametrize("form", ["index1", "index2"])
def test_a_pendulum_hangs_and_swings_about_it_with_its_frequency(form):
    """In Cartesian coordinates: only directions along the circle count."""
    swing = pendulum()
    rest = saltus.equilibrium(swing.system(form), hanging(swing, PENDULUM, 0.2, 0.1), PENDULUM)
    np.testing.assert_allclose(rest.x["q"]["y"], -PENDULUM["L"], rtol=1e-12)
    np.testing.assert_allclose(rest.x["q"]["x"], 0.0, atol=1e-10)
    line = saltus.linearise(swing.system(form), rest, PENDULUM, inputs=["g"])
    frequency = np.sqrt(PENDULUM["g"] / PENDULUM["L"])
    np.testing.assert_allclose(sorted(line.eigenvalues.imag), [-frequency, frequency], rtol=1e-9)
    np.testing.assert_allclose(line.eigenvalues.real, 0.0, atol=1e-9)


# -- energies instead of matrices -----------------------------------------------------------------
def test_a_kinetic_energy_gives_the_inertia_and_what_turns_with_it():
    """A bead on a turning arm: r' ' = r w^2 and (m r^2 w)' = 0."""
    arm = Mechanism(
        kinetic=lambda now, p: 0.5 * p["m"] * (now.v["r"] ** 2 + (now.q["r"] * now.v["turn"]) ** 2)
    )
    p = {"m": 2.0}
    start = arm.start({"r": 1.0, "turn": 0.0}, {"r": 0.0, "turn": 1.5}, p)
    final = saltus.solve(arm.system(), start, p, 2.0, method=TIGHT).final.x
    np.testing.assert_allclose(final["q"]["r"], np.hypot(1.0, 3.0), rtol=1e-9)  # a straight line
    np.testing.assert_allclose(final["q"]["turn"], np.arctan(3.0), rtol=1e-9)


# -- what is said when something is wrong ---------------------------------------------------------
def constrained(constraint):
    Mechanism(mass=1.0, constraint=constraint).start({"x": 0.0})


def thrown_together(**more):
    point = lambda now, p: (now.q["x"], now.q["y"])
    Mechanism(mass=1.0, contacts=ground(point=point, **more), impacts="together")


def run(mechanism, q, v=None, p=None, t1=1.0, **start):
    return saltus.solve(mechanism.system(), mechanism.start(q, v, p, **start), p, t1)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Mechanism(), "mass or kinetic"),
        (lambda: Mechanism(mass=1.0, phases={"a": ()}), "no constraint"),
        (lambda: Mechanism(mass=1.0, impacts="both"), "one by one"),
        (lambda: contact("c", lambda now, p: 1.0, friction=0.1), "slip"),
        (lambda: contact("c", lambda now, p: 1.0, below=0.1), "to="),
        (lambda: stop("s", lambda now, p: 1.0, at=0.0, side="left"), "above"),
        (lambda: pendulum().system("index3"), "index1"),
        (lambda: pendulum().system("index1", alpha=1.0), "penalty"),
        (lambda: pendulum().system("penalty", alpha=-1.0), "positive"),
        (lambda: contact("c", lambda now, p: 1.0, restitution=-0.5), ">= 0"),
        (lambda: thrown_together(friction=0.1), "together"),
        (lambda: thrown(friction=0.1, normal=lambda now, p: now.q), "friction or a normal"),
        (lambda: constrained(lambda now, p: {"roll": now.v["x"]}), "may not read now.v"),
        (lambda: constrained(lambda now, p: {}), "Leave the constraint out"),
        (lambda: run(thrown(), {"x": 0.0, "y": -0.1}, p=BALL), "inside each other"),
        (
            lambda: run(
                Mechanism(mass=1.0, contacts=contact("c", lambda now, p: now.q["r"])),
                {"r": jnp.ones(2)},
            ),
            "one number",
        ),
        (
            lambda: run(
                Mechanism(mass=1.0, contacts=ground(point=lambda now, p: now.q["y"])), {"y": 1.0}
            ),
            "two numbers",
        ),
        (lambda: saltus.solve(thrown(), None, None, 1.0), r"mechanism\.system\(\)"),
        (lambda: Mechanism(mass=1.0, contacts=[saltus.Event("e", lambda now, p: 1.0)]), "events="),
        (lambda: Mechanism(mass=1.0, contacts=contact("c", lambda now, p: 1.0, to="a")), "phases"),
        (lambda: hanging(pendulum(), {**PENDULUM, "m": 0.0}, 1.0), None),
        (lambda: pendulum().start({"x": 1.0, "y": 0.0}, None, PENDULUM), "assemble=True"),
        (lambda: pendulum().start({"x": 1.0}, None, PENDULUM), "reads 'y'"),
    ],
)
def test_mistakes_are_named(make, words):
    if words is None:
        start = make()
        with pytest.raises(ValueError, match="inertia"):
            saltus.solve(pendulum().system(), start, {**PENDULUM, "m": 0.0}, 1.0)
        return
    with pytest.raises((TypeError, ValueError), match=words):
        make()


def test_a_reset_that_leaves_the_constraints_is_reported():
    kick = saltus.Event(
        "kick",
        guard=lambda now, p: now.q["x"],
        reset=lambda now, p: now.replace(v={"x": now.v["x"], "y": 1.0}),
    )
    swing = pendulum(events=[kick])
    with pytest.raises(saltus.SolveError, match=r"kick(.|\n)*velocity\.rod") as error:
        saltus.solve(swing.system(), hanging(swing, PENDULUM, 1.0), PENDULUM, 2.0)
    assert error.value.result is saltus.Result.inconsistent


def test_forces_cannot_look_at_what_follows_from_them():
    swing = Mechanism(mass=1.0, force=lambda now, p: {"x": now.a["x"]})
    with pytest.raises(ValueError, match="follows from them"):
        saltus.solve(swing.system(), swing.start({"x": 0.0}, None, None), None, 1.0)
