"""Fitting: every way leads to the same minimum, and what is said about it is true."""

import dataclasses
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import saltus
from fits import END, GUESS, NOISE, SAMPLES, START, TRUTH, ball, bounces, clean, fitted, scenario
from fits import table as measurements
from saltus.estimate import Student, monitor, objective

OPTIMISERS = ["gauss-newton", "l-bfgs-b", "trust", "ipopt", "adam"]
PACKAGES = {"ipopt": "ipyopt", "adam": "optax"}


def near_truth(fit, deviations=4.0):
    truth = np.array([TRUTH[name] for name in fit.names])
    return np.all(np.abs(fit.values - truth) <= deviations * fit.sd)


@pytest.fixture(scope="module")
def fit():
    return fitted()


# -- the plain fit ------------------------------------------------------------------------------
def test_a_fit_finds_the_parameters_within_their_deviations(fit):
    assert fit.ok
    assert fit.result == "converged"
    assert near_truth(fit)
    assert fit["e"] == fit.p["e"] == fit.values[fit.names.index("e")]
    assert fit.loss == pytest.approx(0.5 * SAMPLES.size, rel=0.5)  # half of chi squared


def test_the_gradient_is_zero_there_and_the_hessian_is_that_of_finite_differences(fit):
    o, u = fit._objective, fit.u
    value, slope = o.gradient(u)
    r, j = o.residuals_and_jacobian(u)
    assert value == pytest.approx(0.5 * r @ r, rel=1e-12)
    assert slope == pytest.approx(j.T @ r, abs=1e-8 * np.linalg.norm(j))  # adjoint = tangent
    assert np.max(np.abs(slope)) <= 1e-6 * np.linalg.norm(j, axis=0).max()
    step = 1e-5
    columns = [
        (o.gradient(u + step * e)[1] - o.gradient(u - step * e)[1]) / (2 * step)
        for e in np.eye(u.size)
    ]
    assert o.hessian(u) == pytest.approx(np.array(columns), rel=1e-4)


def test_covariance_is_that_of_the_linear_model_and_the_exact_one_is_near(fit):
    _, j = fit._objective.residuals_and_jacobian(fit.u)
    scale = fit._objective.free.slopes(fit.u)
    expected = np.linalg.inv(j.T @ j) * np.outer(scale, scale)
    assert fit.covariance == pytest.approx(expected, rel=1e-8)
    assert fit.sd == pytest.approx(np.sqrt(np.diag(expected)), rel=1e-8)
    assert fit.exact().sd == pytest.approx(fit.sd, rel=0.1)
    reach = scipy.stats.norm.ppf(0.975)  # the noise is known
    assert fit.high - fit.values == pytest.approx(reach * fit.sd, rel=1e-6)


def test_a_profile_of_a_nearly_quadratic_loss_gives_the_same_interval(fit):
    profile = fit.profile("e")
    k = fit.names.index("e")
    assert profile.low == pytest.approx(fit.low[k], abs=0.1 * fit.sd[k])
    assert profile.high == pytest.approx(fit.high[k], abs=0.1 * fit.sd[k])
    assert profile.losses.min() == pytest.approx(fit.loss, rel=1e-6)


def test_prediction_bands_are_those_of_parameters_drawn_from_the_covariance(fit):
    ts = np.array([0.5, 1.5, 3.0])
    t, _, middle, high = fit.bands(ts=ts)["h"]
    draws = np.random.default_rng(0).multivariate_normal(fit.values, fit.covariance, 200)
    heights = []
    for draw in draws:
        p = dict(zip(fit.names, map(float, draw), strict=True))
        heights.append(saltus.solve(ball, START, p, END, ts=ts).y["h"])
    assert np.array_equal(t, ts)
    assert (high - middle) / 1.96 == pytest.approx(np.std(heights, axis=0), rel=0.25)


def test_predictions_are_those_of_a_solve_with_the_fitted_parameters(fit):
    (run,) = fit.experiments
    series = run.outputs["h"]
    again = saltus.solve(ball, START, fit.p, END, ts=SAMPLES).y["h"]
    assert series.predicted == pytest.approx(np.asarray(again), abs=1e-7)
    assert np.array_equal(series.observed, measurements()["h"])
    assert np.std(series.residual) == pytest.approx(1.0, abs=0.4)
    assert run.solution.events.count == clean().events.count


