"""A row as a smooth function of its start and of the parameters, and its derivatives.

Level 1 is the row itself, `F1(s, theta)`. Level r + 1 carries a tangent along (M11):
`F_{r+1}((s, ds), (theta, dtheta)) = (F_r(s, theta), J F_r(s, theta) (ds, dtheta))`. Tangent and
adjoint sweeps of level 1 give first derivatives, those of level 2 second derivatives, and so on.
A mask for each level says which parameters have a tangent there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from ..base.leaves import Leaves
from ..base.types import Flag, Scalar, Whole
from ..model.algebraic_states import determined
from ..model.jumps import Firing, approach, reset
from ..model.model import At, Par
from ..simulate.record import GRAZES, READ, Spec, action_of

if TYPE_CHECKING:
    pass

Mask = tuple[bool, ...]


class RowData(NamedTuple):
    """What was recorded about one row and is not differentiated."""

    h: Scalar
    kind: Whole
    member: Whole
    i: Leaves
    z: Leaves
    aux: Leaves
    iota: Leaves
    backward: Flag

    @property
    def is_read(self) -> Flag:
        """Whether the row is an excursion to a save time."""
        return self.kind == READ

    @property
    def action(self) -> Whole:
        """The action of an approach or a reset."""
        return action_of(self.kind)


def par_of(spec: Spec, theta: Leaves, row: RowData) -> Par:
    """The parameters of a row: the model's come first, save times may follow."""
    return Par(theta[: spec.model.n_theta], row.iota, row.backward)


def flow_row(
    spec: Spec, degree: int, probing: bool, s: Leaves, theta: Leaves, row: RowData
) -> Leaves:
    """A step of constant length (M3), or up to a save time (M15).

    If `probing`, its local error times the probe is added (M47).
    """
    par = par_of(spec, theta, row)
    at = At(s[0], s[1:], row.i, row.z)
    if len(theta) > spec.model.n_theta:
        left = save_time(spec, theta, row) - s[0]
        row = row._replace(h=jnp.where(row.is_read, left, row.h))
    end = spec.stepper.row(spec.model, par, at, row.h, row.aux, degree)
    w = end.w
    if probing:
        w = tuple(
            (v + spec.model.probe_of(par) * e).astype(v.dtype)
            for v, e in zip(w, _local_error(spec, degree, at, par, row, w), strict=True)
        )
    return (s[0] + row.h, *w)


def save_time(spec: Spec, theta: Leaves, row: RowData) -> Scalar:
    """The save time of an excursion, as an offset from t0; `theta` ends with all save times."""
    ts = theta[spec.model.n_theta]
    inside = jnp.clip(row.member, 0, ts.shape[0] - 1)
    return jax.lax.dynamic_index_in_dim(ts, inside, keepdims=False) - par_of(spec, theta, row).t0


def _local_error(spec: Spec, degree: int, at: At, par: Par, row: RowData, whole: Leaves) -> Leaves:
    """The local error of a step: its extrapolated difference from two half steps (M47)."""
    model, stepper, half = spec.model, spec.stepper, 0.5 * row.h
    mid = stepper.reach(model, par, at, half, row.aux, row.h, degree)
    mid = determined(model, mid, par, degree)
    rest = stepper.halved(model, at, row.aux)
    end = stepper.reach(model, par, mid, half, rest, half, degree)
    factor = 2.0**stepper.order / (2.0**stepper.order - 1)
    return tuple(factor * (a - b) for a, b in zip(end.w, whole, strict=True))


def approach_row(spec: Spec, k: int, degree: int, s: Leaves, theta: Leaves, row: RowData) -> Leaves:
    """The last bit of flow before action `k` (M5); short excursions are approaches of the stop."""
    model = spec.model
    par = par_of(spec, theta, row)
    at = At(s[0], s[1:], row.i, row.z)
    due = None
    if len(theta) > model.n_theta and k == len(model.actions) - 1:
        end = model.time_of(model.actions[k], at, par)
        due = jnp.where(row.action > k, save_time(spec, theta, row), end)
    firing = Firing(row.member, due, jnp.abs(row.h) > 0, jnp.abs(row.h) > GRAZES)
    there = approach(model, model.actions[k], at, par, firing, degree)
    return _like(s, there)


def reset_row(spec: Spec, k: int, degree: int, s: Leaves, theta: Leaves, row: RowData) -> Leaves:
    """The reset of action `k` (M6)."""
    model = spec.model
    par = par_of(spec, theta, row)
    at = At(s[0], s[1:], row.i, row.z)
    return _like(s, reset(model, model.actions[k], at, par, row.member, degree))


def _like(old: Leaves, at: At) -> Leaves:
    return tuple(
        jnp.asarray(new).astype(v.dtype) for new, v in zip((at.tau, *at.w), old, strict=True)
    )


