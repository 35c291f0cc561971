"""Where along a trajectory a quantity is largest: a look at every cell, then up to the top.

A cell is an eighth of a step, or less where steps are long against the span. Values and slopes at
both ends of a cell say what may lie between them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..simulate.record import FLOW, Spec, is_reset
from .tape import Tape, along_row

PARTS = 8  # cells of a step
KEPT = 8  # cells that are followed
ROUNDS = 60  # evaluations on the way to a place where the quantity stands still
SHARP = 1e-2  # of the slopes at the ends of a cell: a larger one in between is a kink
STEEP = 1e-6  # of the largest slope of all: what is taken for zero


class Cell(NamedTuple):
    """Parts `a` to `b` of a row, with values and slopes (by the part) at both ends."""

    row: Any
    a: Any
    b: Any
    va: Any
    vb: Any
    sa: Any
    sb: Any
    best: Any  # an estimate of the largest value inside
    at: Any  # the part of the row where that is


class Walk(NamedTuple):
    """A look at every cell of every row, one after the other."""

    k: Any  # the row, and which of its cells ends here
    j: Any
    value: Any  # where the cell begins, and the slope there
    slope: Any
    flowed: Any  # since the last jump; in the row before
    flows: Any
    kept: Cell  # the best cells so far
    peak: Any  # the largest value at an edge, and the row that starts there
    edge: Any
    missing: Any
    steepest: Any  # slope by time


class Found(NamedTuple):
    """Where the largest value is: inside a row or at a state, and whether that is a kink."""

    row: Any
    part: Any
    inside: Any
    edge: Any  # the row at whose start it is, if not inside
    kink: Any
    missing: Any  # somewhere the quantity is not a number


def find(spec: Spec, tape: Tape, quantity: Callable, places: int, rtol: Any) -> Found:
    """Where the quantity is largest: along all cells, then to the top of the best of them."""
    par = tape.par()

    def look(k: Any, part: Any) -> tuple[Any, Any]:
        def value(part: Any) -> Any:
            return quantity(along_row(spec, tape, k, part * _length(tape, k)), par)

        return jax.jvp(value, (part,), (jnp.ones_like(part),))

    some = jnp.argmax(tape.kind == FLOW)  # a row that flows, if there is one
    walk = jax.lax.while_loop(
        lambda w: w.k <= tape.n,
        functools.partial(_walked, tape, quantity, look, places),
        _first_walk(some),
    )

    def follow(j: Any, best: tuple) -> tuple:
        cell = jax.tree.map(lambda v: v[j], walk.kept)
        found = (cell.row, *_followed(cell, functools.partial(look, cell.row)))
        sharp = jnp.abs(found[3]) > SHARP * jnp.maximum(jnp.abs(cell.sa), jnp.abs(cell.sb))
        found = (*found, sharp)
        better = (cell.best > -jnp.inf) & (found[2] > best[2])
        return jax.tree.map(lambda new, old: jnp.where(better, new, old), found, best)

    none = (some, jnp.full((), 0.5), jnp.full((), -jnp.inf), jnp.zeros(()), jnp.zeros((), bool))
    row, part, top, slope, sharp = jax.lax.fori_loop(0, KEPT, follow, none)
    inside = top > walk.peak
    zero = jnp.maximum(STEEP, 10.0 * rtol) * walk.steepest
    kink = inside & sharp & (jnp.abs(slope) > zero * jnp.abs(_length(tape, row)))
    row, part = jnp.where(inside, row, some), jnp.where(inside, part, 0.5)
    return Found(row, part, inside, walk.edge, kink, walk.missing)


def _first_walk(row: Any) -> Walk:
    zero, off, number = jnp.zeros(()), jnp.zeros((), bool), jnp.zeros((), int)
    blank, none = jnp.zeros((KEPT,)), jnp.full((KEPT,), -jnp.inf)
    kept = Cell(jnp.full((KEPT,), row), blank, blank, blank, blank, blank, blank, none, blank)
    low = jnp.full((), -jnp.inf)
    return Walk(number, number, zero, zero, off, off, kept, low, number, off, zero)


def _length(tape: Tape, k: Any) -> Any:
    return tape.tau[jnp.minimum(k + 1, tape.n)] - tape.tau[jnp.minimum(k, tape.n)]


def _walked(tape: Tape, quantity: Callable, look: Callable, places: int, walk: Walk) -> Walk:
    """One place further.

    The edges are the start, the end, and both sides of every jump. A state in the middle of a chain
    of jumps is on neither side. The last bit of flow up to a jump is no place of its own: the
    jump's row starts there, with the derivative of its time."""
    k, j, first = walk.k, walk.j, walk.j == 0
    inside = k < tape.n
    kind = tape.kind[jnp.minimum(k, tape.kind.shape[0] - 1)]
    flow, jump = inside & (kind == FLOW), inside & is_reset(kind)
    length = _length(tape, k)
    share = jnp.abs(length / jnp.where(tape.end.tau == 0, 1.0, tape.end.tau))
    parts = jnp.maximum(PARTS, jnp.ceil(places * jnp.where(share < 1, share, 1.0)).astype(int))
    here = jnp.minimum(j / parts, 1.0)
    edge = first & ((k == 0) | ~inside | (jump & walk.flowed) | (flow & ~walk.flows))
    at_edge = jax.lax.cond(
        edge, lambda: quantity(tape.state(k), tape.par()), lambda: jnp.full((), -jnp.inf)
    )
    value, slope = jax.lax.cond(
        flow, lambda: look(k, here), lambda: (jnp.full((), -jnp.inf), jnp.zeros(()))
    )
    after = (k + 1 < tape.n) & (tape.kind[jnp.minimum(k + 1, tape.kind.shape[0] - 1)] == FLOW)
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


