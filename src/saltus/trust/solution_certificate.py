"""Can the derivatives of this solution be trusted? Measurements and the verdict.

Every number is an array that works inside `jit`; checks that need the host (hidden kinks, the order
of simultaneous events) are made if the numbers are known.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..base.host_programs import rarely
from ..base.leaves import array_of, precise
from ..base.names import entry_name
from ..base.results import Result
from ..base.tracing import is_traced
from ..base.types import Array, Flag, Scalar, Tree, Vector, Whole
from ..solution.solution import Solution
from .error_growth import Algebra, Growth, algebra, growth, parameters
from .event_maps import commute, jumped
from .guard_outline import along
from .hidden_kinks import Kink, hidden_kinks, passed
from .landings import landings
from .margins import INF, Margins, Measured, measure, nearest, promised
from .parameter_margins import margins_of
from .reasons import ACCUMULATED_TOLERANCES, REASONS, Evidence, above, levels_of
from .text import report
from .verdict import DEGRADED, TRUSTED, UNTRUSTED, Judged

EPS = float(jnp.finfo(jnp.float64).eps)


class EventTrust(eqx.Module):
    """Measurements of each event, in the order in which they happened."""

    t: Vector
    which: Array  # the place of its action in `names`
    member: Array
    rooted: Array  # whether it has a time of its own, and was not triggered by another event
    transversality: Vector  # 1: straight through; 0: grazing
    saltation: Vector  # the norm of its saltation matrix
    uncertainty: Vector  # of its time, from the tolerances
    error: Vector  # the relative error that this causes in derivatives of its time
    valid: Array


class GuardTrust(eqx.Module):
    """The nearest a guard came to zero without crossing it."""

    distance: Vector
    t: Vector
    unsure: Vector  # the possible error of its value there


class Certificate(Judged, eqx.Module):
    """Whether the derivatives of a solution can be trusted, and how far they are valid."""

    result: Whole
    level: Whole  # 0 trusted, 1 degraded, 2 untrusted
    levels: Array  # of each reason, in the order of `saltus.trust.REASONS`
    events: EventTrust
    guards: GuardTrust
    margins: Margins
    order: Scalar  # the shortest time between two events
    saves: Scalar  # ... between an event and a save time
    end: Scalar  # ... between an event and the end
    growth: Scalar  # of errors, from the start to where they are largest
    floor: Scalar  # below which a relative difference is rounding
    condition: Scalar  # of the equations for algebraic states, at its worst
    drift: Scalar  # off the constraint, in units of the tolerance
    dot: Scalar  # the relative difference of tangent and adjoint sweep
    shift: Scalar  # how much derivatives change within the error of the solution, relative
    solution: Solution = eqx.field(repr=False)
    kinks: tuple[Kink, ...] = eqx.field(static=True, default=())
    names: tuple[str, ...] = eqx.field(static=True, default=())
    guard_names: tuple[str, ...] = eqx.field(static=True, default=())

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not TRUSTED, the worst first."""
        levels = np.asarray(self.levels)
        order = sorted(np.flatnonzero(levels), key=lambda k: -levels[k])
        return tuple(REASONS[k] for k in order)

    @property
    def signature(self) -> tuple[str, ...]:
        """The sequence of events by name, with members as in `hit[3]`."""
        e = self.events
        many = {name.partition("[")[0] for name in self.guard_names if name.endswith("]")}
        found = zip(*(np.asarray(v) for v in (e.which, e.member, e.valid)), strict=True)
        return tuple(
            f"{self.names[w]}[{m}]" if self.names[w] in many else self.names[w]
            for w, m, valid in found
            if valid
        )

    def trust_radius(self, direction: Tree) -> Scalar:
        """How far p may move along `direction` before the sequence of events changes.

        In multiples of `direction`, a pytree like p; to first order, with the start fixed. If
        the start depends on p, use `saltus.certify(loss, p)`.
        """
        return radius(self.margins, moved(self.solution, direction))

    def one_sided(self, direction: Tree) -> NoReturn:
        """Only a loss has one-sided derivatives: see `saltus.certify`."""
        raise AttributeError(
            "sol.certificate: one-sided derivatives are those of a loss. "
            "Write saltus.certify(loss, p).one_sided(direction)."
        )

    def __repr__(self) -> str:
        return report(self)


