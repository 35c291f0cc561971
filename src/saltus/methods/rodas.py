"""Rodas5P, a Rosenbrock method of order 5: stiff equations and index 1, without Newton.

Coefficients: G. Steinebach, Construction of Rosenbrock-Wanner method Rodas5P and numerical
benchmarks within the Julia Differential Equations package, BIT 63:27 (2023).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves, Shapes, frozen
from ..linalg.factor import Vec, factor_shifted, jacobian, solve, with_columns
from ..linalg.vectors import add, times
from ..model.algebraic_states import attached, solved
from ..model.model import At, Model, Par
from .linearised_flow import Damping, Leading
from .method import Goal, Method, Trial, larger, scales
from .stages import Field, damped, directional, norm_of
from .tangent_error import blind

GAMMA = 0.21193756319429014
_A6 = [
    -7.502846399306121, 2.561846144803919, -11.627539656261098, -0.18268767659942256,
    0.030198172008377946,
]  # fmt: skip
A = [
    [],
    [3.0],
    [2.849394379747939, 0.45842242204463923],
    [-6.954028509809101, 2.489845061869568, -10.358996098473584],
    [2.8029986275628964, 0.5072464736228206, -0.3988312541770524, -0.04721187230404641],
    _A6,
    [*_A6, 1.0],
    [*_A6, 1.0, 1.0],
]
COUPLING = [
    [],
    [-14.155112264123755],
    [-17.97296035885952, -2.859693295451294],
    [147.12150275711716, -1.41221402718213, 71.68940251302358],
    [165.43517024871676, -0.4592823456491126, 42.90938336958603, -5.961986721573306],
    [
        24.854864614690072, -3.0009227002832186, 47.4931110020768, 5.5814197821558125,
        -0.6610691825249471,
    ],
    [
        30.91273214028599, -3.1208243349937974, 77.79954646070892, 34.28646028294783,
        -19.097331116725623, -28.087943162872662,
    ],
    [
        37.80277123390563, -3.2571969029072276, 112.26918849496327, 66.9347231244047,
        -40.06618937091002, -54.66780262877968, -9.48861652309627,
    ],
]  # fmt: skip
B = [*_A6, 1.0, 1.0, 1.0]
C = [
    0.0, 0.6358126895828704, 0.4095798393397535, 0.9769306725060716, 0.4288403609558664,
    1.0, 1.0, 1.0,
]  # fmt: skip
D = [
    GAMMA, -0.42387512638858027, -0.3384627126235924, 1.8046452872882734, 2.325825639765069,
    0.0, 0.0, 0.0,
]  # fmt: skip
H = np.array([
    [
        25.948786856663858, -2.5579724845846235, 10.433815404888879, -2.3679251022685204,
        0.524948541321073, 1.1241088310450404, 0.4272876194431874, -0.17202221070155493,
    ],
    [
        -9.91568850695171, -0.9689944594115154, 3.0438037242978453, -24.495224566215796,
        20.176138334709044, 15.98066361424651, -6.789040303419874, -6.710236069923372,
    ],
    [
        11.419903575922262, 2.8879645146136994, 72.92137995996029, 80.12511834622643,
        -52.072871366152654, -59.78993625266729, -0.15582684282751913, 4.883087185713722,
    ],
])  # fmt: skip
# y(s) = (1 - s) y0 + s (y1 + (1 - s) (D1 + s D2 + s^2 D3)), D = H u: at s = 1/2
MIDDLE = 0.25 * (H[0] + 0.5 * H[1] + 0.25 * H[2])
MIDDLE_SLOPE = 0.25 * (H[1] + H[2])
LEADING = 1.24e-4  # times (h lambda)^5: the error estimate of a step on x' = lambda x


class Rodas5P(Method):
    """Rodas5P of order 5(4): for stiff equations and DAEs of index 1, without Newton iterations."""

    @property
    def stepper(self) -> RodasStepper:
        return RodasStepper()


@dataclasses.dataclass(frozen=True)
class RodasStepper:
    name: str = "Rodas5P"
    order: int = 5
    error_order: int = 5
    shortest: float = 0.0

    def light(self, model: Model) -> bool:
        return False

    def steady(self, model: Model) -> bool:
        return False

    def memory(self, model: Model) -> tuple:
        return ()

    def aux(self, model: Model) -> Shapes:
        return ()

    def accepted(self, memory: tuple) -> tuple:
        return memory

    def attempt(
        self, model: Model, par: Par, goal: Goal, at: At, k: Leaves, h: Any, memory: tuple
    ) -> Trial:
        field = Field(model, par, at)
        step = _Step(field, h)
        us, qs = step.values(k)
        y, m = field.start(), model.nx
        q = model.integrals_of(at)
        end = step.state(1.0, B, us, qs)
        end = solved(model, end, par)[0]
        reached = field.layout.pack((*model.x_of(end), *end.z))
        scale = field.scale(goal, tuple(map(larger, y, reached)))
        parts = list(zip(us[-1], scale, strict=True))
        for i, e in enumerate(qs[-1]):
            size = goal.atol[m + i] + goal.rtol * larger(q[i], model.integrals_of(end)[i])
            parts.append((e, size))
        last = [*B]
        weights = [w + 0.5 * b for w, b in zip(MIDDLE, last, strict=True)]
        middle = step.state(0.5, weights, us, qs)
        slopes = [(w + b) / h for w, b in zip(MIDDLE_SLOPE, last, strict=True)]
        slope = field.layout.unpack(add(*zip(slopes, us, strict=True)))[:m]
        q_slope = tuple(
            sum(s * u[i] for s, u in zip(slopes, qs, strict=True)) for i in range(len(q))
        )
        count = jnp.full((), 8, jnp.int32)
        sizes = scales(goal, model.moving_of(at), model.moving_of(end), goal.atol[: model.moving])
        some = [(*field.layout.unpack(us[j])[:m], *qs[j]) for j in (0, 3, 5)]
        moves = [sum(map(jnp.abs, v)) for v in zip(*some, strict=True)]
        lost = blind(model, moves, sizes)
        return Trial(
            end, model.flow(end, par), norm_of(parts), middle, (*slope, *q_slope), (), (),
            jnp.ones((), bool), count, False, lost,
        )  # fmt: skip

    @property
    def leading(self) -> Leading:
        return Leading(5, LEADING)

    def damping(self, model: Model, par: Par, at: At, h: Any) -> Damping:
        field = Field(model, par, at)
        return Damping(damped(field, _Step(field, h).matrix(), 1.0 / GAMMA), GAMMA)

    def halved(self, model: Model, at: At, aux: Leaves) -> Leaves:
        return aux

    def row(self, model: Model, par: Par, at: At, h: Any, aux: Leaves, degree: int) -> At:
        at = attached(model, at, par, degree)
        step = _Step(Field(model, par, at), h)
        us, qs = step.attached(degree)
        return step.state(1.0, B, us, qs)

    def redo(
        self, model: Model, par: Par, at: At, h: Any, aux: Leaves, length: Any
    ) -> tuple[At, Leaves]:
        return self.row(model, par, at, h, aux, 0), aux

    def reach(
        self, model: Model, par: Par, at: At, h: Any, aux: Leaves, length: Any, degree: int
    ) -> At:
        return self.row(model, par, at, h, aux, degree)


class _Step:
    """The stages of one step in a form that is finite at `h = 0` (M43).

    Unknowns `v = (kappa, u_z)` with increments `u = (h kappa, u_z)`: differential rows
    `kappa_i / gamma - f_y u_i = f(y + sum a_ij u_j) + sum c_ij kappa_j + h d_i f_t`, algebraic rows
    `-g_y u_i = g(y + sum a_ij u_j) + h d_i g_t`.
    """

    def __init__(self, field: Field, h: Any):
        self.field, self.h = field, h
        self.mass = field.mass()
        shapes = len(field.layout.shapes) - field.model.nx
        per_leaf = [h] * field.model.nx + [1.0] * shapes
        self.stretch = field.layout.weights(per_leaf)  # v -> u

    def state(self, fraction: float, weights: Any, us: list[Vec], qs: list[Leaves]) -> At:
        field = self.field
        y = add((1.0, field.start()), *[(float(w), u) for w, u in zip(weights, us, strict=True)])
        at = field.at
        q = tuple(
            (v + sum(float(w) * u[i] for w, u in zip(weights, qs, strict=True))).astype(v.dtype)
            for i, v in enumerate(field.model.integrals_of(at))
        )
        return field.state(at.tau + fraction * self.h, y, q)

    def matrix(self) -> Any:
        """The factors of the stage matrix, without derivatives."""
        at, par = frozen((self.field.at, self.field.par))
        field = Field(self.field.model, par, at)
        layout = field.layout
        jac = jacobian(lambda y: field.rhs(at.tau, y), field.start(), layout.structure)
        jac = with_columns(layout, jac, frozen(self.stretch))
        return factor_shifted(layout, jac, field.mass_numbers(), 1.0 / GAMMA)

    def _stage(self, i: int, vs: list[Vec], us: list[Vec]) -> tuple[Vec, Leaves]:
        """`F(Y_i) + M sum_j c_ij kappa_j`, and the rates at `Y_i`."""
        field = self.field
        y = field.start()
        if i:
            y = add((1.0, y), *zip(A[i], us, strict=True))
        f, r = field.both(field.at.tau + C[i] * self.h, y)
        if i:
            f = add((1.0, f), (1.0, times(self.mass, add(*zip(COUPLING[i], vs, strict=True)))))
        return f, r

    def _slope(self, i: int, u: Vec) -> tuple[Vec, Leaves]:
        """`F_y u + h d_i F_t`, also of the rates."""
        field = self.field
        tau = field.at.tau
        return directional(field, tau, field.start(), D[i] * self.h * jnp.ones_like(tau), u)

    def _rate(self, i: int, r: Leaves, slope: Leaves, qs: list[Leaves]) -> Leaves:
        """The increment of the integrals: their rows of the stage equations."""
        out = []
        for j, v in enumerate(r):
            coupled = sum(c * q[j] for c, q in zip(COUPLING[i], qs, strict=True)) if i else 0.0
            out.append(GAMMA * (self.h * (v + slope[j]) + coupled))
        return tuple(out)

    def values(self, k: Leaves) -> tuple[list[Vec], list[Leaves]]:
        """Increments of all stages; no derivatives are taken of this."""
        factors = self.matrix()
        field = self.field
        tau, y = field.at.tau, field.start()
        zero = tuple(jnp.zeros_like(v) for v in y)
        in_time = directional(field, tau, y, self.h * jnp.ones_like(tau), zero)[0]
        vs, us, qs = [], [], []
        n = field.model.nx
        none = [jnp.zeros(s) for s in field.rows.shapes[n:]]
        for i in range(8):
            if i:
                f, r = self._stage(i, vs, us)
            else:  # known: the flow at the start, where g is zero
                f, r = field.rows.pack((*k[:n], *none)), k[n:]
            v = solve(factors, add((1.0, f), (D[i], in_time)))
            u = times(self.stretch, v)
            slope = self._slope(i, u)[1] if r else ()
            qs.append(self._rate(i, r, slope, qs))
            vs.append(v)
            us.append(u)
        return us, qs

    def attached(self, degree: int) -> tuple[list[Vec], list[Leaves]]:
        """The same with derivatives; the Jacobian's own derivative is among them (M44)."""
        factors = self.matrix()
        vs, us, qs = [], [], []
        for i in range(8):
            f, r = self._stage(i, vs, us)
            zero = tuple(jnp.zeros_like(e) for e in f)
            start = frozen(add((1.0, f), (1.0, self._slope(i, zero)[0])))
            v = frozen(solve(factors, start))
            slope: Leaves = ()
            for _ in range(degree):
                linear, slope = self._slope(i, times(self.stretch, v))
                left = add((1.0 / GAMMA, times(self.mass, v)), (-1.0, linear), (-1.0, f))
                v = add((1.0, v), (-1.0, solve(factors, left)))
            u = times(self.stretch, v)
            if r:
                slope = self._slope(i, u)[1]
            qs.append(self._rate(i, r, slope, qs))
            vs.append(v)
            us.append(u)
        return us, qs
