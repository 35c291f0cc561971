"""The nearest states that satisfy the constraint."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..base.leaves import Leaves, frozen
from ..base.types import Matrix, Scalar, Vector
from ..linalg.vectors import Layout
from .algebraic_states import hidden
from .invariants import onto
from .model import At, Model, Par

EXACT_DERIVATIVES = 3  # of a repaired start


def condition(model: Model, at: At, par: Par) -> Scalar:
    """The condition number of the equations for z."""
    return jnp.linalg.cond(slopes(model, at, par))


def slopes(model: Model, at: At, par: Par) -> Matrix:
    """The Jacobian of the equations for z, as a matrix."""
    z = Layout(model.constraint.shapes)  # type: ignore[union-attr]

    def residual(flat: Vector) -> Vector:
        leaves, k = [], 0
        for shape, size in zip(z.shapes, z.sizes, strict=True):
            leaves.append(jnp.reshape(flat[k : k + size], shape))
            k += size
        values = hidden(model, at._replace(z=tuple(leaves)), par)
        return jnp.concatenate([jnp.ravel(v) for v in values])

    return jax.jacfwd(residual)(jnp.concatenate([jnp.ravel(v) for v in at.z]))


def projected(model: Model, at: At, par: Par) -> At:
    """The nearest x that satisfies the equations of index 2 (M46).

    `x - x0 + g_x^T mu = 0, g(x) = 0`: values by Newton's method, derivatives by `attach`.
    """
    rule = model.constraint
    if model.invariant is not None:
        at = _onto(model, at, par)
    if rule is None or rule.highest == 1:
        return at
    flat0, sizes = _ravel(model.x_of(at))

    def g(x: Vector, at: At, par: Par) -> Vector:
        return _kept(model, model.with_x(at, _unravel(x, model.x_of(at), sizes)), par)

    def kkt(y: Vector, at: At, par: Par) -> Vector:
        x, mu = y[: flat0.size], y[flat0.size :]
        value, pull = jax.vjp(lambda v: g(v, at, par), x)
        return jnp.concatenate([x - _ravel(model.x_of(at))[0] + pull(mu)[0], value])

    calm = frozen((at, par))
    size = jax.eval_shape(lambda: g(flat0, at, par)).shape[0]

    def newton(y: Vector, _: None) -> tuple[Vector, None]:
        jac = jax.jacfwd(kkt)(y, *calm)
        return y - jnp.linalg.lstsq(jac, kkt(y, *calm))[0], None

    first = jnp.concatenate([frozen(flat0), jnp.zeros(size)])
    root = frozen(jax.lax.scan(newton, first, None, length=20)[0])
    inverse = frozen(jnp.linalg.pinv(jax.jacfwd(kkt)(root, *calm)))
    for _ in range(EXACT_DERIVATIVES):
        root = root - inverse @ kkt(root, at, par)
    return model.with_x(at, _unravel(root[: flat0.size], model.x_of(at), sizes))


def _kept(model: Model, at: At, par: Par) -> Vector:
    """The equations of index 2 that are not pinned, as a vector."""
    rule = model.constraint
    values = model.residuals(at, par)
    pins = (False,) * len(values)
    if rule.pinned is not None:  # type: ignore[union-attr]
        pins = tuple(rule.pinned(model.args(at, par), par))  # type: ignore[union-attr]
    kept = []
    for value, k, pin in zip(values, rule.index, pins, strict=True):  # type: ignore[union-attr]
        if k == 2:
            kept.append(jnp.ravel(jnp.where(pin, 0.0, value)))
    return jnp.concatenate(kept)


def along(model: Model, at: At, par: Par, step: Leaves, change: Leaves) -> Leaves:
    """The change of x nearest to `step` that keeps the equations of index 2 when theta changes.

    `step - g_x^T (g_x g_x^T)^+ (g_x step + g_theta change)`, to first order."""
    if model.constraint is None or model.constraint.highest == 1:
        return step

    def values(x: Leaves, theta: Leaves) -> Vector:
        return _kept(model, model.with_x(at, x), par._replace(theta=theta))

    push = lambda dx, dtheta: jax.jvp(values, (model.x_of(at), par.theta), (dx, dtheta))[1]
    off = push(tuple(step), tuple(change))
    pull = jax.vjp(lambda x: values(x, par.theta), model.x_of(at))[1]
    none = tuple(jnp.zeros_like(v) for v in par.theta)
    square = jax.vmap(lambda e: push(pull(e)[0], none))(jnp.eye(off.shape[0]))
    back = pull(jnp.linalg.pinv(square, hermitian=True) @ off)[0]
    return tuple(a - b for a, b in zip(step, back, strict=True))


def _onto(model: Model, at: At, par: Par) -> At:
    """The states projected onto the invariants: values until they converge, then derivatives."""
    calm, quiet = frozen((at, par))
    found = jax.lax.fori_loop(0, 20, lambda _, here: onto(model, here, quiet), calm)
    moved = tuple(v - w for v, w in zip(found.w, calm.w, strict=True))
    return onto(model, at._replace(w=tuple(map(jnp.add, at.w, moved))), par)


def _ravel(leaves: Leaves) -> tuple[Vector, list[int]]:
    return jnp.concatenate([jnp.ravel(v) for v in leaves]), [v.size for v in leaves]


def _unravel(flat: Vector, like: Leaves, sizes: list[int]) -> Leaves:
    out, k = [], 0
    for leaf, size in zip(like, sizes, strict=True):
        out.append(jnp.reshape(flat[k : k + size], leaf.shape).astype(leaf.dtype))
        k += size
    return tuple(out)
