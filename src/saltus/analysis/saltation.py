"""The jumps of a motion as linear maps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..base.names import named
from ..base.text import number, table
from ..base.tracing import is_traced
from ..base.types import Array, Matrix, Scalar, Vector, Whole
from ..model.algebraic_states import attached
from ..model.jumps import Firing, approach, reset
from ..model.model import Action, At, Model, Par
from ..solution.solution import Solution
from .adjoint_variables import checked
from .local_state import flat, vector

MAX_MATRICES = 12  # that are printed
PRINTED_ZERO = 1e-13  # relative to the largest entry


class Saltation(eqx.Module):
    """One event as a linear map from a small change of the state before it to that after it."""

    t: Scalar
    matrix: Matrix
    event: str = eqx.field(static=True)
    states: tuple[str, ...] = eqx.field(static=True)

    def __matmul__(self, change: Saltation | Array) -> Array:
        return self.matrix @ (change.matrix if isinstance(change, Saltation) else change)

    def __repr__(self) -> str:
        if is_traced((self.t, self.matrix)):
            return f'"{self.event}", traced'
        matrix = np.asarray(self.matrix)
        least = PRINTED_ZERO * np.max(np.abs(matrix), initial=0.0)
        shown = np.where(np.abs(matrix) <= least, 0.0, matrix)  # no -0, no 1e-18
        rows = [
            [f"{name} +", *(number(v, 6) for v in row)]
            for name, row in zip(self.states, shown, strict=True)
        ]
        head = [f'"{self.event}" at t = {number(self.t, 8)}', *(f"{s} -" for s in self.states)]
        return table(head, rows)


class Jumps(eqx.Module):
    """The events of a motion as linear maps: `dx+ = matrix dx-`, both at the same time (M69)."""

    t: Vector
    matrix: Array
    names: tuple[str, ...] = eqx.field(static=True)
    states: tuple[str, ...] = eqx.field(static=True, default=())

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, k: int) -> Saltation:
        return Saltation(self.t[k], self.matrix[k], self.names[k], self.states)

    def __iter__(self) -> Iterator[Saltation]:
        return (self[k] for k in range(len(self)))

    def of(self, event: str) -> list[Saltation]:
        """The linear maps of the event called `event`."""
        return [jump for jump in self if jump.event == event]

    def __repr__(self) -> str:
        more = [f"... and {len(self) - MAX_MATRICES} more"] if len(self) > MAX_MATRICES else []
        shown = [repr(self[k]) for k in range(min(len(self), MAX_MATRICES))]
        return "\n\n".join([*shown, *more]) if shown else "no events"


def saltations(sol: Solution) -> Jumps:
    """The saltation matrices of all events and kinks of the solution `sol` (M69).

    A small change `dx-` of the state just before an event becomes `dx+ = matrix dx-` just after it.
    The matrix includes the change of the event time; both changes are taken at the same time.
    """
    sol = checked("saltations", sol)
    model, tape = sol.spec.model, sol.tape
    states = _state_names(sol)
    names, times, matrices = [], [], []
    for row, _, action, member, rooted in tape.events(model):
        if not (action.logged or action.kink):
            continue
        sides = tape.state(row), tape.state(row + 1)
        names.append(action.name)
        times.append(tape.t0 + sides[0].tau)
        matrices.append(saltation(model, action, *sides, tape.par(), member, rooted))
    if not names:
        n = sum(int(np.prod(s)) for s in model.x_shapes)
        return Jumps(jnp.zeros(0), jnp.zeros((0, n, n)), (), states)
    return Jumps(jnp.stack(times), jnp.stack(matrices), tuple(names), states)


def _state_names(sol: Solution) -> tuple[str, ...]:
    """A name for every number of x."""
    names: list[str] = []
    for name, leaf in named(sol.last.x, "x").items():
        if np.ndim(leaf) == 0:
            names.append(name)
        else:
            names += [f"{name}{list(k)}" for k in np.ndindex(np.shape(leaf))]
    return tuple(names)


def saltation(
    model: Model, action: Action, before: At, after: At, par: Par, member: Whole | int, rooted: bool
) -> Matrix:
    """The derivative of the state after a jump by the state before it, at the same time (M69).

    A change of the state also changes the time of the event, unless the event was triggered by
    another one (not `rooted`) and so has no time of its own.
    """
    x, joined = vector(model, before)

    def landed(x: Vector) -> tuple[Any, Any]:
        here = joined(x)
        if rooted:
            here = approach(model, action, here, par, Firing(member), 1)
        return vector(model, reset(model, action, here, par, member, 1))[0], here.tau

    state, time = jax.jacfwd(landed)(x)
    flow = model.flow(attached(model, after, par, 1), par)[: model.nx]
    return state - jnp.outer(flat(flow), time)
