"""What is said about differential-algebraic models that cannot be solved as they are written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import (
    Event,
    Exit,
    HybridSystem,
    Instant,
    Mode,
    Steps,
    automaton,
    consistency,
    consistent,
    error_estimate,
    fully_implicit,
    implicit_reset,
    mass_matrix,
    solve,
)

START = Instant(t=0.0, x={"x": 1.0}, z={"a": 1.0})
DECAY = lambda now, p: {"x": -now.z["a"]}
LINEAR = lambda now, p: {"e": now.z["a"] - now.x["x"]}


def model(residual=LINEAR, **others):
    return HybridSystem(DECAY, residual, **others)


def refused(match, system, start=START, p=None, kind=(ValueError, TypeError)):
    with pytest.raises(kind, match=match) as error:
        solve(system, start, p, 1.0)
    return error.value


def stopped(match, system, start=START, p=None):
    return refused(match, system, start, p, saltus.SolveError)


# -- residuals and slopes -----------------------------------------------------------------------


def test_an_equation_without_a_value_at_the_start_is_named_with_its_guess():
    root = model(lambda now, p: {"e": now.z["a"] - p * jnp.sqrt(now.x["x"])})
    stopped('Equation "e" is nan .* guess a = 1', root, START.replace(x={"x": -1.0}), 1.0)
    stopped("parameters: p is nan", root, START, np.nan)


def test_a_guess_at_which_an_equation_overflows_is_shown():
    diode = model(lambda now, p: {"e": jnp.sinh(now.z["a"]) - now.x["x"]})
    stopped('"e" is -inf at the guess a = -1e\\+06', diode, START.replace(z={"a": -1e6}))


def test_one_equation_is_reported_by_its_slope_and_arrays_by_their_own_names():
    free = model(lambda now, p: {"e": now.z["a"] ** 2 + now.x["x"]})
    assert "condition number" not in str(stopped("g_z is 2", free))
    vectors = HybridSystem(lambda now, p: -now.z, lambda now, p: now.z**2 + 1 + now.x)
    start = Instant(t=0.0, x=jnp.ones(2), z=jnp.full(2, 2.0))
    stopped(r"State there: x = \[1. 1.\], z = \[2. 2.\]", vectors, start)


# -- equations of index 2 -----------------------------------------------------------------------

RAIL = Instant(t=0.0, x={"x": 1.0, "y": 0.0}, z={"a": 1.0})


def rail(target, **others):
    """x follows `target`, pushed there by a; y is the time."""
    flow = lambda now, p: {"x": now.z["a"], "y": 1.0}
    return HybridSystem(flow, lambda now, p: {"e": now.x["x"] - target(now)}, **others)


def test_a_reset_off_the_constraint_is_told_that_repair_acts_on_the_start_only():
    off = Event(
        "b",
        lambda now, p: 0.5 - now.x["y"],
        reset=lambda now, p: now.replace(x={**now.x, "x": 2.0}),
    )
    error = stopped('reset of event "b".*implicit_reset', rail(lambda now: 1.0, events=[off]), RAIL)
    assert "start only" in str(error) and "repair=True" not in str(error)


def test_a_step_of_an_input_off_the_constraint_is_told_from_a_reset():
    inputs = lambda p: Steps([0.0, 0.5], [1.0, 2.0])
    stopped("breakpoint of an input.*start only", rail(lambda now: now.u, inputs=inputs), RAIL)


def test_a_start_is_offered_repair_only_where_that_helps():
    stopped("repair=True", rail(lambda now: 2.0), RAIL)
    hopeless = HybridSystem(
        lambda now, p: {"x": now.z["a"], "y": 1.0}, lambda now, p: {"e": now.x["x"] ** 2 + 1}
    )
    with pytest.raises(saltus.SolveError, match="repair finds no states"):
        solve(hopeless, RAIL, None, 1.0, repair=True)


def test_hidden_equations_are_called_so():
    index3 = HybridSystem(
        lambda now, p: {"x": now.x["y"], "y": now.z["a"]}, lambda now, p: {"e": now.x["x"] - 1}
    )
    stopped("hidden equations d/dt g: e = 0. g_x f_z is 0", index3, RAIL)
    shown = repr(consistency(index3, RAIL, None))
    assert "do not determine z" in shown and "nan" not in shown and "moves" not in shown


def test_no_consistent_start_is_an_error_and_nan_in_jit():
    never = model(lambda now, p: {"e": now.z["a"] ** 2 + 1 + now.x["x"] ** 2})
    with pytest.raises(ValueError, match=r"no states that satisfy.*e = 3"):
        consistent(never, START, None)
    made = jax.jit(lambda p: consistent(never, START, p))(1.0)
    assert np.isnan(made.x["x"]) and np.isnan(made.z["a"])


# -- equations that are none --------------------------------------------------------------------


@pytest.mark.parametrize(
    "residual, match, cause",
    [
        (lambda now, p: {"e": now.z["a"] > now.x["x"]}, '"e" is a truth value.*difference', None),
        (lambda now, p: {"e": 1}, '"e" is an integer', None),
        (lambda now, p: {"e": p * now.t}, '"e" contains neither x nor z', None),
        (
            lambda now, p: {"e": now.z["q"]},
            "constraint: it reads 'q', which.*'a': number",
            KeyError,
        ),
        (lambda now: {"e": now.z["a"]}, r"constraint: .*takes 1 .*lambda now, p", TypeError),
    ],
    ids=["truth", "integer", "nothing", "name", "arity"],
)
def test_equations_that_cannot_be_solved_are_refused(residual, match, cause):
    """What Python has said of the function is kept as the cause."""
    found = refused(match, model(residual), p=1.0).__cause__
    assert found is None if cause is None else type(found) is cause


def test_mistakes_in_guards_and_resets_are_named_by_event():
    def system(guard=lambda now, p: now.x["x"] - 0.5, reset=None):
        return model(events=[Event("b", guard, reset=reset)])

    refused('event "b": guard: it reads', system(guard=lambda now, p: now.x["q"]))
    reset = lambda now, p: now.replace(z=1.0)
    refused(r'event "b": reset returned z .*now\.replace\(z=', system(reset=reset))


def test_the_shape_of_the_guess_is_mentioned_where_the_flow_has_the_wrong_one():
    refused(r"z, which is \{'a': array\[2\]\}", model(), START.replace(z={"a": jnp.ones(2)}))


def test_an_equation_has_one_index_in_all_modes():
    motion = lambda now, p: {"s": now.x["v"], "v": jnp.sin(2 * now.t) - now.z["fr"]}
    slip = Exit(lambda now, p: 0.6 - now.z["fr"], to="slip")
    modes = {
        "stick": Mode(motion, lambda now, p: {"fr": now.x["v"]}, exits=[slip]),
        "slip": Mode(motion, lambda now, p: {"fr": now.z["fr"] - 0.4}),
    }
    start = Instant(t=0.0, x={"s": 0.0, "v": 0.0}, z={"fr": 0.0}, mode="stick")
    refused('"fr" has index 2 in mode "stick" and index 1 in mode "slip"', automaton(modes), start)
    typo = {"on": Mode(lambda now, p: {"s": now.x["w"]})}
    refused('mode "on": flow: it reads', automaton(typo), start.replace(mode="on", z=None))


# -- mass matrices, implicit equations and resets -----------------------------------------------

DIAGONAL = lambda now, p: jnp.diag(p * jnp.array([1.0, 0.0]))
VECTOR = Instant(t=0.0, x=jnp.ones(2))


@pytest.mark.parametrize(
    "mass, like, start, match",
    [
        (np.eye(3), None, VECTOR, r"M is 3 x 3, but x is array\[2\]"),
        (np.eye(2), None, VECTOR.replace(z=1.0), "leave z out"),
        (np.diag([1.0, 0.0]), None, VECTOR.replace(z=1.0), "leave z out"),
        (DIAGONAL, None, VECTOR, r"M is singular at the start \(rank 1 of 2\).*like="),
        (DIAGONAL, np.eye(2), VECTOR, "like= is regular, but M is singular"),
        (DIAGONAL, np.diag([0.0, 1.0]), VECTOR, r"null spaces of like=.* states are x\[1\]"),
    ],
    ids=["size", "z", "z of a singular one", "no like", "regular like", "other like"],
)
def test_mass_matrices_are_checked_at_the_start(mass, like, start, match):
    refused(match, mass_matrix(mass, lambda now, p: -now.x, like=like), start, 1.0)


def test_an_implicit_reset_without_solution_is_named():
    for residual in (lambda a, b, p: a.x**2 + 1, lambda a, b, p: 0.0 * a.x + 1):
        inner = implicit_reset(residual)
        event = Event("b", lambda now, p: now.x, reset=lambda now, p, inner=inner: inner(now, p))
        system = HybridSystem(lambda now, p: -2.0, events=[event])
        stopped('implicit reset of event "b".*guess=', system, Instant(t=0.0, x=1.0))


def test_a_guess_of_the_slope_is_advised_and_refused_where_it_means_nothing():
    square = fully_implicit(lambda now, p: now.dx**2 - now.x)
    stopped(r"Instant\(\.\.\., dx=\.\.\.\)", square, Instant(t=0.0, x=1.0))
    misspelt = fully_implicit(lambda now, p: now.dx + now.p["x"])
    refused("residual: .*now.dx is number", misspelt, Instant(t=0.0, x=1.0))
    refused("fully_implicit take", HybridSystem(lambda now, p: -now.x), Instant(0.0, 1.0, dx=3.0))


# -- numbers that are not wrong but of no use ---------------------------------------------------


def test_a_given_pattern_that_leaves_out_an_entry_is_refused_by_name():
    flow = lambda now, p: {"x": -now.x["x"] + p * now.z["a"]}
    pattern = np.array([[True, False], [True, True]])
    match = "row 0 and column 1, .* flow of x by a is 0.5"
    short = HybridSystem(flow, LINEAR, sparsity=pattern)
    refused(match, short, p=0.5)
    with pytest.raises(ValueError, match=match):
        jax.grad(lambda p: solve(short, START, p, 1.0).final.x["x"])(0.5)
    whole = HybridSystem(flow, LINEAR, sparsity=np.ones((2, 2), bool))
    assert solve(whole, START, 0.5, 1.0).final.x["x"] > 0


def test_error_estimates_take_whole_numbers_and_refuse_vectors():
    system = HybridSystem(lambda now, p: -p * now.x)
    end = lambda p: solve(system, VECTOR, p, 1.0).final.x
    found = error_estimate(lambda p: end(p)[0], 1)
    assert 0.3 < found.value_error / (np.exp(-1.0) - found.value) < 3
    with pytest.raises(ValueError, match=r"array of shape \(2,\), expected one number"):
        error_estimate(end, 1)


def test_logs_show_algebraic_states_and_statistics_their_numbers():
    sol = solve(model(events=[Event("b", lambda now, p: now.x["x"] - 0.5)]), START, None, 1.0)
    assert repr(sol.events).splitlines()[1].split() == ["t", "event", "x", "a"]
    assert repr(sol.stats).startswith(f"Stats(steps={int(sol.stats.steps)}, rejected=")
    assert {"a before", "a after"} <= set(sol.events.to_pandas().columns)
