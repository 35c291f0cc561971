"""Save times as excursions: each is a step from the start of the row in which it lies.

A saved value is the step map over the time from the start of its row (M15). Here the rows are
chosen and the values computed; the sweeps compute the same excursions, each just before its row.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..base.kernel import one_by_one
from ..base.leaves import Leaves, select
from ..base.types import Array, Flag, HostArray, Scalar, Vector, Whole
from ..model.algebraic_states import solved
from ..model.model import At, Par
from ..model.taylor import derivatives, moved
from .record import Rows, Spec


class Visits(NamedTuple):
    """One entry per save time, in the order of their rows; those not reached come last."""

    row: Vector  # the row from which it starts; for times at the end, that of the final state
    which: Vector  # the place of the save time in `ts`
    short: Vector  # so close to the start of the row that a Taylor polynomial is used
    aux: Leaves  # what the method needs to compute the step again
    at: At  # the values there
    place: Vector  # the inverse of `which`: the place of each save time among the entries
    reached: Vector  # whether each save time was reached


def tolerance(t0: Scalar | HostArray, offset: Array | HostArray) -> Array:
    """The rounding error of an offset from t0 that was computed as the difference of two times."""
    t0, offset = jax.lax.stop_gradient((t0, offset))
    return 16 * jnp.finfo(jnp.float64).eps * jnp.maximum(jnp.abs(t0), jnp.abs(offset))


def find_row(
    tau: Vector, n: Whole, backward: Flag, t0: Scalar, offset: Array | HostArray, side: str
) -> Array:
    """The row in which an offset from t0 lies; at a jump the one after it (before it for "left").

    Times within rounding of a jump count as the time of the jump.
    """
    sign = jnp.where(backward, -1.0, 1.0)
    rows = jnp.arange(tau.shape[0])
    keys = jax.lax.stop_gradient(jnp.where(rows <= n, sign * tau, jnp.inf))
    where = jax.lax.stop_gradient(sign * offset)
    tol = tolerance(t0, where)
    if side == "right":
        k = jnp.searchsorted(keys, where + tol, side="right") - 1
    else:
        k = jnp.searchsorted(keys, where - tol, side="left") - 1
    return jnp.clip(k, 0, n)


def within(t0: Scalar, offset: Array | HostArray, end: Scalar, backward: Flag) -> Array:
    """Whether an offset from t0 lies between the start and the end."""
    sign, tol = jnp.where(backward, -1.0, 1.0), tolerance(t0, end)
    ahead = (sign * (offset - end) <= tol) & (sign * offset >= -tol)
    return ahead & jnp.isfinite(offset)


@functools.partial(jax.jit, static_argnames=("spec",))
def visit(spec: Spec, rows: Rows, n: Whole, end: At, par: Par, ts: Vector) -> Visits:
    """Where the save times `ts` lie, and the states there; without derivatives."""
    rows, end, par, ts = jax.lax.stop_gradient((rows, end, par, ts))
    t0 = par.t0
    offsets = ts - t0
    reached = within(t0, offsets, end.tau, par.backward)
    row = find_row(rows.tau, n, par.backward, t0, offsets, "right")
    row = jnp.where(reached, row, jnp.iinfo(jnp.int32).max).astype(jnp.int32)
    which = jnp.argsort(row, stable=True).astype(jnp.int32)
    row, offsets = row[which], jnp.where(reached, offsets, end.tau)[which]
    pick = functools.partial(jnp.take, indices=jnp.minimum(row, n), axis=0)
    starts = At(*jax.tree.map(pick, (rows.tau, rows.w, rows.i, rows.z)))
    h, length = offsets - starts.tau, pick(rows.h)
    whole = spec.stepper.shortest * jnp.abs(length)
    short = (jnp.abs(h) <= whole + tolerance(t0, offsets)) & (spec.stepper.shortest > 0)
    elements = (starts, h, length, jax.tree.map(pick, rows.aux), short)
    at, aux = one_by_one(functools.partial(_there, spec, par), elements)
    place = jnp.argsort(which)
    return Visits(
        row=row, which=which, short=short, aux=aux, at=at._replace(tau=offsets), place=place,
        reached=reached,
    )  # fmt: skip


def _there(spec: Spec, par: Par, element: tuple) -> tuple[At, Leaves]:
    """The state a time `h` after the start of a row, and what the method needs to repeat this."""
    at, h, length, aux, short = element
    model, stepper = spec.model, spec.stepper

    def long() -> tuple[At, Leaves]:
        there, again = stepper.redo(model, par, at, h, aux, length)
        return _like(at, there), again

    def brief() -> tuple[At, Leaves]:
        return _like(at, moved(at, derivatives(model, at, par, 2), h)), aux

    there, aux = jax.lax.cond(short, brief, long) if stepper.shortest > 0 else long()
    there = select(h == 0, at, there)  # without a step, also if the flow is NaN
    found, ok = solved(model, there, par)
    return there._replace(z=select(ok, found.z, there.z)), aux


def _like(old: At, new: At) -> At:
    return jax.tree.map(lambda a, b: jnp.asarray(b).astype(a.dtype), old, new)
