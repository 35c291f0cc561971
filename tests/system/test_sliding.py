"""Sliding along a surface between two flows: closed forms, another way to write it, starts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from saltus import Exit, Instant, Mode, Steps, TimeEvent, Tsit5, automaton, solve
from saltus.system.sliding_modes import sliding

TIGHT = Tsit5(rtol=1e-12, atol=1e-12)


# -- two constant flows -------------------------------------------------------------------------
# x > 0: x' = -1/2, y' = 1; x < 0: x' = 3/2, y' = 3. From t = 2 x0 on it slides, with y' = 3/2.
def push(now, p):
    return now.replace(x={**now.x, "x": now.x["x"] + p["size"]})


FLAT = sliding(
    lambda now, p: now.x["x"],
    lambda now, p: {"x": -0.5, "y": 1.0},
    lambda now, p: {"x": 1.5, "y": 3.0},
    events=[TimeEvent("push", lambda now, p: p["when"], reset=push)],
)
ALONE = {"when": np.inf, "size": 0.0}


def flat(x0, p=ALONE, t1=4.0):
    return solve(FLAT, Instant(0.0, {"x": x0, "y": 0.0}), p, t1)


def both(x0):
    sol = flat(x0)
    return jnp.stack([sol.final.x["y"], sol.events.t[0]])


def test_it_slides_with_the_mixture_that_stays_on_the_surface():
    sol = flat(1.0)
    assert abs(sol.final.x["y"] - 5.0) < 1e-12
    assert abs(sol.final.x["x"]) < 1e-12
    assert [sol.names[k] for k in sol.events.which] == ["surface: above"]
    assert sol.modes[int(sol.final.mode)] == "sliding"


@pytest.mark.parametrize("derivative", [jax.jacrev, jax.jacfwd])
def test_the_gradient_is_that_of_the_closed_form(derivative):
    """y(4) = 6 - x0 and t = 2 x0."""
    assert np.allclose(derivative(both)(1.0), [-1.0, 2.0], rtol=0, atol=1e-12)


def test_the_second_derivative_is_that_of_the_closed_form():
    assert np.allclose(jax.hessian(both)(1.0), 0.0, atol=1e-12)


def test_a_final_state_goes_on_sliding():
    middle = flat(1.0, t1=3.0).final
    assert abs(solve(FLAT, middle, ALONE, 4.0).final.x["y"] - 5.0) < 1e-12


def test_a_reset_that_moves_the_state_off_the_surface_ends_sliding():
    sol = flat(1.0, {"when": 3.0, "size": 0.2}, 3.6)
    assert sol.modes[int(sol.events.after.mode[1])] == "above"
    assert abs(sol.events.t[2] - 3.4) < 1e-12  # back on the surface
    assert abs(sol.final.x["y"] - (3.5 + 0.4 + 0.2 * 1.5)) < 1e-12


def test_a_reset_that_throws_the_state_across_changes_the_side():
    sol = flat(1.0, {"when": 1.0, "size": -2.0}, 1.2)
    assert sol.modes[int(sol.final.mode)] == "below"
    assert abs(sol.final.x["x"] - (0.5 - 2.0 + 0.3)) < 1e-12


def test_a_reset_that_moves_along_the_surface_keeps_sliding():
    sol = flat(1.0, {"when": 3.0, "size": 0.0})
    assert sol.modes[int(sol.final.mode)] == "sliding"
    assert abs(sol.final.x["y"] - 5.0) < 1e-12


# -- starts -------------------------------------------------------------------------------------
def adapted(system, x, mode=None):
    """The start that a solve makes of a start."""
    return system.adapt_start(Instant(0.0, {"x": x}, mode=mode), None)


def begun(x, up, down, mode=None):
    flows = (lambda now, p: {"x": up}, lambda now, p: {"x": down})
    return adapted(sliding(lambda now, p: now.x["x"], *flows), x, mode)


@pytest.mark.parametrize(
    "x, up, down, mode",
    [
        (0.1, -1.0, 1.0, "above"),
        (-0.1, -1.0, 1.0, "below"),
        (0.0, -1.0, 1.0, "sliding"),
        (0.0, -1.0, -1.0, "below"),
        (0.0, 1.0, 1.0, "above"),
        (0.0, 1.0, 0.0, "above"),
        (0.0, 0.0, -1.0, "below"),
    ],
)
def test_a_start_gets_the_mode_of_its_place(x, up, down, mode):
    assert FLAT.modes[begun(x, up, down).mode] == mode


def test_a_mode_that_is_given_is_kept():
    assert begun(0.0, 1.0, -1.0, "below").mode == "below"


def test_a_start_from_which_both_flows_lead_away_is_an_error():
    with pytest.raises(ValueError, match="more than one solution"):
        begun(0.0, 1.0, -1.0)
    traced = jax.jit(lambda x: begun(x, 1.0, -1.0).x["x"])
    assert np.isnan(traced(0.0))
    assert traced(0.1) == 0.1


# -- sliding that ends --------------------------------------------------------------------------
# Above: x' = t - a, y' = 1; below: x' = 1, y' = 3. It arrives at a - sqrt(a^2 - 2 x0), slides with
# y' = 3 - 2 / (1 + a - t), and leaves upwards at t = a.
ENDING = sliding(
    lambda now, p: now.x["x"],
    lambda now, p: {"x": now.t - p["a"], "y": 1.0},
    lambda now, p: {"x": 1.0, "y": 3.0},
)
Q = {"a": 2.0, "x0": 1.0}


def leaving(q):
    sol = solve(ENDING, Instant(0.0, {"x": q["x0"], "y": 0.0}), q, 3.0, method=TIGHT)
    return jnp.stack([sol.final.x["x"], sol.final.x["y"], *sol.events.t[:2]])


def exact(q):
    a, arrival = q["a"], q["a"] - jnp.sqrt(q["a"] ** 2 - 2 * q["x0"])
    slid = 3 * (a - arrival) - 2 * jnp.log(1 + a - arrival)
    return jnp.stack([(3 - a) ** 2 / 2, arrival + slid + (3 - a), arrival, a])


def same(tree, other, tolerance):
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return all(np.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in pairs)


@pytest.mark.slow
def test_sliding_ends_where_a_flow_turns_away_with_the_right_derivatives():
    assert same(leaving(Q), exact(Q), 1e-11)
    assert same(jax.jacrev(leaving)(Q), jax.jacrev(exact)(Q), 1e-10)
    assert same(jax.jacfwd(jax.jacrev(leaving))(Q), jax.hessian(exact)(Q), 1e-9)


# -- a moving, curved surface -------------------------------------------------------------------
# A circle that grows: r = 1 + v t. Outside, the state moves inwards with speed c and turns with the
# rate a; inside, outwards with c, and turns with b. In polar coordinates everything is linear.
def spiral(speed, turn):
    def flow(now, p):
        radius = jnp.hypot(*now.x)
        return speed(p) * now.x / radius + turn(p) * jnp.stack([-now.x[1], now.x[0]])

    return flow


CIRCLE = sliding(
    lambda now, p: now.x @ now.x - (1 + p["v"] * now.t) ** 2,
    spiral(lambda p: -p["c"], lambda p: p["a"]),
    spiral(lambda p: p["c"], lambda p: p["b"]),
    name="rim",
)
ROUND = {"v": 0.2, "c": 0.5, "a": 1.0, "b": -0.4}


def rim(p):
    return solve(CIRCLE, Instant(0.0, jnp.array([2.0, 0.0])), p, 4.0, method=TIGHT).final.x


def rim_exact(p):
    arrival = 1.0 / (p["c"] + p["v"])
    weight = 0.5 * (1 - p["v"] / p["c"])
    angle = p["a"] * arrival + (weight * p["a"] + (1 - weight) * p["b"]) * (4.0 - arrival)
    return (1 + 4.0 * p["v"]) * jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def test_it_stays_on_a_surface_that_is_curved_and_moves():
    loose = Tsit5(rtol=1e-4, atol=1e-4)
    x = solve(CIRCLE, Instant(0.0, jnp.array([2.0, 0.0])), ROUND, 4.0, method=loose).final.x
    assert abs(np.hypot(*x) - 1.8) < 1e-14  # whatever the tolerance
    assert np.allclose(x, rim_exact(ROUND), atol=1e-3)


@pytest.mark.slow
def test_derivatives_along_a_surface_that_is_curved_and_moves():
    assert same(rim(ROUND), rim_exact(ROUND), 1e-10)
    assert same(jax.jacrev(rim)(ROUND), jax.jacrev(rim_exact)(ROUND), 1e-9)


# -- a block on a belt, with the stick mode written by hand ---------------------------------------
def grip(p, speed):
    """The friction at a relative speed: it falls."""
    return p["mu"] / (1 + p["drop"] * speed)


def slip(side):
    def flow(now, p):
        force = grip(p, side * (now.x["v"] - p["belt"]))
        return {"x": now.x["v"], "v": -p["k"] * now.x["x"] - side * force}

    return flow


BELT = sliding(lambda now, p: now.x["v"] - p["belt"], slip(1), slip(-1), name="stick")
BY_HAND = automaton(
    {
        "slower": Mode(
            slip(-1),
            exits=[Exit(lambda now, p: now.x["v"] - p["belt"], "stick", direction="rising")],
        ),
        "stick": Mode(
            lambda now, p: {"x": p["belt"], "v": 0.0},
            exits=[Exit(lambda now, p: p["mu"] - p["k"] * now.x["x"], "slower", when="edge")],
        ),
    }
)
BLOCK = {"k": 1.3, "mu": 1.0, "drop": 0.4, "belt": 0.8}


def end(system, p, mode=None):
    start = Instant(0.0, {"x": 0.0, "v": 0.0}, mode=mode)
    return solve(system, start, p, 9.0, method=TIGHT)


@pytest.mark.slow
def test_a_block_on_a_belt_sticks_and_slips_as_if_written_by_hand():
    ours, other = end(BELT, BLOCK), end(BY_HAND, BLOCK, "slower")
    assert int(other.events.count) >= 3  # sticks, slips, sticks
    assert same(ours.events.t, other.events.t, 1e-9)
    gradients = [
        jax.grad(lambda p, system=system, mode=mode: end(system, p, mode).final.x["x"])(BLOCK)
        for system, mode in ((BELT, None), (BY_HAND, "slower"))
    ]
    assert same(gradients[0], gradients[1], 1e-8)


# -- all ways to come and go -----------------------------------------------------------------------
WAVY = sliding(
    lambda now, p: (
        p["scale"] * (now.x["u"] - 0.3 * jnp.sin(now.x["w"]) - 0.1 * jnp.cos(p["wave"] * now.t))
    ),
    lambda now, p: {
        "u": -1.0 + 1.6 * jnp.sin(p["a"] * now.t) + 0.2 * now.x["w"],
        "w": 1.0 - 0.3 * now.x["w"],
    },
    lambda now, p: {
        "u": 0.7 + 1.6 * jnp.cos(p["b"] * now.t),
        "w": 0.3 * now.x["u"] - 0.5 * now.x["w"],
    },
)


@pytest.mark.slow
def test_arriving_crossing_and_leaving_do_not_depend_on_tolerances_or_on_the_scale_of_the_surface():
    rng, n = np.random.default_rng(0), 64
    p = {k: jnp.asarray(rng.uniform(0.3, 1.5, n)) for k in ("a", "b", "wave")}
    p["scale"] = jnp.asarray(10 ** rng.uniform(-3, 3, n))
    starts = jnp.asarray(rng.uniform(-1, 1, n))

    @jax.jit
    def run(tol):
        def one(p, u):
            start, method = Instant(0.0, {"u": u, "w": 0.1}), Tsit5(rtol=tol, atol=tol)
            sol = solve(WAVY, start, p, 20.0, method=method)
            return sol.result, sol.events.before.mode, sol.events.after.mode

        return jax.vmap(one)(p, starts)

    runs = [run(tol) for tol in (1e-4, 1e-6, 1e-8)]
    _, before, after = runs[-1]
    changes = {(int(a), int(b)) for a, b in zip(before.ravel(), after.ravel(), strict=True)}
    assert {(a, b) for a in range(3) for b in range(3) if a != b} <= changes
    for other in runs:
        assert np.all(other[0] == 0)
        assert np.array_equal(other[1], before)
        assert np.array_equal(other[2], after)


# -- mistakes -------------------------------------------------------------------------------------
def test_mistakes_are_reported_with_what_to_write():
    place, fine = lambda now, p: now.x["x"], lambda now, p: {"x": 1.0}
    wrong: Any = 3.0
    with pytest.raises(TypeError, match=r"above is 3\.0"):
        sliding(place, wrong, fine)
    with pytest.raises(ValueError, match="expected a number"):
        adapted(sliding(place, fine, fine), jnp.zeros(2))
    with pytest.raises(ValueError, match="Return x'"):
        adapted(sliding(place, lambda now, p: (1.0, 2.0), fine), 0.0)
    belt = sliding(lambda now, p: now.x["x"] - now.u, fine, fine, inputs=Steps([0.0], [1.0]))
    with pytest.raises(ValueError, match=r"reads now\.u"):
        adapted(belt, 0.0)
