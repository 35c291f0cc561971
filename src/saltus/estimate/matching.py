r"""Which predicted event is which observed one.

The best pairing that keeps the order of time. An event without a partner counts as if its partner
happened at the end of the horizon: events enter and leave a simulation through its end, and the
loss stays continuous when they do (M50).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


@jax.jit
def match(predicted: Any, observed: Any, t1: Any) -> tuple[Any, Any]:
    """Partner of every observed event (-1: none), and whether a predicted one has a partner.

    Entries of `predicted` that are not finite are padding. The pairing minimises
    $\\sum (a_j - b_i)^2 + \\sum (t_1 - b_i)^2 + \\sum (t_1 - a_j)^2$ over pairs, observed events
    alone and predicted events alone, by dynamic programming over prefixes of both lists.
    """
    n, m = predicted.shape[0], observed.shape[0]
    if n == 0 or m == 0:
        return jnp.full(m, -1), jnp.zeros(n, bool)
    real = jnp.isfinite(predicted)
    a = jax.lax.stop_gradient(jnp.where(real, predicted, t1))
    skip = jnp.concatenate([jnp.zeros(1), jnp.cumsum((t1 - a) ** 2)])  # first j predicted alone

    def longer(best: Any, b: Any) -> tuple[Any, Any]:
        """From the best costs with i observed events to those with one more."""
        pair = jnp.where(real, best[:-1] + (a - b) ** 2, jnp.inf)
        alone = best + (t1 - b) ** 2
        either = jnp.minimum(jnp.concatenate([jnp.full(1, jnp.inf), pair]), alone)
        best = jax.lax.cummin(either - skip) + skip
        return best, (pair <= alone[1:], either)

    _, (paired, either) = jax.lax.scan(longer, skip, observed)

    def back(j: Any, given: Any) -> tuple[Any, Any]:
        """The partner of the last observed event, when j predicted ones are left."""
        paired, either = given
        cost = jnp.where(jnp.arange(n + 1) <= j, either - skip, jnp.inf)
        j = jnp.argmin(cost)
        with_partner = (j > 0) & paired[jnp.maximum(j - 1, 0)]
        return jnp.where(with_partner, j - 1, j), jnp.where(with_partner, j - 1, -1)

    _, partner = jax.lax.scan(back, jnp.asarray(n), (paired, either), reverse=True)
    taken = jnp.zeros(n + 1, bool).at[jnp.where(partner < 0, n, partner)].set(True)[:n]
    return partner, taken


def residuals(predicted: Any, observed: Any, t1: Any) -> tuple[Any, Any]:
    """Observed minus predicted times, and what predicted events without a partner add."""
    partner, taken = match(predicted, observed, t1)
    if predicted.shape[0] == 0:
        return t1 - observed, jnp.zeros(0)
    real = jnp.isfinite(predicted)
    times = jnp.where(real, predicted, t1)
    own = jnp.where(partner >= 0, times[jnp.maximum(partner, 0)], t1) - observed
    return own, jnp.where(real & ~taken, t1 - times, 0.0)
