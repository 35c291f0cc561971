"""A collocation step as a smooth function: its stages as an implicit function (M42)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import frozen
from ..base.types import Scalar
from ..linalg.dense import Factored
from ..linalg.factor import Vec, factor_stages, jacobian, solve_stages
from ..linalg.vectors import add, mean_square, times
from ..model.model import At
from .stages import Field

MAX_CHORD_ITERATIONS = 12  # for a step of another length than the recorded one


class Collocation(NamedTuple):
    """The equations `X_i = x + h sum_j a_ij f(X_j, Z_j)`, `0 = g(X_i, Z_i)` of one row (M42).

    The last node is the end of the step.
    """

    field: Field
    a: np.ndarray
    c: np.ndarray
    h: Scalar

    def residual(self, stages: list[Vec]) -> list[Vec]:
        """Differential rows `X_i - x - h sum_j a_ij f_j`, algebraic rows `-g_i`."""
        field, h = self.field, self.h
        tau, x, mass = field.at.tau, field.start(), field.mass()
        rest = tuple(v - 1.0 for v in mass)
        values = [
            field.rhs(tau + float(c) * h, y) for c, y in zip(self.c, stages, strict=True)
        ]  # fmt: skip
        out = []
        for i, y in enumerate(stages):
            terms = [(-float(a) * h, f) for a, f in zip(self.a[i], values, strict=True)]
            moved = add((1.0, y), (-1.0, x), *terms)
            out.append(add((1.0, times(mass, moved)), (1.0, times(rest, values[i]))))
        return out

    def factors(self, stages: list[Vec], compact: bool = False) -> Factored:
        """The factorised Jacobian of the residual at these stages, without derivatives."""
        field, h = frozen((self.field.at, self.field.par)), frozen(self.h)
        calm = Field(self.field.model, field[1], field[0])
        tau, layout = calm.at.tau, calm.layout
        jacs = [
            jacobian(lambda y, c=c: calm.rhs(tau + float(c) * h, y), y, layout.structure)
            for c, y in zip(self.c, frozen(stages), strict=True)
        ]
        return factor_stages(layout, jacs, calm.mass_numbers(), self.a, h, compact)

    def attached(self, stages: list[Vec], degree: int, compact: bool = False) -> At:
        """The end of the step, with `degree` derivatives; `stages` must solve the equations."""
        factors = self.factors(stages, compact)
        out = frozen(stages)
        for _ in range(degree):
            change = solve_stages(factors, self.residual(out))
            out = [add((1.0, y), (-1.0, d)) for y, d in zip(out, change, strict=True)]
        return self.end(out)

    def root(self, guess: list[Vec]) -> list[Vec]:
        """The stages, by Newton's method with the Jacobian at the guess; no derivatives."""
        calm = self._replace(
            field=Field(self.field.model, frozen(self.field.par), frozen(self.field.at)),
            h=frozen(self.h),
        )
        factors = calm.factors(guess, compact=True)

        def iterate(state: tuple) -> tuple:
            k, stages, _, last = state
            change = solve_stages(factors, calm.residual(stages))
            new = [add((1.0, y), (-1.0, d)) for y, d in zip(stages, change, strict=True)]
            size = jnp.sqrt(sum(mean_square(d) for d in change))
            scale = jnp.sqrt(sum(mean_square(y) for y in new))
            done = (size <= 1e-14 * scale) | ((size >= last) & (size <= 1e-9 * scale))
            return k + 1, new, done, size

        first = (jnp.zeros((), jnp.int32), guess, jnp.zeros((), bool), jnp.full((), jnp.inf))
        return frozen(
            jax.lax.while_loop(lambda s: (s[0] < MAX_CHORD_ITERATIONS) & ~s[2], iterate, first)[1]
        )

    def end(self, stages: list[Vec]) -> At:
        """The state at the last stage, with the integrals."""
        field, h, model = self.field, self.h, self.field.model
        q = model.integrals_of(field.at)
        if q:
            tau = field.at.tau
            rates = [
                field.both(tau + float(c) * h, y)[1] for c, y in zip(self.c, stages, strict=True)
            ]
            b = [float(v) for v in self.a[-1]]
            sums = [sum(w * r[i] for w, r in zip(b, rates, strict=True)) for i in range(len(q))]
            q = tuple((v + h * s).astype(v.dtype) for v, s in zip(q, sums, strict=True))
        return field.state(field.at.tau + h, stages[-1], q)
