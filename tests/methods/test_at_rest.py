"""Systems at rest, or below their tolerances: states have no error there, but derivatives do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, TimeEvent, Tsit5, solve
from saltus.methods.method import Goal
from saltus.methods.tangent_error import plain
from saltus.model.model import At, Par

T = 10.0
METHODS = {
    "Tsit5": Tsit5(),
    "Dopri8": saltus.Dopri8(),
    "Radau5": saltus.Radau5(),
    "Rodas5P": saltus.Rodas5P(),
}
# With the default tolerances and a few hundred steps; growth by exp(10) is counted apart.
CLOSE = 3e-7


def every_method(*always):
    return pytest.mark.parametrize(
        "name",
        [n if n in always else pytest.param(n, marks=pytest.mark.slow) for n in METHODS],
    )


def _flow(now, p):
    x = now.x
    return {
        "a": -0.1 * x["a"],  # moves, slowly
        "x": x["v"],
        "v": -p["k"] * (x["x"] - p["place"]),  # an oscillator at rest
        "g": x["g"] + x["g"] ** 2,  # an unstable equilibrium
        "w": p["drive"] * jnp.cos(20 * now.t),  # driven by nothing yet
    }


REST = HybridSystem(_flow, rate=lambda now, p: now.x["x"] - p["place"])
P = {"k": 25.0, "place": 3.0, "drive": 0.0}
X = {"a": 1.0, "x": 3.0, "v": 0.0, "g": 0.0, "w": 0.0}


def ends(x, p, method):
    sol = solve(REST, Instant(t=0.0, x=x), p, T, method=method)
    return {**sol.final.x, "q": sol.integral}


@every_method("Tsit5")
def test_derivatives_at_rest_are_those_of_the_linearised_flow(name):
    both = jax.jacfwd(ends, (0, 1))(X, P, METHODS[name])
    by_x, by_p = ({k: v[j] for k, v in both.items()} for j in range(2))
    w = 5.0
    found = [
        by_x["a"]["a"], by_x["x"]["x"], by_x["x"]["v"], by_x["v"]["x"], by_x["w"]["w"],
        by_x["q"]["x"], by_x["q"]["v"],
        by_p["x"]["place"], by_p["x"]["k"], by_p["w"]["drive"],
    ]  # fmt: skip
    exact = [
        np.exp(-1), np.cos(w * T), np.sin(w * T) / w, -w * np.sin(w * T), 1.0,
        np.sin(w * T) / w, (1 - np.cos(w * T)) / w**2,
        1 - np.cos(w * T), 0.0, np.sin(20 * T) / 20,
    ]  # fmt: skip
    np.testing.assert_allclose(found, exact, atol=CLOSE * w)
    np.testing.assert_allclose(by_x["g"]["g"], np.exp(T), rtol=CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_second_derivatives_at_rest_are_right(name):
    """x' = x + x^2 has x = e / (1 - e), e = x0 exp(t) / (1 + x0)."""
    curve = jax.hessian(lambda g: ends({**X, "g": g}, P, METHODS[name])["g"])(0.0)
    np.testing.assert_allclose(curve, 2 * np.exp(T) * (np.exp(T) - 1), rtol=1e-5)


OSCILLATOR = HybridSystem(lambda now, p: {"x": now.x["v"], "v": -p * now.x["x"]})


def swing(x0, k=25.0, method=None, t1=T):
    return solve(OSCILLATOR, Instant(t=0.0, x={"x": x0, "v": 0.0}), k, t1, method=method)


@pytest.mark.parametrize("amplitude", [0.0, 1e-10, 3e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1.0])
def test_no_amplitude_is_too_small_for_its_derivative(amplitude):
    """Up to a thousand tolerances the steps suit the tangent; from there on they suit the value."""
    value, slope = jax.value_and_grad(lambda x: swing(x).final.x["x"])(amplitude)
    close = 2e-4 if 1e-5 < amplitude < 1e-3 else 1e-4 if amplitude == 1e-3 else 1e-6
    np.testing.assert_allclose(slope, np.cos(50.0), atol=close)
    np.testing.assert_allclose(value, amplitude * np.cos(50.0), rtol=close)


@pytest.mark.parametrize("frequency, span", [(1e-6, 1e7), (0.3, 100.0), (1e6, 1e-5)])
def test_the_time_scale_of_the_rest_does_not_matter(frequency, span):
    slope = jax.grad(lambda x: swing(x, frequency**2, t1=span).final.x["x"])(0.0)
    np.testing.assert_allclose(slope, np.cos(frequency * span), atol=CLOSE)


def test_a_rest_takes_as_many_steps_as_a_motion():
    """And no more of them than the same oscillator needs when it moves."""
    rest, motion = swing(0.0), swing(1.0)
    assert int(rest.stats.steps) < 1.1 * int(motion.stats.steps)


