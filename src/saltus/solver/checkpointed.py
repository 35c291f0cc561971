"""Solves whose derivatives need bounded memory: pieces that are simulated again when needed.

The value of a piece is the state where the next one starts, which the first pass has kept
(simulate/checkpointed.py). Its derivative is that of its rows, which exist only while the piece is
differentiated: the pieces are the steps of a `scan`, each under `jax.checkpoint`.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.results import KINDS, Result, SolveError
from ..base.tracing import is_tracer
from ..base.types import Array, Function, Numbers, Scalar, Whole
from ..base.unreached_values import everything
from ..model.model import At, Par
from ..simulate.checkpointed import Cut, Front, again, first_pass
from ..simulate.guards import resolution
from ..simulate.primitive import Outcome
from ..simulate.record import FLOW, Carry, Knobs, Rows, Spec
from ..simulate.save_times import Visits, visit, within
from ..solution.description import describe, mode_name
from ..solution.failure import state_values, state_words
from ..solution.solution import Solution
from ..solution.tape import Tape
from ..sweep.primitives import Recorded, replay

if TYPE_CHECKING:
    from typing import NoReturn

SAVES_PER_PIECE = 32
NEWTON_GAP = 1e-6  # relative to a step: the largest gap for steps with recorded stages
NO_ROW = jnp.iinfo(jnp.int32).max  # comes after every row


class Item(NamedTuple):
    """What the first pass kept of one piece."""

    start: Front
    stop: tuple  # (tau, *w) where it ends
    decided: list[Array]  # the integers of the state there, such as modes and counts
    ts: Array | None  # the save times from the first one in this piece on
    own: Array | None  # how many of them are in this piece


def in_pieces(
    spec: Spec, at: At, par: Par, knobs: Knobs, size: int, capacity: int, ts: Array | None
) -> tuple[Outcome, Tape, Visits | None]:
    """A solve in pieces of `size` rows: its outcome, its end, and the states at save times."""
    count = 0 if ts is None else ts.shape[0]
    cut = Cut(spec, size, min(count, SAVES_PER_PIECE))
    cut = cut._replace(
        pieces=-(-capacity // size) + (-(-count // SAVES_PER_PIECE) + 1 if count else 0)
    )
    order, times = _sorted(cut, par, ts)
    end, starts, progress = first_pass(cut, at, par, knobs, times)
    last = progress.pieces + ~progress.new  # a piece that was cut short counts
    number = starts.base.shape[0] - 1
    if not is_tracer(last):
        number = min(number, 1 << max(int(last) - 1, 0).bit_length())
    given = None if ts is None or order is None else jnp.take(ts, order)
    s, reads = _differentiable(
        cut, number, (at.tau, *at.w), par, knobs, times, jax.lax.stop_gradient(end),
        jax.lax.stop_gradient(starts), last, given,
    )  # fmt: skip
    carry = end.carry
    outcome = Outcome(carry.at, carry.counts, carry.pace, carry.code, None)  # type: ignore[arg-type]
    there = At(s[0], tuple(s[1:]), carry.at.i, carry.at.z)
    visits = None if ts is None else _visits(cut, par, ts, order, there, starts, last, reads)
    depends = everything((*par.theta, *at.w))
    return outcome, _no_rows(spec, carry.counts.rows, there, par, depends), visits


def _sorted(cut: Cut, par: Par, ts: Array | None) -> tuple[Array | None, Array | None]:
    """The order of the save times, and their offsets in the direction of time, padded."""
    if ts is None or not cut.window:
        return None, None
    ts, theta = jax.lax.stop_gradient((ts, par.theta))
    t0 = par._replace(theta=theta).t0
    ahead = jnp.where(par.backward, t0 - ts, ts - t0)
    ahead = jax.lax.optimization_barrier(ahead)  # sorting constants is slow while compiling
    order = jnp.argsort(ahead, stable=True)
    return order, jnp.concatenate([ahead[order], jnp.full((cut.window + 1,), jnp.inf)])


@functools.partial(jax.jit, static_argnums=(0, 1))
def _differentiable(
    cut: Cut, number: int, s: tuple, par: Par, knobs: Knobs, times: Array | None, end: Front,
    starts: Front, last: Whole, ts: Array | None,
) -> tuple[tuple, Any]:  # fmt: skip
    """The end as a function of start and parameters, and the states at the save times of pieces."""
    items = _items(cut, number, end, starts, last, ts)

    def piece(s: tuple, par: Par, item: Item) -> tuple[tuple, Any]:
        return _piece(cut, s, par, knobs, times, item)

    piece = jax.checkpoint(piece, prevent_cse=False)
    return jax.lax.scan(lambda s, item: piece(s, par, item), s, items)


def _items(cut: Cut, number: int, end: Front, starts: Front, last: Whole, ts: Array | None) -> Item:
    """One item per piece; unused ones start where the solve ended, and stay there."""
    k = jnp.arange(number)

    def entries(kept: Array, rest: Array, shift: int, count: Whole) -> Array:
        live = jnp.reshape(k + shift < count, (number, *[1] * (kept.ndim - 1)))
        return jnp.where(live, kept[shift : number + shift], rest)

    ended = end._replace(carry=end.carry._replace(code=jnp.maximum(end.carry.code, 0)))
    start = jax.tree.map(lambda a, b: entries(a, b, 0, last), starts, ended)
    kept, rest = (
        ((c.at.tau, *c.at.w), _decided(c), first)
        for c, first in ((starts.carry, starts.first), (end.carry, starts.first[0] + NO_ROW))
    )
    stop, decided, after = jax.tree.map(lambda a, b: entries(a, b, 1, last), kept, rest)
    if ts is None:
        return Item(start, stop, decided, None, None)
    own = jnp.where(k < last, jnp.minimum(after - start.first, cut.window), 0)
    window = start.first[:, None] + jnp.arange(cut.window)
    return Item(start, stop, decided, ts[jnp.minimum(window, ts.shape[0] - 1)], own)


def _decided(carry: Carry) -> list:
    return [carry.counts.events, carry.jump, carry.rooted, *carry.at.i]


def _lengths(cut: Cut, rows: Rows, n: Whole, front: Front, item: Item) -> Array:
    """The lengths of the rows of a piece, so that it ends exactly where it did the first time.

    Where the compiler translates the same program differently, step sizes differ by rounding; the
    last row makes up for that. If the events differ, or the gap is larger than rounding, the
    lengths are NaN.
    """
    stop, last = item.stop[0], jnp.maximum(n - 1, 0)
    gap, h = stop - front.carry.at.tau, rows.h[last]
    steps = (n > 0) & (rows.kind[last] == FLOW)
    room = jnp.where(steps, (NEWTON_GAP if rows.aux else 0.5) * jnp.abs(h), resolution(stop))
    same = jnp.abs(gap) <= room
    for a, b in zip(_decided(front.carry), item.decided, strict=True):
        same = same & jnp.all(a == b)
    mended = rows.h + jnp.where((jnp.arange(rows.h.shape[0]) == last) & steps, gap, 0.0)
    return jnp.where(same, mended, jnp.nan)


def _piece(
    cut: Cut, s: tuple, par: Par, knobs: Knobs, times: Array | None, item: Item
) -> tuple[tuple, Any]:
    """Where a piece ends, and the states at its save times, as functions of where it starts."""
    spec = cut.spec
    rows, front = again(cut, item.start, par, knobs, times)
    n = front.carry.counts.rows - item.start.base
    recorded = Recorded(
        (rows.tau, *rows.w),
        (_lengths(cut, rows, n, front, item), rows.kind, *rows.member, *rows.i, *rows.z, *rows.aux),
        (n, par.backward, *par.iota),
        item.stop,
    )
    if item.ts is None:
        _, stop, _ = replay(spec, recorded, par.theta, s)
        return tuple(stop), None
    beyond = jnp.where(par.backward, -jnp.inf, jnp.inf)
    far = At(jnp.where(front.over, beyond, item.stop[0]), item.stop[1:], front.carry.at.i)
    seen = visit(spec, rows, n, far, par, item.ts)
    row = jnp.where(seen.which < item.own, seen.row, NO_ROW)
    recorded = recorded._replace(
        visits=(row, seen.which, seen.short, *seen.aux), reads=(seen.at.tau, *seen.at.w)
    )
    _, stop, (tau, *w) = replay(spec, recorded, (*par.theta, item.ts), s)
    there = seen.at._replace(tau=tau, w=tuple(w))
    return tuple(stop), jax.tree.map(lambda v: jnp.take(v, seen.place, axis=0), there)


def _visits(
    cut: Cut,
    par: Par,
    ts: Array,
    order: Array | None,
    end: At,
    starts: Front,
    last: Whole,
    reads: At,
) -> Visits:
    """The states at the save times, in the order in which the times were given."""
    count, t0 = ts.shape[0], par.t0
    reached = within(t0, ts - t0, end.tau, par.backward)
    places = jnp.arange(count)
    if order is None or not count:
        at = jax.tree.map(lambda v: jnp.zeros((0, *v.shape), v.dtype), end)
        return Visits(places, places, reached, (), at, places, reached)
    first = starts.first[:-1]
    first = jnp.where(jnp.arange(first.shape[0]) < last, first, NO_ROW)
    sorted_place = jnp.argsort(order)
    piece = jnp.searchsorted(first, sorted_place, side="right") - 1
    entry = jnp.clip(sorted_place - first[piece], 0, cut.window - 1) + cut.window * piece

    def pick(v: Array) -> Array:
        return jnp.take(v.reshape(-1, *v.shape[2:]), entry, axis=0, mode="clip")

    return Visits(places, places, reached, (), jax.tree.map(pick, reads), places, reached)


def _no_rows(spec: Spec, n: Whole, end: At, par: Par, depends: Scalar) -> Tape:
    """A tape without rows, of which only the end is known."""

    def empty(v: Array | jax.ShapeDtypeStruct) -> Array:
        return jnp.zeros((0, *v.shape), v.dtype)

    none = empty(end.tau)
    aux = tuple(map(empty, spec.stepper.aux(spec.model)))
    return Tape(
        tau=none, w=tuple(map(empty, end.w)), i=tuple(map(empty, end.i)), h=none, kind=none,
        member=(), n=n, end=end, theta=par.theta, iota=par.iota, backward=par.backward,
        z=tuple(map(empty, end.z)), aux=aux, depends=depends,
    )  # fmt: skip


class Checkpointed(Solution):
    """The solution of a solve with `checkpoints`: without event log and dense output."""

    @staticmethod
    def of(sol: Solution) -> Checkpointed:
        return Checkpointed(**{f.name: getattr(sol, f.name) for f in dataclasses.fields(sol)})

    @property
    def events(self) -> NoReturn:
        raise _not_kept("sol.events", "sol.stats.events has their number")

    @property
    def certificate(self) -> NoReturn:
        raise _not_kept("sol.certificate", "Certify a shorter solve")

    def course(self, fractions: Numbers | None = None, whole: bool = False) -> NoReturn:
        raise _not_kept(
            "The course of a solution (sol.plot(), animate)", "Save what you need with ts=..."
        )

    def _read(self, reader: Function, t: Numbers, side: str) -> NoReturn:
        raise _not_kept("sol(t) and sol.at(t)", "Give the times to solve: ts=...")

    def _extremum(self, what: str | Function, sign: float, places: int) -> NoReturn:
        raise _not_kept("sol.min and sol.max", "Save what you need with ts=...")

    @property
    def error(self) -> SolveError | None:
        """The error that `throw=True` raises, or `None` if the solve succeeded."""
        if is_tracer(self.result):
            return super().error
        codes = np.asarray(self.result)
        bad = np.argwhere(codes > int(Result.terminated))
        if not len(bad):
            return None
        sol = jax.tree.map(jax.lax.stop_gradient, self)
        return _failure(jax.tree.map(lambda v: v[tuple(bad[0])], sol) if codes.ndim else sol)

    def __repr__(self) -> str:
        shown: Any = _WithoutLog(self)
        return describe(shown).replace(": \n", " (not kept)\n")


class _WithoutLog:
    """A solution without an event log, for `describe`."""

    names = ()
    events = type("NoLog", (), {"which": ()})

    def __init__(self, sol: Solution):
        self._sol = sol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sol, name)


def _not_kept(what: str, instead: str) -> RuntimeError:
    return RuntimeError(
        f"{what}: a solve with checkpoints=... does not keep its rows. {instead}, or solve without "
        "checkpoints."
    )


def _failure(sol: Solution) -> SolveError:
    result, t = Result(int(sol.result)), float(sol.last.t)
    mode = mode_name(sol, sol.last.mode) if sol.modes else None
    text = (
        f"solve stopped at t = {t:.10g}{f' in mode {mode}' if mode else ''} after "
        f"{int(sol.stats.steps)} steps and {int(sol.stats.events)} events: {result.name}. "
        f"{result.message}\nState there: {state_words(sol.last)}"
    )
    return KINDS.get(result, SolveError)(
        text, result=result, t=t, mode=mode, solution=sol, values=state_values(sol.last)
    )
