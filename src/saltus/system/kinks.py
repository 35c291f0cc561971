"""Kinks inside a flow: `when(cond, a, b)` makes its own event.

A kink made by `jnp.where` in a flow is unknown to the step size control, and so is the derivative
of the time at which it is passed. With `when`, each comparison in a condition becomes a member of
one family of guards (left side minus right side); the flow then reads the outcome of the comparison
as a recorded flag, which changes only at that event, so that every step is smooth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import core
from jax.extend import core as jex
from jax.extend.core import Primitive
from jax.interpreters import ad

from ..base.batching import aligned
from ..base.jax_names import aval_of, bind_again, inner_jaxprs
from ..base.kernel import always_compiled, register
from ..base.rewrite import line_kept
from ..base.types import Array, Atom, ClosedJaxpr, Jaxpr, Number, T, Tangent, Vector

when_p = Primitive("saltus_when")


def when(cond: Number, a: T, b: T) -> T:
    """`a` where `cond`, else `b`; inside a flow or a rate, the change is located as an event.

    `cond` is made of comparisons (`<`, `<=`, `>`, `>=`) with `&`, `|`, `~`, or is a number, which
    counts as true when positive. `a` and `b` may be pytrees of the same structure. Outside of flows
    and rates, `when` is `jnp.where`.
    """
    cond = jnp.asarray(cond)
    if cond.dtype != bool:
        cond = cond > 0
    return jax.tree.map(lambda u, v: _one(cond, u, v), a, b)


def _one(cond: Array, a: Number, b: Number) -> Array:
    dtype = jnp.result_type(a, b)
    shape = jnp.broadcast_shapes(jnp.shape(cond), jnp.shape(a), jnp.shape(b))
    operands = [jnp.broadcast_to(jnp.asarray(v, dtype), shape) for v in (a, b)]
    return when_p.bind(jnp.broadcast_to(cond, shape), *operands)


def _select(cond: Array, a: Array, b: Array) -> Array:
    return jax.lax.select(cond, a, b)


def _jvp(primals: Sequence[Array], tangents: Sequence[Tangent]) -> tuple[Array, Array]:
    cond, a, b = primals
    _, da, db = (ad.instantiate_zeros(t) for t in tangents)
    return when_p.bind(cond, a, b), _select(cond, da, db)


register(
    when_p,
    _select,
    lambda cond, a, b: core.ShapedArray(a.shape, a.dtype),
    batch=lambda args, dims: (when_p.bind(*aligned(args, dims)), 0),
    jvp=_jvp,
    impl=always_compiled(_select),
    in_kernels=True,
)

_COMPARE = {"gt": 1, "ge": 1, "lt": -1, "le": -1}
_LOGIC = {
    "and", "or", "not", "xor", "broadcast_in_dim", "reshape", "squeeze", "select_n", "copy",
    "convert_element_type", "slice", "concatenate", "reduce_and", "reduce_or", "saltus_when",
}  # fmt: skip


class Kinks(NamedTuple):
    """A function that contains `when`, separated into its smooth pieces and the comparisons."""

    size: int  # comparisons, counted by entries
    flow: Callable  # (flags, *args) -> outputs, with comparisons read from the flags
    guard: Callable  # (*args) -> vector, positive where a comparison holds


def find_kinks(fn: Callable, avals: list) -> Kinks:
    """Separate a function on leaves into its smooth pieces and the comparisons of its `when`s."""
    closed = jax.make_jaxpr(fn)(*avals)
    flat = jax.make_jaxpr(lambda *a: _inline(closed.jaxpr, closed.consts, a))(*avals)
    compared = _comparisons(flat.jaxpr)
    sizes = [aval_of(v).size for v in compared]

    def guard(*args: Array) -> Vector:
        _, differences = _evaluate(flat, args, compared, None)
        return jnp.concatenate([jnp.ravel(d).astype(jnp.float64) for d in differences])

    def flow(flags: Vector, *args: Array) -> list[Array]:
        given, k = {}, 0
        for var, size in zip(compared, sizes, strict=True):
            given[var] = (flags[k : k + size] > 0).reshape(aval_of(var).shape)
            k += size
        return _evaluate(flat, args, compared, given)[0]

    return Kinks(sum(sizes), flow, guard)


def uses_when(jaxpr: Jaxpr) -> bool:
    """Whether a jaxpr has a `when` anywhere."""
    return any(
        eqn.primitive is when_p or any(map(uses_when, inner_jaxprs(eqn.params)))
        for eqn in jaxpr.eqns
    )


def _inline(
    jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any], top: bool = True
) -> list[Any]:
    """Evaluate with inner `jit`s written out, so that all operations are on one level."""
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(v: Atom) -> Any:
        return v.val if isinstance(v, jex.Literal) else env[v]

    for eqn in jaxpr.eqns:
        values = [read(v) for v in eqn.invars]
        inner = eqn.params.get("jaxpr") if eqn.primitive.name in ("jit", "pjit") else None
        if inner is not None:
            with line_kept(eqn, top):
                out = _inline(inner.jaxpr, inner.consts, values, top=False)
        else:
            if any(map(uses_when, inner_jaxprs(eqn.params))):
                raise NotImplementedError(
                    f"saltus.when inside `{eqn.primitive.name}` cannot make its own event. Call it "
                    "outside of loops and conditionals in the flow."
                )
            with line_kept(eqn, top):
                out = bind_again(eqn, values)
            out = out if eqn.primitive.multiple_results else [out]
        env.update(zip(eqn.outvars, out, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _comparisons(jaxpr: Jaxpr) -> list[jex.Var]:
    """The variables of the comparisons that conditions of `when` depend on."""
    made = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    found: list = []

    def visit(var: Atom) -> None:
        if isinstance(var, jex.Literal) or var not in made:
            return
        eqn = made[var]
        name = eqn.primitive.name
        if name in _COMPARE and jnp.issubdtype(aval_of(eqn.invars[0]).dtype, jnp.floating):
            if var not in found:
                found.append(var)
        elif name in ("eq", "ne") and jnp.issubdtype(aval_of(eqn.invars[0]).dtype, jnp.floating):
            raise ValueError(
                "saltus.when: a condition tests floats for equality, which is never crossed. "
                "Compare with <, <=, > or >=."
            )
        elif name in _LOGIC:
            for v in eqn.invars:
                visit(v)

    for eqn in jaxpr.eqns:
        if eqn.primitive is when_p:
            visit(eqn.invars[0])
    return found


def _evaluate(
    closed: ClosedJaxpr, args: Sequence[Array], compared: list, given: dict | None
) -> tuple[list, list]:
    """Evaluate a flat jaxpr; comparisons in `given` are not computed but read from there.

    Returns the outputs and, for each comparison, the difference of its sides.
    """
    jaxpr = closed.jaxpr
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *args], strict=True))
    differences: dict = {}

    def read(v: Atom) -> Any:
        return v.val if isinstance(v, jex.Literal) else env[v]

    for eqn in jaxpr.eqns:
        values = [read(v) for v in eqn.invars]
        var = eqn.outvars[0]
        if var in compared:
            differences[var] = _COMPARE[eqn.primitive.name] * (values[0] - values[1])
            if given is not None:
                env[var] = given[var]
                continue
        with line_kept(eqn):
            out = bind_again(eqn, values)
        env.update(zip(eqn.outvars, out if eqn.primitive.multiple_results else [out], strict=True))
    return [read(v) for v in jaxpr.outvars], [differences[v] for v in compared]
