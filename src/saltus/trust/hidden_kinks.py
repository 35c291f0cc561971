"""Kinks that a solve has passed without an event: found afterwards, on its rows.

`abs`, `jnp.where`, `clip`, `floor` and tables inside a flow switch at times that are not located as
events. If the flow only has a kink there, steps lose accuracy; if it jumps, derivatives silently
lose a term. Every such operation has an outcome (which branch, which place in the table). A kink
was passed if an outcome differs between the start and the end of a step, or differs from both at
some place in between (a `where` that is true for a moment).

The bodies of loops and conditionals are examined; operations that cannot be (a callback, a very
long loop) are listed by their line. Not found are kinks that are passed twice between two sampled
places (four in every step, 512 in the span), decisions of a `while` after 64 iterations, kinks of
resets and outputs (they matter only if a loss is exactly at one: `saltus.certify` checks both
sides), and kinks of guards (guard_jumps.py examines events).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..base.host_programs import rarely
from ..base.leaves import Leaves
from ..base.tracing import is_tracer
from ..base.types import Array, Flag, Scalar, Tree, Vector, Whole
from ..model.model import At, Model
from ..simulate.record import Spec
from ..solution.solution import Solution
from ..solution.tape import Tape
from .nonsmooth import Op
from .operation_text import line_of, lines_of, words_of
from .row_curves import Curves, Run, over_rows, program_of

T = TypeVar("T")
REPORTED_KINKS = 20  # at most
CROSSINGS_PER_LINE = 8  # that are examined, at most
ROW_PLACES = (0.2, 0.4, 0.6, 0.8)  # places in every row
SPAN_PLACES = 512  # in the whole span
HALVINGS = 45
JUST_BEYOND = 2.0**-40, 2.0**-44  # of the row, and of the time
RESULT_ROUNDING = 1e-12  # results that differ by less, relative to the flow's size, are the same
SMALLEST_JUMP = 1e-7  # relative to the flow: a smaller one is a bend
MOST_ALGEBRAIC_STATES = 300  # with more, the jump at a kink is not computed


@dataclasses.dataclass(frozen=True)
class Kink:
    """A kink that a solve has passed: its time, the operation, and its line in the model.

    `jump` is the size of the flow's jump there relative to the flow (0 if only its derivative
    jumps, NaN if not known). A jump makes derivatives wrong, a kink without one makes them less
    accurate: mark it with `saltus.when`.
    """

    t: float
    what: str
    where: str
    jump: float


def hidden_kinks(sol: Solution) -> tuple[Kink, ...]:
    """The kinks that a finished solve has passed without an event, in order of time.

    The flow, the rate and the constraint are examined on the recorded rows. At most 20 kinks are
    returned; for a line that is passed many times, only the first ones.
    """
    tape = jax.tree.map(jax.lax.stop_gradient, sol.tape)  # plain numbers even inside `jax.grad`
    if any(map(is_tracer, jax.tree.leaves(tape))):
        raise TypeError(
            "hidden_kinks: the solution is traced and has no numbers yet. Call it outside of jit, "
            "or count kinks with saltus.trust.hidden_kinks.crossed(sol.spec, sol.tape)."
        )
    if jnp.ndim(tape.n):
        raise TypeError("hidden_kinks: this is a batch of solutions. Write hidden_kinks(sol[k]).")
    program = program_of(sol.spec.model)
    unseen = [Kink(float(tape.t0), _blind(op), line_of(op), np.nan) for op in program.blind]
    if not program.size:
        return tuple(unseen[:REPORTED_KINKS])
    texts, _ = _lines(sol.spec.model)
    found = jax.tree.map(np.asarray, _found(sol.spec.model, tape))
    kinks = unseen
    for line, nth in sorted(np.argwhere(found.real), key=lambda k: (k[1], k[0])):
        owner, op = program.op_at(int(found.place[line, nth]))
        t, jump = float(found.t[line, nth]), float(found.jump[line, nth])
        kinks.append(Kink(t, words_of(owner, op), texts[line], jump))
    return tuple(sorted(kinks[:REPORTED_KINKS], key=lambda kink: kink.t))


def passed(model: Model, tape: Tape) -> tuple[Flag, Scalar]:
    """Whether a solve has passed kinks or could not be examined, and the largest jump there.

    Works inside `jit` and `vmap`."""
    program = program_of(model)
    some = jnp.asarray(bool(program.blind))
    if not program.size:
        return some, jnp.zeros(())
    found = _found(model, jax.tree.map(jax.lax.stop_gradient, tape))
    jumps = jnp.where(found.real & (found.jump > 0), found.jump, 0.0)  # NaN: not known
    return some | jnp.any(found.real), jnp.max(jumps, initial=0.0)


def _blind(op: Op) -> str:
    return f"{op.eqn.primitive.name}, which cannot be examined"


def crossed(spec: Spec, tape: Tape) -> Whole:
    """How many kinks a solve has passed without an event; works inside `jit` and `vmap`."""
    if not program_of(spec.model).size:
        return jnp.zeros((), jnp.int32)
    return _count(spec.model, jax.tree.map(jax.lax.stop_gradient, tape))


@functools.lru_cache(maxsize=256)
def _lines(model: Model) -> tuple[list[str], np.ndarray]:
    """The lines that decide something, and for each outcome the number of its line."""
    return lines_of(program_of(model))


class _Found(NamedTuple):
    """For each line and each of its first crossings: what was found there."""

    real: Array  # the change of outcome changes a result
    place: Array  # the outcome that changed
    t: Array
    jump: Array


@functools.partial(rarely, static_argnums=(0,))
def _count(model: Model, tape: Tape) -> Whole:
    curves = Curves.of(model, tape)
    has = _changes(curves)
    spots = _spots(curves, has)
    real = _at_each(spots, lambda spot, line: _judged(curves, spot, line, 0).real, False)
    seen, every = jnp.sum(real, axis=1), jnp.all(real | ~spots.valid, axis=1)
    more = jnp.maximum(jnp.sum(has, axis=0) - CROSSINGS_PER_LINE, 0)
    return jnp.sum(jnp.where(every, seen + more, seen)).astype(jnp.int32)


@functools.partial(rarely, static_argnums=(0,))
def _found(model: Model, tape: Tape) -> _Found:
    curves = Curves.of(model, tape)
    blank = _Found(*map(jnp.asarray, (False, 0, 0.0, 0.0)))
    spots = _spots(curves, _changes(curves))
    return _at_each(spots, lambda spot, line: _judged(curves, spot, line), blank)


class _Spot(NamedTuple):
    """Where outcomes of a line change: between the start of a row and a part of it."""

    row: Array
    part: Array
    valid: Array


def _spots(curves: Curves, has: Array) -> _Spot:
    """For each line, the first rows across which its outcome changes, and the first place inside a
    row at which it differs from both ends; `valid` is false for unused entries."""
    first = lambda mine, most: jnp.nonzero(mine, size=most, fill_value=mine.shape[0])[0]
    n = has.shape[0]
    rows = jax.vmap(lambda mine: first(mine, CROSSINGS_PER_LINE))(has.T)
    (place, part), away = _away(curves)
    at = jax.vmap(lambda mine: first(mine, 1))(away.T)
    last = jnp.minimum(at, away.shape[0] - 1)
    ends = _Spot(jnp.minimum(rows, n - 1), jnp.ones(rows.shape), rows < n)
    inside = _Spot(place[last], part[last], at < away.shape[0])
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), ends, inside)


def _away(curves: Curves) -> tuple[tuple[Vector, Vector], Array]:
    """Places in all rows, and which lines have outcomes there that differ from both ends."""
    rows, count = jnp.arange(curves.flows.shape[0]), curves.flows.shape[0]
    times = jnp.abs(curves.first.tau - curves.first.tau[0])
    used = rows <= jnp.max(jnp.where(curves.flows, rows, 0))
    end = jnp.max(jnp.where(curves.flows, jnp.abs(curves.last.tau - curves.first.tau[0]), 0.0))
    t = end * (jnp.arange(SPAN_PLACES) + 0.5) / SPAN_PLACES
    row = jnp.searchsorted(jnp.where(used, times, jnp.inf), t, side="right") - 1
    row = jnp.clip(row, 0, count - 1)
    length = jnp.abs(curves.last.tau - curves.first.tau)[row]
    part = jnp.clip((t - times[row]) / jnp.where(length > 0, length, 1.0), 0.0, 1.0)
    places = (
        jnp.concatenate([jnp.repeat(rows, len(ROW_PLACES)), row]),
        jnp.concatenate([jnp.tile(jnp.asarray(ROW_PLACES), count), part]),
    )

    def one(k: Whole) -> Array:
        row, part = (v[k] for v in places)
        first, last = curves.ends(row)
        ats = _stacked(first, last, curves.along(row, part))
        runs = jax.vmap(curves.run)(ats)
        a, b, here = runs.outcomes
        return _by_line(curves, (a == b) & (here != a) & runs.alive[2], ats) & curves.flows[row]

    return places, over_rows(one, places[0])


def _at_each(spots: _Spot, look: Callable[[_Spot, Whole], T], blank: Tree) -> T:
    """`look(spot, line)` at all valid crossings, one after the other."""
    lines = jnp.broadcast_to(jnp.arange(spots.row.shape[0])[:, None], spots.row.shape)

    def one(given: tuple[_Spot, Whole]) -> T:
        spot, line = given
        like = jax.eval_shape(look, spot, line)
        none = jax.tree.map(lambda b, v: jnp.full(v.shape, b, v.dtype), blank, like)
        return jax.lax.cond(spot.valid, lambda: look(spot, line), lambda: none)

    flat = jax.lax.map(one, (jax.tree.map(jnp.ravel, spots), lines.ravel()))
    return jax.tree.map(lambda v: v.reshape(lines.shape), flat)


def _changes(curves: Curves) -> Array:
    """In which rows (first axis) the outcomes of which lines (second axis) change."""

    def row(k: Whole) -> Array:
        ends = _stacked(*curves.ends(k))
        runs = jax.vmap(curves.run)(ends)
        differ = (runs.outcomes[0] != runs.outcomes[1]) & jnp.any(runs.alive, axis=0)
        return _by_line(curves, differ, ends) & curves.flows[k]

    return over_rows(row, curves.flows)


def _by_line(curves: Curves, differ: Array, ats: At) -> Array:
    """Which lines have an outcome that differs, where all states are finite."""
    texts, line_of = _lines(curves.model)
    mine = jnp.asarray(line_of[None, :] == np.arange(len(texts))[:, None])
    total = sum(jnp.sum(v) for v in (ats.tau, *curves.model.x_of(ats), *ats.z))
    return jnp.any(mine & differ[None, :], axis=1) & jnp.isfinite(total)


def _stacked(*ats: At) -> At:
    return jax.tree.map(lambda *v: jnp.stack(v), *ats)


class _Bracket(NamedTuple):
    """A crossing between two parts of a row, and the outcomes there."""

    low: Scalar
    high: Scalar
    beyond: Vector  # the outcomes at `high`
    old: Vector  # at the start of the row
    new: Vector  # at the spot
    alive: Array

    def changed(self, own: Array) -> Array:
        return own & self.alive & (self.old != self.new)


def _located(curves: Curves, spot: _Spot, own: Array, halvings: int) -> _Bracket:
    """Where the first outcome of a line changes before a spot, by bisection.

    The last look is just beyond: at the place itself, `sign` has an outcome of its own."""
    start, end = curves.ends(spot.row)
    time = jnp.abs(curves.par.t0) + jnp.abs(end.tau)
    length = jnp.maximum(jnp.abs(end.tau - start.tau), jnp.finfo(time.dtype).tiny)
    beyond = JUST_BEYOND[0] + JUST_BEYOND[1] * time / length

    def look(j: Whole, s: _Bracket) -> _Bracket:
        part = jnp.where(j == 0, 0.0, jnp.where(j == 1, spot.part, 0.5 * (s.low + s.high)))
        last = j == 2 + halvings
        part = jnp.where(last, jnp.minimum(s.high + beyond, spot.part), part)
        run = curves.run(curves.along(spot.row, part))
        here, inside = run.outcomes, j > 1
        passed = inside & jnp.any(s.changed(own) & (here != s.old))
        return _Bracket(
            jnp.where(inside & ~passed & ~last, part, s.low),
            jnp.where(passed & ~last, part, s.high),
            jnp.where(passed | (j == 1), here, s.beyond),
            jnp.where(j == 0, here, s.old),
            jnp.where(j == 1, here, s.new),
            s.alive | (run.alive & ~inside),
        )

    blank = jnp.zeros(own.shape)
    ends = (jnp.zeros(()), spot.part * jnp.ones(()))
    first = _Bracket(*ends, blank, blank, blank, jnp.zeros(own.shape, bool))
    return jax.lax.fori_loop(0, 3 + halvings if halvings else 2, look, first)


def _judged(curves: Curves, spot: _Spot, line: Whole, halvings: int = HALVINGS) -> _Found:
    """One crossing: where it is, whether it changes results, and the jump of the flow there."""
    own = jnp.asarray(_lines(curves.model)[1]) == line
    ends = curves.ends(spot.row)[0], curves.along(spot.row, spot.part)
    found = _located(curves, spot, own, halvings)
    before, there = (curves.along(spot.row, part) for part in (found.low, found.high))
    # Each end with its own and the other end's outcomes; the crossing with those of both sides.
    ats = [ends[0], ends[0], ends[1], ends[1], there, there, before]
    told = [found.old, found.new, found.new, found.old, found.beyond, found.old, found.old]
    if not halvings:
        ats, told = ats[:4], told[:4]
    runs = jax.vmap(curves.run, (0, 0, None))(_stacked(*ats), jnp.stack(told), own)
    return _Found(
        real=_matters(curves, _stacked(*ends), runs),
        place=jnp.argmax(found.changed(own) & (found.beyond != found.old)),
        t=curves.par.t0 + there.tau,
        jump=_jump(curves, runs, (before, there), found, own) if halvings else jnp.zeros(()),
    )


def _matters(curves: Curves, ends: At, runs: Run) -> Flag:
    """Whether the outcomes of a line change results at the ends of the row.

    Some smooth functions are only written in pieces (`softplus`, `hypot`): there each piece gives
    the same results on both sides of the crossing.
    """
    different = jnp.zeros((), bool)
    for v, size in zip(runs.flow, curves.sizes, strict=True):
        different = different | ~jnp.all(jnp.abs(v[0:4:2] - v[1:4:2]) <= RESULT_ROUNDING * size)
    sizes = jax.vmap(lambda at: _residual_sizes(curves, at))(ends)
    for v, size in zip(runs.residuals, sizes, strict=True):
        different = different | ~jnp.all(jnp.abs(v[0:4:2] - v[1:4:2]) <= RESULT_ROUNDING * size)
    return different


def _residual_sizes(curves: Curves, at: At) -> Leaves:
    """How large the terms of the residuals are."""
    model = curves.model
    if model.constraint is None:
        return ()

    def of(x: Leaves, z: Leaves) -> Leaves:
        return curves.run(model.with_x(at, x, z=z)).residuals

    here = (model.x_of(at), at.z)
    value, moved = jax.jvp(of, here, here)
    return tuple(jnp.abs(a) + jnp.abs(b) for a, b in zip(value, moved, strict=True))


def _jump(curves: Curves, runs: Run, sides: tuple[At, At], found: _Bracket, own: Array) -> Scalar:
    """The jump of the flow at a kink, relative to the flow's size."""
    (before, there), old = sides, found.old
    if sum(v.size for v in there.z) > MOST_ALGEBRAIC_STATES:
        return jnp.full((), jnp.nan)
    flows = tuple(v[4:] for v in runs.flow)
    if curves.model.constraint is not None:
        told = jnp.stack([found.beyond, old, old])
        solve = jax.vmap(lambda at, told: solved_flow(curves, at, told, own))
        flows = solve(_stacked(there, there, before), told)
    after, ahead, behind = (tuple(v[j] for v in flows) for j in range(3))
    # If the old branch is not finite beyond a kink, the flow just before and after is compared.
    jump = flow_difference(curves, after, ahead)
    jump = jnp.where(jnp.isfinite(jump), jump, flow_difference(curves, after, behind))
    return jnp.where(jump < SMALLEST_JUMP, 0.0, jump)