def radius(now: Margins, change: Margins) -> Scalar:
    """How many times `change` can be added before a margin becomes zero."""
    here, moves = now.vector(), change.vector()
    falls = jnp.isfinite(here) & (moves < 0)
    unknown = jnp.isnan(here) | (jnp.isfinite(here) & jnp.isnan(moves))
    times = jnp.where(falls, here / jnp.where(falls, -moves, 1.0), INF)
    return jnp.min(jnp.where(unknown, jnp.nan, times), initial=INF)


@precise
def moved(sol: Solution, direction: Tree) -> Margins:
    """The first-order motion of the margins when p moves along `direction`."""
    leaves = jax.tree.leaves(direction)
    p = parameters(sol)
    if [np.shape(v) for v in leaves] != [np.shape(v) for v in p]:
        raise ValueError(
            f"trust_radius: the direction has {len(leaves)} leaves, expected a pytree like the "
            f"float leaves of p ({len(p)}). Write cert.trust_radius({{'k': 1.0, ...}})."
        )
    step = tuple(jnp.asarray(v, w.dtype) for v, w in zip(leaves, p, strict=True))
    return jax.jvp(functools.partial(margins_of, sol), (p,), (step,))[1]


@precise
def certificate(sol: Solution) -> Certificate:
    """The certificate of the solution `sol`."""
    if jnp.ndim(sol.result):
        return jax.vmap(certificate)(sol)
    sol = jax.tree.map(jax.lax.stop_gradient, sol)
    traced = is_traced(sol)
    kinks = () if traced else hidden_kinks(sol)
    found, grown, equations = _measured(sol)
    size = _size(sol, found, traced)
    events, rows, guards = _events(sol, found, grown, size)
    jumps = jumped(sol, rows, events.rooted, events.valid)
    events = dataclasses.replace(events, saltation=jumps.norm)
    order = _simultaneous(sol, found, events)
    bent, jump = _kinks(sol, kinks, traced)
    levels, most = _levels(
        sol, found, grown, equations, events, rows, jumps.change, order, (bent, jump)
    )
    if not traced:
        count = int(np.sum(np.asarray(events.valid)))
        events = jax.tree.map(lambda v: array_of(np.asarray(v)[:count]), events)
    names, labels = _names(sol)
    level, between, to_save, to_end, floor = _summary(found, levels, most)
    return Certificate(
        sol.result, level, levels, events, guards, found.margins, between, to_save, to_end,
        most, floor, equations.condition, equations.drift, grown.dot, grown.shift, sol,
        kinks, names, labels,
    )  # fmt: skip


@rarely
def _summary(
    found: Measured, levels: Array, most: Scalar
) -> tuple[Whole, Scalar, Scalar, Scalar, Scalar]:
    """The level; the shortest times between events, to a save time, and to the end; rounding."""
    margins = found.margins
    between, to_save = jnp.min(margins.order, initial=INF), jnp.min(jnp.abs(found.saves))
    return jnp.max(levels), between, to_save, margins.end[0], EPS * most


def _kinks(sol: Solution, kinks: tuple[Kink, ...], traced: bool) -> tuple[Flag, Scalar]:
    """Whether there are hidden kinks, and the largest jump of the flow there."""
    if traced:
        return passed(sol.spec.model, sol.tape)
    jump = np.nanmax([k.jump for k in kinks] + [0.0])  # NaN: not known
    return array_of(bool(kinks)), array_of(jump)


