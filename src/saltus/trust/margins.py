"""How far a solution is from another sequence of events: distances that depend on the parameters.

Everything is a plain JAX function of the tape, so the margins have derivatives (M74). These tell,
to first order, how far parameters may move before a margin becomes zero.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..base.host_programs import rarely
from ..base.leaves import Leaves, frozen
from ..base.types import Array, Flag, Scalar, Vector
from ..model.algebraic_states import attached
from ..model.model import At, Model, Par
from ..simulate.guards import guard_slopes, rounding
from ..solution.solution import Solution
from .guard_jumps import leaps
from .guard_outline import Edge, Outline, edges, flat_guards, outline, value_at
from .guard_samples import dips

INF = jnp.inf
TRUSTED_ERROR = 1e-6  # relative: derivatives that are TRUSTED are right to six digits
EPS = float(jnp.finfo(jnp.float64).eps)


class Watched(NamedTuple):
    """The guards at the start of every row, members side by side: (rows + 1, guards)."""

    value: Array
    slope: Array  # in time, along the flow of that row
    bend: Array  # the second derivative
    active: Array
    tiny: Array  # smaller values are zero up to rounding
    unsure: Array  # the error of the value that the tolerances allow


class Margins(NamedTuple):
    """Distances to another sequence of events; infinite where there is none."""

    near: Array  # (rows, guards) from zero, for guards that turn around inside a row
    depth: Vector  # (rows,) how far beyond zero the guard of an event would go
    order: Vector  # (rows,) in time, from each event to the one before
    chain: Array  # (rows, guards) from zero after a reset, for guards that it might make cross zero
    first: Vector  # (guards,) at the start
    last: Vector  # (guards,) in time, from the end to the next event; if there is none, the guard
    end: Array  # in time, from the last event to the end

    def vector(self) -> Vector:
        """All margins in one vector."""
        return jnp.concatenate([jnp.ravel(v) for v in self])


def _mask(model: Model, active: Leaves) -> Array:
    if not model.guards:
        return jnp.zeros(0, bool)
    wide = [
        jnp.broadcast_to(jnp.asarray(a), (g.size or 1,))
        for a, g in zip(active, model.guards, strict=True)
    ]
    return jnp.concatenate(wide)


def _signs(leaf: Array, pattern: int) -> Array:
    """Three patterns of signs, so that errors of several states do not cancel in all of them."""
    if pattern == 0:
        return jnp.ones_like(leaf)
    count = jnp.arange(leaf.size).reshape(leaf.shape)
    return jnp.where((count // pattern) % 2 == 0, 1.0, -1.0)


def _unsure(model: Model, at: At, par: Par, tolerance: tuple[Scalar, Leaves]) -> Vector:
    """How much the guards change when the states change by their tolerances."""
    rtol, atol = tolerance
    here = model.moving_of(at)
    sizes = [a + rtol * jnp.abs(v) for v, a in zip(here, atol, strict=False)]

    def values(moving: Leaves) -> Vector:
        there = attached(model, model.with_moving(at, moving), par, 1)
        return flat_guards(model, model.guard_values(there, par))

    found = [
        jnp.abs(jax.jvp(values, (here,), (tuple(_apply(sizes, here, k)),))[1]) for k in range(3)
    ]
    return jnp.max(jnp.stack(found), axis=0)


def _apply(sizes: list, leaves: Leaves, pattern: int) -> list:
    return [
        (jnp.broadcast_to(s, v.shape) * _signs(v, pattern + 7 * j * (pattern > 0))).astype(v.dtype)
        for j, (s, v) in enumerate(zip(sizes, leaves, strict=True))
    ]


def _look(model: Model, at: At, par: Par, tolerance: tuple[Scalar, Leaves]) -> Watched:
    """The guards at one row state."""
    here = attached(model, at, par, 2)

    def slopes(tau: Scalar, moving: Leaves) -> tuple[Vector, Vector]:
        there = attached(model, model.with_moving(at, moving, tau=tau, z=here.z), par, 2)
        values, rates = guard_slopes(model, there, par, model.flow(there, par))
        return flat_guards(model, values), flat_guards(model, rates)

    flow = model.flow(here, par)
    (value, slope), (_, bend) = jax.jvp(
        slopes, (at.tau, model.moving_of(at)), (jnp.ones_like(at.tau), tuple(flow))
    )
    quiet, calm = frozen((here, par))
    rates = guard_slopes(model, quiet, calm, model.flow(quiet, calm))[1]
    tiny = flat_guards(model, rounding(model, quiet, calm, rates))
    active = _mask(model, model.guard_active(quiet, calm))
    unsure = jnp.maximum(_unsure(model, quiet, calm, tolerance), tiny)
    return Watched(value, slope, bend, active, tiny, unsure)


def watch(sol: Solution) -> Watched:
    """The guards at the start of every row and at the end."""
    model, tape = sol.spec.model, sol.tape
    rows = jnp.arange(tape.tau.shape[0])
    return jax.vmap(lambda k: _look(model, tape.state(k), tape.par(), sol.tolerance))(rows)


class Fired(NamedTuple):
    """What each row does: (rows,) and (rows, guards)."""

    flow: Array  # it is a step
    event: Array  # it is the reset of an event
    rooted: Array  # with a time of its own, not triggered by another
    own: Array  # the guard of the event
    t: Vector  # where the row starts


def fired(sol: Solution) -> Fired:
    """Which rows are steps and which are events, from the kinds on the tape."""
    model, tape = sol.spec.model, sol.tape
    event, action = tape.resets_of(jnp.asarray([a.logged or a.kink for a in model.actions]))
    rooted = event & tape.rooted_rows()
    member = tape.members()
    places, first = [], 0
    for a in model.actions:
        places.append(first if a.kind == "guard" else -1)
        first += (a.size or 1) if a.kind == "guard" else 0
    place = jnp.asarray(places)[jnp.clip(action, 0)]
    which = jnp.where(place >= 0, place + jnp.where(place >= 0, member, 0), -1)
    own = event[:, None] & (jnp.arange(model.n_guards)[None, :] == which[:, None])
    flow = tape.flow_rows() & (tape.h != 0)
    return Fired(flow, event, rooted, own, tape.tau)


def margins(sol: Solution, seen: Watched, rows: Fired, found: Between) -> Margins:
    """All distances to another sequence of events."""
    tape, n = sol.tape, sol.tape.n
    near = _turning(found)
    fresh = jnp.concatenate([jnp.zeros(1, bool), rows.event[:-2]])[:, None]
    leaving = fresh & (jnp.maximum(jnp.abs(seen.value[:-1]), near) <= seen.tiny[:-1])
    near = jnp.where(frozen(leaving), INF, near)  # a jump has put the state where this guard is 0
    slope = jnp.sum(jnp.where(rows.own, seen.slope, 0.0), axis=1)
    bend = jnp.sum(jnp.where(rows.own, seen.bend, 0.0), axis=1)
    back = rows.rooted & (jnp.sum(rows.own, axis=1) > 0) & (slope * bend < 0)
    safe = jnp.where(back, bend, 1.0)
    depth = jnp.where(back, 0.5 * slope * slope / jnp.abs(safe), INF)
    order = _order(rows)
    after = rows.event[:-1, None] & seen.active[1:] & ~rows.own[:-1]
    size = jnp.abs(seen.value[1:])
    chain = jnp.where(after & (size > seen.tiny[1:]), size, INF)
    end = jax.tree.map(lambda v: jnp.take(v, n, axis=0), seen)
    last_fired = jnp.any(rows.own & (rows.t == tape.end.tau)[:, None], axis=0)
    last = _ahead(end, tape.backward, frozen(last_fired))
    first = jnp.abs(seen.value[0])
    first = jnp.where(seen.active[0] & (first > seen.tiny[0]), first, INF)
    return Margins(near, depth[:-1], order[:-1], chain, first, last, _to_end(sol, rows))


def _ahead(end: Watched, backward: Flag, fired: Array) -> Array:
    """The time from the end until a guard would reach zero; if it would not, its value."""
    way, zero = jnp.where(backward, -1.0, 1.0), jnp.abs(end.value) <= end.tiny
    side = frozen(jnp.where(zero, -jnp.sign(end.slope) * way, jnp.sign(end.value)))
    value, bend = side * end.value, side * end.bend
    slope = side * end.slope * way
    inner = slope * slope - 2 * value * bend
    coming = frozen((inner > 0) & (jnp.sqrt(jnp.maximum(inner, 0.0)) > slope))
    root = jnp.sqrt(jnp.where(coming, inner, 1.0)) - slope
    time = 2 * value / jnp.where(coming, root, 1.0)
    known = frozen(end.active & (~zero | ((end.slope != 0) & ~fired)))
    return jnp.where(known, jnp.where(coming, time, value), INF)


class Between(NamedTuple):
    """The guards inside all rows."""

    left: Edge
    right: Edge
    shape: Outline
    valid: Array  # rows that are steps, guards that are in force


def between(sol: Solution, seen: Watched, rows: Fired) -> Between:
    """The guards between the starts of rows."""
    tape = sol.tape
    left, right = edges(tape.h[:-1][:, None], seen.value, seen.slope, seen.bend)
    shape = outline(left, right, seen.tiny)
    steps = rows.flow[:-1] & (jnp.arange(tape.tau.shape[0] - 1) < tape.n)
    return Between(left, right, shape, steps[:, None] & seen.active[:-1] & seen.active[1:])


def _turning(found: Between) -> Array:
    """The smallest distance of guards that turn around between two rows (M73)."""
    left, right, shape, valid = found
    low, place = value_at(left, right, shape.place), shape.place
    side = frozen(jnp.sign(left.value + right.value))
    down, up = frozen(side * left.slope), frozen(-side * right.slope)
    last = (place >= 1) & (down < 0) & (up <= 0) & (up >= 1e-9 * down)  # at the edge of a row
    first = (place >= 1) & (up > 0) & (down >= 0) & (down <= 1e-9 * up)
    low = jnp.where(last, right.value, jnp.where(first, left.value, low))
    return jnp.where(valid & ((place < 1) | first | last), jnp.abs(low), INF)


def promised(rtol: Scalar) -> Scalar:
    """The relative error that TRUSTED derivatives may have."""
    return jnp.maximum(100 * rtol, TRUSTED_ERROR)


def nearest(near: Array, unsure: Array) -> Scalar:
    """The smallest distance in units of its error; infinite if no guard turns around."""
    ratio = near / jnp.maximum(unsure, 1e-300)
    return jnp.min(jnp.where(near == INF, INF, ratio), initial=INF)


def _unseen(sol: Solution, found: Between, unsure: Array) -> Flag:
    """Whether a guard seems to have crossed inside a row without firing."""
    guards = sol.spec.model.guards
    way = jnp.asarray([g.direction for g in guards for _ in range(g.size or 1)], jnp.int32)
    way = way * jnp.where(sol.tape.backward, -1, 1)
    falls, rises = found.shape.falls, found.shape.rises
    bad = jnp.where(way < 0, falls, jnp.where(way > 0, rises, falls | rises))
    held, left, right, allowed = frozen((sol, found.left, found.right, unsure))
    seen = dips(held, left, right, allowed)
    return jnp.any(((bad & ~seen.clear) | seen.hidden) & found.valid)


def _order(rows: Fired) -> Vector:
    """From each event with a time of its own to the last one before it, in time."""

    def step(before: Scalar, row: tuple) -> tuple:
        rooted, t = row
        gap = jnp.where(rooted & jnp.isfinite(before), jnp.abs(t - before), INF)
        return jnp.where(rooted, t, before), gap

    return jax.lax.scan(step, jnp.full((), -INF), (rows.rooted, rows.t))[1]


def _to_end(sol: Solution, rows: Fired) -> Vector:
    """From the last event to the end, in time."""
    left = sol.tape.t1 - sol.tape.t0 - rows.t
    gap = jnp.where(rows.rooted, jnp.where(sol.tape.backward, -left, left), INF)
    return jnp.min(gap)[None]


def saves(sol: Solution, rows: Fired) -> Array:
    """The signed time from each event with a time of its own to the nearest save time."""
    if jnp.ndim(sol.t) == 0 or sol.t.shape[0] == 0:
        return jnp.full(rows.t.shape, INF)
    ts = sol.t - sol.tape.t0
    nearest = frozen(jnp.argmin(jnp.abs(rows.t[:, None] - ts[None, :]), axis=1))
    return jnp.where(rows.rooted, ts[nearest] - rows.t, INF)


class Measured(NamedTuple):
    """Everything that is measured along a solution."""

    seen: Watched
    rows: Fired
    margins: Margins
    place: Array  # where guards turn around inside rows
    saves: Array
    unseen: Flag
    leaps: Flag  # a guard jumps where its event is
    chance: Flag | bool = False  # a reset lands on a guard by chance (landings.py)


@rarely
def measure(sol: Solution) -> Measured:
    """Guards, events and margins of a solution, differentiable."""
    seen, rows = watch(sol), fired(sol)
    inside = between(sol, seen, rows)
    found = margins(sol, seen, rows, inside)
    unseen = _unseen(sol, inside, seen.unsure)
    jumps = leaps(sol, rows.own & rows.rooted[:, None], seen.tiny)
    return Measured(seen, rows, found, inside.shape.place, saves(sol, rows), unseen, jumps)
