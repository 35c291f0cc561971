"""The loop as a JAX primitive: batched over lanes, with a tape that grows outside of `jit`."""

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
from ..base.in_turn import WorkInTurn
from ..base.jax_names import under_jit
from ..base.kernel import compiled_kernel, platform_of, register
from ..base.results import Result
from ..base.resumable import Work
from ..base.types import Array, Aval, Whole
from ..model.model import At, Par
from .loop import begin, loop
from .record import Carry, Counts, Knobs, Pace, Rows, Spec, Structure, empty_counts, empty_pace
from .tape_buffer import blank_rows

FIRST_CAPACITY = 1024  # rows of the first reel, enough for most solves
MIN_CAPACITY = 64  # rows of the first reel if they are large, as with many lanes
MAX_FIRST_BYTES = 2**18  # of the first reel, unless the model takes long to compile
MAX_FIRST_BYTES_OF_LANES = 3 * 2**24  # with lanes, whose programs take long to compile

simulate_p = Primitive("saltus_simulate")
simulate_p.multiple_results = True


class Run(NamedTuple):
    """The static side of a simulation."""

    spec: Spec
    capacity: int  # rows
    levels: tuple[Level, ...]
    arguments: Structure  # the structure of (start, parameters, knobs)
    grows: bool = False  # whether rows are added when needed; not if shapes are fixed


class Outcome(NamedTuple):
    """What the loop returns: where and why it stopped, and the record."""

    end: At
    counts: Counts
    pace: Pace
    code: Whole
    rows: Rows


def _lanes(args: Sequence[Array | Aval], levels: tuple[Level, ...]) -> tuple[int, ...]:
    return lane_shape(args, [False] * len(args), levels)


def _outcome(carry: Carry, rows: Rows) -> Outcome:
    return Outcome(end=carry.at, counts=carry.counts, pace=carry.pace, code=carry.code, rows=rows)


def _opening(run: Run, *args: Array) -> Carry:
    """The state of the loop before its first iteration."""

    def first(_: Array, flat: list[Array]) -> Carry:
        return begin(run.spec, *run.arguments.unflatten(flat))

    return nest(first, run.levels)(jnp.zeros(_lanes(args, run.levels)), list(args))


def _blank(run: Run, *args: Array) -> Outcome:
    """An outcome for its shapes only: nothing is simulated."""
    model = run.spec.model

    def first(_: Array, flat: list[Array]) -> tuple[At, Counts, Pace, Whole]:
        at, _, _ = run.arguments.unflatten(flat)
        return at, empty_counts(), empty_pace(model.n_guards), jnp.zeros((), jnp.int32)

    lanes = jnp.zeros(_lanes(args, run.levels))
    end, counts, pace, code = nest(first, run.levels)(lanes, list(args))
    rows = blank_rows(run.spec, end, run.capacity)
    return Outcome(end=end, counts=counts, pace=pace, code=code, rows=rows)


@functools.lru_cache(maxsize=256)
def _shapes(run: Run, avals: tuple[tuple[tuple[int, ...], np.dtype], ...]) -> Outcome:
    given = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in avals]
    return jax.eval_shape(functools.partial(_blank, run), *given)


def _shapes_of(run: Run, args: Sequence[Array | Aval]) -> Outcome:
    """The shapes for these arguments, among which JAX may leave numbers of Python."""
    avals = [v if hasattr(v, "shape") else jax.typeof(v) for v in args]
    return _shapes(run, tuple((v.shape, v.dtype) for v in avals))


# -- outside of `jit`: the tape grows -------------------------------------------------------------


def _first_capacity(run: Run, args: Sequence[Array]) -> int:
    """The rows of the first reel; another reel means another program."""
    rows = _shapes_of(run._replace(capacity=0), args).rows
    row_bytes = sum(v.size * v.dtype.itemsize for v in jax.tree.leaves(rows))
    capacity = FIRST_CAPACITY
    if run.spec.model.light:
        most = MAX_FIRST_BYTES_OF_LANES if run.levels else MAX_FIRST_BYTES
        while capacity > MIN_CAPACITY and capacity * row_bytes > most:
            capacity //= 4
    return capacity


