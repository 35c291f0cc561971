"""The adjoint sweep with all adjoints kept, including those where a loss reads between rows."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves
from ..base.types import Array, Flag, Scalar, Whole
from ..model.model import At
from ..model.taylor import derivatives, moved
from ..simulate.record import FLOW, Spec
from ..solution.tape import Tape
from ..sweep.rows import RowData, carried, cotangent
from .read_points import INSIDE, ReadPoints, Segments


class History(NamedTuple):
    """Adjoints of `(tau, w)` at all rows, and at all points at which the loss reads."""

    rows: Leaves  # where rows start, including reads there
    before: Leaves  # at each point inside a row, including the read there
    after: Leaves  # at the same points, without that read
    carried: Leaves  # extra values that a continuous method carries along, where rows start


class _Step(NamedTuple):
    """A row, or the rest of a row from a point at which the loss reads."""

    at: At
    h: Scalar
    kind: Whole
    member: Whole
    aux: Leaves
    own: Leaves  # what is added at its start
    partial: Flag  # whether it is the rest of a row
    pull: Flag  # false without a step: the end, unused rows, points where rows start
    short: Flag


def adjoint_history(
    spec: Spec, tape: Tape, own: Leaves, reads: tuple[ReadPoints, Segments] | None = None
) -> History:
    """The adjoints of a loss with the gradients `own` by rows and those of `reads` in between."""
    size = tape.size
    steps, order = _rows(tape, own), np.arange(size)
    if reads is not None:
        points, segments = reads
        inside = np.zeros(segments.h.shape[0], bool)
        inside[: len(points.row)] = points.part == INSIDE
        row = np.full(inside.size, size)  # points without a step come last
        row[: len(points.row)] = points.row
        row = np.where(inside, row, size)
        order = np.argsort(np.concatenate([order, row]), kind="stable")
        both = lambda a, b: jnp.concatenate([a, b.astype(a.dtype)])
        steps = jax.tree.map(both, steps, _partial_steps(segments, jnp.asarray(inside)))
    steps = jax.tree.map(lambda v: v[order], steps)
    place = np.argsort(order)
    kept = jax.tree.map(lambda v: np.asarray(v)[place], _sweep(spec, tape, steps))
    after, before, carried_on = kept
    part = lambda leaves, start, end: tuple(v[start:end] for v in leaves)
    return History(
        part(before, 0, size), part(before, size, None), part(after, size, None),
        part(carried_on, 0, size),
    )  # fmt: skip


@functools.partial(jax.jit, static_argnames=("spec",))
def _sweep(spec: Spec, tape: Tape, steps: _Step) -> tuple[Leaves, Leaves, Leaves]:
    """At the start of each step: its adjoint, the same with `own`, and the carried values."""
    none = (False,) * spec.model.n_theta
    model, par = spec.model, tape.par()

    def brief(s: Leaves, step: _Step) -> Leaves:
        at = At(s[0], s[1:], step.at.i, step.at.z)
        there = moved(at, derivatives(model, at, par, 1), step.h)
        return (there.tau, *there.w)

    def back(carry: tuple, step: _Step) -> tuple:
        rows, last = carry  # at the last row, and at the last step of any kind
        lam, held = jax.tree.map(lambda a, b: jnp.where(step.partial, a, b), last, rows)
        at, s = step.at, (step.at.tau, *step.at.w)
        row = RowData(step.h, step.kind, step.member, at.i, at.z, step.aux, *par[1:])

        def pull() -> tuple:
            pulled, _, kept = cotangent(spec, (none,), row, s, tape.theta, lam, held)
            return pulled, kept

        def pull_short() -> tuple:
            return jax.vjp(lambda s: brief(s, step), s)[1](lam)[0], held

        long = pull
        if spec.stepper.shortest > 0:
            long = lambda: jax.lax.cond(step.short, pull_short, pull)
        lam, held = jax.lax.cond(step.pull, long, lambda: (lam, held))
        total = tuple(a + b for a, b in zip(lam, step.own, strict=True))
        new = (total, held)
        rows = jax.tree.map(lambda a, b: jnp.where(step.partial, a, b), rows, new)
        return (rows, new), (lam, total, held)

    zero = tuple(jnp.zeros_like(v[0]) for v in steps.own)
    final = tape.state(tape.n)
    first = (zero, carried(spec, (final.tau, *final.w)))
    return jax.lax.scan(back, (first, first), steps, reverse=True)[1]


def _rows(tape: Tape, own: Leaves) -> _Step:
    no = jnp.zeros(tape.size, bool)
    return _Step(
        at=At(tape.tau, tape.w, tape.i, tape.z), h=tape.h, kind=tape.kind.astype(jnp.int32),
        member=tape.members().astype(jnp.int32), aux=tape.aux, own=own, partial=no,
        pull=tape.used_rows(), short=no,
    )  # fmt: skip


def _partial_steps(segments: Segments, inside: Array) -> _Step:
    whole = jnp.zeros(inside.shape, jnp.int32)
    g = tuple(jnp.where(inside.reshape(-1, *[1] * (v.ndim - 1)), v, 0.0) for v in segments.g)
    return _Step(
        at=segments.at, h=segments.h, kind=whole + FLOW, member=whole, aux=segments.aux, own=g,
        partial=~jnp.zeros(inside.shape, bool), pull=inside, short=segments.short,
    )  # fmt: skip
