"""Radau IIA with three stages, order 5: stiff equations, index 1 and Hessenberg index 2.

Notation and the reduction of a step to one real and one complex system follow Hairer and Wanner,
Solving Ordinary Differential Equations II, IV.8 and VI.1, VII.4.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.foreign_parts import METHOD, constructs
from ..base.leaves import Leaves, Shapes, frozen
from ..base.types import Flag, Scalar, Whole
from ..linalg.dense import Factored
from ..linalg.factor import Jacobian, Vec, factor_shifted, jacobian, solve
from ..linalg.vectors import add, mean_square, times
from ..model.algebraic_states import solved
from ..model.model import At, Model, Par
from ..model.taylor import drift
from . import jacobian_reuse
from .collocation import Collocation
from .linearised_flow import Damping, Leading
from .method import Goal, Method, Stepper, Traits, Trial, scales
from .radau_polynomial import ROOT, C, lagrange, lagrange_slopes, quadrature
from .stages import Field, damped, norm_of, unknowns
from .tangent_error import blind

A = np.array([[c ** (k + 1) / (k + 1) for k in range(3)] for c in C]) @ np.linalg.inv(
    np.vander(C, 3, increasing=True)
)
# The error estimate subtracts a formula of order 3 that also uses the flow at the start.
ERROR = np.array([-13 - 7 * ROOT, -13 + 7 * ROOT, -1.0]) / 3


def _decouple() -> tuple[float, complex, np.ndarray, np.ndarray]:
    """A real T such that T^-1 A^-1 T decouples into a real and a complex equation (M39)."""
    values, vectors = np.linalg.eig(np.linalg.inv(A))
    real = int(np.argmin(np.abs(np.imag(values))))
    pair = int(np.argmax(np.imag(values)))
    v = vectors[:, pair]
    t = np.stack([np.real(vectors[:, real]), np.real(v), np.imag(v)], axis=1)
    return float(np.real(values[real])), complex(np.conj(values[pair])), t, np.linalg.inv(t)


REAL, PAIR, T, T_INV = _decouple()


@constructs(METHOD)
class Radau5(Method):
    """Radau IIA of order 5, for stiff ODEs and for DAEs of index 1 and 2.

    Settings: see `saltus.methods.Method`."""

    highest_index = 2

    @property
    def stepper(self) -> RadauStepper:
        return RadauStepper()

    def tolerance(self, rtol: Scalar) -> Scalar:
        # The estimate has order 3, the solution order 5.
        return 0.01 * rtol ** (2.0 / 3.0)


class Memory(NamedTuple):
    """The last collocation polynomial: its increments at the stages, and the step's length."""

    increments: tuple[Vec, ...]
    length: Scalar
    ahead: Scalar  # 1 once the loop has moved to the end of that step
    kept: jacobian_reuse.Kept | tuple[()] = ()  # Jacobian and factors of large systems


class _Iterate(NamedTuple):
    k: Whole
    w: tuple[Vec, Vec, Vec]
    size: Scalar
    rate: Scalar
    done: Flag
    lost: Flag


MAX_NEWTON_ITERATIONS = 10
TRAITS = Traits("Radau5", 5, error_order=4, leading=Leading(4, 4.58e-3), shortest=1e-6)


