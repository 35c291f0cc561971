"""Invariants, numbers that a flow keeps at zero, and the projection onto them (M60).

A method drifts away from an invariant by its local error in every step. So every step of a system
that declares one ends with a projection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..base.leaves import Leaves
from ..base.types import Array, Flag, Params, Scalar, Tree, Vector
from ..linalg.factor import pseudo_inverse
from ..system.hybrid import HybridSystem, Instant
from .model import At, Invariant, Model, Par
from .validation import flow_leaves, residual_leaves

if TYPE_CHECKING:
    from .builder import Tracer

PROJECTION_ROUNDS = 3  # each multiplies the distance by about the first distance


def invariant(system: HybridSystem, tracer: Tracer, x: Leaves) -> Invariant:
    """The invariant that a system declares, traced and checked."""
    found: dict = {}
    write = 'invariant=lambda now, p: now.x["a"] ** 2 + now.x["b"] ** 2 - 1'
    fn = tracer.fn(residual_leaves("invariant", system.invariant, write, found))
    onto = system.projection or nearest(system.invariant)  # type: ignore[arg-type]

    def there(now: Instant, p: Params) -> list[Array]:
        return flow_leaves(tracer.x, x, onto(now, p), now.z)

    names = tuple(n or "invariant" for n in found["shape"].names())
    return Invariant(fn, names, tracer.fn(there))


def nearest(residual: Callable) -> Callable:
    """`(now, p) -> x`: the nearest state at which the residual vanishes, from one that is close.

    Newton's method with the first Jacobian: each round multiplies the distance by about the first.
    """

    def onto(now: Instant, p: Params) -> Tree:
        first, join = ravel_pytree(now.x)

        def values(flat: Vector) -> Vector:
            return ravel_pytree(residual(now.replace(x=join(flat)), p))[0]

        slope = jax.jacrev(values)(first)
        back = slope.T @ pseudo_inverse(slope @ slope.T)
        flat = first
        for _ in range(PROJECTION_ROUNDS):
            flat = flat - back @ values(flat)
        return join(flat)

    return onto


def residuals(model: Model, at: At, par: Par) -> Leaves:
    """The invariants of a model, leaf by leaf."""
    rule = model.invariant
    return () if rule is None else tuple(rule.fn(model.args(at, par), par))


def onto(model: Model, at: At, par: Par) -> Tree:
    """The state with its differential part moved onto the invariants."""
    rule = model.invariant
    if rule is None:
        return at
    x = rule.project(model.args(at, par), par)
    return model.with_x(at, x)


def broken(model: Model, at: At, par: Par, rtol: Scalar | float, atol: Leaves) -> Flag:
    """Whether an invariant is violated by more than the tolerances explain.

    They explain errors of the states up to `10 (atol + rtol |x|)`, times the Jacobian.
    """
    if model.invariant is None:
        return jnp.zeros((), bool)
    x0 = model.x_of(at)
    give = tuple(10 * (a + rtol * jnp.abs(v)) for v, a in zip(x0, atol, strict=False))
    wide = tuple(jnp.broadcast_to(g, v.shape) for g, v in zip(give, x0, strict=True))

    def values(x: Leaves) -> Vector:
        here = model.with_x(at, x)
        return jnp.concatenate([jnp.ravel(v) for v in residuals(model, here, par)])

    slopes = jax.jacrev(values)(x0)
    size = values(x0).size
    parts = [
        jnp.sum(jnp.abs(jnp.reshape(s, (size, -1))) * jnp.ravel(g)[None], axis=1)
        for s, g in zip(slopes, wide, strict=True)
    ]
    return jnp.any(~(jnp.abs(values(x0)) <= sum(parts)))
