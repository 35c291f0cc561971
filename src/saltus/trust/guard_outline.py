"""Guards between two rows: where they turn around, and whether they cross zero.

In a row the guard is represented by the polynomial of degree 5 with its value, slope and second
derivative at both ends. It is evaluated at points that are denser towards the ends of the row:
after a guard has just fired, it may cross zero again after any small part of the row.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves, frozen
from ..base.types import Array, Scalar, Vector
from ..model.model import Model
from ..simulate.detection import cubic, lowest, value_of

END_POINTS = 60  # towards each end, each closer by the factor sqrt(2)
EVEN_POINTS = 15  # that are spread evenly
EPS = float(jnp.finfo(jnp.float64).eps)
ROWS_PER_BATCH = 64


class Edge(NamedTuple):
    """A guard at one end of a row: value, slope times h, and second derivative times h^2."""

    value: Array
    slope: Array
    bend: Array


class Outline(NamedTuple):
    """What a guard does inside a row."""

    place: Array  # where it turns around closest to zero, from 0 to 1; 1 if nowhere
    falls: Array  # whether it crosses zero downwards
    rises: Array


def flat_guards(model: Model, leaves: Leaves) -> Vector:
    """Guards and members of families as one vector."""
    if not model.guards:
        return jnp.zeros(0)
    return jnp.concatenate([jnp.reshape(jnp.asarray(v, jnp.float64), (-1,)) for v in leaves])


def edges(h: Array, value: Array, slope: Array, bend: Array) -> tuple[Edge, Edge]:
    """Both ends of all rows, from values where rows start; times are measured inwards."""
    left = Edge(value[:-1], h * slope[:-1], h * h * bend[:-1])
    return left, Edge(value[1:], -h * slope[1:], h * h * bend[1:])


def quintic(near: Edge, far: Edge, u: Array) -> tuple[Array, Array]:
    """Value and slope at `u`, computed from the near end to avoid rounding close to it."""
    rise = far.value - near.value - near.slope - 0.5 * near.bend
    turn = -far.slope - near.slope - near.bend
    bend = far.bend - near.bend
    c3 = 10 * rise - 4 * turn + 0.5 * bend
    c4 = -15 * rise + 7 * turn - bend
    c5 = 6 * rise - 3 * turn + 0.5 * bend
    y = near.value + u * (near.slope + u * (0.5 * near.bend + u * (c3 + u * (c4 + u * c5))))
    m = near.slope + u * (near.bend + u * (3 * c3 + u * (4 * c4 + u * 5 * c5)))
    return y, m


def _points() -> np.ndarray:
    """Places in the first half of a row; those of the second half mirror them."""
    crowd = 2.0 ** (-np.arange(2, END_POINTS + 2) / 2)
    even = np.arange(1, EVEN_POINTS // 2 + 2) / (EVEN_POINTS + 1)
    return np.unique(np.concatenate([crowd, even]))


def along(ends: tuple[Array, Array], place: Array) -> Array:
    """An uncertainty given at both ends, interpolated over the row."""
    far = place**3 * (10 - 15 * place + 6 * place**2)
    return ends[0] * (1 - far) + ends[1] * far


def _outline(left: Edge, right: Edge, rounding: tuple[Scalar, Scalar]) -> Outline:
    """One guard in one row; values below `rounding` at its two ends are zero."""
    u = jnp.asarray(_points())
    first, second = quintic(left, right, u), quintic(right, left, u[:-1])
    y = jnp.concatenate([left.value[None], first[0], second[0][::-1], right.value[None]])
    m = jnp.concatenate([left.slope[None], first[1], -second[1][::-1], -right.slope[None]])
    where = jnp.concatenate([jnp.zeros(1), u, 1 - u[:-1][::-1], jnp.ones(1)])
    tiny = along(rounding, where)
    sign = jnp.where(jnp.abs(y) > tiny, jnp.sign(y), 0.0)[1:-1]
    last = jax.lax.associative_scan(lambda a, b: jnp.where(b == 0, a, b), sign)  # the last known
    falls = jnp.any((last[:-1] > 0) & (sign[1:] < 0))
    rises = jnp.any((last[:-1] < 0) & (sign[1:] > 0))
    gap = where[1:] - where[:-1]
    side = jnp.sign(jnp.where(jnp.abs(y[:-1]) > jnp.abs(y[1:]), y[:-1], y[1:]))
    parts = cubic(side * y[:-1], side * y[1:], side * gap * m[:-1], side * gap * m[1:])
    turn = lowest(parts)
    low = value_of(parts, turn)
    both = jnp.minimum(side * y[:-1], side * y[1:])
    inside = (turn < 1) & (both - low > 8 * EPS * both)
    turns = inside | ((side * m[:-1] < 0) & (side * m[1:] >= 0))
    turns = turns & (both >= 0) & jnp.any(jnp.abs(y) > tiny)  # not zero all along
    best = jnp.argmin(jnp.where(turns, jnp.abs(low), jnp.inf))
    start = where[best] + gap[best] * turn[best]
    place, low = _bottom(left, right, start, where[best], where[best + 1])
    dips = jnp.any(turns) & (side[best] * low < -along(rounding, place))
    return Outline(jnp.where(jnp.any(turns), place, 1.0), falls | dips, rises | dips)


def _bottom(
    left: Edge, right: Edge, place: Scalar, low: Scalar, high: Scalar
) -> tuple[Scalar, Scalar]:
    """Where the polynomial itself turns around, close to `place`."""
    mirrored = place > 0.5
    near, far = (
        Edge(*(jnp.where(mirrored, v, w) for v, w in zip(b, a, strict=True)))
        for a, b in ((left, right), (right, left))
    )
    fold = lambda u: jnp.where(mirrored, 1 - u, u)
    ends = fold(low), fold(high)
    slope = jax.grad(lambda u: quintic(near, far, u)[1])
    u = fold(place)
    for _ in range(3):
        bend = slope(u)
        step = quintic(near, far, u)[1] / jnp.where(bend == 0, 1.0, bend)
        u = jnp.clip(u - step, jnp.minimum(*ends), jnp.maximum(*ends))
    return fold(u), quintic(near, far, u)[0]


def outline(left: Edge, right: Edge, tiny: Array) -> Outline:
    """All guards in all rows: (rows, guards); `tiny` is known where rows start."""
    wide = jax.vmap(_outline)  # over guards
    if tiny.size == 0:
        none = jnp.zeros(left.value.shape, bool)
        return Outline(jnp.ones(none.shape), none, none)
    given = frozen((left, right, (tiny[:-1], tiny[1:])))
    return jax.lax.map(lambda row: wide(*row), given, batch_size=ROWS_PER_BATCH)


def value_at(left: Edge, right: Edge, place: Array) -> Array:
    """The guard at `place`, from the nearer end; differentiable in the edges."""
    first = quintic(left, right, place)[0]
    return jnp.where(place < 0.5, first, quintic(right, left, 1 - place)[0])