def test_a_fit_prints_estimates_with_units_and_intervals(fit):
    text = repr(fit)
    assert "converged" in text
    assert "m/s^2" in text
    assert f"{fit['e']:.5f}"[:6] in text


def test_a_second_fit_of_the_same_shape_compiles_nothing(fit, compilations):
    other = measurements(seed=8)
    again = lambda: saltus.fit(scenario(), other, noise={"h": NOISE}).values
    again()
    assert compilations.during(again) == 0


# -- every optimiser, search and loss -----------------------------------------------------------
@pytest.mark.parametrize("name", OPTIMISERS)
def test_every_optimiser_finds_the_same_minimum(fit, name):
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name])
    other = fitted(optimiser=name, search="local", max_iterations=400)
    assert other.values == pytest.approx(fit.values, abs=1e-3 * fit.sd.max())
    assert other.settings["optimiser"] == name


def test_an_optax_rule_may_be_given_as_it_is(fit):
    optax = pytest.importorskip("optax")
    slower = optax.exponential_decay(0.02, transition_steps=50, decay_rate=0.5)
    rule = optax.chain(optax.clip(1e3), optax.adam(slower))
    other = saltus.fit(
        scenario(), measurements(), noise={"h": NOISE}, optimiser=rule, max_iterations=400
    )
    assert other.values == pytest.approx(fit.values, abs=1e-2 * fit.sd.max())


@pytest.mark.parametrize("search", ["horizon", "multistart", "shooting"])
def test_every_search_finds_the_same_minimum(fit, search):
    other = fitted(search=search, segments=4, starts=4)
    assert other.values == pytest.approx(fit.values, abs=1e-4 * fit.sd.max())


@pytest.mark.parametrize("loss", ["integral", "aligned", "blended"])
def test_every_loss_leads_near_the_truth_and_points_polish_it(loss):
    data = saltus.Experiment(measurements(), events={"bounce": bounces()})
    noise = {"h": NOISE, "bounce": 0.002}
    rough = saltus.fit(scenario(), data, noise=noise, loss=loss, polish=False)
    fine = saltus.fit(scenario(), data, noise=noise, loss=loss)
    points = saltus.fit(scenario(), data, noise=noise)
    truth = np.array([TRUTH[name] for name in rough.names])
    assert rough.values == pytest.approx(truth, rel=0.01)
    assert fine.values == pytest.approx(points.values, abs=1e-4 * points.sd.max())


def test_quasi_newton_memory_is_dropped_when_the_sequence_of_events_changes(monkeypatch):
    from saltus.estimate import optimisers

    starts = []
    minimize = optimisers.scipy.optimize.minimize
    monkeypatch.setattr(
        optimisers.scipy.optimize,
        "minimize",
        lambda *args, **options: starts.append(args[1]) or minimize(*args, **options),
    )
    far = scenario(p={"e": 0.6, "g": 9.3})  # more bounces than there were
    other = saltus.fit(far, measurements(), noise={"h": NOISE}, optimiser="l-bfgs-b")
    assert len({h["events"] for h in other.history}) > 1
    assert len(starts) > 1
    assert near_truth(other)


# -- data of all kinds --------------------------------------------------------------------------
def test_event_times_alone_determine_the_ball():
    data = saltus.Experiment(events={"bounce": bounces()}, sd={"bounce": 0.002}, t1=END)
    other = saltus.fit(scenario(), data)
    assert other.ok
    assert near_truth(other)
    match = other.experiments[0].events["bounce"]
    assert match.pairs == [(k, k) for k in range(bounces().size)]


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(lambda t: np.delete(t, 1), id="missed"),
        pytest.param(lambda t: np.sort(np.append(t, 0.3)), id="imagined"),
    ],
)
def test_events_that_were_missed_or_never_happened_do_not_move_a_fit(seen):
    data = saltus.Experiment(measurements(), events={"bounce": seen(bounces())}, t1=END)
    noise = {"h": NOISE, "bounce": 0.002}  # as exact as they are: a wrong pair would be fatal
    other = saltus.fit(scenario(), data, noise=noise)
    right = saltus.fit(
        scenario(),
        saltus.Experiment(measurements(), events={"bounce": bounces()}, t1=END),
        noise=noise,
    )
    assert near_truth(other)
    assert np.all(np.abs(other.values - right.values) <= 3 * right.sd)
    assert len(other.experiments[0].events["bounce"].pairs) == min(seen(bounces()).size, 4)
    assert other.ok
    assert "Events without a partner: 1" in other.message
    assert "without a partner" not in right.message


