"""What a fit is given: event times, experiments, noise, starts, and wrong input."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import saltus
from fits import (
    END,
    GUESS,
    NOISE,
    SAMPLES,
    START,
    TRUTH,
    ball,
    bounces,
    clean,
    near_truth,
    scenario,
)
from fits import table as measurements
from saltus.estimate import Student


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
        (saltus.Experiment({"t": [1.0], "h": [1.0]}, set={"g": 9.0}), "which is also free"),
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
    assert "Event times counted in the last stage only" in shot.message
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


def test_options_for_one_entry_of_an_array_are_for_that_entry():
    squares = lambda p: jnp.sum((p["q"] - 5.0) ** 2)
    best = saltus.minimise(squares, {"q": np.zeros(3)}, bounds={"q[1]": (-1.0, 2.0)})
    assert np.asarray(best.p["q"]) == pytest.approx([5.0, 2.0, 5.0], abs=1e-5)


def test_whole_numbers_are_held_and_that_is_said():
    other = saltus.fit(scenario(p={"e": 0.8, "g": 9}), measurements(), search="local")
    assert other.names == ["e"]
    assert "Whole numbers are fixed: g" in other.message


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
