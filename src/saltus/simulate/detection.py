"""The first crossing inside a step.

Each guard is modelled on the two halves of a step by cubic Hermite polynomials through its values
and slopes at the start, the middle and the end. Critical points split the halves into monotone
pieces (M17), so that double crossings inside a step are found. The model only says where to look:
the crossing is then located by iterations on the step map.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp

from ..base.control_flow import staged
from ..base.types import Array, Scalar
from .states import Place, Side, is_armed, is_zero

GUARD_ROUNDING = 1e-14  # of its largest value in a step
MAX_JUMP_STEP = 1e4  # resolutions of time: the longest step in which a guard may jump

Cubic: TypeAlias = tuple[Array, ...]  # its four coefficients, the constant one first


class Knots(NamedTuple):
    """A guard and its slope (times the step length) at the start, middle and end of a step."""

    start: Array
    start_slope: Array
    mid: Array
    mid_slope: Array
    end: Array
    end_slope: Array


class Candidate(NamedTuple):
    """Where to look for a guard's first crossing, in fractions of the step."""

    key: Array  # where it is expected; inf if there is none
    high: Array  # the end of the bracket that starts at 0
    verified: Array  # whether the sign at `high` is that of the step map, not of the model
    fire: Array  # the guard leaves zero to its firing side right at the start
    rest: Array  # it has just fired, and is pushed to its firing side again without moving
    before: Array  # its sign just after the start
    curve: Array  # the model's second derivative if a minimum is looked for; else 0
    depth: Array  # how far beyond zero it is at `high`; 0 if this is known from the model only
    doubt: Array  # the model is too inexact to exclude a crossing, or an earlier one


def cubic(y0: Array, y1: Array, m0: Array, m1: Array) -> Cubic:
    """The coefficients of the cubic over (0, 1) with these values and slopes at its ends."""
    return y0, m0, -3 * y0 + 3 * y1 - 2 * m0 - m1, 2 * y0 - 2 * y1 + m0 + m1


def value_of(c: Cubic, u: Array | float) -> Array:
    return c[0] + u * (c[1] + u * (c[2] + u * c[3]))


def lowest(c: Cubic) -> Array:
    """The local minimum inside (0, 1); 1 where there is none."""
    a, b, k = 3 * c[3], c[2], c[1]
    disc = b * b - a * k
    root = jnp.sqrt(jnp.maximum(disc, 0.0))
    split = b > 0  # the form without cancellation
    top = jnp.where(split, -k, root - b)
    bottom = jnp.where(split, b + root, a)
    u = top / jnp.where(bottom == 0, 1.0, bottom)
    inside = (disc > 0) & (bottom != 0) & (u > 1e-13) & (u < 1 - 1e-13)
    return jnp.where(inside, u, 1.0)


def _model_root(c: Cubic, start: Array) -> Array:
    """The root of a cubic that falls from positive to negative over (0, 1): safeguarded Newton."""
    low, high = jnp.zeros_like(start), jnp.ones_like(start)
    bottom = jnp.sqrt(jnp.maximum(c[1] * c[1] - 4 * c[0] * c[2], 0.0)) - c[1]
    u = 2 * c[0] / jnp.where(bottom == 0, 1.0, bottom)  # without the cubic term
    u = jnp.where((u > 0) & (u < 1), u, 0.5)
    for _ in range(4):
        value = value_of(c, u)
        slope = c[1] + u * (2 * c[2] + u * 3 * c[3])
        low, high = jnp.where(value > 0, u, low), jnp.where(value > 0, high, u)
        newton = u - value / jnp.where(slope == 0, 1.0, slope)
        inside = (newton >= low) & (newton <= high)
        u = jnp.where(inside, newton, 0.5 * (low + high))
    return u


def fires(sign: Array, direction: Scalar | int) -> Array:
    """Whether arriving at `sign` is a crossing in `direction` (-1, 0 = either, +1)."""
    return (sign != 0) & ((direction == 0) | (sign == direction))


def quiet(knots: Knots, side: Array) -> Array:
    """Whether a guard certainly stays away from zero: a cheap bound on its model.

    A cubic Hermite polynomial falls below the smaller of its end values by at most 4/27 of its
    slopes; the guard must be twice as far from zero.
    """
    y0, y1, y2 = side * knots.start, side * knots.mid, side * knots.end
    s0, s1, s2 = (jnp.abs(v) for v in (knots.start_slope, knots.mid_slope, knots.end_slope))
    left = jnp.minimum(y0, y1) > 0.15 * (s0 + s1)
    right = jnp.minimum(y1, y2) > 0.15 * (s1 + s2)
    armed = is_armed(side)
    return (armed & left & right) | (side == Side.INACTIVE)


class _Outline(NamedTuple):
    """A guard times the sign that it starts with: positive until it crosses zero."""

    sign: Array  # that it starts with
    low: Array  # where the left and the right half have a local minimum (1: nowhere), and its value
    low_value: Array
    low2: Array
    low2_value: Array
    back: Array  # whether it rises again from there before the half ends
    back2: Array
    error: Array  # a generous bound on the error of the model


