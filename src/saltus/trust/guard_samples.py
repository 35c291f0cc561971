"""Guards that cross zero and come back within one row, which its two ends do not show.

The states are interpolated by the polynomial of degree 5 with their values and first two
derivatives at both ends of a row (of degree 3 with a constraint). The guards are evaluated on it,
at several places in every row and at others spread evenly over the whole span, since a solve with
simple motions may have only a few rows. A guard whose sign differs from that at both ends, by more
than the error of the polynomials, was not resolved by the steps.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..base.leaves import Leaves
from ..base.types import Array, Scalar, Vector, Whole
from ..model.algebraic_states import attached
from ..model.model import Model, Par
from ..simulate.detection import cubic, lowest, value_of
from ..solution.solution import Solution
from ..solution.tape import Tape
from .guard_outline import Edge, flat_guards, quintic, value_at

ROW_PLACES = tuple((2 * k + 1) / 16 for k in range(8))  # in every row
SPAN_PLACES = 512  # in the whole span
LINEAR_ERROR = 0.05  # of guards with algebraic states, relative to their largest value in a row
CUBIC_ERROR = 0.02  # of a cubic through two places, relative to the depth of a dip
PLACES_FOR_A_VERDICT = 32  # in a row: with so many, the polynomial of the guard is not used
SURE_TOLERANCES = 10  # a guard farther from zero than this has a definite sign
MOST_ALGEBRAIC_NUMBERS = 64  # with more, solving for them at all places is too expensive


class _Ends(NamedTuple):
    """The moving leaves at both ends of each row, as `Edge` (guard_outline.py)."""

    left: tuple[Edge, ...]
    right: tuple[Edge, ...]

    def at(self, k: Whole, u: Scalar, cubic: bool) -> Leaves:
        """The leaves at the part `u` of row `k`."""
        out = []
        for a, b in zip(*jax.tree.map(lambda v: v[k], (self.left, self.right)), strict=True):
            curve = _hermite(a, b, u) if cubic else quintic(a, b, u)[0]
            out.append(curve.astype(a.value.dtype))
        return tuple(out)


def _hermite(a: Edge, b: Edge, u: Scalar) -> Array:
    v = 1.0 - u
    return v * v * ((1 + 2 * u) * a.value + u * a.slope) + u * u * (
        (1 + 2 * v) * b.value + v * b.slope
    )


def _ends(model: Model, tape: Tape, par: Par) -> _Ends:
    rows = jnp.arange(tape.tau.shape[0])

    def one(k: Whole) -> tuple[Leaves, Leaves]:
        at = tape.state(k)

        def flow(tau: Scalar, moving: Leaves) -> Leaves:
            return model.flow(model.with_moving(at, moving, tau=tau), par)

        here = (at.tau, model.moving_of(at))
        if model.constraint is not None:  # z would also have to be differentiated
            return tuple(flow(*here)), tuple(jnp.zeros_like(v) for v in model.moving_of(at))
        slope = flow(*here)
        return tuple(slope), jax.jvp(flow, here, (jnp.ones_like(at.tau), tuple(slope)))[1]

    slopes, bends = jax.vmap(one)(rows)
    left, right = [], []
    for v, s, b in zip(tape.w, slopes, bends, strict=False):
        h = tape.h.reshape(-1, *[1] * (v.ndim - 1))[:-1]
        left.append(Edge(v[:-1], h * s[:-1], h * h * b[:-1]))
        right.append(Edge(v[1:], -h * s[1:], h * h * b[1:]))
    return _Ends(tuple(left), tuple(right))


def _spread(sol: Solution) -> tuple[Vector, Vector]:
    """Places that are spread evenly over the span: their rows, and where they are in these."""
    tape = sol.tape
    count = tape.tau.shape[0]
    way = jnp.where(tape.backward, -1.0, 1.0)
    times = way * (tape.tau - tape.tau[0])
    times = jnp.where(jnp.arange(count) <= tape.n, times, jnp.inf)
    last = jnp.abs(tape.end.tau - tape.tau[0])
    t = last * (jnp.arange(SPAN_PLACES) + 0.5) / SPAN_PLACES
    row = jnp.clip(jnp.searchsorted(times, t, side="right") - 1, 0, count - 2)
    h = jnp.abs(tape.h[row])
    return row, jnp.clip((t - times[row]) / jnp.where(h > 0, h, 1.0), 0.0, 1.0)


class Dips(NamedTuple):
    """Two arrays of shape (rows, guards)."""

    hidden: Array  # the guard has the opposite sign inside the row
    clear: Array  # it keeps its sign at so many places that its own polynomial is not used


def dips(sol: Solution, left: Edge, right: Edge, unsure: Array) -> Dips:
    """What guards do inside rows, by samples in every row and over the whole span.

    `unsure` is the possible error of guards where rows start. Systems with many algebraic states
    are not examined."""
    tape = sol.tape
    if left.value.size == 0 or sum(v[0].size for v in tape.z) > MOST_ALGEBRAIC_NUMBERS:
        none = jnp.zeros(left.value.shape, bool)
        return Dips(none, none)
    count = left.value.shape[0]
    every = jnp.arange(count)
    spread = _spread(sol)
    rows = jnp.concatenate([jnp.repeat(every, len(ROW_PLACES)), spread[0]])
    parts = jnp.concatenate([jnp.tile(jnp.asarray(ROW_PLACES), count), spread[1]])
    values, slopes, off = _guards(sol, rows, parts)
    most = lambda v, at=rows: jax.ops.segment_max(v.astype(jnp.int32), at, num_segments=count) > 0
    first, last = _side(left, unsure[:-1]), _side(right, unsure[1:])
    allowed = SURE_TOLERANCES * jnp.maximum(unsure[:-1], unsure[1:])[rows] + off
    sign = jnp.where(jnp.abs(values) > allowed, jnp.sign(values), 0.0)
    known = (first * last != 0)[rows]
    other = known & (sign * first[rows] < 0) & (sign * last[rows] < 0)
    # A guard that changes sign once must not change it back in between.
    place = parts[:, None]
    late = jnp.where(sign == first[rows], place, -1.0)
    early = jnp.where(sign == last[rows], place, 2.0)
    late = jax.ops.segment_max(late, rows, num_segments=count)
    early = jax.ops.segment_min(early, rows, num_segments=count)
    back = (first * last < 0) & (early < late)
    near, far = (jax.tree.map(lambda v: v[rows], edge) for edge in (left, right))
    wrong = jnp.abs(values - value_at(near, far, place))  # error of the guard's own polynomial
    poor = wrong > 0.01 * jnp.abs(values) + allowed
    inner = slice(-SPAN_PLACES, None)
    low = _lows(spread, values[inner], slopes[inner]) & (poor[inner][:-1] | poor[inner][1:])
    unknown = known & jnp.isnan(values)
    hidden = most(other | unknown) | back | most(low & known[inner][:-1], spread[0][:-1])
    many = (
        jax.ops.segment_sum(jnp.ones(SPAN_PLACES), spread[0], num_segments=count)
        >= PLACES_FOR_A_VERDICT
    )
    same = (first * last > 0) & ~hidden
    return Dips(hidden, same & many[:, None] & most(poor))


def _lows(spread: tuple[Vector, Vector], values: Array, slopes: Array) -> Array:
    """Whether a guard comes to zero between two places, by the cubic through them.

    A small share of the depth of the dip is allowed for the error of the cubic."""
    rows, parts = spread
    gap = (parts[1:] - parts[:-1])[:, None]
    side = jnp.sign(values[:-1])
    curve = cubic(
        side * values[:-1], side * values[1:], side * gap * slopes[:-1], side * gap * slopes[1:]
    )
    turn = lowest(curve)
    low = value_of(curve, turn)
    high = jnp.maximum(side * values[:-1], side * values[1:])
    inside = (rows[1:] == rows[:-1])[:, None] & (values[:-1] * values[1:] > 0)
    return inside & (turn < 1) & (low < CUBIC_ERROR * (high - low))


def _side(edge: Edge, unsure: Array) -> Array:
    """The sign of a guard at the end of a row; if it is zero there, its sign just inside."""
    clear = jnp.abs(edge.value) > SURE_TOLERANCES * unsure
    return jnp.where(clear, jnp.sign(edge.value), jnp.sign(edge.slope))


def _guards(sol: Solution, rows: Vector, parts: Vector) -> tuple[Array, Array, Array]:
    """The guards at places in rows, their slopes, and the error due to the states there."""
    model, tape = sol.spec.model, sol.tape
    par = tape.par()
    ends = _ends(model, tape, par)
    algebraic = model.constraint is not None

    def guards(k: Whole, u: Scalar, cubic: bool) -> Vector:
        at, then = tape.state(k), tape.state(k + 1)
        moving = ends.at(k, u, cubic)
        z = tuple((a + u * (b - a)).astype(a.dtype) for a, b in zip(at.z, then.z, strict=True))
        there = model.with_moving(at, moving, tau=at.tau + u * tape.h[k], z=z)
        there = attached(model, there, par, 2) if algebraic else there
        return flat_guards(model, model.guard_values(there, par))

    def place(k: Whole, u: Scalar) -> tuple[Vector, Vector, Vector]:
        one = jnp.ones_like(u)
        value, slope = jax.jvp(lambda u: guards(k, u, algebraic), (u,), (one,))
        if algebraic:
            return value, slope, LINEAR_ERROR * (jnp.abs(value) + _scale(tape, model, par, k))
        return value, slope, jnp.abs(value - guards(k, u, True))

    return jax.vmap(place)(rows, parts)


def _scale(tape: Tape, model: Model, par: Par, k: Whole) -> Vector:
    """How large the guards are at the ends of a row."""
    ends = [flat_guards(model, model.guard_values(tape.state(j), par)) for j in (k, k + 1)]
    return jnp.maximum(*map(jnp.abs, ends))
