"""Loops of JAX inside model functions: in flows, constraints, guards, resets and losses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from saltus import Event, HybridSystem, Instant, Radau5, Rodas5P, Tsit5, solve
from saltus.base.jax_names import scan_sizes
from saltus.linalg.dependence import dependence


def thrice(fn, x):
    """`fn` three times, by each of JAX's loops; every one is the cube of the same function."""
    rows = jnp.arange(3.0)
    return {
        "fori_loop": lambda: jax.lax.fori_loop(0, 3, lambda i, v: fn(v), x),
        "scan": lambda: jax.lax.scan(lambda v, row: (fn(v) + 0 * row, v), x, rows)[0],
        "scan_of_rows": lambda: (
            fn(fn(fn(x))) + 0 * jnp.sum(jax.lax.scan(lambda c, r: (c, r * c), x, rows)[1])
        ),
        "map": lambda: fn(fn(fn(x))) * jnp.mean(jax.lax.map(lambda r: 1 + 0 * r, rows)),
        "while_loop": lambda: jax.lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, fn(c[1])), (0, x)
        )[1],
        "cond": lambda: jax.lax.cond(jnp.sum(rows) > 0, lambda v: fn(fn(fn(v))), lambda v: v, x),
        "associative_scan": lambda: (
            fn(fn(fn(x))) * jax.lax.associative_scan(jnp.multiply, jnp.ones(3))[-1]
        ),
    }


LOOPS = list(thrice(lambda v: v, 1.0))
TIGHT = {"rtol": 1e-10, "atol": 1e-12}


@pytest.mark.parametrize(
    "loop, method",
    [
        *((loop, Tsit5(**TIGHT)) for loop in LOOPS),
        ("scan", Radau5(**TIGHT)),
        ("map", Rodas5P(**TIGHT)),
    ],
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
def test_a_loop_in_a_flow_changes_neither_values_nor_derivatives(loop, method):
    system = HybridSystem(lambda now, p: -thrice(lambda v: p * v, now.x)[loop]())
    end = lambda p: solve(system, Instant(t=0.0, x=1.0), p, 1.0, method=method).final.x
    exact = np.exp(-(0.9**3))
    np.testing.assert_allclose(end(0.9), exact, rtol=1e-8)
    if loop != "while_loop":  # which has no derivative in reverse
        np.testing.assert_allclose(jax.grad(end)(0.9), -3 * 0.9**2 * exact, rtol=1e-7)
    np.testing.assert_allclose(jax.jacfwd(end)(0.9), -3 * 0.9**2 * exact, rtol=1e-7)


@pytest.mark.parametrize("loop", ["fori_loop", "cond"])
def test_a_loop_in_a_constraint_a_guard_and_a_reset_works(loop):
    bounce = Event(
        "bounce",
        guard=lambda now, p: thrice(lambda v: 1.0 * v, now.x["h"])[loop](),
        reset=lambda now, p: now.replace(
            x={"h": now.x["h"], "v": -thrice(lambda v: p * v, now.x["v"])[loop]()}
        ),
    )
    system = HybridSystem(
        lambda now, p: {"h": now.x["v"], "v": now.z},
        constraint=lambda now, p: now.z + thrice(lambda v: 1.0 * v, 9.81 + 0 * now.x["h"])[loop](),
        events=[bounce],
    )
    start = Instant(t=0.0, x={"h": 1.0, "v": 0.0}, z=-9.81)
    fall, g = np.sqrt(2 / 9.81), 9.81
    speed, rest = 0.9**3 * g * fall, 0.7 - fall
    end = lambda p: solve(system, start, p, 0.7, method=Radau5(**TIGHT)).final.x["h"]
    np.testing.assert_allclose(end(0.9), speed * rest - g * rest**2 / 2, rtol=1e-7)
    np.testing.assert_allclose(jax.grad(end)(0.9), 3 * 0.9**2 * g * fall * rest, rtol=1e-6)


TABLE = (jnp.array([0.0, 0.4, 1.0]), jnp.array([1.0, 2.0, 4.0]))
STANDING_FOR_OTHERS = {
    "interp": lambda v: jnp.interp(v, jnp.array([-9.0, 9.0]), jnp.array([-9.0, 9.0])),
    "ldexp": lambda v: jnp.ldexp(v, 1) / 2,
    "custom_root": lambda v: jax.lax.custom_root(
        lambda y: y - v, v, lambda f, start: start - f(start), lambda g, y: y / g(1.0)
    ),
    "inside a loop": lambda v: jax.lax.fori_loop(0, 2, lambda i, c: jnp.ldexp(c, 1) / 2, v),
}


@pytest.mark.parametrize("name", STANDING_FOR_OTHERS)
def test_an_operation_that_stands_for_others_keeps_its_derivative(name):
    same = STANDING_FOR_OTHERS[name]
    stop = Event("stop", guard=lambda now, p: same(now.x) - 0.5, terminal=True)
    system = HybridSystem(lambda now, p: -p * same(now.x), events=[stop])
    time = lambda p: solve(system, Instant(t=0.0, x=1.0), p, 9.0).events.t[0]
    np.testing.assert_allclose(time(0.9), np.log(2) / 0.9, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(time)(0.9), -np.log(2) / 0.9**2, rtol=1e-5)


@pytest.mark.parametrize("nested", [False, True])
def test_kinks_of_a_table_are_found(nested):
    table = lambda v: jnp.interp(v, *TABLE)
    if nested:
        table = lambda v: jax.lax.fori_loop(0, 1, lambda i, c: jnp.interp(c, *TABLE), v)
    system = HybridSystem(lambda now, p: -table(now.x))
    sol = solve(system, Instant(t=0.0, x=1.0), None, 0.5)
    assert sol.certificate.verdict != "TRUSTED" and sol.certificate.kinks


def test_certificates_look_into_loops():
    kinked = lambda v: jnp.where(v > 0.7, 2.0 * v, 0.5 * v)
    system = HybridSystem(lambda now, p: -thrice(kinked, now.x)["fori_loop"]())
    sol = solve(system, Instant(t=0.0, x=1.0), None, 1.0)
    assert sol.certificate.verdict != "TRUSTED"


def test_the_sizes_of_a_scan_are_read_off_its_shapes():
    def scanned(x, p):
        step = lambda c, y: ((c[0] * p[0] + y, c[1] * y), c[0])
        return jax.lax.scan(step, (x, p), jnp.arange(4.0))

    eqns = jax.make_jaxpr(scanned)(1.0, jnp.ones(3)).jaxpr.eqns
    (scan,) = [e for e in eqns if e.primitive.name == "scan"]
    assert scan_sizes(scan) == (1, 2)


def test_an_operation_that_is_not_understood_is_taken_to_mix_everything(monkeypatch):
    def unknown(eqn):
        raise KeyError("num_consts")

    monkeypatch.setattr("saltus.linalg.dependence.scan_sizes", unknown)
    fn = lambda x: jnp.stack([jax.lax.fori_loop(0, 2, lambda i, v: v * 2, x[0]), x[1]])
    closed = jax.make_jaxpr(fn)(jnp.ones(2))
    found = dependence(closed, [0]).toarray()
    assert found.tolist() == [[True, False], [False, True]]
