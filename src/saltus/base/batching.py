"""Loops under nested `vmap`s: each `vmap` adds one level of lanes (the elements of its batch)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .types import Array

Level = tuple[bool, ...]


def nest(fn: Callable, levels: Sequence[Sequence[bool | Sequence[bool]]]) -> Callable:
    """`fn(batched, args)` mapped over all levels.

    `batched` has an axis for every level, an argument only for those at which its flag is true. The
    flag of an argument that is a list is a list, too.
    """
    for flags in levels:
        axes = jax.tree.map(lambda has: 0 if has else None, list(flags))
        fn = jax.vmap(fn, in_axes=(0, axes))
    return fn


def add_level(
    args: Sequence[Any], dims: Sequence[Any], rows: Sequence[bool]
) -> tuple[list[Any], Level]:
    """Move batch axes to the front (behind the row axis, if any); say which arguments have one."""
    moved, flags = [], []
    for value, dim, row in zip(args, dims, rows, strict=True):
        batched = dim is not None
        flags.append(batched)
        moved.append(jnp.moveaxis(value, dim, 1 if row else 0) if batched else value)
    return moved, tuple(flags)


def lane_shape(
    args: Sequence[Any], rows: Sequence[bool], levels: Sequence[Level]
) -> tuple[int, ...]:
    """The sizes of the levels, outermost first, read from arguments that have them."""
    sizes = []
    for depth in range(len(levels)):
        k = levels[depth].index(True)
        outer = sum(levels[j][k] for j in range(depth + 1, len(levels)))
        sizes.append(jnp.shape(args[k])[outer + rows[k]])
    return tuple(reversed(sizes))


def aligned(args: Sequence[Array], dims: Sequence[int | None]) -> list[Array]:
    """All arguments with the batch axis first: those that lack it are repeated along it."""
    size = next(v.shape[d] for v, d in zip(args, dims, strict=True) if d is not None)
    return [
        jnp.broadcast_to(v, (size, *v.shape)) if d is None else jnp.moveaxis(v, d, 0)
        for v, d in zip(args, dims, strict=True)
    ]
