"""The adjoint sweep with every state on its way kept, and steps of its own where a loss looks."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves
from ..model.model import At
from ..model.taylor import derivatives, moved
from ..simulate.record import FLOW, Spec
from ..solution.tape import Tape
from ..sweep.rows import RowData, carried, cotangent
from .read_places import INSIDE, Places, Segments


class _Step(NamedTuple):
    """A row, or a step from where the loss looks."""

    at: At
    h: Any
    kind: Any
    member: Any
    aux: Leaves
    own: Leaves  # what is added at its start
    look: Any
    pull: Any  # false at the end
    short: Any


def swept(
    spec: Spec, tape: Tape, own: Leaves, places: Places, segments: Segments
) -> tuple[Leaves, Leaves, Leaves]:
    """Adjoints at rows; and just after and just before each look inside of them."""
    size, extra = tape.kind.shape[0], segments.h.shape[0]
    inside = np.zeros(extra, bool)
    inside[: len(places.row)] = places.part == INSIDE
    row = np.full(extra, size)
    row[: len(places.row)] = places.row
    row = np.where(inside, row, size)
    order = np.argsort(np.concatenate([np.arange(size), row]), kind="stable")
    lam, total = _sweep(spec, tape, own, segments, jnp.asarray(inside), jnp.asarray(order))
    place = np.argsort(order)
    lam, total = (tuple(np.asarray(v)[place] for v in leaves) for leaves in (lam, total))
    part = lambda leaves, start, end: tuple(v[start:end] for v in leaves)
    return part(total, 0, size), part(lam, size, None), part(total, size, None)


@functools.partial(jax.jit, static_argnames=("spec",))
def _sweep(
    spec: Spec, tape: Tape, own: Leaves, segments: Segments, inside: Any, order: Any
) -> tuple[Leaves, Leaves]:
    """The adjoint sweep with every state on its way kept, and the looks in between."""
    steps = _steps(tape, own, segments, inside, order)
    none = (False,) * spec.model.n_theta
    model, par = spec.model, tape.par()

    def brief(s: Leaves, step: _Step) -> Leaves:
        at = At(s[0], s[1:], step.at.i, step.at.z)
        there = moved(at, derivatives(model, at, par, 1), step.h)
        return (there.tau, *there.w)

    def back(carry: tuple, step: _Step) -> tuple:
        rows, last = carry  # adjoints at the last row, and at the last step of any kind
        lam, held = jax.tree.map(lambda a, b: jnp.where(step.look, a, b), last, rows)
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
        rows = jax.tree.map(lambda a, b: jnp.where(step.look, a, b), rows, new)
        return (rows, new), (lam, total)

    zero = tuple(jnp.zeros_like(v[0]) for v in own)
    final = tape.state(tape.n)
    first = (zero, carried(spec, (final.tau, *final.w)))
    return jax.lax.scan(back, (first, first), steps, reverse=True)[1]


def _steps(tape: Tape, own: Leaves, segments: Segments, inside: Any, order: Any) -> _Step:
    """Rows and looks in the order of time; looks that need no step come last."""
    count, size = inside.shape[0], tape.kind.shape[0]
    states = At(tape.tau, tape.w, tape.i, tape.z)
    member = tape.member[0] if tape.member else jnp.zeros_like(tape.kind, jnp.int32)
    no, whole = jnp.zeros(size, bool), jnp.zeros(count, jnp.int32)
    g = tuple(jnp.where(inside.reshape(-1, *[1] * (v.ndim - 1)), v, 0.0) for v in segments.g)
    rows = _Step(
        states, tape.h, tape.kind.astype(jnp.int32), member.astype(jnp.int32), tape.aux, own, no,
        jnp.arange(size) < tape.n, no,
    )  # fmt: skip
    looks = _Step(
        segments.at, segments.h, whole + FLOW, whole, segments.aux, g, ~jnp.zeros(count, bool),
        inside, segments.short,
    )  # fmt: skip
    both = lambda a, b: jnp.concatenate([a, b.astype(a.dtype)])[order]
    return jax.tree.map(both, rows, looks)