@dataclasses.dataclass(frozen=True)
class RadauStepper(Stepper):
    @property
    def traits(self) -> Traits:
        return TRAITS

    def steady(self, model: Model) -> bool:
        return jacobian_reuse.worthwhile(unknowns(model))

    def memory(self, model: Model) -> Memory:
        layout = unknowns(model)
        zero = layout.zeros()
        kept = jacobian_reuse.nothing_kept(layout, _factors(model)) if self.steady(model) else ()
        inc = (zero, zero, zero)
        return Memory(increments=inc, length=jnp.ones(()), ahead=jnp.zeros(()), kept=kept)

    def aux(self, model: Model) -> Shapes:
        return unknowns(model).packed * 3

    def accepted(self, memory: Memory) -> Memory:
        kept = jacobian_reuse.moved(memory.kept) if memory.kept else ()
        return memory._replace(ahead=jnp.ones(()), kept=kept)

    def attempt(
        self, model: Model, par: Par, goal: Goal, at: At, k: Leaves, h: Scalar, memory: Memory
    ) -> Trial:
        field = Field(model, par, at)
        y, mass = field.start(), field.mass()
        factors, kept = _factors(model), memory.kept

        def jac() -> Jacobian:
            return jacobian(functools.partial(field.rhs, at.tau), y, field.layout.structure)

        if kept:
            kept = jacobian_reuse.renewed(kept, h, jac, factors)
            (real, pair), slopes = kept.factors, kept.jac
        else:
            slopes = jac()
            real, pair = factors(slopes, h)
        scale = field.felt(field.scale(goal, y, jnp.minimum(jnp.abs(h), 1.0)), slopes, h)
        state = _newton(field, goal, h, y, mass, scale, (real, pair), _predicted(memory, h))
        inc = _untransformed(state.w)
        stages = [add((1.0, y), (1.0, z)) for z in inc]
        rates = [field.both(at.tau + c * h, s)[1] for c, s in zip(C, stages, strict=True)]
        q = model.integrals_of(at)
        q_end = tuple(
            (v + h * sum(float(A[2, j]) * r[i] for j, r in enumerate(rates))).astype(v.dtype)
            for i, v in enumerate(q)
        )  # fmt: skip
        end = field.state(at.tau + h, stages[2], q_end)
        if model.constraint is not None and model.constraint.highest == 2:
            end = solved(model, end, par)[0]
        error = _error(field, goal, h, k, y, mass, real, inc, rates, q_end, scale)
        middle, k_middle = _middle(field, h, y, inc, q, rates)
        aux = tuple(v for vec in stages for v in vec)
        converged = state.done & ~state.lost
        fresh = tuple(tuple(jnp.where(converged, v, 0.0) for v in vec) for vec in inc)
        retry = ~converged & kept.stale if kept else False
        kept = jacobian_reuse.judged(kept, converged, state.rate) if kept else ()
        new = Memory(increments=fresh, length=jnp.asarray(h), ahead=jnp.zeros(()), kept=kept)
        count = 3 * state.k + 2
        ways = zip(*(field.layout.unpack(tuple(map(jnp.abs, v))) for v in inc), strict=True)
        moves = [sum(v) for v in ways][: model.nx]
        moves += [jnp.abs(h) * sum(map(jnp.abs, r)) for r in zip(*rates, strict=True)]
        ends, atol = (model.moving_of(at), model.moving_of(end)), goal.atol[: model.moving]
        sizes = scales(goal, *ends, atol)
        lost = blind(model, moves, sizes, ends, atol)
        k_end = model.flow(end, par)
        return Trial(
            end=end, k=k_end, error=error, middle=middle, k_middle=k_middle, aux=aux, memory=new,
            converged=converged, evaluations=count, retry=retry, blind=lost,
        )  # fmt: skip

    def damping(self, model: Model, par: Par, at: At, h: Scalar) -> Damping:
        field = Field(model, par, at)
        jac = jacobian(functools.partial(field.rhs, at.tau), field.start(), field.layout.structure)
        factors = factor_shifted(field.layout, jac, field.mass_numbers(), REAL / h)
        return Damping(damped(field, factors, REAL / h), 1 / REAL)

    def halved(self, model: Model, at: At, aux: Leaves) -> Leaves:
        y = unknowns(model).pack((*model.x_of(at), *at.z))
        inc = [add((1.0, s), (-1.0, y)) for s in _stages(aux)]
        out = [add((1.0, y), *zip(lagrange(0.5 + 0.5 * float(c)), inc, strict=True)) for c in C]
        return tuple(v for vec in frozen(out) for v in vec)

    def row(self, model: Model, par: Par, at: At, h: Scalar, aux: Leaves, degree: int) -> At:
        field = Field(model, par, at)
        return Collocation(field, A, C, h).attached(_stages(aux), degree, compact=degree > 1)

    def redo(
        self, model: Model, par: Par, at: At, h: Scalar, aux: Leaves, length: Scalar
    ) -> tuple[At, Leaves]:
        step = Collocation(Field(model, par, at), A, C, h)
        root = step.root(_guess(step.field, h, aux, length))
        return step.end(root), tuple(v for vec in root for v in vec)

    def reach(
        self, model: Model, par: Par, at: At, h: Scalar, aux: Leaves, length: Scalar, degree: int
    ) -> At:
        """The end of a step of length `h` in a row of this `length`; by Taylor if it is short."""
        size = jnp.abs(length)
        short = (jnp.abs(h) <= self.shortest * size) | (size == 0)
        whole = jnp.where(size > 0, length, 1.0)
        safe = jnp.where(short, whole, h)
        calm = jax.tree.map(
            lambda v: jnp.where(short, jax.lax.stop_gradient(v), v), (at, par.theta)
        )
        field = Field(model, par._replace(theta=calm[1]), calm[0])
        step = Collocation(field, A, C, safe)
        long = step.attached(step.root(_guess(field, safe, aux, whole)), degree, compact=True)
        brief = drift(model, at, par, jnp.where(short, h, 0.0), max(degree, 2))
        w, z = jax.tree.map(
            lambda a, b: jnp.where(short, a, b), (brief.w, brief.z), (long.w, long.z)
        )
        return At(at.tau + h, w, at.i, z)


