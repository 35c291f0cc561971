"""Tangent and adjoint sweeps over the recorded rows; sweeps_with_saves.py has others.

Nothing here decides anything: it computes over rows that were decided before. The cost is
proportional to the rows used, never to the buffer, with and without lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..base.batching import Level, lane_shape, nest
from ..base.leaves import Leaves
from ..simulate.record import Spec
from .rows import Mask, RowData, carried, cotangent, tangent


class Sizes(NamedTuple):
    """How many flat arguments of each sort a sweep has, in this order."""

    states: int  # rows of the state at this level
    rows: int  # other rows: h, kind, member, i
    fixed: int  # n, iota, backward
    theta: int
    visits: int  # excursions to save times: their rows, places, kinds, aux
    first: int  # tape: s0; linear: ds0; adjoint: cotangents of all rows, if there are any
    second: int  # tape: ends; linear: dtheta of the last mask; adjoint: cotangents of the ends
    third: int  # tape: states at save times; adjoint: their cotangents


class Sweep(NamedTuple):
    """The static side of a sweep."""

    spec: Spec
    masks: tuple[Mask, ...]
    levels: tuple[Level, ...]
    rows_used: bool = True  # adjoint: whether rows other than the last have cotangents
    reads: bool = False  # whether there are excursions to save times

    def sizes(self, kind: str) -> Sizes:
        """For `kind` tape, linear or adjoint."""
        m = self.spec.model
        states, theta = 1 + m.n_w, m.n_theta + self.reads
        for mask in self.masks[:-1]:
            states, theta = 2 * states, theta + sum(mask)
        first = states if self.rows_used or kind != "adjoint" else 0
        second = sum(self.masks[-1]) if kind == "linear" else states
        aux = len(self.spec.stepper.aux(m))
        rows = 2 + m.families + m.n_i + m.n_z + aux
        visits = 3 + aux if self.reads else 0
        third = states if self.reads and kind != "linear" else 0
        return Sizes(states, rows, 2 + m.n_iota, theta, visits, first, second, third)


def cut(args: Any, sizes: Sequence[int]) -> list[list]:
    out, k = [], 0
    for size in sizes:
        out.append(list(args[k : k + size]))
        k += size
    return out


def row_flags(sizes: Sizes, kind: str) -> list[bool]:
    """Which flat arguments have rows."""
    return [
        *[True] * (sizes.states + sizes.rows),
        *[False] * (sizes.fixed + sizes.theta),
        *[True] * sizes.visits,
        *[kind == "adjoint"] * sizes.first,
        *[False] * sizes.second,
        *[True] * sizes.third,
    ]


def row_data(sweep: Sweep, rows: list, fixed: list) -> RowData:
    families = sweep.spec.model.families
    member = rows[2] if families else jnp.zeros((), jnp.int32)
    model = sweep.spec.model
    rest = tuple(rows[2 + families :])
    i, z = rest[: model.n_i], rest[model.n_i : model.n_i + model.n_z]
    aux, iota = rest[model.n_i + model.n_z :], tuple(fixed[2:])
    return RowData(rows[0], rows[1].astype(jnp.int32), member, i, z, aux, iota, fixed[1])


def at(array: Any, k: Any) -> Any:
    return jax.lax.dynamic_index_in_dim(array, k, 0, keepdims=False)


def put(array: Any, value: Any, k: Any) -> Any:
    return jax.lax.dynamic_update_index_in_dim(array, value.astype(array.dtype), k, 0)


def wide(value: Any, position: int, shape: tuple[int, ...], levels: tuple[Level, ...]) -> Any:
    """A flat argument broadcast to all lanes."""
    have = [lv[position] for lv in reversed(levels)]
    if all(have):
        return value
    lead = sum(have)
    leaf = jnp.shape(value)[lead:]
    middle = [n if h else 1 for n, h in zip(shape, have, strict=True)]
    return jnp.broadcast_to(jnp.reshape(value, (*middle, *leaf)), (*shape, *leaf))


def no_gradient(sweep: Sweep, theta: list, first: int, shape: tuple[int, ...]) -> Leaves:
    """Zeros for every parameter that is differentiated."""
    return tuple(
        jnp.zeros((*shape, *v.shape[sum(lv[first + k] for lv in sweep.levels) :]), v.dtype)
        for k, (v, used) in enumerate(zip(theta, sweep.masks[-1], strict=True))
        if used
    )


def tangent_sweep(sweep: Sweep, *args: Any) -> list:
    """ds_{k+1} = J F (s_k, theta) (ds_k, dtheta) (M9): all rows of ds, and its end."""
    sizes = sweep.sizes("linear")
    flags = row_flags(sizes, "linear")
    states, rows, fixed, theta, _, ds0, dtheta, _ = cut(args, sizes)
    shape = lane_shape(args, flags, sweep.levels)
    first = sum(sizes[:5])
    ds0 = [wide(v, first + j, shape, sweep.levels) for j, v in enumerate(ds0)]

    def lane(ds: Leaves, flat: list) -> Leaves:
        states, rows, fixed, theta, _, _, dtheta, _ = cut(flat[1:], sizes._replace(first=0))
        row = row_data(sweep, rows, fixed)
        new = tangent(sweep.spec, sweep.masks, row, tuple(states), tuple(theta), ds, tuple(dtheta))
        if not sweep.levels:
            return new
        live = flat[0] < fixed[0]
        return tuple(jnp.where(live, a, b) for a, b in zip(new, ds, strict=True))

    levels = [(False, *lv[:first], *lv[first + sizes.first :]) for lv in sweep.levels]
    step = nest(lane, levels)

    def body(state: tuple) -> tuple:
        k, ds, out = state
        here = [at(v, k) for v in (*states, *rows)]
        ds = step(ds, [k, *here, *fixed, *theta, *dtheta])
        return k + 1, ds, tuple(put(o, v, k + 1) for o, v in zip(out, ds, strict=True))

    last = jnp.max(fixed[0])
    out = tuple(
        put(jnp.zeros((states[0].shape[0], *v.shape), v.dtype), v, jnp.zeros_like(last))
        for v in ds0
    )
    state = (jnp.zeros_like(last), tuple(ds0), out)
    _, ds, out = jax.lax.while_loop(lambda s: s[0] < last, body, state)
    return [*out, *ds]


def adjoint_sweep(sweep: Sweep, *args: Any) -> list:
    """lam_k = c_k + J_s F^T lam_{k+1}, mu = sum J_theta F^T lam_{k+1} (M10): (lam_0, mu)."""
    sizes = sweep.sizes("adjoint")
    flags = row_flags(sizes, "adjoint")
    states, rows, fixed, theta, _, cots, ends, _ = cut(args, sizes)
    shape = lane_shape(args, flags, sweep.levels)
    base = sum(sizes[:6])
    lam = tuple(wide(v, base + j, shape, sweep.levels) for j, v in enumerate(ends))
    mu = no_gradient(sweep, theta, sum(sizes[:3]), shape)

    def lane(state: tuple, flat: list) -> tuple:
        lam, mu, held = state
        states, rows, fixed, theta, _, cots, _, _ = cut(flat[1:], sizes._replace(second=0))
        row, here = row_data(sweep, rows, fixed), tuple(states)
        ds, dtheta, back = cotangent(sweep.spec, sweep.masks, row, here, tuple(theta), lam, held)
        k, n = flat[0], fixed[0]
        held = tuple(jnp.where(k < n, a, b) for a, b in zip(back, here, strict=False))
        if sweep.levels or cots:  # lanes end at different rows
            ds = tuple(jnp.where(k < n, a, b) for a, b in zip(ds, lam, strict=True))
            dtheta = tuple(jnp.where(k < n, d, 0.0) for d in dtheta)
            cots = [jnp.where(k <= n, c, 0.0) for c in cots]
        return add(ds, cots) if cots else ds, add(mu, dtheta), held

    step = nest(lane, [(False, *lv[:base]) for lv in sweep.levels])

    def body(state: tuple) -> tuple:
        k, carry = state
        here = [at(v, k) for v in (*states, *rows)]
        now = [at(v, k) for v in cots]
        return k - 1, step(carry, [k, *here, *fixed, *theta, *now])

    last = jnp.max(fixed[0])
    first = last if cots else last - 1  # the end has a cotangent among the rows, too
    ends = tuple(wide(at(v, last), j, shape, sweep.levels) for j, v in enumerate(states))
    carry = (lam, mu, carried(sweep.spec, ends))
    lam, mu, _ = jax.lax.while_loop(lambda s: s[0] >= 0, body, (first, carry))[1]
    return [*lam, *mu]


def add(a: Any, b: Any) -> Leaves:
    return tuple(u + v for u, v in zip(a, b, strict=True))


def result_shapes(sweep: Sweep, kind: str, avals: Any) -> list[tuple[tuple[int, ...], Any]]:
    """(shape, dtype) of what a sweep returns, without tracing it."""
    sizes = sweep.sizes(kind)
    flags = row_flags(sizes, kind)
    lanes = lane_shape(avals, flags, sweep.levels)
    states, _, _, theta, *_ = cut(list(enumerate(avals)), sizes)

    def leaf(k: int, aval: Any) -> tuple[int, ...]:
        return aval.shape[flags[k] + sum(level[k] for level in sweep.levels) :]

    ends = [((*lanes, *leaf(k, v)), v.dtype) for k, v in states]
    if kind == "linear":
        size = states[0][1].shape[0]
        out = [*(((size, *shape), dtype) for shape, dtype in ends), *ends]
        if sweep.reads:
            times = avals[sum(sizes[:4])].shape[0]
            out += [((times, *shape), dtype) for shape, dtype in ends]
        return out
    used = [kv for kv, m in zip(theta, sweep.masks[-1], strict=True) if m]
    return [*ends, *(((*lanes, *leaf(k, v)), v.dtype) for k, v in used)]
