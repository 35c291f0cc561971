"""Tangent and adjoint sweeps over the recorded rows, with excursions to save times.

No decisions are made here: all of them are in the recorded rows. The cost is proportional to the
number of rows used, not to the size of the buffer, with and without lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..base.batching import lane_shape, nest
from ..base.leaves import Leaves
from ..base.types import Array, Aval
from .arguments import AdjointArgs, Group, LinearArgs, Sweep, put
from .paths import Marks, Path, Pointers, choose
from .rows import carried, cotangent, tangent


def tangent_sweep(*args: Array, sweep: Sweep) -> list[Array]:
    """ds_{k+1} = J F (s_k, theta) (ds_k, dtheta) (M9): all rows of ds, its end, and its reads."""
    given = LinearArgs.of(sweep, args)
    shape = lane_shape(args, LinearArgs.row_flags(sweep), sweep.levels)
    path = Path(sweep, shape, given.fixed, given.visits)
    ds0 = tuple(given.ds0.broadcast(shape))

    def lane(ds: Leaves, now: list) -> tuple[Leaves, Leaves]:
        marks, states, rows, visits, fixed, theta, dtheta = now
        marks = Marks(*marks)
        row = path.row(marks, rows, fixed, visits)
        new = tangent(sweep.spec, sweep.masks, row, tuple(states), tuple(theta), ds, tuple(dtheta))
        kept = new if marks.read is None else choose(marks.read, ds, new)
        return (kept if marks.live is None else choose(marks.live, kept, ds)), new

    constant = (given.fixed, given.theta, given.dtheta)
    step = path.mapped(lane, (given.states, given.rows, given.visits), constant)
    states, rows, visits = map(path.reader, (given.states, given.rows, given.visits))

    def body(state: tuple) -> tuple:
        here, ds, out = state
        item, after = path.forward(here, visits)
        entries = [states(item.row), rows(item.row), item.visited]
        ds, new = step(ds, [item.marks, *entries, *(group.values for group in constant)])
        return after, ds, _stored(path, here, after, ds, new, out)

    last, length = path.size(), given.states.values[0].shape[0]
    first = (path.first(), ds0, _room(path, length, ds0))
    _, ds, out = jax.lax.while_loop(lambda s: s[0].items < last, body, first)
    of_rows, of_reads = out if path.shared else _sorted_out(path, length, out[0], ds0)
    return [*of_rows, *ds, *(v[: path.times] for v in of_reads)]


def adjoint_sweep(*args: Array, sweep: Sweep) -> list[Array]:
    """lam_k = c_k + J_s F^T lam_{k+1}, mu = sum J_theta F^T lam_{k+1} (M10): (lam_0, mu)."""
    given = AdjointArgs.of(sweep, args)
    shape = lane_shape(args, AdjointArgs.row_flags(sweep), sweep.levels)
    path = Path(sweep, shape, given.fixed, given.visits)
    lam = tuple(given.end_cotangents.broadcast(shape))
    mu = _no_gradient(sweep, given.theta, shape)

    def lane(carry: tuple, now: list) -> tuple:
        lam, mu, held = carry
        marks, states, rows, of_row, visits, of_read, fixed, theta = now
        marks, here = Marks(*marks), tuple(states)
        row = path.row(marks, rows, fixed, visits)
        into = add(lam, of_row) if of_row else lam
        if marks.read is not None:
            into = choose(marks.read, tuple(of_read), into)
        ds, dtheta, back = cotangent(sweep.spec, sweep.masks, row, here, tuple(theta), into, held)
        if marks.read is not None:
            ds, back = choose(marks.read, add(lam, ds), ds), choose(marks.read, held, back)
        if marks.live is not None:  # a lane with fewer rows only starts at its own end
            ds, back = choose(marks.live, ds, lam), choose(marks.live, back, here[: len(held)])
            dtheta = tuple(jnp.where(marks.live, d, 0.0) for d in dtheta)
        return ds, add(mu, dtheta), back

    seeds = (given.row_cotangents, given.visits, given.read_cotangents)
    constant = (given.fixed, given.theta)
    step = path.mapped(lane, (given.states, given.rows, *seeds), constant)
    states, rows = path.reader(given.states), path.reader(given.rows)
    of_rows, visits, of_reads = map(path.reader, seeds)

    def body(state: tuple) -> tuple:
        here, carry = state
        item, before = path.backward(here, visits)
        entries = [states(item.row), rows(item.row), of_rows(here.row), item.visited]
        entries.append(of_reads(item.visit))
        return before, step(carry, [item.marks, *entries, *(group.values for group in constant)])

    end = path.last()
    ends = states(end.row)
    if path.shared:
        ends = given.states.with_values(ends).broadcast(shape)
    carry = (lam, mu, carried(sweep.spec, tuple(ends)))
    lam, mu, _ = jax.lax.while_loop(lambda s: s[0].items > 0, body, (end, carry))[1]
    of_first = given.row_cotangents.with_values(v[0] for v in given.row_cotangents.values)
    first = of_first.broadcast(shape)
    return [*(add(lam, first) if first else lam), *mu]


def add(a: Iterable[Array], b: Iterable[Array]) -> Leaves:
    return tuple(u + v for u, v in zip(a, b, strict=True))


def _no_gradient(sweep: Sweep, theta: Group, shape: tuple[int, ...]) -> Leaves:
    """Zeros for every parameter that the sweep differentiates by."""
    used = theta.only(sweep.masks[-1])
    return tuple(
        jnp.zeros((*shape, *v.shape[sum(flags) :]), v.dtype)
        for v, flags in zip(used.values, used.flags, strict=True)
    )


# -- where a tangent sweep stores its results -----------------------------------------------------


def _room(path: Path, length: int, ds0: Leaves) -> tuple:
    """Zeros for rows and excursions; in one list if every lane has its own order of them."""

    def blank(size: int) -> Leaves:
        return tuple(jnp.zeros((size, *v.shape), v.dtype) for v in ds0)

    if not path.shared:
        return (blank(length + path.times),)
    rows = tuple(put(o, v, 0) for o, v in zip(blank(length), ds0, strict=True))
    return rows, blank(path.times + 1) if path.sweep.reads else ()


def _stored(
    path: Path, here: Pointers, after: Pointers, ds: Leaves, new: Leaves, out: tuple
) -> tuple:
    """Write the result of a row or an excursion to its place."""
    if not path.shared:
        return (tuple(put(o, v, here.items) for o, v in zip(out[0], new, strict=True)),)
    rows = tuple(put(o, v, after.row) for o, v in zip(out[0], ds, strict=True))
    if here.visit is None or after.visit is None:
        return rows, ()
    place = jnp.where(after.visit > here.visit, here.visit, path.times)
    return rows, tuple(put(o, v, place) for o, v in zip(out[1], new, strict=True))


def _sorted_out(path: Path, length: int, items: Leaves, ds0: Leaves) -> tuple[Leaves, Leaves]:
    """The rows and the excursions from the list of both, for every lane."""
    depth = len(path.sweep.levels)
    n, _ = path.counts()
    flags = path.visits.flags[0]
    rows_of_visits = path.visits.values[0]
    if any(flags):
        rows_of_visits = jnp.moveaxis(rows_of_visits, 0, sum(flags))

    def lane(given: tuple, flat: list) -> tuple:
        items, ds0, n = given
        k, m = flat[0], jnp.arange(length)
        index = jnp.clip(m - 1 + jnp.searchsorted(k, m - 1, side="right"), 0)

        def rows(v: Array, start: Array) -> Array:
            inside = jnp.reshape((m <= n) & (m > 0), (length, *[1] * (v.ndim - 1)))
            return put(jnp.where(inside, v[index], 0.0), start, 0)

        read = jnp.where(k <= n, k + jnp.arange(k.shape[0]), 0)
        return tuple(map(rows, items, ds0)), tuple(v[read] for v in items)

    given = (tuple(jnp.moveaxis(v, 0, depth) for v in items), ds0, n)
    rows, reads = nest(lane, [(f,) for f in flags])(given, [rows_of_visits])
    back = lambda leaves: tuple(jnp.moveaxis(v, depth, 0) for v in leaves)
    return back(rows), back(reads)


# -- what a sweep returns, without tracing it -----------------------------------------------------

ShapeAndType = tuple[tuple[int, ...], Any]


def _leaf_shapes(group: Group, lanes: tuple[int, ...], rows: bool) -> list[ShapeAndType]:
    """The shapes and types of arrays in one row, with all levels."""
    return [
        ((*lanes, *v.shape[rows + sum(flags) :]), v.dtype)
        for v, flags in zip(group.values, group.flags, strict=True)
    ]


def tangent_shapes(sweep: Sweep, avals: Sequence[Aval]) -> list[ShapeAndType]:
    """The shapes and types that a tangent sweep returns, without tracing it."""
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
    """The shapes and types that an adjoint sweep returns, without tracing it."""
    given = AdjointArgs.of(sweep, avals)
    lanes = lane_shape(avals, AdjointArgs.row_flags(sweep), sweep.levels)
    ends = _leaf_shapes(given.states, lanes, rows=True)
    return [*ends, *_leaf_shapes(given.theta.only(sweep.masks[-1]), lanes, rows=False)]
