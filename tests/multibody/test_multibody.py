"""Mechanisms: the same motion from every formulation, and energies instead of matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from mechanisms import (
    LENGTHS,
    PENDULUM,
    SPRINGS,
    angle_system,
    ends,
    five_bar_answers,
    five_bar_outputs,
    five_bar_truth,
    hanging,
    pendulum,
)
from saltus.multibody import Mechanism, stop

SLOW = pytest.mark.slow
TIGHT = saltus.Tsit5(rtol=1e-10, atol=1e-10)


# -- five bars against the reference --------------------------------------------------------------
@pytest.mark.parametrize("form", ["index1", pytest.param("index2", marks=SLOW)])
@pytest.mark.parametrize("variant", SPRINGS)
def test_five_bars_agree_with_the_reference(form, variant):
    values, slopes, residuals = five_bar_answers(form)(LENGTHS, ends(variant))
    exact, exact_slopes = five_bar_truth(variant)
    happened = np.isfinite(exact)
    np.testing.assert_array_equal(np.isfinite(values), happened)
    np.testing.assert_allclose(values[happened], exact[happened], rtol=1e-7)
    np.testing.assert_allclose(slopes[happened], exact_slopes[happened], rtol=1e-6)
    assert np.all(residuals < 1e-12)


@SLOW
@pytest.mark.parametrize("form", ["index1", "index2"])
def test_hessians_of_five_bars_are_differences_of_gradients(form):
    def height(lengths):
        return five_bar_outputs(form)(lengths, ends("P6a"))[0][1]

    hessian = jax.hessian(height)(LENGTHS)
    step = 1e-4 * np.eye(2)
    gradient = jax.jit(jax.grad(height))
    weights = {1: 2 / 3, 2: -1 / 12}  # fourth order
    for k in range(2):
        change = sum(
            w * (gradient(LENGTHS + j * step[k]) - gradient(LENGTHS - j * step[k])) / 1e-4
            for j, w in weights.items()
        )
        np.testing.assert_allclose(hessian[k], change, rtol=1e-5)


@SLOW
@pytest.mark.parametrize("variant", ["P6a", "P6d"])
def test_the_penalty_form_is_as_exact_as_its_constants_allow(variant):
    """Residuals are about lam / (alpha omega^2), here 1e-8; impacts multiply them."""
    values, slopes, residuals = five_bar_answers("penalty")(LENGTHS, ends(variant))
    exact, exact_slopes = five_bar_truth(variant)
    happened = np.isfinite(exact)
    np.testing.assert_allclose(values[happened], exact[happened], rtol=1e-6)
    np.testing.assert_allclose(slopes[happened], exact_slopes[happened], rtol=5e-6)
    assert np.all((residuals > 1e-10) & (residuals < 1e-7))


@SLOW
def test_tangent_and_adjoint_of_five_bars_agree():
    def height(lengths):
        return five_bar_outputs("index1")(lengths, ends("P6a"))[0][1]

    adjoint = jax.grad(height)(LENGTHS)
    slopes = five_bar_answers("index1")(LENGTHS, ends("P6a"))[1]
    np.testing.assert_allclose(adjoint, slopes[1], rtol=1e-12)


# -- a pendulum -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "form, method",
    [
        ("index1", saltus.Tsit5(rtol=1e-9, atol=1e-9)),
        pytest.param("index2", saltus.Radau5(rtol=1e-8, atol=1e-8), marks=pytest.mark.slow),
    ],
)
def test_a_pendulum_does_not_drift_in_a_minute(form, method):
    swing = pendulum(output=lambda now, p: {"q": now.q, "v": now.v})
    start = hanging(swing, PENDULUM, 1.5)
    ts = np.linspace(0.0, 60.0, 201)
    y = saltus.solve(swing.system(form), start, PENDULUM, 60.0, ts=ts, method=method).y
    q, v = y["q"], y["v"]
    position = 0.5 * (q["x"] ** 2 + q["y"] ** 2 - PENDULUM["L"] ** 2)
    velocity = q["x"] * v["x"] + q["y"] * v["y"]
    np.testing.assert_allclose(position, 0.0, atol=1e-10)
    np.testing.assert_allclose(velocity, 0.0, atol=1e-10)
    energy = 0.5 * (v["x"] ** 2 + v["y"] ** 2) + PENDULUM["g"] * q["y"]
    np.testing.assert_allclose(energy, energy[0], atol=1e-5)


def test_the_error_of_the_penalty_form_falls_with_its_stiffness():
    swing = pendulum(output=lambda now, p: {"x": now.q["x"], "pull": now.lam["rod"]})

    def end(alpha):
        start = hanging(swing, PENDULUM, 1.0)
        system = swing.system("penalty", alpha=alpha)
        return saltus.solve(system, start, PENDULUM, 2.0, method=TIGHT)

    exact = saltus.solve(swing.system(), hanging(swing, PENDULUM, 1.0), PENDULUM, 2.0, method=TIGHT)
    errors = np.array([abs(float(end(a).y["x"] - exact.y["x"])) for a in (1e4, 1e5, 1e6)])
    np.testing.assert_allclose(errors[:-1] / errors[1:], 10.0, rtol=0.1)
    np.testing.assert_allclose(end(1e6).y["pull"], exact.y["pull"], rtol=1e-4)


@pytest.mark.slow
def test_gradients_of_mechanisms_can_be_batched():
    swing = pendulum(
        contacts=stop("wall", lambda now, p: now.q["x"], at=0.4, side="below", restitution=0.7)
    )

    def end(p):
        start = hanging(swing, p, -0.9)
        return saltus.solve(swing.system(), start, p, 1.5, max_steps=256).final.x["q"]["x"]

    lengths = jnp.array([1.1, 1.2, 1.3])
    slope = jax.grad(lambda length: end({**PENDULUM, "L": length}))
    many = jax.jit(jax.vmap(slope))(lengths)
    np.testing.assert_allclose(many, [slope(v) for v in lengths], rtol=1e-9)


def test_multipliers_accelerations_and_costs_are_those_of_the_angle():
    swing = pendulum(
        cost=lambda now, p: now.lam["rod"] ** 2 + now.a["x"] ** 2,
        output=lambda now, p: {"pull": now.lam["rod"], "a": now.a, "q": now.q},
    )
    p = {**PENDULUM}

    def end(p):
        sol = saltus.solve(swing.system(), hanging(swing, p, 1.0, 0.4), p, 2.0, method=TIGHT)
        return jnp.stack([sol.y["q"]["x"], sol.y["pull"], sol.integral])

    def by_angle(p):
        def pull(now, p):
            return -p["m"] * (p["g"] * jnp.cos(now.x["angle"]) / p["L"] + now.x["speed"] ** 2)

        def sideways(now, p):
            s, c = jnp.sin(now.x["angle"]), jnp.cos(now.x["angle"])
            return -p["g"] * s * c - p["L"] * now.x["speed"] ** 2 * s

        system = saltus.HybridSystem(
            angle_system().flow,
            rate=lambda now, p: pull(now, p) ** 2 + sideways(now, p) ** 2,
            output=lambda now, p: (p["L"] * jnp.sin(now.x["angle"]), pull(now, p)),
        )
        start = saltus.Instant(0.0, {"angle": 1.0, "speed": 0.4})
        sol = saltus.solve(system, start, p, 2.0, method=TIGHT)
        return jnp.stack([*sol.y, sol.integral])

    np.testing.assert_allclose(end(p), by_angle(p), rtol=1e-8)
    ours, theirs = jax.jacfwd(end)(p), jax.jacfwd(by_angle)(p)
    for name in p:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-7, atol=1e-8)


def test_energies_and_residuals_of_many_instants():
    swing = pendulum()
    sol = saltus.solve(swing.system(), hanging(swing, PENDULUM, 1.0), PENDULUM, 1.0)
    now = sol.at(jnp.array([0.1, 0.5, 0.9]))
    energy = swing.energy(hanging(swing, PENDULUM, 1.0), PENDULUM)
    np.testing.assert_allclose(swing.energy(now, PENDULUM), energy, rtol=1e-6)
    assert swing.residuals(now, PENDULUM)["position"]["rod"].shape == (3,)


@pytest.mark.slow
def test_an_event_may_change_the_equations_of_motion_only():
    """A spring at a pendulum breaks: velocities stay, accelerations jump."""
    snap = saltus.Event(
        "snap",
        guard=lambda now, p: now.q["x"] - 0.2,
        direction="rising",
        reset=lambda now, p: now.replace(d={"whole": 0.0}),
    )

    def pull(now, p):
        return -p["k"] * now.d["whole"]

    swing = Mechanism(
        mass=1.0,
        force=lambda now, p: {"x": pull(now, p) * now.q["x"], "y": -9.81},
        constraint=lambda now, p: {"rod": now.q["x"] ** 2 + now.q["y"] ** 2 - 1.0},
        events=[snap],
    )
    angle = saltus.HybridSystem(
        lambda now, p: {
            "a": now.x["w"],
            "w": jnp.cos(now.x["a"]) * pull(now, p) * jnp.sin(now.x["a"])
            - 9.81 * jnp.sin(now.x["a"]),
        },
        events=[
            saltus.Event(
                "snap",
                guard=lambda now, p: jnp.sin(now.x["a"]) - 0.2,
                direction="rising",
                reset=lambda now, p: now.replace(d={"whole": 0.0}),
            )
        ],
    )

    def ours(k):
        p, a = {"k": k}, -0.8
        q = {"x": jnp.sin(a), "y": -jnp.cos(a)}
        start = swing.start(q, None, p, d={"whole": 1.0})
        return saltus.solve(swing.system(), start, p, 1.5, method=TIGHT).final.x["q"]["x"]

    def theirs(k):
        start = saltus.Instant(0.0, {"a": -0.8, "w": 0.0}, d={"whole": 1.0})
        return jnp.sin(saltus.solve(angle, start, {"k": k}, 1.5, method=TIGHT).final.x["a"])

    np.testing.assert_allclose(
        jax.value_and_grad(ours)(5.0), jax.value_and_grad(theirs)(5.0), rtol=1e-8
    )


# -- motion as a whole -----------------------------------------------------------------------------
@pytest.mark.parametrize("form", ["index1", "index2"])
def test_a_pendulum_hangs_and_swings_about_it_with_its_frequency(form):
    """In Cartesian coordinates: only directions along the circle count."""
    swing = pendulum()
    rest = saltus.equilibrium(swing.system(form), hanging(swing, PENDULUM, 0.2, 0.1), PENDULUM)
    np.testing.assert_allclose(rest.x["q"]["y"], -PENDULUM["L"], rtol=1e-12)
    np.testing.assert_allclose(rest.x["q"]["x"], 0.0, atol=1e-10)
    line = saltus.linearise(swing.system(form), rest, PENDULUM, inputs=["g"])
    frequency = np.sqrt(PENDULUM["g"] / PENDULUM["L"])
    np.testing.assert_allclose(sorted(line.eigenvalues.imag), [-frequency, frequency], rtol=1e-9)
    np.testing.assert_allclose(line.eigenvalues.real, 0.0, atol=1e-9)


# -- energies instead of matrices -----------------------------------------------------------------
def test_a_kinetic_energy_gives_the_inertia_and_what_turns_with_it():
    """A bead on a turning arm: r' ' = r w^2 and (m r^2 w)' = 0."""
    arm = Mechanism(
        kinetic=lambda now, p: 0.5 * p["m"] * (now.v["r"] ** 2 + (now.q["r"] * now.v["turn"]) ** 2)
    )
    p = {"m": 2.0}
    start = arm.start({"r": 1.0, "turn": 0.0}, {"r": 0.0, "turn": 1.5}, p)
    final = saltus.solve(arm.system(), start, p, 2.0, method=TIGHT).final.x
    np.testing.assert_allclose(final["q"]["r"], np.hypot(1.0, 3.0), rtol=1e-9)  # a straight line
    np.testing.assert_allclose(final["q"]["turn"], np.arctan(3.0), rtol=1e-9)
