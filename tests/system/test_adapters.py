"""Other ways to write a model say the same as the plain one, and mistakes are named at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, Exit, HybridSystem, Instant, Mode, TimeEvent, automaton, every, solve
from saltus.system.mass_matrices import Split

TIGHT = saltus.Radau5(rtol=1e-10, atol=1e-10)
EXPLICIT = saltus.Tsit5(rtol=1e-11, atol=1e-11)


def mentions(caught, *words):
    text = str(caught.value)
    assert all(word in text for word in words), text


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
        (np.array([[1, 1], [1, 1 + 1e-11]]), ("singular to", "Set what should be zero")),
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


# -- implicit resets ----------------------------------------------------------------------------
# Two discs on a line meet; after it momentum and energy are what they were.


def collide(after, before, p):
    def momentum(x):
        return p["m"] * x["u"] + x["v"]

    def energy(x):
        return p["m"] * x["u"] ** 2 + x["v"] ** 2

    a, b = after.x, before.x
    return {
        "momentum": momentum(a) - momentum(b),
        "energy": energy(a) - energy(b),
        "where": (a["x"] - b["x"], a["y"] - b["y"]),
    }


def swapped(now, p):  # the other root is that nothing happens
    return now.replace(x={**now.x, "u": now.x["v"], "v": now.x["u"]})


DISCS = Instant(t=0.0, x={"x": 0.0, "u": 1.0, "y": 1.0, "v": -0.5})


def meeting(reset):
    return HybridSystem(
        lambda now, p: {"x": now.x["u"], "u": 0.0, "y": now.x["v"], "v": 0.0},
        events=[Event("meet", lambda now, p: now.x["y"] - now.x["x"], reset=reset)],
    )


def explicitly(now, p):
    m, u, v = p["m"], now.x["u"], now.x["v"]
    new = {"u": ((m - 1) * u + 2 * v) / (m + 1), "v": (2 * m * u - (m - 1) * v) / (m + 1)}
    return now.replace(x={**now.x, **new})


def after_meeting(reset):
    system = meeting(reset)
    return lambda m: solve(system, DISCS, {"m": m}, 2.0).final.x


@pytest.mark.slow
def test_an_elastic_collision_by_its_conservation_laws_is_the_explicit_one():
    ours = after_meeting(saltus.implicit_reset(collide, guess=swapped))
    exact = after_meeting(explicitly)
    for derivative in (lambda f: f, jax.jacfwd, jax.jacrev, jax.hessian):
        a, b = derivative(ours)(2.0), derivative(exact)(2.0)
        assert all(np.isclose(a[k], b[k], atol=1e-11) for k in b), (a, b)


def test_an_implicit_reset_is_right_under_every_transformation():
    # x+ is the cube root of a x-, and a is closed over
    def root(a):
        reset = saltus.implicit_reset(lambda after, before, p: after.x**3 - a * before.x)
        return reset(Instant(t=0.0, x=1.0), None).x

    a, cube = 8.0, lambda a: a ** (1 / 3)
    nest = [
        jax.grad,
        jax.hessian,
        lambda f: jax.jacfwd(jax.hessian(f)),
        lambda f: lambda a: jax.jvp(jax.grad(f), (a,), (1.0,))[1],
        lambda f: lambda a: jax.jit(jax.vmap(jax.grad(f)))(jnp.stack([a, 2 * a])),
        lambda f: lambda a: jax.vmap(jax.jit(jax.hessian(f)))(jnp.stack([a, 2 * a])),
    ]
    for derivative in nest:
        assert np.allclose(derivative(root)(a), derivative(cube)(a), rtol=1e-11)


def test_an_implicit_reset_may_solve_for_algebraic_and_for_discrete_states():
    both = saltus.implicit_reset(lambda after, before, p: [after.x - after.z, after.z - 3.0])
    now = Instant(t=0.0, x=1.0, z=0.0, d={"k": 0.0, "n": 2})
    after = both(now, None)
    assert (after.x, after.z) == (3.0, 3.0)
    chosen = saltus.implicit_reset(
        lambda after, before, p: [after.d["k"] - before.d["n"], after.x - after.d["k"] ** 2],
        unknowns=("x", "d"),
    )
    after = chosen(now, None)
    assert (after.x, after.d["k"], after.d["n"]) == (4.0, 2.0, 2)


def test_a_reset_without_a_solution_is_reported_with_the_name_of_its_event():
    reset = saltus.implicit_reset(
        lambda after, before, p: {**after.x, "u": after.x["u"] ** 2 + 1.0}
    )
    with pytest.raises(saltus.SolveError) as caught:
        after_meeting(reset)(2.0)
    assert caught.value.result is saltus.Result.non_finite
    mentions(caught, "meet")


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: saltus.implicit_reset(None), ("implicit_reset", "residual")),
        (lambda: saltus.implicit_reset(collide, guess=1), ("implicit_reset", "guess")),
        (
            lambda: saltus.implicit_reset(collide, unknowns="v"),
            ("implicit_reset", "'v'", "unknowns"),
        ),
        (lambda: saltus.remember(), ("remember", "nothing", 'x="u"')),
        (lambda: saltus.remember("u"), ("remember", "reset", 'x="u"')),
    ],
)
def test_a_reset_that_cannot_be_made(make, words):
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    mentions(caught, *words)


def test_an_implicit_reset_with_too_few_equations():
    reset = saltus.implicit_reset(lambda after, before, p: after.x["u"])
    with pytest.raises(ValueError) as caught:
        after_meeting(reset)(2.0)
    mentions(caught, "implicit_reset", "1 equations", "x has 4", "unknowns=")


# -- memory -------------------------------------------------------------------------------------


def test_a_system_remembers_its_state_at_the_last_event():
    # x' = 1 until x = theta, then x' = -alpha x*; x* is what x was at the turn
    down = saltus.remember(lambda now, p: now.replace(d={**now.d, "n": now.d["n"] + 1}), x="x")
    system = HybridSystem(
        lambda now, p: {"x": jnp.where(now.d["n"] == 0, 1.0, -p["alpha"] * now.d["x*"])},
        events=[Event("turn", lambda now, p: now.x["x"] - p["theta"], down, "rising")],
    )
    start = Instant(t=0.0, x={"x": 0.0}, d={"x*": 0.0, "n": 0})
    end = lambda p: solve(system, start, p, 3.0).final.x["x"]
    exact = lambda p: p["theta"] - p["alpha"] * p["theta"] * (3.0 - p["theta"])
    p = {"alpha": 0.4, "theta": 1.2}
    assert np.isclose(end(p), exact(p))
    ours, want = jax.grad(end)(p), jax.grad(exact)(p)
    assert all(np.isclose(ours[k], want[k]) for k in p)


def test_memory_keeps_algebraic_states_and_what_another_reset_made_of_x():
    reset = saltus.remember(lambda now, p: now.replace(x={"a": -now.x["a"]}), x=["a"], z="s")
    now = Instant(t=0.0, x={"a": 2.0}, z={"s": 5.0}, d={"a*": 0.0, "s*": 0.0, "other": 1})
    assert reset(now, None).d == {"a*": -2.0, "s*": 5.0, "other": 1}


@pytest.mark.parametrize(
    "reset, words",
    [
        (saltus.remember(x="b"), ("remember", "x is", "'b'")),
        (saltus.remember(x="a", z="s"), ("remember", "z is", "'s'")),
        (saltus.remember(x="a"), ("remember", "d is", "'a*'", 'd={"a*": 0.0')),
    ],
)
def test_memory_of_something_that_is_not_there(reset, words):
    with pytest.raises(ValueError) as caught:
        reset(Instant(t=0.0, x={"a": 2.0}, d={"n": 1}), None)
    mentions(caught, *words)


# -- modes with different constraints -----------------------------------------------------------
# A hopper flies, lands, stands on a spring and damper with the contact force as algebraic state,
# and leaves when the force is gone. In the air there is no contact force: it is pinned to zero.


def hopper(**changes):
    land = Exit(lambda now, p: now.x["h"], to="stand", name="land", when="edge")
    leave = Exit(lambda now, p: now.z["force"], to="fly", name="leave", when="edge")
    spring = lambda now, p: {"force": now.z["force"] + p["k"] * now.x["h"] + p["c"] * now.x["v"]}
    stand = {"constraint": spring, "exits": [leave], **changes}
    flow = lambda now, p: {"h": now.x["v"], "v": now.z["force"] - 9.81}
    return automaton({"fly": Mode(flow, exits=[land]), "stand": Mode(flow, **stand)})


def hop(system, p, end=0.7, method=TIGHT, **start):
    given = {"x": {"h": 0.2, "v": 0.0}, "z": {"force": 0.0}, "mode": "fly", **start}
    return solve(system, Instant(t=0.0, **given), p, end, method=method)


@pytest.mark.slow
def test_an_algebraic_state_is_pinned_in_modes_that_do_not_determine_it():
    system, p = hopper(), {"k": 400.0, "c": 4.0}

    def landing(p):
        """Speed and time of leaving, from the matrix exponential of the stance."""
        t, v = jnp.sqrt(0.4 / 9.81), -jnp.sqrt(0.4 * 9.81)
        A = jnp.array([[0.0, 1.0], [-p["k"], -p["c"]]])
        rest = jnp.array([-9.81 / p["k"], 0.0])
        stance = lambda s: rest + jax.scipy.linalg.expm(s * A) @ (jnp.array([0.0, v]) - rest)
        force = lambda s: -p["k"] * stance(s)[0] - p["c"] * stance(s)[1]
        s = 0.13
        for _ in range(30):
            s = s - force(s) / jax.grad(force)(s)
        return t + s, stance(s)

    sol = hop(system, p)
    assert [sol.events.names[k] for k in sol.events.which] == ["land", "leave", "land"]
    when, state = landing(p)
    assert np.isclose(sol.events.t[1], when, atol=1e-8)
    left = sol.events.of("leave")
    assert np.allclose([left.before.x["h"][0], left.before.x["v"][0]], state, atol=1e-7)
    assert abs(float(left.after.z["force"][0])) < 1e-9
    first = sol.events.of("land").after.z["force"][0]
    assert np.isclose(first, p["c"] * np.sqrt(0.4 * 9.81), atol=1e-7)
    slope = jax.grad(lambda p: hop(system, p).events.t[1])(p)
    exact = jax.jacfwd(lambda p: landing(p)[0])(p)
    assert all(np.isclose(slope[k], exact[k], rtol=1e-6) for k in p)


def test_pins_do_not_let_a_singular_mode_spoil_gradients_elsewhere():
    # The second mode's equation is singular at the first mode's states.
    modes = {
        "a": Mode(lambda now, p: {"x": -p}, exits=[Exit(lambda now, p: now.x["x"] + 1, to="b")]),
        "b": Mode(
            lambda now, p: {"x": -now.z["r"]},
            constraint=lambda now, p: {"r": now.z["r"] - jnp.sqrt(-1 - now.x["x"] + 1e-3)},
        ),
    }
    start = Instant(t=0.0, x={"x": 0.0}, z={"r": 0.0}, mode="a")
    end = lambda p: solve(automaton(modes), start, p, 0.5).final.x["x"]
    assert np.isclose(jax.grad(end)(1.0), -0.5)


def test_an_equation_for_an_algebraic_state_that_does_not_exist():
    with pytest.raises(ValueError) as caught:
        hop(hopper(constraint=lambda now, p: {"push": now.z["force"]}), {"k": 1.0, "c": 1.0})
    mentions(caught, 'mode "stand"', '"push"', "'force'")


def test_an_equation_of_another_shape_than_its_algebraic_state():
    with pytest.raises(ValueError) as caught:
        hop(hopper(constraint=lambda now, p: {"force": jnp.zeros(2)}), {"k": 1.0, "c": 1.0})
    mentions(caught, 'mode "stand"', "constraint", "pinned")


def test_modes_with_constraints_and_a_start_without_algebraic_states():
    with pytest.raises(ValueError) as caught:
        hop(hopper(), {"k": 1.0, "c": 1.0}, z=None)
    mentions(caught, "z")


def test_exits_in_the_place_of_the_constraint():
    exit = Exit(lambda now, p: now.x, to="a")
    with pytest.raises(TypeError) as caught:
        automaton({"a": Mode(lambda now, p: 1.0, [exit])})
    mentions(caught, 'mode "a"', "constraint", "exits=[")
