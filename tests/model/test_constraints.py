"""Constraints: what is checked, what is reported, and derivatives under every nesting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, Radau5, Result, Rodas5P, Tsit5, solve, when


def fold(power=2):
    """z^2 = 1 - x meets its end where x = 1."""
    return HybridSystem(
        flow=lambda now, p: {"x": 1.0 + 0.0 * now.z["a"]},
        constraint=lambda now, p: {"fold": now.z["a"] ** power + now.x["x"] - 1},
    )


def pendulum(now, p):
    x, y, u, w = (now.x[k] for k in "xyuw")
    lam, eta = now.z["lam"], now.z["eta"]
    return {"x": u - x * eta, "y": w - y * eta, "u": -x * lam, "w": -9.81 - y * lam}


def rod(now, p):
    x, y, u, w = (now.x[k] for k in "xyuw")
    return {"length": (x * x + y * y - p**2) / 2, "speed": x * u + y * w}


PENDULUM = HybridSystem(pendulum, constraint=rod)
GUESS = {"lam": 5.0, "eta": 0.0}


def stopped(*args, **kwargs):
    with pytest.raises(saltus.SolveError) as error:
        solve(*args, **kwargs)
    return error.value


@pytest.mark.parametrize("method", [Radau5(), Rodas5P(), Tsit5()], ids=lambda m: type(m).__name__)
def test_an_impasse_point_is_named_with_its_variable_and_slope(method):
    start = Instant(t=0.0, x={"x": 0.0}, z={"a": 1.0})
    error = stopped(fold(), start, None, 2.0, method=method)
    assert error.result == Result.singular
    assert abs(error.t - 1.0) < 1e-6
    assert "g_z is" in str(error) and "derivative by a" in str(error)


def test_no_consistent_algebraic_state_is_reported_with_residuals():
    error = stopped(fold(), Instant(t=0.0, x={"x": 2.0}, z={"a": 1.0}), None, 3.0)
    assert error.result == Result.no_consistent_state
    assert "fold = 2" in str(error)


def test_an_inconsistent_start_is_reported_by_equation_and_repaired_on_request():
    start = Instant(t=0.0, x={"x": 0.7, "y": -1.0, "u": 0.3, "w": 0.1}, z=GUESS)
    error = stopped(PENDULUM, start, 1.2, 1.0)
    assert error.result == Result.inconsistent
    assert "length = 0.025" in str(error) and "speed = 0.11" in str(error)
    report = saltus.consistency(PENDULUM, start, 1.2)
    assert "u moves by" in repr(report)
    x, y, u, w = (report.start.x[k] for k in "xyuw")
    assert abs(x * x + y * y - 1.44) < 1e-12 and abs(x * u + y * w) < 1e-12
    assert solve(PENDULUM, start, 1.2, 1.0, repair=True).result == Result.success


@pytest.mark.slow
def test_a_repaired_start_is_differentiable():
    start = Instant(t=0.0, x={"x": 0.7, "y": -1.0, "u": 0.3, "w": 0.1}, z=GUESS)
    height = lambda length: saltus.consistent(PENDULUM, start, length).x["y"]
    difference = (height(1.2 + 1e-5) - height(1.2 - 1e-5)) / 2e-5
    assert abs(jax.grad(height)(1.2) - difference) < 1e-8


def test_a_reset_that_breaks_the_constraint_is_reported():
    kick = Event(
        "kick",
        guard=lambda now, p: now.x["x"],
        reset=lambda now, p: now.replace(x={**now.x, "u": now.x["u"] + 1.0, "y": -0.9}),
    )
    system = HybridSystem(pendulum, constraint=rod, events=[kick])
    start = Instant(t=0.0, x={"x": 0.6, "y": -0.8, "u": 0.0, "w": 0.0}, z=GUESS)
    error = stopped(system, start, 1.0, 2.0)
    assert error.result == Result.inconsistent and error.event == "kick"


def test_a_higher_index_than_the_structure_shows_is_singular_at_the_start():
    index3 = HybridSystem(
        lambda now, p: {
            "x": now.x["u"],
            "y": now.x["w"],
            "u": -now.x["x"] * now.z,
            "w": -9.81 - now.x["y"] * now.z,
        },
        constraint=lambda now, p: now.x["x"] ** 2 + now.x["y"] ** 2 - 1,
    )
    start = Instant(t=0.0, x={"x": 1.0, "y": 0.0, "u": 0.0, "w": 0.0}, z=0.0)
    error = stopped(index3, start, None, 1.0)
    assert error.result == Result.singular and "g_x f_z" in str(error)


@pytest.mark.parametrize(
    "make, words",
    [
        (dict(constraint=lambda now, p: [now.z["a"], now.z["a"] - now.x]), ('"b"', "structurally")),
        (dict(constraint=lambda now, p: [now.z["a"] + now.z["b"]]), ("1 equations", "2 algebraic")),
        (
            dict(constraint=lambda now, p: [now.x, now.z["a"]], index=1),
            ("index 1", "does not depend on z"),
        ),
        (
            dict(constraint=lambda now, p: [now.z["b"], now.z["a"]], index=2),
            ("index 2", "depends on z"),
        ),
        (dict(constraint=lambda now, p: [now.z["b"], now.z["a"]], index=3), ("1 or 2",)),
        (dict(), ("no constraint",)),
    ],
    ids=["structure", "count", "index1", "index2", "index3", "none"],
)
def test_mistakes_are_found_before_the_first_step(make, words):
    system = HybridSystem(lambda now, p: -now.x, **make)
    with pytest.raises(ValueError) as error:
        solve(system, Instant(t=0.0, x=1.0, z={"a": 0.0, "b": 0.0}), None, 1.0)
    assert all(w in str(error.value) for w in words)


def test_index_two_is_refused_by_methods_that_cannot_treat_it():
    start = Instant(t=0.0, x={"x": 0.0, "y": -1.2, "u": 1.0, "w": 0.0}, z=GUESS)
    for method in (Rodas5P(), Tsit5()):
        with pytest.raises(ValueError, match="Radau5"):
            solve(PENDULUM, start, 1.2, 1.0, method=method)


DRAG = HybridSystem(
    flow=lambda now, p: {"h": now.x["v"], "v": -p["g"] - now.z["f"]},
    constraint=lambda now, p: {"drag": now.z["f"] + 0.1 * now.z["f"] ** 3 - p["k"] * now.x["v"]},
    events=[
        Event(
            "bounce",
            guard=lambda now, p: now.x["h"] + 0.001 * now.z["f"],
            reset=lambda now, p: now.replace(
                x={"h": now.x["h"], "v": -p["e"] * now.x["v"] + 0.01 * now.z["f"]}
            ),
        )
    ],
    rate=lambda now, p: now.z["f"] ** 2,
)
P = {"g": 9.81, "k": 0.1, "e": 0.8}


def everything(p, method):
    """A number that depends on all that a solution offers, z in guard, reset and rate."""
    sol = solve(DRAG, Instant(t=0.0, x={"h": 2.0, "v": 0.0}, z={"f": 0.0}), p, 2.0, method=method)
    log = sol.events
    return sol.final.x["h"] + sol.integral + log.t[0] + log.before.z["f"][0] + sol.final.z["f"]


def flat(tree):
    return np.concatenate([np.ravel(v) for v in jax.tree.leaves(tree)])


@pytest.fixture(scope="module")
def explicit():
    """The gradient by an explicit method at a tight tolerance."""
    return flat(jax.grad(everything)(P, Tsit5(rtol=1e-12, atol=1e-12)))


@pytest.mark.parametrize(
    "method", [pytest.param(Radau5, marks=pytest.mark.slow), Rodas5P], ids=lambda m: m.__name__
)
def test_gradients_through_z_agree_between_methods_and_nestings(method, explicit):
    loss = lambda p: everything(p, method(rtol=1e-10, atol=1e-10))
    adjoint = flat(jax.grad(loss)(P))
    assert np.allclose(adjoint, explicit, rtol=1e-7, atol=1e-9)
    assert np.allclose(flat(jax.jacfwd(loss)(P)), adjoint, rtol=1e-11, atol=1e-12)
    batch = jax.tree.map(lambda v: v * jnp.array([1.0, 1.02]), P)
    lanes = jax.jit(jax.vmap(jax.grad(loss)))(batch)
    assert np.allclose(flat(jax.tree.map(lambda v: v[0], lanes)), adjoint, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    "method", [Radau5, pytest.param(Rodas5P, marks=pytest.mark.slow)], ids=lambda m: m.__name__
)
def test_hessians_of_implicit_methods_are_symmetric_and_differences_of_gradients(method):
    system = HybridSystem(DRAG.flow, constraint=DRAG.constraint, events=DRAG.events)

    def end(p):
        start = Instant(t=0.0, x={"h": 2.0, "v": 0.0}, z={"f": 0.0})
        return solve(system, start, p, 1.5, method=method(rtol=1e-10, atol=1e-10)).final.x["h"]

    hessian = flat(jax.hessian(end)(P)).reshape(3, 3)
    assert np.allclose(hessian, hessian.T, rtol=1e-9, atol=1e-10)
    up, down = ({**P, "k": P["k"] + s * 1e-5} for s in (1, -1))
    column = (flat(jax.grad(end)(up)) - flat(jax.grad(end)(down))) / 2e-5
    assert np.allclose(hessian[:, 2], column, rtol=1e-5, atol=1e-6)


def test_a_kink_in_a_constraint_is_an_event_of_its_own():
    def diode(now, p):
        source = jnp.sin(2 * jnp.pi * now.t)
        return now.z - when(source > now.x, (source - now.x) / p["r"], 0.0)

    rectifier = HybridSystem(
        flow=lambda now, p: (now.z - now.x / p["R"]) / p["C"], constraint=diode
    )

    def voltage(c, method):
        p = {"R": 10.0, "C": c, "r": 0.1}
        return solve(rectifier, Instant(t=0.0, x=0.0, z=0.0), p, 3.0, method=method).final.x

    fine = Tsit5(rtol=1e-12, atol=1e-12)
    difference = (voltage(0.05 + 1e-6, fine) - voltage(0.05 - 1e-6, fine)) / 2e-6
    slope = jax.grad(voltage)(0.05, Radau5(rtol=1e-9, atol=1e-9))
    assert abs(slope - difference) < 1e-6 * abs(difference)


def stiff(mu, method):
    """Van der Pol's equation over one of its fast turns."""
    flow = lambda now, p: {
        "y": now.x["v"],
        "v": p * (1 - now.x["y"] ** 2) * now.x["v"] - now.x["y"],
    }
    start = Instant(t=0.0, x={"y": 2.0, "v": 0.0})
    return solve(HybridSystem(flow), start, mu, 120.0, method=method, max_steps=4000).final.x["y"]


