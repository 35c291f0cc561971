"""The step of a tangent where the error of the states says nothing about derivatives.

See methods/tangent.py.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from .control import PI
from .firing import sigma
from .leaves import select
from .methods.base import Goal
from .methods.tangent import FITS, WAITS, Tangent, packed
from .model import Par
from .record import Carry, Knobs

LEAST = 1e-9  # of the span: steps that no tangent can make shorter


def travel(spec: Any, par: Par, knobs: Knobs, c: Carry, h: Any) -> tuple[Tangent, Any]:
    """Take the tangent over a step of length `h`; it fits, or the length of a shorter one (M95)."""
    model, stepper, sig = spec.model, spec.stepper, sigma(par)
    goal = Goal(knobs.rtol, knobs.atol, True)
    u, end, error, push = stepper.tangent(model, par, goal, c.at, sig * h, c.memory, c.tangent)
    finite = jnp.isfinite(error + sum(jnp.sum(v) for v in end))  # else there is no derivative
    error, end = jnp.where(finite, error, 0.0), select(finite, end, u)
    fits = (error <= 1.0) | (h <= LEAST * jnp.abs(par.theta[1] - par.theta[0]))
    log_error = jnp.log(jnp.maximum(error, 1e-300))
    factor = PI(*knobs.control).factor(log_error, c.error, stepper.error_order)
    phase = jnp.where(fits, FITS, WAITS)
    tangent = packed(jnp.minimum(error, 1.0), push, select(fits, end, u), phase)
    return tangent, jnp.where(fits, c.h, jnp.minimum(factor, 0.9) * h)
