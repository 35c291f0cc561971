"""Guards that jump over zero: their events are located, but their times have no derivative.

Shortly before and after its event a smooth guard follows its slope, up to the square of the time.
A guard that jumps is off by the size of the jump, however short the time.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..base.leaves import frozen
from ..base.types import Array, Flag, Scalar, Vector, Whole
from ..model.algebraic_states import attached
from ..simulate.record import JUMPS
from ..solution.solution import Solution
from .guard_outline import flat_guards

LOOK_TIME = 1e-6  # before and after an event, relative to the step before it and to the span
SHORT_LOOK_RATIO = 1 / 16  # of a second look, relative to the first
JUMP_ROUNDINGS = 1e3  # a smaller difference is rounding


def leaps(sol: Solution, own: Array, tiny: Array) -> Flag:
    """Whether the guard of any event jumps there; `own` (rows, guards) marks the events' guards."""
    model = sol.spec.model
    if own.shape[1] == 0:
        return jnp.zeros((), bool)
    held, own, tiny = frozen((sol, own, tiny))
    tape = held.tape
    par = tape.par()
    span = jnp.abs(tape.end.tau - tape.tau[0])
    before = jnp.concatenate([tape.h[:1], tape.h[:-1]])
    short = jnp.abs(before) <= JUMPS
    moments = LOOK_TIME * jnp.where(short, span, jnp.minimum(jnp.abs(before), span))

    def row(k: Whole) -> Flag:
        at = tape.state(k)
        flow = model.flow(at, par)

        def guards(s: Scalar) -> Vector:
            pairs = zip(model.moving_of(at), flow, strict=False)
            moved = tuple((v + s * f).astype(v.dtype) for v, f in pairs)
            there = model.with_moving(at, moved, tau=at.tau + s)
            return flat_guards(model, model.guard_values(attached(model, there, par, 1), par))

        value, slope = jax.jvp(guards, (jnp.zeros(()),), (jnp.ones(()),))

        def off(s: Scalar) -> Vector:
            return guards(s) - value - s * slope

        lengths = moments[k] * jnp.asarray([-1.0, -SHORT_LOOK_RATIO, SHORT_LOOK_RATIO, 1.0])
        far, near, ahead, beyond = jnp.abs(jax.vmap(off)(lengths))
        least = JUMP_ROUNDINGS * tiny[k]
        jumps = ((near > 0.5 * far) & (near > least)) | ((ahead > 0.5 * beyond) & (ahead > least))
        return jnp.any(own[k] & (jumps | jnp.isnan(near) | jnp.isnan(ahead)))

    return jnp.any(jax.vmap(row)(jnp.arange(tape.tau.shape[0])))
