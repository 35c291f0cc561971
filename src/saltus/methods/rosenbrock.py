"""Rosenbrock methods, for stiff ODEs and DAEs of index 1, without Newton iterations."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp

from ..base.leaves import Leaves, frozen
from ..base.types import Scalar, Tree
from ..linalg.dense import Factored
from ..linalg.factor import Vec, factor_shifted, jacobian, solve, with_columns
from ..linalg.vectors import add, times
from ..model.algebraic_states import attached, solved
from ..model.model import At, Model, Par
from .linearised_flow import Damping, Leading
from .method import Goal, Method, Stepper, Traits, Trial, larger, scales
from .stages import Field, damped, directional, norm_of
from .tableaus import RosenbrockTableau
from .tangent_error import blind


class Rosenbrock(Method):
    """A Rosenbrock method, for stiff ODEs and DAEs of index 1."""

    @property
    def tableau(self) -> RosenbrockTableau:
        raise NotImplementedError

    @property
    def stepper(self) -> RosenbrockStepper:
        return RosenbrockStepper(self.tableau)


@dataclasses.dataclass(frozen=True)
class RosenbrockStepper(Stepper):
    tableau: RosenbrockTableau

    @property
    def traits(self) -> Traits:
        tab = self.tableau
        leading = Leading(tab.error_order, tab.leading)
        return Traits(tab.name, tab.order, tab.error_order, leading)

    def attempt(
        self, model: Model, par: Par, goal: Goal, at: At, k: Leaves, h: Scalar, memory: Tree
    ) -> Trial:
        field, tab = Field(model, par, at), self.tableau
        step = _Step(tab, field, h)
        us, qs = step.values(k)
        y, m = field.start(), model.nx
        q = model.integrals_of(at)
        end = step.state(1.0, tab.b, us, qs)
        end = solved(model, end, par)[0]
        reached = field.layout.pack((*model.x_of(end), *end.z))
        scale = field.scale(goal, tuple(map(larger, y, reached)))
        parts = list(zip(add(*zip(tab.error, us, strict=True)), scale, strict=True))
        for i, e in enumerate(add(*zip(tab.error, qs, strict=True))):
            size = goal.atol[m + i] + goal.rtol * larger(q[i], model.integrals_of(end)[i])
            parts.append((e, size))
        middle = step.state(0.5, tab.mid, us, qs)
        slopes = [w / h for w in tab.mid_slope]
        slope = field.layout.unpack(add(*zip(slopes, us, strict=True)))[:m]
        q_slope = tuple(
            sum(s * u[i] for s, u in zip(slopes, qs, strict=True)) for i in range(len(q))
        )
        count = jnp.full((), tab.stages, jnp.int32)
        ends, atol = (model.moving_of(at), model.moving_of(end)), goal.atol[: model.moving]
        sizes = scales(goal, *ends, atol)
        places = (0, tab.stages // 2 - 1, tab.stages - 3)  # the last two stages are corrections
        some = [(*field.layout.unpack(us[j])[:m], *qs[j]) for j in places]
        moves = [sum(map(jnp.abs, v)) for v in zip(*some, strict=True)]
        lost = blind(model, moves, sizes, ends, atol)
        return Trial(
            end=end, k=model.flow(end, par), error=norm_of(parts), middle=middle,
            k_middle=(*slope, *q_slope), aux=(), memory=(), converged=jnp.ones((), bool),
            evaluations=count, blind=lost,
        )  # fmt: skip

    def damping(self, model: Model, par: Par, at: At, h: Scalar) -> Damping:
        field = Field(model, par, at)
        gamma = self.tableau.gamma
        factors = _Step(self.tableau, field, h).matrix()
        return Damping(damped(field, factors, 1.0 / gamma), gamma)

    def row(self, model: Model, par: Par, at: At, h: Scalar, aux: Leaves, degree: int) -> At:
        at = attached(model, at, par, degree)
        step = _Step(self.tableau, Field(model, par, at), h)
        us, qs = step.attached(degree)
        return step.state(1.0, self.tableau.b, us, qs)

    def redo(
        self, model: Model, par: Par, at: At, h: Scalar, aux: Leaves, length: Scalar
    ) -> tuple[At, Leaves]:
        return self.row(model, par, at, h, aux, 0), aux

    def reach(
        self, model: Model, par: Par, at: At, h: Scalar, aux: Leaves, length: Scalar, degree: int
    ) -> At:
        return self.row(model, par, at, h, aux, degree)


class _Step:
    """The stages of one step in a form that is finite at `h = 0` (M43).

    Unknowns `v = (kappa, u_z)` with increments `u = (h kappa, u_z)`: differential rows
    `kappa_i / gamma - f_y u_i = f(y + sum a_ij u_j) + sum c_ij kappa_j + h d_i f_t`, algebraic rows
    `-g_y u_i = g(y + sum a_ij u_j) + h d_i g_t`.
    """

    def __init__(self, tab: RosenbrockTableau, field: Field, h: Scalar):
        self.tab, self.field, self.h = tab, field, h
        self.mass = field.mass()
        shapes = len(field.layout.shapes) - field.model.nx
        per_leaf = [h] * field.model.nx + [1.0] * shapes
        self.stretch = field.layout.weights(per_leaf)  # v -> u

    def state(
        self, fraction: float, weights: Sequence[float], us: list[Vec], qs: list[Leaves]
    ) -> At:
        field = self.field
        y = add((1.0, field.start()), *[(float(w), u) for w, u in zip(weights, us, strict=True)])
        at = field.at
        q = tuple(
            (v + sum(float(w) * u[i] for w, u in zip(weights, qs, strict=True))).astype(v.dtype)
            for i, v in enumerate(field.model.integrals_of(at))
        )
        return field.state(at.tau + fraction * self.h, y, q)

    def matrix(self) -> Factored:
        """The factors of the stage matrix, without derivatives."""
        at, par = frozen((self.field.at, self.field.par))
        field = Field(self.field.model, par, at)
        layout = field.layout
        jac = jacobian(lambda y: field.rhs(at.tau, y), field.start(), layout.structure)
        jac = with_columns(layout, jac, frozen(self.stretch))
        return factor_shifted(layout, jac, field.mass_numbers(), 1.0 / self.tab.gamma)

    def _stage(self, i: int, vs: list[Vec], us: list[Vec]) -> tuple[Vec, Leaves]:
        """`F(Y_i) + M sum_j c_ij kappa_j`, and the rates at `Y_i`."""
        field = self.field
        y = field.start()
        if i:
            y = add((1.0, y), *zip(self.tab.a[i], us, strict=True))
        f, r = field.both(field.at.tau + self.tab.c[i] * self.h, y)
        if i:
            f = add(
                (1.0, f), (1.0, times(self.mass, add(*zip(self.tab.coupling[i], vs, strict=True))))
            )
        return f, r

    def _slope(self, i: int, u: Vec) -> tuple[Vec, Leaves]:
        """`F_y u + h d_i F_t`, also of the rates."""
        field = self.field
        tau = field.at.tau
        return directional(
            field, tau, field.start(), self.tab.d[i] * self.h * jnp.ones_like(tau), u
        )

    def _rate(self, i: int, r: Leaves, slope: Leaves, qs: list[Leaves]) -> Leaves:
        """The increment of the integrals: their rows of the stage equations."""
        out = []
        for j, v in enumerate(r):
            coupled = (
                sum(c * q[j] for c, q in zip(self.tab.coupling[i], qs, strict=True)) if i else 0.0
            )
            out.append(self.tab.gamma * (self.h * (v + slope[j]) + coupled))
        return tuple(out)

    def values(self, k: Leaves) -> tuple[list[Vec], list[Leaves]]:
        """The increments of all stages, without derivatives."""
        factors = self.matrix()
        field = self.field
        tau, y = field.at.tau, field.start()
        zero = tuple(jnp.zeros_like(v) for v in y)
        in_time = directional(field, tau, y, self.h * jnp.ones_like(tau), zero)[0]
        vs, us, qs = [], [], []
        n = field.model.nx
        none = [jnp.zeros(s) for s in field.rows.shapes[n:]]
        for i in range(self.tab.stages):
            if i:
                f, r = self._stage(i, vs, us)
            else:  # known from the flow at the start, where g is zero
                f, r = field.rows.pack((*k[:n], *none)), k[n:]
            v = solve(factors, add((1.0, f), (self.tab.d[i], in_time)))
            u = times(self.stretch, v)
            slope = self._slope(i, u)[1] if r else ()
            qs.append(self._rate(i, r, slope, qs))
            vs.append(v)
            us.append(u)
        return us, qs

    def attached(self, degree: int) -> tuple[list[Vec], list[Leaves]]:
        """The same with derivatives, which include those of the Jacobian (M44)."""
        factors = self.matrix()
        vs, us, qs = [], [], []
        for i in range(self.tab.stages):
            f, r = self._stage(i, vs, us)
            zero = tuple(jnp.zeros_like(e) for e in f)
            start = frozen(add((1.0, f), (1.0, self._slope(i, zero)[0])))
            v = frozen(solve(factors, start))
            slope: Leaves = ()
            for _ in range(degree):
                linear, slope = self._slope(i, times(self.stretch, v))
                left = add((1.0 / self.tab.gamma, times(self.mass, v)), (-1.0, linear), (-1.0, f))
                v = add((1.0, v), (-1.0, solve(factors, left)))
            u = times(self.stretch, v)
            if r:
                slope = self._slope(i, u)[1]
            qs.append(self._rate(i, r, slope, qs))
            vs.append(v)
            us.append(u)
        return us, qs
