"""A jump as a pure function: the last bit of flow up to the event, then the reset.

A jump row starts where the flow rows before it ended, on the event up to rounding. Its length
`delta` is zero in value but not in its derivatives: the root of the guard along the Taylor
expansion of the flow (M5), or the time left to a prescribed time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .consistent import attached, determined
from .leaves import Leaves
from .model import Action, At, Model, Par
from .taylor import derivatives, moved


class Firing(NamedTuple):
    """What was decided about a jump: the member of a family, and whether the guard has a root here.

    A chained firing (`rooted` false) was triggered by another reset; its guard is not zero.
    """

    member: Any
    rooted: Any


def root_length(
    model: Model,
    action: Action,
    at: At,
    par: Par,
    firing: Firing,
    terms: list[Leaves],
) -> Any:
    """The root `delta` of the guard along the Taylor flow, with `len(terms)` derivatives (M5).

    Chord-Newton from zero with the slope held constant: iteration r makes the r-th derivative
    exact, and the value moves by rounding only.
    """
    degree = len(terms)
    looks = _looks(model, action)

    def along(delta: Any, deg: int) -> Any:
        there = moved(at, terms[:deg], delta)
        if looks:
            there = attached(model, there, par, degree)
        return model.one_guard(action, there, par, firing.member)

    zero, one = jnp.zeros_like(at.tau), jnp.ones_like(at.tau)
    slope = jax.lax.stop_gradient(jax.jvp(lambda s: along(s, 1), (zero,), (one,))[1])
    slope = jnp.where(firing.rooted, slope, 1.0)
    delta = zero
    for _ in range(degree):
        delta = jnp.where(firing.rooted, delta - along(delta, degree) / slope, 0.0)
    return delta


def _looks(model: Model, action: Action) -> bool:
    """Whether the guard of an action looks at z."""
    return model.constraint is not None and model.constraint.seen[model.guards.index(action)]


def approach(model: Model, action: Action, at: At, par: Par, firing: Firing, degree: int) -> At:
    """The state just before the reset of `action`."""
    terms = derivatives(model, at, par, degree)
    if action.kind == "guard":
        delta = root_length(model, action, at, par, firing, terms)
        return attached(model, moved(at, terms, delta), par, degree)
    due = model.time_of(action, at, par)
    there = moved(at, terms, due - at.tau)._replace(tau=due)
    return attached(model, there, par, degree)


def jump(model: Model, action: Action, at: At, par: Par, firing: Firing, degree: int) -> At:
    """The state just after `action` (M6)."""
    before = approach(model, action, at, par, firing, degree)
    after = model.reset(action, before, par, firing.member)
    if any(a.kind == "time" for a in model.actions):
        after = model.with_pending_times(determined(model, after, par, degree), par)
    return after
