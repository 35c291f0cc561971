"""Fitting: every way leads to the same minimum, and what is said about it is true."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

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
    fitted,
    near_truth,
    scenario,
)
from fits import table as measurements

OPTIMISERS = ["gauss-newton", "l-bfgs-b", "trust", "ipopt", "adam"]


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
    exact = fit.exact()
    assert exact.sd == pytest.approx(fit.sd, rel=0.1)
    assert all(name in repr(exact) for name in ("95 % interval", *fit.names))
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


def test_bands_go_on_after_the_end_of_the_data_and_not_before_the_start(fit):
    ts = np.array([END - 0.1, END + 0.1])
    _, low, middle, high = fit.bands(ts=ts)["h"]
    later = saltus.solve(ball, START, fit.p, END + 1.0, ts=ts, method=scenario().method).y["h"]
    assert middle == pytest.approx(np.asarray(later), rel=1e-6)
    assert np.all((low < middle) & (middle < high))
    with pytest.raises(ValueError, match="before the start of experiment"):
        fit.bands(ts=[-1.0, 0.5])


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
    if name == "ipopt":
        pytest.importorskip("ipyopt")
    other = fitted(optimiser=name, search="local", max_iterations=400)
    assert other.values == pytest.approx(fit.values, abs=1e-3 * fit.sd.max())
    assert other.settings["optimiser"] == name


def test_an_optax_rule_may_be_given_as_it_is(fit):
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


@pytest.mark.slow
def test_multiple_shooting_works_for_modes():
    from saltus.cli import demo

    data, d = demo.measurements()
    model = demo.scenario({**demo.GUESS, **demo._disturbance(d)})
    other = saltus.fit(model, data, search="shooting", segments=4)
    assert other.ok
    assert other["k"] == pytest.approx(2.0, rel=0.15)
