"""A simulation in pieces, of which only the states of the loop at their starts are kept.

The numbers of rows and of save times in a piece are limited (`Cut`). The first pass finds the
starts; any piece can then be simulated again from its start. Both run the same kernel, so that they
make the same decisions to the last digit.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.extend.core import Primitive

from ..base.batching import Level, add_level, lane_shape, nest
from ..base.jax_names import under_jit
from ..base.kernel import compiled_kernel, platform_of, register
from ..base.leaves import select
from ..base.results import Result
from ..base.resumable import Work
from ..base.types import Array, Aval, Flag, Scalar, Vector, Whole
from ..model.model import At, Par
from .guards import sigma
from .loop import begin, iterate
from .record import Carry, Knobs, Rows, Spec, Structure
from .save_times import tolerance
from .tape_buffer import blank_rows, put, write, write_end

FIRST_PIECES = 256
NO_LIMIT = np.iinfo(np.int32).max
EMPTY = jax.tree.structure(())

first_pass_p = Primitive("saltus_first_pass")  # (at, par, knobs, times) -> Front, starts, Progress
piece_p = Primitive("saltus_piece")  # (start, limit, par, knobs, times) -> rows, Front, iterations
for primitive in (first_pass_p, piece_p):
    primitive.multiple_results = True


class Cut(NamedTuple):
    """What is fixed when a program is compiled."""

    spec: Spec
    rows: int  # most in a piece
    window: int  # most save times in a piece; 0 if there are none at all
    levels: tuple[Level, ...] = ()
    pieces: int = 0  # most of them, inside `jit`
    grows: bool = False
    tree: Structure = EMPTY  # the structure of a Front
    start: Structure = EMPTY  # the structure of the first state
    rest: Structure = EMPTY  # the structure of the other arguments: parameters, knobs, save times

    @property
    def n_at(self) -> int:
        return self.start.num_leaves

    def inner(self, lead: int) -> Cut:
        """The same without the flags of the first arguments."""
        return self._replace(levels=tuple(level[lead:] for level in self.levels))


class Front(NamedTuple):
    """The state of a lane of a simulation in pieces."""

    carry: Carry
    base: Whole  # rows before this piece
    first: Whole  # save times before this piece
    edge: Scalar  # the first save time that does not fit into this piece, in the direction of time
    over: Flag  # the next row would go beyond `edge`, and belongs to the next piece


class Progress(NamedTuple):
    """The progress of the first pass, for all lanes together."""

    pieces: Whole  # that are finished
    new: Flag  # whether a piece is about to begin
    more: Flag  # whether there is something left to do


def _going(c: Front, rows: int) -> Flag:
    running = c.carry.code == int(Result.running)
    return running & ~c.over & (c.carry.counts.rows < c.base + rows)


def _edge(cut: Cut, par: Par, times: Vector | None, first: Whole) -> Scalar:
    """The first save time that does not fit into the piece; times are padded with infinity."""
    if not cut.window:
        return jnp.full((), jnp.inf)
    late = jax.lax.dynamic_index_in_dim(times, first + cut.window, keepdims=False)
    return late + tolerance(par.t0, late)


def _advance(cut: Cut, c: Front, flat: list[Array]) -> tuple[Front, Rows]:
    """One iteration of one lane."""
    par, knobs, _ = cut.rest.unflatten(flat)
    carry, row = iterate(cut.spec, c.carry, par, knobs)
    over = c.over
    if cut.window:
        over = c.edge < sigma(par) * carry.at.tau
        carry = select(over, c.carry, carry)
    new = c._replace(carry=carry, over=over)
    return select(_going(c, cut.rows), new, c) if cut.levels else new, row


def _next_piece(cut: Cut, c: Front, flat: list[Array]) -> Front:
    """The beginning of the piece after this one."""
    par, _, times = cut.rest.unflatten(flat)
    first = c.first
    if cut.window:
        here = jax.lax.dynamic_slice_in_dim(times, first, cut.window)
        passed = here + tolerance(par.t0, here) < sigma(par) * c.carry.at.tau
        whole = c.over | (c.carry.code != int(Result.running))
        first = first + jnp.where(whole, cut.window, jnp.sum(passed)).astype(first.dtype)
        first = jnp.minimum(first, times.shape[0] - cut.window - 1).astype(first.dtype)
    edge = _edge(cut, par, times, first)
    return Front(
        carry=c.carry, base=c.carry.counts.rows, first=first, edge=edge, over=jnp.zeros((), bool)
    )


def _unfinished(cut: Cut, c: Front, flat: list[Array]) -> Flag:
    """Whether a lane has to continue, or has save times left that were reached."""
    running = c.carry.code == int(Result.running)
    if not cut.window:
        return running
    par, _, times = cut.rest.unflatten(flat)
    here = jax.lax.dynamic_index_in_dim(times, c.first, keepdims=False)
    end = c.carry.at.tau
    return running | (here <= sigma(par) * end + tolerance(par.t0, end))


# -- the first pass -------------------------------------------------------------------------------


def _opening(cut: Cut, *args: Array) -> tuple[Front, Progress]:
    inner = cut.inner(cut.n_at)

    def first(_: Array, flat: list[Array]) -> Front:
        par, knobs, times = cut.rest.unflatten(flat[cut.n_at :])
        at = cut.start.unflatten(flat[: cut.n_at])
        zero = jnp.zeros((), jnp.int32)
        edge = _edge(cut, par, times, zero)
        carry = begin(cut.spec, at, par, knobs)
        return Front(carry=carry, base=zero, first=zero, edge=edge, over=jnp.zeros((), bool))

    front = nest(first, cut.levels)(jnp.zeros(_lanes(cut, args)), list(args))
    unfinished = nest(functools.partial(_unfinished, inner), inner.levels)
    more = jnp.any(unfinished(front, list(args[cut.n_at :])))
    return front, Progress(jnp.zeros((), jnp.int32), jnp.ones((), bool), more)


def _lanes(cut: Cut, args: Sequence[Array | Aval]) -> tuple[int, ...]:
    return lane_shape(args, [False] * len(args), cut.levels)


def _room(state: tuple[Front, Progress], size: int) -> Front:
    return jax.tree.map(lambda v: jnp.zeros((size + 1, *v.shape), v.dtype), state[0])


def _keep(starts: Front, front: Front, progress: Progress, base: Whole | int) -> Front:
    """Keep the start of a piece; between starts, write to the last entry, which is never read."""
    size = starts.base.shape[0] - 1
    where = jnp.where(progress.new, progress.pieces - base, size)
    return jax.tree.map(lambda a, v: put(a, v, (where,)), starts, front)


def _pass(
    cut: Cut,
    state: tuple,
    starts: Front,
    args: list,
    limit: Whole | None = None,
    base: Whole | int = 0,
) -> tuple:
    """Piece after piece until all lanes are finished, there is no room, or `limit` is reached.

    The starts of the first `base` pieces are stored elsewhere.
    """
    size, leaves = starts.base.shape[0] - 1, len(jax.tree.leaves(state[0]))
    inner, rest = cut.inner(cut.n_at), args[cut.n_at :]
    levels = tuple((*[True] * leaves, False, *level) for level in inner.levels)
    following = nest(functools.partial(_next_piece, inner), inner.levels)
    unfinished = nest(functools.partial(_unfinished, inner), inner.levels)

    def piece(state: tuple) -> tuple:
        front, progress, starts, count = state
        starts = _keep(starts, front, progress, base)
        left = jnp.full((), NO_LIMIT, jnp.int32) if limit is None else limit - count
        _, front, used = _bind(cut._replace(levels=levels), front, left, rest)
        through = ~jnp.any(_going(front, cut.rows))
        front = select(through, following(front, rest), front)
        more = jnp.any(unfinished(front, rest))
        done = progress.pieces + through.astype(jnp.int32)
        return front, Progress(done, through, more), starts, count + used

    def more(state: tuple) -> Flag:
        _, progress, _, count = state
        on = progress.more & (progress.pieces - base < size)
        return on if limit is None else on & (count < limit)

    first = (*state, starts, jnp.zeros((), jnp.int32))
    front, progress, starts, count = jax.lax.while_loop(more, piece, first)
    return (front, progress), _keep(starts, front, progress, base), count


@functools.lru_cache(maxsize=256)
def _work(cut: Cut, platform: str) -> Work:
    parts = (functools.partial(_opening, cut), _room, functools.partial(_pass, cut))
    return Work(*parts, lambda state: state[1].pieces, FIRST_PIECES, platform)


def _status(state: tuple[Front, Progress], size: int) -> tuple[bool, bool]:
    _, progress = state
    more = bool(np.asarray(progress.more))
    return more, more and int(np.asarray(progress.pieces)) >= size


def _first_pass_impl(*args: Array, cut: Cut) -> list[Array]:
    if not cut.grows:
        return _fixed(*args, cut=cut)
    work = _work(cut, platform_of(args))
    (front, progress), starts, by_hand = work.complete(args, _lanes(cut, args), _status)
    if by_hand:
        if cut.levels:
            raise KeyboardInterrupt  # a batch cannot be returned in parts
        code = jnp.full_like(front.carry.code, int(Result.interrupted))
        front = front._replace(carry=front.carry._replace(code=code))
    return jax.tree.leaves((front, starts, progress))


def _bounded(*args: Array, cut: Cut) -> list[Array]:
    """The first pass with a fixed number of pieces; if they do not suffice, the result says so."""
    state = _opening(cut, *args)
    (front, progress), starts, _ = _pass(cut, state, _room(state, cut.pieces), list(args))
    code = front.carry.code
    code = jnp.where(code == int(Result.running), int(Result.too_many_steps), code)
    front = front._replace(carry=front.carry._replace(code=code.astype(front.carry.code.dtype)))
    return jax.tree.leaves((front, starts, progress))


@functools.lru_cache(maxsize=256)
def _shapes(cut: Cut, avals: tuple) -> tuple[Front, Progress]:
    given = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in avals]
    return jax.eval_shape(functools.partial(_opening, cut), *given)


def _abstract(v: jax.ShapeDtypeStruct) -> Aval:
    return core.ShapedArray(v.shape, v.dtype)


def _first_pass_abstract(*avals: Aval, cut: Cut) -> list[Aval]:
    front, progress = _shapes(cut, tuple((v.shape, v.dtype) for v in avals))
    starts = jax.eval_shape(functools.partial(_room, size=cut.pieces), (front, progress))
    return [_abstract(v) for v in jax.tree.leaves((front, starts, progress))]


def _first_pass_batch(
    args: Sequence[Array], dims: Sequence[int | None], *, cut: Cut
) -> tuple[list[Array], list[int | None]]:
    moved, flags = add_level(args, dims, [False] * len(args))
    out = first_pass_p.bind(*moved, cut=cut._replace(levels=(*cut.levels, flags)))
    n = cut.tree.num_leaves
    return out, [0] * n + [1] * n + [None] * (len(out) - 2 * n)


def first_pass(
    cut: Cut, at: At, par: Par, knobs: Knobs, times: Vector | None
) -> tuple[Front, Front, Progress]:
    """The end, the starts of all pieces (and one more entry), and the progress.

    Outside of `jit` there may be any number of pieces."""
    flat = [jax.lax.stop_gradient(v) for v in jax.tree.leaves((at, par, knobs, times))]
    rest = jax.tree.structure((par, knobs, times))
    cut = cut._replace(start=jax.tree.structure(at), rest=rest)
    avals = map(jax.typeof, flat)
    tree = jax.tree.structure(_shapes(cut, tuple((v.shape, v.dtype) for v in avals))[0])
    cut = cut._replace(tree=tree, grows=not under_jit())
    out = first_pass_p.bind(*flat, cut=cut._replace(pieces=0) if cut.grows else cut)
    n = tree.num_leaves
    parts = out[:n], out[n : 2 * n]
    return *(jax.tree.unflatten(tree, part) for part in parts), Progress(*out[2 * n :])


# -- a piece again --------------------------------------------------------------------------------


def _again(*args: Array, cut: Cut) -> list[Array]:
    """The rows of a piece, its end, and the number of its iterations."""
    lead = cut.tree.num_leaves
    inner, (limit, *rest) = cut.inner(lead + 1), args[lead:]

    def first(_: Array, flat: list[Array]) -> Front:
        return jax.tree.unflatten(cut.tree, flat[:lead])

    front = nest(first, cut.levels)(jnp.zeros(_lanes(cut, args)), list(args))
    rows = blank_rows(cut.spec, front.carry.at, cut.rows)
    step = nest(functools.partial(_advance, inner), inner.levels)

    def body(state: tuple) -> tuple:
        c, tape, count = state
        new, row = step(c, rest)
        place = c.carry.counts.rows - c.base
        return new, write(tape, place, row, _going(c, cut.rows)), count + 1

    def going(state: tuple) -> Flag:
        return jnp.any(_going(state[0], cut.rows)) & (state[2] < jnp.max(limit))

    zero = jnp.zeros((), jnp.int32)
    front, rows, count = jax.lax.while_loop(going, body, (front, rows, zero))
    # A row that belongs to the next piece is kept: its save times are read in this one.
    n = jnp.where(front.over, cut.rows, front.carry.counts.rows - front.base)
    return jax.tree.leaves((write_end(rows, n, front.carry.at), front, count))


def _piece_abstract(*avals: Aval, cut: Cut) -> list[Aval]:
    lanes = _lanes(cut, avals)
    front = [
        jax.ShapeDtypeStruct((*lanes, *v.shape[sum(lv[k] for lv in cut.levels) :]), v.dtype)
        for k, v in enumerate(avals[: cut.tree.num_leaves])
    ]
    rows = _row_shapes(cut, jax.tree.unflatten(cut.tree, front).carry.at)
    count = jax.ShapeDtypeStruct((), jnp.int32)
    return [_abstract(v) for v in (*jax.tree.leaves(rows), *front, count)]


def _row_shapes(cut: Cut, at: At) -> Rows:
    return jax.eval_shape(lambda at: blank_rows(cut.spec, at, cut.rows), at)


def _piece_batch(
    args: Sequence[Array], dims: Sequence[int | None], *, cut: Cut
) -> tuple[list[Array], list[int | None]]:
    moved, flags = add_level(args, dims, [False] * len(args))
    out = piece_p.bind(*moved, cut=cut._replace(levels=(*cut.levels, flags)))
    n = cut.tree.num_leaves
    return out, [*[1] * (len(out) - n - 1), *[0] * n, None]


def _bind(cut: Cut, start: Front, limit: Whole, rest: list[Array]) -> tuple[Rows, Front, Whole]:
    leaves, tree = jax.tree.flatten(start)
    plain = Cut(cut.spec, cut.rows, cut.window, cut.levels, tree=tree, rest=cut.rest)
    *out, count = piece_p.bind(*leaves, limit, *rest, cut=plain)
    rows = jax.tree.unflatten(
        jax.tree.structure(_row_shapes(cut, start.carry.at)), out[: -len(leaves)]
    )
    return rows, jax.tree.unflatten(tree, out[-len(leaves) :]), count


def again(
    cut: Cut, start: Front, par: Par, knobs: Knobs, times: Vector | None
) -> tuple[Rows, Front]:
    """The rows of the piece that begins at `start`, and its end."""
    leaves, structure = jax.tree.flatten((par, knobs, times))
    start, rest = jax.lax.stop_gradient((start, leaves))
    cut = cut._replace(rest=structure)
    rows, front, _ = _bind(cut, start, jnp.full((), NO_LIMIT, jnp.int32), rest)
    return rows, front


_fixed = compiled_kernel(_bounded)
register(
    first_pass_p, _bounded, _first_pass_abstract, batch=_first_pass_batch, impl=_first_pass_impl,
    kernel=True,
)  # fmt: skip
register(piece_p, _again, _piece_abstract, batch=_piece_batch, kernel=True)
