"""Adjoint variables over time: where they jump, what they are there, how they are shown."""

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from jax.scipy.linalg import expm

import saltus
from saltus import Event, HybridSystem, Instant, continuous, solve

matplotlib.use("Agg")
TSIT = saltus.Tsit5(rtol=1e-10, atol=1e-10)
A = np.array([[0.0, 1.0], [-1.0, -0.2]])
TS = np.array([0.0, 0.3, 1.1, 1.1, 1.10001, 1.3, 2.0])
UNSEEN = 0.3


def spring_loss(sol):
    """It looks at the start, at times in one step and at its ends, from both sides, at the end."""
    y, now = sol.y["x"], sol.at(jnp.array([0.5, 1.7]), side="left")
    seen = y[0, 1] + y[2, 0] ** 2 + y[3, 1] + 3.0 * y[4, 0] - y[5, 1] ** 2 + 0.5 * y[-1, 0]
    return seen + sol(0.9)["x"][0] + jnp.sum(now.x["x"] ** 2) + sol.final.x["x"][1]


def spring_adjoint(t, x, after):
    """The same by the exact flow from `x` at `t`; what is seen at `t` counts unless `after`."""
    since = jnp.where(after, t + 1e-12, t - 1e-12)
    at = lambda s: jnp.where(s > since, expm(jnp.asarray(A * (s - t))) @ x, 0.0)
    seen = at(0.0)[1] + at(1.1)[0] ** 2 + at(1.1)[1] + 3.0 * at(1.10001)[0] - at(1.3)[1] ** 2
    end = expm(jnp.asarray(A * (2.0 - t))) @ x
    dense = at(0.9)[0] + jnp.sum(at(0.5) ** 2) + jnp.sum(at(1.7) ** 2)
    return seen + dense + 0.5 * end[0] + end[1]


@pytest.fixture(scope="module")
def spring():
    system = HybridSystem(lambda now, p: {"x": jnp.asarray(A) @ now.x["x"]})
    return solve(system, Instant(0.0, {"x": np.array([1.0, 0.5])}), None, 2.0, ts=TS, method=TSIT)


@pytest.fixture(scope="module")
def spring_curve(spring):
    return continuous.adjoints(spring_loss, spring)


def exactly(curve, sol, adjoint):
    """The exact adjoints at all entries; one that follows a jump is just after its time."""
    follows = np.concatenate([[False], np.asarray(curve.jump)[:-1]])
    slope = jax.jit(jax.vmap(jax.grad(adjoint, argnums=1)))
    return np.asarray(slope(jnp.asarray(curve.t), sol(curve.t)["x"], jnp.asarray(follows)))


def test_adjoints_jump_where_the_loss_looks_and_nowhere_else(spring, spring_curve):
    np.testing.assert_allclose(
        spring_curve.t[spring_curve.jump], [0.0, 0.5, 0.9, 1.1, 1.10001, 1.3, 1.7], rtol=1e-14
    )
    places = np.flatnonzero(spring_curve.jump)
    np.testing.assert_array_equal(spring_curve.t[places], spring_curve.t[places + 1])
    assert UNSEEN not in spring_curve.t  # it is saved, but the loss does not use it
    assert np.count_nonzero(spring_curve.t == 2.0) == 1  # the end is no jump


@pytest.mark.parametrize(
    "way", ["equations", pytest.param("backsolve", marks=pytest.mark.slow), "sweep"]
)
def test_adjoints_are_exact_on_both_sides_of_all_looks(spring, spring_curve, way):
    curve = spring_curve
    if way == "backsolve":
        curve = continuous.adjoints(spring_loss, spring, variant="backsolve")
    lam = curve.lam["x"]
    if way == "sweep":
        curve = saltus.costates(spring_loss, spring)
        lam = curve.x["x"]
    exact = exactly(curve, spring, spring_adjoint)
    np.testing.assert_allclose(lam, exact, rtol=0, atol=2e-8 * np.max(np.abs(exact)))
    np.testing.assert_array_equal(curve.jump, spring_curve.jump)


def test_the_sensitivity_to_a_delay_is_constant_between_looks(spring):
    """Nothing here depends on time, so that it is conserved: -lambda . f."""
    found = saltus.costates(spring_loss, spring)
    slope = np.asarray(spring(found.t)["x"]) @ A.T
    np.testing.assert_allclose(found.time, -np.sum(found.x["x"] * slope, axis=1), atol=1e-7)
    for piece in np.split(found.time, np.flatnonzero(found.jump) + 1):
        np.testing.assert_allclose(piece, piece[0], atol=1e-7)


