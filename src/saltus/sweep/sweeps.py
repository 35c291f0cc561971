"""Tangent and adjoint sweeps over the recorded rows; sweeps_with_saves.py has others.

Nothing here decides anything: it computes over rows that were decided before. The cost is
proportional to the rows used, never to the buffer, with and without lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..base.batching import lane_shape, nest
from ..base.leaves import Leaves
from ..base.types import Array, Aval
from ..simulate.record import Spec
from .arguments import AdjointArgs, Group, LinearArgs, Sweep, at, broadcast, put
from .rows import RowData, carried, cotangent, tangent


def row_data(spec: Spec, rows: Sequence[Array], fixed: Sequence[Array]) -> RowData:
    """One row of the groups `rows` and `fixed` as what it means."""
    model = spec.model
    h, kind, *rest = rows
    if model.families:
        member, *rest = rest
    else:
        member = jnp.zeros((), jnp.int32)
    _, backward, *iota = fixed
    i, z = rest[: model.n_i], rest[model.n_i : model.n_i + model.n_z]
    aux = rest[model.n_i + model.n_z :]
    return RowData(
        h, kind.astype(jnp.int32), member, tuple(i), tuple(z), tuple(aux), tuple(iota), backward
    )


def no_gradient(sweep: Sweep, theta: Group, shape: tuple[int, ...]) -> Leaves:
    """Zeros for every parameter that is differentiated."""
    used = theta.only(sweep.masks[-1])
    return tuple(
        jnp.zeros((*shape, *v.shape[sum(flags) :]), v.dtype)
        for v, flags in zip(used.values, used.flags, strict=True)
    )


def _batched(sweep: Sweep, *groups: Group) -> list[list]:
    """The flags that `nest` wants for a number without lanes, followed by these groups."""
    return [[False, *(g.at_level(d) for g in groups)] for d in range(len(sweep.levels))]


def tangent_sweep(sweep: Sweep, *args: Array) -> list[Array]:
    """ds_{k+1} = J F (s_k, theta) (ds_k, dtheta) (M9): all rows of ds, and its end."""
    given = LinearArgs.of(sweep, args)
    shape = lane_shape(args, LinearArgs.row_flags(sweep), sweep.levels)
    ds0 = tuple(given.ds0.broadcast(shape))

    def lane(ds: Leaves, now: list) -> Leaves:
        k, states, rows, fixed, theta, dtheta = now
        row = row_data(sweep.spec, rows, fixed)
        new = tangent(sweep.spec, sweep.masks, row, tuple(states), tuple(theta), ds, tuple(dtheta))
        if not sweep.levels:
            return new
        live = k < fixed[0]
        return tuple(jnp.where(live, a, b) for a, b in zip(new, ds, strict=True))

    constant = (given.fixed, given.theta, given.dtheta)
    step = nest(lane, _batched(sweep, given.states, given.rows, *constant))

    def body(state: tuple) -> tuple:
        k, ds, out = state
        here = [given.states.at_row(k), given.rows.at_row(k)]
        ds = step(ds, [k, *here, *(group.values for group in constant)])
        return k + 1, ds, tuple(put(o, v, k + 1) for o, v in zip(out, ds, strict=True))

    last = jnp.max(given.fixed.values[0])
    length = given.states.values[0].shape[0]
    out = tuple(put(jnp.zeros((length, *v.shape), v.dtype), v, jnp.zeros_like(last)) for v in ds0)
    state = (jnp.zeros_like(last), ds0, out)
    _, ds, out = jax.lax.while_loop(lambda s: s[0] < last, body, state)
    return [*out, *ds]


def adjoint_sweep(sweep: Sweep, *args: Array) -> list[Array]:
    """lam_k = c_k + J_s F^T lam_{k+1}, mu = sum J_theta F^T lam_{k+1} (M10): (lam_0, mu)."""
    given = AdjointArgs.of(sweep, args)
    shape = lane_shape(args, AdjointArgs.row_flags(sweep), sweep.levels)
    lam = tuple(given.end_cotangents.broadcast(shape))
    mu = no_gradient(sweep, given.theta, shape)

    def lane(state: tuple, now: list) -> tuple:
        lam, mu, held = state
        k, states, rows, fixed, theta, cotangents = now
        row, here = row_data(sweep.spec, rows, fixed), tuple(states)
        ds, dtheta, back = cotangent(sweep.spec, sweep.masks, row, here, tuple(theta), lam, held)
        n = fixed[0]
        held = tuple(jnp.where(k < n, a, b) for a, b in zip(back, here, strict=False))
        if sweep.levels or cotangents:  # lanes end at different rows
            ds = tuple(jnp.where(k < n, a, b) for a, b in zip(ds, lam, strict=True))
            dtheta = tuple(jnp.where(k < n, d, 0.0) for d in dtheta)
            cotangents = [jnp.where(k <= n, c, 0.0) for c in cotangents]
        return add(ds, cotangents) if cotangents else ds, add(mu, dtheta), held

    order = (given.states, given.rows, given.fixed, given.theta, given.row_cotangents)
    step = nest(lane, _batched(sweep, *order))

    def body(state: tuple) -> tuple:
        k, carry = state
        here = [given.states.at_row(k), given.rows.at_row(k)]
        now = given.row_cotangents.at_row(k)
        return k - 1, step(carry, [k, *here, given.fixed.values, given.theta.values, now])

    last = jnp.max(given.fixed.values[0])
    first = last if sweep.rows_used else last - 1  # the end has a cotangent among the rows, too
    ends = tuple(
        broadcast(at(v, last), flags, shape) for v, flags in zip(*given.states, strict=True)
    )
    carry = (lam, mu, carried(sweep.spec, ends))
    lam, mu, _ = jax.lax.while_loop(lambda s: s[0] >= 0, body, (first, carry))[1]
    return [*lam, *mu]


def add(a: Iterable[Array], b: Iterable[Array]) -> Leaves:
    return tuple(u + v for u, v in zip(a, b, strict=True))


ShapeAndType = tuple[tuple[int, ...], Any]


def _leaf_shapes(group: Group, lanes: tuple[int, ...], rows: bool) -> list[ShapeAndType]:
    """What arrays have in one row, with all levels."""
    return [
        ((*lanes, *v.shape[rows + sum(flags) :]), v.dtype)
        for v, flags in zip(group.values, group.flags, strict=True)
    ]


def tangent_shapes(sweep: Sweep, avals: Sequence[Aval]) -> list[ShapeAndType]:
    """What a tangent sweep returns, without tracing it."""
    given = LinearArgs.of(sweep, avals)
    lanes = lane_shape(avals, LinearArgs.row_flags(sweep), sweep.levels)
    ends = _leaf_shapes(given.states, lanes, rows=True)
    length = given.states.values[0].shape[0]
    out = [*(((length, *shape), dtype) for shape, dtype in ends), *ends]
    if sweep.reads:
        times = given.visits.values[0].shape[0]
        out += [((times, *shape), dtype) for shape, dtype in ends]
    return out


def adjoint_shapes(sweep: Sweep, avals: Sequence[Aval]) -> list[ShapeAndType]:
    """What an adjoint sweep returns, without tracing it."""
    given = AdjointArgs.of(sweep, avals)
    lanes = lane_shape(avals, AdjointArgs.row_flags(sweep), sweep.levels)
    ends = _leaf_shapes(given.states, lanes, rows=True)
    return [*ends, *_leaf_shapes(given.theta.only(sweep.masks[-1]), lanes, rows=False)]
