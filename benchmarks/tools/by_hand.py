"""What a user of a solver without derivatives or jumps writes around it.

Smooth problems: the variational equations beside the state. Hybrid problems: a loop over events,
and central differences of the whole simulation.
"""

import math

import numpy as np

from problems import dae as problems

NUDGE = 3e-5  # relative, for central differences


class VanDerPol:
    """(y, w), then their derivatives by mu."""

    mu = problems.VDP_MU
    start = np.array(problems.VDP_START)
    end = problems.VDP_END

    def flow(self, t, y):
        return problems.van_der_pol(*y, self.mu)

    def jacobian(self, t, y):
        y, w = y
        return np.array([[0.0, 1.0], [-2.0 * self.mu * y * w - 1.0, self.mu * (1.0 - y * y)]])

    start_both = np.array([*problems.VDP_START, 0.0, 0.0])

    def flow_both(self, t, state):
        y, w, dy, dw = state
        free = 1.0 - y * y
        slope = -2.0 * self.mu * y * w - 1.0
        return w, self.mu * free * w - y, dw, slope * dy + self.mu * free * dw + free * w

    def read(self, end):
        return end[0] / problems.VDP_VALUE

    def read_both(self, end):
        return problems.relative(end[2], problems.VDP_GRADIENT)


class Robertson:
    """Three species, then their derivatives by each of the rates."""

    k = problems.ROBERTSON
    start = np.array([1.0, 0.0, 0.0])
    end = problems.ROBERTSON_END
    start_both = np.array([1.0, *[0.0] * 11])

    def flow(self, t, y):
        return problems.robertson(*y, self.k)

    def jacobian(self, t, y):
        _, b, c = y
        k1, k2, k3 = self.k
        return np.array(
            [
                [-k1, k3 * c, k3 * b],
                [k1, -k3 * c - 2.0 * k2 * b, -k3 * b],
                [0.0, 2.0 * k2 * b, 0.0],
            ]
        )

    def flow_both(self, t, state):
        a, b, c = state[:3]
        _, k2, k3 = self.k
        forcing = ((-a, a), (0.0, -b * b), (b * c, -b * c))
        rates = [*self.flow(t, (a, b, c))]
        for j, (first, second) in enumerate(forcing):
            da, db, dc = state[3 + 3 * j : 6 + 3 * j]
            one = -self.k[0] * da + k3 * (c * db + b * dc) + first
            three = 2.0 * k2 * b * db + (b * b if j == 1 else 0.0)
            two = self.k[0] * da - k3 * (c * db + b * dc) - 2.0 * k2 * b * db + second
            rates += [one, two, three]
        return rates

    def read(self, end):
        return end[0] / problems.ROBERTSON_VALUE

    def read_both(self, end):
        return problems.relative(np.asarray(end)[3::3], problems.ROBERTSON_GRADIENT)


class Cauer:
    """`segment(flow, guard, t, x, times)` solves to the first root of the guard (rising)."""

    p = problems.CAUER
    value, gradient = problems.CAUER_VALUE, problems.CAUER_GRADIENT

    def answer(self, segment, p):
        p = [float(q) for q in p]
        flow = lambda t, x: problems.cauer_ode(t, x, p, math)
        guard = lambda t, x: x[3] - problems.CAUER_LEVEL
        times, samples = problems.CAUER_TIMES, problems.cauer_samples()
        t, x, first, loss, steps = 0.0, np.zeros(5), 1, 0.0, 0
        while first < times.size:
            values, event, more = segment(flow, guard, t, x, times[first:])
            steps += more
            loss += np.sum((values - samples[first : first + len(values)]) ** 2)
            first += len(values)
            if event is None:
                break
            t, x = event[0], event[1] * np.array([1.0, 1.0, 1.0, 0.0, 1.0])
        return loss / samples.size, steps


class Spring:
    """The integral of u² is a third state."""

    p = np.array(problems.SPRING)
    value, gradient = problems.SPRING_VALUE, problems.SPRING_GRADIENT

    def answer(self, segment, p):
        p = [float(q) for q in p]
        t, x, branch, steps = 0.0, np.zeros(3), (0.0, 0.0, 1.0), 0
        while True:
            force = lambda u, branch=branch: problems.spring_force(u, branch, p, math)
            flow = lambda t, x, force=force: (
                x[1],
                problems.spring_load(t, math) - force(x[0]),
                x[0] * x[0],
            )
            guard = lambda t, x, xi=branch[2]: -xi * x[1]
            values, event, more = segment(flow, guard, t, x, np.array([problems.SPRING_END]))
            steps += more
            if event is None:
                return values[-1][2], steps
            t, x = event
            branch = (x[0], force(x[0]), -branch[2])


def differences(model, segment):
    """Gradient by central differences, and the steps of all solves."""
    slopes, total = [], 0
    for k, q in enumerate(model.p):
        nudge = NUDGE * (abs(q) or 1.0)
        ends = []
        for sign in (1.0, -1.0):
            at = np.array(model.p, float)
            at[k] += sign * nudge
            end, steps = model.answer(segment, at)
            ends.append(end)
            total += steps
        slopes.append((ends[0] - ends[1]) / (2.0 * nudge))
    return np.array(slopes), total
