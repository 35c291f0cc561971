"""The last row before a jump, and whether its guard really crosses zero there."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp

from ..base.leaves import Leaves
from ..base.results import Result
from ..base.types import Array, Flag
from ..methods.method import Stepper
from ..model.algebraic_states import attached
from ..model.model import Model, Par
from .firing import asked, jump_row
from .guards import GUARD_NOISE, members, rounding
from .record import GRAZES, JUMPS, Carry, Knobs, Rows, approach_kind

ERROR_SHARE = 0.5  # of the error estimates: steps end with the better of two formulas
GOLDEN_ANGLE = 2.399963229728653  # radians; its multiples are all different angles
MIN_HOP_SLOPE = 0.05  # of curvature times the time since the last event; 0.5 at the end of a hop
MAX_TIME_TO_ZERO = 1e-6  # of the time so far; a guard that needs longer has jumped over zero


def arrive(model: Model, stepper: Stepper, par: Par, knobs: Knobs, c: Carry) -> tuple[Carry, Rows]:
    """The approach to the chosen jump, a row of length zero. If it is the stop, the solve ends."""
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


def _underivable(model: Model, par: Par, knobs: Knobs, c: Carry) -> tuple[Flag, Flag]:
    """Whether the guard that fires may only touch zero, and whether it jumps over zero.

    It may only touch zero if it goes beyond it by less than the error of the states explains (M96).
    Two cases are excluded: short hops since its last event, like those of a ball that comes to
    rest, which are slow because they are short, and a guard that is flat at its zero but was seen
    far beyond it. A guard that jumps is far from zero where it was located, and has no derivative
    there."""
    errors = _errors(model, par, knobs, c)
    tiny = rounding(model, c.at, par, c.slopes)
    reach = MAX_TIME_TO_ZERO * jnp.maximum(jnp.abs(c.at.tau), jnp.abs(c.h))
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
        hops = jnp.abs(c.slopes[j]) > MIN_HOP_SLOPE * c.search.curve * jnp.abs(since)
        flat = 0.5 * c.slopes[j] ** 2 <= (errors[j] + tiny[j]) * c.search.curve
        shallow = c.search.depth <= errors[j] + GUARD_NOISE * tiny[j]
        mine = (c.jump == model.actions.index(action)) & (members(action) == c.member)
        far = jnp.abs(c.values[j]) > jnp.abs(c.slopes[j]) * reach + GUARD_NOISE * tiny[j]
        grazes, jumps = (
            grazes | jnp.any(mine & flat & shallow & ~hops),
            jumps | jnp.any(mine & far),
        )
    return grazes, jumps


def _errors(model: Model, par: Par, knobs: Knobs, c: Carry) -> Leaves:
    """How much the errors of all steps so far may change each guard.

    The states are changed by their errors in two patterns, the cosines and the sines of different
    angles, so that the errors of two states never cancel in both. Nothing is linearised: at a
    multiple root a guard has no slope, but errors change it all the same."""
    rtol, atol = asked(knobs)
    spent = c.spent
    assert not isinstance(spent, tuple)  # there are guards
    moving, start = model.moving_of(c.at), 0
    patterns: tuple[list[Array], list[Array]] = ([], [])
    for v, a in zip(moving, atol, strict=False):
        angles = GOLDEN_ANGLE * (start + jnp.arange(v.size, dtype=v.dtype).reshape(v.shape))
        size = (ERROR_SHARE * spent * (a + rtol * jnp.abs(v))).astype(v.dtype)
        start += v.size
        patterns[0].append(v + size * jnp.cos(angles))
        patterns[1].append(v + size * jnp.sin(angles))

    def values(moving: Sequence[Array]) -> Leaves:
        at = model.with_moving(c.at, moving)
        return model.guard_values(attached(model, at, par, 1), par)

    here, (one, two) = values(moving), map(values, patterns)
    turns = [
        (jnp.nan_to_num(a - v), jnp.nan_to_num(b - v))
        for v, a, b in zip(here, one, two, strict=True)
    ]
    return tuple(jnp.hypot(a, b) for a, b in turns)
