"""The stiff, algebraic and hybrid problems that every tool solves, with their exact answers.

The equations are written once, on scalars, for every array library: `math` is where they find
`exp`, `tanh` and so on (numpy, jax.numpy, casadi).
"""

from functools import cache
from pathlib import Path

import numpy as np

# van der Pol's oscillator, y'' = mu (1 - y²) y' - y with mu = 1000, unscaled (test set for IVP
# solvers, Bari). The answer is y(2000), differentiated by mu. Both in 40 digits by
# dae_references.py; the value agrees with the test set's 1.706167732170469 to its accuracy.
VDP_MU = 1000.0
VDP_START = (2.0, 0.0)
VDP_END = 2000.0
VDP_VALUE = 1.706167732170465008478
VDP_GRADIENT = 0.001784793623322339092923


def van_der_pol(y, w, mu):
    """y' and w'."""
    return w, mu * (1.0 - y * y) * w - y


# Robertson's reactions to t = 4e10. The answer is the first species, which has fallen to 5e-8,
# differentiated by the logarithms of the three rates (dae_references.py).
ROBERTSON = (0.04, 3e7, 1e4)
ROBERTSON_END = 4e10
ROBERTSON_VALUE = 5.208345176799239198770e-8
ROBERTSON_GRADIENT = np.array(
    [-2.604163126044934511032e-6, -1.736112204822666725595e-15, 1.041665239567449829706e-11]
)


def robertson(a, b, c, k):
    """The rates of the three species; as a DAE, c follows from a + b + c = 1."""
    k1, k2, k3 = k
    back, lost = k3 * b * c, k2 * b * b
    return -k1 * a + back, k1 * a - back - lost, lost


# A Cauer ladder whose middle capacitor is emptied when it reaches half a volt (Matei et al.; what
# their code solves). States (i2, i1, v5, v3, v1), algebraic (dv5, dv3, dv1), parameters
# (C1, ..., C5, L1, L2). The answer is the mean of 501 x 5 squared errors against samples made with
# the true parameters, at 1.05 times those. Value and gradient from a 45-digit Taylor series.
CAUER_TRUTH = np.array(
    [1.072, 0.26380177746657757, 1.682, 0.8365378334947966, 0.7262, 1.304, 0.8586]
)
CAUER = 1.05 * CAUER_TRUTH
CAUER_END = 20.0
CAUER_TIMES = np.linspace(0.0, CAUER_END, 501)
CAUER_EVENTS = 9
CAUER_LEVEL = 0.5
CAUER_VALUE = 0.009416386521675176994
CAUER_GRADIENT = np.array(
    [
        0.001453506743895820612489,
        0.00516192737854803872202,
        0.009266425958368010201074,
        0.0007156006260765863231253,
        0.001565549225662572095905,
        0.004255244510377312945614,
        -0.000913345916160226807229,
    ]
)


def cauer_source(t, math):
    return (1.0 + math.tanh(50.0 * (t - 1.0))) / 2.0


def cauer_flow(x, dv, p):
    """x' from the states and the voltages' own rates."""
    _, _, v5, v3, v1 = x
    return (v3 - v5) / p[6], (v1 - v3) / p[5], dv[0], dv[1], dv[2]


def cauer_constraint(t, x, dv, p, math):
    """The currents that do not add up at the three nodes."""
    i2, i1, v5, _, v1 = x
    dv5, dv3, dv1 = dv
    c1, c2, c3, c4, c5 = (p[k] for k in range(5))
    through2, through4 = c2 * (dv1 - dv3), c4 * (dv3 - dv5)
    return (
        c1 * dv1 + through2 - (cauer_source(t, math) - v1) + i1,
        c3 * dv3 - through2 + through4 - i1 + i2,
        c5 * dv5 - through4 - i2 + v5,
    )


def cauer_ode(t, x, p, math):
    """x' alone, for tools without algebraic states: the three nodes eliminated by hand."""
    i2, i1, v5, _, v1 = x
    c1, c2, c3, c4, c5 = (p[k] for k in range(5))
    first, last = c1 + c2, c4 + c5
    b1, b3, b5 = cauer_source(t, math) - v1 - i1, i1 - i2, i2 - v5
    middle = c2 + c3 + c4 - c2 * c2 / first - c4 * c4 / last
    dv3 = (b3 + c2 * b1 / first + c4 * b5 / last) / middle
    return cauer_flow(x, ((b5 + c4 * dv3) / last, dv3, (b1 + c2 * dv3) / first), p)


@cache
def cauer_samples():
    """The states at `CAUER_TIMES` with the true parameters (made by dae_references.py)."""
    return np.load(Path(__file__).parent / "data" / "cauer_samples.npy")


# An oscillator on a hysteretic spring (Serban and Recuero, section 5.2): u'' = -z + f(t), where z
# follows u along a branch that starts at the last reversal (u*, z*, direction xi). Parameters
# (ka, kb, alpha, beta); the answer is the integral of u², 19 reversals. 66-digit Taylor series.
SPRING = (32 * np.pi**2, np.pi**2, 205.0, 0.0)
SPRING_END = 10.0
SPRING_EVENTS = 19
SPRING_DELTA = 1e-20
SPRING_VALUE = 0.04993978860638280573746
SPRING_GRADIENT = np.array(
    [-1.336643883957091555890e-5, 3.266790157646101446010e-3, -1.530224960043961405298e-6, 0.0]
)


def spring_load(t, math):
    return 0.5 * t * math.sin(2.0 * np.pi * t)


def spring_force(u, branch, p, math):
    """z on the branch (u*, z*, xi)."""
    last_u, last_z, xi = branch
    ka, kb, alpha, beta = (p[k] for k in range(4))
    small = SPRING_DELTA / (ka - kb)
    shift = xi * (ka - kb) / alpha * (small + (1.0 - small) / 2.0)
    elastic = lambda u: kb * u - 2.0 * beta * u + 2.0 * math.sinh(beta * u)
    away = elastic(last_u) + shift - last_z
    return elastic(u) + shift - math.exp(-alpha * xi * (u - last_u)) * away


def relative(got, truth):
    """Every entry in units of the truth (of its largest entry where the truth is zero)."""
    got, truth = np.asarray(got, float).reshape(np.shape(truth)), np.asarray(truth, float)
    zero = truth == 0.0
    return np.where(zero, 1.0 + got / np.max(np.abs(truth)), got / np.where(zero, 1.0, truth))
