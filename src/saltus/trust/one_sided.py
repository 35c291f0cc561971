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
from ..base.leaves import array_of, unraveller
from ..base.names import number_names
from ..base.tracing import is_traced
from ..base.types import Array, Matrix, Params, Scalar, Tree, Vector, Whole
from .differences import STEPS, OneSided, one_sided
from .margins import promised
from .refinement import FAR_LENGTH, SMALLEST_SLOPE, Refinement, sizes_of

SINGLE_DIRECTIONS = 24  # along one parameter each; more parameters share them, with random signs
RANDOM_NAME = "a random direction"
RANDOM_DIRECTIONS = 4  # in which everything moves
LENGTHS_FOR_ZEROS = (
    1.0,
    1e-3,
    1e-6,
)  # tried for a parameter that is zero and so has no size; smooth with one of them is enough
ROUNDING = 1e-12  # of a value, relative
NOISE = 10.0  # times the change by finer steps: what points nearby may differ by
CORNER_NAME = "several parameters together"
THIRDS = (1.0, 1 / 3, 1 / 9)  # distances at which a curve is told from a kink
CURVED = (0.2, 0.5)  # deviations of a smooth curve shrink to a third; those at a kink do not
CURVE_LIMIT = 1e-2  # of the deviation: what may be left of it at p


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
    start: Params
    p: Vector
    back: Callable
    value: Scalar
    gradient: Vector
    rtol: Scalar
    finer: Refinement

    def at(self, direction: Vector, length: Scalar | float) -> tuple[Scalar, Scalar]:
        """The loss and its derivative at the distance `length`."""
        there, tangent = _moved(self.start, direction, length)
        return jax.jvp(self.loss, (there,), (tangent,))

    def slopes(self, directions: Matrix | np.ndarray) -> Vector:
        return jnp.asarray(directions) @ self.gradient


@rarely
def _flat(p: Params, gradient: Tree, value: Scalar) -> tuple[Vector, Vector, Scalar]:
    flat = ravel_pytree(p)[0]
    return flat, ravel_pytree(gradient)[0], jnp.asarray(value, flat.dtype)


@rarely
def _moved(p: Params, direction: Vector, length: Scalar | float) -> tuple[Params, Params]:
    """The point at the distance `length`, and the direction as a tangent."""
    flat, back = ravel_pytree(p)
    return back(flat + length * direction), back(direction.astype(flat.dtype))


def around(
    loss: Callable,
    p: Params,
    first: tuple[Scalar, Tree],
    rtol: Scalar,
    finer: Refinement,
    corners: tuple[Matrix, Vector] | None,
) -> Around:
    """Both sides of p along the gradient, along every parameter, and along random directions."""
    value, gradient = first
    back = unraveller(p)
    flat, slope, number = _flat(p, gradient, value)
    point = _Point(loss, p, flat, back, number, slope, rtol, finer)
    patterns, names = _patterns(flat.size, number_names(p, "p"))
    directions = _directions(p, slope, patterns)
    if is_traced((value, gradient)):
        every = directions if corners is None else jnp.concatenate([directions, corners[0]])
        return Around(_all_smooth(point, every), None, ())
    numbers, names = np.asarray(directions), ["the gradient", *names]
    if corners is not None:
        extra = np.asarray(corners[0])[np.asarray(corners[1])]
        numbers, names = np.concatenate([numbers, extra]), [*names, *[CORNER_NAME] * len(extra)]
    return _looked(point, numbers, names)


@rarely
def _directions(p: Params, slope: Vector, patterns: Matrix) -> Matrix:
    """Down the gradient, and the patterns, in the sizes of the parameters."""
    sizes = sizes_of(p)
    down = -slope * sizes
    largest = jnp.max(jnp.abs(down), initial=0.0)
    down = jnp.where(largest > 0, down / jnp.where(largest > 0, largest, 1.0), 1.0)
    return jnp.concatenate([down[None], jnp.asarray(patterns)]) * sizes


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
    signs = rng.choice([-1.0, 1.0], (several, n))
    signs[:1] = 1.0
    if n <= 3:  # all combinations, for decisions on several numbers at once
        signs = 1.0 - 2.0 * (np.arange(several)[:, None] >> np.arange(n) & 1)
    wide = signs * rng.uniform(0.3, 1.0, (several, n))
    return np.concatenate([single, wide]), [*labels, *[RANDOM_NAME] * several]


