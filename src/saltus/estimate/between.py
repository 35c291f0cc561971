"""Constraints on saved values, looked at between the saved times.

A constraint on `sol.y["h"]` is one at the saved times only. The loss is run once more with save
times in between; a constraint that then has more entries is one along the trajectory.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..gather import gathering
from ..ways import denser
from .starts import FEASIBLE, first_line

MOST, FINEST = 4096, 64  # save times in all, and between two of them


def between(problem: Any, u: np.ndarray) -> list[str]:
    """What constraints at saved times do between them, in words; nothing where they hold."""
    arrays = [name for name, shape in problem.shapes.items() if len(shape) and max(shape) > 1]
    if not arrays:
        return []
    try:
        along = {n: axis for n in arrays if (axis := _axis(problem, u, n)) is not None}
        if not along:
            return []
        parts = int(np.clip(MOST // max(problem.shapes[n][k] for n, k in along.items()), 2, FINEST))
        with denser(parts), gathering() as found:
            held = problem.held(jnp.asarray(u))
    except Exception as error:  # a loss that compares saved values with data of their number
        return [f"Constraints could not be looked at between saved times ({first_line(error)})."]
    notes = []
    for name, axis in along.items():
        values = np.moveaxis(np.asarray(held[name]), axis, 0)
        times = next((np.asarray(s.t) for s in found if np.shape(s.t) == values.shape[:1]), None)
        notes += _worst(name, values, problem, axis, parts, times)
    return notes


def _axis(problem: Any, u: np.ndarray, name: str) -> int | None:
    """The axis of a constraint along which the saved times are."""
    with denser(2):
        shapes = jax.eval_shape(problem.held, jnp.asarray(u))
    new, old = shapes[name].shape, problem.shapes[name]
    if len(new) != len(old):
        return None
    return next((k for k, (a, b) in enumerate(zip(new, old, strict=True)) if a == 2 * b - 1), None)


def _worst(
    name: str, values: np.ndarray, problem: Any, axis: int, parts: int, times: np.ndarray | None
) -> list[str]:
    """Where a constraint is violated most, if that is between saved times only."""
    flat = values.reshape(len(values), -1)
    for side, bound in zip((1.0, -1.0), problem.wanted[name], strict=True):
        bound = np.broadcast_to(bound, problem.shapes[name])
        if not np.all(np.isfinite(bound)):
            continue
        own = np.moveaxis(bound, axis, 0).reshape(bound.shape[axis], -1)
        place = np.arange(len(flat)) / parts
        limit = np.stack([np.interp(place, np.arange(len(own)), c) for c in own.T], 1)
        size = np.maximum(1.0, np.abs(limit))
        off = side * (limit - flat) / size
        if np.max(off[::parts]) > FEASIBLE or not np.max(off) > FEASIBLE:
            continue
        row, column = np.unravel_index(np.argmax(off), off.shape)
        sign, moves, use = (">=", "falls", "min") if side > 0 else ("<=", "rises", "max")
        when = "" if times is None else f" at t = {times[row]:.6g}"
        entry = "" if flat.shape[1] == 1 else f" (entry {column})"
        return [
            f"{name}{entry} {sign} {limit[row, column]:.6g} holds at the saved times; between them "
            f"it {moves} to {flat[row, column]:.6g}{when}; use sol.{use}, which looks at the whole "
            "trajectory."
        ]
    return []
