"""Events without end: those that accumulate, and those of a state that cannot leave a surface."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..base.types import Flag, Scalar, Whole
from ..model.model import Model, Par
from .record import Carry, Pace

# Events accumulate if the time between them has shrunk MIN_STREAK times in a row, and the time that
# is left until the limit is lost in rounding.
MAX_RATIO = 0.9999  # of a gap to the one before
MIN_STREAK = 8  # gaps that shrink
MAX_TIME_LEFT = 1e-10  # of the time so far


def paced(model: Model, pace: Pace, fired: Whole, member: Whole, tau: Scalar) -> tuple[Pace, Flag]:
    """The times between events of each guard, and whether those of this one accumulate (Zeno)."""
    first, places = 0, []
    for action in model.actions:
        places.append(first)
        first += (action.size or 1) if action.kind == "guard" else 0
    which = (jnp.asarray(places, jnp.int32)[fired] + member).astype(jnp.int32)
    mine = jnp.arange(model.n_guards) == which
    gap = jnp.abs(tau - pace.last)
    ratio = gap / pace.gap
    shrinking = (gap > 0) & (ratio < MAX_RATIO)
    streak = jnp.where(gap > 0, jnp.where(shrinking, pace.streak + 1, 0), pace.streak)
    left = gap * ratio / (1 - ratio)
    accumulate = (streak >= MIN_STREAK) & (gap > 0) & (left <= MAX_TIME_LEFT * jnp.abs(tau))
    new = Pace(
        last=tau,
        gap=jnp.where(gap > 0, gap, pace.gap),
        ratio=jnp.where(gap > 0, ratio, pace.ratio),
        streak=streak,
        which=which,
    )
    kept = jax.tree.map(lambda a, b: jnp.where(mine, a, b), new, pace._replace(which=which))
    return kept._replace(which=which), jnp.any(mine & accumulate)


def trapped(model: Model, par: Par, new: Carry, old: Carry) -> Flag:
    """Whether a kink was crossed into a flow that leads straight back: the state cannot leave."""
    if not model.kinks:
        return jnp.zeros((), bool)
    action = next(a for a in model.actions if a.kink)
    mine = (jnp.arange(model.kinks) == old.member) & (old.jump == model.actions.index(action))
    side = 2 * new.at.i[model.place_flags] - 1
    sign = jnp.where(par.backward, -1.0, 1.0)
    after, before = (sign * side * c.slopes[action.index] for c in (new, old))
    return jnp.any(mine & (after < 0) & (before > 0))
