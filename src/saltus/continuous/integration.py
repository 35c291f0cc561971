"""Linear differential equations over one row, with an error control of their own.

`u` runs over the row from 0 to 1. The unknown is a tuple of leaves; its tolerance is relative to
its own size, since tangents and adjoints are proportional to their initial values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..base.leaves import Leaves, combine
from ..base.types import Flag, Scalar
from ..methods.explicit_methods import tsit5

MAX_STEPS_PER_ROW = 10_000
MIN_STEP = 1e-9  # relative to the length of the row
ROUNDING_SHARE = 0.3  # if a shorter step leaves more than this share of an error, it is rounding
LEAF_FLOOR = 1e-3  # relative to the largest entry of a leaf: added to the scale of each entry
STATE_FLOOR = 1e-5  # the same, relative to the largest entry of all
MIN_RTOL_ROUNDINGS = 16  # in units of rounding: the smallest relative tolerance
ABSOLUTE_FLOOR = 1e-6  # of states: smaller ones need no relative accuracy


class Advance(NamedTuple):
    """A step that was tried: where it ends, and its error in units of the tolerance."""

    y: Leaves
    error: Scalar


Step = Callable[[Any, Any, Leaves], Advance]  # (u, h, y)


def over_row(step: Step, y: Leaves, order: int) -> Leaves:
    """From `u = 0` to `u = 1`; NaN where no step meets the tolerance.

    An error that shorter steps do not reduce is rounding: the step is then accepted.
    """

    def going(state: tuple) -> Flag:
        k, u, h, *_ = state
        return (u < 1) & (k < MAX_STEPS_PER_ROW) & (h > MIN_STEP)

    def body(state: tuple) -> tuple:
        k, u, h, before, stuck, y = state
        last = u + h >= 1 - 1e-12
        h = jnp.where(last, 1 - u, h)
        tried = step(u, h, y)
        known = jnp.isfinite(tried.error)
        stuck = jnp.where(known & (tried.error > ROUNDING_SHARE * before), stuck + 1, 0)
        ok = known & ((tried.error <= 1) | (stuck >= 3))
        size = jnp.where(known, jnp.maximum(tried.error, 1e-10), 1e10)
        factor = jnp.clip(0.9 * size ** (-1.0 / order), 0.1, jnp.where(stuck > 0, 1.0, 5.0))
        factor = jnp.where(ok, jnp.maximum(factor, 0.9), jnp.minimum(factor, 0.5))
        y = tuple(jnp.where(ok, a.astype(b.dtype), b) for a, b in zip(tried.y, y, strict=True))
        u = jnp.where(ok, jnp.where(last, 1.0, u + h), u)
        before = jnp.where(ok, jnp.inf, tried.error)
        return k + 1, u, h * factor, before, jnp.where(ok, 0, stuck), y

    zero = jnp.zeros((), jnp.int32)
    start = (zero, jnp.zeros(()), jnp.ones(()), jnp.full((), jnp.inf), zero, y)
    _, u, *_, y = jax.lax.while_loop(going, body, start)
    bad = jnp.where(u < 1, jnp.nan, 0.0)
    return tuple(v + bad.astype(v.dtype) for v in y)


def norm(error: Leaves, old: Leaves, new: Leaves, rtol: float, floor: Leaves = ()) -> Scalar:
    """The largest error in units of `rtol`, relative to entries, leaves and the whole.

    Entries below `floor` (one value per leaf) need no relative accuracy: tangents that start at
    zero grow with a power of time, and no first step is short enough for a relative tolerance.
    """
    tops = [
        jnp.maximum(jnp.max(jnp.abs(a), initial=0.0), jnp.max(jnp.abs(b), initial=0.0))
        for a, b in zip(old, new, strict=True)
    ]
    most = jnp.max(jnp.stack(tops)) if tops else jnp.zeros(())
    least = floor or (1e-200,) * len(tops)
    worst = jnp.zeros(())
    for e, a, b, top, low in zip(error, old, new, tops, least, strict=True):
        size = jnp.maximum(jnp.abs(a), jnp.abs(b)) + LEAF_FLOOR * top + STATE_FLOOR * most + low
        least_rtol = MIN_RTOL_ROUNDINGS * float(jnp.finfo(a.dtype).eps)
        bound = jnp.maximum(rtol, least_rtol) * size
        worst = jnp.maximum(worst, jnp.max(jnp.abs(e) / bound, initial=0.0))
    return worst


def nothing(theta: Leaves, dtheta: Leaves, count: int) -> Leaves:
    """The size below which tangents count as zero: the size at which a change of the moving
    parameters by their own size changes states of size 1 by `ABSOLUTE_FLOOR`."""
    step, size = jnp.zeros(()), jnp.zeros(())
    for v, d in zip(theta, dtheta, strict=False):
        moves = jnp.abs(d) > 0
        step = jnp.maximum(step, jnp.max(jnp.abs(d), initial=0.0))
        size = jnp.maximum(size, jnp.max(jnp.where(moves, jnp.abs(v), 0.0), initial=0.0))
    floor = ABSOLUTE_FLOOR * step / jnp.where(size > 0, size, 1.0) + 1e-200
    return (floor,) * count


def explicit_step(slope: Callable[[Any, Leaves], Leaves], judge: Callable) -> Step:
    """A step of Tsitouras' method; `judge(error, old, new)` measures its error."""
    tab = tsit5()

    def step(u: Scalar, h: Scalar, y: Leaves) -> Advance:
        ks = [slope(u, y)]
        for j in range(1, tab.stages):
            ks.append(slope(u + tab.c[j] * h, combine(y, h, tab.a[j], ks)))
        new = combine(y, h, tab.b[:-1], ks[:-1])
        zero = tuple(jnp.zeros_like(v) for v in y)
        return Advance(new, judge(combine(zero, h, tab.error[0], ks), y, new))

    return step
