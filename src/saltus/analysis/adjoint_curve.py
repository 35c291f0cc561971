"""Adjoints in order of time: at rows, and on both sides of events and of reads by the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves, check_precision
from ..base.losses import uncompiled
from ..base.text import picture
from ..base.tracing import is_traced
from ..base.types import Array, HostArray
from ..model.model import At
from ..simulate.record import RowRules
from ..solution.solution import Solution
from .adjoint_history import History, adjoint_history
from .loss_reads import gradients
from .read_points import END, INSIDE, START, ReadPoints, Segments, find_points, made_segments

LeavesOrAt = TypeVar("LeavesOrAt", Leaves, At)

SMALLEST_JUMP = 1e-9  # relative to the largest adjoint: less is rounding


class Curve(NamedTuple):
    """Adjoints of `(tau, w)` in order of time, and the states they belong to."""

    t: HostArray
    at: At
    lam: Leaves
    before: HostArray  # entries whose successor is the other side of an event, or of a read


class _Entry(NamedTuple):
    """The adjoint at one time, on one side of it."""

    t: float
    at: At
    lam: Leaves
    before: bool  # whether the next entry is the other side


def marked(before: HostArray, leaves: Iterable[Array | HostArray]) -> HostArray:
    """Which of the entries marked `before` differ from the next one by more than rounding."""
    differ = np.zeros(len(before), bool)
    for leaf in leaves:
        flat = np.asarray(leaf, float).reshape(len(before), -1)
        least = SMALLEST_JUMP * np.max(np.abs(flat), initial=0.0)
        differ[:-1] |= np.any(np.abs(np.diff(flat, axis=0)) > least, axis=1)
    return before & differ


def pulled_back(
    owner: str,
    loss: Callable[[Solution], Array],
    sol: Solution,
    sensitivity: RowRules | None = None,
) -> Curve:
    """The adjoints of a loss at all rows, and at all times at which it reads the solution."""
    if not callable(loss):
        raise TypeError(
            f"{owner}: the loss is {picture(loss)}, expected a function of a solution. Write "
            f'{owner}(lambda sol: sol.final.x["h"], sol).'
        )
    fixed = checked(owner, sol, jax.lax.stop_gradient)
    plain = uncompiled(loss)  # inside jit, the times of reads are not known
    direct, own, reads = gradients(owner, plain, fixed)
    points = find_points(fixed.tape, reads)
    spec = fixed.spec if sensitivity is None else fixed.spec._replace(rules=sensitivity)
    segments = made_segments(spec, fixed.tape, points)
    history = adjoint_history(spec, fixed.tape, own, (points, segments))
    entries = list(_entries(fixed, direct, points, segments, history))
    columns = jax.tree.map(lambda *v: np.stack(v), *entries)
    return Curve(*columns)


def checked(owner: str, sol: Solution, known: Callable[[Array], Array] | None = None) -> Solution:
    """`sol`, with `known` applied to its arrays; an error unless it is one with known numbers."""
    if not isinstance(sol, Solution):
        raise TypeError(
            f"{owner}: sol is {picture(sol)}, expected a solution returned by saltus.solve."
        )
    check_precision()
    sol = sol if known is None else jax.tree.map(known, sol)
    if is_traced((sol.result, sol.tape.n, sol.tape.kind)):
        raise TypeError(
            f"{owner} needs numbers, but this solution is traced by jit or vmap. Return the "
            f"solution from the compiled function and call {owner} on it, outside."
        )
    if jnp.ndim(sol.result):
        raise ValueError(
            f"{owner}: sol is a batch, expected one solution. Give sol[k] instead of sol."
        )
    return sol


def _entries(
    sol: Solution, direct: Leaves, points: ReadPoints, segments: Segments, history: History
) -> Iterator[_Entry]:
    """Rows and reads in order of time; at a read, first the adjoint that includes it.

    `direct` are the gradients by rows that the loss reads directly.
    """
    tape, n = sol.tape, int(sol.tape.n)
    flows, rooted = np.asarray(tape.flow_rows()), np.asarray(tape.rooted_rows())
    last = tape.last_action(sol.spec.model)
    final = n - 1 if last is not None and last.kind == "stop" else n  # stopping is not a jump
    states = jax.tree.map(np.asarray, At(tape.tau, tape.w, tape.i, tape.z))
    read_states, g = jax.tree.map(np.asarray, (segments.at, segments.g))
    times = np.asarray(tape.t0 + tape.tau)
    reads_of_row = np.searchsorted(points.row, np.arange(n + 2))
    for k in range(final + 1):
        if rooted[k]:
            continue  # an approach and its reset are one jump
        reads = range(reads_of_row[k], reads_of_row[k + 1])
        lam, at = _pick(history.rows, k), _pick(states, k)
        if k == final:
            for j in _of_part(points, range(reads_of_row[max(k - 1, 0)], reads_of_row[k]), END):
                lam = _sum(lam, _pick(g, j))
        at_start = _of_part(points, reads, START)
        if flows[k] and (at_start or any(np.any(v[k] != 0) for v in direct)):
            yield _Entry(times[k], at, lam, True)
            lam = _difference(lam, _pick(direct, k))
            for j in at_start:
                lam = _difference(lam, _pick(g, j))
            yield _Entry(times[k], at, lam, False)
        else:
            yield _Entry(times[k], at, lam, bool(k < final and not flows[k]))
        for j in _of_part(points, reads, INSIDE):
            yield _Entry(points.t[j], _pick(read_states, j), _pick(history.before, j), True)
            yield _Entry(points.t[j], _pick(read_states, j), _pick(history.after, j), False)
        if k + 1 < final:
            for j in _of_part(points, reads, END):
                lam = _sum(_pick(history.rows, k + 1), _pick(g, j))
                yield _Entry(times[k + 1], _pick(states, k + 1), lam, True)


def _of_part(points: ReadPoints, which: Iterable[int], part: int) -> list[int]:
    """Those of the points that are in this part of their row."""
    return [j for j in which if points.part[j] == part]


def _pick(leaves: LeavesOrAt, k: int) -> LeavesOrAt:
    return jax.tree.map(lambda v: v[k], leaves)


def _sum(a: Leaves, b: Leaves) -> Leaves:
    return tuple(u + v for u, v in zip(a, b, strict=True))


def _difference(a: Leaves, b: Leaves) -> Leaves:
    return tuple(u - v for u, v in zip(a, b, strict=True))