@pytest.mark.slow
def test_looks_inside_compiled_losses_count_and_those_under_vmap_keep_the_steps_right(
    spring, spring_curve
):
    found = continuous.adjoints(jax.jit(spring_loss), spring)
    np.testing.assert_allclose(found.lam["x"], spring_curve.lam["x"], atol=1e-9)
    times = jnp.array([0.5, 1.7])
    whole = continuous.adjoints(lambda s: jnp.sum(s(times)["x"]), spring)
    each = continuous.adjoints(lambda s: jnp.sum(jax.vmap(s)(times)["x"]), spring)
    assert not each.jump.any() and np.count_nonzero(whole.jump) == 2
    shared = ~np.isin(whole.t, times)
    np.testing.assert_allclose(each.lam["x"], whole.lam["x"][shared], atol=1e-9)


@pytest.mark.slow
def test_backward_in_time_adjoints_jump_too():
    system = HybridSystem(lambda now, p: {"x": -now.x["x"]})
    sol = solve(system, Instant(2.0, {"x": 1.0}), None, 0.0, ts=np.array([1.2, 0.4]), method=TSIT)
    found = saltus.costates(lambda s: jnp.sum(s.y["x"]), sol)
    exact = sum(
        np.where((found.t > s) | ((found.t == s) & found.jump), np.exp(found.t - s), 0.0)
        for s in (1.2, 0.4)
    )
    np.testing.assert_allclose(found.t[found.jump], [1.2, 0.4])
    np.testing.assert_allclose(found.x["x"], exact, atol=1e-8)


# -- events ----------------------------------------------------------------------------------------
G, E = 9.81, 0.7


@pytest.fixture(scope="module")
def ball():
    system = HybridSystem(
        lambda now, p: {"h": now.x["v"], "v": -G + 0.0 * now.x["h"]},
        events=(
            Event(
                "bounce",
                lambda now, p: now.x["h"],
                lambda now, p: now.replace(x={"h": now.x["h"], "v": -E * now.x["v"]}),
            ),
            Event("top", lambda now, p: now.x["v"] + 0.0 * now.x["h"]),
        ),
    )
    start = Instant(0.0, {"h": 1.0, "v": 0.5})
    return solve(system, start, None, 0.9, ts=np.array([0.2, 0.7]), method=TSIT)


def ball_loss(sol):
    bounce = sol.events.of("bounce")
    return sol.y["h"][0] ** 2 + sol.y["h"][1] + 0.3 * bounce.after.x["v"][0] + sol.final.x["v"]


def ball_adjoint(t, x, looks):
    """`looks`: which of the first look, the bounce, its look, and the second one lie ahead."""
    h, v = x
    fly = lambda h, v, s: (h + v * s - G * s**2 / 2, v - G * s)
    first = fly(h, v, 0.2 - t)[0] ** 2
    fall = (v + jnp.sqrt(v**2 + 2 * G * h)) / G
    down = fly(h, v, fall)[1]
    h, v, t = (
        jnp.where(looks[1], new, old) for new, old in ((0.0, h), (-E * down, v), (t + fall, t))
    )
    late, end = fly(h, v, 0.7 - t)[0], fly(h, v, 0.9 - t)[1]
    return looks[0] * first + looks[2] * 0.3 * v + looks[3] * late + end


def test_adjoints_with_events_and_looks_are_those_of_the_exact_motion(ball):
    """After the bounce there are three entries: before it, after it, and after the look at it."""
    found = continuous.adjoints(ball_loss, ball)
    hit = float(ball.events.of("bounce").t[0])
    np.testing.assert_allclose(found.t[found.jump], [0.2, hit, hit, 0.7], rtol=1e-12)
    passed = np.concatenate([[0], np.cumsum(found.jump)[:-1]])
    ahead = np.stack([passed <= k for k in range(4)], axis=1)
    left, right = ball(found.t, side="left"), ball(found.t)
    states = [np.where(passed <= 1, left[k], right[k]) for k in ("h", "v")]
    states = [np.where(found.t == 0, right[k], v) for k, v in zip("hv", states, strict=True)]
    slope = jax.jit(jax.vmap(jax.grad(ball_adjoint, argnums=1)))
    exact = slope(jnp.asarray(found.t), tuple(map(jnp.asarray, states)), jnp.asarray(ahead))
    for name, value in zip("hv", exact, strict=True):
        np.testing.assert_allclose(found.lam[name], value, rtol=1e-7, atol=1e-8)


def test_an_event_that_changes_no_adjoint_is_no_jump(ball):
    """The top of the flight is an event without a reset, in a flow that goes on as before."""
    assert int(ball.events.of("top").count) == 2
    found = saltus.costates(lambda s: s.final.x["h"], ball)
    np.testing.assert_allclose(found.t[found.jump], ball.events.of("bounce").t)


# -- constraints -----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def circuit():
    system = HybridSystem(
        lambda now, p: {"x": -now.z["i"]},
        constraint=lambda now, p: {"law": now.z["i"] - 2.0 * now.x["x"]},
        output=lambda now, p: {"heat": now.z["i"] ** 2},
    )
    start = Instant(0.0, {"x": 1.0}, z={"i": 2.0})
    method = saltus.Radau5(rtol=1e-9, atol=1e-9)
    return solve(system, start, None, 1.0, ts=np.array([0.35, 0.8]), method=method)


