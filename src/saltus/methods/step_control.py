"""Accept or reject, and the next step size."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp


class PI(eqx.Module):
    """Proportional-integral step size control (Gustafsson 1991; Hairer and Wanner 1996)."""

    safety: Any = 0.9
    shrink: Any = 0.2
    grow: Any = 10.0
    beta: Any = 0.04

    adaptive = True

    def factor(self, log_error: Any, log_previous: Any, order: int) -> Any:
        """`h_new / h` after a step whose scaled error has this logarithm (M21)."""
        power = 1.0 / order - 0.75 * self.beta
        factor = self.safety * jnp.exp(self.beta * log_previous - power * log_error)
        return jnp.clip(factor, self.shrink, self.grow)


class Fixed(eqx.Module):
    """Steps of one size `h`, cut only at events and prescribed times (for order tests)."""

    h: Any

    adaptive = False


FORGOTTEN = -9.210340371976182  # the memory after a start or a jump: log(1e-4), as Hairer has it