@pytest.mark.slow
def test_lanes_at_rest_and_in_motion_are_what_each_is_alone():
    starts = jnp.array([0.0, 1e-10, 1.0])
    slope = jax.grad(lambda x: swing(x).final.x["x"])
    np.testing.assert_allclose(jax.vmap(slope)(starts), [slope(x) for x in starts], rtol=1e-9)


STIFF = HybridSystem(lambda now, p: -1e3 * (now.x - p))


@every_method("Rodas5P")
def test_a_stiff_rest_costs_no_more_than_its_transient(name):
    """At x = p: dx/dp = 1 - exp(-1000 t). Explicit methods are bound by their stability."""
    end = lambda p: (lambda s: (s.final.x, s.stats.steps))(
        solve(STIFF, Instant(t=0.0, x=1.0), p, 1.0, method=METHODS[name])
    )
    slope, steps = jax.grad(end, has_aux=True)(1.0)
    np.testing.assert_allclose(slope, 1.0, atol=CLOSE)
    assert steps < (400 if name in ("Tsit5", "Dopri8") else 100)


@pytest.mark.parametrize(
    "flow, x, bound",
    [
        (lambda now, p: 0.0 * now.x, 1.0, 12),
        (lambda now, p: p, 0.0, 12),
        (lambda now, p: 2.0 * (now.t - 1.0), 1.0, 12),
    ],
)
def test_steps_stay_long_where_the_linearised_flow_is_slow(flow, x, bound):
    sol = solve(HybridSystem(flow), Instant(t=0.0, x=x), 1.0, 100.0)
    assert int(sol.stats.steps) < bound


def test_only_flows_with_plain_tangents_go_without():
    def is_plain(flow, x):
        sol = solve(HybridSystem(flow), Instant(t=0.0, x=x), 9.81, 1.0)
        return plain(sol.spec.model)

    ball = {"h": 1.0, "v": 0.0}
    assert is_plain(lambda now, p: {"h": now.x["v"], "v": -p}, ball)
    assert not is_plain(lambda now, p: {"h": now.x["v"], "v": -p * now.x["h"]}, ball)
    assert not is_plain(lambda now, p: {"h": now.x["v"], "v": -p * jnp.cos(now.t)}, ball)
    assert not is_plain(lambda now, p: {"h": now.x["v"] * now.x["h"], "v": -p}, ball)


KICKED = HybridSystem(
    lambda now, p: {"x": now.x["v"], "v": -25.0 * now.x["x"]},
    events=[
        TimeEvent(
            "kick",
            lambda now, p: jnp.where(now.t < 5.0, 5.0, jnp.inf),
            reset=lambda now, p: now.replace(x={"x": now.x["x"], "v": now.x["v"] + p}),
        ),
        Event("never", lambda now, p: now.x["x"] - 10.0, direction="rising"),
    ],
)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_kick_of_no_strength_has_the_derivative_of_a_kick(name):
    start = Instant(t=0.0, x={"x": 0.0, "v": 0.0})
    end = lambda p: solve(KICKED, start, p, T, method=METHODS[name]).final.x["x"]
    np.testing.assert_allclose(jax.grad(end)(0.0), np.sin(25.0) / 5, atol=CLOSE)


@pytest.mark.slow
def test_twenty_coupled_oscillators_at_rest():
    from scipy.linalg import expm

    n = 20
    springs = 25 * (2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1))
    matrix = np.block([[np.zeros((n, n)), np.eye(n)], [-springs, np.zeros((n, n))]])
    chain = HybridSystem(lambda now, p: jnp.asarray(matrix) @ now.x)
    end = lambda x: solve(chain, Instant(t=0.0, x=x), None, T).final.x
    np.testing.assert_allclose(jax.jacfwd(end)(jnp.zeros(2 * n)), expm(T * matrix), atol=1e-5)


@pytest.mark.slow
def test_a_rest_that_is_reached_by_decay_stays_one():
    decay = HybridSystem(lambda now, p: -now.x)
    sol, slope = jax.value_and_grad(
        lambda x: solve(decay, Instant(t=0.0, x=x), None, 1000.0).final.x
    )(1.0)
    assert abs(sol) < 1e-8
    assert abs(slope) < 1e-8


def test_a_flow_without_derivatives_is_still_solved():
    def flow(now, p):
        return -jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((), jnp.float64), now.x)

    sol = solve(HybridSystem(flow), Instant(t=0.0, x=1.0), None, 1.0)
    np.testing.assert_allclose(sol.final.x, np.exp(-1.0), atol=1e-7)


def test_an_infinite_derivative_at_rest_does_not_stop_a_solve():
    root = HybridSystem(lambda now, p: -jnp.sqrt(jnp.abs(now.x)))
    sol = solve(root, Instant(t=0.0, x=0.0), None, 1.0)
    assert sol.final.x == 0.0


