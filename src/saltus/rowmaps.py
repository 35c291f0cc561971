"""A row as a smooth function of where it starts and of the parameters, and its derivatives.

Level 1 is the row itself, `F1(s, theta)`. Level r + 1 carries a tangent along (M11):
`F_{r+1}((s, ds), (theta, dtheta)) = (F_r(s, theta), J F_r(s, theta) (ds, dtheta))`. Tangent and
adjoint sweeps of level 1 give first derivatives, those of level 2 second derivatives, and so on.
Which parameters carry a tangent at each level is a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .consistent import determined
from .jump import Firing, jump
from .leaves import Leaves
from .loop import Spec
from .model import At, Par
from .record import action_of, rooted_of

Mask = tuple[bool, ...]


class RowData(NamedTuple):
    """What was recorded about one row and is not differentiated."""

    h: Any
    kind: Any
    member: Any
    i: Leaves
    z: Leaves
    aux: Leaves
    iota: Leaves
    backward: Any


def flow_row(
    spec: Spec, degree: int, probing: bool, s: Leaves, theta: Leaves, row: RowData
) -> Leaves:
    """A step of frozen length (M3); with the probe, its local error added (M47)."""
    par = Par(theta, row.iota, row.backward)
    at = At(s[0], s[1:], row.i, row.z)
    end = spec.stepper.row(spec.model, par, at, row.h, row.aux, degree)
    w = end.w
    if probing:
        w = tuple(
            (v + theta[-1] * e).astype(v.dtype)
            for v, e in zip(w, _local_error(spec, degree, at, par, row, w), strict=True)
        )
    return (s[0] + row.h, *w)


def _local_error(spec: Spec, degree: int, at: At, par: Par, row: RowData, whole: Leaves) -> Leaves:
    """What two half steps would have changed, extrapolated: the local error of the step (M47)."""
    model, stepper, half = spec.model, spec.stepper, 0.5 * row.h
    mid = stepper.reach(model, par, at, half, row.aux, row.h, degree)
    mid = determined(model, mid, par, degree)
    rest = stepper.halved(model, at, row.aux)
    end = stepper.reach(model, par, mid, half, rest, half, degree)
    factor = 2.0**stepper.order / (2.0**stepper.order - 1)
    return tuple(factor * (a - b) for a, b in zip(end.w, whole, strict=True))


def jump_row(spec: Spec, k: int, degree: int, s: Leaves, theta: Leaves, row: RowData) -> Leaves:
    """A jump of action `k` (M5, M6)."""
    par = Par(theta, row.iota, row.backward)
    firing = Firing(row.member, rooted_of(row.kind))
    at = At(s[0], s[1:], row.i, row.z)
    after = jump(spec.model, spec.model.actions[k], at, par, firing, degree)
    return tuple(
        jnp.asarray(new).astype(old.dtype)
        for new, old in zip((after.tau, *after.w), s, strict=True)
    )


def lift(fn: Callable, n_s: int, n_theta: int, mask: Mask) -> Callable:
    """One level up: the map with a tangent carried along."""

    def lifted(s: Leaves, theta: Leaves) -> Leaves:
        tangent = spread(theta[n_theta:], theta[:n_theta], mask)
        out, dout = jax.jvp(fn, (s[:n_s], theta[:n_theta]), (s[n_s:], tangent))
        return (*out, *dout)

    return lifted


def spread(tangents: Sequence[Any], primals: Sequence[Any], mask: Mask) -> Leaves:
    """Tangents of the masked leaves, zeros for the others."""
    it = iter(tangents)
    return tuple(
        next(it) if used else jnp.zeros_like(v) for v, used in zip(primals, mask, strict=True)
    )


def branches(spec: Spec, masks: tuple[Mask, ...], row: RowData) -> list[Callable]:
    """The row maps at level `len(masks)`, one for flow rows and one for each action.

    The last mask says which parameters are differentiated by the sweep; it does not lift.
    """
    degree = len(masks)
    model = spec.model
    probing = any(mask[model.n_theta - 1] for mask in masks)
    maps: list[Callable] = [lambda s, theta: flow_row(spec, degree, probing, s, theta, row)]
    for k in range(len(model.actions)):
        maps.append(lambda s, theta, k=k: jump_row(spec, k, degree, s, theta, row))
    n_s, n_theta = 1 + model.n_w, model.n_theta
    for mask in masks[:-1]:
        maps = [lift(fn, n_s, n_theta, mask) for fn in maps]
        n_s, n_theta = 2 * n_s, n_theta + sum(mask)
    return maps


def _choose(row: RowData, cases: list[Callable], *operands: Any) -> Any:
    return jax.lax.switch(action_of(row.kind) + 1, cases, *operands)


def tangent(
    spec: Spec,
    masks: tuple[Mask, ...],
    row: RowData,
    s: Leaves,
    theta: Leaves,
    ds: Leaves,
    dtheta: Leaves,
) -> Leaves:
    """The Jacobian of the row times a tangent (M9)."""

    def case(fn: Callable) -> Callable:
        def go(s: Leaves, theta: Leaves, ds: Leaves, dtheta: Leaves) -> Leaves:
            full = spread(dtheta, theta, masks[-1])
            return jax.jvp(fn, (s, theta), (ds, full))[1]

        return go

    return _choose(row, [case(fn) for fn in branches(spec, masks, row)], s, theta, ds, dtheta)


def cotangent(
    spec: Spec, masks: tuple[Mask, ...], row: RowData, s: Leaves, theta: Leaves, lam: Leaves
) -> tuple[Leaves, Leaves]:
    """The transposed Jacobian of the row times a cotangent (M10): (for s, for masked theta)."""
    mask = masks[-1]

    def case(fn: Callable) -> Callable:
        def go(s: Leaves, theta: Leaves, lam: Leaves) -> tuple[Leaves, Leaves]:
            used = tuple(v for v, u in zip(theta, mask, strict=True) if u)

            def of_used(s: Leaves, used: Leaves) -> Leaves:
                it = iter(used)
                full = tuple(next(it) if u else v for v, u in zip(theta, mask, strict=True))
                return fn(s, full)

            return jax.vjp(of_used, s, used)[1](lam)

        return go

    return _choose(row, [case(fn) for fn in branches(spec, masks, row)], s, theta, lam)