def _guess(field: Field, h: Scalar, aux: Leaves, length: Scalar) -> list[Vec]:
    """Stages of a step of length `h`, from the polynomial of a step of another length."""
    y = frozen(field.start())
    inc = [add((1.0, s), (-1.0, y)) for s in frozen(_stages(aux))]
    ratio = frozen(h / length)
    return [add((1.0, y), *zip(lagrange(float(c) * ratio), inc, strict=True)) for c in C]


def _factors(model: Model) -> jacobian_reuse.Factoring:
    """The real and the complex factors as a function of the Jacobian and the length (M39)."""
    field = Field(model, None, None)  # type: ignore[arg-type]
    layout, numbers = field.layout, field.mass_numbers()

    def made(jac: Jacobian, h: Scalar) -> tuple[Factored, Factored]:
        real = factor_shifted(layout, jac, numbers, REAL / h)
        return real, factor_shifted(layout, jac, numbers, PAIR / h)

    return made


def _stages(aux: Leaves) -> list[Vec]:
    n = len(aux) // 3
    return [tuple(aux[n * i : n * (i + 1)]) for i in range(3)]


def _untransformed(w: tuple[Vec, ...]) -> list[Vec]:
    return [add(*[(float(T[i, j]), w[j]) for j in range(3)]) for i in range(3)]


def _transformed(z: Sequence[Vec]) -> tuple[Vec, Vec, Vec]:
    rows = [add(*[(float(T_INV[i, j]), z[j]) for j in range(3)]) for i in range(3)]
    return rows[0], rows[1], rows[2]


def _predicted(memory: Memory, h: Scalar) -> list[Vec]:
    """Increments by the last polynomial, for the next step or for the same one, shortened."""
    ratio = h / memory.length
    base = [memory.ahead * v for v in lagrange(1.0)]
    out = []
    for c in C:
        weights = lagrange(memory.ahead + float(c) * ratio)
        weights = [w - b for w, b in zip(weights, base, strict=True)]
        out.append(add(*zip(weights, memory.increments, strict=True)))
    return out


def _corrections(
    field: Field,
    h: Scalar,
    y: Vec,
    mass: Vec,
    factors: tuple[Factored, Factored],
    w: tuple[Vec, ...],
) -> tuple[Vec, Vec, Vec]:
    """One Newton correction of the transformed increments `w`: a real and a complex system."""
    real, pair = factors
    values = [
        field.rhs(field.at.tau + float(c) * h, add((1.0, y), (1.0, v)), i + 1)
        for i, (c, v) in enumerate(zip(C, _untransformed(w), strict=True))
    ]
    f = _transformed(values)
    r0 = add((1.0, f[0]), (-REAL / h, times(mass, w[0])))
    both = tuple(jax.lax.complex(a, b) for a, b in zip(w[1], w[2], strict=True))
    fc = tuple(jax.lax.complex(a, b) for a, b in zip(f[1], f[2], strict=True))
    rc = add((1.0, fc), (-PAIR / h, times(mass, both)))
    d0, dc = solve(real, r0), solve(pair, rc)
    return d0, tuple(v.real for v in dc), tuple(v.imag for v in dc)


