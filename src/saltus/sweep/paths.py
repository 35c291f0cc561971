"""The order of rows and save times in a sweep, forward and backward.

Without save times all lanes use the same row numbers, and lanes with fewer rows ignore the others.
With save times a sweep also makes excursions: each starts where its row starts and ends at a save
time (simulate/save_times.py); the sweep then continues from the start of the row. Two pointers say
where it is: the next row, and the next excursion. Lanes with different rows then have their own
pointers; columns of one Jacobian share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp

from ..base.batching import nest
from ..base.leaves import Leaves
from ..base.types import Array, Flag, Whole
from ..simulate.record import READ, Spec, approach_kind
from .arguments import Group, Sweep, at, broadcast
from .rows import RowData

Reader = Callable[[Whole | None], list[Array]]  # reads arrays with a row axis at pointers


class Pointers(NamedTuple):
    """Where a sweep is, between two items (rows or excursions)."""

    items: Whole  # how many items come before
    row: Whole
    visit: Whole | None  # among the excursions, if there are any


class Item(NamedTuple):
    """One row, or one excursion from its start."""

    marks: list[Flag]  # the arguments of `Marks`, for each lane
    row: Whole
    visit: Whole | None
    visited: list[Array]  # what was recorded about the excursion


class Marks(NamedTuple):
    """What an item is in one lane."""

    live: Flag | None = None  # whether the lane has this item; None: every lane has it
    read: Flag | None = None  # whether the item is an excursion; None: it never is


class Path(NamedTuple):
    """All items of a sweep, in order."""

    sweep: Sweep
    shape: tuple[int, ...]
    fixed: Group
    visits: Group

    @property
    def times(self) -> int:
        return self.visits.values[0].shape[0]

    @property
    def shared(self) -> bool:
        """Whether all lanes have the same pointers."""
        return not self.sweep.reads or not (any(self.fixed.flags[0]) or any(self.visits.flags[0]))

    def counts(self) -> tuple[Whole, Whole]:
        """How many rows and excursions there are, in the shape of the pointers."""
        n, k = self.fixed.values[0].astype(jnp.int32), self.visits.values[0]
        count = jnp.sum(k < jnp.iinfo(jnp.int32).max, axis=0).astype(jnp.int32)
        if self.shared:
            return n, count
        n = broadcast(n, self.fixed.flags[0], self.shape)
        return n, broadcast(count, self.visits.flags[0], self.shape)

    def size(self) -> Whole:
        """The number of items in the lane that has most."""
        if not self.sweep.reads:
            return jnp.max(self.fixed.values[0])
        n, count = self.counts()
        return jnp.max(n + count)

    def first(self) -> Pointers:
        zero = jnp.zeros_like(self.size())
        if not self.sweep.reads:
            return Pointers(zero, zero, None)
        start = jnp.zeros_like(self.counts()[0])
        return Pointers(zero, start, start)

    def last(self) -> Pointers:
        size = self.size()
        if not self.sweep.reads:
            return Pointers(size, size, None)
        return Pointers(size, *self.counts())

    def forward(self, here: Pointers, read_visits: Reader) -> tuple[Item, Pointers]:
        """The next item, and the pointers after it."""
        q, r, j = here
        if j is None:
            return Item(self._rows_left(r), r, None, []), Pointers(q + 1, r + 1, None)
        n, _ = self.counts()
        visit = jnp.minimum(j, self.times - 1)
        visited = read_visits(visit)
        read = (j < self.times) & (visited[0] == r)
        live = read | (r < n)
        after = Pointers(q + 1, jnp.where(live & ~read, r + 1, r), jnp.where(read, j + 1, j))
        return Item([live, read], jnp.minimum(r, n), visit, visited), after

    def backward(self, here: Pointers, read_visits: Reader) -> tuple[Item, Pointers]:
        """The previous item, and the pointers before it."""
        q, r, j = here
        if j is None:
            return Item(self._rows_left(r - 1), r - 1, None, []), Pointers(q - 1, r - 1, None)
        visit = jnp.maximum(j - 1, 0)
        visited = read_visits(visit)
        read = (j > 0) & (visited[0] == r)
        back = jnp.where(read, r, jnp.maximum(r - 1, 0))
        before = Pointers(q - 1, back, jnp.where(read, j - 1, j))
        return Item([read | (r > 0), read], back, visit, visited), before

    def _rows_left(self, r: Whole) -> list[Flag]:
        return [r < self.fixed.values[0]] if self.sweep.levels else []

    def reader(self, group: Group) -> Reader:
        """A function that reads the arrays of a group, which have a row axis, at pointers."""
        if self.shared:
            return lambda pointer: [] if pointer is None else group.at_row(pointer)
        lanes_first = [
            jnp.moveaxis(v, 0, sum(flags)) if any(flags) else v
            for v, flags in zip(group.values, group.flags, strict=True)
        ]
        return lambda pointer: [
            nest(lambda p, w: at(w[0], p), [(f,) for f in flags])(pointer, [v])
            for v, flags in zip(lanes_first, group.flags, strict=True)
        ]

    def mapped(
        self, lane: Callable, at_pointers: Sequence[Group], constant: Sequence[Group]
    ) -> Callable:
        """`lane(carry, [marks, *entries, *constants])` for all lanes; a list for each group."""

        def flags(depth: int) -> list:
            entries = [
                g.at_level(depth) if self.shared else [True] * len(g.values) for g in at_pointers
            ]
            marks = [self.fixed.flags[0][depth]]
            if self.sweep.reads:
                marks = [not self.shared] * 2
            return [marks, *entries, *(g.at_level(depth) for g in constant)]

        return nest(lane, [flags(depth) for depth in range(len(self.sweep.levels))])

    def row(self, marks: Marks, rows: list, fixed: list, visits: list) -> RowData:
        """A row, or an excursion from its start."""
        row = row_data(self.sweep.spec, rows, fixed)
        if marks.read is None:
            return row
        _, which, short, *aux = visits
        brief = jnp.asarray(approach_kind(len(self.sweep.spec.model.actions)), jnp.int32)
        return row._replace(
            kind=jnp.where(marks.read, jnp.where(short, brief, READ), row.kind),
            member=jnp.where(marks.read, which, row.member),
            aux=choose(marks.read, tuple(aux), row.aux),
        )


def choose(which: Flag, a: Leaves, b: Leaves) -> Leaves:
    return tuple(jnp.where(which, u, v) for u, v in zip(a, b, strict=True))


def row_data(spec: Spec, rows: Sequence[Array], fixed: Sequence[Array]) -> RowData:
    """One row of the groups `rows` and `fixed` as named fields."""
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