@pytest.mark.slow
def test_the_error_of_a_gradient_is_estimated():
    exact = jax.value_and_grad(stiff)(100.0, Radau5(rtol=1e-12, atol=1e-12))
    coarse = Rodas5P(rtol=1e-7, atol=1e-7)
    found = saltus.error_estimate(lambda mu: stiff(mu, coarse), 100.0)
    for computed, estimate, truth in zip(
        (found.value, found.gradient), (found.value_error, found.gradient_error), exact, strict=True
    ):
        assert 0.3 < estimate / (truth - computed) < 3
    assert "error about" in repr(found)


def test_the_error_estimate_says_when_no_solve_was_seen():
    with pytest.raises(ValueError, match=r"did not call saltus\.solve"):
        saltus.error_estimate(lambda p: p**2, 1.0)


@pytest.mark.slow
def test_costates_are_the_derivative_by_the_state_and_jump_at_events():
    start = lambda h: Instant(t=0.0, x={"h": h, "v": 0.0}, z={"f": 0.0})
    cost = lambda sol: sol.integral + sol.events.t[0] + sol.final.x["h"]
    sol = solve(DRAG, start(2.0), P, 2.0)
    lam = saltus.costates(cost, sol)
    slope = jax.grad(lambda h: cost(solve(DRAG, start(h), P, 2.0)))(2.0)
    assert abs(lam.x["h"][0] - slope) < 1e-10
    bounces = np.flatnonzero(lam.jump)
    assert np.allclose(lam.t[bounces], sol.events.t)
    assert np.all(np.abs(lam.x["h"][bounces] - lam.x["h"][bounces + 1]) > 1e-3)