def _halves(knots: Knots) -> tuple[Cubic, Cubic]:
    left = cubic(knots.start, knots.mid, 0.5 * knots.start_slope, 0.5 * knots.mid_slope)
    right = cubic(knots.mid, knots.end, 0.5 * knots.mid_slope, 0.5 * knots.end_slope)
    return left, right


def _leaving(knots: Knots) -> tuple[Array, Array]:
    """The sign with which a guard leaves zero, and the multiplicity of that zero (1, 2 or 3).

    If its slope is zero the sign is that of its curvature; if that is small as well (the middle of
    an implicit step is known to a few digits only), that of its cubic part. So it is if the two
    disagree and the middle agrees with the cubic part: a zero of higher order. (If there is a
    second zero close by instead, shorter steps find that out before, see `_first_piece`.)
    """
    _, slope, curvature, cubic = _halves(knots)[0]
    flat = jnp.abs(slope) <= 1e-14 * (jnp.abs(curvature) + jnp.abs(cubic))
    beyond = (curvature * cubic < 0) & (jnp.abs(curvature) < jnp.abs(cubic))
    triple = flat & (beyond | (jnp.abs(curvature) <= 0.1 * jnp.abs(cubic)))
    lead = jnp.where(triple, cubic, jnp.where(flat, curvature, slope))
    return jnp.sign(lead), 1 + flat.astype(jnp.int32) + triple.astype(jnp.int32)


def _deflate(c: Cubic, zero: Array, order: Array) -> Cubic:
    """A cubic divided by its root of this order at the start, if the guard is zero there."""
    none = jnp.zeros_like(c[0])
    shifted = [(*c[k:], *[none] * k) for k in (1, 2, 3)]
    return tuple(
        jnp.where(zero, jnp.where(order == 1, a, jnp.where(order == 2, b, d)), v)
        for v, a, b, d in zip(c, *shifted, strict=True)
    )


def _outline(knots: Knots, side: Array) -> _Outline:
    sign = jnp.where(is_zero(side), _leaving(knots)[0], side).astype(knots.start.dtype)
    left, right = (tuple(sign * v for v in half) for half in _halves(knots))
    low, low2 = lowest(left), lowest(right)
    error = model_error(knots)
    largest = jnp.maximum(jnp.abs(knots.start), jnp.maximum(jnp.abs(knots.mid), jnp.abs(knots.end)))
    noise = error / 16 + GUARD_ROUNDING * largest
    low_value, low2_value = value_of(left, low), value_of(right, low2)
    back, back2 = (_comes_back(half, u, noise) for half, u in ((left, low), (right, low2)))
    return _Outline(
        sign=sign, low=low, low_value=low_value, low2=low2, low2_value=low2_value, back=back,
        back2=back2, error=error,
    )  # fmt: skip


def _comes_back(half: Cubic, low: Array, noise: Array) -> Array:
    """Whether a guard returns to its old side after its minimum, which is no inflection then."""
    high = lowest(tuple(-v for v in half))
    after = jnp.where((high > low) | (low == 1), high, 1.0)
    return jnp.maximum(value_of(half, after), value_of(half, 1.0)) > noise


def modelled(knots: Knots, u: float) -> Array:
    """The model of a guard at `u`, a fixed place in the step."""
    left, right = _halves(knots)
    return value_of(left, 2 * u) if u < 0.5 else value_of(right, 2 * u - 1)


def model_error(knots: Knots) -> Array:
    """How far the middle is from the cubic through both ends; the halves are 16 times better."""
    value = 0.5 * (knots.start + knots.end) + 0.125 * (knots.start_slope - knots.end_slope)
    slope = 1.5 * (knots.end - knots.start) - 0.25 * (knots.start_slope + knots.end_slope)
    return jnp.abs(knots.mid - value) + 0.125 * jnp.abs(knots.mid_slope - slope)


class _Piece(NamedTuple):
    """The first place where a guard may have crossed, and what is known about it there."""

    place: Array
    match: Array  # a crossing from this side has the event's direction
    fire: Array
    rest: Array
    doubt: Array


