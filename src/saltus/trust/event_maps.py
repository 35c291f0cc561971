"""The events of a solution as linear maps, and whether simultaneous events commute."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..analysis.local_state import vector
from ..analysis.saltation import saltation
from ..base.host_programs import rarely
from ..base.leaves import array_of
from ..base.tracing import is_tracer
from ..base.types import Array, Matrix, Scalar, Vector, Whole
from ..model.jumps import reset
from ..model.model import Action
from ..solution.solution import Solution
from ..solution.tape import Tape


class Jumped(NamedTuple):
    """For each event: the norm of its saltation matrix, and how much it changes the state."""

    norm: Vector
    change: Vector


def jumped(sol: Solution, rows: Array, rooted: Array, valid: Array) -> Jumped:
    """The saltation matrices of the events in these rows (M69), by their norms."""
    model = sol.spec.model
    action = _actions(sol.tape, rows)
    norm, change = array_of(np.ones(rows.shape)), array_of(np.zeros(rows.shape))
    known = (lambda v: v) if is_tracer(action) else np.asarray
    actions, roots, used = known(action), known(rooted), known(valid)
    for place, own in enumerate(model.actions):
        if own.kind == "stop":
            continue
        for root in (True, False):
            if root and own.kind == "zeno":
                continue
            mine = used & (actions == place) & (roots == root)
            if not is_tracer(mine) and not np.any(np.asarray(mine)):
                continue
            a, b = _norms(sol, place, root, rows)
            norm, change = _chosen(mine, (a, b), (norm, change))
    return Jumped(norm, change)


@rarely
def _actions(tape: Tape, rows: Array) -> Array:
    return tape.action_index(rows)


@rarely
def _chosen(which: Array, new: tuple, old: tuple) -> tuple:
    return jax.tree.map(lambda a, b: jnp.where(which, a, b), new, old)


@functools.partial(rarely, static_argnums=(1, 2))
def _norms(sol: Solution, place: int, rooted: bool, rows: Array) -> tuple[Vector, Vector]:
    model, tape = sol.spec.model, sol.tape
    action = model.actions[place]

    def one(k: Whole) -> tuple[Scalar, Scalar]:
        before, after = tape.state(k), tape.state(k + 1)
        member = tape.member_of(k)
        matrix = saltation(model, action, before, after, tape.par(), member, rooted)
        leap = vector(model, after)[0] - vector(model, before)[0]
        size = jnp.max(jnp.abs(vector(model, before)[0])) + 1e-300
        off = jnp.max(jnp.abs(matrix - jnp.eye(matrix.shape[0])))
        moved = jnp.max(jnp.abs(leap)) / size
        return jnp.linalg.norm(matrix, 2), jnp.maximum(off, moved)

    return jax.lax.map(one, rows)


def commute(sol: Solution, first: int, second: int) -> bool:
    """Whether two simultaneous events, in these rows, give the same state in either order (M76)."""
    model, tape = sol.spec.model, sol.tape
    par, start = tape.par(), tape.state(first)
    members = [tape.member_of(k) for k in (first, second)]
    actions = [model.actions[int(tape.action_index(k))] for k in (first, second)]

    def run(order: tuple[int, int]) -> tuple[Vector, Matrix | None, list[Array]]:
        at, matrix = start, None
        for k in order:
            after = reset(model, actions[k], at, par, members[k], 1)
            own = saltation(model, actions[k], at, after, par, members[k], _has_root(actions[k]))
            matrix = own if matrix is None else own @ matrix
            at = after
        return vector(model, at)[0], matrix, [*at.i, *model.held_of(at)]

    one, other = run((0, 1)), run((1, 0))
    return all(
        bool(jnp.allclose(a, b, rtol=1e-9, atol=1e-12))
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def _has_root(action: Action) -> bool:
    return action.kind == "guard"
