"""Programs that run rarely: computed by NumPy, they give what XLA gives."""

import functools
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from saltus.base import host_programs
from saltus.base.host_programs import rarely
from saltus.base.host_rules import RULES
from saltus.base.jax_names import inner_jaxprs

ROW = np.array([0.3, -0.7, 0.0, np.nan, np.inf, -2.5])
BLOCK = np.arange(24.0).reshape(2, 3, 4) - 11.5
WHOLE = np.array([7, -7, 0, 3, -1, 5])
FLAGS = np.array([True, False, True, True, False, False])


CASES = {
    "arithmetic": lambda: (ROW + 1, ROW * ROW, ROW / 3, 1 / jnp.asarray(ROW), -jnp.asarray(ROW)),
    "elementary": lambda: [
        f(jnp.asarray(ROW))
        for f in (
            jnp.sin, jnp.cos, jnp.tan, jnp.arcsin, jnp.arccos, jnp.arctan, jnp.sinh, jnp.cosh,
            jnp.tanh, jnp.arcsinh, jnp.arccosh, jnp.arctanh, jnp.exp, jnp.expm1, jnp.exp2, jnp.log,
            jnp.log1p, jnp.sqrt, jnp.cbrt, jnp.floor, jnp.ceil, jnp.abs, jnp.sign, jnp.square,
            jnp.round, jnp.isfinite, jax.nn.sigmoid, lax.rsqrt, lax.round,
        )
    ],
    "powers": lambda: (
        jnp.asarray(ROW) ** 3, jnp.asarray(ROW) ** -2, jnp.asarray(ROW) ** 1.7,
        jnp.power(2.0, jnp.asarray(ROW)), jnp.asarray(WHOLE) ** 2,
        lax.pow(jnp.asarray(ROW), jnp.asarray(WHOLE)),
    ),
    "two": lambda: (
        jnp.arctan2(jnp.asarray(ROW), 0.4), jnp.maximum(jnp.asarray(ROW), 0.1),
        jnp.minimum(jnp.asarray(ROW), 0.1), jnp.nextafter(jnp.asarray(ROW), 1.0),
        lax.rem(jnp.asarray(ROW), 0.4), jnp.asarray(ROW) % 0.4,
    ),
    "whole": lambda: (
        lax.div(jnp.asarray(WHOLE), 2), lax.div(jnp.asarray(WHOLE), -3), jnp.asarray(WHOLE) // 2,
        jnp.asarray(WHOLE) % 3, lax.rem(jnp.asarray(WHOLE), 3), jnp.abs(jnp.asarray(WHOLE)),
        jnp.asarray(WHOLE) << 2, lax.shift_right_logical(jnp.asarray(WHOLE), 3),
        jnp.asarray(WHOLE) & 5, jnp.asarray(WHOLE) | 2, jnp.asarray(WHOLE) ^ 6, ~jnp.asarray(WHOLE),
    ),
    "comparison": lambda: (
        jnp.asarray(ROW) < 0, jnp.asarray(ROW) <= 0, jnp.asarray(ROW) > 0, jnp.asarray(ROW) >= 0,
        jnp.asarray(ROW) == 0, jnp.asarray(ROW) != 0, ~jnp.asarray(FLAGS),
        jnp.asarray(FLAGS) & (jnp.asarray(ROW) > 0), jnp.asarray(FLAGS) | (jnp.asarray(ROW) > 0),
    ),
    "choice": lambda: (
        jnp.where(FLAGS, jnp.asarray(ROW), 1.0), jnp.clip(jnp.asarray(ROW), -1, 1),
        lax.select_n(jnp.asarray([0, 2, 1]), *(k + jnp.arange(3.0) for k in (0, 10, 20))),
    ),
    "dtype": lambda: (
        jnp.asarray(ROW * 1e12).astype(jnp.int32), jnp.asarray(ROW).astype(jnp.int64),
        jnp.asarray(WHOLE).astype(float), jnp.asarray(FLAGS).astype(int),
        jnp.asarray(ROW).astype(bool), jnp.asarray(WHOLE).astype(jnp.uint8),
        jnp.asarray(ROW).astype(jnp.float32), jnp.asarray(-300.7).astype(jnp.int8),
    ),
    "complex": lambda: (
        jnp.real(jnp.asarray(ROW) * 1j), jnp.imag(jnp.asarray(ROW[:3]) * (1 + 2j)),
    ),
    "shape": lambda: (
        jnp.broadcast_to(jnp.asarray(ROW), (2, 6)), jnp.asarray(BLOCK).reshape(4, 6),
        jnp.squeeze(jnp.asarray(BLOCK)[:1], 0), jnp.expand_dims(jnp.asarray(ROW), 1),
        jnp.transpose(jnp.asarray(BLOCK), (2, 0, 1)), jnp.flip(jnp.asarray(BLOCK), (0, 2)),
        jnp.concatenate([jnp.asarray(ROW), ROW]), jnp.arange(5),
        lax.broadcasted_iota(int, (2, 3), 1),
        jnp.split(jnp.asarray(ROW), 3), jnp.stack([jnp.asarray(ROW), ROW], 1),
        jnp.tile(jnp.asarray(ROW), 2), jnp.unstack(jnp.asarray(BLOCK), axis=1),
        lax.pad(jnp.asarray(BLOCK), 9.0, ((1, 0, 0), (-1, 2, 1), (0, -1, 0))),
    ),
    "slices": lambda: (
        jnp.asarray(BLOCK)[1, 0:3:2, 1:], lax.dynamic_slice(jnp.asarray(ROW), (5,), (3,)),
        lax.dynamic_slice(jnp.asarray(ROW), (-2,), (2,)),
        lax.dynamic_update_slice(jnp.asarray(BLOCK), jnp.zeros((1, 2, 1)), (1, 2, 0)),
    ),
    "reductions": lambda: (
        jnp.sum(jnp.asarray(BLOCK), (0, 2)), jnp.prod(jnp.asarray(BLOCK), 1),
        jnp.max(jnp.asarray(ROW)), jnp.min(jnp.asarray(BLOCK), 0), jnp.all(jnp.asarray(FLAGS)),
        jnp.any(jnp.asarray(FLAGS)), jnp.argmax(jnp.asarray(ROW)),
        jnp.argmin(jnp.asarray(BLOCK), 2),
        jnp.sum(jnp.asarray(FLAGS)), jnp.sum(jnp.asarray(WHOLE, jnp.int8)),
    ),
    "running": lambda: (
        jnp.cumsum(jnp.asarray(BLOCK), 1), lax.cumprod(jnp.asarray(BLOCK), 2),
        lax.cummax(jnp.asarray(ROW[:3])), lax.cummin(jnp.asarray(BLOCK), 0, reverse=True),
    ),
    "products": lambda: (
        jnp.asarray(BLOCK[0]) @ BLOCK[1].T, jnp.einsum("bij,bkj->bik", BLOCK, jnp.asarray(BLOCK)),
        jnp.dot(jnp.asarray(ROW[:3]), ROW[:3]),
    ),
    "order": lambda: (
        jnp.sort(jnp.asarray(ROW)), jnp.argsort(jnp.asarray(ROW)), jnp.sort(jnp.asarray(BLOCK), 1),
        jnp.searchsorted(jnp.asarray([0.0, 1.0, jnp.nan]), jnp.asarray(ROW)),
        jnp.searchsorted(jnp.asarray([0.0, 1.0]), jnp.asarray(ROW), side="right"),
        lax.top_k(jnp.asarray(WHOLE), 2), jnp.lexsort((WHOLE, jnp.asarray(FLAGS))),
    ),
    "gather": lambda: (
        jnp.asarray(ROW)[jnp.asarray([4, 0, -1])], jnp.asarray(BLOCK)[jnp.asarray([1, 0]), :, 2],
        jnp.asarray(ROW).at[jnp.asarray([9, 1])].get(mode="fill"),
        jnp.asarray(WHOLE).at[jnp.asarray([9, 1])].get(mode="fill"),
        jnp.asarray(ROW).at[jnp.asarray([9, 1])].get(mode="fill", fill_value=3.0),
        jnp.asarray(ROW).at[jnp.asarray([9, 1])].get(mode="clip"),
        jnp.take_along_axis(jnp.asarray(BLOCK), jnp.zeros((2, 3, 1), int), 2),
        jax.vmap(lambda row, k: lax.dynamic_slice(row, (k, 0), (2, 3)))(
            jnp.asarray(BLOCK), jnp.asarray([0, 5])
        ),
    ),
    "scatter": lambda: (
        jnp.asarray(ROW).at[jnp.asarray([4, 0])].set(7.0), jnp.asarray(ROW).at[9].set(7.0),
        jnp.asarray(BLOCK).at[jnp.asarray([1, 1]), :, 2].add(1.0),
        jnp.asarray(BLOCK).at[:, jnp.asarray([1, 7])].add(1.0, mode="drop"),
        jnp.asarray(BLOCK).at[:, jnp.asarray([1, 7])].add(1.0, mode="clip"),
        jnp.asarray(BLOCK).at[0, jnp.asarray([0, 0])].multiply(2.0),
        jnp.asarray(BLOCK).at[0, jnp.asarray([0, 0])].max(2.0),
        jnp.asarray(BLOCK).at[0, jnp.asarray([0, 0])].min(2.0),
        jax.vmap(lambda row, k: row.at[k].set(0.0))(jnp.asarray(BLOCK), jnp.asarray([0, 2])),
        jax.vmap(lambda row, k: row.at[k].add(1.0))(jnp.asarray(BLOCK), jnp.asarray([0, 2])),
    ),
    "kept": lambda: (
        lax.stop_gradient(jnp.asarray(ROW)), jnp.copy(jnp.asarray(ROW)),
        lax.optimization_barrier(jnp.asarray(ROW)),
    ),
    "calls": lambda: (
        jax.jit(jnp.sin)(jnp.asarray(ROW)), jax.nn.relu(jnp.asarray(ROW)),
        jax.checkpoint(jnp.sin)(jnp.asarray(ROW)),
        jax.grad(lambda x: jnp.sum(jnp.sin(x) * x[0]))(jnp.asarray(BLOCK[0, 0])),
    ),
    "cond": lambda: [lax.switch(k, [lambda: 1.0, lambda: 2.0, lambda: 3.0]) for k in (-1, 1, 5)],
    "scan": lambda: (
        lax.scan(lambda c, x: (c + x, c * x), jnp.asarray(0.5), jnp.asarray(BLOCK[0, 0])),
        lax.scan(lambda c, x: (c + x, c * x), 0.5, jnp.asarray(BLOCK[0, 0]), reverse=True),
        lax.scan(lambda c, x: (c + x, c * x), 0.5, jnp.zeros(0)),
        lax.map(lambda x: x**2, jnp.asarray(ROW)),
    ),
    "while": lambda: (
        lax.while_loop(lambda c: c < 50.0, lambda c: 1.5 * c + 1, jnp.asarray(0.5)),
        lax.fori_loop(0, 5, lambda k, c: c * k + 1.0, jnp.asarray(0.5)),
        lax.while_loop(lambda c: c < 3.0, lambda c: c + 1e-4, jnp.asarray(0.5)),  # long: compiled
        jax.vmap(lambda end: lax.while_loop(lambda c: c < end, lambda c: 2 * c, 1.0))(
            jnp.asarray([3.0, 70.0])
        ),
    ),
    "singular values": lambda: (
        jnp.linalg.svd(jnp.asarray(BLOCK[0]), compute_uv=False),
        jnp.linalg.norm(jnp.asarray([[1.0, 2.0], [3.0, jnp.nan]]), 2),
    ),
    "left to XLA": lambda: (jnp.linalg.svd(jnp.asarray(BLOCK[0]))[1], lax.erf(jnp.asarray(ROW))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_numpy_computes_what_xla_computes(name):
    found, expected = rarely(CASES[name])(), jax.jit(CASES[name])()
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(a, jax.Array) and (a.shape, a.dtype) == (b.shape, b.dtype)
        accurate = 1e-6 if a.dtype == np.float32 else 1e-14
        np.testing.assert_allclose(a, b, rtol=accurate, atol=0)


def test_every_rule_is_among_the_cases():
    seen = set()

    def look(jaxpr):
        for eqn in jaxpr.eqns:
            seen.add(eqn.primitive.name)
            for inner in inner_jaxprs(eqn.params):
                look(inner)

    for case in CASES.values():
        look(jax.make_jaxpr(case)().jaxpr)
    names_of_other_versions = {"copy", "copy_p", "expand_dims", "tile", "unstack", "stack", "split"}
    inside_of_sort = {"lt_to", "le_to"}
    by_transposition_or_other_dtypes = {"add_any", "clamp", "stop_gradient", "logistic", "square"}
    left = names_of_other_versions | inside_of_sort | by_transposition_or_other_dtypes
    assert set(RULES) - seen <= left


def test_nothing_is_compiled_before_it_pays(compilations, monkeypatch):
    def curve(x, k):
        return jnp.sum(jnp.sin(x) * jnp.arange(7.0)) + k

    call = functools.partial(rarely(curve, static_argnums=(1,)), np.linspace(0, 1, 7))
    assert sum(compilations.during(lambda: call(2)) for _ in range(20)) == 0
    monkeypatch.setattr(host_programs, "STEP_SECONDS", 1.0)  # NumPy is slower than the compiler
    call = functools.partial(rarely(curve, static_argnums=(1,)), np.linspace(0, 1, 7))
    assert compilations.during(lambda: call(2)) == 0
    assert compilations.during(lambda: call(2)) == 1
    assert compilations.during(lambda: call(3)) == 0  # another program, so it is not compiled yet
    assert float(call(3)) == pytest.approx(float(call(2)) + 1)


def test_operations_in_loops_count_each_time(compilations):
    """A loop of a thousand operations pays sooner than one of two."""
    loops = {n: rarely(lambda x, n=n: lax.fori_loop(0, n, lambda _, c: c * x, x)) for n in (2, 999)}

    def calls(n):
        return next(k for k in range(10**4) if compilations.during(lambda: loops[n](0.5)))

    assert 5 < calls(999) < 0.02 * calls(2) < 200


def test_large_arguments_are_left_to_xla(compilations):
    call = rarely(lambda x: jnp.sum(x**2))
    assert compilations.during(lambda: call(np.ones(host_programs.MAX_NUMBERS + 1))) == 1
    assert compilations.during(lambda: call(np.ones(10))) == 0


def test_it_is_jit_inside_of_transformations():
    call = rarely(lambda x: jnp.sum(jnp.sin(x)))
    x = jnp.linspace(0, 1, 4)
    np.testing.assert_allclose(jax.grad(call)(x), jnp.cos(x), rtol=1e-15)
    np.testing.assert_allclose(jax.jit(call)(x), call(x), rtol=1e-15)
    np.testing.assert_allclose(
        jax.vmap(call)(jnp.stack([x, 2 * x])), [call(x), call(2 * x)], rtol=1e-15
    )


def test_values_that_are_not_needed_any_more_are_let_go():
    def long(x):
        for k in range(40):
            x = jnp.sin(x) + k
        return x

    call, x = rarely(long), np.ones(host_programs.MAX_NUMBERS // 2)
    call(x)
    tracemalloc.start()
    call(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * x.nbytes  # of 80 values on the way
