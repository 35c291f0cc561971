"""The Rosenbrock methods: each with its tableau, and where its coefficients come from."""

from __future__ import annotations

import functools

import numpy as np

from ..base.foreign_parts import METHOD, constructs
from .rosenbrock import Rosenbrock
from .tableaus import RosenbrockTableau, rows


@constructs(METHOD)
class Rodas5P(Rosenbrock):
    """Rodas5P of order 5(4), for stiff ODEs and DAEs of index 1, without Newton iterations.

    Settings: see `saltus.methods.Method`."""

    @property
    def tableau(self) -> RosenbrockTableau:
        return rodas5p()


@functools.cache
def rodas5p() -> RosenbrockTableau:
    """Steinebach (2023), Rodas5P of order 5(4), BIT 63:27."""
    gamma = 0.21193756319429014
    a6 = [
        -7.502846399306121, 2.561846144803919, -11.627539656261098, -0.18268767659942256,
        0.030198172008377946,
    ]  # fmt: skip
    a = [
        [],
        [3.0],
        [2.849394379747939, 0.45842242204463923],
        [-6.954028509809101, 2.489845061869568, -10.358996098473584],
        [2.8029986275628964, 0.5072464736228206, -0.3988312541770524, -0.04721187230404641],
        a6,
        [*a6, 1.0],
        [*a6, 1.0, 1.0],
    ]
    coupling = [
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
    c = [
        0.0, 0.6358126895828704, 0.4095798393397535, 0.9769306725060716, 0.4288403609558664,
        1.0, 1.0, 1.0,
    ]  # fmt: skip
    d = [
        gamma, -0.42387512638858027, -0.3384627126235924, 1.8046452872882734, 2.325825639765069,
        0.0, 0.0, 0.0,
    ]  # fmt: skip
    b = [*a6, 1.0, 1.0, 1.0]
    mid, mid_slope = _rodas5p_middle(np.array(b))
    return RosenbrockTableau(
        name="Rodas5P", order=5, error_order=5, gamma=gamma, a=rows(a), coupling=rows(coupling),
        b=tuple(b), c=tuple(c), d=tuple(d), error=(*[0.0] * 7, 1.0),
        mid=tuple(mid.tolist()), mid_slope=tuple(mid_slope.tolist()), leading=1.24e-4,
    )  # fmt: skip


def _rodas5p_middle(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the state and its slope at `s = 1/2`, from Steinebach's dense output.

    `y(s) = (1 - s) y0 + s (y1 + (1 - s) (D1 + s D2 + s^2 D3))` with `D = dense u`."""
    dense = np.array([
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
    mid = 0.25 * (dense[0] + 0.5 * dense[1] + 0.25 * dense[2]) + 0.5 * b
    return mid, 0.25 * (dense[1] + dense[2]) + b
