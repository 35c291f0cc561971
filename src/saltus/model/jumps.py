"""A jump as two pure functions: the approach, the last bit of flow up to the event, and the reset.

The approach starts where the last flow row ended, which is at the event up to rounding. Its length
`delta` has the value zero, but nonzero derivatives: it is the root of the guard along the Taylor
expansion of the flow (M5), or the time that is left to a prescribed time. An event that another
reset triggers has no approach: its guard is not zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..base.leaves import Leaves
from ..base.types import Flag, Scalar, Whole
from .algebraic_states import attached, determined
from .model import Action, At, Model, Par
from .taylor import derivatives, moved

HUGE_SLOPE = 1e200  # its square overflows to infinity


class Firing(NamedTuple):
    """What was decided about a jump: the member of a family, and the time `due` if it is given."""

    member: Whole | int
    due: Scalar | None = None
    grazes: Flag | bool = False  # the guard may only touch zero: its slope counts as zero
    jumps: Flag | bool = False  # the guard jumps over zero: the time may depend on anything


def root_length(
    model: Model,
    action: Action,
    at: At,
    par: Par,
    firing: Firing,
    terms: list[Leaves],
) -> Scalar:
    """The root `delta` of the guard along the Taylor flow, with `len(terms)` derivatives (M5).

    Chord-Newton steps from zero with the slope held constant: step r makes the r-th derivative
    exact, and changes the value by rounding only.
    """
    degree = len(terms)
    looks = _looks(model, action)

    def along(delta: Scalar, deg: int) -> Scalar:
        there = moved(at, terms[:deg], delta)
        if looks:
            there = attached(model, there, par, degree)
        return model.one_guard(action, there, par, firing.member)

    zero, one = jnp.zeros_like(at.tau), jnp.ones_like(at.tau)
    slope = jax.lax.stop_gradient(jax.jvp(lambda s: along(s, 1), (zero,), (one,))[1])
    none = jnp.logical_or(firing.grazes, firing.jumps)
    slope = jnp.where(none, 1.0, slope)
    steep = jnp.where(none, HUGE_SLOPE, 1.0)  # times zero it is still zero
    delta = zero
    for _ in range(degree):
        miss = jnp.where(firing.jumps, _anything(at, par), along(delta, degree))
        miss = miss - jnp.where(none, jax.lax.stop_gradient(miss), 0.0)
        delta = delta - miss / slope * steep * steep
    return delta


def _anything(at: At, par: Par) -> Scalar:
    """A number that depends on the time, all states and all parameters."""
    leaves = (at.tau, *at.w, *par.theta)
    weights = (1.0 + 0.6180339887498949 * k % 1.0 for k in range(len(leaves)))
    total: Any = sum(w * jnp.sum(v) for w, v in zip(weights, leaves, strict=True))
    return total


def _looks(model: Model, action: Action) -> bool:
    """Whether the guard of an action depends on z."""
    return model.constraint is not None and model.constraint.seen[model.guards.index(action)]


def approach(model: Model, action: Action, at: At, par: Par, firing: Firing, degree: int) -> At:
    """The state just before the reset of `action`."""
    terms = derivatives(model, at, par, degree)
    if action.kind == "guard":
        delta = root_length(model, action, at, par, firing, terms)
        return attached(model, moved(at, terms, delta), par, degree)
    due = model.time_of(action, at, par) if firing.due is None else firing.due
    there = moved(at, terms, due - at.tau)._replace(tau=due)
    return attached(model, there, par, degree)


def reset(model: Model, action: Action, at: At, par: Par, member: Whole | int, degree: int) -> At:
    """The state just after `action` (M6)."""
    after = model.reset(action, attached(model, at, par, degree), par, member)
    if any(a.kind == "time" for a in model.actions):
        after = model.with_pending_times(determined(model, after, par, degree), par)
    return after