def _kept(kept: Cell, cell: Cell, real: Any) -> Cell:
    """The cells that are kept, with this one in place of the least if it is better."""
    worst = jnp.argmin(kept.best)
    take = real & (cell.best > kept.best[worst])

    def one(old: Any, new: Any) -> Any:
        new = jnp.where(take, new, old[worst]).astype(old.dtype)
        return jax.lax.dynamic_update_index_in_dim(old, new, worst, 0)

    return jax.tree.map(one, kept, cell)


def _judged(cell: Cell, from_start: Any, to_end: Any) -> Cell:
    """The cell with an estimate of its largest value, by a cubic through both ends.

    An end of a row counts where the flow goes on in the next; else it is an edge."""
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

    Between a slope up and a slope down: regula falsi (Illinois), halving where that is slow. A
    cell whose slopes have one sign is cut where its cubic bends."""
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
        fl = jnp.where(up, s, jnp.where(last < 0, 0.5 * fl, fl))  # what stays twice counts half
        fh = jnp.where(up, jnp.where(last > 0, 0.5 * fh, fh), s)
        low, high = jnp.where(up, place, low), jnp.where(up, high, place)
        higher = v > best[1] + rounding
        flatter = (v >= best[1] - rounding) & (jnp.abs(s) < jnp.abs(best[2]))
        best = tuple(
            jnp.where(higher | flatter, x, y) for x, y in zip((place, v, s), best, strict=True)
        )
        return count + 1, low, high, fl, fh, jnp.where(up, 1, -1), best

    def going(carry: tuple) -> Any:
        count, low, high, *_, (_, _, slope) = carry
        wide = high - low > 4 * jnp.finfo(jnp.float64).eps
        return between & (count < ROUNDS) & wide & (slope != 0)

    zero = jnp.zeros((), int)
    start = (zero, low, high, fl, fh, zero, (cell.at, *look(cell.at)))
    return jax.lax.while_loop(going, step, start)[-1]
