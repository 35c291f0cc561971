"""Variational equations over one row (M81)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..base.leaves import Leaves
from ..base.types import Scalar
from ..simulate.record import Spec
from ..sweep.rows import Mask, RowData
from .fields import arrival, explicit, field, inside, late_by_time, length_of, reads
from .integration import ABSOLUTE_FLOOR, explicit_step, norm, nothing, over_row
from .linear_radau import collocation_step


def flow_tangent(
    rtol: float, spec: Spec, masks: tuple[Mask, ...], row: RowData, s: Leaves, theta: Leaves,
    ds: Leaves, dtheta: Leaves,
) -> Leaves:  # fmt: skip
    """The tangent at the end of a row, or at the save time where it ends."""
    length = length_of(spec, masks, row, s, theta)
    along = _explicit if explicit(spec) else _implicit
    end, out = along(rtol, spec, masks, row, length, s, theta, ds, dtheta)
    if not reads(spec, masks):
        return out
    late = late_by_time(spec, len(spec.model.actions) - 1, row)
    held = arrival(spec, masks, row, late)(end, theta, out, dtheta)
    return tuple(jnp.where(row.is_read, a, b) for a, b in zip(held, out, strict=True))


def _explicit(
    rtol: float, spec: Spec, masks: tuple[Mask, ...], row: RowData, length: Scalar, s: Leaves,
    theta: Leaves, ds: Leaves, dtheta: Leaves,
) -> tuple[Leaves, Leaves]:  # fmt: skip
    """States and tangents integrated together."""
    n, moves = len(s), field(spec, masks, row)

    def slope(u: Scalar, y: Leaves) -> Leaves:
        speed, change = jax.jvp(moves, (y[:n], theta), (y[n:], dtheta))
        return tuple(length * v for v in (*speed, *change))

    floor = nothing(theta, dtheta, n)

    def judge(error: Leaves, old: Leaves, new: Leaves) -> Scalar:
        states = norm(error[:n], old[:n], new[:n], rtol, (jnp.asarray(ABSOLUTE_FLOOR),) * n)
        return jnp.maximum(states, norm(error[n:], old[n:], new[n:], rtol, floor))

    y = over_row(explicit_step(slope, judge), (*s, *ds), 5)
    return y[:n], y[n:]


def _implicit(
    rtol: float, spec: Spec, masks: tuple[Mask, ...], row: RowData, length: Scalar, s: Leaves,
    theta: Leaves, ds: Leaves, dtheta: Leaves,
) -> tuple[Leaves, Leaves]:  # fmt: skip
    """Tangents along the dense solution, for stiff equations and systems with a constraint."""
    moves, dense = field(spec, masks, row), inside(spec, masks, row, length)
    flat, back = ravel_pytree(ds)
    zeros = tuple(jnp.zeros_like(d) for d in dtheta)

    def parts(u: Scalar) -> tuple[Any, Any]:
        here = dense(s, theta, u)
        push = lambda v, d: ravel_pytree(jax.jvp(moves, (here, theta), (back(v), d))[1])[0]
        matrix = jax.vmap(lambda v: push(v, zeros), out_axes=1)(jnp.eye(flat.size))
        return length * matrix, length * push(jnp.zeros_like(flat), dtheta)

    floor = nothing(theta, dtheta, len(ds))

    def judge(error: Leaves, old: Leaves, new: Leaves) -> Scalar:
        return norm(back(error[0]), back(old[0]), back(new[0]), rtol, floor)

    (y,) = over_row(collocation_step(parts, judge), (flat,), 6)
    return dense(s, theta, jnp.ones(())), back(y)
