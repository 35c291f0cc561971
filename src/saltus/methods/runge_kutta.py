"""Explicit Runge-Kutta pairs on tuples of leaves."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves, Shapes, combine, float_shapes, rms
from ..base.types import Array, Scalar, Tree, Whole
from ..model.algebraic_states import attached, determined, solved
from ..model.model import At, Model, Par
from .linearised_flow import Leading
from .method import Goal, Method, Stepper, Traits, Trial, scales
from .tableaus import Tableau
from .tangent_error import blind

Flow = Callable[[Scalar, Leaves], Leaves]


class Explicit(Method):
    """An explicit method. In systems of index 1, z is solved inside the flow."""

    @property
    def tableau(self) -> Tableau:
        raise NotImplementedError

    @property
    def stepper(self) -> ExplicitStepper:
        return ExplicitStepper(self.tableau)


@dataclasses.dataclass(frozen=True)
class ExplicitStepper(Stepper):
    tableau: Tableau

    @property
    def traits(self) -> Traits:
        tab = self.tableau
        return Traits(tab.name, tab.order, tab.error_order, leading(tab))

    def light(self, model: Model) -> bool:
        return model.light

    def aux(self, model: Model) -> Shapes:
        """The algebraic states at all stages but the first and the last."""
        if model.constraint is None:
            return ()
        return float_shapes(model.constraint.shapes) * (self.tableau.stages - 2)

    def attempt(
        self, model: Model, par: Par, goal: Goal, at: At, k: Leaves, h: Scalar, memory: Tree
    ) -> Trial:
        tab, m = self.tableau, model.moving
        seek = _Seeker(model, par, at)
        x = model.moving_of(at)
        end, ks = full_step(tab, seek.flow, at.tau, x, h, k, stage_maker(model))
        sizes = scales(goal, x, end, goal.atol[:m])
        error = error_norm(tab, sizes, h, ks)
        lost = blind(model, _moves(h, ks), sizes, (x, end), goal.atol[:m])
        *inside, z = seek.found
        last = model.with_moving(at, end, tau=at.tau + h, z=z)
        x_mid, k_mid = middle(tab, x, h, ks)
        mid = model.with_moving(at, x_mid, tau=at.tau + 0.5 * h)
        if model.constraint is not None and any(model.constraint.seen):
            mid = solved(model, mid, par)[0]
        count = jnp.full((), tab.stages - 1, jnp.int32)
        aux = tuple(v for z in inside for v in z)
        yes = jnp.ones((), bool)
        return Trial(
            end=last, k=ks[-1], error=error, middle=mid, k_middle=k_mid, aux=aux, memory=(),
            converged=yes, evaluations=count, blind=lost,
        )  # fmt: skip

    def row(self, model: Model, par: Par, at: At, h: Scalar, aux: Leaves, degree: int) -> At:
        n = model.n_z
        known = [at.z, *(aux[k : k + n] for k in range(0, len(aux), n or 1))]
        return self._end(at, h, _Recorded(model, par, at, degree, known))

    def redo(
        self, model: Model, par: Par, at: At, h: Scalar, aux: Leaves, length: Scalar
    ) -> tuple[At, Leaves]:
        seek = _Seeker(model, par, at)
        end = self._end(at, h, seek)
        return end, tuple(v for z in seek.found[1:] for v in z)

    def reach(
        self, model: Model, par: Par, at: At, h: Scalar, aux: Leaves, length: Scalar, degree: int
    ) -> At:
        return self._end(at, h, _Seeker(model, par, at, degree))

    def _end(self, at: At, h: Scalar, along: _Seeker) -> At:
        model = along.model
        x = model.moving_of(at)
        end = step(self.tableau, along.flow, at.tau, x, h, stage_maker(model))
        return model.with_moving(at, end, tau=at.tau + h, z=along.found[-1])


class _Seeker:
    """The flow as a function of time and moving leaves; z is solved from its last value."""

    def __init__(self, model: Model, par: Par, at: At, degree: int = 0):
        self.model, self.par, self.at, self.degree = model, par, at, degree
        self.found: list[Leaves] = []

    def flow(self, s: Scalar, moving: Leaves) -> Leaves:
        model, par, at = self.model, self.par, self.at
        guess = self.found[-1] if self.found else at.z
        here = self.state(model.with_moving(at, moving, tau=s, z=guess))
        self.found.append(here.z)
        return model.flow(here, par)

    def state(self, here: At) -> At:
        return determined(self.model, here, self.par, self.degree)


class _Recorded(_Seeker):
    """The same if the algebraic states of all stages are known."""

    def __init__(self, model: Model, par: Par, at: At, degree: int, known: list[Leaves]):
        super().__init__(model, par, at, degree)
        self.known = known

    def state(self, here: At) -> At:
        z = self.known[len(self.found)] if self.model.n_z else ()
        return attached(self.model, here._replace(z=z), self.par, self.degree)


def stage_maker(model: Model) -> Callable:
    """The function that computes the stages: written out, or in a loop if the flow is long."""
    return rolled_stages if model.long and model.constraint is None else stages


def stages(
    tab: Tableau, flow: Flow, t: Scalar, x: Leaves, h: Scalar, known: list[Leaves], count: int
) -> list[Leaves]:
    """The first `count` stages, some of them `known`."""
    ks = list(known)
    for j in range(len(ks), count):
        ks.append(flow(t + tab.c[j] * h, combine(x, h, tab.a[j], ks)))
    return ks


def rolled_stages(
    tab: Tableau, flow: Flow, t: Scalar, x: Leaves, h: Scalar, known: list[Leaves], count: int
) -> list[Leaves]:
    """The same in a loop, so that a program contains a long flow once."""
    full = np.zeros((tab.stages, tab.stages))
    for j, row in enumerate(tab.a):
        full[j, : len(row)] = row
    a, c = jnp.asarray(full[:count, :count]), jnp.asarray(tab.c[:count])
    room = [(count - len(known), *v.shape) for v in x]
    ks = tuple(
        jnp.concatenate([*(k[i][None] for k in known), jnp.zeros(shape, v.dtype)])
        for i, (v, shape) in enumerate(zip(x, room, strict=True))
    )

    def one(j: Whole, ks: Leaves) -> Leaves:
        row = jax.lax.dynamic_index_in_dim(a, j, keepdims=False)
        here = tuple(v + h * jnp.tensordot(row, k, 1) for v, k in zip(x, ks, strict=True))
        here = tuple(v.astype(old.dtype) for v, old in zip(here, x, strict=True))
        new = flow(t + jax.lax.dynamic_index_in_dim(c, j, keepdims=False) * h, here)
        put = jax.lax.dynamic_update_index_in_dim
        return tuple(put(k, v.astype(k.dtype), j, 0) for k, v in zip(ks, new, strict=True))

    ks = jax.lax.fori_loop(len(known), count, one, ks)
    return [tuple(k[j] for k in ks) for j in range(count)]


def step(
    tab: Tableau, flow: Flow, t: Scalar, x: Leaves, h: Scalar, make: Callable = stages
) -> Leaves:
    """The step map (M3): `x + h sum b_i k_i`, finite and smooth at `h = 0`."""
    return combine(x, h, tab.b[:-1], make(tab, flow, t, x, h, [], tab.stages - 1))


def full_step(
    tab: Tableau, flow: Flow, t: Scalar, x: Leaves, h: Scalar, k1: Leaves, make: Callable = stages
) -> tuple[Leaves, list[Leaves]]:
    """The end of the step and all stages; the last stage is the flow at the end."""
    ks = make(tab, flow, t, x, h, [k1], tab.stages)
    return combine(x, h, tab.b[:-1], ks[:-1]), ks


def error_norm(tab: Tableau, sizes: Sequence[Array], h: Scalar, ks: Sequence[Leaves]) -> Scalar:
    """The scaled error of a step (M20)."""
    zero = tuple(jnp.zeros_like(k) for k in ks[0])
    norms = []
    for weights in tab.error:
        error = combine(zero, h, weights, ks)
        norms.append(rms([e / s for e, s in zip(error, sizes, strict=True)]))
    if len(norms) == 1:
        return norms[0]
    fifth, third = norms[0] ** 2, norms[1] ** 2
    return jnp.where(fifth == 0, fifth, fifth / jnp.sqrt(fifth + 0.01 * third + 1e-300))


@functools.cache
def leading(tab: Tableau) -> Leading:
    """The leading term of the error estimate on `x' = lambda x`; two are combined as in M20."""
    full = np.zeros((tab.stages, tab.stages))
    for j, row in enumerate(tab.a):
        full[j, : len(row)] = row
    found = []
    for weights in tab.error:
        v, degree = np.ones(tab.stages), 1
        while abs(weights @ v) < 1e-12:
            v, degree = full @ v, degree + 1
        found.append(Leading(degree, abs(float(weights @ v))))
    if len(found) == 1:
        return found[0]
    fifth, third = found
    size = fifth.coefficient**2 / (0.1 * third.coefficient)
    return Leading(2 * fifth.degree - third.degree, size)


def _moves(h: Scalar, ks: Sequence[Leaves]) -> Leaves:
    """A bound on how far each leaf moves in a step, from three stages."""
    some = zip(ks[0], ks[len(ks) // 2], ks[-1], strict=True)
    return tuple(jnp.abs(h) * (jnp.abs(a) + jnp.abs(b) + jnp.abs(c)) for a, b, c in some)


def middle(tab: Tableau, x: Leaves, h: Scalar, ks: Sequence[Leaves]) -> tuple[Leaves, Leaves]:
    """State and slope in the middle of the step, from its stages."""
    zero = tuple(jnp.zeros_like(leaf) for leaf in x)
    return combine(x, h, tab.mid, ks), combine(zero, 1.0, tab.mid_slope, ks)
