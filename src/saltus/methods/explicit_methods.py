"""The explicit methods: each with its tableau, and where its coefficients come from."""

from __future__ import annotations

import functools

import numpy as np

from ..base.foreign_parts import METHOD, constructs
from .runge_kutta import Explicit
from .tableaus import Tableau, explicit_tableau


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
    return explicit_tableau("Tsit5", 5, 5, a, b, c, [error])


@constructs(METHOD)
class Tsit5(Explicit):
    """Tsitouras' order 5(4): the default for ODEs. Settings: see `saltus.methods.Method`."""

    @property
    def tableau(self) -> Tableau:
        return tsit5()


@functools.cache
def dopri5() -> Tableau:
    """Dormand and Prince (1980), order 5(4); the numbers are SciPy's."""
    from scipy.integrate import RK45 as rk  # takes a while to import

    return explicit_tableau("Dopri5", 5, 5, rk.A, rk.B, rk.C, [rk.E.tolist()])


@constructs(METHOD)
class Dopri5(Explicit):
    """Dormand and Prince's order 5(4). Settings: see `saltus.methods.Method`."""

    @property
    def tableau(self) -> Tableau:
        return dopri5()


@functools.cache
def dopri8() -> Tableau:
    """Dormand and Prince's order 8 with Hairer's estimates of order 5 and 3; SciPy's numbers."""
    from scipy.integrate import DOP853 as rk

    s = rk.n_stages
    return explicit_tableau(
        "Dopri8", 8, 8, rk.A[:s, :s], rk.B, rk.C[:s], [rk.E5.tolist(), rk.E3.tolist()]
    )


@constructs(METHOD)
class Dopri8(Explicit):
    """Dormand and Prince's order 8(5, 3), for tight tolerances.

    Settings: see `saltus.methods.Method`."""

    @property
    def tableau(self) -> Tableau:
        return dopri8()
