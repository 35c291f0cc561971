"""Coefficients of explicit Runge-Kutta pairs, and midpoint weights derived from them.

A tableau is a recipe for one step: stages `k_i = f(t + c_i h, x + h sum_j a_ij k_j)`, the result
`x + h sum b_i k_i`, an error estimate `h sum e_i k_i`. The last row of `a` is `b`: the last stage
is the flow at the end of the step, which is also the first stage of the next.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

Row = tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Tableau:
    name: str
    order: int
    error_order: int
    a: tuple[Row, ...]
    b: Row
    c: Row
    error: tuple[Row, ...]  # one or two estimates (Dopri8 blends a third- and a fifth-order one)
    mid: Row = dataclasses.field(default=())
    mid_slope: Row = dataclasses.field(default=())

    @property
    def stages(self) -> int:
        return len(self.b)


def _rows(matrix: Sequence[Sequence[float]]) -> tuple[Row, ...]:
    return tuple(tuple(float(v) for v in row) for row in matrix)


def _tableau(
    name: str,
    order: int,
    error_order: int,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    error: list,
) -> Tableau:
    """Append the final stage (the flow at the end) and the midpoint weights."""
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
        error=_rows(error),
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
    """Weights of the state and its slope in the middle of a step, from the stages at hand.

    The smallest weights that satisfy all order conditions of a continuous extension at
    theta = 1/2, of the highest order the stages allow. Only event detection looks at them.
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


@functools.cache
def tsit5() -> Tableau:
    """Tsitouras (2011), Runge-Kutta pairs of order 5(4), table 1."""
    a = np.zeros((6, 6))
    a[1, :1] = [0.161]
    a[2, :2] = [-0.008480655492356989, 0.335480655492357]
    a[3, :3] = [2.8971530571054935, -6.359448489975075, 4.3622954328695815]
    a[4, :4] = [5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525]
    a[5, :5] = [
        5.86145544294642,
        -12.92096931784711,
        8.159367898576159,
        -0.071584973281401,
        -0.028269050394068383,
    ]
    b = np.array(
        [
            0.09646076681806523,
            0.01,
            0.4798896504144996,
            1.379008574103742,
            -3.290069515436081,
            2.324710524099774,
        ]
    )
    c = np.array([0.0, 0.161, 0.327, 0.9, 0.9800255409045097, 1.0])
    error = [
        -0.00178001105222577714,
        -0.0008164344596567469,
        0.007880878010261995,
        -0.1447110071732629,
        0.5823571654525552,
        -0.45808210592918697,
        0.015151515151515152,
    ]
    return _tableau("Tsit5", 5, 5, a, b, c, [error])


@functools.cache
def dopri5() -> Tableau:
    """Dormand and Prince (1980), order 5(4); the numbers are SciPy's."""
    from scipy.integrate import RK45 as rk  # takes a while to import

    return _tableau("Dopri5", 5, 5, rk.A, rk.B, rk.C, [rk.E.tolist()])


@functools.cache
def dopri8() -> Tableau:
    """Dormand and Prince's order 8, Hairer's error estimates 5 and 3; numbers from SciPy."""
    from scipy.integrate import DOP853 as rk

    s = rk.n_stages
    return _tableau("Dopri8", 8, 8, rk.A[:s, :s], rk.B, rk.C[:s], [rk.E5.tolist(), rk.E3.tolist()])
