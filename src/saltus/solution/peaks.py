"""Where along a trajectory a quantity is largest: every cell is sampled, the best are refined.

A cell is an eighth of a step, or less where steps are long relative to the span. Values and slopes
at both ends of a cell give an estimate of the largest value between them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..base.types import Array, Flag, Scalar, Whole
from ..simulate.record import Spec
from .tape import Tape, along_row

CELLS_PER_STEP = 8
FOLLOWED_CELLS = 8  # the most promising ones
MAX_EVALUATIONS = 60  # to find one stationary point
KINK_SLOPE = 1e-2  # relative to the slopes at the ends of a cell: above this it is a kink
ZERO_SLOPE = 1e-6  # relative to the largest slope of all


class Cell(NamedTuple):
    """Parts `a` to `b` of a row, with values and slopes (by the part) at both ends."""

    row: Whole
    a: Scalar
    b: Scalar
    va: Scalar
    vb: Scalar
    sa: Scalar
    sb: Scalar
    best: Scalar  # an estimate of the largest value inside
    at: Scalar  # the part of the row where that is


class Walk(NamedTuple):
    """The state of a loop over all cells of all rows."""

    k: Whole  # the row, and (j) which of its cells ends here
    j: Whole
    value: Scalar  # at the start of the cell, with the slope there
    slope: Scalar
    flowed: Flag  # whether there was a step since the last jump, and (flows) in the row before
    flows: Flag
    kept: Cell  # the best cells so far
    peak: Scalar  # the largest value at an edge, and (edge) the row that starts there
    edge: Whole
    missing: Flag
    steepest: Scalar  # slope by time


class Found(NamedTuple):
    """Where the largest value is: inside a row or at a state, and whether that is a kink."""

    row: Whole
    part: Scalar
    inside: Flag
    edge: Whole  # the row at whose start it is, if not inside
    kink: Flag
    missing: Flag  # whether the quantity is NaN somewhere


def find(spec: Spec, tape: Tape, quantity: Callable, places: int, rtol: Scalar) -> Found:
    """Where the quantity is largest: all cells are sampled, the best ones are refined."""
    par = tape.par()

    def look(k: Whole, part: Scalar) -> tuple[Any, Any]:
        def value(part: Scalar) -> Scalar:
            return quantity(along_row(spec, tape, k, part * _length(tape, k)), par)

        return jax.jvp(value, (part,), (jnp.ones_like(part),))

    some = tape.first_flow_row()
    walk = jax.lax.while_loop(
        lambda w: w.k <= tape.n,
        functools.partial(_walked, tape, quantity, look, places),
        _first_walk(some),
    )

    def follow(j: Whole, best: tuple) -> tuple:
        cell = jax.tree.map(lambda v: v[j], walk.kept)
        found = (cell.row, *_followed(cell, functools.partial(look, cell.row)))
        sharp = jnp.abs(found[3]) > KINK_SLOPE * jnp.maximum(jnp.abs(cell.sa), jnp.abs(cell.sb))
        found = (*found, sharp)
        better = (cell.best > -jnp.inf) & (found[2] > best[2])
        return jax.tree.map(lambda new, old: jnp.where(better, new, old), found, best)

    none = (some, jnp.full((), 0.5), jnp.full((), -jnp.inf), jnp.zeros(()), jnp.zeros((), bool))
    row, part, top, slope, sharp = jax.lax.fori_loop(0, FOLLOWED_CELLS, follow, none)
    inside = top > walk.peak
    zero = jnp.maximum(ZERO_SLOPE, 10.0 * rtol) * walk.steepest
    kink = inside & sharp & (jnp.abs(slope) > zero * jnp.abs(_length(tape, row)))
    row, part = jnp.where(inside, row, some), jnp.where(inside, part, 0.5)
    return Found(row, part, inside, walk.edge, kink, walk.missing)


def _first_walk(row: Whole) -> Walk:
    zero, off, number = jnp.zeros(()), jnp.zeros((), bool), jnp.zeros((), int)
    blank, none = jnp.zeros((FOLLOWED_CELLS,)), jnp.full((FOLLOWED_CELLS,), -jnp.inf)
    kept = Cell(
        jnp.full((FOLLOWED_CELLS,), row), blank, blank, blank, blank, blank, blank, none, blank
    )
    low = jnp.full((), -jnp.inf)
    return Walk(number, number, zero, zero, off, off, kept, low, number, off, zero)


def _length(tape: Tape, k: Whole) -> Scalar:
    return tape.tau[jnp.minimum(k + 1, tape.n)] - tape.tau[jnp.minimum(k, tape.n)]


def _walked(tape: Tape, quantity: Callable, look: Callable, places: int, walk: Walk) -> Walk:
    """The next sample.

    The edges are the start, the end, and both sides of every jump. A state in the middle of a chain
    of jumps is on neither side. The end of the flow before a jump is not a separate place: the
    jump's row starts there, with the derivative of its time."""
    k, j, first = walk.k, walk.j, walk.j == 0
    inside = k < tape.n
    flow, jump = tape.flows(k), tape.resets(k)
    length = _length(tape, k)
    share = jnp.abs(length / jnp.where(tape.end.tau == 0, 1.0, tape.end.tau))
    parts = jnp.maximum(
        CELLS_PER_STEP, jnp.ceil(places * jnp.where(share < 1, share, 1.0)).astype(int)
    )
    here = jnp.minimum(j / parts, 1.0)
    edge = first & ((k == 0) | ~inside | (jump & walk.flowed) | (flow & ~walk.flows))
    at_edge = jax.lax.cond(
        edge, lambda: quantity(tape.state(k), tape.par()), lambda: jnp.full((), -jnp.inf)
    )
    value, slope = jax.lax.cond(
        flow, lambda: look(k, here), lambda: (jnp.full((), -jnp.inf), jnp.zeros(()))
    )
    after = tape.flows(k + 1)
    cell = Cell(k, here - 1.0 / parts, here, walk.value, value, walk.slope, slope, value, here)
    cell = _judged(cell, (j > 1) | walk.flows, (j < parts) | after)
    better, more = at_edge > walk.peak, flow & (j < parts)
    steep = jnp.abs(slope / jnp.where(flow, length, 1.0))
    return Walk(
        jnp.where(more, k, k + 1), jnp.where(more, j + 1, 0), value, slope,
        jnp.where(more, walk.flowed, (walk.flowed | flow) & ~jump),
        jnp.where(more, walk.flows, flow),
        _kept(walk.kept, cell, flow & ~first),
        jnp.where(better, at_edge, walk.peak), jnp.where(better, k, walk.edge),
        walk.missing | jnp.isnan(value) | jnp.isnan(at_edge),
        jnp.maximum(walk.steepest, jnp.where(jnp.isfinite(steep), steep, 0.0)),
    )  # fmt: skip