def test_a_missed_event_is_called_doubtful_where_nothing_else_was_measured():
    data = saltus.Experiment(events={"bounce": np.delete(bounces(), 1)}, t1=END)
    other = saltus.fit(scenario(), data, noise={"bounce": 0.002})
    assert other.result == "suspect"
    assert "nothing else was measured" in other.message
    assert "1 predicted bounce" in other.message


def test_event_times_that_are_further_off_than_their_noise_are_noticed():
    late = bounces() + np.array([0, 0, 0.05, 0])
    data = saltus.Experiment(measurements(), events={"bounce": late}, t1=END)
    other = saltus.fit(scenario(), data, noise={"h": NOISE, "bounce": 0.002}, search="local")
    assert other.result == "suspect"
    assert "times of bounce are off by" in other.message


@pytest.mark.slow
def test_experiments_have_starts_sampling_and_horizons_of_their_own():
    high = START.replace(x={"h": 5.0, "v": 0.0})
    ts = np.linspace(0.2, 2.0, 12)
    truth = saltus.solve(ball, high.replace(x={"h": 5.0, "v": -1.0}), TRUTH, 2.0, ts=ts)
    second = {"t": ts, "v": np.array(truth.y["v"])}
    second["v"][3] = np.nan
    runs = [
        saltus.Experiment(measurements(noise=0.001), name="first"),
        saltus.Experiment(second, start=high, name="second"),
    ]
    noise = {"h": 0.001, "v": 0.001}
    other = saltus.fit(scenario(), runs, noise=noise, free=["e", "g", "start.v"])
    assert other.names == ["e", "g", "first.start.v", "second.start.v"]
    assert other.values == pytest.approx([0.8, 9.81, 1.0, -1.0], abs=0.01)
    assert other.starts[1].x["v"] == pytest.approx(-1.0, abs=0.01)
    assert other.experiments[1].outputs["v"].t.size == 11


def test_an_end_for_all_experiments_is_that_of_those_without_their_own():
    few = {k: v[:20] for k, v in measurements().items()}
    runs = [few, saltus.Experiment(few, t1=3.0), saltus.Experiment(few)]
    options = {"search": "local", "noise": {"h": NOISE}, "max_iterations": 2}
    ends = lambda **more: [
        e.t1 for e in saltus.fit(scenario(), runs, **options, **more).experiments
    ]
    assert ends() == [few["t"][-1], 3.0, few["t"][-1]]
    assert ends(t1=2.5) == [2.5, 3.0, 2.5]
    with pytest.raises(ValueError, match="after its end t1 = 1"):
        saltus.fit(scenario(), few, t1=1.0)


def test_parameters_may_differ_between_experiments():
    ts = np.linspace(0.2, 3.0, 20)
    runs = []
    for g in (9.81, 1.62):  # on the moon, too
        sol = saltus.solve(ball, START, {"e": 0.8, "g": g}, 3.0, ts=ts)
        runs.append(saltus.Experiment({"t": ts, "h": sol.y["h"]}, set={"g": g}))
    other = saltus.fit(scenario(), runs, free=["e"])
    assert other.values == pytest.approx([0.8], rel=1e-6)


def test_unknown_noise_is_estimated_for_every_output():
    rng = np.random.default_rng(0)
    data = {**measurements(), "v": np.asarray(clean().y["v"]) + 0.3 * rng.normal(size=SAMPLES.size)}
    other = saltus.fit(scenario(), data)
    assert other.noise["h"] == pytest.approx(NOISE, rel=0.4)
    assert other.noise["v"] == pytest.approx(0.3, rel=0.4)
    assert near_truth(other)


