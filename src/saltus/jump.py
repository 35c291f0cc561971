"""A jump as a pure function: the last bit of flow up to the event, then the reset.

A jump row starts where the flow rows before it ended, on the event up to rounding. Its length
`delta` is zero in value but not in its derivatives: the root of the guard along the Taylor
expansion of the flow (M5), or the time left to a prescribed time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .leaves import Leaves
from .model import Action, At, Model, Par


class Firing(NamedTuple):
    """What was decided about a jump: the member of a family, and whether the guard has a root here.

    A chained firing (`rooted` false) was triggered by another reset; its guard is not zero.
    """

    member: Any
    rooted: Any


def velocity(model: Model, at: At, par: Par) -> Leaves:
    """`(tau', w')` along the flow: discrete floats and pending times stand still."""
    still = tuple(jnp.zeros_like(leaf) for leaf in at.w[model.moving :])
    return (jnp.ones_like(at.tau), *model.flow(at, par), *still)


def drift(model: Model, at: At, par: Par, delta: Any, degree: int) -> At:
    """The state a time `delta` later, by the Taylor polynomial of this degree (M4)."""

    def derivative(order: int, s: Leaves) -> Leaves:
        if order == 1:
            return velocity(model, At(s[0], s[1:], at.i), par)
        return jax.jvp(lambda y: derivative(order - 1, y), (s,), (derivative(1, s),))[1]

    s = (at.tau, *at.w)
    out, factorial = s, 1.0
    for order in range(1, degree + 1):
        factorial = factorial * order
        scale = delta**order / factorial
        term = derivative(order, s)
        out = tuple((v + scale * dv).astype(v.dtype) for v, dv in zip(out, term, strict=True))
    return At(out[0], out[1:], at.i)


def root_length(model: Model, action: Action, at: At, par: Par, firing: Firing, degree: int) -> Any:
    """The root `delta` of the guard along the Taylor flow, with `degree` exact derivatives (M5).

    Chord-Newton from zero with the slope held constant: iteration r makes the r-th derivative
    exact, and the value moves by rounding only.
    """

    def along(delta: Any, deg: int) -> Any:
        return model.one_guard(action, drift(model, at, par, delta, deg), par, firing.member)

    zero, one = jnp.zeros_like(at.tau), jnp.ones_like(at.tau)
    slope = jax.lax.stop_gradient(jax.jvp(lambda s: along(s, 1), (zero,), (one,))[1])
    slope = jnp.where(firing.rooted, slope, 1.0)
    value = model.one_guard(action, at, par, firing.member)
    delta = jnp.where(firing.rooted, -value / slope, 0.0)
    for _ in range(degree - 1):
        delta = jnp.where(firing.rooted, delta - along(delta, degree) / slope, 0.0)
    return delta


def approach(model: Model, action: Action, at: At, par: Par, firing: Firing, degree: int) -> At:
    """The state just before the reset of `action`."""
    if action.kind == "guard":
        delta = root_length(model, action, at, par, firing, degree)
        return drift(model, at, par, delta, degree)
    due = model.time_of(action, at, par)
    return drift(model, at, par, due - at.tau, degree)._replace(tau=due)


def jump(model: Model, action: Action, at: At, par: Par, firing: Firing, degree: int) -> At:
    """The state just after `action` (M6)."""
    before = approach(model, action, at, par, firing, degree)
    return model.reset(action, before, par, firing.member)
