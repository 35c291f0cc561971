"""The last row before a jump, and whether its guard really crosses zero there."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..base.leaves import Leaves
from ..base.results import Result
from ..methods.method import Stepper
from ..model.algebraic_states import attached
from ..model.model import Model, Par
from .firing import asked, jump_row
from .guards import members, rounding
from .record import GRAZES, JUMPS, Carry, Knobs, Rows, approach_kind

SHARE = 0.5  # of their estimates: the errors of steps that end with the better formula
GOLDEN = 2.399963229728653  # an angle of which no two multiples are alike
NOISE = 64  # times rounding: a guard that is no larger is zero
HOP = 0.05  # of curvature and time: the slope at which a hop ends is half of that
FAR = 1e-6  # of the time so far: a guard that needs longer to get to zero has jumped over it


def arrive(model: Model, stepper: Stepper, par: Par, knobs: Knobs, c: Carry) -> tuple[Carry, Rows]:
    """Come up to the chosen jump: a row of length zero. The stop ends here."""
    tau = c.at.tau
    for place, action in enumerate(model.actions):
        if action.kind != "guard":
            tau = jnp.where(c.jump == place, model.time_of(action, c.at, par), tau)
    stop = c.jump == len(model.actions) - 1
    code = jnp.where(stop, int(Result.success), c.code).astype(c.code.dtype)
    counts = c.counts._replace(rows=c.counts.rows + 1)
    row = jump_row(model, stepper, c, approach_kind(c.jump))
    if model.guards:
        grazes, jumps = _underivable(model, par, knobs, c)
        row = row._replace(h=jnp.where(jumps, JUMPS, jnp.where(grazes, GRAZES, 0.0)))
    no = jnp.zeros((), bool)
    return c._replace(at=c.at._replace(tau=tau), rooted=no, counts=counts, code=code), row


def _underivable(model: Model, par: Par, knobs: Knobs, c: Carry) -> tuple[Any, Any]:
    """Whether the guard that fires cannot be told from one that touches zero, or jumps over it.

    It touches where it goes beyond zero by less than the error of the states (M96), coming from
    far: a hop since its last event is as slow as it is short, like those of a ball that comes to
    rest. A guard that is flat at its zero but was seen far beyond it passes. A guard that jumps is
    far from zero where it was located, and does not say how the place moves."""
    errors = _errors(model, par, knobs, c)
    tiny = rounding(model, c.at, par, c.slopes)
    reach = FAR * jnp.maximum(jnp.abs(c.at.tau), jnp.abs(c.h))
    grazes = jumps = jnp.zeros((), bool)
    first = 0
    for j, action in enumerate(model.guards):
        size = action.size or 1
        if action.size == 0:
            first += size
            continue
        since = c.at.tau - jnp.reshape(c.pace.last[first : first + size], jnp.shape(c.values[j]))
        since = jnp.where(jnp.isfinite(since), since, c.at.tau)
        first += size
        hops = jnp.abs(c.slopes[j]) > HOP * c.search.curve * jnp.abs(since)
        flat = 0.5 * c.slopes[j] ** 2 <= (errors[j] + tiny[j]) * c.search.curve
        shallow = c.search.depth <= errors[j] + NOISE * tiny[j]
        mine = (c.jump == model.actions.index(action)) & (members(action) == c.member)
        far = jnp.abs(c.values[j]) > jnp.abs(c.slopes[j]) * reach + NOISE * tiny[j]
        grazes, jumps = (
            grazes | jnp.any(mine & flat & shallow & ~hops),
            jumps | jnp.any(mine & far),
        )
    return grazes, jumps


def _errors(model: Model, par: Par, knobs: Knobs, c: Carry) -> Leaves:
    """How much the errors of all steps so far may change each guard.

    States move by their errors in two patterns, cosines and sines of angles that no two share, so
    that the errors of no two states cancel; nothing is linearised, lest a guard with a multiple
    root seem to have none."""
    rtol, atol = asked(knobs)
    moving, start = model.moving_of(c.at), 0
    patterns: tuple[list, list] = ([], [])
    for v, a in zip(moving, atol, strict=False):
        angles = GOLDEN * (start + jnp.arange(v.size, dtype=v.dtype).reshape(v.shape))
        size = (SHARE * c.spent * (a + rtol * jnp.abs(v))).astype(v.dtype)
        start += v.size
        patterns[0].append(v + size * jnp.cos(angles))
        patterns[1].append(v + size * jnp.sin(angles))

    def values(moving: Any) -> Leaves:
        at = model.with_moving(c.at, moving)
        return model.guard_values(attached(model, at, par, 1), par)

    here, (one, two) = values(moving), map(values, patterns)
    turns = [
        (jnp.nan_to_num(a - v), jnp.nan_to_num(b - v))
        for v, a, b in zip(here, one, two, strict=True)
    ]
    return tuple(jnp.hypot(a, b) for a, b in turns)