@pytest.mark.slow
def test_outliers_do_little_to_a_student_likelihood():
    data = measurements()
    data["h"][::8] += 1.0
    plain = saltus.fit(scenario(), data)
    robust = saltus.fit(scenario(), data, likelihood="student")
    off = lambda fit: np.max(np.abs(fit.values / [TRUTH[n] for n in fit.names] - 1))
    assert off(robust) < 0.2 * off(plain)
    assert saltus.fit(scenario(), data, likelihood=Student(4.0)).values == pytest.approx(
        robust.values
    )


def test_a_prior_weighs_as_much_as_it_knows():
    fit = fitted()
    sure = saltus.fit(scenario(), measurements(), noise={"h": NOISE}, priors={"g": (9.0, 1e-6)})
    equal = saltus.fit(
        scenario(), measurements(), noise={"h": NOISE},
        priors={"g": (fit["g"] + 0.02, fit.sd[fit.names.index("g")])},
    )  # fmt: skip
    assert sure["g"] == pytest.approx(9.0, abs=1e-5)
    assert sure.result == "suspect"  # the data disagree
    assert equal["g"] == pytest.approx(fit["g"] + 0.01, abs=1e-3)


def test_a_bound_that_holds_a_number_is_said():
    other = saltus.fit(scenario(), measurements(), noise={"h": NOISE}, bounds={"e": (0.5, 0.79)})
    assert other["e"] == pytest.approx(0.79, abs=1e-4)
    assert other.at_bound == [name == "e" for name in other.names]
    assert "At a bound: e" in other.message
    assert "at its bound" in other.table()


def test_scales_change_the_way_but_not_the_minimum(fit):
    other = fitted_on_scales()
    assert other.values == pytest.approx(fit.values, abs=1e-4 * fit.sd.max())
    assert other.sd == pytest.approx(fit.sd, rel=1e-3)


def fitted_on_scales():
    return saltus.fit(
        scenario(scales={"g": "log", "e": "logit"}, bounds={"e": (0.1, 0.99), "g": (1.0, 50.0)}),
        measurements(), noise={"h": NOISE},
    )  # fmt: skip


# -- bad basins ---------------------------------------------------------------------------------
def test_a_guess_that_cannot_be_simulated_to_the_end_is_fitted_from_its_beginning():
    zeno = scenario(p={"e": 0.45, "g": 9.0})  # its bounces pile up before the end
    with pytest.raises(saltus.SolveError, match="events_accumulate"):
        zeno.solve()
    other = saltus.fit(zeno, measurements(), noise={"h": NOISE})
    assert other.ok
    assert near_truth(other)


def test_a_local_fit_from_such_a_guess_says_what_to_do():
    zeno = scenario(p={"e": 0.45, "g": 9.0})
    with pytest.raises(saltus.SolveError, match="the first guess cannot be simulated") as error:
        saltus.fit(zeno, measurements(), search="local")
    assert 'search="horizon"' in str(error.value)
    assert error.value.solution.events.count > 5


def test_a_fit_that_leaves_structure_in_its_residuals_says_so():
    data = measurements()
    data["h"] = data["h"] + 0.2 * np.sin(3 * data["t"])  # what no ball does
    other = saltus.fit(scenario(), data, starts=2)
    assert "residuals of h have structure" in other.message
    assert other.result == "suspect"
    assert not other.ok


# -- long work ----------------------------------------------------------------------------------
def test_stopping_by_hand_returns_the_best_point_so_far(monkeypatch):
    each, calls = objective.Objective._each, []

    def impatient(self, kind, u):
        calls.append(u)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return each(self, kind, u)

    monkeypatch.setattr(objective.Objective, "_each", impatient)
    other = saltus.fit(scenario(), measurements(), noise={"h": NOISE})
    assert other.result == "interrupted"
    assert "resume=" in other.message
    assert other.loss <= min(h["loss"] for h in other.history)
    assert other.loss < other.history[0]["loss"]
    assert other.experiments[0].outputs["h"].t.size == SAMPLES.size


