"""Sweeps that leave the rows for excursions to save times.

An excursion starts where its row starts and ends at a save time (simulate/save_times.py); the sweep
then goes on from where it left. Two pointers say where it is: the next row, and the next
excursion. Lanes with rows of their own have pointers of their own; columns of one Jacobian share
them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..base.batching import lane_shape, nest
from ..base.leaves import Leaves
from ..simulate.record import READ, approach_kind
from .rows import RowData, carried, cotangent, tangent
from .sweeps import Sizes, Sweep, add, at, cut, no_gradient, put, row_data, row_flags, wide


class _Path(NamedTuple):
    """Everything that stays as it is while a sweep walks."""

    sweep: Sweep
    sizes: Sizes
    args: Any
    own: list  # the same with lanes first, then rows
    shape: tuple[int, ...]

    @staticmethod
    def of(sweep: Sweep, kind: str, args: Any) -> _Path:
        sizes = sweep.sizes(kind)
        rows = row_flags(sizes, kind)
        depth = [sum(level[k] for level in sweep.levels) for k in range(len(args))]
        own = [
            jnp.moveaxis(v, 0, d) if row and d else v
            for v, row, d in zip(args, rows, depth, strict=True)
        ]
        return _Path(sweep, sizes, args, own, lane_shape(args, rows, sweep.levels))

    def group(self, name: str) -> list:
        return cut(self.args, self.sizes)[Sizes._fields.index(name)]

    def place(self, name: str) -> int:
        return sum(self.sizes[: Sizes._fields.index(name)])

    @property
    def times(self) -> int:
        return self.group("visits")[0].shape[0]

    @property
    def shared(self) -> bool:
        """Whether all lanes walk along the same rows."""
        n, k = self.place("fixed"), self.place("visits")
        return not any(lv[n] or lv[k] for lv in self.sweep.levels)

    def ends(self) -> tuple[Any, Any]:
        """How many rows and excursions there are, in the shape of the pointers."""
        n, k = self.group("fixed")[0], self.group("visits")[0]
        count = jnp.sum(k < jnp.iinfo(jnp.int32).max, axis=0).astype(jnp.int32)
        n = n.astype(jnp.int32)
        if self.shared:
            return n, count
        levels = self.sweep.levels
        n = wide(n, self.place("fixed"), self.shape, levels)
        return n, wide(count, self.place("visits"), self.shape, levels)

    def lookup(self, names: str, pointer: Any) -> list:
        """The entries of some groups at a pointer, each with the levels it has."""
        found = []
        for name in names.split():
            first = self.place(name)
            for k, v in enumerate(self.group(name)):
                if self.shared:
                    found.append(at(v, pointer))
                else:
                    has = [(lv[first + k],) for lv in self.sweep.levels]
                    found.append(
                        nest(lambda p, w: at(w[0], p), has)(pointer, [self.own[first + k]])
                    )
        return found

    def levels(self, names: str, looked_up: str, extra: int) -> list:
        """Which of the arguments of a lane are batched: `extra` ones first, then by groups."""
        out = []
        for level in self.sweep.levels:
            flags = [not self.shared] * extra
            for name in names.split():
                mine = cut(level, self.sizes)[Sizes._fields.index(name)]
                own = not self.shared and name in looked_up.split()
                flags += [True] * len(mine) if own else mine
            out.append(tuple(flags))
        return out


def _item(path: _Path, read: Any, rows: list, fixed: list, visits: list) -> RowData:
    """A row, or from its start an excursion."""
    row = row_data(path.sweep, rows, fixed)
    _, which, short, *aux = visits
    brief = jnp.asarray(approach_kind(len(path.sweep.spec.model.actions)), jnp.int32)
    return row._replace(
        kind=jnp.where(read, jnp.where(short, brief, READ), row.kind),
        member=jnp.where(read, which, row.member),
        aux=_choose(read, tuple(aux), row.aux),
    )


def _choose(which: Any, a: Leaves, b: Leaves) -> Leaves:
    return tuple(jnp.where(which, u, v) for u, v in zip(a, b, strict=True))


def tangent_walk(sweep: Sweep, *args: Any) -> list:
    """The tangent sweep (M9): all rows of ds, its end, and ds at the save times."""
    path = _Path.of(sweep, "linear", args)
    sizes, times = path.sizes, path.times
    first = path.place("first")
    ds0 = tuple(
        wide(v, first + j, path.shape, sweep.levels) for j, v in enumerate(path.group("first"))
    )

    def lane(ds: Leaves, flat: list) -> tuple[Leaves, Leaves]:
        read, live, *rest = flat
        states, rows, visits, fixed, theta, dtheta = cut(rest, counts)
        row = _item(path, read, rows, fixed, visits)
        state, theta = tuple(states), tuple(theta)
        new = tangent(sweep.spec, sweep.masks, row, state, theta, ds, tuple(dtheta))
        return _choose(live & ~read, new, ds), new

    names = "states rows visits fixed theta second"
    counts = [getattr(sizes, name) for name in names.split()]
    step = nest(lane, path.levels(names, "states rows visits", extra=2))
    given = [v for name in ("fixed", "theta", "second") for v in path.group(name)]
    n, count = path.ends()

    def body(state: tuple) -> tuple:
        q, r, j, ds, out = state
        here = path.lookup("visits", jnp.minimum(j, times - 1))
        read = (j < times) & (here[0] == r)
        live = read | (r < n)
        rows = path.lookup("states rows", jnp.minimum(r, n))
        ds, new = step(ds, [read, live, *rows, *here, *given])
        after = jnp.where(live & ~read, r + 1, r), jnp.where(read, j + 1, j)
        return q + 1, *after, ds, _stored(path, q, (j, *after), ds, new, out)

    start = jnp.zeros_like(n)
    last = jnp.max(n + count)
    state = (jnp.zeros_like(last), start, start, ds0, _room(path, ds0))
    _, _, _, ds, out = jax.lax.while_loop(lambda s: s[0] < last, body, state)
    rows, reads = out if path.shared else _sorted_out(path, out[0], ds0)
    return [*rows, *ds, *(v[:times] for v in reads)]


def _room(path: _Path, ds0: Leaves) -> tuple:
    """Room for rows and excursions; in one list where every lane has an order of its own."""
    length, times = path.group("states")[0].shape[0], path.times

    def blank(size: int) -> Leaves:
        return tuple(jnp.zeros((size, *v.shape), v.dtype) for v in ds0)

    if not path.shared:
        return (blank(length + times),)
    return tuple(put(o, v, 0) for o, v in zip(blank(length), ds0, strict=True)), blank(times + 1)


def _stored(path: _Path, q: Any, pointers: tuple, ds: Leaves, new: Leaves, out: Any) -> tuple:
    """What an item gave, written where it belongs."""
    if not path.shared:
        return (tuple(put(o, v, q) for o, v in zip(out[0], new, strict=True)),)
    before, r, j = pointers
    rows = tuple(put(o, v, r) for o, v in zip(out[0], ds, strict=True))
    place = jnp.where(j > before, before, path.times)
    return rows, tuple(put(o, v, place) for o, v in zip(out[1], new, strict=True))


def _sorted_out(path: _Path, items: Leaves, ds0: Leaves) -> tuple[Leaves, Leaves]:
    """Rows and excursions out of the lists of items, for every lane."""
    length, depth = path.group("states")[0].shape[0], len(path.sweep.levels)
    n, _ = path.ends()
    place = path.place("visits")
    have = [(lv[place],) for lv in path.sweep.levels]

    def lane(given: tuple, flat: list) -> tuple:
        items, ds0, n = given
        k, m = flat[0], jnp.arange(length)
        index = jnp.clip(m - 1 + jnp.searchsorted(k, m - 1, side="right"), 0)

        def rows(v: Any, start: Any) -> Any:
            inside = jnp.reshape((m <= n) & (m > 0), (length, *[1] * (v.ndim - 1)))
            return put(jnp.where(inside, v[index], 0.0), start, 0)

        read = jnp.where(k <= n, k + jnp.arange(k.shape[0]), 0)
        return tuple(map(rows, items, ds0)), tuple(v[read] for v in items)

    given = (tuple(jnp.moveaxis(v, 0, depth) for v in items), ds0, n)
    rows, reads = nest(lane, have)(given, [path.own[place]])
    back = lambda leaves: tuple(jnp.moveaxis(v, depth, 0) for v in leaves)
    return back(rows), back(reads)


def adjoint_walk(sweep: Sweep, *args: Any) -> list:
    """The adjoint sweep (M10), with cotangents at save times: (lam_0, mu)."""
    path = _Path.of(sweep, "adjoint", args)
    sizes, base = path.sizes, path.place("second")
    lam = tuple(
        wide(v, base + j, path.shape, sweep.levels) for j, v in enumerate(path.group("second"))
    )
    mu = no_gradient(sweep, path.group("theta"), path.place("theta"), path.shape)

    def lane(carry: tuple, flat: list) -> tuple:
        lam, mu, held = carry
        read, live, *rest = flat
        states, rows, visits, cots, coreads, fixed, theta = cut(rest, counts)
        row = _item(path, read, rows, fixed, visits)
        given = add(lam, cots) if cots else lam
        given = _choose(read, tuple(coreads), given)
        state, theta = tuple(states), tuple(theta)
        ds, dtheta, back = cotangent(sweep.spec, sweep.masks, row, state, theta, given, held)
        lam = _choose(live, _choose(read, add(lam, ds), ds), lam)
        mu = add(mu, tuple(jnp.where(live, d, 0.0) for d in dtheta))
        return lam, mu, _choose(live & ~read, back, held)

    names = "states rows visits first third fixed theta"
    counts = [getattr(sizes, name) for name in names.split()]
    step = nest(lane, path.levels(names, "states rows visits first third", extra=2))
    given = [v for name in ("fixed", "theta") for v in path.group(name)]
    n, count = path.ends()

    def body(state: tuple) -> tuple:
        q, r, j, carry = state
        visit = jnp.maximum(j - 1, 0)
        here = path.lookup("visits", visit)
        read = (j > 0) & (here[0] == r)
        live = read | (r > 0)
        back = jnp.where(read, r, jnp.maximum(r - 1, 0))
        rows = path.lookup("states rows", back)
        seeds = [*path.lookup("first", r), *path.lookup("third", visit)]
        carry = step(carry, [read, live, *rows, *here, *seeds, *given])
        return q - 1, back, jnp.where(read, j - 1, j), carry

    last = jnp.max(n + count)
    ends = path.lookup("states", n)
    if path.shared:
        ends = [wide(v, j, path.shape, sweep.levels) for j, v in enumerate(ends)]
    state = (last, n, count, (lam, mu, carried(sweep.spec, tuple(ends))))
    lam, mu, _ = jax.lax.while_loop(lambda s: s[0] > 0, body, state)[3]
    cots = path.group("first")
    return [*(add(lam, [v[0] for v in cots]) if cots else lam), *mu]
