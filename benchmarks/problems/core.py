"""The problems that every tool solves, with their exact answers."""

from functools import cache

import numpy as np

# A ball that is dropped and bounces seven times (Andersson and Goppert, "Event support for
# simulation and sensitivity analysis in CasADi", section 4.1): h' = v, v' = -g, and at h = 0
# v becomes -e v. Parameters in the order (h0, v0, g, e); the answer is the height at T.
BALL = (5.0, 0.0, 9.81, 0.8)
BALL_END = 7.0
BALL_BOUNCES = 7
TOLERANCE = 1e-8

# From the closed form in 25 digits.
BALL_HEIGHT = 0.05901261515655048
BALL_GRADIENT = np.array(
    [-1.231886142925945, -0.1811109168424720, 0.6338882089486519, -37.40810258704018]
)
BALL_HESSIAN = np.array(
    [
        [-4.931268866595726, -0.7181110916842472, 2.513388820894865, -166.9390171364000],
        [-0.7181110916842472, -0.2275113295541228, 0.3660097307259160, -23.22082373947750],
        [2.513388820894865, 0.3660097307259160, -1.281034057540706, 81.27288308817124],
        [-166.9390171364000, -23.22082373947750, 81.27288308817124, -5384.541597840419],
    ]
)

# Many balls that differ in restitution only. Below 0.749 all bounces would be over before T.
BALLS = 10_000
RESTITUTIONS = np.linspace(0.77, 0.9, BALLS)
BALLS_MOST_BOUNCES = 9

LORENZ = (10.0, 28.0, 8.0 / 3.0)
LORENZ_START = (1.0, 1.0, 1.0)
LORENZ_LONG = 100.0  # about ten thousand steps, for the time per step
LORENZ_SHORT = 5.0  # before chaos has eaten the digits, for the error

# A thermostat: x' = -a x until x falls to lo, then x' = -a (x - H) until it rises to hi.
# Parameters (a, H, hi, lo), x(0) = hi; the answer is the time of switch number 100,000.
THERMOSTAT = (1.0, 30.0, 22.0, 18.0)
SWITCHES = 100_000
THERMOSTAT_END = 30306.85  # after that switch, before the next
THERMOSTAT_TIME = 30306.79017851577716
THERMOSTAT_GRADIENT = np.array(
    [-30306.79017851577716, -2083.333333333333333, 8522.727272727272727, -6944.444444444444444]
)

# A ball with quadratic drag from 32 parameters: parts that add up, or a table over the speed.
DRAG_TABLE = np.full(32, 2e-3)
DRAG_SPEEDS = np.linspace(-10.0, 10.0, 32)


def ball_height(h0, v0, g, e, end=BALL_END):
    """The height at `end` from the closed form; entries may be complex arrays."""
    h0, v0, g, e = np.broadcast_arrays(h0, v0, g, e)
    fall = np.sqrt(v0 * v0 + 2 * g * h0)  # speed at the first impact
    time, speed = (v0 + fall) / g, e * fall
    height = h0 + v0 * end - g * end * end / 2
    for _ in range(BALLS_MOST_BOUNCES + 1):
        since = end - time
        height = np.where(since.real >= 0, since * (speed - g * since / 2), height)
        time, speed = time + 2 * speed / g, e * speed
    return height


def ball_gradient(h0, v0, g, e, end=BALL_END):
    """Its derivatives, one row for each parameter, by a complex step: exact to rounding."""
    nudge = 1e-100j
    at = [np.asarray(value, complex) for value in (h0, v0, g, e)]
    return np.stack(
        [
            ball_height(*[a + nudge * (k == j) for j, a in enumerate(at)], end).imag / 1e-100
            for k in range(4)
        ]
    )


@cache
def many_balls():
    """Heights (N,) and gradients (N, 4) of the many balls."""
    *same, _ = BALL
    return ball_height(*same, RESTITUTIONS), ball_gradient(*same, RESTITUTIONS).T


@cache
def lorenz_short():
    """The state at `LORENZ_SHORT`, by another program to another tolerance."""
    from scipy.integrate import solve_ivp

    sigma, rho, beta = LORENZ

    def flow(t, s):
        x, y, z = s
        return sigma * (y - x), x * (rho - z) - y, x * y - beta * z

    done = solve_ivp(flow, (0.0, LORENZ_SHORT), LORENZ_START, "DOP853", rtol=1e-13, atol=1e-13)
    return done.y[:, -1]