def halves(theta: Leaves, n_theta: int, mask: Mask) -> tuple[Leaves, Leaves]:
    """The parameters of a level as those of the level below, and their tangent."""
    inner = theta[:n_theta]
    return inner, spread(theta[n_theta:], inner, mask)


def lift(fn: Callable, n_s: int, n_theta: int, mask: Mask) -> Callable:
    """The map one level up: with a tangent carried along."""

    def lifted(s: Leaves, theta: Leaves) -> Leaves:
        inner, tangent = halves(theta, n_theta, mask)
        out, dout = jax.jvp(fn, (s[:n_s], inner), (s[n_s:], tangent))
        return (*out, *dout)

    return lifted


def spread(tangents: Sequence[Any], primals: Sequence[Any], mask: Mask) -> Leaves:
    """Tangents of the masked leaves, zeros for the others."""
    it = iter(tangents)
    return tuple(
        next(it) if used else jnp.zeros_like(v) for v, used in zip(primals, mask, strict=True)
    )


def branches(spec: Spec, masks: tuple[Mask, ...], row: RowData) -> list[Callable]:
    """The row maps at level `len(masks)` in the order of kinds; the stop has no reset.

    The last mask says which parameters the sweep differentiates by; it does not add a level.
    """
    degree = len(masks)
    model = spec.model
    probing = any(mask[model.n_theta - 1] for mask in masks)
    maps: list[Callable] = [lambda s, theta: flow_row(spec, degree, probing, s, theta, row)]
    for k in range(len(model.actions)):
        maps.append(lambda s, theta, k=k: approach_row(spec, k, degree, s, theta, row))
        maps.append(lambda s, theta, k=k: reset_row(spec, k, degree, s, theta, row))
    maps.pop()
    n_s, n_theta = 1 + model.n_w, len(masks[0])
    for mask in masks[:-1]:
        maps = [lift(fn, n_s, n_theta, mask) for fn in maps]
        n_s, n_theta = 2 * n_s, n_theta + sum(mask)
    return maps


def _choose(row: RowData, cases: list[Callable], *operands: Any) -> Any:
    """The case for the kind of a row; the last is the approach of the stop or a short excursion."""
    return jax.lax.switch(jnp.clip(row.kind, 0, len(cases) - 1), cases, *operands)


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
    if spec.rules is not None:
        return spec.rules.tangent(spec, masks, row, s, theta, ds, dtheta)

    def case(fn: Callable) -> Callable:
        def go(s: Leaves, theta: Leaves, ds: Leaves, dtheta: Leaves) -> Leaves:
            full = spread(dtheta, theta, masks[-1])
            return jax.jvp(fn, (s, theta), (ds, full))[1]

        return go

    return _choose(row, [case(fn) for fn in branches(spec, masks, row)], s, theta, ds, dtheta)


def carried(spec: Spec, state: Leaves) -> Leaves:
    """What an adjoint sweep carries from the end, besides the adjoints."""
    return () if spec.rules is None else spec.rules.carried(spec, state)


def of_masked(fn: Callable, theta: Leaves, mask: Mask) -> Callable:
    """`fn(s, theta)` as a function of `s` and of the masked parameters alone."""

    def of_used(s: Leaves, used: Leaves) -> Leaves:
        it = iter(used)
        return fn(s, tuple(next(it) if u else v for v, u in zip(theta, mask, strict=True)))

    return of_used


def masked(theta: Sequence[Any], mask: Mask) -> Leaves:
    return tuple(v for v, used in zip(theta, mask, strict=True) if used)


def pulled(
    fn: Callable, mask: Mask, s: Leaves, theta: Leaves, lam: Leaves
) -> tuple[Leaves, Leaves]:
    """The transposed Jacobian of `fn(s, theta)` times a cotangent: for s, for masked theta."""
    return jax.vjp(of_masked(fn, theta, mask), s, masked(theta, mask))[1](lam)


def cotangent(
    spec: Spec, masks: tuple[Mask, ...], row: RowData, s: Leaves, theta: Leaves, lam: Leaves,
    held: Leaves = (),
) -> tuple[Leaves, Leaves, Leaves]:  # fmt: skip
    """The transposed Jacobian of the row times a cotangent (M10).

    Returned for s and for masked theta, with what is carried further (`carried`)."""
    if spec.rules is not None:
        return spec.rules.cotangent(spec, masks, row, s, theta, lam, held)
    mask = masks[-1]

    def case(fn: Callable) -> Callable:
        return lambda s, theta, lam: pulled(fn, mask, s, theta, lam)

    cases = [case(fn) for fn in branches(spec, masks, row)]
    return (*_choose(row, cases, s, theta, lam), held)
