"""Where in the rows a loss looks, and the steps from there to the next entry."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves
from ..model.model import At
from ..model.taylor import velocity
from ..simulate.record import FLOW, Spec
from ..simulate.save_times import find_row, tolerance, within
from ..solution.tape import Tape, along_row
from .loss_reads import Looks

START, INSIDE, END = range(3)  # parts of a row


class Places(NamedTuple):
    """Looks in order, those at the same place as one; only such that count."""

    row: Any
    part: Any  # START, INSIDE or END of the row
    offset: Any
    end: Any  # of the step from there: the next one in the row, or its end
    g: Leaves
    t: Any  # as the loss has it: t0 + offset may differ by rounding


def find_places(tape: Tape, looks: Looks) -> Places:
    n, t0, tau = int(tape.n), tape.t0, np.asarray(tape.tau)
    offset = looks.t - np.asarray(t0)
    rows = [
        np.asarray(find_row(tape.tau, tape.n, tape.backward, t0, offset, side), int)
        for side in ("right", "left")
    ]
    row = np.where(looks.left, rows[1], rows[0])
    after, tol = tau[np.minimum(row + 1, n)], np.asarray(tolerance(t0, offset))
    part = np.where(np.abs(after - offset) <= tol, END, INSIDE)
    part = np.where(np.abs(offset - tau[row]) <= tol, START, part)
    reached = np.asarray(within(t0, offset, tape.end.tau, tape.backward))
    flows = (row < n) & (np.asarray(tape.kind)[row] == FLOW)
    felt = np.any([np.any(v != 0, axis=tuple(range(1, v.ndim))) for v in looks.g], axis=0)
    counts = np.flatnonzero(reached & flows & felt)
    sign = -1.0 if bool(tape.backward) else 1.0
    order = counts[np.lexsort((sign * offset[counts], part[counts], row[counts]))]
    row, part, offset, tol = row[order], part[order], offset[order], tol[order]
    same = (np.diff(row) == 0) & (np.diff(part) == 0)
    same &= (part[1:] != INSIDE) | (np.abs(np.diff(offset)) <= tol[1:])
    first = np.flatnonzero(np.concatenate([np.ones(min(1, len(row)), bool), ~same]))
    g = tuple(np.add.reduceat(v[order], first) if len(first) else v[order] for v in looks.g)
    row, part, offset = row[first], part[first], offset[first]
    follows = (np.diff(row) == 0) & (part[1:] == INSIDE)
    end = tau[np.minimum(row + 1, n)]
    end[:-1] = np.where(follows, offset[1:], end[:-1])
    return Places(row, part, offset, end, g, looks.t[order][first])


class Segments(NamedTuple):
    """Steps from where the loss looks."""

    at: At
    h: Any
    short: Any
    aux: Leaves
    g: Leaves  # with the derivative by the time at which the state is reached


def made_segments(spec: Spec, tape: Tape, places: Places) -> Segments:
    count = len(places.row)
    size = 1 << max(count - 1, 0).bit_length()  # few sizes, few compilations

    def padded(v: Any) -> Any:
        return jnp.asarray(np.concatenate([v, np.zeros((size - count, *v.shape[1:]), v.dtype)]))

    given = jax.tree.map(padded, (places.row, places.offset, places.end, places.g))
    if count:
        return _prepared(spec, tape, *given)
    like = jax.eval_shape(functools.partial(_prepared, spec), tape, *given)
    return jax.tree.map(lambda v: jnp.zeros((0, *v.shape[1:]), v.dtype), like)


@functools.partial(jax.jit, static_argnames=("spec",))
def _prepared(spec: Spec, tape: Tape, row: Any, offset: Any, end: Any, g: Leaves) -> Segments:
    model, par, stepper = spec.model, tape.par(), spec.stepper

    def one(k: Any, offset: Any, end: Any, g: Leaves) -> Segments:
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
