"""Small rewrites of model functions, so that the loop stays one kernel.

`x.at[3].set(v)` is a scatter, which a kernel cannot contain; if its indices are known, it is
replaced by a few updates of slices. For a product of small matrices a library would be called;
written out as products and sums it stays in the kernel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.extend import core as jex

from .jax_names import aval_of, bind_again, expanded, hides_comparisons, inner_jaxprs, line_of
from .types import Array, Atom, ClosedJaxpr, Equation, Jaxpr, T

SCATTERS = ("scatter", "scatter-add")
CALLS = ("scan", "while", "cond", "jit", "pjit")  # operations that contain programs
MAX_WINDOWS = 16  # of a scatter that is written out
MAX_TERMS = 1024  # of a product of matrices that is written out


def awkward(jaxpr: Jaxpr) -> bool:
    """Whether a jaxpr has something to rewrite anywhere."""
    return any(
        eqn.primitive.name in SCATTERS
        or hides_comparisons(eqn)
        or _is_small_product(eqn)
        or any(map(awkward, inner_jaxprs(eqn.params)))
        for eqn in jaxpr.eqns
    )


def line_kept(eqn: Equation, top: bool = True) -> contextlib.AbstractContextManager[None]:
    """A context in which traced operations are attributed to the user's line of `eqn`.

    Only at the top level: programs of inner calls are shared, and have the line of their first use.
    """
    return line_of(eqn.source_info.traceback) if top else contextlib.nullcontext()


def rewritten(
    jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any], top: bool = True
) -> list[Any]:
    """Evaluate a jaxpr with inner `jit`s written out and what is awkward replaced."""
    env: dict = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(v: Atom) -> Any:
        return v.val if isinstance(v, jex.Literal) else env[v]

    for eqn in jaxpr.eqns:
        values = [read(v) for v in eqn.invars]
        name = eqn.primitive.name
        inner = eqn.params.get("jaxpr") if name in ("jit", "pjit") else None
        with line_kept(eqn, top):
            if name in CALLS and any(map(_hides, inner_jaxprs(eqn.params))):
                out = _bind(_shown(eqn), values)
            elif inner is not None and awkward(inner.jaxpr):
                out = rewritten(inner.jaxpr, inner.consts, values, top=False)
            elif hides_comparisons(eqn):
                out = expanded(eqn, values)
            elif name in SCATTERS and _simple(eqn, values):
                out = [_updates(eqn, values)]
            elif _is_small_product(eqn):
                out = [_product(eqn, *values)]
            else:
                out = _bind(eqn, values)
        env.update(zip(eqn.outvars, out, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _hides(jaxpr: Jaxpr) -> bool:
    return any(
        hides_comparisons(eqn) or any(map(_hides, inner_jaxprs(eqn.params))) for eqn in jaxpr.eqns
    )


def _shown(eqn: Equation) -> Equation:
    """The same loop, conditional or call with the comparisons inside it written out."""

    def shown(value: T) -> T | ClosedJaxpr:
        if isinstance(value, tuple):
            return tuple(map(shown, value))
        if isinstance(value, jex.ClosedJaxpr) and _hides(value.jaxpr):
            body = lambda *args: rewritten(value.jaxpr, value.consts, args, top=False)
            made = jax.make_jaxpr(body)(*value.in_avals)
            return made.replace(jaxpr=made.jaxpr.replace(debug_info=value.jaxpr.debug_info))
        return value

    return eqn.replace(params={name: shown(value) for name, value in eqn.params.items()})


def _is_small_product(eqn: Equation) -> bool:
    """Whether this is a product of matrices or vectors with few terms."""
    if eqn.primitive.name != "dot_general":
        return False
    (contracted, _), _ = eqn.params["dimension_numbers"]
    a, b = map(aval_of, eqn.invars)
    if a.dtype != b.dtype:
        return False
    terms = aval_of(eqn.outvars[0]).size * int(np.prod([a.shape[d] for d in contracted]))
    return terms <= MAX_TERMS


def _product(eqn: Equation, a: Array, b: Array) -> Array:
    """The product with the terms written out."""
    contracted, batch = eqn.params["dimension_numbers"]

    def arranged(v: Array, sums: Sequence[int], lanes: Sequence[int]) -> tuple[Any, list[int]]:
        free = [d for d in range(v.ndim) if d not in (*sums, *lanes)]
        shape = [v.shape[d] for d in free]
        sizes = [int(np.prod([v.shape[d] for d in group])) for group in (lanes, free, sums)]
        return jnp.reshape(jnp.transpose(v, (*lanes, *free, *sums)), sizes), shape

    left, shape_a = arranged(jnp.asarray(a), contracted[0], batch[0])
    right, shape_b = arranged(jnp.asarray(b), contracted[1], batch[1])
    out = jnp.sum(left[:, :, None, :] * right[:, None, :, :], axis=-1)
    lanes = [np.shape(a)[d] for d in batch[0]]
    return jnp.reshape(out, (*lanes, *shape_a, *shape_b)).astype(aval_of(eqn.outvars[0]).dtype)


def _bind(eqn: Equation, values: list) -> list:
    """The same operation; it is evaluated at once if all its operands are known."""
    if values and not any(isinstance(v, core.Tracer) for v in values):
        with jax.ensure_compile_time_eval():
            out = bind_again(eqn, values)
    else:
        out = bind_again(eqn, values)
    return out if eqn.primitive.multiple_results else [out]


def _simple(eqn: Equation, values: list[Array]) -> bool:
    """Whether the windows of a scatter are few, and known to lie inside the array."""
    operand, indices, _ = values
    numbers = eqn.params["dimension_numbers"]
    if isinstance(indices, core.Tracer) or numbers.operand_batching_dims:
        return False
    places = np.asarray(indices).reshape(-1, np.shape(indices)[-1])
    windows = _window(eqn, values)
    room = [np.shape(operand)[d] - windows[d] for d in numbers.scatter_dims_to_operand_dims]
    return len(places) <= MAX_WINDOWS and bool(np.all((places >= 0) & (places <= room)))


def _window(eqn: Equation, values: list[Array]) -> list[int]:
    """The shape of one window in the operand."""
    numbers, updates = eqn.params["dimension_numbers"], np.shape(values[2])
    sizes = iter(updates[d] for d in numbers.update_window_dims)
    inserted = set(numbers.inserted_window_dims)
    return [1 if d in inserted else next(sizes) for d in range(np.ndim(values[0]))]


def _updates(eqn: Equation, values: list[Array]) -> Array:
    operand, indices, updates = values
    numbers = eqn.params["dimension_numbers"]
    window = _window(eqn, values)
    places = np.asarray(indices).reshape(-1, np.shape(indices)[-1])
    outer = [d for d in range(np.ndim(updates)) if d not in numbers.update_window_dims]
    moved = jnp.transpose(updates, (*outer, *numbers.update_window_dims))
    moved = jnp.reshape(moved, (len(places), *window))
    for k, place in enumerate(places):
        start = [0] * np.ndim(operand)
        for d, v in zip(numbers.scatter_dims_to_operand_dims, place, strict=True):
            start[d] = int(v)
        piece = moved[k]
        if eqn.primitive.name == "scatter-add":
            limits = [s + w for s, w in zip(start, window, strict=True)]
            piece = piece + jax.lax.slice(operand, start, limits)
        operand = jax.lax.dynamic_update_slice(operand, piece.astype(operand.dtype), start)
    return operand
