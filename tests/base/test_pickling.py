"""Results go to other processes and are copied; rare settings of JAX work or are refused."""

import copy
import multiprocessing
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, solve

P = {"g": 9.81, "e": 0.8}
START = Instant(t=0.0, x={"h": 1.0, "v": 0.0})


def flow(now, p):
    return {"h": now.x["v"], "v": -p["g"]}


def gap(now, p):
    return now.x["h"]


def bounce(now, p):
    return now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]})


BALL = HybridSystem(flow, events=[Event("bounce", gap, bounce)], units={"h": "m"})
# The same from functions that no other process can import.
NAMELESS = HybridSystem(
    lambda now, p: flow(now, p),
    events=[Event("bounce", lambda now, p: gap(now, p), lambda now, p: bounce(now, p))],
    units={"h": "m"},
)
SYSTEMS = {"named": BALL, "lambdas": NAMELESS}


def run(system, t1=1.0):
    return solve(system, START, P, t1, ts=jnp.linspace(0.0, t1, 5))


def height(p):
    return solve(BALL, START, p, 1.0).final.x["h"]


def pickled(thing):
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_pickled_solution_has_its_values_events_and_dense_output(system):
    sol = run(SYSTEMS[system])
    twin = pickled(sol)
    np.testing.assert_array_equal(twin.y["h"], sol.y["h"])
    assert float(twin.final.x["v"]) == float(sol.final.x["v"])
    assert int(twin.stats.steps) == int(sol.stats.steps)
    np.testing.assert_array_equal(twin.events.t, sol.events.t)
    assert repr(twin.events) == repr(sol.events)
    times = np.linspace(0.0, 1.0, 33)
    np.testing.assert_allclose(twin(times)["h"], sol(times)["h"], atol=1e-9)
    assert twin.names == ("bounce",) and dict(twin.units) == {"h": "m"}
    assert pickled(twin).names == twin.names
    with pytest.raises(AttributeError, match="no longer has its model"):
        twin.certificate  # noqa: B018


@pytest.mark.slow
def test_copies_of_a_solution_are_differentiable_solutions():
    sol = run(BALL)
    for twin in (copy.copy(sol), copy.deepcopy(sol)):
        assert twin.certificate.verdict == sol.certificate.verdict
    slope = jax.grad(lambda g: copy.deepcopy(solve(BALL, START, {**P, "g": g}, 0.4)).final.x["h"])
    assert slope(9.81) == pytest.approx(-0.5 * 0.4**2)


@pytest.mark.slow
def test_a_batch_is_pickled_and_a_batch_of_batches_is_refused():
    grid = jnp.array([[9.0, 10.0], [11.0, 12.0]])
    end = lambda g: solve(BALL, START, {**P, "g": g}, 0.3)
    row = jax.vmap(end)(grid[0])
    np.testing.assert_array_equal(pickled(row).final.x["h"], row.final.x["h"])
    with pytest.raises(ValueError, match=r"batch of shape \(2, 2\), but at most one"):
        pickle.dumps(jax.vmap(jax.vmap(end))(grid))


@pytest.mark.slow
def test_pickled_certificates_say_what_they_said():
    sol = run(BALL)
    certificate = sol.certificate
    twin = pickled(certificate)
    assert repr(twin) == repr(certificate)
    assert twin.signature == ("bounce",)
    of_loss = saltus.certify(lambda p: height(p), P)
    twin = pickled(of_loss)
    assert (twin.verdict, twin.reasons) == (of_loss.verdict, of_loss.reasons)
    assert twin.gradient == of_loss.gradient
    assert "TRUSTED" in repr(twin)
    with pytest.raises(RuntimeError, match=r"LossCertificate\.loss was left behind"):
        twin.trust_radius(P)
    assert copy.deepcopy(of_loss).trust_radius(P) == of_loss.trust_radius(P)


def test_a_failed_solve_is_pickled_with_its_partial_solution():
    with pytest.raises(saltus.SolveError) as caught:
        solve(BALL, START, P, 10.0)
    twin = pickled(caught.value)
    assert str(twin) == str(caught.value)
    assert float(twin.solution.last.t) == float(caught.value.solution.last.t)


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_pickled_fit_has_its_numbers(system):
    t = np.linspace(0.05, 1.0, 10)
    data = {"t": t, "h": np.asarray(solve(BALL, START, P, 1.0, ts=t).y["h"])}
    fit = saltus.fit(
        SYSTEMS[system], data, {"g": 9.0, "e": 0.8}, start=START, progress=False, free=["g"]
    )
    twin = pickled(fit)
    np.testing.assert_array_equal(twin.values, fit.values)
    assert twin.p["g"] == pytest.approx(9.81)
    assert copy.deepcopy(fit).verdict == fit.verdict
    if system == "named":
        assert repr(twin) == repr(fit)
        assert twin.verdict == fit.verdict
    else:
        assert "9.81" in repr(twin)
        with pytest.raises(RuntimeError, match="was left behind when this was pickled"):
            twin.verdict  # noqa: B018
        with pytest.raises(RuntimeError, match=r"fit\.report simulates the model, which was left"):
            twin.report()


@pytest.mark.slow
def test_solutions_come_back_from_a_pool_of_processes():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (twin,) = pool.map(run, [BALL])
    np.testing.assert_allclose(twin.y["h"], run(BALL).y["h"])