def _first_piece(
    knots: Knots, outline: _Outline, side: Array, direction: Scalar | int, contact: bool
) -> _Piece:
    sign = outline.sign
    start, mid, end = (jnp.abs(knots.start), sign * knots.mid, sign * knots.end)
    error = outline.error
    close = jnp.maximum(0.1 * jnp.minimum(start, jnp.abs(mid)), error)
    near = (outline.low < 1) & ((outline.low_value < close) | (outline.low_value < 0))
    close2 = jnp.maximum(0.1 * jnp.minimum(mid, jnp.abs(end)), error)
    near2 = (outline.low2 < 1) & (outline.low2_value < close2)
    match = fires(-sign, direction)
    zero = is_zero(side)
    flat = _leaving(knots)[1] > 1
    near, near2 = near & (outline.back | (mid >= 0)), near2 & (outline.back2 | (end >= 0))
    index = jnp.where(match & (end < 0), Place.END, Place.NOWHERE)
    index = jnp.where(near2, Place.RIGHT_MINIMUM, index)
    index = jnp.where(mid < 0, Place.MIDDLE, index)
    index = jnp.where(near, Place.LEFT_MINIMUM, index)
    to_firing = zero & fires(sign, direction) & (direction != 0)
    across = ((side == Side.ABOVE) & (sign < 0)) | ((side == Side.BELOW) & (sign > 0))
    nowhere = (side == Side.INACTIVE) | (sign == 0)
    hidden = jnp.minimum(mid, end) < error
    bend, rest = (jnp.abs(v) for v in _halves(knots)[0][2:])
    mixed = flat & zero & (bend < 10 * rest) & (bend > 0.01 * rest)  # of unclear order
    decides = functools.reduce(
        lambda v, pair: jnp.where(index == pair[0], pair[1], v),
        [
            (Place.MIDDLE, mid),
            (Place.RIGHT_MINIMUM, outline.low2_value),
            (Place.END, end),
        ],
        outline.low_value,
    )
    largest = jnp.maximum(start, jnp.maximum(jnp.abs(mid), jnp.abs(end)))
    mixed = mixed | (
        (index < Place.NOWHERE) & (error > jnp.abs(decides)) & (error > 1e-3 * largest)
    )
    wild = mixed | (error > largest)
    return _Piece(
        place=jnp.where(nowhere, Place.NOWHERE, index).astype(jnp.int32),
        match=match,
        fire=(to_firing & (side == Side.FRESH)) | across,
        rest=to_firing & (side == Side.FIRED) & flat & contact,
        doubt=~nowhere & ((hidden & (index == Place.NOWHERE)) | wild),
    )


def _aim(knots: Knots, outline: _Outline, piece: _Piece, side: Array) -> tuple[Array, Array, Array]:
    """Where the crossing is expected, the end of its bracket, the curvature at a minimum."""
    first = piece.place < Place.RIGHT_MINIMUM
    left, right = _halves(knots)
    bends = [c[2] + 3 * u * c[3] for c, u in ((left, outline.low), (right, outline.low2))]
    curve = 8 * outline.sign * jnp.where(first, *bends)
    left = _deflate(left, is_zero(side), _leaving(knots)[1])
    cubic = tuple(outline.sign * jnp.where(first, a, b) for a, b in zip(left, right, strict=True))
    base = jnp.where(first, 0.0, 0.5)
    root = base + 0.5 * _model_root(cubic, jnp.where(first, knots.start, knots.mid))
    low = jnp.where(first, 0.5 * outline.low, 0.5 + 0.5 * outline.low2)
    to_low = (piece.place == Place.LEFT_MINIMUM) | (piece.place == Place.RIGHT_MINIMUM)
    high = jnp.where(to_low, low, base + 0.5)
    key = jnp.where(to_low | ~piece.match, high, root)
    key = jnp.where(piece.place == Place.NOWHERE, jnp.inf, key)
    return key, high, jnp.where(to_low, jnp.maximum(curve, 0.0), 0.0)


def look(
    knots: Knots, side: Array, direction: Scalar | int, contact: bool, length: Scalar
) -> Candidate:
    """The first place in a step where a guard (or each member of a family) may cross.

    `contact` is true if the event has a reset: a state at rest on the guard is then a contact.
    `length` is that of the step, in units of the resolution of time. In a very short step, a guard
    that changes its side against its direction is ignored, since it may jump, and the step is too
    short for anything else.
    """
    outline = staged(lambda: _outline(knots, side))
    piece = staged(lambda: _first_piece(knots, outline, side, direction, contact))
    key, high, curve = staged(lambda: _aim(knots, outline, piece, side))
    return Candidate(
        key=key, high=high, verified=piece.place == Place.END, fire=piece.fire, rest=piece.rest,
        before=outline.sign, curve=curve, depth=_depth(knots, outline, piece),
        doubt=piece.doubt & (piece.match | (length > MAX_JUMP_STEP)),
    )  # fmt: skip


def _depth(knots: Knots, outline: _Outline, piece: _Piece) -> Array:
    """How far beyond zero a guard certainly gets after its first crossing, before it returns.

    The middle of a step is known less exactly than its end: its possible error is subtracted."""
    mid = jnp.maximum(-outline.sign * knots.mid - outline.error, 0.0)
    end = jnp.maximum(-outline.sign * knots.end, 0.0)
    end = jnp.where(outline.back2 & (piece.place != Place.END), 0.0, end)
    first = jnp.where(
        (piece.place == Place.LEFT_MINIMUM) & outline.back, 0.0, jnp.maximum(mid, end)
    )
    return jnp.where(
        piece.place == Place.NOWHERE, 0.0, jnp.where(piece.place < Place.RIGHT_MINIMUM, first, end)
    )


def side_after(side: Array, value: Array) -> Array:
    """The guard's side where an accepted step ends."""
    sign = jnp.sign(value).astype(side.dtype)
    return jnp.where((side == Side.INACTIVE) | (sign == 0), side, sign)
