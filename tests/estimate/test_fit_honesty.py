"""What a fit says of itself: outputs that are not mixed up, doubts where there are some."""

import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, Scenario, solve

OSCILLATOR = HybridSystem(
    lambda now, p: {"x": now.x["v"], "v": -p["k"] * now.x["x"] - p["c"] * now.x["v"]}
)
START = Instant(t=0.0, x={"x": 1.0, "v": 0.0})
TIMES = np.linspace(0.2, 5.0, 30)
GUESS = Scenario(OSCILLATOR, START, {"k": 3.5, "c": 0.3}, t1=5.0)


def measured(seed=0):
    y = solve(OSCILLATOR, START, {"k": 4.0, "c": 0.2}, 5.0, ts=TIMES).y
    rng = np.random.default_rng(seed)
    noise = {name: sd * rng.normal(size=TIMES.size) for name, sd in (("x", 0.02), ("v", 0.05))}
    return {name: np.asarray(y[name]) + noise[name] for name in ("x", "v")}


@pytest.mark.parametrize("columns", ["xv", "vx"])
def test_the_order_of_columns_does_not_matter(columns):
    data = measured()
    fit = saltus.fit(GUESS, {"t": TIMES, **{name: data[name] for name in columns}})
    assert fit.ok
    np.testing.assert_allclose(fit.p["k"], 4.0, atol=0.03)
    assert 0.01 < fit.noise["x"] < 0.03 < fit.noise["v"] < 0.08
    for name, series in fit.experiments[0].outputs.items():
        np.testing.assert_allclose(series.predicted, data[name], atol=0.2)


def test_outputs_with_times_of_their_own_are_told_apart():
    data = measured()
    given = {"x": (TIMES[::3], data["x"][::3]), "v": (TIMES, data["v"])}
    fit = saltus.fit(GUESS, given)
    assert fit.ok
    assert fit.experiments[0].outputs["x"].t.size == 10
    np.testing.assert_allclose(fit.experiments[0].outputs["x"].predicted, data["x"][::3], atol=0.1)


def test_bands_of_many_entries_are_those_of_the_entries():
    decay = HybridSystem(lambda now, p: -p * now.x)
    start = Instant(t=0.0, x=np.arange(1.0, 13.0))
    ts = np.linspace(0.1, 1.0, 10)
    exact = np.asarray(solve(decay, start, 0.7, 1.0, ts=ts).y)
    noise = 0.01 * np.random.default_rng(0).normal(size=exact.shape)
    fit = saltus.fit(
        Scenario(decay, start, 0.6, t1=1.0),
        {"t": ts, **{f"y[{k}]": (exact + noise)[:, k] for k in range(12)}},
    )
    for k in range(12):
        _, low, middle, high = fit.bands(ts=ts)[f"y[{k}]"]
        np.testing.assert_allclose(middle, exact[:, k], rtol=1e-2)
        assert np.all((low <= middle) & (middle <= high))


def test_a_number_of_which_the_data_know_nothing_is_named_also_without_samples_to_spare():
    bounce = Event(
        "bounce",
        guard=lambda now, p: now.x["h"],
        reset=lambda now, p: now.replace(x={"h": 0.0, "v": -p["e"] * now.x["v"]}),
    )
    ball = HybridSystem(lambda now, p: {"h": now.x["v"], "v": -p["g"]}, events=[bounce])
    start = Instant(t=0.0, x={"h": 5.0, "v": 0.0})
    guess = Scenario(ball, start, {"e": 0.75, "g": 9.0}, t1=0.5)
    fit = saltus.fit(guess, {"t": [0.3], "h": [5.0 - 0.5 * 9.81 * 0.09]})
    assert fit.undetermined == ["e"] and "not determined" in fit.headline()
    assert "look like noise" not in fit.message
    assert fit.noise_origin["h"] == "assumed"


DECAY = HybridSystem(lambda now, p: -p * now.x)


def decayed(x0, n, seed=1, sd=0.1):
    ts = np.linspace(0.3, 6.0, n)
    return ts, x0 * np.exp(-0.5 * ts) + sd * np.random.default_rng(seed).normal(size=n)


def fitted(*runs, start=30.0):
    guess = Scenario(DECAY, Instant(t=0.0, x=start), 0.6, t1=6.0)
    data = [{"t": t, "x": x} for t, x in runs]
    return saltus.fit(guess, data[0] if len(data) == 1 else data, search="local")


@pytest.mark.parametrize("n", [10, 30])
def test_residuals_of_a_wrong_start_do_not_look_like_noise(n):
    assert "structure" in fitted(decayed(20.0, n)).message
    assert fitted(decayed(30.0, n)).result == "converged"


def test_a_sample_that_is_far_out_is_named_with_its_time():
    t, x = decayed(30.0, 30)
    x[11] = 0.0
    fit = fitted((t, x))
    assert fit.result == "suspect" and f"t = {t[11]:.6g}" in fit.message


def test_an_experiment_that_fits_worse_than_the_others_is_named():
    noisy = decayed(30.0, 40, seed=3, sd=1.5)
    fit = fitted(decayed(30.0, 40, seed=1), decayed(30.0, 40, seed=2), noisy)
    assert fit.result == "suspect" and "in experiment 3" in fit.message


def test_noise_is_hardly_ever_doubted():
    doubted = [fitted(decayed(30.0, n, seed)).result for n in (10, 40) for seed in range(12)]
    assert doubted.count("suspect") == 0
