"""Derivatives of a loss from both sides of p: along every parameter, and in random directions.

A loss that bends or jumps exactly at p has no gradient there, whatever automatic differentiation
says: `where(b > 1, 3 * (b - 1), 0)` has the derivatives 0 and 3 at b = 1, and AD returns 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..base.host_programs import rarely
from ..base.names import number_names
from ..base.types import Matrix, Params, Scalar, Tree, Vector, Whole
from .differences import STEPS, OneSided, one_sided

SINGLE_DIRECTIONS = 24  # along one parameter each; more parameters share them, with random signs
RANDOM_NAME = "a random direction"
RANDOM_DIRECTIONS = 4  # in which everything moves
LENGTHS_FOR_ZEROS = (
    1.0,
    1e-3,
    1e-6,
)  # tried for a parameter that is zero and so has no size; smooth with one of them is enough
FAR_LENGTH = 1e-2  # at this distance, a derivative that is zero at p shows its size
SMALLEST_SLOPE = 1e-2  # relative to the largest: smaller slopes are compared on this scale


class Bend(NamedTuple):
    """A direction along which the loss is not smooth."""

    along: str
    sides: OneSided
    slope: float  # what the gradient says
    undefined: bool  # the loss exists on one side only

    def __str__(self) -> str:
        left, right = (f"{v:.6g}" if np.isfinite(v) else "-" for v in self.sides[:2])
        jump = self.sides.jump
        jumps = f", a jump of {jump:.3g}" if abs(jump) > 1e-9 else ""
        return (
            f"along {self.along}: derivative {left} from the left, {right} from the right{jumps}; "
            f"the gradient says {self.slope:.6g}"
        )


class Around(NamedTuple):
    """What was found around a point."""

    level: Whole | int
    sides: OneSided | None  # along the gradient, or where the loss bends
    bends: tuple[Bend, ...]


class _Point(NamedTuple):
    """A loss in flat coordinates, with what is known of it at p."""

    loss: Callable
    p: Vector
    back: Callable
    value: Scalar
    gradient: Vector
    rtol: Scalar

    def at(self, direction: Vector, length: Scalar | float) -> tuple[Scalar, Scalar]:
        """The loss and its derivative at the distance `length`."""
        along = lambda s: self.loss(self.back(self.p + s * direction))
        return jax.jvp(along, (length,), (length * 0 + 1.0,))

    def slopes(self, directions: Matrix | np.ndarray) -> Vector:
        return jnp.asarray(directions) @ self.gradient


def around(
    loss: Callable, p: Params, value: Scalar, gradient: Tree, rtol: Scalar, traced: bool
) -> Around:
    """Both sides of p along the gradient, along every parameter, and along random directions."""
    flat, back = ravel_pytree(p)
    slope = ravel_pytree(gradient)[0]
    rates = jnp.asarray(rtol)
    point = _Point(loss, flat, back, jnp.asarray(value, flat.dtype), slope, rates)
    patterns, names = _patterns(flat.size, number_names(p, "p"))
    directions = _directions(p, slope, patterns)
    if traced:
        return Around(_all_smooth(point, directions), None, ())
    return _looked(point, np.asarray(directions), ["the gradient", *names])


@rarely
def _directions(p: Params, slope: Vector, patterns: Matrix) -> Matrix:
    """Down the gradient, and the patterns, in the sizes of the parameters."""
    sizes = _sizes(p)
    down = -slope * sizes
    largest = jnp.max(jnp.abs(down), initial=0.0)
    down = jnp.where(largest > 0, down / jnp.where(largest > 0, largest, 1.0), 1.0)
    return jnp.concatenate([down[None], jnp.asarray(patterns)]) * sizes


def _sizes(p: Params) -> Vector:
    """The size of each number; for a zero the largest size in the same leaf, or one."""
    sizes = []
    for leaf in jax.tree.leaves(p):
        size = jnp.abs(jnp.asarray(leaf, jnp.float64)).ravel()
        most = jnp.max(size, initial=0.0)
        sizes.append(jnp.where(size > 0, size, jnp.where(most > 0, most, 1.0)))
    return jnp.concatenate(sizes)


def _patterns(n: int, names: list[str]) -> tuple[np.ndarray, list[str]]:
    """Directions relative to the sizes: single numbers, or groups of them, and random ones."""
    rng = np.random.default_rng(11)
    count = min(n, SINGLE_DIRECTIONS)
    single = (np.arange(n)[None, :] % count == np.arange(count)[:, None]).astype(float)
    labels = names
    if n > SINGLE_DIRECTIONS:
        single = single * rng.choice([-1.0, 1.0], n)
        labels = [f"{names[k]} and others" for k in range(count)]
    several = RANDOM_DIRECTIONS if n > 1 else 0
    wide = rng.choice([-1.0, 1.0], (several, n)) * rng.uniform(0.3, 1.0, (several, n))
    return np.concatenate([single, wide]), [*labels, *[RANDOM_NAME] * several]


@rarely
def _limits(value: Scalar, rtol: Scalar, slopes: Vector) -> tuple[Vector, Scalar]:
    """How much slopes and values may differ because of errors of the solution."""
    most = jnp.maximum(jnp.abs(value), jnp.max(jnp.abs(slopes), initial=0.0))
    size = jnp.maximum(jnp.abs(slopes), SMALLEST_SLOPE * most)
    return jnp.maximum(1e-5, 1e3 * rtol) * size, 1e3 * rtol * most


# -- with numbers: two points for each direction, more if they differ ------------------------------
def _looked(point: _Point, directions: np.ndarray, names: list[str]) -> Around:
    slopes = np.asarray(directions @ np.asarray(point.gradient), float)
    bent, jumped = (np.asarray(v) for v in _limits(point.value, point.rtol, slopes))
    value, bends, first = float(point.value), [], None
    for k, direction in enumerate(directions):
        looks = [_tried(point, direction, s * STEPS[0]) for s in (-1.0, 1.0)]
        step = STEPS[0] * slopes[k]
        off = [looks[0][0] - value + step, looks[1][0] - value - step]
        seen = OneSided(looks[0][1], looks[1][1], off[1] - off[0], value)
        first = seen if first is None else first
        fine = all(abs(m - slopes[k]) <= bent[k] for _, m in looks)
        if not (fine and all(abs(v) <= jumped for v in off)):
            exists = [bool(np.isfinite(v)) for v, _ in looks]
            limits = float(bent[k]), float(jumped)
            bends += _confirmed(point, direction, (names[k], float(slopes[k])), limits, exists)
    single = [b for b in bends if b.along not in (names[0], RANDOM_NAME)]
    bends = single or bends[:1]
    level = max((1 if b.undefined else 2 for b in bends), default=0)
    return Around(level, bends[0].sides if bends else first, tuple(bends))


def _tried(point: _Point, direction: np.ndarray, length: float) -> tuple[float, float]:
    """The same; NaN where the loss cannot be computed."""
    try:
        value, slope = point.at(jnp.asarray(direction), length)
    except Exception:  # any error means that the loss has no value there
        return float("nan"), float("nan")
    return float(value), float(slope)


def _confirmed(
    point: _Point,
    direction: np.ndarray,
    named: tuple[str, float],
    limits: tuple[float, float],
    exists: list[bool],
) -> list[Bend]:
    """A `Bend` if derivatives extrapolated to p still differ from each other or the gradient."""
    name, slope = named
    zero = bool(np.any((np.asarray(point.p) == 0) & (direction != 0)))
    further = np.array([_tried(point, direction, s * FAR_LENGTH) for s in (-1.0, 1.0)])
    further = np.abs(further - [float(point.value), 0.0])
    wide, steep = np.max(np.where(np.isfinite(further), further, 0.0), axis=0)
    limit = max(limits[0], 1e-5 * SMALLEST_SLOPE * float(steep))
    leap = max(limits[1], 1e3 * float(point.rtol) * float(wide))
    found = []
    for smaller in LENGTHS_FOR_ZEROS if zero else LENGTHS_FOR_ZEROS[:1]:
        loss = lambda q: point.loss(point.back(q))
        sides = one_sided(loss, point.p, jnp.asarray(smaller * direction), 1.0, forgiving=True)
        sides = sides._replace(left=sides.left / smaller, right=sides.right / smaller)
        good = [abs(v - slope) <= max(limit, 1e-5 * abs(v)) for v in sides[:2]]
        if all(good) and abs(sides.jump) <= leap:
            return []
        undefined = any(g and e for g, e in zip(good, exists, strict=True)) and not all(exists)
        found.append(Bend(name, sides, slope, undefined))
    return found[:1]


# -- inside `jit`: one program for all points ------------------------------------------------------
def _all_smooth(point: _Point, directions: Matrix) -> Whole:
    slopes = point.slopes(directions)
    bent, jumped = _limits(point.value, point.rtol, slopes)
    lengths = STEPS[0] * jnp.asarray([-2.0, -1.0, 1.0, 2.0])

    def along(direction: Vector) -> tuple[Vector, Vector]:
        return jax.lax.map(functools.partial(point.at, direction), lengths)

    values, found = jax.lax.map(along, directions)
    ends = jnp.stack([2 * found[:, 1] - found[:, 0], 2 * found[:, 2] - found[:, 3]], axis=1)
    off = values[:, 1:3] - point.value - lengths[1:3] * 0.5 * (ends + found[:, 1:3])
    smooth = jnp.all(jnp.abs(ends - slopes[:, None]) <= bent[:, None]) & jnp.all(
        jnp.abs(off) <= jumped
    )
    return jnp.where(smooth, 0, 2)
