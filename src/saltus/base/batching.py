"""Loops under `vmap`: every level of lanes as one loop of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

Level = tuple[bool, ...]


def nest(fn: Callable, levels: Sequence[Level]) -> Callable:
    """`fn(batched, args)` mapped over all levels: `batched` has every one, `args` as flagged."""
    for flags in levels:
        fn = jax.vmap(fn, in_axes=(0, [0 if f else None for f in flags]))
    return fn


def add_level(
    args: Sequence[Any], dims: Sequence[Any], rows: Sequence[bool]
) -> tuple[list[Any], Level]:
    """Move each batch axis to its place: first, or second for arrays with rows."""
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