class _Numbers(NamedTuple):
    """What is known at p."""

    value: Scalar
    rtol: Scalar
    finer: Refinement
    gradient: Vector


class _Limits(NamedTuple):
    """By how much points nearby may differ because of errors of the solution."""

    slopes: Vector  # for each direction
    jump: Scalar  # of the value
    relative: Scalar  # to a slope


@rarely
def _limits(point: _Numbers, directions: Matrix) -> _Limits:
    value, rtol, finer, gradient = point
    slopes = directions @ gradient
    most = jnp.max(jnp.abs(slopes), initial=0.0)
    relative = jnp.maximum(1e-5, promised(rtol))
    bent = relative * jnp.maximum(jnp.abs(slopes), SMALLEST_SLOPE * most)
    bent = bent + NOISE * (jnp.abs(directions) @ finer.gradient)
    jump = NOISE * (rtol * most + finer.value) + ROUNDING * jnp.abs(value)
    return _Limits(bent, jump, relative)


def _limits_of(point: _Point, directions: Matrix | np.ndarray) -> _Limits:
    numbers = _Numbers(point.value, point.rtol, point.finer, point.gradient)
    return _limits(numbers, array_of(directions))


# -- with numbers: two points for each direction, more if they differ ------------------------------
def _looked(point: _Point, directions: np.ndarray, names: list[str]) -> Around:
    slopes = np.asarray(directions @ np.asarray(point.gradient), float)
    limits = jax.tree.map(np.asarray, _limits_of(point, directions))
    value, bends, first = float(point.value), [], None
    for k, direction in enumerate(directions):
        looks = [_tried(point, direction, s * STEPS[0]) for s in (-1.0, 1.0)]
        step = STEPS[0] * slopes[k]
        off = [looks[0][0] - value + step, looks[1][0] - value - step]
        seen = OneSided(looks[0][1], looks[1][1], off[1] - off[0], value)
        first = seen if first is None else first
        fine = all(abs(m - slopes[k]) <= limits.slopes[k] for _, m in looks)
        if not (fine and all(abs(v) <= limits.jump for v in off)):
            exists = [bool(np.isfinite(v)) for v, _ in looks]
            own = limits._replace(slopes=limits.slopes[k])
            bends += _confirmed(point, direction, (names[k], float(slopes[k])), own, exists)
    single = [b for b in bends if b.along not in (names[0], RANDOM_NAME, CORNER_NAME)]
    bends = single or bends[:1]
    level = max((1 if b.undefined else 2 for b in bends), default=0)
    return Around(level, bends[0].sides if bends else first, tuple(bends))


def _tried(point: _Point, direction: np.ndarray, length: float) -> tuple[float, float]:
    """The same; NaN where the loss cannot be computed."""
    try:
        value, slope = point.at(array_of(direction), length)
    except Exception:  # any error means that the loss has no value there
        return float("nan"), float("nan")
    return float(value), float(slope)


def _confirmed(
    point: _Point,
    direction: np.ndarray,
    named: tuple[str, float],
    limits: _Limits,
    exists: list[bool],
) -> list[Bend]:
    """A `Bend` if derivatives extrapolated to p still differ from each other or the gradient."""
    name, slope = named
    zero = bool(np.any((np.asarray(point.p) == 0) & (direction != 0)))
    further = np.array([_tried(point, direction, s * FAR_LENGTH) for s in (-1.0, 1.0)])
    further = np.abs(further - [float(point.value), 0.0])
    wide, steep = np.max(np.where(np.isfinite(further), further, 0.0), axis=0)
    relative = float(limits.relative)
    limit = max(float(limits.slopes), relative * SMALLEST_SLOPE * float(steep))
    leap = max(float(limits.jump), 1e3 * float(point.rtol) * float(wide))
    found = []
    for smaller in LENGTHS_FOR_ZEROS if zero else LENGTHS_FOR_ZEROS[:1]:
        loss = lambda q: point.loss(point.back(q))
        sides = one_sided(loss, point.p, jnp.asarray(smaller * direction), 1.0, forgiving=True)
        sides = sides._replace(left=sides.left / smaller, right=sides.right / smaller)
        good = [abs(v - slope) <= max(limit, relative * abs(v)) for v in sides[:2]]
        good = [
            g or _curved(point, smaller * direction, smaller * slope, sign)
            for g, sign in zip(good, (-1.0, 1.0), strict=True)
        ]
        if all(good) and (abs(sides.jump) <= leap or _continuous(point, direction, leap)):
            return []
        undefined = any(g and e for g, e in zip(good, exists, strict=True)) and not all(exists)
        found.append(Bend(name, sides, slope, undefined))
    return found[:1]