SPRING = HybridSystem(
    lambda now, p: {"x": now.x["v"], "v": now.z},
    constraint=lambda now, p: now.z + 25.0 * now.x["x"],
)


@every_method("Rodas5P")
def test_a_system_with_a_constraint_has_derivatives_at_rest(name):
    def swung(x):
        start = Instant(t=0.0, x={"x": x, "v": 0.0}, z=0.0)
        return solve(SPRING, start, None, T, method=METHODS[name]).final.x["x"]

    np.testing.assert_allclose(jax.grad(swung)(0.0), np.cos(50.0), atol=CLOSE)


def _pull(now, p):
    x, y, u, w = now.x
    lam, eta = now.z
    return (u - eta * x, w - eta * y, p["drive"] * jnp.cos(20 * now.t) - lam * x, -25.0 - lam * y)


PENDULUM = HybridSystem(
    _pull,
    lambda now, p: (now.x[0] ** 2 + now.x[1] ** 2 - 1.0, now.x[0] * now.x[2] + now.x[1] * now.x[3]),
    index=2,
)


@pytest.mark.slow
def test_a_hanging_pendulum_of_index_2_has_the_derivatives_of_its_small_swings():
    """x'' = -25 x + drive cos(20 t)."""

    def swung(u, drive):
        start = Instant(t=0.0, x=(0.0, -1.0, u, 0.0), z=(25.0, 0.0))
        sol = solve(PENDULUM, start, {"drive": drive}, T, method=saltus.Radau5())
        return sol.final.x[0]

    by_speed, by_drive = jax.grad(swung, (0, 1))(0.0, 0.0)
    np.testing.assert_allclose(by_speed, np.sin(50.0) / 5, atol=CLOSE)
    exact = (np.cos(20 * T) - np.cos(5 * T)) / (25 - 400)
    np.testing.assert_allclose(by_drive, exact, atol=CLOSE)


@every_method("Tsit5")
def test_a_forced_motion_that_has_died_out_keeps_the_derivative_by_its_force(name):
    """x'' = -25 x - 4 x' + p cos(20 t) with p = 0, long after its start."""
    system = HybridSystem(
        lambda now, p: (now.x[1], -25 * now.x[0] - 4 * now.x[1] + p * jnp.cos(20 * now.t))
    )
    end = lambda p: solve(system, Instant(0.0, (1.0, 0.0)), p, 40.0, method=METHODS[name]).final.x[
        0
    ]
    exact = (np.exp(20j * 40) / (25 - 400 + 80j)).real
    np.testing.assert_allclose(jax.grad(end)(0.0), exact, atol=2 * CLOSE)


@pytest.mark.parametrize("method", [Tsit5(), saltus.Dopri5(), saltus.Radau5(), saltus.Rodas5P()])
def test_the_leading_error_of_a_method_is_that_of_its_estimate(method):
    """One fixed step of x' = x from 1; the estimate is what the controller saw."""
    degree, size = method.stepper.traits.leading
    system = HybridSystem(lambda now, p: now.x)
    model = solve(system, Instant(t=0.0, x=1.0), None, 1e-3, method=method).spec.model
    h = 0.02
    at = At(jnp.zeros(()), (jnp.ones(()),), (), ())
    par = Par((jnp.zeros(()), jnp.ones(()), *([jnp.zeros(())] * 8)), (), jnp.zeros((), bool))
    goal = Goal(1e-8, (1.0,), False)  # equations are solved to rounding
    memory = method.stepper.memory(model)
    trial = method.stepper.attempt(model, par, goal, at, (jnp.ones(()),), h, memory)
    np.testing.assert_allclose(trial.error, size * h**degree, rtol=0.05)


def test_a_stiff_motion_takes_hardly_more_steps_for_components_that_rest_now_and_then():
    """The equation of van der Pol: 978 steps without a look at tangents."""
    oscillator = HybridSystem(
        lambda now, p: {"x": now.x["v"], "v": p * (1 - now.x["x"] ** 2) * now.x["v"] - now.x["x"]}
    )
    start = Instant(t=0.0, x={"x": 2.0, "v": 0.0})
    sol = solve(oscillator, start, 1000.0, 2000.0, method=saltus.Rodas5P())
    assert int(sol.stats.steps) < 1030


@every_method("Tsit5", "Rodas5P")
def test_a_model_that_rests_on_a_kink_takes_the_steps_of_its_motion(name):
    """The slope of the flow jumps with every small move: tangents once took 30,000 steps here."""

    def flow(now, p):
        return p - now.x - 5 * jnp.maximum(now.x - 1 - 1e-10 * jnp.sin(40 * now.t), 0.0)

    start = Instant(t=0.0, x=1.0)
    sol = solve(HybridSystem(flow), start, 1.0, 100.0, method=METHODS[name])
    assert sol.stats.steps < 500 and abs(sol.final.x - 1) < 1e-8