def heat(n):
    def spread(u):
        padded = jnp.concatenate([u[:1], u, u[-1:]])
        return padded[2:] - 2 * u + padded[:-2]

    return HybridSystem(
        flow=lambda now, p: {"u": 20.0 * spread(now.x["u"]) - p * now.x["u"] * now.z["w"]},
        constraint=lambda now, p: {
            "balance": now.z["w"] + 0.1 * now.z["w"] ** 3 - now.x["u"] - 0.2 * spread(now.z["w"])
        },
    )


@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=pytest.mark.slow) for m in (Radau5, Rodas5P)],
    ids=lambda m: m.__name__,
)
def test_sparse_and_dense_linear_algebra_give_the_same_gradient(method):
    n = 30
    start = Instant(t=0.0, x={"u": 1.0 + jnp.sin(jnp.arange(n) / 5)}, z={"w": jnp.ones(n)})

    def loss(p, sparsity):
        base = heat(n)
        system = HybridSystem(base.flow, constraint=base.constraint, sparsity=sparsity)
        return jnp.sum(
            solve(system, start, p, 0.5, method=method(rtol=1e-8, atol=1e-8)).final.x["u"]
        )

    p = jnp.linspace(0.5, 1.0, n)
    banded, dense = (jax.value_and_grad(loss)(p, s) for s in ("detect", "dense"))
    assert np.allclose(banded[0], dense[0], rtol=1e-10)
    assert np.allclose(banded[1], dense[1], rtol=1e-7)
