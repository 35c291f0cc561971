"""A simulation in pieces: only the state of the loop where each of them starts is kept.

A piece has at most so many rows, and at most so many save times (`Cut`). The first pass finds the
starts; any piece can then be simulated again from its own. Both run the same kernel, so that they
make the same decisions to the last digit.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from ..base.batching import Level, add_level, lane_shape, nest
from ..base.control_flow import always_compiled
from ..base.jax_names import under_jit
from ..base.kernel import one_kernel
from ..base.leaves import select
from ..base.results import Result
from ..base.resumable import Work
from ..model.model import At, Par
from .guards import sigma
from .loop import begin, iterate, unpack
from .record import Carry, Knobs, Rows, Spec
from .save_times import tolerance
from .tape_buffer import blank_rows, put, write, write_end

FIRST_PIECES = 256
NO_LIMIT = np.iinfo(np.int32).max

first_pass_p = Primitive("saltus_first_pass")  # (at, par, knobs, times) -> Front, starts, Progress
piece_p = Primitive("saltus_piece")  # (start, limit, par, knobs, times) -> rows, Front, iterations
for primitive in (first_pass_p, piece_p):
    primitive.multiple_results = True


class Cut(NamedTuple):
    """The static side."""

    spec: Spec
    rows: int  # of a piece
    window: int  # save times of a piece; 0 if there are none at all
    levels: tuple[Level, ...] = ()
    pieces: int = 0  # inside `jit`: at most so many
    grows: bool = False
    tree: Any = None  # the structure of a Front

    @property
    def n_at(self) -> int:
        m = self.spec.model
        return 1 + m.n_w + m.n_i + m.n_z

    def inner(self, lead: int) -> Cut:
        """The same without the flags of the first arguments."""
        return self._replace(levels=tuple(level[lead:] for level in self.levels))


class Front(NamedTuple):
    """How far a lane has come."""

    carry: Carry
    base: Any  # rows before this piece
    first: Any  # save times before this piece
    edge: Any  # the first save time too many for this piece, in the direction of time
    over: Any  # the next row would go beyond that: it is left to the next piece


class Progress(NamedTuple):
    """How far the first pass has come, all lanes together."""

    pieces: Any  # that are through
    new: Any  # whether a piece is about to begin
    more: Any  # whether there is something left to do


def _going(c: Front, rows: int) -> Any:
    running = c.carry.code == int(Result.running)
    return running & ~c.over & (c.carry.counts.rows < c.base + rows)


def _unpack(cut: Cut, flat: list) -> tuple[Par, Knobs, Any]:
    """Arguments without the start: (parameters, knobs, save times)."""
    times = flat[-1] if cut.window else None
    rest = flat[:-1] if cut.window else flat
    _, par, knobs = unpack(cut.spec, [None] * cut.n_at + list(rest))
    return par, knobs, times


def _edge(cut: Cut, par: Par, times: Any, first: Any) -> Any:
    """The save time too many; times end with as many infinities as a piece has save times."""
    if not cut.window:
        return jnp.full((), jnp.inf)
    late = jax.lax.dynamic_index_in_dim(times, first + cut.window, keepdims=False)
    return late + tolerance(par.t0, late)


def _advance(cut: Cut, c: Front, flat: list) -> tuple[Front, Rows]:
    """One iteration of one lane."""
    par, knobs, _ = _unpack(cut, flat)
    carry, row = iterate(cut.spec, c.carry, par, knobs)
    over = c.over
    if cut.window:
        over = c.edge < sigma(par) * carry.at.tau
        carry = select(over, c.carry, carry)
    new = c._replace(carry=carry, over=over)
    return select(_going(c, cut.rows), new, c) if cut.levels else new, row


def _next_piece(cut: Cut, c: Front, flat: list) -> Front:
    """The beginning of the piece after this one."""
    par, _, times = _unpack(cut, flat)
    first = c.first
    if cut.window:
        here = jax.lax.dynamic_slice_in_dim(times, first, cut.window)
        passed = here + tolerance(par.t0, here) < sigma(par) * c.carry.at.tau
        whole = c.over | (c.carry.code != int(Result.running))
        first = first + jnp.where(whole, cut.window, jnp.sum(passed)).astype(first.dtype)
        first = jnp.minimum(first, times.shape[0] - cut.window - 1).astype(first.dtype)
    edge = _edge(cut, par, times, first)
    return Front(c.carry, c.carry.counts.rows, first, edge, jnp.zeros((), bool))


def _unfinished(cut: Cut, c: Front, flat: list) -> Any:
    """Whether a lane has to go on, or has save times left that were reached."""
    running = c.carry.code == int(Result.running)
    if not cut.window:
        return running
    par, _, times = _unpack(cut, flat)
    here = jax.lax.dynamic_index_in_dim(times, c.first, keepdims=False)
    end = c.carry.at.tau
    return running | (here <= sigma(par) * end + tolerance(par.t0, end))


# -- the first pass -------------------------------------------------------------------------------


def _opening(cut: Cut, *args: Any) -> tuple[Front, Progress]:
    inner = cut.inner(cut.n_at)

    def first(_: Any, flat: list) -> Front:
        par, knobs, times = _unpack(cut, flat[cut.n_at :])
        at, _, _ = unpack(cut.spec, flat[: len(flat) - bool(cut.window)])
        zero = jnp.zeros((), jnp.int32)
        edge = _edge(cut, par, times, zero)
        return Front(begin(cut.spec, at, par, knobs), zero, zero, edge, jnp.zeros((), bool))

    front = nest(first, cut.levels)(jnp.zeros(_lanes(cut, args)), list(args))
    unfinished = nest(functools.partial(_unfinished, inner), inner.levels)
    more = jnp.any(unfinished(front, list(args[cut.n_at :])))
    return front, Progress(jnp.zeros((), jnp.int32), jnp.ones((), bool), more)


def _lanes(cut: Cut, args: Any) -> tuple[int, ...]:
    return lane_shape(args, [False] * len(args), cut.levels)


def _room(state: tuple[Front, Progress], size: int) -> Front:
    return jax.tree.map(lambda v: jnp.zeros((size + 1, *v.shape), v.dtype), state[0])


def _keep(starts: Front, front: Front, progress: Progress, base: Any) -> Front:
    """Keep the start of a piece; between starts, it goes to the last entry and means nothing."""
    size = starts.base.shape[0] - 1
    where = jnp.where(progress.new, progress.pieces - base, size)
    return jax.tree.map(lambda a, v: put(a, v, (where,)), starts, front)


def _pass(
    cut: Cut, state: tuple, starts: Front, args: list, limit: Any = None, base: Any = 0
) -> tuple:
    """Piece after piece until all lanes are through, there is no room, or the limit is reached.

    The starts of `base` pieces are kept elsewhere.
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

    def more(state: tuple) -> Any:
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


