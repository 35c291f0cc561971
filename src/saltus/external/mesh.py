"""Equations between the states of an external solver: collocation, or the trapezoidal rule."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..base.leaves import Leaves, Shapes, float_shapes, frozen
from ..base.types import Array, Scalar, Tree, Vector
from ..methods.linearised_flow import Leading
from ..methods.method import Goal, Stepper, Traits, Trial
from ..methods.projected import Projecting
from ..methods.radau import C as NODES
from ..methods.stages import unknowns
from ..model.algebraic_states import attached, determined
from ..model.model import At, Model, Par
from ..simulate.detection import cubic, value_of

NEWTON_ITERATIONS = 4  # from a state that is close to the end


def guess(stepper: Stepper, model: Model, par: Par, at: At, end: At, h: Scalar) -> Leaves:
    """What a row records, estimated from both ends: by cubics for x, straight lines for z."""
    rule = stepper.inner if isinstance(stepper, Projecting) else stepper
    if isinstance(rule, Trapezoidal):
        return (*model.moving_of(end), *end.z)
    layout, n = unknowns(model), model.nx
    slopes = zip(model.flow(at, par)[:n], model.flow(end, par)[:n], strict=True)
    ends = zip(model.x_of(at), model.x_of(end), slopes, strict=True)
    cubics = [cubic(a, b, h * f, h * g) for a, b, (f, g) in ends]
    out: list[Array] = []
    for c in map(float, NODES):
        x = [value_of(k, c) for k in cubics]
        z = [a + c * (b - a) for a, b in zip(at.z, end.z, strict=True)]
        out += layout.pack((*x, *z))
    return tuple(out)


@dataclasses.dataclass(frozen=True)
class Trapezoidal(Stepper):
    """The equation `x1 = x0 + h/2 (f0 + f1)` for x1, between states that are given."""

    @property
    def traits(self) -> Traits:
        return Traits("trapezoidal rule", 2, error_order=2, leading=Leading(3, 1 / 12))

    def attempt(
        self, model: Model, par: Par, goal: Goal, at: At, k: Leaves, h: Scalar, memory: Tree
    ) -> Trial:
        raise NotImplementedError("the trapezoidal rule has no error control: it is for meshes.")

    def aux(self, model: Model) -> Shapes:
        """The states at the end of the row, algebraic ones included."""
        shapes = [v.shape for v in model.flow_fn.traced.outputs[: model.moving]]
        more = [] if model.constraint is None else list(model.constraint.shapes)
        return float_shapes([*shapes, *more])

    def row(self, model: Model, par: Par, at: At, h: Scalar, aux: Leaves, degree: int) -> At:
        """The end of the row as a function of its start: one Newton step from the given end."""
        m = model.moving
        first = model.flow(attached(model, at, par, degree), par)
        root, back = ravel_pytree(aux[:m])

        def state(moving: Leaves) -> At:
            return model.with_moving(at, moving, tau=at.tau + h, z=aux[m:])

        def residual(flat: Vector) -> Vector:
            moving = back(flat)
            last = model.flow(attached(model, state(moving), par, degree), par)
            parts = zip(moving, model.moving_of(at), first, last, strict=True)
            return ravel_pytree(tuple(b - a - 0.5 * h * (f + g) for b, a, f, g in parts))[0]

        matrix = frozen(jax.jacfwd(residual)(frozen(root)))
        found = frozen(root)
        for _ in range(degree):
            found = found - jnp.linalg.solve(matrix, residual(found))
        return attached(model, state(back(found)), par, degree)

    def redo(
        self, model: Model, par: Par, at: At, h: Scalar, aux: Leaves, length: Scalar
    ) -> tuple[At, Leaves]:
        end = at
        for _ in range(NEWTON_ITERATIONS):
            end = self.row(model, par, at, h, aux, 1)
            aux = (*model.moving_of(end), *end.z)
        return end, aux

    def reach(
        self, model: Model, par: Par, at: At, h: Scalar, aux: Leaves, length: Scalar, degree: int
    ) -> At:
        """A value inside a row: the cubic through values and slopes at its ends."""
        u = h / jnp.where(length == 0, 1.0, length)
        last = self.row(model, par, at, length, aux, max(degree, 1))
        f0 = model.flow(attached(model, at, par, degree), par)
        f1 = model.flow(last, par)
        moving = tuple(
            a + u * u * (3 - 2 * u) * (b - a)
            + u * (1 - u) * length * ((1 - u) * f - u * g)
            for a, b, f, g in zip(at.w, last.w, f0, f1, strict=False)
        )  # fmt: skip
        there = model.with_moving(at, moving, tau=at.tau + h)
        return determined(model, there, par, degree)