def _curved(point: _Point, direction: np.ndarray, slope: float, sign: float) -> bool:
    """Whether derivatives on one side go to that at p smoothly, as those of a steep curve do."""
    looks = [_tried(point, direction, sign * STEPS[0] * third) for third in THIRDS]
    off = np.asarray([v[1] - slope for v in looks])
    return bool(_shrinks(*off)) and abs(_at_p(*off)) <= CURVE_LIMIT * abs(off[0])


def _continuous(point: _Point, direction: np.ndarray, leap: float) -> bool:
    """Whether the values on both sides go to that at p, by their own derivatives (Simpson)."""
    value = float(point.value)
    for sign in (-1.0, 1.0):
        length = sign * STEPS[0]
        parts = [(value, float(direction @ np.asarray(point.gradient)))]
        parts += [_tried(point, direction, part * length) for part in (0.5, 1.0)]
        rise = length * (parts[0][1] + 4 * parts[1][1] + parts[2][1]) / 6
        if not abs(parts[2][0] - value - rise) <= leap + CURVE_LIMIT * abs(rise):
            return False
    return True


# -- inside `jit`: one program for all points ------------------------------------------------------
def _all_smooth(point: _Point, directions: Matrix) -> Whole:
    slopes = point.slopes(directions)
    limits = _limits_of(point, directions)
    thirds = STEPS[0] * jnp.asarray(THIRDS)
    lengths = jnp.concatenate([-thirds, thirds, FAR_LENGTH * jnp.asarray([-1.0, 1.0])])

    def along(direction: Vector) -> tuple[Vector, Vector]:
        return jax.lax.map(functools.partial(point.at, direction), lengths)

    values, found = jax.lax.map(along, directions)
    most = lambda v: jnp.max(jnp.where(jnp.isfinite(v), jnp.abs(v), 0.0), axis=1)
    wide, steep = most(values[:, 6:] - point.value), most(found[:, 6:])
    bent = jnp.maximum(limits.slopes, limits.relative * SMALLEST_SLOPE * steep)
    leap = jnp.maximum(limits.jump, 1e3 * point.rtol * wide)
    smooth = jnp.ones((), bool)
    for side in (slice(0, 3), slice(3, 6)):
        off = found[:, side] - slopes[:, None]
        at_p = jnp.abs(_at_p(*off.T))
        fine = at_p <= jnp.maximum(bent, limits.relative * jnp.abs(at_p + jnp.abs(slopes)))
        fine = fine | ((at_p <= CURVE_LIMIT * jnp.abs(off[:, 0])) & _shrinks(*off.T))
        rise = lengths[side][2] * (slopes + 0.5 * off[:, 2])
        jump = jnp.abs(values[:, side][:, 2] - point.value - rise)
        smooth = smooth & jnp.all(fine & (jump <= leap + CURVE_LIMIT * jnp.abs(rise)))
    return jnp.where(smooth, 0, 2)


def _at_p(first: Vector, second: Vector, third: Vector) -> Vector:
    """The limit at p of what was measured at all `THIRDS` of a distance, by a parabola."""
    return (first - 12 * second + 27 * third) / 16


def _shrinks(first: Vector, second: Vector, third: Vector) -> Array:
    """Whether deviations shrink as those of a smooth curve do."""
    low, high = CURVED
    pairs = ((first, second), (second, third))
    parts = [(b >= low * a) & (b <= high * a) for a, b in ((abs(a), abs(b)) for a, b in pairs)]
    return parts[0] & parts[1] & (first * second >= 0) & (second * third >= 0)
