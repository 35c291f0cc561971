"""The error that a method makes on the linearised flow, from a few products with its Jacobian.

On `u' = f_x u + f_p v`, the tangent `u` with its push `f_p v`, a step has the error
`C (h J)^(d-1) h u'` to leading order, and `C h^d` times a derivative in time where coefficients
change (M95). Neither needs a step: the first is computed from powers of the Jacobian, the second
from differences of the slope between some times. Stiff components are damped, as in the method.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves
from ..base.types import Scalar, Vector, Whole
from ..model.algebraic_states import attached
from ..model.model import At, Model, Par
from .tangent_error import Phase, Tangent, Way, begun, flat, gentle, unflat, way

STIFF_POWERS = 5  # of `w` in an error: stiff components follow the others, and add no error
SETTLING_STEPS = 64  # that a tangent is damped by if it is first needed between jumps


class Leading(NamedTuple):
    """The error estimate of a step on `x' = lambda x`: `coefficient * (h lambda)^degree`."""

    degree: int
    coefficient: float


class Damping(NamedTuple):
    """The map `w = (1 - gamma h J)^-1` of flat vectors, which is part of all implicit methods."""

    apply: Callable[[Vector], Vector]
    gamma: float


class Line(NamedTuple):
    """The flow linearised along a step; all vectors are flat."""

    model: Model
    par: Par
    at: At
    end: At
    h: Scalar
    push: Way

    def moves(self, u: Vector, place: Scalar, part: Scalar) -> Vector:
        """`h (f_x u + part f_p v)` at a `place` in the step, from 0 to 1."""
        model, par, at = self.model, self.par, self.at
        along = lambda a, b: tuple(
            (u + place * (v - u)).astype(u.dtype) for u, v in zip(a, b, strict=True)
        )
        x = along(model.moving_of(at), model.moving_of(self.end))
        z = along(at.z, self.end.z)
        rest, tau = model.held_of(at), at.tau + place * self.h

        def flow(moving: Leaves, rest: Leaves, theta: Leaves) -> Vector:
            there = par._replace(theta=theta)
            here = model.with_moving(model.with_held(at, rest), moving, tau=tau, z=z)
            return flat(model.flow(attached(model, here, there, 1), there))

        turn = jax.tree.map(lambda v: (part * v).astype(v.dtype), tuple(self.push))
        return self.h * jax.jvp(flow, (x, rest, par.theta), (unflat(u, x), *turn))[1]


class Explored(NamedTuple):
    """What was computed of the linearised flow along a step."""

    power: Vector  # (h J)^(d-1) h u'; h u' for implicit methods
    end: Vector  # the tangent at the end, as a Taylor sum; h u' there for implicit methods
    change: Vector  # h^d times the derivatives of the slope in time
    part: Scalar  # of the push that is used


def travelled(
    model: Model,
    par: Par,
    at: At,
    ahead: At,
    h: Scalar,
    tangent: Tangent,
    sizes: Vector,
    leading: Leading,
    damping: Damping | None,
) -> tuple[Vector, Vector, Vector, Scalar]:
    """A tangent at both ends of a step, the error of the method on it, and the part of its push."""
    line = Line(model, par, at, ahead, h, way(model, at, par))
    u = begun(tangent, sizes)
    if damping is not None:
        count = jnp.where(tangent.phase == Phase.OFF, SETTLING_STEPS, 0)
        u = jax.lax.fori_loop(0, count, lambda _, v: _bounded(_settled(damping, v), v), u)
    found = _explored(line, tangent, u, sizes, leading.degree, damping is None)
    if damping is not None:
        found = _damped(damping, u, found, leading.degree)
    return u, found.end, leading.coefficient * (found.power + found.change), found.part


def _explored(
    line: Line, tangent: Tangent, u: Vector, sizes: Vector, degree: int, powers: bool
) -> Explored:
    """All products, in one loop, so that a program contains the linearised flow once."""
    table = _tables(degree, powers)
    kinds, places, sums, differences = (jnp.asarray(v) for v in table)

    def one(i: Whole, found: Explored) -> Explored:
        kind = kinds[i]
        v = jnp.where(kind == Product.ALONE, 0.0, jnp.where(kind == Product.POWER, found.power, u))
        part = jnp.where(
            kind == Product.ALONE, 1.0, jnp.where(kind == Product.POWER, 0.0, found.part)
        )
        moved = line.moves(v, places[i], part)
        return Explored(
            power=jnp.where((kind == Product.FIRST) | (kind == Product.POWER), moved, found.power),
            end=found.end + sums[i] * moved,
            change=found.change + differences[i] * moved,
            part=jnp.where(kind == Product.ALONE, gentle(tangent, moved, sizes), found.part),
        )

    none = jnp.zeros_like(u)
    start = Explored(power=none, end=u if powers else none, change=none, part=jnp.ones(()))
    return jax.lax.fori_loop(0, len(table[0]), one, start)


class Product(enum.IntEnum):
    """What the Jacobian is multiplied by."""

    ALONE = 0  # the push alone
    FIRST = 1  # the tangent and its push
    POWER = 2  # the last product
    SAMPLE = 3  # the tangent and its push, at a place along the step


@functools.cache
def _tables(degree: int, powers: bool) -> tuple[np.ndarray, ...]:
    """The kind and place of each product, and its weights in `end` and in `change`."""
    n = degree - 1
    chain = n if powers else 0
    kinds = [Product.ALONE, Product.FIRST] + [Product.POWER] * chain + [Product.SAMPLE] * degree
    places = [0.0] * (2 + chain) + [j / n for j in range(degree)]
    taylor = [1 / math.factorial(j) for j in range(2, chain + 2)]
    samples = [1 / degree] * degree if powers else [0.0] * n + [1.0]
    sums = [0.0, 0.0, *taylor, *samples]
    binomial = [(-1.0) ** (n - j) * math.comb(n, j) * n**n for j in range(degree)]
    differences = [0.0] * (2 + chain) + binomial
    return np.asarray(kinds), np.asarray(places), np.asarray(sums), np.asarray(differences)


# -- implicit methods -----------------------------------------------------------------------------


def _damped(damping: Damping, u: Vector, found: Explored, degree: int) -> Explored:
    """`(h J w)^(d-1) w^s h u'`, a step of an L-stable map, and the change without stiff parts."""
    g, apply = damping.gamma, damping.apply
    _, b, c = _weights(g)
    step = _polynomial(damping, (g, g * (b + c), g * c), found.end)

    def one(i: Whole, both: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
        p, d = both
        w = apply(p)
        return jnp.where(i < STIFF_POWERS, w, (w - p) / g), apply(d)

    both = (found.power, found.change)
    power, change = jax.lax.fori_loop(0, STIFF_POWERS + degree - 1, one, both)
    return found._replace(power=power, change=change, end=u + step)


def _settled(damping: Damping, u: Vector) -> Vector:
    """A step of the same map without push: components that decay fast vanish."""
    return _polynomial(damping, _weights(damping.gamma), u)


def _weights(g: float) -> tuple[float, float, float]:
    """The weights of `w`, `w^2`, `w^3` in an L-stable stability function of order 2."""
    first, second = (1 - 3 * g) / g, (0.5 - 3 * g + 3 * g * g) / g**2
    return second, -first - 2 * second, 1 + first + second


def _polynomial(damping: Damping, weights: tuple[float, ...], v: Vector) -> Vector:
    table = jnp.asarray(weights)

    def one(i: Whole, both: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
        w = damping.apply(both[0])
        return w, both[1] + table[i] * w

    return jax.lax.fori_loop(0, len(weights), one, (v, jnp.zeros_like(v)))[1]


def _bounded(new: Vector, old: Vector) -> Vector:
    """The tangent `new`, shortened if it is larger than `old`."""
    size, before = jnp.max(jnp.abs(new)), jnp.max(jnp.abs(old))
    return new * jnp.where(size > before, before / jnp.where(size > 0, size, 1.0), 1.0)
