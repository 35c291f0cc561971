"""The arguments of the three sweep primitives: static ones, and arrays in named groups.

A primitive of JAX takes a flat list of arrays. Here the list is divided into named groups, with one
class for each primitive; each array has flags that say which batch levels it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from ..base.batching import Level
from ..base.types import Array, Whole
from ..simulate.record import Spec
from .rows import Mask

T = TypeVar("T")


class Sweep(NamedTuple):
    """The static side of a sweep."""

    spec: Spec
    masks: tuple[Mask, ...]
    levels: tuple[Level, ...]
    rows_used: bool = True  # adjoint: whether rows other than the last have cotangents
    reads: bool = False  # whether there are excursions to save times

    def recorded_sizes(self) -> tuple[int, int, int, int, int]:
        """The sizes of the five groups that come first in all three primitives."""
        m = self.spec.model
        states, theta = 1 + m.n_w, m.n_theta + self.reads
        for mask in self.masks[:-1]:
            states, theta = 2 * states, theta + sum(mask)
        aux = len(self.spec.stepper.aux(m))
        rows = 2 + m.families + m.n_i + m.n_z + aux
        return states, rows, 2 + m.n_iota, theta, 3 + aux if self.reads else 0


class Group(NamedTuple):
    """Some arrays, each with flags: whether it has each batch level, the innermost first."""

    values: list[Any]
    flags: list[tuple[bool, ...]]

    def only(self, mask: Sequence[bool]) -> Group:
        kept = [(v, f) for v, f, m in zip(self.values, self.flags, mask, strict=True) if m]
        return Group([v for v, _ in kept], [f for _, f in kept])

    def with_values(self, values: Iterable[Any]) -> Group:
        return Group(list(values), self.flags)

    def joined(self, other: Group) -> Group:
        return Group([*self.values, *other.values], [*self.flags, *other.flags])

    def at_row(self, k: Whole) -> list[Array]:
        return [at(v, k) for v in self.values]

    def at_level(self, depth: int) -> list[bool]:
        """Which of the arrays have the level of this depth."""
        return [f[depth] for f in self.flags]

    def broadcast(self, shape: tuple[int, ...]) -> list[Array]:
        """The arrays, which have no row axis, with all levels."""
        return [broadcast(v, f, shape) for v, f in zip(self.values, self.flags, strict=True)]


class TapeArgs(NamedTuple, Generic[T]):
    """The arguments of `tape_p`: what was recorded, and what it depends on."""

    states: T  # at the starts of rows: (tau, *w), at higher levels with their tangents
    rows: T  # what was decided about each row: h, kind, member, i, z, aux
    fixed: T  # the number of rows, backward, iota
    theta: T  # parameters, and save times if there are any
    visits: T  # excursions to save times: their rows, places, kinds, aux
    s0: T  # the state at the start of the first row
    ends: T  # the state at the end of the last row
    reads: T  # states at save times

    @staticmethod
    def sizes(sweep: Sweep) -> TapeArgs[int]:
        states, *others = sweep.recorded_sizes()
        reads = states if sweep.reads else 0
        return TapeArgs(states, *others, s0=states, ends=states, reads=reads)

    @staticmethod
    def of(sweep: Sweep, args: Sequence[Any]) -> TapeArgs[Group]:
        return TapeArgs(*_groups(sweep, args, TapeArgs.sizes(sweep)))

    @staticmethod
    def row_flags(sweep: Sweep) -> list[bool]:
        """Which arrays have rows, or save times, as their first axis."""
        own = TapeArgs(*_RECORDED_WITH_ROWS, s0=False, ends=False, reads=True)
        return for_each(TapeArgs.sizes(sweep), own)


class LinearArgs(NamedTuple, Generic[T]):
    """The arguments of `linear_p`, the tangent sweep; the first five are those of `TapeArgs`."""

    states: T
    rows: T
    fixed: T
    theta: T
    visits: T
    ds0: T  # the tangent of the start
    dtheta: T  # tangents of the parameters that the last mask selects

    @staticmethod
    def sizes(sweep: Sweep) -> LinearArgs[int]:
        states, *others = sweep.recorded_sizes()
        return LinearArgs(states, *others, ds0=states, dtheta=sum(sweep.masks[-1]))

    @staticmethod
    def of(sweep: Sweep, args: Sequence[Any]) -> LinearArgs[Group]:
        return LinearArgs(*_groups(sweep, args, LinearArgs.sizes(sweep)))

    @staticmethod
    def row_flags(sweep: Sweep) -> list[bool]:
        """Which arrays have rows as their first axis."""
        own = LinearArgs(*_RECORDED_WITH_ROWS, ds0=False, dtheta=False)
        return for_each(LinearArgs.sizes(sweep), own)


class AdjointArgs(NamedTuple, Generic[T]):
    """The arguments of `adjoint_p`, the adjoint sweep; the first five are those of `TapeArgs`."""

    states: T
    rows: T
    fixed: T
    theta: T
    visits: T
    row_cotangents: T  # of the starts of all rows, if they have any
    end_cotangents: T
    read_cotangents: T  # of the states at save times

    @staticmethod
    def sizes(sweep: Sweep) -> AdjointArgs[int]:
        states, *others = sweep.recorded_sizes()
        return AdjointArgs(
            states, *others, row_cotangents=states if sweep.rows_used else 0,
            end_cotangents=states, read_cotangents=states if sweep.reads else 0,
        )  # fmt: skip

    @staticmethod
    def of(sweep: Sweep, args: Sequence[Any]) -> AdjointArgs[Group]:
        return AdjointArgs(*_groups(sweep, args, AdjointArgs.sizes(sweep)))

    @staticmethod
    def row_flags(sweep: Sweep) -> list[bool]:
        """Which arrays have rows, or save times, as their first axis."""
        own = AdjointArgs(
            *_RECORDED_WITH_ROWS, row_cotangents=True, end_cotangents=False, read_cotangents=True
        )
        return for_each(AdjointArgs.sizes(sweep), own)


_RECORDED_WITH_ROWS = (True, True, False, False, True)  # states, rows, fixed, theta, visits


def for_each(sizes: Iterable[int], values: Iterable[T]) -> list[T]:
    """For each array, the value of the group that it belongs to."""
    return [v for size, v in zip(sizes, values, strict=True) for _ in range(size)]


def flattened(groups: Iterable[Group]) -> tuple[list[Any], list[tuple[bool, ...]]]:
    """The arrays of all groups in order, and the levels of each."""
    groups = list(groups)
    return [v for g in groups for v in g.values], [f for g in groups for f in g.flags]


def _groups(sweep: Sweep, args: Sequence[Any], sizes: Iterable[int]) -> list[Group]:
    args = list(args)
    flags = list(zip(*sweep.levels, strict=True)) if sweep.levels else [()] * len(args)
    groups, k = [], 0
    for size in sizes:
        groups.append(Group(args[k : k + size], flags[k : k + size]))
        k += size
    return groups


def at(array: Array, k: Whole) -> Array:
    return jax.lax.dynamic_index_in_dim(array, k, 0, keepdims=False)


def put(array: Array, value: Array, k: Whole | int) -> Array:
    return jax.lax.dynamic_update_index_in_dim(array, value.astype(array.dtype), k, 0)


def broadcast(value: Array, flags: tuple[bool, ...], shape: tuple[int, ...]) -> Array:
    """An array without a row axis that has some of the levels, broadcast to all of them."""
    have = flags[::-1]
    if all(have):
        return value
    leaf = jnp.shape(value)[sum(have) :]
    middle = [n if h else 1 for n, h in zip(shape, have, strict=True)]
    return jnp.broadcast_to(jnp.reshape(value, (*middle, *leaf)), (*shape, *leaf))