def _kept(kept: Cell, cell: Cell, real: Flag) -> Cell:
    """The cells that are kept, with this one replacing the worst if it is better."""
    worst = jnp.argmin(kept.best)
    take = real & (cell.best > kept.best[worst])

    def one(old: Array, new: Scalar) -> Array:
        new = jnp.where(take, new, old[worst]).astype(old.dtype)
        return jax.lax.dynamic_update_index_in_dim(old, new, worst, 0)

    return jax.tree.map(one, kept, cell)


def _judged(cell: Cell, from_start: Flag, to_end: Flag) -> Cell:
    """The cell with an estimate of its largest value, by a cubic through both ends.

    The end of a row counts if the next row continues the flow; otherwise it is an edge."""
    size = cell.b - cell.a
    da, db = (jnp.where(jnp.isfinite(s), s, 0.0) * size for s in (cell.sa, cell.sb))
    rise = cell.vb - cell.va
    a, b = 3 * (da + db - 2 * rise), 2 * (3 * rise - 2 * da - db)
    q = -0.5 * (b + jnp.where(b < 0, -1.0, 1.0) * jnp.sqrt(b * b - 4 * a * da))
    best, at = jnp.full((), -jnp.inf), cell.a
    for u, counts in ((da / q, True), (q / a, True), (0.0, from_start), (1.0, to_end)):
        v = 1.0 - u
        y = v * v * ((1 + 2 * u) * cell.va + u * da) + u * u * ((1 + 2 * v) * cell.vb - v * db)
        take = counts & (u >= 0) & (u <= 1) & (y > best)
        best, at = jnp.where(take, y, best), jnp.where(take, cell.a + u * size, at)
    return cell._replace(best=best, at=at)


def _followed(cell: Cell, look: Callable) -> tuple[Any, Any, Any]:
    """The part of the row where the slope is zero, the value and the slope there.

    Where the slope changes from positive to negative: regula falsi (Illinois), with bisection
    where that is slow. A cell whose slopes have one sign is cut at the inflection of its cubic."""
    a, b, sa, sb = cell.a, cell.b, cell.sa, cell.sb
    size = b - a
    rise, da, db = cell.vb - cell.va, sa * size, sb * size
    bend = -(3 * rise - 2 * da - db) / (3 * (da + db - 2 * rise))
    same = (bend > 0.05) & (bend < 0.95) & (sa * sb > 0)
    cut = a + jnp.where(same, bend, 0.5) * size
    slope = look(cut)[1]
    low, fl = (jnp.where(same & (sa < 0), x, y) for x, y in ((cut, a), (slope, sa)))
    high, fh = (jnp.where(same & (sa > 0), x, y) for x, y in ((cut, b), (slope, sb)))
    between = (fl > 0) & (fh < 0)
    rounding = 1e-14 * jnp.maximum(jnp.abs(cell.va), jnp.abs(cell.vb))

    def step(carry: tuple) -> tuple:
        count, low, high, fl, fh, last, best = carry
        falsi = low + (high - low) * (fl / (fl - fh))
        halved = (count % 4 == 3) | ~((falsi > low) & (falsi < high))
        place = jnp.where(halved, 0.5 * (low + high), falsi)
        v, s = look(place)
        up = s > 0
        fl = jnp.where(up, s, jnp.where(last < 0, 0.5 * fl, fl))  # Illinois
        fh = jnp.where(up, jnp.where(last > 0, 0.5 * fh, fh), s)
        low, high = jnp.where(up, place, low), jnp.where(up, high, place)
        higher = v > best[1] + rounding
        flatter = (v >= best[1] - rounding) & (jnp.abs(s) < jnp.abs(best[2]))
        best = tuple(
            jnp.where(higher | flatter, x, y) for x, y in zip((place, v, s), best, strict=True)
        )
        return count + 1, low, high, fl, fh, jnp.where(up, 1, -1), best

    def going(carry: tuple) -> Flag:
        count, low, high, *_, (_, _, slope) = carry
        wide = high - low > 4 * jnp.finfo(jnp.float64).eps
        return between & (count < MAX_EVALUATIONS) & wide & (slope != 0)

    zero = jnp.zeros((), int)
    start = (zero, low, high, fl, fh, zero, (cell.at, *look(cell.at)))
    return jax.lax.while_loop(going, step, start)[-1]
