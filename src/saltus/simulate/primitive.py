"""The loop as a JAX primitive: batched over lanes, its tape growing by itself outside `jit`."""

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
from ..base.results import Result
from ..base.resumable import Work
from ..model.model import At, Par
from .loop import begin, loop, unpack
from .record import Carry, Counts, Knobs, Pace, Rows, Spec
from .tape_buffer import blank_rows

FIRST_CAPACITY = 64

simulate_p = Primitive("saltus_simulate")
simulate_p.multiple_results = True


class Run(NamedTuple):
    """The static side of a simulation."""

    spec: Spec
    capacity: int  # rows
    levels: tuple[Level, ...]
    grows: bool = False  # more rows when they run out; not where shapes are fixed


class Outcome(NamedTuple):
    """What the loop hands on: where and why it stopped, and the record."""

    end: At
    counts: Counts
    pace: Pace
    code: Any
    rows: Rows


def _structure(run: Run) -> Any:
    m = run.spec.model
    n_aux = len(run.spec.stepper.aux(m))
    rows = Rows(0, (0,) * m.n_w, (0,) * m.n_i, 0, 0, (0,) * m.families, (0,) * m.n_z, (0,) * n_aux)
    counts = Counts(*([0] * len(Counts._fields)))
    pace = Pace(*([0] * len(Pace._fields)))
    end = At(0, (0,) * m.n_w, (0,) * m.n_i, (0,) * m.n_z)
    return jax.tree.structure(Outcome(end, counts, pace, 0, rows))


def _lanes(args: Any, levels: tuple[Level, ...]) -> tuple[int, ...]:
    return lane_shape(args, [False] * len(args), levels)


def _outcome(carry: Carry, rows: Rows) -> Outcome:
    return Outcome(carry.at, carry.counts, carry.pace, carry.code, rows)


def _opening(run: Run, *args: Any) -> Carry:
    """The state of the loop before its first iteration."""

    def first(_: Any, flat: list) -> Carry:
        return begin(run.spec, *unpack(run.spec, flat))

    return nest(first, run.levels)(jnp.zeros(_lanes(args, run.levels)), list(args))


# -- eagerly: the tape grows ----------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _work(run: Run, platform: str) -> Work:
    spec, levels = run.spec, run.levels
    size = FIRST_CAPACITY * (1 if spec.model.light else 16)  # where compiling takes long, more room
    return Work(
        functools.partial(_opening, run),
        lambda carry, size: blank_rows(spec, carry.at, size),
        functools.partial(loop, spec, levels),
        lambda carry: carry.counts.rows,
        size,
        platform,
    )


def _status(carry: Carry, size: int) -> tuple[bool, bool]:
    running = np.asarray(carry.code) == int(Result.running)
    full = np.asarray(carry.counts.rows) >= size
    return bool(np.any(running)), bool(np.any(running & full))


def _impl(*args: Any, run: Run) -> list:
    """Pass after pass until every lane has stopped, on as many reels of tape as it takes."""
    platform = next(iter(args[0].devices())).platform
    if not run.grows:
        return _fixed(run, platform)(*args)
    work = _work(run._replace(capacity=0), platform)
    carry, rows, by_hand = work.complete(args, _lanes(args, run.levels), _status)
    return jax.tree.leaves(_outcome(_stopped(run, carry) if by_hand else carry, rows))


def _stopped(run: Run, carry: Carry) -> Carry:
    """Named so; a batch cannot be handed back in parts."""
    if run.levels:
        raise KeyboardInterrupt
    return carry._replace(code=jnp.full_like(carry.code, int(Result.interrupted)))


# -- inside `jit`: a fixed capacity ---------------------------------------------------------------


def _abstract(*avals: Any, run: Run) -> list:
    m, lanes = run.spec.model, _lanes(avals, run.levels)

    def leaf(k: int) -> tuple:
        return avals[k].shape[sum(level[k] for level in run.levels) :]

    def end(k: int) -> Any:
        return core.ShapedArray((*lanes, *leaf(k)), avals[k].dtype)

    def room(k: int) -> Any:
        return core.ShapedArray((run.capacity + 1, *lanes, *leaf(k)), avals[k].dtype)

    time, whole = jnp.dtype("float64"), jnp.dtype("int32")
    state = range(1 + m.n_w + m.n_i)
    z = range(len(state), len(state) + m.n_z)
    count = core.ShapedArray(lanes, whole)
    pace = [core.ShapedArray((*lanes, m.n_guards), d) for d in (time, time, time, whole)]
    counts = [count] * len(Counts._fields)
    out = [*map(end, state), *map(end, z), *counts, *pace, count, count]
    column = (run.capacity + 1, *lanes)
    columns = [time, m.kind_dtype, *[whole] * m.families]
    aux = [core.ShapedArray((*column, *v.shape), v.dtype) for v in run.spec.stepper.aux(m)]
    rows = [*map(room, state), *(core.ShapedArray(column, d) for d in columns)]
    return [*out, *rows, *map(room, z), *aux]


def _batch(args: Any, dims: Any, *, run: Run) -> tuple:
    moved, flags = add_level(args, dims, [False] * len(args))
    run = run._replace(levels=(*run.levels, flags))
    out = simulate_p.bind(*moved, run=run)
    shape = jax.tree.unflatten(_structure(run), out)
    where = jax.tree.map(lambda _: 0, shape)
    where = where._replace(rows=jax.tree.map(lambda _: 1, shape.rows))
    return out, jax.tree.leaves(where)


def _bounded(run: Run, platform: str) -> Any:
    """The whole simulation with a fixed number of rows; running out of them is a result."""

    def flat(*args: Any) -> list:
        carry = _opening(run, *args)
        rows = blank_rows(run.spec, carry.at, run.capacity)
        carry, rows, _ = loop(run.spec, run.levels, carry, rows, list(args))
        outcome = _outcome(carry, rows)
        full = outcome.code == int(Result.running)
        code = jnp.where(full, int(Result.too_many_steps), outcome.code)
        return jax.tree.leaves(outcome._replace(code=code))

    return one_kernel(flat, platform)


@functools.lru_cache(maxsize=256)
def _fixed(run: Run, platform: str) -> Any:
    return always_compiled(_bounded(run, platform))


def _lower(platform: str) -> Any:
    return mlir.lower_fun(lambda *args, run: _bounded(run, platform)(*args), multiple_results=True)


simulate_p.def_impl(_impl)
simulate_p.def_abstract_eval(_abstract)
batching.primitive_batchers[simulate_p] = _batch
mlir.register_lowering(simulate_p, _lower("cpu"), platform="cpu")
mlir.register_lowering(simulate_p, _lower("other"))


def simulate(spec: Spec, at: At, par: Par, knobs: Knobs, capacity: int) -> Outcome:
    """Run the loop; `capacity` bounds the rows inside `jit`, eagerly they grow."""
    flat = [jax.lax.stop_gradient(v) for v in jax.tree.leaves((at, par, knobs))]
    run = Run(spec, capacity, (), grows=not under_jit())
    return jax.tree.unflatten(_structure(run), simulate_p.bind(*flat, run=run))
