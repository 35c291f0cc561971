"""Algebraic states: `z` as a function of time, differential states and parameters.

Equations of index 1 are solved for z as they are. An equation of index 2 does not contain z; its
time derivative along the flow does (the hidden constraint, M36).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves, frozen
from ..base.types import Flag, Matrix, Scalar, Vector
from ..linalg.dense import invert
from ..linalg.factor import (
    Jacobian,
    Vec,
    conditioning,
    dense,
    factor,
    factor_jacobian,
    jacobian,
    structure_of,
)
from ..linalg.newton import attach, newton, own_moves
from ..linalg.pattern import Pattern
from ..linalg.vectors import Layout, mean_square
from .model import At, Model, Par

MIN_PIVOT_RATIO = 1e-13  # of the smallest to the largest; below it, z is not determined
MAX_STEEPNESS = 1e5  # relative change of g_z per relative change of x; above, it is near singular


@functools.lru_cache(maxsize=512)
def layout(model: Model) -> Layout:
    """How z is packed, and how the equations for it are factored."""
    rule = model.constraint
    assert rule is not None
    if model.pattern is None:
        return Layout(rule.shapes)
    n = sum(int(np.prod(s)) for s in model.x_shapes)
    whole: Any = model.pattern.matrix.astype(np.int32)
    direct, through = whole[n:, n:], whole[n:, :n] @ whole[:n, n:]
    sizes = [int(np.prod(s)) for s in rule.rows]
    second = np.repeat([k == 2 for k in rule.index], sizes).astype(np.int32)
    pins = np.ones_like(second) if rule.pinned is not None else 1 - second
    mixed = direct.multiply(pins[:, None]) + through.multiply(second[:, None])
    return Layout(rule.shapes, structure_of(Pattern.of(mixed)))


def _jacobian(model: Model, residual: Callable[[Vec], Vec], z: Vec) -> Jacobian:
    return jacobian(residual, z, layout(model).structure)


def hidden(model: Model, at: At, par: Par) -> Leaves:
    """Residuals that determine z: `g` for index 1, `g_t + g_x f` for index 2 (M36)."""
    rule = model.constraint
    assert rule is not None
    if rule.highest == 1:
        return model.residuals(at, par)
    slope = model.flow(at, par)[: model.nx]

    def of_state(tau: Scalar, x: Leaves) -> Leaves:
        return model.residuals(model.with_x(at, x, tau=tau), par)

    values, rates = jax.jvp(of_state, (at.tau, model.x_of(at)), (jnp.ones_like(at.tau), slope))
    pins = (False,) * len(values)
    if rule.pinned is not None:
        pins = tuple(rule.pinned(model.args(at, par), par))
    out = []
    for value, rate, index, pin in zip(values, rates, rule.index, pins, strict=True):
        mixed = value if index == 1 else rate
        out.append(mixed if pin is False or index == 1 else jnp.where(pin, value, mixed))
    return tuple(out)


def _equations(model: Model, at: At, par: Par) -> Callable[[Vec], Vec]:
    """The residual as a function of the packed z."""
    pack = layout(model)
    rows = Layout(model.constraint.rows)  # type: ignore[union-attr]

    def residual(z: Vec) -> Vec:
        return rows.pack(hidden(model, at._replace(z=pack.unpack(z)), par))

    return residual


def solved(model: Model, at: At, par: Par) -> tuple[At, Flag]:
    """The state with z solved from the guess in it, and whether it was found; no derivatives."""
    if model.constraint is None:
        return at, jnp.ones((), bool)
    at, par = frozen((at, par))
    residual = _equations(model, at, par)
    guess = layout(model).pack(at.z)
    if model.constraint.affine:
        factors = factor_jacobian(layout(model), _jacobian(model, residual, guess))
        root = attach(residual, guess, factors, 1)
        found = jnp.isfinite(mean_square(root))
    else:
        root, found = newton(residual, guess, layout(model), moves=_moves(model, at, par))
    return at._replace(z=_cast(model, layout(model).unpack(root), at)), found


def _moves(model: Model, at: At, par: Par) -> Callable[[Vec], Vec]:
    """How the equations for z change when each of their inputs changes by its own size.

    And when the state moves on along the flow for as long as the solve has lasted."""
    rows = Layout(model.constraint.rows)  # type: ignore[union-attr]
    n = len(at.w)

    def moves(z: Vec) -> Vec:
        leaves, given = layout(model).unpack(z), (at.tau, *at.w, *par.theta)

        def of(given: Leaves) -> Vec:
            here = At(given[0], given[1 : 1 + n], at.i, leaves)
            return rows.pack(hidden(model, here, par._replace(theta=given[1 + n :])))

        on = (jnp.ones(()), *model.flow(at._replace(z=leaves), par))
        ways = [
            jnp.concatenate([way, (at.tau * k if k is not None else 0.0 * v).astype(v.dtype)[None]])
            for way, v, k in itertools.zip_longest(own_moves(given), given, on)
        ]
        return jax.vmap(lambda way: jax.jvp(of, (given,), (way,))[1])(tuple(ways))

    return moves


def begun(model: Model, at: At, par: Par) -> At:
    """A start with z solved from the guess; the guess itself if no z was found."""
    found = solved(model, at, par)
    if model.constraint is None:
        return at
    z = tuple(jnp.where(found[1], new, old) for new, old in zip(found[0].z, at.z, strict=True))
    return at._replace(z=z)


def attached(model: Model, at: At, par: Par, degree: int) -> At:
    """The state with `degree` derivatives of z; the z in it must solve the equations (M38)."""
    if model.constraint is None or degree == 0:
        return at
    fixed = at._replace(z=frozen(at.z))
    quiet, calm = frozen((fixed, par))
    root = layout(model).pack(fixed.z)
    jac = _jacobian(model, _equations(model, quiet, calm), root)
    factors = factor_jacobian(layout(model), jac)
    root = attach(_equations(model, fixed, par), root, factors, degree)
    return at._replace(z=_cast(model, layout(model).unpack(root), at))


def determined(model: Model, at: At, par: Par, degree: int) -> At:
    """The state with z solved from the guess in it, and with `degree` derivatives of z."""
    if model.constraint is None:
        return at
    z = frozen(solved(model, at, par)[0].z)
    return attached(model, at._replace(z=z), par, degree)


def violated(model: Model, at: At, par: Par, rtol: Scalar | float, atol: Leaves) -> Flag:
    """Whether x violates an equation of index 2 by more than the tolerances explain.

    The states could be moved by `10 (atol + rtol |x|)` at most; `|g_x|` says what that does to g.
    """
    rule = model.constraint
    if rule is None or rule.highest == 1:
        return jnp.zeros((), bool)
    x = Layout(model.x_shapes)
    rows = Layout(rule.rows)

    def of_state(y: Vec) -> Vec:
        return rows.pack(model.residuals(model.with_x(at, x.unpack(y)), par))

    y = x.pack(model.x_of(at))
    values = _entries(of_state(y))
    give = _entries(
        x.weights([a + rtol * jnp.abs(v) for v, a in zip(model.x_of(at), atol, strict=False)])
    )
    if model.pattern is None:
        room = jnp.sum(jnp.abs(dense(jacobian(of_state, y))) * give[None, :], axis=1)
    else:
        room = _room(model, of_state, y, give)
    second = np.concatenate(
        [np.full(int(np.prod(s)), k == 2) for s, k in zip(rule.rows, rule.index, strict=True)]
    )
    if rule.pinned is not None:
        pins = rule.pinned(model.args(at, par), par)
        held = [jnp.broadcast_to(v, s) for v, s in zip(pins, rule.rows, strict=True)]
        second = second & ~jnp.concatenate([jnp.ravel(v) for v in held])
    return jnp.any(second & ~(jnp.abs(values) <= 10 * room))


def _room(model: Model, of_state: Callable[[Vec], Vec], y: Vec, give: Vector) -> Vector:
    """`|g_x| give` where g_x is large and sparse."""
    assert model.pattern is not None
    n, size = y[0].size, model.pattern.size
    zero_rows = jnp.zeros((n,))

    def whole(v: Vector) -> Vector:
        return jnp.concatenate([zero_rows, of_state((v[:n],))[0]])

    full = jnp.concatenate([y[0], jnp.zeros((size - n,))])
    values = jnp.abs(model.pattern.values(whole, full))
    return model.pattern.multiply(values, jnp.concatenate([give, jnp.zeros((size - n,))]))[n:]


def _entries(vec: Vec) -> Vector:
    return jnp.stack(vec) if jnp.ndim(vec[0]) == 0 else vec[0]


def regularity(model: Model, at: At, par: Par) -> Scalar:
    """How well the equations determine z, whatever their units: 1 is perfect, 0 is singular."""
    root = layout(model).pack(at.z)
    jac = _jacobian(model, _equations(model, at, par), root)
    if layout(model).structure is not None:
        made = conditioning(factor_jacobian(layout(model), jac))
        return jnp.where(jnp.isfinite(made) & (made > 1e-18), 1.0, 0.0)
    jac = dense(jac)
    jac = jac / jnp.max(jnp.abs(jac), axis=1, keepdims=True)
    jac = jac / jnp.max(jnp.abs(jac), axis=0, keepdims=True)
    return jnp.nan_to_num(conditioning(factor(jac)), nan=0.0)


def steepness(model: Model, at: At, par: Par) -> Scalar:
    """The relative change of g_z when t and x change by about their own size, and z with them.

    It depends neither on units nor on the size of z: multipliers may all be zero.
    """
    none = tuple(jnp.zeros_like(v) for v in at.z)

    def change(way: Leaves) -> Scalar:
        return turning(model, at, par, way[0], way[1:], none, jnp.ones((), bool))[0]

    return jnp.max(jax.vmap(change)(own_moves((at.tau, *model.x_of(at)))))


def _product(a: Matrix, b: Matrix) -> Matrix:
    """A product of matrices without calling a library, which a kernel cannot do."""
    return jnp.sum(a[:, :, None] * b[None, :, :], axis=1)


def turning(
    model: Model, at: At, par: Par, time: Scalar, way: Leaves, moved: Leaves, follows: Flag
) -> tuple[Scalar, Scalar]:
    """The relative changes of g_z and of its determinant, to first order.

    They are for a change of time by `time` and of x by `way`. z changes by `moved`; if `follows`,
    it changes as the equations demand, and further by `moved`.
    """
    pack = layout(model)
    z = pack.pack(at.z)

    def equations(tau: Scalar, x: Leaves) -> Callable[[Vec], Vec]:
        return _equations(model, model.with_x(at, x, tau=tau), par)

    def slopes(tau: Scalar, x: Leaves, z: Vec) -> Matrix:
        return dense(jacobian(equations(tau, x), z))

    here, along = (at.tau, model.x_of(at)), (time, way)
    left = jax.jvp(lambda tau, x: equations(tau, x)(z), here, along)[1]
    inverse = invert(slopes(*here, z))
    after = -jnp.sum(inverse * _entries(left)[None, :], axis=1)
    own = _entries(pack.pack(moved))
    own = jnp.where(follows, after + jnp.sign(after) * own, own)
    step = tuple(own) if pack.scalar else (own,)
    change = _product(inverse, jax.jvp(slopes, (*here, z), (*along, step))[1])
    diagonal = jnp.where(np.eye(change.shape[0], dtype=bool), change, 0.0)
    return jnp.max(jnp.sum(jnp.abs(change), axis=1)), jnp.sum(diagonal)


def _runs_away(model: Model, at: At, par: Par, k: Leaves, atol: Leaves) -> Flag:
    """Whether z changes by many times its size in a time in which x hardly changes."""
    n, m = model.nx, model.moving

    def of_state(tau: Scalar, moving: Leaves) -> Leaves:
        return attached(model, model.with_moving(at, moving, tau=tau), par, 1).z

    speeds = jax.jvp(of_state, (at.tau, model.moving_of(at)), (jnp.ones_like(at.tau), tuple(k)))[1]
    moment = 1e-9 * jnp.abs(at.tau)

    def most(speeds: Leaves, values: Leaves, atol: Leaves) -> Scalar:
        parts = [
            jnp.max(moment * jnp.abs(s) / (jnp.abs(v) + a))
            for s, v, a in zip(speeds, values, atol, strict=True)
        ]
        return jnp.max(jnp.stack(parts))

    moved = most(tuple(k)[:n], model.x_of(at), atol[:n])
    return (most(speeds, at.z, atol[m:]) > 1e3) & (moved < 1.0)


def _cast(model: Model, leaves: Leaves, at: At) -> Leaves:
    return tuple(
        jnp.asarray(v).astype(jnp.result_type(o)) for v, o in zip(leaves, at.z, strict=True)
    )
