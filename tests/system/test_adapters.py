"""Fully implicit systems and mass matrices: the same motion as the explicit form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from messages import mentions
from saltus import Event, Instant, TimeEvent, every, solve
from saltus.system.mass_matrices import Split

TIGHT = saltus.Radau5(rtol=1e-10, atol=1e-10)
EXPLICIT = saltus.Tsit5(rtol=1e-11, atol=1e-11)


# -- fully implicit -----------------------------------------------------------------------------
# x1' + x2' = -k x1, x1' - x2' = -x2, 0 = z - x1 - x2': linear, with a matrix exponential.


def slopes(k):
    return jnp.linalg.solve(jnp.array([[1.0, 1.0], [1.0, -1.0]]), jnp.array([[-k, 0], [0, -1.0]]))


def exactly(k, t):
    return jax.scipy.linalg.expm(t * slopes(k)) @ jnp.array([1.0, 2.0])


def residual(now, k):
    a, b = now.dx["a"], now.dx["b"]
    return [a + b + k * now.x["a"], a - b + now.x["b"], now.z - now.x["a"] - b]


LINEAR = Instant(t=0.0, x={"a": 1.0, "b": 2.0}, z=0.0)


@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=pytest.mark.slow) for m in (TIGHT, EXPLICIT)],
    ids=["radau5", "tsit5"],
)
def test_a_linear_fully_implicit_system_follows_its_matrix_exponential(method):
    system = saltus.fully_implicit(residual)
    end = lambda k: solve(system, LINEAR, k, 1.5, method=method).final
    final = end(0.7)
    x = exactly(0.7, 1.5)
    assert np.allclose([final.x["a"], final.x["b"]], x, atol=1e-8)
    assert np.allclose([final.dx["a"], final.dx["b"]], slopes(0.7) @ x, atol=1e-8)
    assert np.isclose(final.z, x[0] + (slopes(0.7) @ x)[1], atol=1e-8)
    value = lambda k: end(k).z + end(k).dx["a"]
    exact = lambda k: exactly(k, 1.5)[0] + slopes(k).sum(axis=0) @ exactly(k, 1.5)
    assert np.isclose(jax.grad(value)(0.7), jax.grad(exact)(0.7), atol=1e-7)
    assert np.isclose(jax.hessian(value)(0.7), jax.hessian(exact)(0.7), atol=1e-6)


def test_guards_resets_rates_and_outputs_read_the_slopes_as_the_user_wrote_them():
    # x' = -x + 1 until x' falls to 0.5 (at t = ln 2); then x is thrown to -x'.
    system = saltus.fully_implicit(
        lambda now, p: now.dx + now.x - 1,
        events=[
            Event("slow", lambda now, p: now.dx - 0.5, reset=lambda now, p: now.replace(x=-now.dx)),
            TimeEvent("tick", every(lambda now, p: 0.5 * now.x + 0.6)),  # x is 0 at the start
        ],
        rate=lambda now, p: now.dx,
        output=lambda now, p: {"slope": now.dx, "x": now.x},
    )
    sol = solve(system, Instant(t=0.0, x=0.0), None, 1.0, method=TIGHT)
    slow = sol.events.of("slow")
    assert np.allclose(slow.t, [np.log(2.0)])
    assert np.allclose([slow.before.dx[0], slow.before.x[0]], [0.5, 0.5])
    assert np.allclose([slow.after.dx[0], slow.after.x[0]], [1.5, -0.5])
    assert np.allclose(sol.events.of("tick").t, [0.6])
    final = 1 - 1.5 * np.exp(np.log(2.0) - 1.0)
    assert np.allclose([sol.final.x, sol.y["x"], sol.y["slope"]], [final, final, 1 - final])
    assert np.isclose(sol.integral, 0.5 + final + 0.5)
    again = solve(system, sol.final, None, 1.1, method=TIGHT)  # a final instant is a start
    assert np.isclose(again.final.dx, (1 - final) * np.exp(-0.1))


def test_a_fully_implicit_system_may_hide_a_constraint_of_index_two():
    # A point on the unit circle that a tangential unit speed drives: x' = -y + x z, y' = x + y z.
    def circle(now, p):
        x, y = now.x
        return [now.dx[0] + y - x * now.z, now.dx[1] - x - y * now.z, x**2 + y**2 - 1]

    system = saltus.fully_implicit(circle)
    sol = solve(system, Instant(t=0.0, x=jnp.array([1.0, 0.0]), z=0.0), None, 2.0, method=TIGHT)
    assert np.allclose(sol.final.x, [np.cos(2.0), np.sin(2.0)], atol=1e-8)
    assert np.isclose(sol.final.z, 0.0, atol=1e-8)


def test_a_residual_with_too_few_equations():
    with pytest.raises(ValueError) as caught:
        solve(saltus.fully_implicit(lambda now, p: now.dx["a"]), LINEAR, 1.0, 1.0)
    mentions(caught, "fully_implicit", "1 numbers", "2 in x'", "1 in z")


def test_a_guess_of_the_slopes_with_other_fields_than_the_state():
    with pytest.raises(ValueError) as caught:
        solve(saltus.fully_implicit(residual), LINEAR.replace(dx={"a": 1.0}), 1.0, 1.0)
    mentions(caught, "fully_implicit", "dx", "'b'", "leave it")


def test_a_residual_that_is_no_function():
    with pytest.raises(TypeError) as caught:
        saltus.fully_implicit(np.eye(2))
    mentions(caught, "fully_implicit", "now.dx")


# -- mass matrices ------------------------------------------------------------------------------

M = np.array([[2.0, 0.5], [0.5, 1.0]])
K = np.array([[3.0, -1.0], [-1.0, 2.0]])


def oscillation(p, t):
    """Positions and speeds of M q'' = -p K q from q = (1, 0) at rest."""
    block = jnp.block(
        [[jnp.zeros((2, 2)), jnp.eye(2)], [-p * jnp.linalg.solve(M, K), jnp.zeros((2, 2))]]
    )
    return jax.scipy.linalg.expm(t * block) @ jnp.array([1.0, 0.0, 0.0, 0.0])


def by_constant_matrix():
    whole = np.block([[np.eye(2), np.zeros((2, 2))], [np.zeros((2, 2)), M]])
    flow = lambda now, p: jnp.concatenate([now.x[2:], -p * K @ now.x[:2]])
    return saltus.mass_matrix(whole, flow), jnp.array([1.0, 0.0, 0.0, 0.0])


def by_function_of_the_instant():
    whole = np.block([[np.eye(2), np.zeros((2, 2))], [np.zeros((2, 2)), M]])
    scale = lambda now: 2.0 + jnp.sin(now.t)
    flow = lambda now, p: scale(now) * jnp.concatenate([now.x[2:], -p * K @ now.x[:2]])
    return saltus.mass_matrix(lambda now, p: scale(now) * whole, flow), jnp.array([1.0, 0, 0, 0])


def by_product():
    flow = lambda now, p: {"q": now.x["v"], "v": -p * K @ now.x["q"]}
    mass = lambda now, p: {"q": now.dx["q"], "v": M @ now.dx["v"]}
    return saltus.mass_matrix(mass, flow), {"q": jnp.array([1.0, 0.0]), "v": jnp.zeros(2)}


@pytest.mark.parametrize(
    "make",
    [
        by_constant_matrix,
        pytest.param(by_function_of_the_instant, marks=pytest.mark.slow),
        by_product,
    ],
    ids=lambda f: f.__name__,
)
def test_an_oscillator_with_a_regular_mass_matrix_stays_an_ode(make):
    system, x = make()
    assert system.constraint is None

    def end(p):
        final = solve(system, Instant(t=0.0, x=x), p, 2.0, method=EXPLICIT).final.x
        return jnp.concatenate(jax.tree.leaves(final))

    assert np.allclose(end(1.3), oscillation(1.3, 2.0), atol=1e-8)
    exact = jax.jacfwd(lambda p: oscillation(p, 2.0))(1.3)
    assert np.allclose(jax.jacfwd(end)(1.3), exact, atol=1e-7)
    assert np.allclose(jax.jacrev(end)(1.3), exact, atol=1e-7)


def test_a_regular_mass_matrix_takes_a_constraint_of_its_own():
    # 2 x' = -z, 0 = z - k x
    system = saltus.mass_matrix(
        np.array([[2.0]]), lambda now, k: -now.z, lambda now, k: now.z - k * now.x
    )
    end = lambda k: solve(
        system, Instant(t=0.0, x=jnp.ones(1), z=jnp.zeros(1)), k, 1.0, method=TIGHT
    )
    assert np.isclose(end(0.8).final.x[0], np.exp(-0.4), atol=1e-9)
    assert np.isclose(jax.grad(lambda k: end(k).final.x[0])(0.8), -0.5 * np.exp(-0.4), atol=1e-8)


# A source of 1 V charges C over R; between two more resistors hangs a floating capacitor D. The
# voltages (a, b, c): C a' = (1 - a)/R + (b - a)/R,  D (b' - c') = (a - b)/R,  D (c' - b') = -c/R.


def circuit_flow(now, p):
    a, b, c = now.x
    return jnp.stack([(1 - a) + (b - a), a - b, -c]) / p["R"]


def capacitances(p):
    C, D = p["C"], p["D"]
    return jnp.array([[C, 0, 0], [0, D, -D], [0, -D, D]])


def charged(p, t):
    """With w = b - c over the floating capacitor: b + c = a, so two linear equations for (a, w)."""
    R, C, D = p["R"], p["C"], p["D"]
    # b = (a + w)/2, c = (a - w)/2
    A = jnp.array([[-1.5 / (R * C), 0.5 / (R * C)], [0.5 / (R * D), -0.5 / (R * D)]])
    rest = jnp.linalg.solve(A, -jnp.array([1 / (R * C), 0.0]))
    a, w = rest + jax.scipy.linalg.expm(t * A) @ (jnp.array([0.0, 0.3]) - rest)
    return jnp.stack([a, (a + w) / 2, (a - w) / 2])


RC = {"R": 1.5, "C": 0.4, "D": 0.7}


def test_a_singular_mass_matrix_is_split_and_says_how():
    split = Split.of(np.asarray(capacitances(RC)))
    assert not split.regular
    text = str(split)
    assert "3 x 3 and has rank 2" in text
    assert "Differential states: x[0], x[1] - x[2]." in text
    assert "Algebraic states: x[2]." in text
    assert "0 = f[2] + f[1]" in text


@pytest.mark.parametrize(
    "constant",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["constant", "of parameters"],
)
def test_a_circuit_with_a_singular_mass_matrix_follows_its_closed_form(constant):
    typical = np.asarray(capacitances(RC))
    given = {"mass": typical} if constant else {"mass": lambda now, p: capacitances(p)}
    system = saltus.mass_matrix(**given, flow=circuit_flow, like=None if constant else typical)
    start = Instant(t=0.0, x=jnp.array([0.0, 0.3, 0.0]))  # only b - c is a state; b + c is a guess

    def end(p):
        return solve(system, start, p, 1.2, method=TIGHT).final.x

    assert np.allclose(end(RC), charged(RC, 1.2), atol=1e-8)
    moved = {"R": RC["R"]} if constant else RC
    ours = jax.jacrev(lambda q: end({**RC, **q}))(moved)
    exact = jax.jacfwd(lambda q: charged({**RC, **q}, 1.2))(moved)
    assert all(np.allclose(ours[k], exact[k], atol=1e-7) for k in moved)


def test_events_of_a_system_with_a_singular_mass_matrix_see_and_reset_all_of_x():
    half = Event(
        "half",
        lambda now, p: now.x[0] - 0.2,
        direction="rising",
        reset=lambda now, p: now.replace(x=jnp.stack([0.0, now.x[1], now.x[2]])),
    )
    system = saltus.mass_matrix(np.asarray(capacitances(RC)), circuit_flow, events=[half])
    start = Instant(t=0.0, x=jnp.array([0.0, 0.3, 0.0]))
    ts = jnp.linspace(0.0, 1.0, 5)
    sol = solve(system, start, RC, 1.0, ts=ts, method=TIGHT)
    assert sol.y.shape == (5, 3)
    before, after = sol.events.before.x[0], sol.events.after.x[0]
    assert np.allclose(before, charged(RC, float(sol.events.t[0])), atol=1e-8)
    assert np.isclose(before[0], 0.2)
    w = before[1] - before[2]  # kept; the free entry follows from b + c = a = 0
    assert np.allclose(after, [0.0, w / 2, -w / 2], atol=1e-9)


def test_a_matrix_with_other_null_spaces_than_the_one_it_was_split_by_is_not_used():
    system = saltus.mass_matrix(
        lambda now, p: capacitances(p).at[2, 2].add(0.1),
        circuit_flow,
        like=np.asarray(capacitances(RC)),
    )
    start = Instant(t=0.0, x=jnp.array([0.0, 0.3, 0.0]))
    with pytest.raises(ValueError, match="null spaces"):
        solve(system, start, RC, 1.0)
    code = jax.jit(lambda p: solve(system, start, p, 1.0, max_steps=50).result)(RC)
    assert int(code) == saltus.Result.non_finite


@pytest.mark.parametrize(
    "matrix, words",
    [
        (np.ones((2, 3)), ("shape (2, 3)", "square")),
        (np.diag([1.0, np.nan]), ("finite",)),
        (np.zeros((2, 2)), ("zero", "constraint")),
        (np.array([[1, 1], [1, 1 + 1e-11]]), ("singular value of", "Set what should be zero")),
    ],
)
def test_a_matrix_that_cannot_be_a_mass(matrix, words):
    with pytest.raises(ValueError) as caught:
        saltus.mass_matrix(matrix, lambda now, p: now.x)
    mentions(caught, "mass_matrix", *words)


def test_the_scale_of_a_matrix_does_not_make_it_singular():
    assert Split.of(np.diag([1.0, 1e-15, 1e9])).regular
    assert Split.of(1e-12 * np.array([[1, 1], [1, 2.0]])).regular


def test_a_matrix_for_a_state_with_names():
    system = saltus.mass_matrix(np.eye(2), lambda now, p: now.x)
    with pytest.raises(ValueError) as caught:
        solve(system, Instant(t=0.0, x={"a": 1.0, "b": 2.0}), None, 1.0)
    mentions(caught, "mass_matrix", "'a'", "vector", "now.dx")


def test_a_product_with_other_fields_than_the_state():
    system = saltus.mass_matrix(lambda now, p: {"a": now.dx["a"]}, lambda now, p: now.x)
    with pytest.raises(ValueError) as caught:
        solve(system, Instant(t=0.0, x={"a": 1.0, "b": 2.0}), None, 1.0)
    mentions(caught, "mass_matrix", "mass returned", "'b'")
