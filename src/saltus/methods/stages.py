"""What implicit methods have in common: the unknowns `y = (x, z)` of a step as one vector."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves
from ..base.types import Array, Scalar, Vector
from ..linalg.dense import Factored
from ..linalg.factor import Jacobian, Vec, dense, solve, structure_of
from ..linalg.vectors import Layout, add, times
from ..model.model import At, Model, Par
from .method import Goal
from .tangent_error import flat, unflat


class Field(NamedTuple):
    """The right-hand side `(f, g)` and the rates as functions of packed vectors, for one row."""

    model: Model
    par: Par
    at: At

    @property
    def layout(self) -> Layout:
        return unknowns(self.model)

    def state(self, tau: Scalar, y: Vec, q: Leaves | None = None) -> At:
        model, at = self.model, self.at
        leaves = self.layout.unpack(y)
        x = tuple(v.astype(o.dtype) for v, o in zip(leaves[: model.nx], at.w, strict=False))
        q = model.integrals_of(at) if q is None else q
        z = tuple(v.astype(o.dtype) for v, o in zip(leaves[model.nx :], at.z, strict=True))
        return model.with_moving(at, (*x, *q), tau=tau, z=z)

    def start(self) -> Vec:
        return self.layout.pack((*self.model.x_of(self.at), *self.at.z))

    def both(self, tau: Scalar, y: Vec) -> tuple[Vec, Leaves]:
        """`(f, g)` packed, and the rates."""
        model = self.model
        here = self.state(tau, y)
        moving = model.flow(here, self.par)
        g = model.residuals(here, self.par) if model.constraint is not None else ()
        return self.rows.pack((*moving[: model.nx], *g)), moving[model.nx :]

    def rhs(self, tau: Scalar, y: Vec, place: int = 0) -> Vec:
        """`(f, g)`; `place` is used by fields that are linearised at several places."""
        return self.both(tau, y)[0]

    @property
    def rows(self) -> Layout:
        """The layout of the equations: that of the unknowns, but with the shapes of g."""
        rule = self.model.constraint
        if rule is None:
            return self.layout
        return Layout((*self.layout.shapes[: self.model.nx], *rule.rows), self.layout.structure)

    def mass_numbers(self) -> np.ndarray:
        """1 for differential rows, 0 for algebraic ones."""
        sizes = self.rows.sizes
        n = sum(sizes[: self.model.nx])
        return np.concatenate([np.ones(n), np.zeros(sum(sizes) - n)])

    def mass(self) -> Vec:
        """The same as a vector."""
        n = self.model.nx
        return self.rows.weights([*[1.0] * n, *[0.0] * (len(self.rows.shapes) - n)])

    def scale(self, goal: Goal, y: Vec, relax: Scalar | float = 1.0) -> Vec:
        """`atol + rtol |y|`; divided by `relax` for z of index 2, whose error is of lower order."""
        model = self.model
        atol = (*goal.atol[: model.nx], *goal.atol[model.moving :])
        a = self.layout.weights(atol)
        out = tuple(u + goal.rtol * jnp.abs(v) for u, v in zip(a, y, strict=True))
        rule = model.constraint
        if rule is None or rule.highest == 1:
            return out
        n = [1.0] * model.nx
        return times(out, self.layout.weights([*n, *[1.0 / relax] * model.n_z]))

    def felt(self, scale: Vec, jac: Jacobian, h: Scalar) -> Vec:
        """The scale, with multipliers near zero measured by their effect on x.

        An error e of a multiplier changes x by `h f_z e`. Up to a hundredth of the scale of x such
        an error is ignored, so that the units of a multiplier do not matter (M92).
        """
        rule = self.model.constraint
        if rule is None or min(rule.index) == 1 or self.layout.structure is not None:
            return scale
        n = sum(self.layout.sizes[: self.model.nx])
        allowed = jnp.stack(scale) if self.layout.scalar else scale[0]
        share = jnp.abs(h * dense(jac)[:n, n:]) / allowed[:n, None]
        most = jnp.max(share, axis=0)
        least = jnp.where(most > 0, 0.01 / jnp.where(most > 0, most, 1.0), 0.0)
        whole = jnp.concatenate([allowed[:n], jnp.maximum(allowed[n:], least)])
        return tuple(whole) if self.layout.scalar else (whole,)


def damped(field: Field, factors: Factored, shift: Scalar | float) -> Callable[[Vector], Vector]:
    """`x -> (shift M - J)^-1 shift M x` on flat vectors; integrals are not changed."""
    model, layout, mass = field.model, field.layout, field.mass()
    xs, none = model.x_of(field.at), tuple(jnp.zeros_like(v) for v in field.at.z)
    size = sum(int(np.prod(jnp.shape(v))) for v in xs)

    def apply(u: Vector) -> Vector:
        packed = times(mass, layout.pack((*unflat(u[:size], xs), *none)))
        found = layout.unpack(solve(factors, add((shift, packed))))[: model.nx]
        return jnp.concatenate([flat(found), u[size:]])

    return apply


@functools.lru_cache(maxsize=512)
def unknowns(model: Model) -> Layout:
    """How `(x, z)` is packed."""
    z = () if model.constraint is None else model.constraint.shapes
    return Layout((*model.x_shapes, *z), structure_of(model.pattern))


def norm_of(parts: list[tuple[Array, Array]]) -> Scalar:
    """The root mean square of error / scale over all entries."""
    total, size = 0.0, 0
    for error, scale in parts:
        ratio = error / scale
        total = total + (jnp.sum(ratio * ratio) if jnp.ndim(ratio) else ratio * ratio)
        size += ratio.size
    return jnp.sqrt(total / max(size, 1))


def directional(field: Field, tau: Scalar, y: Vec, dtau: Scalar, dy: Vec) -> tuple[Vec, Leaves]:
    """The derivative of `(f, g)` and of the rates in a direction of time and unknowns."""
    return jax.jvp(field.both, (tau, y), (dtau, dy))[1]
