r"""Velocities that jump while coordinates stay.

Either an impulse system: $M(v^+ - v^-) = G^T\Lambda + N^T\Lambda_n$ with $G v^+ = -\Phi_t$ and a
condition on the normal velocities $N v^+$ (M65). Or a given jump of some velocities, with others
computed from the constraints (M66).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..base.types import Array, Matrix, Number, Scalar, Tree, Vector
from ..linalg.dense import independent
from ..linalg.factor import pseudo_inverse
from .equations import Equations


def held(at: Equations) -> Vector:
    """The velocities after a plastic impact that makes the constraints hold."""
    return at.v - at.give @ (at.compliance @ at.velocity(at.t, at.q, at.v))


def inverse_inertia(at: Equations, directions: Matrix) -> Matrix:
    r"""$W_c N^T$: velocities due to unit impulses along `directions`, obeying the constraints."""
    free = at.divide(directions.T)
    return free - at.give @ (at.compliance @ (at.slope @ free))


def direction(at: Equations, distance: Callable[[Scalar, Vector], Scalar]) -> tuple[Vector, Scalar]:
    """The gradient by q of a function of (t, q), and its partial derivative by t."""
    slope = jax.grad(distance, argnums=1)(at.t, at.q)
    return slope, jax.grad(distance, argnums=0)(at.t, at.q)


def bounced(
    at: Equations, normals: Matrix, speeds: Vector, restitution: Vector, closed: Array
) -> Vector:
    r"""The velocities after frictionless impacts at all `closed` contacts at once.

    $N v^+ = -e\,N v^-$ where the impulse is positive; contacts that would pull are left out.
    """
    v = held(at)
    rate = normals @ v + speeds
    wanted = -(1.0 + restitution) * rate
    effect = inverse_inertia(at, normals)
    inertia = normals @ effect

    def impulses(pushing: Array) -> Vector:
        both = pushing[:, None] & pushing[None, :]
        return pseudo_inverse(jnp.where(both, inertia, 0.0)) @ jnp.where(pushing, wanted, 0.0)

    pushing = closed & (rate < 0)
    for _ in range(normals.shape[0] - 1):
        pushing = pushing & (impulses(jax.lax.stop_gradient(pushing)) >= 0)
    return v + effect @ impulses(jax.lax.stop_gradient(pushing))


def pushed(at: Equations, slope: Vector, speed: Scalar, normal: Vector, e: Number) -> Vector:
    """The velocities after an impact whose impulse acts along `normal`, not the gap's gradient."""
    v = held(at)
    rate = slope @ v + speed
    effect = inverse_inertia(at, normal[None])[:, 0]
    opens = slope @ effect
    push = -(1.0 + e) * rate / jnp.where(opens > 0, opens, jnp.nan)  # must open the gap
    return jnp.where(rate < 0, v + effect * push, v)


def rubbed(
    at: Equations, normal: Vector, speed: Scalar, tangent: Vector, e: Number, mu: Number
) -> Vector:
    r"""The velocities after one impact with Coulomb friction: $|\Lambda_t| \le \mu\Lambda_n$."""
    v = held(at)
    both = jnp.stack([normal, tangent])
    effect = inverse_inertia(at, both)
    inertia = both @ effect
    rate = normal @ v + speed
    stick = pseudo_inverse(inertia) @ jnp.stack([-(1.0 + e) * rate, -(tangent @ v)])
    side = jnp.sign(jax.lax.stop_gradient(stick[1]))
    along = inertia[0, 0] + side * mu * inertia[0, 1]
    push = -(1.0 + e) * rate / jnp.where(along > 0, along, jnp.nan)  # NaN if jammed
    slide = jnp.stack([push, side * mu * push])
    sticks = jnp.abs(stick[1]) <= mu * stick[0]
    after = v + effect @ jnp.where(sticks, stick, slide)
    return jnp.where(rate < 0, after, v)


def completed(at: Equations, wanted: Vector, given: np.ndarray | None = None) -> Vector:
    """Velocities `wanted`, with as many of them as there are constraints computed anew (M66).

    Pivoting decides which ones: those that the constraints determine best, and none of the `given`.
    """
    slope = at.slope
    free = jnp.ones(at.q.size) if given is None else jnp.asarray(~given, jnp.float64)
    allowed = slope * free[None, :]
    depend = independent(allowed.T @ allowed).astype(jnp.float64)
    inner = slope * depend[None, :]
    back = inner.T @ pseudo_inverse(inner @ inner.T)
    v = wanted
    for _ in range(2):  # the second removes rounding
        v = v - back @ at.velocity(at.t, at.q, v)
    return v


def given_by(value: Tree, q: Tree) -> Tree:
    """For which numbers of q velocities were given, as booleans like q; `None` for all."""
    if not isinstance(q, dict) or set(value) == set(q):
        return None
    return {k: jax.tree.map(lambda v, k=k: np.full(jnp.shape(v), k in value), q[k]) for k in q}


def flat_mask(tree: Tree) -> np.ndarray:
    """Booleans like q as one vector, on the host."""
    return np.concatenate([np.ravel(np.asarray(v, bool)) for v in jax.tree.leaves(tree)])
