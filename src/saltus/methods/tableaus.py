"""Tableaus: the coefficients of a step of an explicit or of a Rosenbrock method."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

Row = tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Tableau:
    """Stages `k_i = f(t + c_i h, x + h sum_j a_ij k_j)`, the result `x + h sum b_i k_i`.

    The error estimate is `h sum error_i k_i`, proportional to `h^error_order`. The last row of `a`
    is `b`: the last stage is the flow at the end of the step, which is also the first stage of the
    next step. `mid` and `mid_slope` are the weights of the state and its slope half way.
    """

    name: str
    order: int
    error_order: int
    a: tuple[Row, ...]
    b: Row
    c: Row
    error: tuple[Row, ...]  # one or two estimates (Dopri8 combines those of order 5 and 3, M20)
    mid: Row = dataclasses.field(default=())
    mid_slope: Row = dataclasses.field(default=())

    @property
    def stages(self) -> int:
        return len(self.b)


@dataclasses.dataclass(frozen=True)
class RosenbrockTableau:
    """Stages `u_i` of a step in Steinebach's form (M43), the result `y + sum b_i u_i`.

    `M u_i / (gamma h) - f_y u_i = f(t + c_i h, y + sum a_ij u_j) + M sum coupling_ij u_j / h
    + d_i h f_t`. The error estimate is `sum error_i u_i`, proportional to `h^error_order`.
    """

    name: str
    order: int
    error_order: int
    gamma: float
    a: tuple[Row, ...]
    coupling: tuple[Row, ...]
    b: Row
    c: Row
    d: Row
    error: Row
    mid: Row  # the state half way is `y + sum mid_i u_i`, its slope `sum mid_slope_i u_i / h`
    mid_slope: Row
    leading: float  # on x' = lambda x the estimate is this times (h lambda)^error_order

    @property
    def stages(self) -> int:
        return len(self.b)


def rows(matrix: Sequence[Sequence[float]]) -> tuple[Row, ...]:
    return tuple(tuple(float(v) for v in row) for row in matrix)


def explicit_tableau(
    name: str,
    order: int,
    error_order: int,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    error: list,
) -> Tableau:
    """The tableau of an explicit method with s stages, from its usual coefficients.

    `name` is the name of the method and `order` the order of its result. `a` is the strictly lower
    triangular matrix with s rows, `b` has the s weights of the result and `c` the s nodes. A
    further stage, the flow at the end of the step, is added, so that there are s + 1 stages `k_i`.
    The weights for the middle of the step are computed.

    `error` is a list of one or two error estimates, each a list of s + 1 weights: the estimate is
    `h sum error_i k_i`. For an embedded formula with weights `b2` these are `b - b2`, with a last
    entry for the added stage, 0 if the formula does not use it. `error_order` is the power of `h`
    to which the estimate is proportional, one more than the order of the embedded formula: 5 for a
    pair of order 5(4). Of two estimates, the first has the higher order; they are combined as in
    M20, and `error_order` is the power of `h` in the combination.
    """
    s = len(b)
    full = np.zeros((s + 1, s + 1))
    full[:s, : a.shape[1]] = a
    full[s, :s] = b
    c = np.append(c[:s], 1.0)
    mid, slope = midpoint(full, c)
    return Tableau(
        name=name,
        order=order,
        error_order=error_order,
        a=tuple(tuple(full[i, :i].tolist()) for i in range(s + 1)),
        b=(*b.tolist(), 0.0),
        c=tuple(c.tolist()),
        error=rows(error),
        mid=tuple(mid.tolist()),
        mid_slope=tuple(slope.tolist()),
    )


def _elementary_weights(a: np.ndarray, c: np.ndarray) -> list[tuple[int, int, np.ndarray]]:
    """(order, density, vector) of every rooted tree up to order 5 (Butcher)."""
    ac, ac2, aac = a @ c, a @ c**2, a @ (a @ c)
    return [
        (1, 1, np.ones_like(c)),
        (2, 2, c),
        (3, 3, c**2),
        (3, 6, ac),
        (4, 4, c**3),
        (4, 8, c * ac),
        (4, 12, ac2),
        (4, 24, aac),
        (5, 5, c**4),
        (5, 10, c**2 * ac),
        (5, 20, ac**2),
        (5, 15, c * ac2),
        (5, 20, a @ c**3),
        (5, 30, c * aac),
        (5, 40, a @ (c * ac)),
        (5, 60, a @ ac2),
        (5, 120, a @ aac),
    ]


def midpoint(a: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the state and its slope in the middle of a step, from the stages `a`, `c`.

    The smallest weights that satisfy all order conditions of a continuous extension at
    theta = 1/2, of the highest order that the stages allow. Only event detection uses them.
    """
    theta = 0.5
    trees = _elementary_weights(a, c)
    for order in (5, 4, 3):
        used = [t for t in trees if t[0] <= order]
        matrix = np.array([phi for _, _, phi in used])
        value = np.array([theta**r / g for r, g, _ in used])
        slope = np.array([r * theta ** (r - 1) / g for r, g, _ in used])
        weights = [np.linalg.lstsq(matrix, rhs, rcond=1e-12)[0] for rhs in (value, slope)]
        residual = max(
            np.abs(matrix @ w - rhs).max() for w, rhs in zip(weights, (value, slope), strict=True)
        )
        if residual < 1e-12:
            return weights[0], weights[1]
    raise ValueError("the stages allow no continuous extension of order 3")