@functools.lru_cache(maxsize=256)
def _compiled(fn: Any, cut: Cut, platform: str) -> Any:
    return always_compiled(one_kernel(functools.partial(fn, cut), platform))


def _first_pass_impl(*args: Any, cut: Cut) -> list:
    platform = next(iter(args[0].devices())).platform
    if not cut.grows:
        return _compiled(_bounded, cut, platform)(*args)
    work = _work(cut, platform)
    (front, progress), starts, by_hand = work.complete(args, _lanes(cut, args), _status)
    if by_hand:
        if cut.levels:
            raise KeyboardInterrupt  # a batch cannot be handed back in parts
        code = jnp.full_like(front.carry.code, int(Result.interrupted))
        front = front._replace(carry=front.carry._replace(code=code))
    return jax.tree.leaves((front, starts, progress))


def _bounded(cut: Cut, *args: Any) -> list:
    """With a fixed number of pieces; running out of them is a result."""
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


def _abstract(v: Any) -> Any:
    return core.ShapedArray(v.shape, v.dtype)


def _first_pass_abstract(*avals: Any, cut: Cut) -> list:
    front, progress = _shapes(cut, tuple((v.shape, v.dtype) for v in avals))
    starts = jax.eval_shape(functools.partial(_room, size=cut.pieces), (front, progress))
    return [_abstract(v) for v in jax.tree.leaves((front, starts, progress))]


def _first_pass_batch(args: Any, dims: Any, *, cut: Cut) -> tuple:
    moved, flags = add_level(args, dims, [False] * len(args))
    out = first_pass_p.bind(*moved, cut=cut._replace(levels=(*cut.levels, flags)))
    n = cut.tree.num_leaves
    return out, [0] * n + [1] * n + [None] * (len(out) - 2 * n)


