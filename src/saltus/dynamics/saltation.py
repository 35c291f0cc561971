"""The jumps of a motion as linear maps."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..consistent import attached
from ..jump import Firing, approach, reset
from ..model import Action, At, Model, Par
from ..record import action_of, is_reset
from ..solution import Solution
from ..tables import number, table
from .states import flat, vector


class Jumps(eqx.Module):
    """The events of a motion as linear maps: `dx+ = matrix dx-`, both at the same time (M69)."""

    t: Any
    matrix: Any
    names: tuple[str, ...] = eqx.field(static=True)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        rows = [[number(t, 8), name] for t, name in zip(self.t, self.names, strict=True)]
        return f"Jumps: {len(self)} matrices\n{table(['t', 'event'], rows, left=(1,))}"


def jumps(sol: Solution) -> Jumps:
    """Every event of a solution, and every kink, as a saltation matrix (M69)."""
    model, tape = sol.spec.model, sol.tape
    kinds = np.asarray(tape.kind)[: int(tape.n)]
    names, times, matrices = [], [], []
    for k in np.flatnonzero(is_reset(kinds)):
        action = model.actions[int(action_of(kinds[k]))]
        if not (action.logged or action.kink):
            continue
        rooted = bool(k > 0 and kinds[k - 1] == kinds[k] - 1)
        member = tape.member[0][k] if tape.member else 0
        sides = tape.state(k), tape.state(k + 1)
        names.append(action.name)
        times.append(tape.theta[0] + sides[0].tau)
        matrices.append(saltation(model, action, *sides, tape.par(), member, rooted))
    if not names:
        n = sum(int(np.prod(s)) for s in model.x_shapes)
        return Jumps(jnp.zeros(0), jnp.zeros((0, n, n)), ())
    return Jumps(jnp.stack(times), jnp.stack(matrices), tuple(names))


def saltation(
    model: Model, action: Action, before: At, after: At, par: Par, member: Any, rooted: bool
) -> Any:
    """How a small change of the state before a jump shows after it, at the same time (M69).

    The change moves the event, and the state there; what passes between is flow of either side.
    An event that another one has triggered (not `rooted`) has no time of its own.
    """
    x, joined = vector(model, before)

    def landed(x: Any) -> tuple[Any, Any]:
        here = joined(x)
        if rooted:
            here = approach(model, action, here, par, Firing(member), 1)
        return vector(model, reset(model, action, here, par, member, 1))[0], here.tau

    state, time = jax.jacfwd(landed)(x)
    flow = model.flow(attached(model, after, par, 1), par)[: model.nx]
    return state - jnp.outer(flat(flow), time)