@functools.lru_cache(maxsize=256)
def _work(run: Run, platform: str, first: int) -> Work:
    spec, levels = run.spec, run.levels
    return Work(
        functools.partial(_opening, run),
        lambda carry, size: blank_rows(spec, carry.at, size),
        functools.partial(loop, spec, levels, run.arguments),
        lambda carry: carry.counts.rows,
        first,
        platform,
    )


@functools.lru_cache(maxsize=256)
def _work_in_turn(run: Run, platform: str, first: int) -> WorkInTurn:
    *inner, outer = run.levels
    return WorkInTurn(_work(run._replace(levels=tuple(inner)), platform, first), outer)


def _work_for(run: Run, args: Sequence[Array], lanes: tuple[int, ...]) -> Work:
    """For lanes in turn, until a program for all of them side by side pays."""
    where = platform_of(args), _first_capacity(run, args)
    if run.levels and where[0] == "cpu":
        in_turn = _work_in_turn(run, *where)
        if in_turn.budget.suffices(lanes[0]):
            return in_turn
    return _work(run, *where)


def _status(carry: Carry, size: int) -> tuple[bool, bool]:
    running = np.asarray(carry.code) == int(Result.running)
    full = np.asarray(carry.counts.rows) >= size
    return bool(np.any(running)), bool(np.any(running & full))


def _impl(*args: Array, run: Run) -> list[Array]:
    """Pass after pass until every lane has stopped, with as many reels of tape as needed."""
    if not run.grows:
        return _fixed(*args, run=run)
    lanes = _lanes(args, run.levels)
    work = _work_for(run._replace(capacity=0), args, lanes)
    carry, rows, by_hand = work.complete(args, lanes, _status)
    return jax.tree.leaves(_outcome(_stopped(run, carry) if by_hand else carry, rows))


def _stopped(run: Run, carry: Carry) -> Carry:
    """The loop's state with the result `interrupted`; a batch cannot be returned in parts."""
    if run.levels:
        raise KeyboardInterrupt
    return carry._replace(code=jnp.full_like(carry.code, int(Result.interrupted)))


# -- inside `jit`: a fixed capacity ---------------------------------------------------------------


def _abstract(*avals: Aval, run: Run) -> list[Aval]:
    leaves = jax.tree.leaves(_shapes_of(run, avals))
    return [core.ShapedArray(v.shape, v.dtype) for v in leaves]


def _batch(
    args: Sequence[Array], dims: Sequence[int | None], *, run: Run
) -> tuple[list[Array], list[int]]:
    moved, flags = add_level(args, dims, [False] * len(args))
    run = run._replace(levels=(*run.levels, flags))
    out = simulate_p.bind(*moved, run=run)
    shapes = _shapes_of(run, moved)
    where = jax.tree.map(lambda _: 0, shapes)
    where = where._replace(rows=jax.tree.map(lambda _: 1, shapes.rows))
    return out, jax.tree.leaves(where)


def _bounded(*args: Array, run: Run) -> list[Array]:
    """The whole simulation with a fixed number of rows; if they run out, its result says so."""
    carry = _opening(run, *args)
    rows = blank_rows(run.spec, carry.at, run.capacity)
    carry, rows, _ = loop(run.spec, run.levels, run.arguments, carry, rows, list(args))
    outcome = _outcome(carry, rows)
    full = outcome.code == int(Result.running)
    code = jnp.where(full, int(Result.too_many_steps), outcome.code)
    return jax.tree.leaves(outcome._replace(code=code))


_fixed = compiled_kernel(_bounded)
register(simulate_p, _bounded, _abstract, batch=_batch, impl=_impl, kernel=True)


def simulate(spec: Spec, at: At, par: Par, knobs: Knobs, capacity: int) -> Outcome:
    """Run the loop; inside `jit` there are at most `capacity` rows, outside any number."""
    leaves, arguments = jax.tree.flatten((at, par, knobs))
    flat = [jax.lax.stop_gradient(v) for v in leaves]
    run = Run(spec, capacity, (), arguments, grows=not under_jit())
    structure = jax.tree.structure(_shapes_of(run, list(map(jax.typeof, flat))))
    return jax.tree.unflatten(structure, simulate_p.bind(*flat, run=run))
