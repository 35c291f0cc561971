r"""Pairs of predicted and observed events.

The best pairing that keeps the order of time. An event without a partner costs its distance from
the end of the horizon, where events enter and leave a simulation, so that the loss stays continuous
when they do. It costs at most `reach`, so that an event that was missed or never happened has no
gradient and does not distort the rest of the fit (M50).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.types import Array, Scalar, Vector, Whole
from .parameters import Values


class EventMatch(NamedTuple):
    """Times of one kind of event, observed and predicted; `pairs` are their numbers."""

    observed: np.ndarray
    predicted: np.ndarray
    pairs: list[tuple[int, int]]

    @property
    def off(self) -> np.ndarray:
        """Predicted minus observed times of the pairs."""
        return np.array([self.predicted[j] - self.observed[i] for i, j in self.pairs])

    @property
    def lonely(self) -> int:
        """How many events have no partner."""
        return self.observed.size + self.predicted.size - 2 * len(self.pairs)


def matched(
    predicted: np.ndarray,
    mine: np.ndarray,
    observed: np.ndarray,
    t1: Scalar | float,
    reach: Scalar | float,
) -> EventMatch:
    """The pairing, on the host; `mine` are the events of this kind among the predicted ones."""
    order = np.argsort(~mine, kind="stable")
    padded = np.where(mine[order], predicted[order], np.nan)  # of constant length: compiled once
    partner, _ = match(jnp.asarray(padded), jnp.asarray(observed), t1, reach)
    pairs = [(i, int(j)) for i, j in enumerate(np.asarray(partner)) if j >= 0]
    return EventMatch(np.asarray(observed), predicted[mine], pairs)


def alone(t: Values, t1: Scalar | float, reach: Scalar | float) -> Array:
    """The residual of an event at `t` that has no partner."""
    return reach * jnp.tanh((t1 - t) / reach)


@jax.jit
def match(
    predicted: Array, observed: Array, t1: Scalar | float, reach: Scalar | float
) -> tuple[Array, Array]:
    """Partner of every observed event (-1: none), and whether a predicted one has a partner.

    Entries of `predicted` that are not finite are padding. The pairing minimises the sum of
    squares of `a - b` over pairs and of `alone` over the rest, by dynamic programming over
    prefixes of both lists.
    """
    n, m = predicted.shape[0], observed.shape[0]
    if n == 0 or m == 0:
        return jnp.full(m, -1), jnp.zeros(n, bool)
    real = jnp.isfinite(predicted)
    a = jax.lax.stop_gradient(jnp.where(real, predicted, t1))
    left = alone(a, t1, reach) ** 2
    skip = jnp.concatenate([jnp.zeros(1), jnp.cumsum(left)])  # j predicted events without partners

    def longer(best: Vector, b: Scalar) -> tuple[Vector, tuple[Array, Vector]]:
        """From the best costs with i observed events to those with one more."""
        pair = jnp.where(real, best[:-1] + (a - b) ** 2, jnp.inf)
        single = best + alone(b, t1, reach) ** 2
        either = jnp.minimum(jnp.concatenate([jnp.full(1, jnp.inf), pair]), single)
        best = jax.lax.cummin(either - skip) + skip
        return best, (pair <= single[1:], either)

    _, (paired, either) = jax.lax.scan(longer, skip, observed)

    def back(j: Whole, given: tuple[Array, Vector]) -> tuple[Whole, Whole]:
        """The partner of the last observed event, when j predicted ones are left."""
        paired, either = given
        cost = jnp.where(jnp.arange(n + 1) <= j, either - skip, jnp.inf)
        j = jnp.argmin(cost)
        with_partner = (j > 0) & paired[jnp.maximum(j - 1, 0)]
        return jnp.where(with_partner, j - 1, j), jnp.where(with_partner, j - 1, -1)

    _, partner = jax.lax.scan(back, jnp.asarray(n), (paired, either), reverse=True)
    taken = jnp.zeros(n + 1, bool).at[jnp.where(partner < 0, n, partner)].set(True)[:n]
    return partner, taken


def residuals(
    predicted: Array, observed: Values, t1: Scalar | float, reach: Scalar | float
) -> tuple[Array, Array]:
    """Predicted minus observed times, and what predicted events without a partner add."""
    partner, taken = match(predicted, observed, t1, reach)
    single = alone(observed, t1, reach)
    if predicted.shape[0] == 0:
        return single, jnp.zeros(0)
    real = jnp.isfinite(predicted)
    times = jnp.where(real, predicted, t1)
    off = times[jnp.maximum(partner, 0)] - observed
    rest = jnp.where(real & ~taken, alone(times, t1, reach), 0.0)
    return jnp.where(partner >= 0, off, single), rest