def _names(sol: Solution) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the actions, and of the guards with their members."""
    model = sol.spec.model
    labels = [
        entry_name(a.name, [k] if a.size else []) for a in model.guards for k in range(a.size or 1)
    ]
    return tuple(a.name for a in model.actions), tuple(labels)


@rarely
def _measured(sol: Solution) -> tuple[Measured, Growth, Algebra]:
    found, grown = measure(sol), growth(sol)
    chance = landings(sol, found.seen, found.rows, grown.tangents)
    return found._replace(chance=chance), grown._replace(tangents=()), algebra(sol)


def _size(sol: Solution, found: Measured, traced: bool) -> int:
    """The size of the buffer for events; few different sizes, for few compilations."""
    if traced:
        return min(sol.max_events, found.rows.event.shape[0])
    count = max(int(np.sum(np.asarray(found.rows.event))), 1)
    return 1 << (count - 1).bit_length()


@functools.partial(rarely, static_argnums=(3,))
def _events(
    sol: Solution, found: Measured, grown: Growth, size: int
) -> tuple[EventTrust, Array, GuardTrust]:
    """Measurements of each event, its row, and the closest misses."""
    rows, seen = found.rows, found.seen
    where = jnp.nonzero(rows.event, size=size, fill_value=0)[0]
    valid = jnp.arange(size) < jnp.sum(rows.event)
    own = rows.own[where] & valid[:, None]

    def mine(leaf: Array) -> Vector:
        return jnp.sum(jnp.where(own, leaf[where], 0.0), axis=1)

    used = (jnp.arange(seen.value.shape[0]) <= sol.tape.n)[:, None] & seen.active
    span = jnp.max(jnp.where(used, jnp.abs(seen.value), 0.0), axis=0, initial=0.0)
    span = jnp.sum(jnp.where(own, span[None, :], 0.0), axis=1)
    slope, bend = mine(seen.slope), mine(seen.bend)
    guarded, rooted = jnp.any(own, axis=1), rows.rooted[where] & valid
    before = jnp.maximum(where - rooted, 0)  # where the approach starts
    unsure = mine(seen.unsure) * jnp.maximum(grown.rows[before], 1.0)
    flat = guarded & rooted
    power = slope * slope + 2 * jnp.abs(bend) * span
    straight = jnp.abs(slope) / jnp.sqrt(jnp.where(power > 0, power, 1.0))
    safe = jnp.where(slope == 0, 1e-300, jnp.abs(slope))
    late = jnp.where(flat, unsure / safe, 0.0)
    known = ACCUMULATED_TOLERANCES * (
        grown.off[before] * mine(seen.unsure) + grown.late[before] * safe
    )
    known = jnp.maximum(known, mine(seen.tiny) * jnp.maximum(grown.rows[before], 1.0))
    least = jnp.where(known < unsure, known, unsure)  # NaN counts as too large
    rough = jnp.abs(bend) * unsure / (safe * safe)
    error = jnp.where(rough <= 0.1, jnp.abs(bend) * least / (safe * safe), rough)
    error = jnp.where(flat, error, 0.0)
    member, action = sol.tape.member_of(where), sol.tape.action_index(where)
    events = EventTrust(
        sol.tape.t0 + rows.t[where], action, member, rooted, jnp.where(flat, straight, 1.0),
        jnp.ones(size), late, error, valid,
    )  # fmt: skip
    return events, where, _guards(sol, found, grown)


def _guards(sol: Solution, found: Measured, grown: Growth) -> GuardTrust:
    """The closest each guard came to zero without crossing it."""
    near = found.margins.near
    if near.size == 0:
        empty = jnp.zeros(near.shape[1])
        return GuardTrust(empty, empty, empty)
    place = jnp.argmin(near, axis=0)
    pick = lambda v: jnp.take_along_axis(v, place[None], axis=0)[0]
    unsure = found.seen.unsure * jnp.maximum(grown.rows, 1.0)[:, None]
    unsure = pick(along((unsure[:-1], unsure[1:]), found.place))
    times = sol.tape.t0 + found.rows.t[:-1]
    return GuardTrust(pick(near), times[place], unsure)


def _within(margin: Array, limit: Array) -> Flag:
    """Whether any finite margin is not safely above a limit."""
    return jnp.any((margin != INF) & ~(margin >= limit))


def _level(bad: Flag, worse: Flag) -> Whole:
    return jnp.where(worse, UNTRUSTED, jnp.where(bad, DEGRADED, TRUSTED)).astype(jnp.int32)


@rarely
def _levels(
    sol: Solution, found: Measured, grown: Growth, equations: Algebra, events: EventTrust,
    rows: Array, change: Vector, order: Whole, kinks: tuple[Flag, Scalar],
) -> tuple[Array, Scalar]:  # fmt: skip
    """How bad each reason is, in the order of `REASONS`; and how much errors grow."""
    rtol, _ = sol.tolerance
    used = jnp.arange(grown.rows.shape[0]) <= sol.tape.n
    most = jnp.max(jnp.where(used, grown.rows, 0.0))
    unsure = found.seen.unsure * jnp.maximum(grown.rows, 1.0)[:, None]
    m = found.margins
    watching = jnp.asarray(sol.on_grazing != "ignore")
    there = along((unsure[:-1], unsure[1:]), found.place)
    near = nearest(m.near, there)
    worst = jnp.max(events.error, initial=0.0)
    told = jnp.asarray([a.moving for a in sol.spec.model.actions])[events.which]
    matters, moves = events.rooted & above(change, 1e-8), grown.moves[rows] | told
    late = _late(sol, events)
    times = events.t - sol.tape.t0
    saved = _met(sol, matters, moves, _to_saves(sol, times), late)
    ended = jnp.abs(times - sol.tape.t1 + sol.tape.t0)
    ended = _met(sol, matters, moves, ended, late) | ~(grown.planned > jnp.max(late, initial=0.0))
    going = sol.result != int(Result.terminated)
    end = jax.tree.map(lambda v: jnp.take(v, sol.tape.n, axis=0), found.seen)
    open_end = end.active & (end.slope != 0)
    close = ACCUMULATED_TOLERANCES * jnp.take(unsure, sol.tape.n, axis=0)
    beyond = jnp.any(open_end & ~(jnp.abs(end.value) >= close)) & going
    carried = _within(m.chain, ACCUMULATED_TOLERANCES * unsure[1:]) | _within(
        m.first, ACCUMULATED_TOLERANCES * unsure[0]
    )
    evidence = Evidence(
        failed=sol.result > int(Result.terminated),
        touched=sol.stats.touches > 0,
        watching=watching,
        near=near,
        unseen=found.unseen,
        grazing=worst,
        promised=promised(rtol),
        order=order,
        saved=saved,
        ended=(ended | beyond) & going,
        undecided=carried | found.chance,
        kinked=kinks[0],
        jump=kinks[1],
        growth=rtol * most,
        shift=grown.shift,
        condition=equations.condition,
        drift=equations.drift,
        dot=grown.dot,
        leaps=found.leaps,
    )
    return levels_of(evidence), most


@rarely
def _late(sol: Solution, events: EventTrust) -> Vector:
    """A generous estimate of how uncertain the time of each event is."""
    span = jnp.abs(sol.tape.t1 - sol.tape.t0)
    late = jnp.where(events.rooted, events.uncertainty, 0.0)
    return ACCUMULATED_TOLERANCES * late + 8 * EPS * span


def _met(sol: Solution, matters: Array, moves: Array, gap: Array, late: Array) -> Flag:
    """Whether an event that matters may coincide with a given time, within its uncertainty.

    An event with a fixed time coincides only if rounding decides on which side it is."""
    rounding = 8 * EPS * jnp.maximum(jnp.abs(sol.tape.t0), jnp.abs(sol.tape.t1))
    fixed = ~(gap <= 0) & ~(gap > rounding)
    return jnp.any(matters & jnp.where(moves, ~(gap > late), fixed))


def _to_saves(sol: Solution, times: Vector) -> Vector:
    if jnp.ndim(sol.t) == 0 or sol.t.shape[0] == 0:
        return jnp.full(times.shape, INF)
    ts = sol.t - sol.tape.t0
    return jnp.min(jnp.abs(times[:, None] - ts[None, :]), axis=1, initial=INF)


def _simultaneous(sol: Solution, found: Measured, events: EventTrust) -> Whole:
    """The level of simultaneous events: harmless if their order does not matter (M76)."""
    gap, rooted = found.margins.order, found.rows.rooted
    if is_traced(sol):
        close = rooted[:-1] & ~(gap > jnp.max(_late(sol, events), initial=0.0))
        return _level(jnp.zeros((), bool), jnp.any(close))  # whether they commute is not known
    gap, rooted = np.asarray(gap), np.asarray(rooted)
    if np.all(np.isposinf(gap)):
        return array_of(np.int32(TRUSTED))
    late = float(np.max(np.asarray(_late(sol, events)), initial=0.0))
    places = np.flatnonzero(rooted)
    for k in np.flatnonzero(rooted[:-1] & ~(gap > late)):
        before = places[places < k]
        if before.size and not commute(sol, int(before[-1]), int(k)):
            return array_of(np.int32(UNTRUSTED))
    return array_of(np.int32(TRUSTED))
