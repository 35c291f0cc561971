"""Events that can go on for ever: those that accumulate, and those that cannot leave a surface."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..model.model import Model, Par
from .record import Carry, Pace


def paced(model: Model, pace: Pace, fired: Any, member: Any, tau: Any) -> tuple[Pace, Any]:
    """The rhythm of each guard, and whether the events of this one accumulate (Zeno)."""
    first, places = 0, []
    for action in model.actions:
        places.append(first)
        first += (action.size or 1) if action.kind == "guard" else 0
    which = (jnp.asarray(places, jnp.int32)[fired] + member).astype(jnp.int32)
    mine = jnp.arange(model.n_guards) == which
    gap = jnp.abs(tau - pace.last)
    ratio = gap / pace.gap
    shrinking = (gap > 0) & (ratio < 0.9999)
    streak = jnp.where(gap > 0, jnp.where(shrinking, pace.streak + 1, 0), pace.streak)
    left = gap * ratio / (1 - ratio)
    accumulate = (streak >= 8) & (gap > 0) & (left <= 1e-10 * jnp.abs(tau))
    new = Pace(
        tau, jnp.where(gap > 0, gap, pace.gap), jnp.where(gap > 0, ratio, pace.ratio), streak, which
    )
    kept = jax.tree.map(lambda a, b: jnp.where(mine, a, b), new, pace._replace(which=which))
    return kept._replace(which=which), jnp.any(mine & accumulate)


def trapped(model: Model, par: Par, new: Carry, old: Carry) -> Any:
    """Whether a kink was crossed into a flow that leads straight back: it cannot be left."""
    if not model.kinks:
        return jnp.zeros((), bool)
    action = next(a for a in model.actions if a.kink)
    mine = (jnp.arange(model.kinks) == old.member) & (old.jump == model.actions.index(action))
    side = 2 * new.at.i[model.place_flags] - 1
    sign = jnp.where(par.backward, -1.0, 1.0)
    after, before = (sign * side * c.slopes[action.index] for c in (new, old))
    return jnp.any(mine & (after < 0) & (before > 0))