@pytest.mark.parametrize("calls", [3, 8])
@pytest.mark.parametrize("search", ["horizon", "shooting"])
def test_stopping_within_a_stage_returns_a_point_no_worse_than_the_guess(
    monkeypatch, search, calls
):
    iteration = monitor.Monitor.iteration

    def impatient(self, *args):
        iteration(self, *args)
        if len(self.history) == calls:
            raise KeyboardInterrupt

    monkeypatch.setattr(monitor.Monitor, "iteration", impatient)
    other = saltus.fit(scenario(), measurements(), noise={"h": NOISE}, search=search, segments=4)
    assert other.result == "interrupted"
    assert other.loss <= other._objective.value(other._setup.free.initial)


def test_stopping_where_the_guess_cannot_be_simulated_keeps_what_the_stages_found(monkeypatch):
    iteration, zeno = monitor.Monitor.iteration, scenario(p={"e": 0.45, "g": 9.0})

    def impatient(self, *args):
        iteration(self, *args)
        if self.stage == "first 100 %":
            raise KeyboardInterrupt

    monkeypatch.setattr(monitor.Monitor, "iteration", impatient)
    other = saltus.fit(zeno, measurements(), noise={"h": NOISE})
    assert other.result == "interrupted"
    assert other.values == pytest.approx([TRUTH[name] for name in other.names], rel=0.05)


@pytest.mark.parametrize("search", ["horizon", "shooting"])
def test_a_checkpoint_of_a_fit_by_stages_holds_its_result(tmp_path, search):
    file = tmp_path / "fit.npz"
    other = saltus.fit(
        scenario(), measurements(), search=search, segments=4, checkpoint=file
    )  # the noise is estimated, so the loss changes on the way
    u, _ = monitor.read_checkpoint(file, other.names)
    assert np.array_equal(u, other.u)


def test_a_checkpoint_on_the_way_holds_no_point_that_saw_only_a_part(tmp_path):
    file, whole, part = tmp_path / "fit.npz", object(), None
    watch = monitor.Monitor(["a"], progress=False, checkpoint=file)
    saved = lambda: (watch._save(force=True), monitor.read_checkpoint(file, ["a"])[0][0])[1]
    watch.enter("first 12 %", part)
    watch.iteration(np.array([1.0, 9.0]), 0.1, 0.0, 0, 1)  # a node of a segment comes with it
    assert saved() == 1.0  # better than nothing
    watch.enter("all", whole)
    watch.iteration(np.array([2.0]), 5.0, 0.0, 0, 2)
    watch.iteration(np.array([3.0]), 6.0, 0.0, 0, 3)
    assert saved() == 2.0
    watch.enter("first 25 %", part)
    watch.iteration(np.array([4.0]), 0.2, 0.0, 0, 4)
    assert saved() == 2.0
    watch.enter("noise estimated", object())
    watch.iteration(np.array([5.0]), 20.0, 0.0, 0, 5)
    assert saved() == 5.0


def test_a_checkpoint_is_where_a_fit_goes_on(tmp_path):
    pytest.importorskip("optax")
    options = {"optimiser": "adam", "search": "local", "noise": {"h": NOISE}}
    file = tmp_path / "deep" / "fit.npz"
    run = lambda n, **more: saltus.fit(
        scenario(), measurements(), **options, max_iterations=n, **more
    )
    whole = run(60)
    run(40, checkpoint=file)
    rest = run(20, resume=file)
    assert rest.history[0]["loss"] == pytest.approx(whole.history[40]["loss"], rel=1e-9)
    assert rest.values == pytest.approx(whole.values, rel=1e-9)


def test_a_checkpoint_of_another_fit_is_refused(tmp_path):
    file = tmp_path / "fit.npz"
    saltus.fit(scenario(), measurements(), noise={"h": NOISE}, checkpoint=file)
    with pytest.raises(ValueError, match="belongs to a fit of e, g"):
        saltus.fit(scenario(), measurements(), free=["e"], resume=file)
    (tmp_path / "other.npz").write_text("not one")
    with pytest.raises(ValueError, match="is not a checkpoint"):
        saltus.fit(scenario(), measurements(), resume=tmp_path / "other.npz")


