"""Lanes one after the other: compiled as one lane is, in a fraction of the time.

A loop over many lanes side by side is faster to run and takes five to fifteen times as long to
compile. Outside of `jit`, on a CPU, lanes are therefore computed in turn, until that has taken so
long that the other program would have paid for itself (`Budget`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .kernel import Program, compiled_kernel, platform_of
from .resumable import Work, zeros
from .types import Array, ClosedJaxpr, Flag, Tree, Treedef, Whole

COMPILE_RATIO = 8.0  # of compiling for lanes side by side, to compiling for one
FIRST_GUESS = 5e-5  # seconds for each lane, before any was timed


def in_turn(fn: Callable, axes: Sequence[int | None], results: Iterable[int]) -> Callable:
    """`fn` of flat arrays, one element of their axes after the other; results along other axes."""

    def call(*args: Array) -> list[Array]:
        lanes = [jnp.moveaxis(v, k, 0) for v, k in zip(args, axes, strict=True) if k is not None]

        def one(own: list[Array]) -> list[Array]:
            it = iter(own)
            given = [v if k is None else next(it) for v, k in zip(args, axes, strict=True)]
            return list(fn(*given))

        found = jax.lax.map(one, lanes)
        return [jnp.moveaxis(v, 0, k) for v, k in zip(found, results, strict=True)]

    return call


class Budget:
    """What lanes in turn have taken so far, beside what a program for all of them would take."""

    def __init__(self) -> None:
        self.compile_seconds = 0.0
        self.seconds = 0.0
        self.lanes = 0

    def suffices(self, lanes: int) -> bool:
        """Whether so many more lanes are better computed in turn."""
        each = self.seconds / self.lanes if self.lanes else FIRST_GUESS
        return self.seconds + each * lanes < COMPILE_RATIO * max(self.compile_seconds, 1.0)


class Kernel:
    """A program for lanes in turn, and one for lanes side by side where that pays."""

    def __init__(self, turns: Program, together: Program):
        self._turns, self._together = compiled_kernel(turns), compiled_kernel(together)
        self._budgets: dict[Hashable, Budget] = {}
        self._known: set[Hashable] = set()

    def __call__(self, lanes: int | None, *args: Array, **params: Any) -> list[Array]:
        """The results; `lanes` is their number, or None where they are not to be taken in turn."""
        if not lanes or platform_of(args) != "cpu":
            return self._together(*args, **params)
        key = tuple(sorted(params.items()))
        budget = self._budgets.setdefault(key, Budget())
        if not budget.suffices(lanes):
            return self._together(*args, **params)
        start = time.perf_counter()
        found = jax.block_until_ready(self._turns(*args, **params))
        seconds = time.perf_counter() - start
        shapes = key, tuple(jnp.shape(v) for v in args)
        if shapes in self._known:
            budget.seconds, budget.lanes = budget.seconds + seconds, budget.lanes + lanes
        else:
            self._known.add(shapes)
            budget.compile_seconds += seconds
        return found


class WorkInTurn(Work):
    """A loop for lanes one after the other; `one` is that for a single lane.

    `batched` says which arguments have an axis of lanes, their first. States have it first as well,
    and reels have it after that of their entries.
    """

    def __init__(self, one: Work, batched: Sequence[bool]):
        super().__init__(one.opening, one.room, one.going, one.used, one.size, one.platform)
        self._one, self._batched = one, tuple(batched)
        self.budget = Budget()

    def complete(
        self, args: Sequence[Array], shape: Hashable, status: Callable
    ) -> tuple[Any, Any, bool]:
        found = super().complete(args, shape, status)
        programs = self._programs.values()
        self.budget.compile_seconds = sum(p.compile_seconds for p in programs)
        self.budget.seconds = sum(p.seconds for p in programs)
        self.budget.lanes += self._lanes(args)
        return found

    def _lanes(self, args: Sequence[Array]) -> int:
        return next(v.shape[0] for v, b in zip(args, self._batched, strict=True) if b)

    def first(self, args: Sequence[Any], shape: Hashable) -> tuple[ClosedJaxpr, Tree]:
        if shape not in self._begun:
            single = [
                jax.ShapeDtypeStruct(v.shape[1:] if b else v.shape, v.dtype)
                for v, b in zip(args, self._batched, strict=True)
            ]
            closed, state = self._one.first(single, shape)
            wide = lambda v: jax.ShapeDtypeStruct((self._lanes(args), *v.shape), v.dtype)
            self._begun[shape] = closed, zeros(jax.tree.map(wide, state))
        return self._begun[shape]

    def one_pass(
        self, begun: ClosedJaxpr, structure: Treedef, bare: int | None,
        limit: Whole, fresh: Flag, base: Whole, *given: Array,
    ) -> list[Array]:  # fmt: skip
        state, reel = jax.tree.unflatten(structure, range(structure.num_leaves))
        places = [0] * len(jax.tree.leaves(state)) + [1] * len(jax.tree.leaves(reel))
        batched = [0 if b else None for b in self._batched]
        axes = [*places, *batched] if bare is None else batched
        lanes = next(v.shape[k] for v, k in zip(given, axes, strict=True) if k is not None)
        each = jnp.where(limit > 0, jnp.maximum(limit // lanes, 1), 0)
        single = functools.partial(self._one.one_pass, begun, structure, bare, each, fresh, base)
        *found, counts = in_turn(single, axes, [*places, 0])(*given)
        return [*found, jnp.sum(counts)]
