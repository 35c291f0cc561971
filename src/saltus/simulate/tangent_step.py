"""The step of a tangent where the error of the states says nothing about derivatives.

See methods/tangent_error.py.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..base.control_flow import branch
from ..methods.linearised_flow import travelled
from ..methods.method import Goal, scales
from ..methods.step_control import PI
from ..methods.tangent_error import FITS, WAITS, Tangent, dropped, flat, packed, relative
from ..model.model import At, Par
from .guards import sigma
from .record import Carry, Knobs

LEAST = 1e-9  # of the span: steps that no tangent can make shorter


def travel(spec: Any, par: Par, knobs: Knobs, c: Carry, ahead: At, h: Any) -> tuple[Tangent, Any]:
    """Take the tangent over a step to `ahead`; it fits, or the length of a shorter one (M95)."""
    model, stepper, m = spec.model, spec.stepper, spec.model.moving
    goal, signed = Goal(knobs.rtol, knobs.atol, True), sigma(par) * h
    x = model.moving_of(c.at)
    sizes = flat(scales(goal, x, x, goal.atol[:m]))
    damping = stepper.damping(model, par, c.at, signed)
    u, end, off, push = travelled(
        model, par, c.at, ahead, signed, c.tangent, sizes, stepper.leading, damping
    )
    allowed = relative(goal) * (sizes + jnp.maximum(jnp.abs(u), jnp.abs(end)))
    error = jnp.sqrt(jnp.mean((off / allowed) ** 2))
    finite = jnp.isfinite(error + jnp.sum(end))  # else there is no derivative
    error, end = jnp.where(finite, error, 0.0), jnp.where(finite, end, u)
    fits = (error <= 1.0) | (h <= LEAST * jnp.abs(par.t1 - par.t0))
    log_error = jnp.log(jnp.maximum(error, 1e-300))
    factor = PI(*knobs.control).factor(log_error, c.error, stepper.error_order)
    phase = jnp.where(fits, FITS, WAITS)
    tangent = packed(jnp.minimum(error, 1.0), push, c.tangent.seen, jnp.where(fits, end, u), phase)
    return tangent, jnp.where(fits, c.h, jnp.minimum(factor, 0.9) * h)


def looked(spec: Any, par: Par, knobs: Knobs, c: Carry, ahead: At, length: Any, asks: Any) -> Carry:
    """After an attempt to get `ahead` that was rejected, or one that `asks` for its tangent."""
    stay = lambda: (dropped(c.tangent), c.h)
    go = lambda: travel(spec, par, knobs, c, ahead, length)
    asks = asks.astype(jnp.int32)
    tangent, h = branch(asks, [stay, go], lazy=True)
    steps, rejected = c.counts.steps - asks, c.counts.rejected - asks  # that was no attempt
    counts = c.counts._replace(steps=steps, rejected=rejected)
    return c._replace(tangent=tangent, h=h, counts=counts)
