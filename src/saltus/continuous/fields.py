"""A row between jumps as a motion along a vector field, at every level of derivatives.

The state of a row is `s = (tau, w)`, and its velocity is `G = (1, f, 0)`: discrete floats and
pending times are constant. Level r + 1 adds a tangent, by the variational equations (M81):
`G_{r+1}(s, ds) = (G_r, J G_r (ds, dtheta))`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ..base.leaves import Leaves
from ..base.types import Scalar
from ..methods.runge_kutta import ExplicitStepper
from ..model.algebraic_states import determined
from ..model.model import At
from ..simulate.record import Spec
from ..sweep.rows import Mask, RowData, halves, lift, par_of, save_time


def explicit(spec: Spec) -> bool:
    """Whether the equations are integrated by an explicit method, because the states were."""
    return isinstance(spec.stepper, ExplicitStepper)


def _base(spec: Spec, row: RowData, degree: int) -> Callable:
    model = spec.model

    def velocity(s: Leaves, theta: Leaves) -> Leaves:
        par = par_of(spec, theta, row)
        at = determined(model, At(s[0], s[1:], row.i, row.z), par, degree)
        zeros = tuple(jnp.zeros_like(v) for v in s[1 + model.moving :])
        return (jnp.ones_like(s[0]), *model.flow(at, par), *zeros)

    return velocity


def _lifted(fn: Callable, spec: Spec, masks: tuple[Mask, ...]) -> Callable:
    """`fn` with tangents added: one level for each mask but the last."""
    n_s, n_theta = 1 + spec.model.n_w, len(masks[0])
    for mask in masks[:-1]:
        fn = lift(fn, n_s, n_theta, mask)
        n_s, n_theta = 2 * n_s, n_theta + sum(mask)
    return fn


def field(spec: Spec, masks: tuple[Mask, ...], row: RowData) -> Callable:
    """`G(s, theta)`: the velocity of the state at this level."""
    return _lifted(_base(spec, row, len(masks)), spec, masks)


def inside(spec: Spec, masks: tuple[Mask, ...], row: RowData, length: Scalar) -> Callable:
    """`(s, theta, u) -> s` after the part `u` of a row of this length: the dense solution."""
    model, degree = spec.model, len(masks)

    def dense(s: Leaves, theta: Leaves, u: Scalar) -> Leaves:
        def part(s: Leaves, theta: Leaves) -> Leaves:
            par = par_of(spec, theta, row)
            at = At(s[0], s[1:], row.i, row.z)
            end = spec.stepper.reach(model, par, at, u * length, row.aux, row.h, degree)
            return (s[0] + u * length, *end.w)

        return _lifted(part, spec, masks)(s, theta)

    return dense


def reads(spec: Spec, masks: tuple[Mask, ...]) -> bool:
    """Whether there are save times among the parameters."""
    return len(masks[0]) > spec.model.n_theta


def length_of(
    spec: Spec, masks: tuple[Mask, ...], row: RowData, s: Leaves, theta: Leaves
) -> Scalar:
    """The length of a row: up to a save time, or as recorded."""
    if not reads(spec, masks):
        return row.h
    left = jax.lax.stop_gradient(save_time(spec, theta, row) - s[0])
    return jnp.where(row.is_read, left, row.h)


def late_by_guard(spec: Spec, k: int, row: RowData, degree: int) -> Callable:
    """`delta(s, theta, ds, dtheta)`: the change of the time when guard `k` is zero (M83)."""
    model = spec.model
    move = _base(spec, row, degree)

    def value(s: Leaves, theta: Leaves) -> Scalar:
        par = par_of(spec, theta, row)
        at = determined(model, At(s[0], s[1:], row.i, row.z), par, degree)
        return model.one_guard(model.actions[k], at, par, row.member)

    def delta(s: Leaves, theta: Leaves, ds: Leaves, dtheta: Leaves) -> Scalar:
        change = jax.jvp(value, (s, theta), (ds, dtheta))[1]
        slope = jax.jvp(lambda y: value(y, theta), (s,), (move(s, theta),))[1]
        return -change / slope

    return delta


def late_by_time(spec: Spec, k: int, row: RowData) -> Callable:
    """The same if the time of the action, or a save time, is known in advance."""
    model = spec.model

    def left(s: Leaves, theta: Leaves) -> Scalar:
        par = par_of(spec, theta, row)
        due = model.time_of(model.actions[k], At(s[0], s[1:], row.i, row.z), par)
        if len(theta) > model.n_theta and k == len(model.actions) - 1:
            saves = (row.action > k) | row.is_read
            due = jnp.where(saves, save_time(spec, theta, row), due)
        return due - s[0]

    return lambda s, theta, ds, dtheta: jax.jvp(left, (s, theta), (ds, dtheta))[1]


def arrival(spec: Spec, masks: tuple[Mask, ...], row: RowData, delta: Callable) -> Callable:
    """`(s, theta, ds, dtheta) -> ds` at an event whose time changes by `delta` (M83).

    The tangent of the state at a fixed time since the last jump becomes that of the state at the
    event: `ds + G delta`. One level up, this map itself is differentiated, along tangents that are
    moved to the event in the same way.
    """
    n_s, n_theta = 1 + spec.model.n_w, len(masks[0])
    base = (n_s, n_theta)
    here: Callable = lambda s, theta: s
    for level, mask in enumerate(masks):
        moves = field(spec, masks[: level + 1], row)
        there = _arriving(here, moves, delta, base)
        if level == len(masks) - 1:
            return there
        here = _carrying(here, there, n_s, n_theta, mask)
        n_s, n_theta = 2 * n_s, n_theta + sum(mask)
    raise AssertionError("a sweep has at least one mask")


def _arriving(here: Callable, moves: Callable, delta: Callable, base: tuple[int, int]) -> Callable:
    n_s, n_theta = base

    def tangent(s: Leaves, theta: Leaves, ds: Leaves, dtheta: Leaves) -> Leaves:
        late = delta(s[:n_s], theta[:n_theta], ds[:n_s], dtheta[:n_theta])
        speed = moves(s, theta)
        moved = tuple((d + late * v).astype(d.dtype) for d, v in zip(ds, speed, strict=True))
        return jax.jvp(here, (s, theta), (moved, dtheta))[1]

    return tangent


def _carrying(here: Callable, there: Callable, n_s: int, n_theta: int, mask: Mask) -> Callable:
    """The state at the event, one level up."""

    def both(s: Leaves, theta: Leaves) -> Leaves:
        first = s[:n_s]
        inner, dtheta = halves(theta, n_theta, mask)
        return (*here(first, inner), *there(first, inner, s[n_s:], dtheta))

    return both
