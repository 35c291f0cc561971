"""A catalyst bed: 500 cells, 1,000 differential and 500 algebraic states, 1,000 parameters.

Concentration u and temperature v diffuse along the bed; the coverage w of the catalyst is in
equilibrium with both (algebraic), with a rate of adsorption a and of reaction b in every cell:

    u' = D_u u_xx + s (1 - u) - b w e(v)          0 = a u (1 - w)² - w (1 + v)
    v' = D_v v_xx + H b w e(v) - c v + q(x) on    e(v) = exp(v / (1 + v))

A heater is switched off when the mean temperature rises to `HIGH`, on when it falls to `LOW`. The
answer is a tracking cost plus a cost at the end; its gradient is by all a and b.
"""

import numpy as np

CELLS = 500
END = 4.0
HIGH, LOW = 0.8, 0.6
EVENTS = 6
D_U, D_V, SUPPLY, HEAT, LOSS = 2e-3, 1e-2, 1.0, 0.8, 1.0
WANTED_V, WANTED_U = 0.7, 0.5

# scipy's Radau on the ODE without w, rtol 1e-11; slopes along `directions()` by central differences
# of it, extrapolated. BDF at 1e-10 agrees to 5e-9 (value) and 6e-7 (slopes).
VALUE = 0.67148363885
SLOPES = np.array([0.09906873, 0.03261349, 1.707095e-5, -0.00216301211])

PLACES = (np.arange(CELLS) + 0.5) / CELLS
HEATER = 3.0 * np.exp(-(((PLACES - 0.3) / 0.15) ** 2))
ADSORPTION = 2.0 + np.sin(2.0 * np.pi * PLACES)
REACTION = 1.0 + 0.5 * np.cos(3.0 * np.pi * PLACES)


def spread(u, math):
    """Second differences between walls that let nothing through."""
    padded = math.concatenate([u[:1], u, u[-1:]])
    return (padded[2:] - 2.0 * u + padded[:-2]) * CELLS**2


def flow(u, v, w, on, a, b, math):
    """u' and v'; `a` is not needed here but keeps the signatures alike."""
    rate = b * w * math.exp(v / (1.0 + v))
    return (
        D_U * spread(u, math) + SUPPLY * (1.0 - u) - rate,
        D_V * spread(v, math) + HEAT * rate - LOSS * v + on * HEATER,
    )


def constraint(u, v, w, a):
    return a * u * (1.0 - w) ** 2 - w * (1.0 + v)


def coverage(u, v, a):
    """The constraint solved for w, for tools without algebraic states."""
    half = 1.0 + (1.0 + v) / (2.0 * a * u)
    return 1.0 / (half + (half * half - 1.0) ** 0.5)


def running(v, math):
    return math.sum((v - WANTED_V) ** 2) / CELLS


def final(u, math):
    return math.sum((u - WANTED_U) ** 2) / CELLS


def directions():
    """Four directions in the space of (a, b): two random ones, one entry of a, one of b."""
    random = np.random.default_rng(0)
    single = np.eye(2 * CELLS)
    return np.stack([*random.standard_normal((2, 2 * CELLS)), single[100], single[CELLS + 400]])