@pytest.mark.parametrize("way", ["equations", "sweep"])
def test_multipliers_follow_adjoints_across_looks_at_an_output(circuit, way):
    """x = exp(-2 t), and the loss is 4 x^2 at both times; mu = lambda, as f_z = -1, g_z = 1."""
    loss = lambda sol: jnp.sum(sol.y["heat"])
    if way == "sweep":
        found = saltus.costates(loss, circuit)
        lam = found.x["x"]
    else:
        found = continuous.adjoints(loss, circuit)
        lam = found.lam["x"]
        np.testing.assert_allclose(found.mu["i"], lam, rtol=1e-9)
    exact = sum(
        np.where((found.t < s) | ((found.t == s) & found.jump), 8 * np.exp(2 * found.t - 4 * s), 0)
        for s in (0.35, 0.8)
    )
    np.testing.assert_allclose(found.t[found.jump], [0.35, 0.8])
    np.testing.assert_allclose(lam, exact, rtol=1e-7, atol=1e-9)


# -- how they are shown, and what is refused -------------------------------------------------------
def test_a_figure_has_a_gap_and_a_line_at_each_jump_and_names_components(spring_curve):
    (axis,) = spring_curve.plot().axes
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["x[0]", "x[1]"]
    marks = [line for line in axis.lines if len(set(line.get_xdata())) == 1 and line.get_lw() < 1]
    assert [m.get_xdata()[0] for m in marks] == sorted(set(spring_curve.t[spring_curve.jump]))
    for line in (line for line in axis.lines if line not in marks):
        inside = np.asarray(line.get_xdata())[1:-1]
        assert not np.isin(inside, spring_curve.t[spring_curve.jump]).any()
    assert axis.get_ylabel() == "λ of x"


def test_a_figure_says_which_names_there_are(spring_curve):
    assert len(spring_curve.plot(names="x").axes) == 1
    with pytest.raises(ValueError, match=r"no state is called 'zz'; there are \['x'\]"):
        spring_curve.plot(names=["zz"])


def test_adjoints_print_their_extent_and_their_ends(spring_curve):
    text = repr(spring_curve).splitlines()
    assert text[0] == f"Adjoints at {len(spring_curve.t)} times from t = 0 to 2, 7 jumps"
    assert text[1].split() == ["t", "=", "0", "t", "=", "2"]
    assert text[3].split() == ["λ", "of", "x[0]", f"{spring_curve.lam['x'][0, 0]:.6g}", "0.5"]


@pytest.mark.parametrize(
    "ask", [continuous.adjoints, saltus.costates], ids=["adjoints", "costates"]
)
def test_adjoints_say_what_they_need(spring, ask):
    name = ask.__name__
    with pytest.raises(ValueError, match=rf"{name}: the loss returned an array of shape \(2,\)"):
        ask(lambda sol: sol.final.x["x"], spring)
    with pytest.raises(ValueError, match=rf"{name}: the loss returned a whole number"):
        ask(lambda sol: sol.stats.rows, spring)
    with pytest.raises(TypeError, match=rf"{name} needs numbers, but .* traced by jit"):
        jax.jit(lambda sol: ask(spring_loss, sol).t)(spring)
    with pytest.raises(TypeError, match=rf"{name}: sol is \{{'t': number\}}, expected a solution"):
        ask(spring_loss, {"t": 1.0})
    with pytest.raises(TypeError, match=rf"{name}: the loss is number, expected a function"):
        ask(1.0, spring)


def test_saltations_say_what_they_need(ball):
    with pytest.raises(TypeError, match=r"saltations needs numbers, but .* traced by jit"):
        jax.jit(lambda sol: saltus.saltations(sol).matrix)(ball)
    with pytest.raises(TypeError, match="saltations: sol is number, expected a solution"):
        saltus.saltations(1.0)  # pyright: ignore[reportArgumentType]
    batch = jax.tree.map(lambda v: jnp.stack([v, v]), ball)
    with pytest.raises(ValueError, match=r"saltations: sol is a batch, .* sol\[k\]"):
        saltus.saltations(batch)


def test_saltations_print_what_is_zero_as_0(ball):
    """Rounding is not printed; the matrix itself keeps it."""
    matrix = jnp.array([[-0.7, 1.4829e-18], [-0.0, 2e-12]])
    shown = repr(saltus.Saltation(0.5, matrix, "bounce", ("h", "v"))).splitlines()
    assert [line.split()[2:] for line in shown[2:]] == [["-0.7", "0"], ["0", "2e-12"]]
    assert "e-1" not in repr(saltus.saltations(ball)) and " -0 " not in repr(
        saltus.saltations(ball)
    )
