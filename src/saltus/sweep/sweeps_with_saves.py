"""Sweeps that leave the rows for excursions to save times.

An excursion starts where its row starts and ends at a save time (simulate/save_times.py); the sweep
then goes on from where it left. Two pointers say where it is: the next row, and the next
excursion. Lanes with rows of their own have pointers of their own; columns of one Jacobian share
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..base.batching import lane_shape, nest
from ..base.leaves import Leaves
from ..base.types import Array, Flag, Whole
from ..simulate.record import READ, approach_kind
from .arguments import AdjointArgs, Group, LinearArgs, Sweep, at, broadcast, put
from .rows import RowData, carried, cotangent, tangent
from .sweeps import add, no_gradient, row_data


class _Lookup(NamedTuple):
    """Arrays with rows: as they are given, and with the axes of their lanes before the rows."""

    given: Group
    lanes_first: Group

    @staticmethod
    def of(group: Group) -> _Lookup:
        moved = [
            jnp.moveaxis(v, 0, sum(flags)) if any(flags) else v
            for v, flags in zip(group.values, group.flags, strict=True)
        ]
        return _Lookup(group, group.with_values(moved))

    @property
    def length(self) -> int:
        return self.given.values[0].shape[0]

    def at(self, path: _Path, pointer: Whole) -> list[Array]:
        """The entries at a pointer, each with the levels it has."""
        if path.shared:
            return self.given.at_row(pointer)
        return [
            nest(lambda p, w: at(w[0], p), [(f,) for f in flags])(pointer, [v])
            for v, flags in zip(*self.lanes_first, strict=True)
        ]


class _Path(NamedTuple):
    """The order of rows and excursions, which all lanes may share."""

    sweep: Sweep
    shape: tuple[int, ...]
    fixed: Group
    visits: _Lookup

    @property
    def times(self) -> int:
        return self.visits.length

    @property
    def shared(self) -> bool:
        """Whether all lanes walk along the same rows."""
        return not any(self.fixed.flags[0]) and not any(self.visits.given.flags[0])

    def ends(self) -> tuple[Whole, Whole]:
        """How many rows and excursions there are, in the shape of the pointers."""
        n, k = self.fixed.values[0], self.visits.given.values[0]
        count = jnp.sum(k < jnp.iinfo(jnp.int32).max, axis=0).astype(jnp.int32)
        n = n.astype(jnp.int32)
        if self.shared:
            return n, count
        n = broadcast(n, self.fixed.flags[0], self.shape)
        return n, broadcast(count, self.visits.given.flags[0], self.shape)

    def levels(self, looked_up: Sequence[_Lookup], constant: Sequence[Group]) -> list[list]:
        """Which arguments of a lane are batched: two flags, entries at pointers, whole groups."""
        own = not self.shared

        def flags(depth: int) -> list:
            entries = [
                [True] * len(v.given.values) if own else v.given.at_level(depth) for v in looked_up
            ]
            return [own, own, *entries, *(group.at_level(depth) for group in constant)]

        return [flags(depth) for depth in range(len(self.sweep.levels))]

    def row(self, read: Flag, rows: list, fixed: list, visits: list) -> RowData:
        """A row, or from its start an excursion."""
        row = row_data(self.sweep.spec, rows, fixed)
        _, which, short, *aux = visits
        brief = jnp.asarray(approach_kind(len(self.sweep.spec.model.actions)), jnp.int32)
        return row._replace(
            kind=jnp.where(read, jnp.where(short, brief, READ), row.kind),
            member=jnp.where(read, which, row.member),
            aux=_choose(read, tuple(aux), row.aux),
        )


def _choose(which: Flag, a: Leaves, b: Leaves) -> Leaves:
    return tuple(jnp.where(which, u, v) for u, v in zip(a, b, strict=True))


def tangent_walk(sweep: Sweep, *args: Array) -> list[Array]:
    """The tangent sweep (M9): all rows of ds, its end, and ds at the save times."""
    given = LinearArgs.of(sweep, args)
    looked_up = [_Lookup.of(g) for g in (given.states, given.rows, given.visits)]
    states, rows, visits = looked_up
    shape = lane_shape(args, LinearArgs.row_flags(sweep), sweep.levels)
    path = _Path(sweep, shape, given.fixed, visits)
    ds0 = tuple(given.ds0.broadcast(shape))

    def lane(ds: Leaves, now: list) -> tuple[Leaves, Leaves]:
        read, live, states, rows, visits, fixed, theta, dtheta = now
        row = path.row(read, rows, fixed, visits)
        new = tangent(sweep.spec, sweep.masks, row, tuple(states), tuple(theta), ds, tuple(dtheta))
        return _choose(live & ~read, new, ds), new

    constant = (given.fixed, given.theta, given.dtheta)
    step = nest(lane, path.levels(looked_up, constant))
    n, count = path.ends()

    def body(state: tuple) -> tuple:
        q, r, j, ds, out = state
        here = visits.at(path, jnp.minimum(j, path.times - 1))
        read = (j < path.times) & (here[0] == r)
        live = read | (r < n)
        k = jnp.minimum(r, n)
        entries = [states.at(path, k), rows.at(path, k), here]
        ds, new = step(ds, [read, live, *entries, *(group.values for group in constant)])
        after = jnp.where(live & ~read, r + 1, r), jnp.where(read, j + 1, j)
        return q + 1, *after, ds, _stored(path, q, (j, *after), ds, new, out)

    start = jnp.zeros_like(n)
    last = jnp.max(n + count)
    state = (jnp.zeros_like(last), start, start, ds0, _room(path, states.length, ds0))
    _, _, _, ds, out = jax.lax.while_loop(lambda s: s[0] < last, body, state)
    of_rows, of_reads = out if path.shared else _sorted_out(path, states.length, out[0], ds0)
    return [*of_rows, *ds, *(v[: path.times] for v in of_reads)]


def _room(path: _Path, length: int, ds0: Leaves) -> tuple:
    """Room for rows and excursions; in one list where every lane has an order of its own."""

    def blank(size: int) -> Leaves:
        return tuple(jnp.zeros((size, *v.shape), v.dtype) for v in ds0)

    if not path.shared:
        return (blank(length + path.times),)
    rows = tuple(put(o, v, 0) for o, v in zip(blank(length), ds0, strict=True))
    return rows, blank(path.times + 1)


def _stored(path: _Path, q: Whole, pointers: tuple, ds: Leaves, new: Leaves, out: tuple) -> tuple:
    """What an item gave, written where it belongs."""
    if not path.shared:
        return (tuple(put(o, v, q) for o, v in zip(out[0], new, strict=True)),)
    before, r, j = pointers
    rows = tuple(put(o, v, r) for o, v in zip(out[0], ds, strict=True))
    place = jnp.where(j > before, before, path.times)
    return rows, tuple(put(o, v, place) for o, v in zip(out[1], new, strict=True))


def _sorted_out(path: _Path, length: int, items: Leaves, ds0: Leaves) -> tuple[Leaves, Leaves]:
    """Rows and excursions out of the lists of items, for every lane."""
    depth = len(path.sweep.levels)
    n, _ = path.ends()
    visits = path.visits.lanes_first

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
    rows, reads = nest(lane, [(f,) for f in visits.flags[0]])(given, [visits.values[0]])
    back = lambda leaves: tuple(jnp.moveaxis(v, depth, 0) for v in leaves)
    return back(rows), back(reads)


def adjoint_walk(sweep: Sweep, *args: Array) -> list[Array]:
    """The adjoint sweep (M10), with cotangents at save times: (lam_0, mu)."""
    given = AdjointArgs.of(sweep, args)
    seeds = (given.row_cotangents, given.read_cotangents)
    looked_up = [_Lookup.of(g) for g in (given.states, given.rows, given.visits, *seeds)]
    states, rows, visits, row_cotangents, read_cotangents = looked_up
    shape = lane_shape(args, AdjointArgs.row_flags(sweep), sweep.levels)
    path = _Path(sweep, shape, given.fixed, visits)
    lam = tuple(given.end_cotangents.broadcast(shape))
    mu = no_gradient(sweep, given.theta, shape)

    def lane(carry: tuple, now: list) -> tuple:
        lam, mu, held = carry
        read, live, states, rows, visits, of_row, of_read, fixed, theta = now
        row = path.row(read, rows, fixed, visits)
        into = _choose(read, tuple(of_read), add(lam, of_row) if of_row else lam)
        here, theta = tuple(states), tuple(theta)
        ds, dtheta, back = cotangent(sweep.spec, sweep.masks, row, here, theta, into, held)
        lam = _choose(live, _choose(read, add(lam, ds), ds), lam)
        mu = add(mu, tuple(jnp.where(live, d, 0.0) for d in dtheta))
        return lam, mu, _choose(live & ~read, back, held)

    constant = (given.fixed, given.theta)
    step = nest(lane, path.levels(looked_up, constant))
    n, count = path.ends()

    def body(state: tuple) -> tuple:
        q, r, j, carry = state
        visit = jnp.maximum(j - 1, 0)
        here = visits.at(path, visit)
        read = (j > 0) & (here[0] == r)
        live = read | (r > 0)
        back = jnp.where(read, r, jnp.maximum(r - 1, 0))
        entries = [states.at(path, back), rows.at(path, back), here]
        entries += [row_cotangents.at(path, r), read_cotangents.at(path, visit)]
        carry = step(carry, [read, live, *entries, *(group.values for group in constant)])
        return q - 1, back, jnp.where(read, j - 1, j), carry

    last = jnp.max(n + count)
    ends = states.at(path, n)
    if path.shared:
        ends = given.states.with_values(ends).broadcast(shape)
    state = (last, n, count, (lam, mu, carried(sweep.spec, tuple(ends))))
    lam, mu, _ = jax.lax.while_loop(lambda s: s[0] > 0, body, state)[3]
    first = [v[0] for v in given.row_cotangents.values]
    return [*(add(lam, first) if first else lam), *mu]
