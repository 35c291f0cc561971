"""Flows that jump exactly where a motion starts or ends: at the start, the end, or a reset.

A `where(t > p.a, 1, 2)` in a flow is a hidden kink when it is passed inside a motion. With `a`
exactly at the end it is not passed, but a larger or smaller `a` gives different derivatives. A flow
that jumps at its own event is different: the state then stays on the same side for all parameters.

The states at the ends of all motions are moved along a tangent of the parameters, to either side,
and a little into the motion. If the flow decides differently on both sides, and jumps, no
derivative exists. A jump very close to an end, where hidden kinks are not looked for, is found by
comparing two places inside the motion.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from ..base.host_programs import rarely
from ..base.leaves import Leaves, array_of
from ..base.types import Array, Flag, Scalar, Vector, Whole
from ..model.model import At, Model, Par
from ..solution.solution import Solution
from ..solution.tape import Tape
from .hidden_kinks import MOST_ALGEBRAIC_STATES, SMALLEST_JUMP, flow_difference, solved_flow
from .row_curves import END_DISTANCE, Curves, Run, over_rows, program_of

MOVED = 1e-6  # how far states are moved, relative to their largest values
INWARD = 1e-3  # of this, how far into the motion, relative to the row
CLOSEST = 2.0**-40  # where samples begin, relative to the row; hidden kinks begin at END_DISTANCE
ROUNDINGS = 2.0**8  # by how many roundings of the time samples are at least away from an end

Place: TypeAlias = tuple[Whole, int, Whole]  # a row, which of its ends, its place on the tape


class RowStates(NamedTuple):
    """What a change of the parameters moves on a tape."""

    tau: Vector
    w: Leaves
    z: Leaves
    theta: Leaves

    @classmethod
    def of(cls, tape: Tape) -> RowStates:
        return cls(tape.tau, tape.w, tape.z, tape.theta)


def jumps_at_ends(sol: Solution, change: RowStates) -> Flag:
    """Whether the flow jumps at an end of a motion when parameters move; `change` is a tangent."""
    model = sol.spec.model
    if not program_of(model).size:
        return array_of(False)
    tape, moved = jax.lax.stop_gradient((sol.tape, change))
    return _found(model, tape, jax.tree.map(_real, moved, RowStates.of(tape)))


def _real(tangent: Array, like: Array) -> Array:
    """A tangent as an array; that of a whole number is zero."""
    return tangent if tangent.dtype == like.dtype else jnp.zeros_like(like)


@functools.partial(rarely, static_argnums=(0,))
def _found(model: Model, tape: Tape, tangent: RowStates) -> Flag:
    curves = Curves.of(model, tape)
    first, last = _edge_rows(tape)
    reset = jnp.where(tape.reset_rows(), jnp.arange(tape.size), tape.n)
    end = jax.lax.cummin(reset, reverse=True)  # past rows of no time, which move to the event
    size = _length(tape, tangent)
    jumps = lambda k, inward, edge: _jumps(curves, tape, tangent, size, (k, inward, edge))
    starts = over_rows(lambda k: jumps(k, 0, k), tape.kind)
    ends = over_rows(lambda k: jumps(k, 1, end[k]), tape.kind)
    return jnp.any(starts & first) | jnp.any(ends & last)


def _edge_rows(tape: Tape) -> tuple[Array, Array]:
    """Which rows are the first and the last of a motion that last longer than no time."""
    moving = (tape.flow_rows() | tape.approach_rows()) & (tape.h != 0)
    motion = jnp.where(moving, jnp.cumsum(tape.reset_rows()), -1)
    so_far = jax.lax.cummax(motion)
    from_here = jax.lax.cummin(jnp.where(moving, motion, tape.size), reverse=True)
    first = moving & (motion > jnp.concatenate([-jnp.ones(1, motion.dtype), so_far[:-1]]))
    beyond = jnp.full(1, tape.size, motion.dtype)
    return first, moving & (motion < jnp.concatenate([from_here[1:], beyond]))


def _length(tape: Tape, tangent: RowStates) -> Scalar:
    """The length along the tangent at which states change by `MOVED`."""
    used = jnp.arange(tape.size) <= tape.n
    tau, w, z, theta = tangent
    ratios = []
    for v, d in zip((tape.tau, *tape.w, *tape.z), (tau, *w, *z), strict=True):
        mine = used.reshape(-1, *[1] * (v.ndim - 1))
        most = lambda a, mine=mine: jnp.max(jnp.where(mine, jnp.abs(a), 0.0), initial=0.0)
        ratios.append(most(d) / jnp.where(most(v) > 0, most(v), 1.0))
    for v, d in zip(tape.theta, theta, strict=True):
        most = lambda a: jnp.max(jnp.abs(a), initial=0.0)
        ratios.append(most(d) / jnp.where(most(v) > 0, most(v), 1.0))
    largest = jnp.max(jnp.stack([jnp.where(jnp.isfinite(r), r, 0.0) for r in ratios]))
    return MOVED / jnp.maximum(largest, 1.0)


def _jumps(curves: Curves, tape: Tape, tangent: RowStates, size: Scalar, place: Place) -> Flag:
    """Whether the flow jumps across an end of a motion along the tangent, or just inside of it."""
    k, end, edge = place
    rounded = ROUNDINGS * jnp.finfo(tape.tau.dtype).eps * (abs(tape.t0) + abs(tape.tau[k]))
    least = jnp.clip(rounded / jnp.abs(tape.h[k]), CLOSEST, END_DISTANCE)
    inside = lambda part: _inside(tape, k, end, jnp.maximum(part, least))
    pick = lambda leaf: jnp.take(leaf, edge, axis=0, mode="clip")
    step, here = jax.tree.map(pick, tuple(tangent[:3])), inside(INWARD * MOVED)
    sides = [_moved(curves, here, step, tangent.theta, s * size) for s in (-1.0, 1.0)]
    across = _differ(curves, here, [there.run(state) for there, state in sides])
    spots = [inside(CLOSEST), inside(END_DISTANCE)]
    return across | _differ(curves, spots[1], [curves.run(state) for state in spots])


def _inside(tape: Tape, k: Whole, end: int, part: Scalar) -> At:
    """A state that is a part of row `k` away from one of its ends, on the line between them."""
    at, other = tape.state(k + end), tape.state(k + 1 - end)
    moved = jax.tree.map(lambda a, b: (a + part * (b - a)).astype(a.dtype), at, other)
    return moved._replace(i=tape.state(k).i)


def _differ(curves: Curves, at: At, runs: list[Run]) -> Flag:
    """Whether two runs decide differently, and the flow at a state jumps by that."""
    one, other = runs
    differ = jnp.any((one.outcomes != other.outcomes) & (one.alive | other.alive))
    total = sum(jnp.sum(v) for v in (at.tau, *curves.model.x_of(at), *at.z))
    jump = flow_difference(curves, *(_flow(curves, at, run.outcomes) for run in runs))
    return differ & jnp.isfinite(total) & (jump > SMALLEST_JUMP)


def _moved(curves: Curves, at: At, step: tuple, theta: Leaves, size: Scalar) -> tuple[Curves, At]:
    """A state moved along a tangent, with the parameters."""
    plus = lambda a, d: (a + size * jnp.where(jnp.isfinite(d), d, 0.0)).astype(a.dtype)
    tau, w, z = step
    par = curves.par
    new = Par(tuple(map(plus, par.theta, theta)), par.iota, par.backward)
    there = At(plus(at.tau, tau), tuple(map(plus, at.w, w)), at.i, tuple(map(plus, at.z, z)))
    return curves._replace(par=new), there


def _flow(curves: Curves, at: At, told: Array) -> Leaves:
    """The flow at a state with given outcomes."""
    every = jnp.ones(told.shape, bool)
    if curves.model.constraint is None or sum(v.size for v in at.z) > MOST_ALGEBRAIC_STATES:
        return curves.run(at, told, every).flow
    return solved_flow(curves, at, told, every)
