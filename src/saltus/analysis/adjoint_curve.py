"""Adjoints in the order of time: at rows, and on both sides of events and looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves
from ..base.losses import uncompiled
from ..base.text import picture
from ..base.tracing import is_traced
from ..model.model import At
from ..simulate.record import FLOW, approach_kind, is_reset
from ..solution.solution import Solution
from .adjoint_history import swept
from .loss_reads import gradients
from .read_places import END, INSIDE, START, Places, Segments, find_places, made_segments

CHANGE = 1e-9  # of the largest adjoint: less is no jump


class Curve(NamedTuple):
    """Adjoints of `(tau, w)` in the order of time, and the states they belong to."""

    t: Any
    at: At
    lam: tuple
    before: Any  # entries whose successor is the other side of an event, or of a look


def marked(before: Any, leaves: Any) -> np.ndarray:
    """Which of the entries `before` something differ from what follows, by more than rounding."""
    differ = np.zeros(len(before), bool)
    for leaf in leaves:
        flat = np.asarray(leaf, float).reshape(len(before), -1)
        least = CHANGE * np.max(np.abs(flat), initial=0.0)
        differ[:-1] |= np.any(np.abs(np.diff(flat, axis=0)) > least, axis=1)
    return before & differ


def pulled_back(
    owner: str, loss: Callable[[Solution], Any], sol: Solution, sensitivity: Any = None
) -> Curve:
    """The adjoints of a loss at all rows, and at all times at which it looks."""
    if not callable(loss):
        raise TypeError(
            f"{owner}: the loss is {picture(loss)}, expected a function of a solution. Write "
            f'{owner}(lambda sol: sol.final.x["h"], sol).'
        )
    fixed = checked(owner, sol, jax.lax.stop_gradient)
    plain = uncompiled(loss)  # inside jit, times are not known
    direct, own, looks = gradients(owner, plain, fixed)
    places = find_places(fixed.tape, looks)
    spec = fixed.spec if sensitivity is None else fixed.spec._replace(rules=sensitivity)
    segments = made_segments(spec, fixed.tape, places)
    lam, after, before = swept(spec, fixed.tape, own, places, segments)
    return _curve(fixed, direct, places, segments, (lam, after, before))


def checked(owner: str, sol: Any, known: Callable = lambda v: v) -> Solution:
    """One solution, with `known` applied to its arrays, that has numbers in it; or an error."""
    if not isinstance(sol, Solution):
        raise TypeError(
            f"{owner}: sol is {picture(sol)}, expected a solution as saltus.solve returns it."
        )
    sol = jax.tree.map(known, sol)
    if is_traced((sol.result, sol.tape.n, sol.tape.kind)):
        raise TypeError(
            f"{owner} needs numbers, but this solution is traced by jit or vmap. Return the "
            f"solution from the compiled function and call {owner} on it, outside."
        )
    if jnp.ndim(sol.result):
        raise ValueError(
            f"{owner}: one solution is needed, not a batch; give sol[k] instead of sol."
        )
    return sol


def _curve(
    sol: Solution, direct: Leaves, places: Places, segments: Segments, swept: tuple
) -> Curve:
    """Entries in the order of time: rows, and both sides of each look."""
    tape, (lam, after, before) = sol.tape, swept
    n, size, count = int(tape.n), len(tape.kind), len(places.row)
    kinds = np.asarray(tape.kind)[: n + 1]
    stops = bool(n) and kinds[n - 1] == approach_kind(len(sol.spec.model.actions) - 1)
    final = n - 1 if stops else n  # the stop is no jump
    g = tuple(np.asarray(v)[:count] for v in segments.g)
    opened = tuple(a - b for a, b in zip(lam, direct, strict=True))  # rows just after looks
    looked = np.any([np.any(v.reshape(size, -1) != 0, axis=1) for v in direct], axis=0)
    lam, before = (tuple(np.array(v) for v in leaves) for leaves in (lam, before))
    for j, (k, part) in enumerate(zip(places.row, places.part, strict=True)):
        for leaf, v in enumerate(g):
            if part == START:
                opened[leaf][k] -= v[j]
                looked[k] = True
            elif part == END and k + 1 == final:
                lam[leaf][final] += v[j]
            elif part == END:
                before[leaf][j] = lam[leaf][k + 1] + v[j]
    pool = [np.concatenate(v) for v in zip(lam, opened, before, after, strict=True)]
    entries: list[tuple[int, int, bool]] = []  # in the pool, among the states, and before a jump
    extra, looks = before[0].shape[0], np.searchsorted(places.row, np.arange(n + 2))
    for k in _kept(kinds, n)[: None if not stops else -1]:
        flow = k < n and kinds[k] == FLOW
        opens = bool(flow and looked[k])
        entries.append((k, k, opens or (k < final and not flow)))
        entries += [(size + k, k, False)] if opens else []
        for j in range(looks[k], looks[k + 1]):
            if places.part[j] == INSIDE:
                place = 2 * size + j
                entries += [(place, size + j, True), (place + extra, size + j, False)]
            elif places.part[j] == END and k + 1 != final:
                entries.append((2 * size + j, k + 1, True))
    where, states, jumps = map(np.array, zip(*entries, strict=True))
    rows = At(tape.tau, tape.w, tape.i, tape.z)
    pick = lambda a, b: np.concatenate([np.asarray(a), np.asarray(b)])[states]
    at = jax.tree.map(pick, rows, segments.at)
    looked_at = np.concatenate([places.t, np.zeros(extra - count)])
    times = np.concatenate([np.asarray(tape.t0 + tape.tau), looked_at])
    return Curve(times[states], at, tuple(v[where] for v in pool), jumps)


def _kept(kinds: Any, n: int) -> np.ndarray:
    """Rows that are entries: an approach and its reset are one jump."""
    resets = is_reset(kinds) & (np.arange(n + 1) < n)
    between = resets[1:] & (kinds[:-1] == kinds[1:] - 1)
    return np.flatnonzero(~np.concatenate([[False], between]))
