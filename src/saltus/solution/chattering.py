"""The two sides of a surface that a state can neither cross nor leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves
from ..base.types import Scalar
from ..model.algebraic_states import attached
from ..model.model import Action, At, Model, Par

if TYPE_CHECKING:
    from .solution import Solution


class Sides(NamedTuple):
    """How fast the guard changes along the flow on each side of the surface, and the flows."""

    name: str
    above: float
    below: float
    flow_above: Leaves
    flow_below: Leaves


class Turns(NamedTuple):
    """Two events that fire in turn, and how fast the guard of each changes after the other."""

    names: tuple[str, str]
    slopes: tuple[float, float]

    @property
    def words(self) -> str:
        (b, a), (of_b, of_a) = self
        return (
            f'Events "{a}" and "{b}" fire alternately at one instant, each right after the other. '
            f'After "{a}" the guard of "{b}" changes by {of_b:.6g} per unit of time, after "{b}" '
            f'that of "{a}" by {of_a:.6g}: both move to their firing side.'
        )

    @property
    def values(self) -> dict[str, float]:
        (b, a), (of_b, of_a) = self
        return {f'slope of "{b}" after "{a}"': of_b, f'slope of "{a}" after "{b}"': of_a}


def in_turn(sol: Solution) -> Turns | None:
    """The last two events, if they are different ones that fire alternately; else `None`."""
    tape, model = sol.tape, sol.spec.model
    n = int(tape.n)
    fired = [(k, int(tape.action_index(k))) for k in range(n - 1, max(n - 5, -1), -1)]
    own = fired[0][1] if fired else -1
    others = [(k, place) for k, place in fired if place >= 0 and place != own]
    if own < 0 or not others:
        return None
    last, first = (model.actions[place] for place in (own, others[0][1]))
    if last.kind != "guard" or first.kind != "guard" or last.kink or first.kink:
        return None
    slopes = []
    for action, row, at in ((last, n - 1, tape.state(n - 1)), (first, others[0][0], tape.end)):
        member = int(tape.member_of(row))
        slopes.append(_slope(model, action, at, at, tape.par(), member)[0])
    return Turns((last.name, first.name), (slopes[0], slopes[1]))


def two_sides(sol: Solution) -> Sides | None:
    """The guard at which a solve chatters, seen from both of its sides."""
    tape, model = sol.tape, sol.spec.model
    n, action = int(tape.n), tape.last_action(model)
    if action is None or action.kind != "guard":
        return None
    member = int(tape.member_of(n - 1))
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
    """The time derivative of a guard, as at `at`, along the flow at `side`; and that flow."""
    flow = model.flow(attached(model, side, par, 1), par)

    def value(tau: Scalar, moving: Leaves) -> Scalar:
        there = attached(model, model.with_moving(at, moving, tau=tau), par, 1)
        return model.one_guard(action, there, par, member)

    rates = tuple(k.astype(v.dtype) for k, v in zip(flow, model.moving_of(at), strict=True))
    slope = jax.jvp(value, (at.tau, model.moving_of(at)), (jnp.ones_like(at.tau), rates))[1]
    return float(np.asarray(slope)), flow[: model.nx]
