"""Keeping the compiler from computing the same thing many times.

XLA fuses cheap operations into every operation that uses them. Where dozens of outputs depend on
one decision, that makes dozens of copies of it: the loop of a bouncing ball was ten times as large.
Fusion stops at a call that is not inlined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import core
from jax.extend import core as jex
from jax.extend.core import Primitive

from .jax_names import low
from .kernel import register, results_of_closed, run_closed
from .types import Array, Aval, ClosedJaxpr, Flag, Jaxpr, T, Whole

Programs: TypeAlias = tuple[ClosedJaxpr, ...]  # one for each case of a branch

stage_p = Primitive("saltus_stage")
stage_p.multiple_results = True


def staged(fn: Callable[[], T]) -> T:
    """`fn()`, computed once and not again in each operation that uses it."""
    closed, shape = jax.make_jaxpr(fn, return_shape=True)()
    out = _bind(closed.jaxpr, closed.consts)
    return jax.tree.unflatten(jax.tree.structure(shape), out)


def _bind(jaxpr: Jaxpr, consts: Sequence[Array]) -> list[Array]:
    open_ = jaxpr.replace(
        constvars=[],
        invars=[*jaxpr.constvars, *jaxpr.invars],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return stage_p.bind(*consts, closed=low(jex.ClosedJaxpr(open_, [])))


def _batch(
    args: Sequence[Array], dims: Sequence[int | None], *, closed: ClosedJaxpr
) -> tuple[list[Array], list[int]]:
    fn = jax.vmap(jex.jaxpr_as_fun(closed), in_axes=tuple(dims))
    out = jax.make_jaxpr(fn)(*args)
    return _bind(out.jaxpr, [*out.consts, *args]), [0] * len(out.out_avals)


register(
    stage_p, run_closed, results_of_closed, batch=_batch, marks={"inlineable": "false"},
    in_kernels=True,
)  # fmt: skip


branch_p = Primitive("saltus_branch")
branch_p.multiple_results = True


def branch(index: Whole, cases: Sequence[Callable[[], T]], lazy: bool = False) -> T:
    """`cases[index]()`, like `lax.switch`; if `lazy`, a case that no lane needs is skipped."""
    traced = [jax.make_jaxpr(fn, return_shape=True)() for fn in cases]
    values: list = []
    for closed, _ in traced:
        values += [c for c in closed.consts if not any(c is v for v in values)]
    programs = tuple(_with_arguments(closed, values) for closed, _ in traced)
    out = branch_p.bind(index, *values, programs=programs, lazy=lazy)
    return jax.tree.unflatten(jax.tree.structure(traced[0][1]), out)


def _with_arguments(closed: ClosedJaxpr, values: list[Array]) -> ClosedJaxpr:
    """A jaxpr that closes over some of `values` as one that has all of them as arguments."""

    def fn(*args: Array) -> list[Array]:
        places = [next(j for j, v in enumerate(values) if v is c) for c in closed.consts]
        return core.eval_jaxpr(closed.jaxpr, [args[j] for j in places])

    return low(jax.make_jaxpr(fn)(*[jax.typeof(v) for v in values]))


def _branch_abstract(index: Aval, *avals: Aval, programs: Programs, lazy: bool) -> list[Any]:
    return list(programs[0].out_avals)


def _branch_batch(
    args: Sequence[Array], dims: Sequence[int | None], *, programs: Programs, lazy: bool
) -> tuple[list[Array], list[int]]:
    (index, *values), (index_dim, *value_dims) = args, dims
    size = next(v.shape[d] for v, d in zip(args, dims, strict=True) if d is not None)
    batched = []
    for closed in programs:
        fn = jax.vmap(
            lambda _, *a, c=closed: jex.jaxpr_as_fun(c)(*a), in_axes=(0, *value_dims), out_axes=0
        )
        shapes = [jax.typeof(v) for v in values]
        lanes = jax.ShapeDtypeStruct((size,), index.dtype)
        whole = jax.make_jaxpr(fn)(lanes, *shapes)
        batched.append(jax.make_jaxpr(lambda *a, w=whole: _drop(w, a, size))(*shapes))
    if index_dim is not None:
        index = jnp.moveaxis(index, index_dim, 0)
    elif index.ndim:
        index = jnp.broadcast_to(index, (size, *index.shape))
    out = branch_p.bind(index, *values, programs=tuple(batched), lazy=lazy)
    return out, [0] * len(out)


def _drop(whole: ClosedJaxpr, args: Sequence[Array], size: int) -> list[Array]:
    return jex.jaxpr_as_fun(whole)(jnp.zeros((size,), jnp.int32), *args)


def _branch_run(index: Whole, *args: Array, programs: Programs, lazy: bool) -> list[Array]:
    """One index: a switch. One per lane: each case that some lane needs, then a selection."""
    if index.ndim == 0:
        return jax.lax.switch(index, [jex.jaxpr_as_fun(p) for p in programs], *args)
    if lazy:
        results = [_if_needed(jnp.any(index == k), p, args) for k, p in enumerate(programs)]
    else:
        results = [_results(p, args) for p in programs]
    out = []
    for leaves in zip(*results, strict=True):
        chosen = leaves[-1]
        for k in range(len(leaves) - 2, -1, -1):
            if leaves[k] is not chosen:
                here = jax.lax.broadcast_in_dim(index == k, chosen.shape, range(index.ndim))
                chosen = jax.lax.select(here, leaves[k], chosen)
        out.append(chosen)
    return out


def _results(closed: ClosedJaxpr, args: Sequence[Array]) -> list[Array]:
    """The results of a case; an argument that it returns unchanged is not computed."""
    invars = closed.jaxpr.invars
    out = jex.jaxpr_as_fun(closed)(*args)
    for j, var in enumerate(closed.jaxpr.outvars):
        k = next((k for k, v in enumerate(invars) if v is var), None)
        if k is not None:
            out[j] = args[k]
    return out


def _if_needed(needed: Flag, closed: ClosedJaxpr, args: Sequence[Array]) -> list[Array]:
    """A case under a condition; arguments that it returns unchanged stay outside of it."""
    invars = closed.jaxpr.invars
    passed = {
        j: next(k for k, v in enumerate(invars) if v is out)
        for j, out in enumerate(closed.jaxpr.outvars)
        if any(v is out for v in invars)
    }
    kept = [j for j in range(len(closed.jaxpr.outvars)) if j not in passed]

    def compute(*a: Array) -> list[Array]:
        full = jex.jaxpr_as_fun(closed)(*a)
        return [full[j] for j in kept]

    def blank(*_: Array) -> list[Array]:
        return [jnp.zeros(closed.out_avals[j].shape, closed.out_avals[j].dtype) for j in kept]

    computed = jax.lax.cond(needed, compute, blank, *args)
    out: list = [None] * len(closed.jaxpr.outvars)
    for j, k in passed.items():
        out[j] = args[k]
    for j, value in zip(kept, computed, strict=True):
        out[j] = value
    return out


register(branch_p, _branch_run, _branch_abstract, batch=_branch_batch, in_kernels=True)
