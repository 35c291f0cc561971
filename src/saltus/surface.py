"""The two sides of a surface that a state can neither cross nor leave."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .consistent import attached
from .leaves import Leaves
from .model import Action, At, Model, Par
from .record import action_of


class Sides(NamedTuple):
    """How fast the guard changes along the flow of either side, and the flows."""

    name: str
    above: float
    below: float
    flow_above: Leaves
    flow_below: Leaves


def two_sides(sol: Any) -> Sides | None:
    """The guard at which a solve chatters, seen from both of its sides."""
    tape, model = sol.tape, sol.spec.model
    n = int(tape.n)
    if not n:
        return None
    action = model.actions[int(action_of(int(tape.kind[n - 1])))]
    if action.kind != "guard":
        return None
    member = int(tape.member[0][n - 1]) if tape.member else 0
    states = [tape.state(n - 1), tape.end]
    if action.kink:
        states = [_flagged(model, tape.end, member, flag) for flag in (0, 1)]
    found = [_slope(model, action, states[0], at, tape.par(), member) for at in states]
    (above, flow_above), (below, flow_below) = sorted(found, key=lambda pair: pair[0])
    return Sides(action.name, above, below, flow_above, flow_below)


def _flagged(model: Model, at: At, member: int, flag: int) -> At:
    """The same state on a given side of a kink."""
    k = model.place_flags
    flags = jnp.asarray(at.i[k]).at[member].set(flag)
    return at._replace(i=(*at.i[:k], flags, *at.i[k + 1 :]))


def _slope(
    model: Model, action: Action, at: At, side: At, par: Par, member: int
) -> tuple[float, Leaves]:
    """The slope of a guard, in force at `at`, in time along the flow of a side; and that flow."""
    m = model.moving
    flow = model.flow(attached(model, side, par, 1), par)

    def value(tau: Any, moving: Leaves) -> Any:
        there = attached(model, At(tau, (*moving, *at.w[m:]), at.i, at.z), par, 1)
        return model.one_guard(action, there, par, member)

    rates = tuple(k.astype(v.dtype) for k, v in zip(flow, at.w[:m], strict=True))
    slope = jax.jvp(value, (at.tau, at.w[:m]), (jnp.ones_like(at.tau), rates))[1]
    return float(np.asarray(slope)), flow[: model.nx]
