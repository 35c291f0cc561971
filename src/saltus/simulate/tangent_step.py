"""The tangent of a step whose error says nothing about derivatives.

See methods/tangent_error.py.
"""

from __future__ import annotations

import jax.numpy as jnp

from ..base.control_flow import branch
from ..base.types import Flag, Scalar
from ..methods.linearised_flow import travelled
from ..methods.method import Goal, scales
from ..methods.step_control import PI
from ..methods.tangent_error import Tangent, dropped, flat, relative, tested
from ..model.model import At, Par
from .guards import sigma
from .record import Carry, Knobs, Spec

SHORTEST_STEP = 1e-9  # of the time span: no tangent makes a step shorter


def travel(
    spec: Spec, par: Par, knobs: Knobs, c: Carry, ahead: At, h: Scalar
) -> tuple[Tangent, Scalar]:
    """The tangent after a step to `ahead`, and the length of the next attempt (M95)."""
    model, stepper, m = spec.model, spec.stepper, spec.model.moving
    assert c.tangent
    goal, signed = Goal(knobs.rtol, knobs.atol, True), sigma(par) * h
    x = model.moving_of(c.at)
    sizes = flat(scales(goal, x, x, goal.atol[:m]))
    damping = stepper.damping(model, par, c.at, signed)
    u, end, off, push = travelled(
        model, par, c.at, ahead, signed, c.tangent, sizes, stepper.traits.leading, damping
    )
    allowed = relative(goal) * (sizes + jnp.maximum(jnp.abs(u), jnp.abs(end)))
    error = jnp.sqrt(jnp.mean((off / allowed) ** 2))
    finite = jnp.isfinite(error + jnp.sum(end))  # if not, there is no derivative
    error, end = jnp.where(finite, error, 0.0), jnp.where(finite, end, u)
    fits = (error <= 1.0) | (h <= SHORTEST_STEP * jnp.abs(par.t1 - par.t0))
    log_error = jnp.log(jnp.maximum(error, 1e-300))
    factor = PI(*knobs.control).factor(log_error, c.error, stepper.error_order)
    tangent = tested(c.tangent, error, push, jnp.where(fits, end, u), fits)
    return tangent, jnp.where(fits, c.h, jnp.minimum(factor, 0.9) * h)


def looked(
    spec: Spec, par: Par, knobs: Knobs, c: Carry, ahead: At, length: Scalar, asks: Flag
) -> Carry:
    """The loop's state after an attempt that was rejected, or that `asks` for a tangent."""
    old = c.tangent
    assert old
    stay = lambda: (dropped(old), c.h)
    go = lambda: travel(spec, par, knobs, c, ahead, length)
    asks = asks.astype(jnp.int32)
    tangent, h = branch(asks, [stay, go], lazy=True)
    steps, rejected = c.counts.steps - asks, c.counts.rejected - asks  # not counted as an attempt
    counts = c.counts._replace(steps=steps, rejected=rejected)
    return c._replace(tangent=tangent, h=h, counts=counts)
