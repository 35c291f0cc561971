"""The rows of the record as arrays: blank, written, extended."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from ..base.types import Array, Flag, Whole
from ..model.model import At
from .record import FLOW, Rows, Spec


def blank_rows(spec: Spec, at: At, capacity: int) -> Rows:
    """Room for `capacity` rows and the final state; `at` may have lanes."""

    def room(leaf: Array, dtype: DTypeLike | None = None) -> Array:
        return jnp.zeros((capacity + 1, *jnp.shape(leaf)), dtype or leaf.dtype)

    def noted(leaf: jax.ShapeDtypeStruct) -> Array:
        return jnp.zeros((capacity + 1, *jnp.shape(at.tau), *leaf.shape), leaf.dtype)

    model, whole = spec.model, jnp.int32
    return Rows(
        tau=room(at.tau), w=tuple(map(room, at.w)), i=tuple(map(room, at.i)),
        h=room(at.tau), kind=room(at.tau, model.kind_dtype),
        member=(room(at.tau, whole),) * model.families, z=tuple(map(room, at.z)),
        aux=tuple(map(noted, spec.stepper.aux(model))),
    )  # fmt: skip


MAX_SLABS = 16  # most rows by which lanes may differ to be written together


def write(rows: Rows, n: Whole, row: Rows, active: Flag) -> Rows:
    """`row` at index `n` of each lane."""
    if jnp.ndim(n) == 0:
        return jax.tree.map(lambda a, v: put(a, v, (n,)), rows, row)
    lanes = n.ndim
    flat = n.reshape(-1)

    def join(v: Array, axis: int) -> Array:
        return v.reshape(*v.shape[:axis], flat.size, *v.shape[axis + lanes :])

    wide = jax.tree.map(lambda a: join(a, 1), rows)
    values = jax.tree.map(lambda v: join(v, 0), row)
    wide = _write_lanes(wide, flat, values, active.reshape(-1))
    return jax.tree.map(lambda a, old: a.reshape(old.shape), wide, rows)


def put(array: Array, value: Array, where: tuple[Whole | int, ...]) -> Array:
    """Write one entry, without a scatter, which would not fit into one kernel."""
    start = (*where, *[0] * (array.ndim - len(where)))
    update = value.astype(array.dtype).reshape((1,) * len(where) + array.shape[len(where) :])
    start = tuple(jnp.asarray(k, jnp.int32) for k in start)
    return jax.lax.dynamic_update_slice(array, update, start)


def _write_lanes(rows: Rows, n: Whole, row: Rows, active: Flag) -> Rows:
    """Write all lanes of a row at once if the lanes are at nearby rows, else lane by lane."""
    low = jnp.min(jnp.where(active, n, jnp.iinfo(jnp.int32).max))
    high = jnp.max(jnp.where(active, n, -1))
    together = high - low < MAX_SLABS

    def slab(state: tuple) -> tuple:
        r, tape = state

        def blend(a: Array, v: Array) -> Array:
            old = jax.lax.dynamic_index_in_dim(a, r, 0, keepdims=False)
            here = jnp.reshape(n == r, n.shape + (1,) * (v.ndim - 1))
            return put(a, jnp.where(here, v, old), (r,))

        return r + 1, jax.tree.map(blend, tape, row)

    def single(state: tuple) -> tuple:
        j, tape = state
        k = jax.lax.dynamic_index_in_dim(n, j, 0, keepdims=False)

        def one(a: Array, v: Array) -> Array:
            return put(a, jax.lax.dynamic_index_in_dim(v, j, 0, keepdims=False), (k, j))

        return j + 1, jax.tree.map(one, tape, row)

    last = jnp.where(together, high, low - 1)
    rows = jax.lax.while_loop(lambda s: s[0] <= last, slab, (low, rows))[1]
    first = jnp.where(together, n.size, 0).astype(jnp.int32)
    return jax.lax.while_loop(lambda s: s[0] < n.size, single, (first, rows))[1]


def write_end(rows: Rows, n: Whole, at: At) -> Rows:
    """The final state as the row `n` of each lane."""
    blank, whole = jnp.zeros_like(at.tau), jnp.zeros_like(n)
    members = tuple(whole for _ in rows.member)
    aux = jax.tree.map(lambda v: jnp.zeros(v.shape[1:], v.dtype), rows.aux)
    final = Rows(
        tau=at.tau, w=at.w, i=at.i, h=blank, kind=whole + FLOW, member=members, z=at.z, aux=aux
    )
    return write(rows, n, final, jnp.ones_like(n, bool))