def test_the_log_is_a_file_of_json_lines(tmp_path):
    file = tmp_path / "log.jsonl"
    other = saltus.fit(scenario(), measurements(), noise={"h": NOISE}, log=file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["loss"] for line in lines] == [h["loss"] for h in other.history]
    assert set(lines[0]) >= {"iteration", "stage", "gradient", "events", "seconds", "u"}


def test_progress_is_drawn_on_request_and_cleared(capsys):
    saltus.fit(scenario(), measurements(), noise={"h": NOISE}, progress=True)
    err = capsys.readouterr().err
    assert "iteration 1, loss" in err
    assert "s left in this stage" in err
    assert "events" in err
    assert err.endswith("\r")


def test_progress_is_silent_where_there_is_no_terminal(capsys):
    saltus.fit(scenario(), measurements(), noise={"h": NOISE})
    assert capsys.readouterr().err == ""


# -- wrong input --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options, words",
    [
        ({"loss": "squares"}, "expected one of points"),
        ({"search": "everywhere"}, "expected one of auto"),
        ({"optimiser": "newton"}, "Write one of lm"),
        ({"likelihood": "poisson"}, "expected .normal."),
        ({"loss": "aligned"}, "needs observed event times"),
        ({"loss": "integral", "search": "shooting"}, "compares points"),
        ({"noise": {"v": 1.0}}, "which is not measured"),
        ({"noise": {"h": -1.0}}, "expected a positive number"),
        ({"free": ["mass"]}, 'called "mass"'),
        ({"optimiser": "slsqp"}, "is for saltus.minimise"),
        ({"max_iterations": 0}, "at least 1"),
        ({"priors": {"g": (9.0, 0.0)}}, "too small"),
    ],
)
def test_wrong_options_are_answered_in_words(options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        saltus.fit(scenario(), measurements(), **options)


@pytest.mark.parametrize(
    "data, words",
    [
        ([], "no data"),
        ({"t": [-1.0, 1.0], "h": [1.0, 1.0]}, "before its start"),
        (saltus.Experiment({"t": [1.0], "h": [1.0]}, t1=0.5), "after its end"),
        ({"t": [1.0], "h": [np.nan]}, "has no measurements"),
        ({"t": [0.0], "h": [1.0]}, "ends where it starts"),
        ({"t [kg]": [1.0], "h": [1.0]}, "is in kg, the model has t in s"),
        ({"t": [1.0, 2.0], "h": [1.0, np.inf]}, "infinite"),
        ({"t": [1.0, np.nan], "h": [1.0, 2.0]}, "without a time"),
        ({"t": ["monday"], "h": [1.0]}, '"monday" is neither a number nor a date'),
        (saltus.Experiment({"t": [1.0], "h": [1.0]}, set={"g": 9.0}), "which is free"),
        (saltus.Experiment({"t": [1.0], "h": [1.0]}, sd={"h": np.ones(3)}), "has shape"),
        (saltus.Experiment(events={"bounce": [1.0, np.nan]}), "not finite"),
    ],
)
def test_wrong_data_are_answered_in_words(data, words):
    with pytest.raises(ValueError, match=words):
        saltus.fit(scenario(), data)


def test_segments_need_outputs_and_say_when_event_times_count():
    alone = saltus.Experiment(events={"bounce": bounces()}, t1=END)
    with pytest.raises(ValueError, match='search="multistart"'):
        saltus.fit(scenario(), alone, search="shooting")
    data = saltus.Experiment(measurements(), events={"bounce": bounces()}, t1=END)
    noise = {"h": NOISE, "bounce": 0.002}
    shot = saltus.fit(scenario(), data, noise=noise, search="shooting", segments=4)
    assert "Event times counted at the end" in shot.message
    plain = saltus.fit(scenario(), data, noise=noise)
    assert shot.values == pytest.approx(plain.values, abs=1e-4 * plain.sd.max())


@pytest.mark.slow
def test_outliers_and_priors_count_in_segments_as_they_do_elsewhere():
    data = measurements()
    data["h"][::8] += 1.0
    options = {"likelihood": "student", "noise": {"h": NOISE}, "priors": {"g": (9.9, 0.01)}}
    shot = saltus.fit(scenario(), data, search="shooting", segments=4, **options)
    plain = saltus.fit(scenario(), data, search="local", **options)
    assert shot.values == pytest.approx(plain.values, abs=1e-4 * plain.sd.max())
    last = [h["loss"] for h in shot.history if "pull 1000" in h["stage"]][-1]
    assert last == pytest.approx(shot.loss, rel=0.05)


def test_a_system_alone_needs_parameters_and_a_start():
    with pytest.raises(TypeError, match="needs p and start"):
        saltus.fit(ball, measurements())
    with pytest.raises(TypeError, match="expected a Scenario or a HybridSystem"):
        saltus.fit(dataclasses, measurements())
    other = saltus.fit(ball, measurements(), GUESS, start=START, noise=NOISE)
    assert near_truth(other)


def test_a_start_may_be_a_function_of_parameters():
    start = lambda p: saltus.Instant(t=0.0, x={"h": p["h0"], "v": jnp.asarray(1.0)})
    p = {**GUESS, "h0": 2.9}
    other = saltus.fit(ball, measurements(), p, start=start, noise=NOISE)
    assert other["h0"] == pytest.approx(3.0, abs=0.05)


def test_data_may_go_on_after_a_prediction_has_ended():
    # a ball that is caught: what it does afterwards is to stay there
    caught = saltus.HybridSystem(
        lambda now, p: {"h": now.x["v"], "v": -p["g"]},
        events=[saltus.Event("caught", lambda now, p: now.x["h"] - 1.0, terminal=True)],
    )
    ts = np.linspace(0.05, 1.0, 20)
    height = np.maximum(3.0 - 0.5 * 9.81 * ts**2, 1.0)
    start = saltus.Instant(t=0.0, x={"h": 3.0, "v": 0.0})
    data = saltus.Experiment({"t": ts, "h": height}, events={"caught": [np.sqrt(4 / 9.81)]}, t1=1.0)
    other = saltus.fit(caught, data, {"g": 12.0}, start=start, noise={"h": 0.01, "caught": 0.01})
    assert other.ok
    assert other["g"] == pytest.approx(9.81, rel=1e-6)


@pytest.mark.slow
def test_the_sweep_is_chosen_from_the_sizes():
    fit = fitted()
    assert fit._objective.direction() == "forward"
    wide = scenario(p={**GUESS, "unused": jnp.zeros(40)})
    data = saltus.Experiment(events={"bounce": bounces()[:1]}, sd={"bounce": 0.01}, t1=1.2)
    other = saltus.fit(wide, data, search="local", max_iterations=5)
    assert other._objective.direction() == "reverse"
    assert any("not at all" in sentence for sentence in other.weak)


def test_a_network_inside_a_reset_is_fitted_like_any_parameter():
    def rebound(now, p):
        share = jax.nn.sigmoid(p["net"](now.x["v"][None] / 10)[0])
        return now.replace(x={"h": now.x["h"], "v": -share * now.x["v"]})

    soft = saltus.HybridSystem(
        ball.flow, events=[saltus.Event("bounce", lambda now, p: now.x["h"], rebound)]
    )
    net = eqx.nn.Linear(1, 1, key=jax.random.key(1))
    guess = {"g": 9.81, "net": net}
    truth = {
        "g": 9.81,
        "net": eqx.tree_at(
            lambda n: (n.weight, n.bias), net, (jnp.full((1, 1), 0.5), jnp.array([1.5]))
        ),
    }
    y = saltus.solve(soft, START, truth, END, ts=SAMPLES).y["h"]
    other = saltus.fit(soft, {"t": SAMPLES, "h": y}, guess, start=START, free=["net"])
    assert other.names == ["net.weight[0,0]", "net.bias[0]"]
    assert other.values == pytest.approx([0.5, 1.5], rel=1e-5)
    assert callable(other.p["net"])


# -- said truthfully ------------------------------------------------------------------------------
def test_noise_that_is_given_far_too_small_is_noticed():
    other = saltus.fit(scenario(), measurements(), noise={"h": NOISE / 100}, search="local")
    assert other.result == "suspect"
    assert not other.ok
    assert "times as large as the noise given" in other.message


def test_options_for_one_entry_of_an_array_are_for_that_entry():
    squares = lambda p: jnp.sum((p["q"] - 5.0) ** 2)
    best = saltus.minimise(squares, {"q": np.zeros(3)}, bounds={"q[1]": (-1.0, 2.0)})
    assert np.asarray(best.p["q"]) == pytest.approx([5.0, 2.0, 5.0], abs=1e-5)


def test_whole_numbers_are_held_and_that_is_said():
    other = saltus.fit(scenario(p={"e": 0.8, "g": 9}), measurements(), search="local")
    assert other.names == ["e"]
    assert "Whole numbers are held: g" in other.message


def test_without_samples_left_for_the_noise_nothing_is_called_sure():
    other = saltus.fit(scenario(), {"t": [0.5, 1.5], "h": [1.9, 2.0]}, search="local")
    assert np.all(np.isinf(other.sd))
    assert "no more data than free numbers" in other.message
    assert "No intervals: no samples are left" in other.table()


def test_few_event_times_do_not_drown_the_samples():
    data = saltus.Experiment(measurements(), events={"bounce": clean().events.t[:2]}, t1=2.4)
    short = {k: v[SAMPLES <= 2.4] for k, v in measurements().items()}
    other = saltus.fit(scenario(), dataclasses.replace(data, data=short))
    assert other.noise["bounce"] > 1e-5
    assert near_truth(other)


def test_an_index_that_is_no_time_is_not_taken_for_one():
    pd = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="no times for h"):
        saltus.fit(scenario(), pd.DataFrame({"h": measurements()["h"]}))


