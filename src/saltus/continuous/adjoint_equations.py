"""Adjoint equations over one row, backward in time, in three variants (M82)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..base.leaves import Leaves
from ..base.types import Scalar, Vector
from ..simulate.record import Spec
from ..sweep.rows import Mask, RowData, masked, pulled, spread
from .fields import arrival, explicit, field, inside, late_by_time, length_of, reads
from .integration import ABSOLUTE_FLOOR, Advance, explicit_step, norm, over_row
from .linear_radau import collocation_step

if TYPE_CHECKING:
    from .rules import Continuous

# Lobatto's points and weights on (0, 1): four points, order 6.
LOBATTO_POINTS = 0.5 * (1 + np.array([-1.0, -(0.2**0.5), 0.2**0.5, 1.0]))
LOBATTO_WEIGHTS = np.array([1.0, 5.0, 5.0, 1.0]) / 12

Pull = Callable[[Leaves, Leaves], tuple[Leaves, Leaves]]  # (state, adjoint) -> their slopes


def flow_adjoint(
    way: Continuous, spec: Spec, masks: tuple[Mask, ...], row: RowData, s: Leaves, theta: Leaves,
    lam: Leaves, end: Leaves,
) -> tuple[Leaves, Leaves, Leaves]:  # fmt: skip
    """The adjoints at the start of a row, what the row adds to the gradient, and the state there.

    `end` is the state at the end of the row if states are integrated backward, else empty.
    """
    length = length_of(spec, masks, row, s, theta)
    dense, moves = inside(spec, masks, row, length), field(spec, masks, row)
    gradient = tuple(jnp.zeros_like(v) for v in masked(theta, masks[-1]))
    if reads(spec, masks):
        lam, gradient = _at_save_time(spec, masks, row, dense(s, theta, 1.0), theta, lam)
    pull = _pull(moves, masks[-1], theta, length)
    if end:
        back = lambda here: tuple(-length * v for v in moves(here, theta))
        read = row.is_read & reads(spec, masks)
        last = dense(s, theta, 1.0) if reads(spec, masks) else end
        last = tuple(jnp.where(read, a, b) for a, b in zip(last, end, strict=True))
        lam, gradient, begun = _together(
            _judge(way.rtol, len(lam), masks[-1], theta, lam),
            way.rtol,
            pull,
            back,
            last,
            lam,
            gradient,
        )
        held = tuple(jnp.where(read, a, b) for a, b in zip(end, begun, strict=True))
        return lam, gradient, held
    run = _RUNS.get(way.variant, _interpolating) if explicit(spec) else _stiff
    judge = _judge(way.rtol, len(lam), masks[-1], theta, lam)
    lam, gradient = run(judge, pull, lambda u: dense(s, theta, 1 - u), lam, gradient)
    return lam, gradient, end


def _judge(rtol: float, n: int, mask: Mask, theta: Leaves, lam: Leaves) -> Callable:
    """A function that measures the error of adjoints (the first `n` leaves) and of a gradient.

    A gradient counts as zero if changing the parameters by their own size changes the loss less
    than changing the states by `ABSOLUTE_FLOOR`."""
    used = masked(theta, mask)
    most = jnp.max(jnp.stack([jnp.max(jnp.abs(v), initial=0.0) for v in lam]))
    sizes = [jnp.max(jnp.abs(v), initial=0.0) for v in used]
    floor = tuple(ABSOLUTE_FLOOR * most / jnp.where(v > 0, v, 1.0) + 1e-200 for v in sizes)

    def judge(error: Leaves, old: Leaves, new: Leaves) -> Scalar:
        adjoints = norm(error[:n], old[:n], new[:n], rtol)
        return jnp.maximum(adjoints, norm(error[n:], old[n:], new[n:], rtol, floor))

    return judge


def _pull(moves: Callable, mask: Mask, theta: Leaves, length: Scalar) -> Pull:
    """Slopes of adjoints and gradient, backward along the row: `G_s^T lam, G_theta^T lam`."""

    def pull(here: Leaves, lam: Leaves) -> tuple[Leaves, Leaves]:
        scaled = tuple((length * v).astype(v.dtype) for v in lam)
        return pulled(moves, mask, here, theta, scaled)

    return pull


def _at_save_time(
    spec: Spec, masks: tuple[Mask, ...], row: RowData, end: Leaves, theta: Leaves, lam: Leaves
) -> tuple[Leaves, Leaves]:
    """The adjoints at the end of a row that ends at a save time, which may depend on p (M84)."""
    late = late_by_time(spec, len(spec.model.actions) - 1, row)
    moved, gradient = transposed(arrival(spec, masks, row, late), masks[-1], end, theta, lam)
    read = row.is_read
    return (
        tuple(jnp.where(read, a, b) for a, b in zip(moved, lam, strict=True)),
        tuple(jnp.where(read, v, jnp.zeros_like(v)) for v in gradient),
    )


def transposed(
    there: Callable, mask: Mask, s: Leaves, theta: Leaves, lam: Leaves
) -> tuple[Leaves, Leaves]:
    """The transpose of a transition formula (M84)."""
    used = tuple(jnp.zeros_like(v) for v in masked(theta, mask))
    zero = tuple(jnp.zeros_like(v) for v in s)
    return jax.vjp(lambda ds, d: there(s, theta, ds, spread(d, theta, mask)), zero, used)[1](lam)


def _interpolating(
    judge: Callable, pull: Pull, at: Callable, lam: Leaves, gradient: Leaves
) -> tuple[Leaves, Leaves]:
    """Adjoints and gradient integrated together, with states from the dense solution."""
    n = len(lam)

    def slope(u: Scalar, y: Leaves) -> Leaves:
        change, gain = pull(at(u), y[:n])
        return (*change, *gain)

    y = over_row(explicit_step(slope, judge), (*lam, *gradient), 5)
    return y[:n], y[n:]


def _quadrature(
    judge: Callable, pull: Pull, at: Callable, lam: Leaves, gradient: Leaves
) -> tuple[Leaves, Leaves]:
    """Adjoints integrated alone; the gradient is a quadrature over each accepted step."""
    n = len(lam)
    zeros = tuple(jnp.zeros_like(v) for v in gradient)
    alone = lambda error, old, new: judge((*error, *zeros), (*old, *zeros), (*new, *zeros))
    inner = explicit_step(lambda u, y: pull(at(u), y)[0], alone)

    def step(u: Scalar, h: Scalar, y: Leaves) -> Advance:
        tried = inner(u, h, y[:n])
        values = [y[:n], *(inner(u, c * h, y[:n]).y for c in LOBATTO_POINTS[1:-1]), tried.y]
        gains = [pull(at(u + c * h), v)[1] for c, v in zip(LOBATTO_POINTS, values, strict=True)]
        total = y[n:]
        for w, gain in zip(LOBATTO_WEIGHTS, gains, strict=True):
            total = tuple(t + h * w * g for t, g in zip(total, gain, strict=True))
        return Advance((*tried.y, *total), tried.error)

    y = over_row(step, (*lam, *gradient), 5)
    return y[:n], y[n:]


_RUNS = {"interpolating": _interpolating, "quadrature": _quadrature}


def _together(
    rest: Callable,
    rtol: float,
    pull: Pull,
    back: Callable,
    end: Leaves,
    lam: Leaves,
    gradient: Leaves,
) -> tuple[Leaves, Leaves, Leaves]:
    """States, adjoints and gradient, all integrated backward."""
    n = len(lam)

    def slope(u: Scalar, y: Leaves) -> Leaves:
        change, gain = pull(y[:n], y[n : 2 * n])
        return (*back(y[:n]), *change, *gain)

    def judge(error: Leaves, old: Leaves, new: Leaves) -> Scalar:
        states = norm(error[:n], old[:n], new[:n], rtol, (jnp.asarray(ABSOLUTE_FLOOR),) * n)
        return jnp.maximum(states, rest(error[n:], old[n:], new[n:]))

    y = over_row(explicit_step(slope, judge), (*end, *lam, *gradient), 5)
    return y[n : 2 * n], y[2 * n :], y[:n]


def _stiff(
    rest: Callable, pull: Pull, at: Callable, lam: Leaves, gradient: Leaves
) -> tuple[Leaves, Leaves]:
    """For stiff equations and systems with a constraint; the gradient is summed at the stages."""
    flat, back = ravel_pytree(lam)

    def parts(u: Scalar) -> tuple[Any, Any]:
        here = at(u)
        column = lambda v: ravel_pytree(pull(here, back(v))[0])[0]
        return jax.vmap(column, out_axes=1)(jnp.eye(flat.size)), jnp.zeros_like(flat)

    def sums(u: Scalar, y: Vector) -> Leaves:
        return pull(at(u), back(y))[1]

    def judge(error: Leaves, old: Leaves, new: Leaves) -> Scalar:
        split = lambda v: (*back(v[0]), *v[1:])
        return rest(split(error), split(old), split(new))

    y, *total = over_row(collocation_step(parts, judge, sums), (flat, *gradient), 6)
    return back(y), tuple(total)