def flow_difference(curves: Curves, new: Leaves, old: Leaves) -> Scalar:
    """How far apart two flows are, relative to the flow's size."""
    worst = jnp.zeros(())
    for a, b, size in zip(new, old, curves.sizes, strict=True):
        scale = jnp.maximum(size, jnp.maximum(jnp.abs(a), jnp.abs(b)))
        ratio = jnp.abs(a - b) / jnp.where(scale == 0, 1.0, scale)
        worst = jnp.maximum(worst, jnp.max(jnp.where(jnp.isnan(ratio), jnp.inf, ratio), initial=0))
    return worst


# -- algebraic states ---------------------------------------------------------------------------
def solved_flow(curves: Curves, at: At, told: Vector, mask: Array) -> Leaves:
    """The flow with algebraic states solved for, using the outcomes `told` under `mask`."""
    flat, unravel = ravel_pytree(at.z)

    def residual(flat: Vector) -> Vector:
        leaves = _hidden(curves, at._replace(z=unravel(flat)), told, mask)
        return ravel_pytree(leaves)[0]

    for _ in range(6):
        flat = flat - jnp.linalg.solve(jax.jacfwd(residual)(flat), residual(flat))
    return curves.run(at._replace(z=unravel(flat)), told, mask).flow


def _hidden(curves: Curves, at: At, told: Vector, mask: Array) -> Leaves:
    """The equations for z: `g` for index 1, `g_t + g_x f` for index 2 (M36)."""
    model = curves.model
    rule = model.constraint
    assert rule is not None
    slope = curves.run(at, told, mask).flow[: model.nx]

    def of(tau: Scalar, x: Leaves) -> Leaves:
        return curves.run(model.with_x(at, x, tau=tau), told, mask).residuals

    values, rates = jax.jvp(of, (at.tau, model.x_of(at)), (jnp.ones_like(at.tau), slope))
    pins = (False,) * len(values)
    if rule.pinned is not None:
        pins = tuple(rule.pinned(model.args(at, curves.par), curves.par))
    return tuple(
        v if index == 1 else jnp.where(pin, v, r)
        for v, r, index, pin in zip(values, rates, rule.index, pins, strict=True)
    )
