"""The points in rows at which a loss reads a solution, and the steps from there to the next."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves
from ..base.types import Array, Flag, HostArray, Scalar, Whole
from ..model.model import At
from ..model.taylor import velocity
from ..simulate.record import Spec
from ..simulate.save_times import find_row, tolerance, within
from ..solution.tape import Tape, along_row
from .loss_reads import LossReads

START, INSIDE, END = range(3)  # parts of a row


class ReadPoints(NamedTuple):
    """Points at which the loss reads, in order of time, with equal ones merged.

    Points that were not reached, and points with a zero gradient, are left out.
    """

    row: HostArray
    part: HostArray  # START, INSIDE or END of the row
    offset: HostArray
    end: HostArray  # of the step from there: the next point in the row, or its end
    g: Leaves  # the gradient of the loss by the state there
    t: HostArray  # as given by the loss; t0 + offset may differ by rounding


def find_points(tape: Tape, reads: LossReads) -> ReadPoints:
    """The points at which a loss reads, and the rows in which they lie."""
    n, t0, tau = int(tape.n), tape.t0, np.asarray(tape.tau)
    offset = reads.t - np.asarray(t0)
    rows = [
        np.asarray(find_row(tape.tau, tape.n, tape.backward, t0, offset, side), int)
        for side in ("right", "left")
    ]
    row = np.where(reads.left, rows[1], rows[0])
    after, tol = tau[np.minimum(row + 1, n)], np.asarray(tolerance(t0, offset))
    part = np.where(np.abs(after - offset) <= tol, END, INSIDE)
    part = np.where(np.abs(offset - tau[row]) <= tol, START, part)
    reached = np.asarray(within(t0, offset, tape.end.tau, tape.backward))
    flows = np.asarray(tape.flow_rows())[row]
    matters = np.any([np.any(v != 0, axis=tuple(range(1, v.ndim))) for v in reads.g], axis=0)
    counts = np.flatnonzero(reached & flows & matters)
    sign = -1.0 if bool(tape.backward) else 1.0
    order = counts[np.lexsort((sign * offset[counts], part[counts], row[counts]))]
    row, part, offset, tol = row[order], part[order], offset[order], tol[order]
    same = (np.diff(row) == 0) & (np.diff(part) == 0)
    same &= (part[1:] != INSIDE) | (np.abs(np.diff(offset)) <= tol[1:])
    first = np.flatnonzero(np.concatenate([np.ones(min(1, len(row)), bool), ~same]))
    g = tuple(np.add.reduceat(v[order], first) if len(first) else v[order] for v in reads.g)
    row, part, offset = row[first], part[first], offset[first]
    follows = (np.diff(row) == 0) & (part[1:] == INSIDE)
    end = tau[np.minimum(row + 1, n)]
    end[:-1] = np.where(follows, offset[1:], end[:-1])
    return ReadPoints(row, part, offset, end, g, reads.t[order][first])


class Segments(NamedTuple):
    """Steps from each point at which the loss reads to the next one, or to the row's end."""

    at: At
    h: Scalar
    short: Flag  # too short for the method
    aux: Leaves
    g: Leaves  # with the derivative by the time at which the state is reached


def made_segments(spec: Spec, tape: Tape, points: ReadPoints) -> Segments:
    count = len(points.row)
    size = 1 << max(count - 1, 0).bit_length()  # powers of two, for few compilations

    def padded(v: HostArray) -> Array:
        return jnp.asarray(np.concatenate([v, np.zeros((size - count, *v.shape[1:]), v.dtype)]))

    given = jax.tree.map(padded, (points.row, points.offset, points.end, points.g))
    if count:
        return _prepared(spec, tape, *given)
    like = jax.eval_shape(functools.partial(_prepared, spec), tape, *given)
    return jax.tree.map(lambda v: jnp.zeros((0, *v.shape[1:]), v.dtype), like)


@functools.partial(jax.jit, static_argnames=("spec",))
def _prepared(spec: Spec, tape: Tape, row: Array, offset: Array, end: Array, g: Leaves) -> Segments:
    model, par, stepper = spec.model, tape.par(), spec.stepper

    def one(k: Whole, offset: Scalar, end: Scalar, g: Leaves) -> Segments:
        start, h = tape.state(k), end - offset
        length, aux = tape.noted(k)
        at = along_row(spec, tape, k, offset - start.tau)._replace(tau=offset)
        at = jax.tree.map(lambda a, b: jnp.asarray(b).astype(a.dtype), start, at)
        again = stepper.redo(model, par, at, h, stepper.halved(model, start, aux), h)[1]
        again = tuple(jnp.asarray(b).astype(a.dtype) for a, b in zip(aux, again, strict=True))
        speed = velocity(model, at, par, 1)[1:]
        late = -sum(jnp.sum(a * b) for a, b in zip(g, speed, strict=True))
        short = jnp.abs(h) <= stepper.shortest * jnp.abs(length)
        return Segments(at, h, short, again, (jnp.asarray(late, at.tau.dtype), *g))

    return jax.vmap(one)(row, offset, end, g)