@pytest.mark.slow
def test_other_results_are_pickled():
    orbit = saltus.orbit(
        HybridSystem(flow, events=[Event("bounce", gap, bounce)]),
        Instant(t=0.0, x={"h": 0.0, "v": 5.0}),
        {"g": 9.81, "e": 1.0},
        event="bounce",
    )
    comparison = saltus.compare(height, P, repeat=1)
    estimate = saltus.error_estimate(height, P)
    lowest = saltus.minimise(lambda p: (height({**P, "g": p}) - 0.4) ** 2, 9.5, progress=False)
    for result in (orbit, comparison, estimate, lowest):
        assert repr(pickled(result)) == repr(result)
        assert repr(copy.deepcopy(result)) == repr(result)


# -- settings of JAX ------------------------------------------------------------------------------


def test_disable_jit_changes_nothing():
    with jax.disable_jit():
        sol = run(BALL)
        end = sol.final.x["h"]
        slope = jax.grad(height)(P)
    assert end == run(BALL).final.x["h"]
    assert slope == jax.grad(height)(P)


@pytest.mark.slow
def test_disable_jit_works_for_algebraic_systems():
    circuit = HybridSystem(
        lambda now, p: {"x": now.z["i"]},
        constraint=lambda now, p: {"law": now.z["i"] + p * now.x["x"]},
    )
    start = Instant(t=0.0, x={"x": 1.0}, z={"i": -1.0})
    with jax.disable_jit():
        sol = solve(circuit, start, 1.0, 1.0, ts=[0.5])
        assert sol.y["x"][0] == pytest.approx(np.exp(-0.5), rel=1e-6)
        slope = jax.grad(lambda p: solve(circuit, start, p, 1.0).final.x["x"])(1.0)
    assert slope == pytest.approx(-np.exp(-1.0), rel=1e-5)


def test_without_double_precision_solve_says_how_to_get_it():
    sol = run(BALL)
    with jax.enable_x64(False):
        with pytest.raises(RuntimeError, match=r'jax.config.update\("jax_enable_x64", True\)'):
            run(BALL)
        with pytest.raises(RuntimeError, match="switched off after saltus was imported"):
            sol(0.5)
    assert run(BALL).final.x["h"] == sol.final.x["h"]


# -- models with nothing, or with functions, in unusual places -------------------------------------


RARE = pytest.mark.slow
WHENS = [pytest.param("edge", marks=RARE), "level", pytest.param("contact", marks=RARE)]


@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("direction", [pytest.param("falling", marks=RARE), "rising"])
def test_a_family_without_members_never_fires(when, direction):
    none = Event("none", lambda now, p: jnp.zeros(0), bounce, direction, when=when)
    system = HybridSystem(flow, events=[none, *BALL.events])
    sol = solve(system, START, P, 1.0)
    assert sol.final.x["h"] == pytest.approx(float(height(P)), rel=1e-12)
    assert [sol.names[k] for k in sol.events.which] == ["bounce"]
    assert jax.grad(lambda p: solve(system, START, p, 1.0).final.x["h"])(P)["g"] == pytest.approx(
        float(jax.grad(height)(P)["g"]), rel=1e-9
    )


def decay_by(p):
    """x' = -act(rate) x."""
    system = HybridSystem(lambda now, p: -p["act"](p["rate"]) * now.x)
    return solve(system, Instant(t=0.0, x=1.0), p, 1.0).final.x


@pytest.mark.slow
def test_parameters_may_contain_functions_in_certificates():
    p = {"rate": 0.5, "act": jnp.tanh, "name": "tanh", "on": True}
    found = saltus.certify(decay_by, p)
    rate = np.tanh(0.5)
    slope = -np.exp(-rate) * (1 - rate**2)
    assert found.trusted
    assert found.value == pytest.approx(np.exp(-rate), rel=1e-7)
    assert found.gradient["rate"] == pytest.approx(slope, rel=1e-6)
    assert found.gradient["act"] is None
    assert saltus.error_estimate(decay_by, p).gradient["rate"] == pytest.approx(slope, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("activation", [jax.nn.relu, jax.nn.softplus, jnp.tanh])
def test_a_network_with_its_activation_is_certified(activation):
    """Also activations with derivatives of their own, in models whose small products are written
    out."""
    net = eqx.nn.MLP(1, 1, 4, 1, activation=activation, key=jax.random.key(0))
    system = HybridSystem(lambda now, p: p(now.x[None])[0])
    loss = lambda p: solve(system, Instant(t=0.0, x=1.0), p, 0.25).final.x
    found = saltus.certify(loss, net)
    kinked = activation is jax.nn.relu  # at t = 0.0026: finer steps change one weight's derivative
    assert found.trusted != kinked and ("hidden kink" in "".join(found.reasons)) == kinked
    direct = eqx.filter_grad(loss)(net)
    np.testing.assert_allclose(found.gradient.layers[0].weight, direct.layers[0].weight)


def test_an_activation_with_its_own_derivative_may_stand_beside_small_products():
    """x' = -relu(A x) with A = diag(1, 2)."""
    system = HybridSystem(lambda now, p: -jax.nn.relu(p @ now.x))
    end = solve(system, Instant(t=0.0, x=jnp.ones(2)), jnp.diag(jnp.array([1.0, 2.0])), 1.0).final.x
    np.testing.assert_allclose(end, np.exp([-1.0, -2.0]), rtol=1e-6)
