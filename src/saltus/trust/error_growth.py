"""How small changes grow along a solution, and whether tangent and adjoint sweeps agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves, frozen
from ..base.types import Array, HostArray, Number, Scalar, Vector, Whole
from ..model.model import Model
from ..model.projection import along, condition
from ..solution.solution import Solution
from ..solution.tape import Tape
from ..sweep.primitives import Recorded, replay

T = TypeVar("T")
CANCELLATION_PART = 1e-5  # share with which terms that may cancel enter the scale
DECAY_PART = (
    0.1  # tangents that are smaller at the end count as if they were this part of the largest
)
ERROR_MARGIN = 10.0  # by which estimated errors may be too small; beyond that, tolerances count
MOST_ALGEBRAIC_NUMBERS = 64  # with more, the equations are not examined row by row


class Growth(NamedTuple):
    """How an error in the state at the start grows, in units of the tolerances."""

    rows: Vector  # up to the start of each row
    dot: Scalar  # the relative difference of tangent and adjoint sweep
    moves: Array  # whether the time of a row depends on the start or on parameters
    planned: Scalar  # least distance from the end to a planned time that depends on them
    shift: Scalar  # the relative change of derivatives when all states change by their errors
    off: (
        Vector  # how far the states of each row are off, by the local errors of all steps before it
    )
    late: Vector  # how far the time of each row is off
    tangents: tuple[Leaves, Sequence[Array]] | tuple[()]  # of p and of the rows, three side by side


def remade(
    sol: Solution, p: Leaves, s0: Leaves, probe: Scalar | None = None
) -> tuple[list[Array], list[Array]]:
    """The recorded states as functions of the parameters and of the first state.

    With `probe` = 1 the steps have their local errors added (M47)."""
    tape, model = sol.tape, sol.spec.model
    recorded = Recorded(
        (tape.tau, *tape.w),
        (tape.h, tape.kind, *tape.member, *tape.i, *tape.z, *tape.aux),
        (tape.n, tape.backward, *tape.iota),
        (tape.end.tau, *tape.end.w),
    )
    par = model.with_p(tape.par()._replace(theta=frozen(tape.theta)), p)
    if probe is not None:
        par = model.with_probe(par, probe)
    rows, ends, _ = replay(sol.spec, recorded, par.theta, s0)
    return rows, ends


def parameters(sol: Solution) -> Leaves:
    """The float leaves of p."""
    return frozen(sol.spec.model.p_of(sol.tape))


def first_state(tape: Tape) -> Leaves:
    return frozen((tape.tau[0], *(v[0] for v in tape.w)))


def _scales(sol: Solution, w: Leaves) -> list:
    rtol, atol = sol.tolerance
    return [a + rtol * jnp.abs(v) for v, a in zip(w, atol, strict=False)]


def _directions(sol: Solution) -> tuple[Leaves, Leaves, Leaves]:
    """Three columns of (dp, dtau, dw): two change the state only, one changes everything."""
    model, s0 = sol.spec.model, first_state(sol.tape)
    sizes = _scales(sol, s0[1 : 1 + model.nx])

    def column(seed: int, with_p: bool) -> tuple[Leaves, Leaves]:
        normal = np.random.default_rng(seed).normal
        dw = [s * normal(size=v.shape) for s, v in zip(sizes, s0[1:], strict=False)]
        rest = [
            with_p * jnp.where(jnp.isfinite(v), v, 0.0) * normal(size=v.shape)
            for v in s0[1 + model.nx :]
        ]
        dp = [
            with_p * normal(size=v.shape) * (jnp.abs(v) + 1e-3 * (v == 0)) for v in parameters(sol)
        ]
        if sum(v[0].size for v in sol.tape.z) <= MOST_ALGEBRAIC_NUMBERS:
            dw = _consistent(sol, dw, dp)
        return tuple(dp), (jnp.zeros_like(s0[0]), *dw, *rest)

    return column(0, False), column(1, False), column(2, True)


def _consistent(sol: Solution, dw: list, dp: list) -> list:
    """A change of the first state that stays on a constraint of index 2 when p changes.

    Any other change is projected onto it by the first step, which depends on the step length."""
    tape, n = sol.tape, sol.spec.model.n_p[0]
    par = tape.par()
    none = [jnp.zeros_like(v) for v in par.theta]
    at, par = frozen((tape.state(0), par))
    return list(along(sol.spec.model, at, par, tuple(dw), (*none[:2], *dp, *none[2 + n :])))


def growth(sol: Solution) -> Growth:
    """How errors of the start grow up to every row; the dot test over the solution (M75)."""
    model, s0, p = sol.spec.model, first_state(sol.tape), parameters(sol)
    columns = _directions(sol)
    wide = jax.tree.map(lambda *v: jnp.stack(v), *columns)

    def run(p: Leaves, s0: Leaves) -> tuple[list, list]:
        return remade(sol, p, s0)

    tangents = jax.vmap(lambda d: jax.jvp(run, (p, s0), d)[1])(wide)
    rows, ends = tangents
    sizes = _scales(sol, model.x_of(sol.tape))
    count = sum(v[0].size for v in model.x_of(sol.tape))
    total = sum(
        jnp.sum((v[:2] / s[None]) ** 2, axis=tuple(range(2, v.ndim)))
        for v, s in zip(rows[1 : 1 + model.nx], sizes, strict=True)
    )
    size = jnp.sqrt(total / count)
    ratio = jnp.max(size / jnp.maximum(size[:, :1], 1e-300), axis=0)
    sizes = [*sizes_at_end(sol), *[jnp.ones(())] * len(ends)]
    normal = np.random.default_rng(7).normal
    seeds = [
        normal(size=v.shape[1:]) / s for v, s in zip(ends, [jnp.ones(()), *sizes], strict=False)
    ]
    moves = jnp.any(rows[0] != 0, axis=0)
    values = frozen([sol.tape.end.tau, *sol.tape.end.w])
    dot = _dot(run, p, s0, columns[2], seeds, [v[2] for v in ends], values)
    finer = _finer(sol, jax.tree.map(lambda v: v[1:], wide))
    compared = jax.tree.map(lambda v: v[1:], (rows, ends))
    off, late = _off(sol, [v[0, 2] for v in finer[0]])
    used = jnp.where(jnp.arange(off.size) <= sol.tape.n, off, 0.0)
    share = jnp.minimum(1.0, ERROR_MARGIN * jnp.max(used))
    finer = jax.tree.map(lambda v: (v[0] + share * (v[1] - v[0]))[:2], finer)
    shift = jnp.max(jax.vmap(lambda *v: _shift(sol, *v))(*finer, *compared))
    return Growth(ratio, dot, moves, _planned(sol, ends), shift, off, late, (wide[0], rows))


def _finer(sol: Solution, columns: tuple) -> tuple[list[Array], list[Array]]:
    """Tangents along the tape, and along one that is off by the tolerances, with finer steps.

    First the tangents of two columns, then the propagated local errors of all steps (M47)."""
    model, tape = sol.spec.model, sol.tape
    sizes = _scales(sol, model.x_of(tape))
    point = (parameters(sol), first_state(tape), jnp.ones(()))
    wide = jax.tree.map(lambda v: jnp.concatenate([v, jnp.zeros_like(v[:1])]), columns)
    probes = jnp.asarray([0.0, 0.0, 1.0])

    def moved(part: Scalar) -> tuple[list[Array], list[Array]]:
        xs = zip(model.x_of(tape), sizes, strict=True)
        other = model.with_x(tape, [v + (part * s).astype(v.dtype) for v, s in xs])
        there = dataclasses.replace(sol, tape=other)
        run = lambda p, s, probe: remade(there, p, s, probe)
        return jax.vmap(lambda d, e: jax.jvp(run, point, (*d, e))[1])(wide, probes)

    return jax.lax.map(moved, jnp.asarray([0.0, 1.0]))


def _off(sol: Solution, errors: list) -> tuple[Vector, Vector]:
    """The estimated errors of the states of all rows, in tolerances, and of their times.

    Errors of different steps may cancel in one row, so the largest of all rows so far is taken."""
    model, tape = sol.spec.model, sol.tape
    sizes = _scales(sol, model.x_of(tape))
    each = [
        jnp.max(jnp.abs(e / s), axis=tuple(range(1, e.ndim)), initial=0.0)
        for e, s in zip(errors[1 : 1 + model.nx], sizes, strict=True)
    ]
    so_far = lambda v: jax.lax.cummax(v)
    return so_far(jnp.max(jnp.stack(each), axis=0)), so_far(jnp.abs(errors[0]))


def _shift(sol: Solution, finer: list, last: list, rows: list, ends: list) -> Scalar:
    """How much tangents change along a tape that is off by the errors, with finer steps.

    While states are at rest, steps can become far too long for the tangents."""
    model, tape = sol.spec.model, sol.tape
    sizes = _scales(sol, model.x_of(tape))
    off, size = _sizes(model, finer, rows, sizes, tape.n)
    end = [v[None] for v in sizes_at_end(sol)]
    off1, size1 = _sizes(model, [v[None] for v in last], [v[None] for v in ends], end, 0)
    size, size1 = jnp.maximum(size, 1e-150), jnp.maximum(size1, DECAY_PART * size)
    return jnp.maximum(off / size, off1 / jnp.maximum(size1, 1e-150))


def _sizes(
    model: Model, finer: list, tangents: list, sizes: list, n: Whole | int
) -> tuple[Scalar, Scalar]:
    """The largest change of the tangents of x over rows, and their largest size."""
    used = jnp.arange(tangents[0].shape[0]) <= n
    norm = lambda v, s: jnp.sum((v / s) ** 2, axis=tuple(range(1, v.ndim)))
    trio = list(zip(finer[1:], tangents[1:], sizes, strict=False))[: model.nx]
    off = sum(norm(a - b, s) for a, b, s in trio)
    size = sum(norm(b, s) for _, b, s in trio)
    biggest = lambda v: jnp.sqrt(jnp.max(jnp.where(used, v, 0.0)))
    return biggest(off), biggest(size)


def _planned(sol: Solution, tangents: list) -> Scalar:
    """From the end to the nearest planned time that depends on the start or on parameters."""
    model, tape = sol.spec.model, sol.tape
    nearest = jnp.full((), jnp.inf)
    for action in model.actions:
        if action.kind == "time":
            place = model.place_pending + action.index
            moves = jnp.any(tangents[1 + place] != 0)
            gap = jnp.abs(model.pending_of(tape.end)[action.index] - tape.t1)
            nearest = jnp.where(moves, jnp.minimum(nearest, gap), nearest)
    return nearest


def sizes_at_end(sol: Solution) -> list:
    return _scales(sol, frozen(sol.spec.model.x_of(sol.tape.end)))


def _dot(
    run: Callable[[Leaves, Leaves], tuple[list, list]],
    p: Leaves,
    s0: Leaves,
    column: tuple,
    seeds: list,
    ends: list,
    values: list,
) -> Scalar:
    """`<w, J v>` against `<J^T w, v>`.

    If the influence of a parameter cancels, only the rounding of terms as large as the weights
    times the values is left. A share of these terms is added to the scale, so that this rounding
    is not reported."""
    dp, ds = jax.vjp(lambda p, s: run(p, s)[1], p, s0)[1](seeds)
    forward = [w * v for w, v in zip(seeds, ends, strict=True)]
    backward = [w * v for w, v in zip((*dp, *ds), (*column[0], *column[1]), strict=True)]
    size = sum(jnp.sum(jnp.abs(v)) for v in (*forward, *backward))
    size += CANCELLATION_PART * sum(
        jnp.sum(jnp.abs(w * v)) for w, v in zip(seeds, values, strict=False) if v.size
    )
    return dot_mismatch(forward, backward, size)


def dot_mismatch(
    forward: Sequence[Array | HostArray], backward: Sequence[Array | HostArray], size: Number
) -> Scalar:
    """The dot test: the difference of `<w, J v>` and `<J^T w, v>`, relative to `size`."""
    off = sum(jnp.sum(v) for v in forward) - sum(jnp.sum(v) for v in backward)
    return jnp.abs(off) / jnp.maximum(size, 1e-300)


class Algebra(NamedTuple):
    """The worst condition and residual of the equations for z."""

    condition: Scalar
    drift: Scalar  # of equations of index 2 and invariants, in units of the tolerance


def algebra(sol: Solution) -> Algebra:
    """The worst condition of the equations for z, and the largest residual."""
    model, tape = sol.spec.model, sol.tape
    zero = jnp.zeros(())
    if model.constraint is None:
        return Algebra(zero, zero)
    used = jnp.arange(tape.tau.shape[0]) <= tape.n
    rows = jnp.arange(tape.tau.shape[0])
    rtol, atol = sol.tolerance
    least = jnp.min(jnp.stack([jnp.min(a) for a in atol]))
    drift = jax.vmap(lambda k: _residual(model, tape, k))(rows)
    size = rtol * _largest(tape, model) + least
    small = sum(int(v[0].size) for v in tape.z) <= MOST_ALGEBRAIC_NUMBERS
    worst = zero  # not examined
    if small:
        numbers = jax.vmap(lambda k: condition(model, tape.state(k), tape.par()))(rows)
        worst = jnp.max(jnp.where(used, numbers, 0.0))
    return Algebra(worst, jnp.max(jnp.where(used, drift, 0.0)) / size)


def _residual(model: Model, tape: Tape, k: Whole) -> Scalar:
    values = model.residuals(tape.state(k), tape.par())
    return jnp.max(jnp.stack([jnp.max(jnp.abs(v)) for v in values]))


def _largest(tape: Tape, model: Model) -> Scalar:
    return jnp.max(jnp.stack([jnp.max(jnp.abs(v)) for v in model.x_of(tape)]))