def _newton(
    field: Field,
    goal: Goal,
    h: Scalar,
    y: Vec,
    mass: Vec,
    scale: Vec,
    factors: tuple[Factored, Factored],
    guess: list[Vec],
) -> _Iterate:
    """Simplified Newton on the decoupled systems (M40)."""
    least = 1e-12 if not goal.adaptive else None
    floor = 1e-14 / goal.rtol  # corrections of this size are rounding
    wanted = jnp.maximum(10 * floor, jnp.minimum(3e-3, 0.1 * jnp.sqrt(goal.rtol)))

    def iterate(s: _Iterate) -> _Iterate:
        change = _corrections(field, h, y, mass, factors, s.w)
        total = sum(
            mean_square(tuple(a / b for a, b in zip(d, scale, strict=True))) for d in change
        )
        size = jnp.sqrt(total / 3)
        rate = jnp.where(s.k > 0, size / s.size, s.rate)
        bound = jnp.where(rate < 1, rate / (1 - rate), jnp.inf) * size
        stuck = (s.k > 1) & (rate > 0.3) & (size <= 3e-3)  # by rounding in the equations
        done = (size <= floor) | ((s.k > 0) & (bound <= wanted)) | stuck
        if least is not None:
            done = (
                (size == 0)
                | ((s.k > 0) & (size <= least / goal.rtol))
                | (s.k >= MAX_NEWTON_ITERATIONS - 1)
            )
        lost = ~jnp.isfinite(size) | ((s.k > 1) & (rate > 1.0) & ~done & (least is None))
        w = [add((1.0, a), (1.0, b)) for a, b in zip(s.w, change, strict=True)]
        return _Iterate(k=s.k + 1, w=(w[0], w[1], w[2]), size=size, rate=rate, done=done, lost=lost)

    def going(s: _Iterate) -> Flag:
        return ~s.done & ~s.lost & (s.k < MAX_NEWTON_ITERATIONS)

    no = jnp.zeros((), bool)
    first = _Iterate(
        k=jnp.zeros((), jnp.int32),
        w=_transformed(guess),
        size=jnp.ones(()),
        rate=jnp.ones(()),
        done=no,
        lost=no,
    )
    return jax.lax.while_loop(going, iterate, first)


def _error(
    field: Field, goal: Goal, h: Scalar, k: Leaves, y: Vec, mass: Vec, real: Factored,
    inc: list[Vec], rates: list[Leaves], q_end: Leaves, scale: Vec,
) -> Scalar:  # fmt: skip
    """The scaled error of a step (M41): filtered, and filtered again where it is too large."""
    model, at = field.model, field.at
    jump = times(mass, add(*[(float(e) / h, z) for e, z in zip(ERROR, inc, strict=True)]))
    zero = tuple(jnp.zeros_like(v) for v in at.z)
    shapes = field.rows.shapes[model.nx :]
    g = tuple(jnp.zeros(s) for s in shapes) if zero else ()
    f0 = field.rows.pack((*k[: model.nx], *g))
    error = solve(real, add((1.0, f0), (1.0, jump)))
    parts = list(zip(error, scale, strict=True))
    first = norm_of(parts)

    def again() -> Scalar:
        f = field.rhs(at.tau, add((1.0, y), (1.0, error)))
        second = solve(real, add((1.0, f), (1.0, jump)))
        return norm_of(list(zip(second, scale, strict=True)))

    best = jax.lax.cond((first > 1.0) & jnp.isfinite(first), again, lambda: first)
    if not rates[0]:
        return best
    lead = h / REAL
    extra = jax.jvp(lambda v: field.both(at.tau, v)[1], (y,), (error,))[1]
    parts_q = []
    for i, r0 in enumerate(k[model.nx :]):
        z_q = [sum(float(A[s, j]) * rates[j][i] for j in range(3)) for s in range(3)]
        e = lead * (r0 + sum(float(w) * z for w, z in zip(ERROR, z_q, strict=True)) + extra[i])
        q0, atol = model.integrals_of(at)[i], goal.atol[model.nx + i]
        size = atol + goal.rtol * jnp.maximum(jnp.abs(q0), jnp.abs(q_end[i]))
        parts_q.append((e, size))
    n, m = sum(v.size for v in error), sum(e.size for e, _ in parts_q)
    return jnp.sqrt((n * best**2 + m * norm_of(parts_q) ** 2) / (n + m))


def _middle(
    field: Field, h: Scalar, y: Vec, inc: list[Vec], q: Leaves, rates: list[Leaves]
) -> tuple[At, Leaves]:
    """State and slope half way, from the collocation polynomial."""
    weights, slopes = lagrange(0.5), lagrange_slopes(0.5)
    half = add((1.0, y), *[(float(w), z) for w, z in zip(weights, inc, strict=True)])
    slope = add(*[(w / h, z) for w, z in zip(slopes, inc, strict=True)])
    b, b_slope = quadrature(0.5)
    q_half = tuple(v + h * sum(b[j] * r[i] for j, r in enumerate(rates)) for i, v in enumerate(q))
    q_slope = tuple(sum(b_slope[j] * r[i] for j, r in enumerate(rates)) for i in range(len(q)))
    at = field.state(field.at.tau + 0.5 * h, half, q_half)
    leaves = field.layout.unpack(slope)[: field.model.nx]
    return at, (*leaves, *q_slope)
