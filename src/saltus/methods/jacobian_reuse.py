"""Keeping the Jacobian of a large system, and its factors, from one step to the next.

A new Jacobian is computed only when the iteration converges slowly, and new factors only when the
step size changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from ..base.types import Flag, Scalar, Tree
from ..linalg.dense import Factored
from ..linalg.factor import Jacobian
from ..linalg.vectors import Layout

MAX_UNKNOWNS_TO_RENEW = 40  # with more, keeping the Jacobian saves time
MAX_CONTRACTION_TO_KEEP = 1e-3  # per iteration; above, the Jacobian is renewed

Factoring: TypeAlias = Callable[[Jacobian, Scalar], tuple[Factored, Factored]]


class Kept(NamedTuple):
    """A Jacobian and its factors, and whether they are out of date."""

    jac: Jacobian
    factors: Tree  # of the real and of the complex system
    h: Scalar  # the step size of the factors; 0 if there are none
    stale: Flag  # the Jacobian was evaluated at an earlier state
    renew: Flag  # the Jacobian must be evaluated before the next attempt
    slow: Flag  # the last iteration converged slowly


def worthwhile(layout: Layout) -> bool:
    return layout.size > MAX_UNKNOWNS_TO_RENEW


def nothing_kept(layout: Layout, factors: Factoring) -> Kept:
    """What is kept before the first attempt: zeros of the right shapes, to be renewed."""
    n = layout.size
    shape = (n, n) if layout.structure is None else (layout.structure.pattern.count,)
    jac = jnp.zeros(shape)
    made = jax.eval_shape(factors, jac, jax.ShapeDtypeStruct((), jnp.float64))
    blank = jax.tree.map(lambda v: jnp.zeros(v.shape, v.dtype), made)
    no = jnp.zeros((), bool)
    return Kept(jac=jac, factors=blank, h=jnp.zeros(()), stale=no, renew=~no, slow=no)


def renewed(kept: Kept, h: Scalar, jacobian: Callable[[], Jacobian], factors: Factoring) -> Kept:
    """A Jacobian and factors for a step of length `h`: those that were kept, or new ones."""
    jac = jax.lax.cond(kept.renew, jacobian, lambda: kept.jac)
    fits = ~kept.renew & (kept.h == h)
    made = jax.lax.cond(fits, lambda: kept.factors, lambda: factors(jac, h))
    no = jnp.zeros((), bool)
    return kept._replace(
        jac=jac, factors=made, h=jnp.asarray(h), stale=kept.stale & ~kept.renew, renew=no
    )


def judged(kept: Kept, converged: Flag, rate: Scalar) -> Kept:
    """What is kept after an attempt; if it failed with an old Jacobian, a new one is needed."""
    return kept._replace(renew=~converged & kept.stale, slow=rate > MAX_CONTRACTION_TO_KEEP)


def moved(kept: Kept) -> Kept:
    """What is kept after an accepted step: the Jacobian is now that of an earlier state."""
    return kept._replace(stale=jnp.ones_like(kept.stale), renew=kept.slow)


def steadier(factor: Scalar) -> Scalar:
    """The factor of the next step length; small increases, which need new factors, become 1."""
    return jnp.where((factor >= 1.0) & (factor <= 1.2), 1.0, factor)