def test_an_experiment_may_bring_its_own_input():
    heated = saltus.HybridSystem(
        lambda now, p: {"T": -p["k"] * now.x["T"] + now.u}, inputs=lambda p: p["heat"]
    )
    ts, runs = np.linspace(0.1, 2.0, 20), []
    cold = saltus.Instant(t=0.0, x={"T": 1.0})
    for values in ([1.0, 0.0], [0.0, 3.0]):
        heat = saltus.Steps(jnp.array([0.0, 1.0]), jnp.array(values))
        y = saltus.solve(heated, cold, {"k": 0.7, "heat": heat}, 2.0, ts=ts).y["T"]
        runs.append(saltus.Experiment({"t": ts, "T": y}, set={"heat": heat}))
    none = saltus.Steps(jnp.array([0.0]), jnp.array([0.0]))
    other = saltus.fit(heated, runs, {"k": 1.0, "heat": none}, start=cold, free=["k"])
    assert other["k"] == pytest.approx(0.7, rel=1e-6)


@pytest.mark.slow
def test_multiple_shooting_works_for_modes():
    from saltus.cli import demo

    data, d = demo.measurements()
    model = demo.scenario({**demo.GUESS, **demo._disturbance(d)})
    other = saltus.fit(model, data, search="shooting", segments=4)
    assert other.ok
    assert other["k"] == pytest.approx(2.0, rel=0.15)


def test_the_memory_of_a_checkpoint_serves_the_first_search_only(tmp_path):
    pytest.importorskip("optax")
    file = tmp_path / "adam.npz"
    options = {"optimiser": "adam", "search": "local", "max_iterations": 10}
    run = lambda **more: saltus.fit(
        scenario(), measurements(), noise={"h": NOISE}, **options, **more
    )
    run(checkpoint=file)
    other = run(resume=file)
    profile = other.profile("e", points=3)  # which has one number less
    assert profile.losses[1] <= other.loss * (1 + 1e-9)


def test_a_checkpoint_of_adam_may_be_polished_by_least_squares(tmp_path):
    pytest.importorskip("optax")
    file, noise = tmp_path / "adam.npz", {"h": NOISE}
    saltus.fit(
        scenario(),
        measurements(),
        noise=noise,
        optimiser="adam",
        max_iterations=20,
        checkpoint=file,
    )
    polished = saltus.fit(scenario(), measurements(), noise=noise, resume=file)
    assert polished.values == pytest.approx(fitted().values, rel=1e-6)
