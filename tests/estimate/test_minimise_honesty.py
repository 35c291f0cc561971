"""What `minimise` says of its result is what it has looked at."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus.estimate import curvature, minimisation

rosenbrock = lambda p: 100.0 * (p["y"] - p["x"] ** 2) ** 2 + (1 - p["x"]) ** 2
saddle = lambda p: p["x"] ** 2 - p["y"] ** 2 + p["y"] ** 4


# -- a gradient of zero is not yet a minimum ------------------------------------------------------
def test_a_maximum_is_left():
    best = saltus.minimise(lambda p: jnp.cos(p["x"]), {"x": 0.0})
    assert best.ok
    assert best.loss == pytest.approx(-1.0, abs=1e-12)
    assert abs(best.p["x"]) == pytest.approx(np.pi, abs=1e-6)
    assert any("not a minimum was passed" in note for note in best.notes)


@pytest.mark.parametrize("optimiser", ["l-bfgs-b", "trust"])
def test_a_saddle_is_left(optimiser):
    best = saltus.minimise(saddle, {"x": 1.0, "y": 0.0}, optimiser=optimiser)
    assert best.ok
    assert best.loss == pytest.approx(-0.25, abs=1e-9)
    assert abs(best.p["y"]) == pytest.approx(np.sqrt(0.5), abs=1e-5)


def test_a_maximum_of_a_simulation_is_left():
    # an inverted pendulum that is not pushed stays upright: the worst way to swing far
    pendulum = saltus.HybridSystem(
        lambda now, p: {"th": now.x["w"], "w": jnp.sin(now.x["th"]) + p["u"]}
    )

    def swing(p):
        start = saltus.Instant(t=0.0, x={"th": 0.0, "w": 0.0})
        return -(saltus.solve(pendulum, start, p, 3.0, max_steps=100).final.x["th"] ** 2)

    best = saltus.minimise(swing, {"u": 0.0}, bounds={"u": (-1.0, 1.0)})
    assert best.ok
    assert abs(best.p["u"]) == pytest.approx(1.0)
    assert best.loss < -30.0


@pytest.mark.parametrize(
    "loss, bounds, least",
    [
        (lambda x: x**3, (-1.0, 1.0), -1.0),  # no curvature, but it falls to one side
        (lambda x: -(x**4), (-1.0, 1.0), -1.0),
        (jnp.cos, (0.0, 2.0), np.cos(2.0)),  # at a bound that does not hold it
    ],
)
def test_a_stationary_point_without_curvature_or_at_a_bound_is_left(loss, bounds, least):
    best = saltus.minimise(lambda p: loss(p["x"]), {"x": 0.0}, bounds={"x": bounds})
    assert best.ok
    assert best.loss == pytest.approx(least, abs=1e-9)


@pytest.mark.parametrize("optimiser", ["slsqp", "ipopt"])
def test_a_maximum_on_a_constraint_is_left(optimiser):
    if optimiser == "ipopt":
        pytest.importorskip("ipyopt")
    best = saltus.minimise(
        lambda p: (p["x"], {"r": p["x"] ** 2 + p["y"] ** 2}), {"x": 1.0, "y": 0.0},
        subject_to={"r": 1.0}, optimiser=optimiser,
    )  # fmt: skip
    assert best.ok
    assert best.p["x"] == pytest.approx(-1.0, abs=1e-6)


def test_a_bound_that_holds_is_a_minimum_though_the_loss_curves_downwards():
    best = saltus.minimise(lambda p: -(p["x"] ** 2), {"x": 0.5}, bounds={"x": (-1.0, 2.0)})
    assert best.p["x"] == pytest.approx(2.0)
    assert best.kind == "minimum"
    assert not best.notes


def test_a_saddle_among_many_parameters_is_left():
    def loss(p):
        return jnp.sum(jnp.arange(1, 100) * (p["x"] - 1) ** 2) - p["y"] ** 2 + p["y"] ** 4

    best = saltus.minimise(loss, {"x": jnp.zeros(99), "y": 0.0}, max_iterations=500)
    assert best.loss == pytest.approx(-0.25, abs=1e-8)
    assert "judging by 24 of 100 directions" in best.message


def test_a_loss_without_second_derivatives_is_looked_at_by_differences():
    @jax.custom_vjp
    def cosine(x):
        return jnp.cos(x)

    cosine.defvjp(lambda x: (jnp.cos(x), x), lambda x, g: (-jnp.sin(x) * g,))
    loss = lambda p: cosine(p["x"]) + jnp.sum(p["y"] ** 2)
    best = saltus.minimise(loss, {"x": 0.0, "y": jnp.ones(4)})
    assert best.loss == pytest.approx(-1.0, abs=1e-9)


def test_what_falls_but_cannot_be_left_is_called_stationary(monkeypatch):
    monkeypatch.setattr(curvature, "PROBE_LENGTHS", (1e-9,))  # too short to see anything
    best = saltus.minimise(lambda p: jnp.cos(p["x"]) + p["y"] ** 2, {"x": 0.0, "y": 1.0})
    assert best.result == "stationary"
    assert not best.ok
    assert "not a minimum" in best.message
    assert "along x" in best.message
    assert "Local minimum" not in repr(best)


def test_what_could_not_be_looked_at_is_not_called_a_minimum(monkeypatch):
    monkeypatch.setattr(curvature, "curvature", lambda *args: None)
    best = saltus.minimise(lambda p: p["x"] ** 2, {"x": 1.0})
    assert best.kind == "unknown"
    assert repr(best).startswith("Stationary point: converged. Stationary (")
    assert "not known" in best.message


def test_a_flat_place_is_called_so_and_a_flat_minimum_is_one():
    flat = saltus.minimise(lambda p: (p["x"] - 1) ** 2 + 0.0 * p["y"], {"x": 0.0, "y": 1.0})
    assert flat.ok
    assert "a flat region: the loss hardly changes along y" in flat.message
    steep = saltus.minimise(lambda p: (p["x"] - 1) ** 2 + p["y"] ** 4, {"x": 0.0, "y": 1.0})
    assert steep.kind == "minimum"


@pytest.mark.parametrize(
    "loss, programs",
    [
        (lambda p: (p["x"] - 2) ** 2 + p["y"] ** 2, {"slopes", "extras"}),
        (lambda p: (p["x"] - 2) ** 2 + 0.0 * p["y"], {"slopes", "extras", "hessian"}),
    ],
)
def test_a_hessian_is_compiled_only_where_there_is_a_doubt(loss, programs):
    made = []

    class Watched(minimisation.Problem):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minimisation, "Problem", Watched)
        best = saltus.minimise(loss, {"x": -1.2, "y": 1.0})
    assert best.ok
    (problem,) = made
    assert set(problem._programs) == programs


def test_a_point_of_inflection_is_not_mistaken_for_a_minimum():
    for start in (0.0, 1e-6, 2e-5):  # gradients below the tolerance of the optimiser
        best = saltus.minimise(lambda p: p["x"] ** 3, {"x": start}, bounds={"x": (-1.0, 1.0)})
        assert best.loss == pytest.approx(-1.0)


def test_a_kink_is_not_called_converged():
    # an optimiser for smooth losses stops anywhere in the valley of |y - x|
    best = saltus.minimise(
        lambda p: jnp.abs(p["x"] - 1) + jnp.abs(p["y"] - p["x"]), {"x": -1.2, "y": 1.0}
    )
    assert best.result == "stalled"
    assert best.loss < 1e-6
    assert "jumps here" in best.message
    assert "events" not in best.message


# -- starts are counted by where they ended -------------------------------------------------------
def test_two_minima_with_one_loss_are_two_places():
    best = saltus.minimise(
        lambda p: (p["x"] ** 2 - 4) ** 2, {"x": 1.0}, bounds={"x": (-5, 5)}, starts=6
    )
    here = sum(np.sign(s.end[0]) == np.sign(best.values[0]) for s in best.starts)
    assert 0 < here < 6
    said = f"{here} ended here, {6 - here} at another place with the same loss"
    assert said in best.message
    assert "x = 2" in repr(best)
    assert "x = -2" in repr(best)


def test_minima_that_lie_close_beside_each_other_are_several_places():
    # with a period of half a unit around 100, relative distances are small
    best = saltus.minimise(
        lambda p: jnp.cos(4 * jnp.pi * p["x"]), {"x": 100.1}, bounds={"x": (99.5, 101.0)}, starts=6
    )
    places = {round(float(s.end[0]), 2) for s in best.starts}
    assert places == {99.75, 100.25, 100.75}
    assert "3 ended here, 3 at 2 other places with the same loss" in best.message


def test_a_minimum_that_is_only_found_roughly_is_one_place():
    best = saltus.minimise(lambda p: (p["x"] - 3) ** 6, {"x": 1.0}, bounds={"x": (-5, 5)}, starts=4)
    assert "4 ended here" in best.message


def test_the_list_of_starts_shows_a_few_parameters_only():
    best = saltus.minimise(lambda p: jnp.sum(p["q"] ** 2), {"q": jnp.ones(9)}, starts=2)
    assert "and 6 more" in repr(best)


# -- iterations -----------------------------------------------------------------------------------
@pytest.mark.parametrize("optimiser", ["l-bfgs-b", "trust", "adam"])
@pytest.mark.parametrize("most", [1, 3])
def test_the_limit_of_iterations_is_kept_and_named(optimiser, most):
    start = {"x": -1.2, "y": 1.0}
    best = saltus.minimise(rosenbrock, start, max_iterations=most, optimiser=optimiser)
    assert len(best.history) <= most
    assert best.result == "out_of_iterations"
    assert "iterations ran out" in best.message
    assert "kink" not in best.message
    assert repr(best).startswith("Out of iterations: ")


@pytest.mark.parametrize("optimiser", ["slsqp", "ipopt"])
def test_constraints_that_wait_for_iterations_are_not_called_infeasible(optimiser):
    if optimiser == "ipopt":
        pytest.importorskip("ipyopt")
    best = saltus.minimise(
        lambda p: (p["a"] ** 2, {"c": p["a"] ** 2}), {"a": 1.0}, subject_to={"c": 4.0},
        max_iterations=1, optimiser=optimiser,
    )  # fmt: skip
    assert len(best.history) == 1
    assert best.result == "out_of_iterations"
    assert '"c" is ' in best.message


def test_boxes_count_as_iterations_and_events_are_named_where_they_change():
    # a ball that must not come down before the end: slower than 4.805 it does, and the loss jumps
    ball = saltus.HybridSystem(
        lambda now, p: {"h": now.x["v"], "v": -9.81},
        events=[saltus.Event("ground", lambda now, p: now.x["h"], direction="falling",
                             reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": 0.2}))],
    )  # fmt: skip

    def loss(p):
        start = saltus.Instant(t=0.0, x={"h": 0.1, "v": p["v"]})
        sol = saltus.solve(ball, start, None, 1.0, max_steps=64, max_events=64, throw=False)
        return p["v"] + 10.0 * (sol.events.count > 0), {"sol": sol}

    best = saltus.minimise(loss, {"v": 6.0}, bounds={"v": (4.0, 8.0)})
    assert best.result == "stalled"
    assert "where the sequence of events changes" in best.message
    few = saltus.minimise(loss, {"v": 6.0}, bounds={"v": (4.0, 8.0)}, max_iterations=5)
    assert len(few.history) <= 5
    assert few.result == "out_of_iterations"


# -- headlines and wrong wishes -------------------------------------------------------------------
def test_headlines_claim_nothing_that_was_not_found():
    failed = saltus.minimise(lambda p: -p["x"], {"x": 1.0})
    assert repr(failed).startswith("Failed: The loss falls without limit")
    pair = lambda p: (p["x"] ** 2, {"c": p["x"], "d": p["x"]})
    empty = saltus.minimise(pair, {"x": 1.0}, subject_to={"c": (2, None), "d": (None, 1)})
    assert repr(empty).startswith("Infeasible: No point was found")
    assert "inimum" not in repr(failed) + repr(empty)


@pytest.mark.parametrize(
    "loss, words",
    [
        (lambda p: (p["x"], p["x"]), r"a tuple of 2 \(a number, a number\)"),
        (lambda p: (p["x"], {}, p["x"]), r"a tuple of 3 \(a number, a dict, a number\)"),
        (lambda p: [p["x"]], r"a list of 1 \(a number\)"),
        (lambda p: None, "returned nothing"),
        (lambda p: {"loss": p["x"]}, "returned a dict"),
        (lambda p: p["x"] + 1j, "complex"),
    ],
)
def test_what_is_no_loss_is_refused_by_name(loss, words):
    with pytest.raises(TypeError, match=words):
        saltus.minimise(loss, {"x": 1.0})


@pytest.mark.parametrize("given", [{"starts": 0}, {"starts": 2.5}, {"max_iterations": 0}])
def test_numbers_that_are_none_are_refused(given):
    (name,) = given
    with pytest.raises(ValueError, match=f"minimise: {name} is .* expected a whole number from 1"):
        saltus.minimise(lambda p: p["x"] ** 2, {"x": 1.0}, **given)


@pytest.mark.parametrize(
    "name, words",
    [
        ("optimizer", "optimiser="), ("method", "optimiser="), ("maxiter", "max_iterations="),
        ("x0", "The first guess is p"), ("constraints", "subject_to="), ("jac", "exact"),
        ("tol", "tolerance="), ("callback", "history"), ("args", "lambda p"),
        ("boundz", "nearest name is bounds"),
    ],
)  # fmt: skip
def test_names_from_other_optimisers_are_answered(name, words):
    with pytest.raises(TypeError, match=f"there is no argument `{name}`.*{words}"):
        saltus.minimise(lambda p: p["x"] ** 2, {"x": 1.0}, **{name: None})


def test_names_of_other_results_are_answered():
    best = saltus.minimise(lambda p: p["x"] ** 2, {"x": 1.0})
    for name, words in (("x", "best.p"), ("fun", "best.loss"), ("success", "best.ok")):
        with pytest.raises(AttributeError, match=words):
            getattr(best, name)
