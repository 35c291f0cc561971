"""Step size control: the length of the next step."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp

from ..base.foreign_parts import STEP_CONTROL, constructs
from ..base.types import Array, Scalar


@constructs(STEP_CONTROL)
class PI(eqx.Module):
    """Proportional-integral step size control (Gustafsson 1991; Hairer and Wanner 1996).

    After a step with the scaled error e, and e' in the step before, the step length is multiplied
    by `safety * e'^beta / e^(1/q - 0.75 beta)`, but at least by `shrink` and at most by `grow`,
    where q is the power of the step length in the error estimate.
    """

    safety: Array | float = 0.9
    shrink: Array | float = 0.2
    grow: Array | float = 10.0
    beta: Array | float = 0.04

    adaptive = True

    def factor(self, log_error: Scalar, log_previous: Scalar, order: int) -> Scalar:
        """`h_new / h` after a step whose scaled error has this logarithm (M21)."""
        power = 1.0 / order - 0.75 * self.beta
        factor = self.safety * jnp.exp(self.beta * log_previous - power * log_error)
        return jnp.clip(factor, self.shrink, self.grow)


@constructs(STEP_CONTROL)
class Fixed(eqx.Module):
    """Steps of one length `h`, shortened only at events and prescribed times (for order tests)."""

    h: Array | float

    adaptive = False


INITIAL_LOG_ERROR = -9.210340371976182  # log(1e-4): the last error after a start or a jump
