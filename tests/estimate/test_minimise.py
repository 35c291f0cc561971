"""Optimal control and design: closed-form optima, constraints, unknown numbers of events."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus.estimate import shoot

CONSTRAINED = [pytest.param("ipopt"), pytest.param("slsqp")]
G = 9.81


def have(optimiser):
    if optimiser == "ipopt":
        pytest.importorskip("ipyopt")


# -- a throw that must land at a distance, with a free final time ---------------------------------
ballistic = saltus.HybridSystem(
    lambda now, p: {"x": now.x["vx"], "y": now.x["vy"], "vx": 0.0, "vy": -G}
)


def throw(p):
    start = saltus.Instant(t=0.0, x={"x": 0.0, "y": 0.0, "vx": p["vx"], "vy": p["vy"]})
    sol = saltus.solve(ballistic, start, p, p["T"], max_steps=64)
    effort = 0.5 * (p["vx"] ** 2 + p["vy"] ** 2)
    return effort, {"x": sol.final.x["x"], "y": sol.final.x["y"], "sol": sol}


@pytest.mark.parametrize("optimiser", CONSTRAINED)
def test_the_least_throw_over_a_distance_leaves_at_45_degrees(optimiser):
    have(optimiser)
    best = saltus.minimise(
        throw, {"vx": 5.0, "vy": 8.0, "T": 1.0}, bounds={"T": (0.1, 5.0)},
        subject_to={"x": 10.0, "y": 0.0}, optimiser=optimiser,
    )  # fmt: skip
    assert best.ok
    assert best.violation <= 1e-6
    assert best.loss == pytest.approx(0.5 * G * 10.0, rel=1e-6)
    assert best.p["vx"] == pytest.approx(float(best.p["vy"]), rel=1e-4)
    assert best.p["T"] == pytest.approx(np.sqrt(2 * 10.0 / G), rel=1e-4)
    assert best.extras["sol"].final.x["x"] == pytest.approx(10.0, abs=1e-5)
    assert "converged" in repr(best)


# -- inputs as decision variables: the double integrator ------------------------------------------
PIECES = 8
cart = saltus.HybridSystem(
    lambda now, p: {"x": now.x["v"], "v": now.u},
    rate=lambda now, p: now.u**2,
    inputs=lambda p: saltus.Steps(jnp.arange(PIECES) / PIECES, p["u"]),
)


def exact_cart():
    """The least integral of u^2 for one unit of way, from rest to rest: a quadratic program."""
    h = 1.0 / PIECES
    ends = 1.0 - h * (np.arange(PIECES) + 0.5)
    conditions = np.stack([h * np.ones(PIECES), h * ends])
    u = np.linalg.pinv(conditions) @ np.array([0.0, 1.0])
    return u, h * u @ u


def drive(p):
    sol = saltus.solve(cart, saltus.Instant(t=0.0, x={"x": 0.0, "v": 0.0}), p, 1.0, max_steps=128)
    return sol.integral, {"x": sol.final.x["x"], "v": sol.final.x["v"]}


@pytest.mark.parametrize("optimiser", CONSTRAINED)
def test_an_input_in_pieces_is_the_optimum_of_its_quadratic_program(optimiser):
    have(optimiser)
    best = saltus.minimise(
        drive, {"u": jnp.ones(PIECES)}, subject_to={"x": 1.0, "v": 0.0}, optimiser=optimiser
    )
    u, cost = exact_cart()
    assert best.loss == pytest.approx(cost, rel=1e-6)
    assert np.asarray(best.p["u"]) == pytest.approx(u, abs=1e-3)


def test_multiple_shooting_finds_the_same_input():
    have("ipopt")
    times = jnp.linspace(0.0, 1.0, 5)
    start = saltus.Instant(t=0.0, x={"x": 0.0, "v": 0.0})

    def segments(p):
        shots = shoot(cart, start, p["nodes"], p, times, max_steps=64)
        end = jax.tree.map(lambda v: v[-1], shots.ends)
        return shots.integral, {
            "gaps": jnp.stack(jax.tree.leaves(shots.gaps)),
            "end": jnp.stack([end["x"], end["v"]]),
        }

    nodes = {"x": jnp.linspace(0.0, 1.0, 5)[1:-1], "v": jnp.ones(3)}
    best = saltus.minimise(
        segments, {"u": jnp.ones(PIECES), "nodes": nodes},
        subject_to={"gaps": 0.0, "end": np.array([1.0, 0.0])},
    )  # fmt: skip
    assert best.ok
    assert best.loss == pytest.approx(exact_cart()[1], rel=1e-6)


def test_discrete_states_pass_from_segment_to_segment():
    # a relay that has tripped in one segment stays so in the next
    relay = saltus.HybridSystem(
        lambda now, p: {"x": jnp.where(now.d["tripped"] > 0, -1.0, 1.0)},
        events=[
            saltus.Event(
                "trip", lambda now, p: now.x["x"] - 1.5, direction="rising",
                reset=lambda now, p: now.replace(d={"tripped": now.d["tripped"] + 1.0}),
            )
        ],
    )  # fmt: skip
    start = saltus.Instant(t=0.0, x={"x": 0.0}, d={"tripped": 0.0})
    times = np.linspace(0.0, 4.0, 5)
    whole = saltus.solve(relay, start, None, 4.0, ts=times[1:])
    shots = shoot(relay, start, {"x": whole.y["x"][:-1]}, None, times)
    assert np.allclose(shots.gaps["x"], 0.0, atol=1e-9)
    assert shots.ends["x"][-1] == pytest.approx(float(whole.final.x["x"]))


# -- events on the way ----------------------------------------------------------------------------
bouncing = saltus.HybridSystem(
    lambda now, p: {"x": now.x["vx"], "y": now.x["vy"], "vx": 0.0, "vy": -G},
    events=[
        saltus.Event(
            "bounce", lambda now, p: now.x["y"],
            reset=lambda now, p: now.replace(x={**now.x, "vy": -0.8 * now.x["vy"]}),
        )
    ],
)  # fmt: skip


@pytest.mark.slow
def test_the_number_of_events_may_change_on_the_way_to_the_optimum():
    have("ipopt")

    def land(p):
        start = saltus.Instant(t=0.0, x={"x": 0.0, "y": 1.0, "vx": p["vx"], "vy": 0.0})
        sol = saltus.solve(bouncing, start, p, p["T"], max_steps=256, max_events=16)
        return p["vx"] ** 2 + 0.0 * p["T"], {"x": sol.final.x["x"], "sol": sol}

    best = saltus.minimise(
        land,
        {"vx": 20.0, "T": 0.5},
        bounds={"vx": (0.5, 50.0), "T": (0.1, 2.0)},
        subject_to={"x": 4.0},
    )
    assert len({h["events"] for h in best.history}) > 1
    assert best.loss == pytest.approx(4.0, rel=1e-4)  # slowly, over the longest time
    assert best.extras["sol"].events.count == 3


def test_path_constraints_hold_at_every_saved_time():
    have("ipopt")
    ts = jnp.linspace(0.05, 0.95, 10)

    def slow(p):
        start = saltus.Instant(t=0.0, x={"x": 0.0, "v": 0.0})
        sol = saltus.solve(cart, start, p, 1.0, ts=ts, max_steps=128)
        return sol.integral, {"x": sol.final.x["x"], "v": sol.final.x["v"], "speed": sol.y["v"]}

    limits = {"x": 1.0, "v": 0.0, "speed": (None, 1.3)}
    best = saltus.minimise(slow, {"u": jnp.ones(PIECES)}, subject_to=limits)
    assert best.ok
    assert np.max(best.constraints["speed"]) <= 1.3 + 1e-6
    assert best.loss > exact_cart()[1] * 1.01


# -- without constraints, and in words ------------------------------------------------------------
@pytest.mark.parametrize("optimiser", ["l-bfgs-b", "trust", "adam"])
def test_every_optimiser_finds_an_unconstrained_minimum(optimiser):
    rosenbrock = lambda p: (1 - p["a"]) ** 2 + 10.0 * (p["b"] - p["a"] ** 2) ** 2
    best = saltus.minimise(
        rosenbrock, {"a": -1.0, "b": 1.0}, optimiser=optimiser, max_iterations=3000,
        options={"learning_rate": 0.05} if optimiser == "adam" else None,
    )  # fmt: skip
    assert best.values == pytest.approx([1.0, 1.0], abs=1e-3)


def test_several_starts_find_the_lower_of_two_valleys():
    two = lambda p: (p["a"] ** 2 - 1) ** 2 + 0.3 * p["a"]
    near = saltus.minimise(two, {"a": 0.9})
    wide = saltus.minimise(two, {"a": 0.9}, bounds={"a": (-2.0, 2.0)}, starts=8)
    assert near.p["a"] > 0 > wide.p["a"]
    assert wide.loss < near.loss


def test_what_cannot_be_satisfied_is_called_infeasible():
    have("ipopt")
    best = saltus.minimise(
        lambda p: (p["a"] ** 2, {"c": p["a"] ** 2}),
        {"a": 1.0},
        subject_to={"c": -1.0},
        max_iterations=50,
    )
    assert best.result == "infeasible"
    assert not best.ok
    assert best.violation >= 1.0 - 1e-6
    assert '"c" is ' in best.message


def test_stopping_by_hand_returns_the_best_point():
    from saltus.estimate import minimisation

    class Impatient(minimisation.Monitor):
        def iteration(self, *args):
            super().iteration(*args)
            if len(self.history) == 3:
                raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minimisation, "Monitor", Impatient)
        best = saltus.minimise(lambda p: (p["a"] - 3.0) ** 4, {"a": 0.0})
    assert best.result == "interrupted"
    assert best.loss < 81.0


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: saltus.minimise(lambda p: p["a"] * jnp.ones(2), {"a": 1.0}), "one number"),
        (
            lambda: saltus.minimise(lambda p: p["a"], {"a": 1.0}, subject_to={"c": 0.0}),
            'subject_to names "c"',
        ),
        (
            lambda: saltus.minimise(
                lambda p: (p["a"], {"c": p["a"]}), {"a": 1.0}, subject_to={"c": (1, 0)}
            ),
            "low is above high",
        ),
        (
            lambda: saltus.minimise(
                lambda p: (p["a"], {"c": p["a"]}), {"a": 1.0}, subject_to={"c": 0}, optimiser="adam"
            ),
            "cannot handle constraints",
        ),
        (lambda: saltus.minimise(lambda p: p["a"] * jnp.nan, {"a": 1.0}), "not finite"),
        (lambda: saltus.minimise(lambda p: p["a"], {"a": 1.0}, optimiser="lm"), "use saltus.fit"),
    ],
)  # fmt: skip
def test_wrong_wishes_are_answered_in_words(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_out_of_iterations_is_not_called_converged():
    best = saltus.minimise(
        lambda p: (p["y"] + 200.0) ** 2, {"y": 1.0}, optimiser="adam", max_iterations=50
    )
    assert best.result == "out_of_iterations"
    assert not best.ok


def test_a_loss_without_a_lower_bound_is_named():
    for loss in (lambda p: -p["x"], lambda p: -(p["x"] ** 3)):
        best = saltus.minimise(loss, {"x": 1.0})
        assert best.result == "failed"
        assert "no lower bound" in best.message


# -- several starts, each with its end ------------------------------------------------------------
def test_every_start_is_listed_with_its_end_and_draws_without_a_loss_are_replaced():
    # two valleys, and no loss at all beyond a = 1: half of the draws are rejected
    two = lambda p: (p["a"] ** 2 - 1) ** 2 + 0.3 * p["a"] + 0.0 * jnp.sqrt(1.3 - p["a"])
    best = saltus.minimise(two, {"a": 0.9}, bounds={"a": (-2.0, 4.0)}, starts=6)
    assert len(best.starts) == 6
    assert all(np.isfinite(s.start_loss) and np.isfinite(s.loss) for s in best.starts)
    assert best.loss == min(s.loss for s in best.starts)
    assert len({round(s.loss, 6) for s in best.starts}) == 2
    assert best.rejected == {"the loss is nan": sum(best.rejected.values())}
    assert "local minimum" in best.message
    assert "ended here" in best.message
    printed = repr(best)
    assert "rejected as starts" in printed
    assert printed.count("converged") >= 6


def test_a_start_that_raises_does_not_end_the_run():
    def angry(a):
        if a > 1.0:
            raise RuntimeError("no model there")
        return np.asarray(a, dtype=float)

    def loss(p):
        a = jax.pure_callback(angry, jax.ShapeDtypeStruct((), float), jax.lax.stop_gradient(p["a"]))
        return (p["a"] + 1.0) ** 2 + 0.0 * a

    best = saltus.minimise(loss, {"a": 2.0}, bounds={"a": (-3.0, 3.0)}, starts=3)
    assert best.loss == pytest.approx(0.0, abs=1e-12)
    assert best.starts[0].result == "raised"
    assert best.starts[0].message == "RuntimeError: no model there"
    assert [s.result for s in best.starts[1:]] == ["converged"] * 2


def test_a_first_guess_without_a_loss_is_listed_and_the_others_are_run():
    best = saltus.minimise(
        lambda p: jnp.sqrt(p["a"]) + p["a"] ** 2, {"a": -1.0}, bounds={"a": (-1.0, 3.0)}, starts=3
    )
    assert best.starts[0].result == "not_finite"
    assert best.starts[0].message == "the loss is nan"
    assert len(best.starts) == 3
    with pytest.raises(ValueError, match=r"not finite at the first guess \(the loss is nan\)"):
        saltus.minimise(lambda p: jnp.sqrt(p["a"]), {"a": -1.0})


@pytest.mark.slow
def test_draws_are_rejected_with_the_result_of_their_solve():
    ball = saltus.HybridSystem(
        lambda now, p: {"y": now.x["vy"], "vy": -G},
        events=[
            saltus.Event(
                "bounce", lambda now, p: now.x["y"],
                reset=lambda now, p: now.replace(x={**now.x, "vy": -p["e"] * now.x["vy"]}),
            )
        ],
    )  # fmt: skip

    def height(p):  # with little restitution it comes to rest, and has no solution
        start = saltus.Instant(t=0.0, x={"y": 1.0, "vy": 0.0})
        sol = saltus.solve(ball, start, p, 2.0, max_steps=256, max_events=64)
        return (sol.final.x["y"] - 0.2) ** 2

    best = saltus.minimise(height, {"e": 0.9}, bounds={"e": (0.05, 0.95)}, starts=3)
    assert len(best.starts) == 3
    assert all(np.isfinite(s.start_loss) for s in best.starts)
    assert list(best.rejected) == ["a solve ended as events_accumulate"]


def test_starts_that_keep_the_constraints_are_preferred():
    best = saltus.minimise(
        lambda p: (p["a"] ** 2, {"a": p["a"]}), {"a": 5.0}, bounds={"a": (-10.0, 10.0)},
        subject_to={"a": (4.0, None)}, starts=4,
    )  # fmt: skip
    assert best.loss == pytest.approx(16.0, rel=1e-5)
    assert all(s.start_violation <= 1e-6 for s in best.starts)


# -- constraints over the whole trajectory --------------------------------------------------------
def test_a_constraint_at_saved_times_is_looked_at_between_them():
    have("ipopt")

    def slow(p):
        start = saltus.Instant(t=0.0, x={"x": 0.0, "v": 0.0})
        sol = saltus.solve(cart, start, p, 1.0, ts=jnp.linspace(0.1, 0.9, 4), max_steps=128)
        ends = {"x": sol.final.x["x"], "v": sol.final.x["v"], "speed": sol.y["v"]}
        return sol.integral, ends

    limits = {"x": 1.0, "v": 0.0, "speed": (None, 1.3)}
    best = saltus.minimise(slow, {"u": jnp.ones(PIECES)}, subject_to=limits)
    start = saltus.Instant(t=0.0, x={"x": 0.0, "v": 0.0})
    v = float(saltus.solve(cart, start, best.p, 1.0).max("v"))
    assert v > 1.31
    (note,) = best.notes
    assert "speed <= 1.3 holds at the saved times; between them it rises to" in note
    assert "use sol.max" in note
    said = float(note.split("rises to ")[1].split()[0])
    assert said == pytest.approx(v, abs=2e-3)
    assert note in repr(best)


def test_a_constraint_on_the_largest_value_holds_everywhere():
    # over a wall of height 4: the way up takes sqrt(2 * 4 / g), whatever the distance
    have("ipopt")

    def over(p):
        start = saltus.Instant(t=0.0, x={"x": 0.0, "y": 0.0, "vx": p["vx"], "vy": p["vy"]})
        sol = saltus.solve(ballistic, start, p, p["T"], ts=jnp.array([0.0, 0.1]), max_steps=64)
        ends = {"x": sol.final.x["x"], "y": sol.final.x["y"], "top": sol.max("y")}
        return 0.5 * (p["vx"] ** 2 + p["vy"] ** 2), ends

    best = saltus.minimise(
        over, {"vx": 5.0, "vy": 8.0, "T": 1.0}, bounds={"T": (0.1, 5.0)},
        subject_to={"x": 10.0, "y": 0.0, "top": (4.0, None)},
    )  # fmt: skip
    up = np.sqrt(2 * G * 4.0)
    assert best.ok
    assert best.constraints["top"] == pytest.approx(4.0, rel=1e-6)
    assert best.values == pytest.approx([2 * up / G, 10.0 * G / (2 * up), up], rel=1e-5)
    assert not best.notes
