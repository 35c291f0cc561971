r"""The equations of a mechanism at one instant, on vectors.

$M\,a = F + G^T\lambda$ with $G = \Phi_q$, and $G\,a = -\gamma$ where $\gamma$ is the rest of the
second time derivative of $\Phi$ (M61). With $W = M^{-1}$ and $S = G W G^T$ both follow
from $S\lambda = -(G W F + \gamma)$. Rows of $S$ that depend on others are left out.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..base.types import Array, Matrix, Number, Params, Scalar, Vector
from ..linalg.factor import pseudo_inverse
from ..model.invariants import PROJECTION_ROUNDS
from ..system.hybrid import Instant
from .coupling import Dense, Narrow, multipliers
from .description import Description
from .motion import Motion


class Equations:
    """A mechanism at `now`. Vectors hold coordinates in the order of their leaves."""

    def __init__(self, model: Description, now: Instant, p: Params):
        self.model, self.now, self.p = model, now, p
        self.t = jnp.asarray(now.t, jnp.float64)
        self.q, self.join = ravel_pytree(now.x["q"])
        self.v = ravel_pytree(now.x["v"])[0]
        self.rows = model.rows(now, p)
        self.mask = model.mask(self.rows, now.mode)

    @property
    def count(self) -> int:
        """How many constraints there are."""
        return len(self.rows.names)

    def seen(self, t: Scalar, q: Vector, v: Vector) -> Motion:
        """The instant with other values of t, q and v, for the user's functions."""
        return Motion(self.now.replace(t=t, x={"q": self.join(q), "v": self.join(v)}))

    def placed(self, t: Scalar, q: Vector, owner: str) -> Motion:
        """The same for functions of time and coordinates only."""
        return Motion(self.now.replace(t=t, x={"q": self.join(q), "v": None}), frozen=owner)

    # -- constraints ------------------------------------------------------------------------------
    def position(self, t: Scalar, q: Vector) -> Vector:
        r"""$\Phi$; zero where a constraint is not in force."""
        value = self.model.constraint_vector(self.placed(t, q, "constraint"), self.p)
        return value if self.mask is None else jnp.where(self.mask, value, 0.0)

    def velocity(self, t: Scalar, q: Vector, v: Vector) -> Vector:
        r"""$\dot\Phi = G v + \Phi_t$."""
        return jax.jvp(self.position, (t, q), (jnp.ones_like(t), v))[1]

    @functools.cached_property
    def gamma(self) -> Vector:
        r"""$\ddot\Phi - G a$: the second derivative along a motion without acceleration."""
        along = (jnp.ones_like(self.t), self.v)
        return jax.jvp(lambda t, q: self.velocity(t, q, self.v), (self.t, self.q), along)[1]

    @functools.cached_property
    def slope(self) -> Matrix:
        r"""$G$, a matrix."""
        m, n = self.count, self.q.size
        jac = jax.jacrev if m <= n else jax.jacfwd
        return jac(lambda q: self.position(self.t, q))(self.q)

    def pull(self, lam: Vector) -> Vector:
        r"""$G^T\lambda$."""
        return jax.vjp(lambda q: self.position(self.t, q), self.q)[1](lam)[0]

    # -- inertia and forces -----------------------------------------------------------------------
    @functools.cached_property
    def mass(self) -> Array:
        """A vector for a diagonal mass matrix, else the matrix."""
        return self.model.mass_of(self)

    @functools.cached_property
    def inverse_mass(self) -> Array:
        constant = self.model.constant_inverse(self.q.size)
        if constant is not None:
            return constant
        return 1.0 / self.mass if self.mass.ndim == 1 else pseudo_inverse(self.mass)

    def divide(self, b: Array) -> Array:
        r"""$W b$ for a vector, or for the columns of a matrix."""
        w = self.inverse_mass
        if w.ndim == 2:
            return w @ b
        return w * b if b.ndim == 1 else w[:, None] * b

    @functools.cached_property
    def force(self) -> Vector:
        return self.model.force_of(self)

    # -- solutions --------------------------------------------------------------------------------
    @functools.cached_property
    def give(self) -> Matrix:
        r"""$W G^T$: the velocities that unit impulses of the constraints cause."""
        return self.divide(self.slope.T)

    @functools.cached_property
    def compliance(self) -> Matrix:
        r"""$S^{-1}$ on the independent rows, zero elsewhere."""
        return pseudo_inverse(self.slope @ self.give)

    def softer(self, soft: Vector) -> Matrix:
        r"""$(S + \operatorname{diag}(soft))^{-1}$."""
        return pseudo_inverse(self.slope @ self.give + jnp.diag(soft))

    @functools.cached_property
    def multipliers(self) -> Dense | Narrow:
        """The way in which multipliers are computed."""
        return multipliers(self)

    @functools.cached_property
    def constrained(self) -> tuple[Vector, Vector]:
        """Accelerations and multipliers (M61)."""
        return self.pulled(None, self.gamma)

    def softened(self, alpha: Number, omega: Number, xi: Number) -> tuple[Vector, Vector]:
        r"""The same with multipliers $\lambda^* = -\alpha(\ddot\Phi + 2\xi\omega\dot\Phi +
        \omega^2\Phi)$ (M64)."""
        drift = 2 * xi * omega * self.velocity(self.t, self.q, self.v)
        wanted = self.gamma + drift + omega**2 * self.position(self.t, self.q)
        soft = 1.0 / jnp.broadcast_to(jnp.asarray(alpha, float), (self.count,))
        return self.pulled(soft, wanted)

    def pulled(self, soft: Vector | None, wanted: Vector) -> tuple[Vector, Vector]:
        r"""$\lambda = -(S + \operatorname{diag}(soft))^{-1} (G W F + wanted)$ and the accelerations
        with it."""
        free = self.divide(self.force)
        if not self.count:
            return free, jnp.zeros((0,))
        rows = self.multipliers
        lam = -rows.solver(soft)(rows.across(free) + wanted)
        return free + rows.moved(lam), lam

    def projected(self) -> tuple[Vector, Vector]:
        """Coordinates and velocities projected onto the constraints, weighted by inertia (M62).

        Newton's method with constant matrices: each iteration multiplies the distance from the
        constraints by about its initial size.
        """
        rows = self.multipliers
        solve = rows.solver()
        q, v = self.q, self.v
        for _ in range(PROJECTION_ROUNDS):
            q = q - rows.moved(solve(self.position(self.t, q)))
        for _ in range(PROJECTION_ROUNDS):
            v = v - rows.moved(solve(self.velocity(self.t, q, v)))
        return q, v

    def energy(self) -> Scalar:
        """Kinetic and potential energy."""
        return self.model.kinetic_of(self) + self.model.potential_of(self)