def first_pass(
    cut: Cut, at: At, par: Par, knobs: Knobs, times: Any
) -> tuple[Front, Front, Progress]:
    """The end, and the starts of all pieces, with one more entry; eagerly their number grows."""
    flat = [jax.lax.stop_gradient(v) for v in jax.tree.leaves((at, par, knobs, times))]
    avals = map(jax.typeof, flat)
    tree = jax.tree.structure(_shapes(cut, tuple((v.shape, v.dtype) for v in avals))[0])
    cut = cut._replace(tree=tree, grows=not under_jit())
    out = first_pass_p.bind(*flat, cut=cut._replace(pieces=0) if cut.grows else cut)
    n = tree.num_leaves
    parts = out[:n], out[n : 2 * n]
    return *(jax.tree.unflatten(tree, part) for part in parts), Progress(*out[2 * n :])


# -- a piece again --------------------------------------------------------------------------------


def _again(cut: Cut, *args: Any) -> list:
    """The rows of a piece, how far it came, and in how many iterations."""
    lead = cut.tree.num_leaves
    inner, (limit, *rest) = cut.inner(lead + 1), args[lead:]

    def first(_: Any, flat: list) -> Front:
        return jax.tree.unflatten(cut.tree, flat[:lead])

    front = nest(first, cut.levels)(jnp.zeros(_lanes(cut, args)), list(args))
    rows = blank_rows(cut.spec, front.carry.at, cut.rows)
    step = nest(functools.partial(_advance, inner), inner.levels)

    def body(state: tuple) -> tuple:
        c, tape, count = state
        new, row = step(c, rest)
        place = c.carry.counts.rows - c.base
        return new, write(tape, place, row, _going(c, cut.rows)), count + 1

    def going(state: tuple) -> Any:
        return jnp.any(_going(state[0], cut.rows)) & (state[2] < jnp.max(limit))

    zero = jnp.zeros((), jnp.int32)
    front, rows, count = jax.lax.while_loop(going, body, (front, rows, zero))
    # A row that was left to the next piece stays: its save times are read in this one.
    n = jnp.where(front.over, cut.rows, front.carry.counts.rows - front.base)
    return jax.tree.leaves((write_end(rows, n, front.carry.at), front, count))


def _piece_impl(*args: Any, cut: Cut) -> list:
    return _compiled(_again, cut, next(iter(args[0].devices())).platform)(*args)


def _piece_abstract(*avals: Any, cut: Cut) -> list:
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


def _piece_batch(args: Any, dims: Any, *, cut: Cut) -> tuple:
    moved, flags = add_level(args, dims, [False] * len(args))
    out = piece_p.bind(*moved, cut=cut._replace(levels=(*cut.levels, flags)))
    n = cut.tree.num_leaves
    return out, [*[1] * (len(out) - n - 1), *[0] * n, None]


def _bind(cut: Cut, start: Front, limit: Any, rest: list) -> tuple[Rows, Front, Any]:
    leaves, tree = jax.tree.flatten(start)
    plain = Cut(cut.spec, cut.rows, cut.window, cut.levels, tree=tree)
    *out, count = piece_p.bind(*leaves, limit, *rest, cut=plain)
    rows = jax.tree.unflatten(
        jax.tree.structure(_row_shapes(cut, start.carry.at)), out[: -len(leaves)]
    )
    return rows, jax.tree.unflatten(tree, out[-len(leaves) :]), count


def again(cut: Cut, start: Front, par: Par, knobs: Knobs, times: Any) -> tuple[Rows, Front]:
    """The rows of the piece that starts there, and where it ends."""
    start, rest = jax.lax.stop_gradient((start, jax.tree.leaves((par, knobs, times))))
    rows, front, _ = _bind(cut, start, jnp.full((), NO_LIMIT, jnp.int32), rest)
    return rows, front


def _define(primitive: Primitive, impl: Any, abstract: Any, batch: Any, fn: Any) -> None:
    def lower(platform: str) -> Any:
        run = lambda *args, cut: one_kernel(functools.partial(fn, cut), platform)(*args)
        return mlir.lower_fun(run, multiple_results=True)

    primitive.def_impl(impl)
    primitive.def_abstract_eval(abstract)
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, lower("cpu"), platform="cpu")
    mlir.register_lowering(primitive, lower("other"))


_define(first_pass_p, _first_pass_impl, _first_pass_abstract, _first_pass_batch, _bounded)
_define(piece_p, _piece_impl, _piece_abstract, _piece_batch, _again)
