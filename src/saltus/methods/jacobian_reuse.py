"""Keeping the Jacobian of a large system, and its factors, from one step to the next.

A new Jacobian is worth its price only when the iteration converges slowly, new factors only when
the step size changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..linalg.vectors import Layout

LARGE = 40  # unknowns from which keeping pays
SLOW = 1e-3  # a contraction above which the Jacobian is renewed


class Kept(NamedTuple):
    jac: Any
    factors: Any
    h: Any  # the step size of the factors; 0: none
    stale: Any  # the Jacobian belongs to an earlier start
    renew: Any  # it must be evaluated before the next attempt
    slow: Any  # the last iteration converged slowly


def worthwhile(layout: Layout) -> bool:
    return layout.size > LARGE


def nothing_kept(layout: Layout, factors: Callable[[Any, Any], Any]) -> Kept:
    """Before the first attempt."""
    n = layout.size
    shape = (n, n) if layout.structure is None else (layout.structure.pattern.count,)
    jac = jnp.zeros(shape)
    made = jax.eval_shape(factors, jac, jax.ShapeDtypeStruct((), jnp.float64))
    blank = jax.tree.map(lambda v: jnp.zeros(v.shape, v.dtype), made)
    no = jnp.zeros((), bool)
    return Kept(jac, blank, jnp.zeros(()), no, ~no, no)


def renewed(
    kept: Kept, h: Any, jacobian: Callable[[], Any], factors: Callable[[Any, Any], Any]
) -> Kept:
    """With a Jacobian and factors that can be used for a step of length `h`."""
    jac = jax.lax.cond(kept.renew, jacobian, lambda: kept.jac)
    fits = ~kept.renew & (kept.h == h)
    made = jax.lax.cond(fits, lambda: kept.factors, lambda: factors(jac, h))
    no = jnp.zeros((), bool)
    return kept._replace(
        jac=jac, factors=made, h=jnp.asarray(h), stale=kept.stale & ~kept.renew, renew=no
    )


def judged(kept: Kept, converged: Any, rate: Any) -> Kept:
    """After an attempt: a failure with an old Jacobian asks for a new one."""
    return kept._replace(renew=~converged & kept.stale, slow=rate > SLOW)


def moved(kept: Kept) -> Kept:
    """After an accepted step."""
    return kept._replace(stale=jnp.ones_like(kept.stale), renew=kept.slow)


def steadier(factor: Any) -> Any:
    """A small increase of the step is not worth new factors."""
    return jnp.where((factor >= 1.0) & (factor <= 1.2), 1.0, factor)
