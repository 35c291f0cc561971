"""Reference values for `dae.py`, in 40 digits: python benchmarks/dae_references.py (minutes).

Radau IIA with s = 8 and 11 stages (orders 15 and 21) in mpmath, on a mesh that scipy's Radau found
and on the same mesh halved, with the variational equations of the same collocation polynomials.
No code of this package, no automatic differentiation. The digits on which all runs agree are the
constants of `problems/dae.py`; for van der Pol a Taylor series of another order, in 80-bit numbers,
with central differences instead of variational equations, agrees too (--taylor).
"""

import argparse
from itertools import pairwise
from pathlib import Path

import mpmath
import numpy as np
from mpmath import mp, mpf
from scipy.integrate import solve_ivp

from problems import dae as problems

mp.dps = 45


def radau(stages):
    """Nodes and matrix of Radau IIA: collocation at the roots of P_s - P_(s-1) on [0, 1]."""
    legendre = lambda n: [
        (-1) ** (n + k) * mpmath.binomial(n, k) * mpmath.binomial(n + k, k) for k in range(n + 1)
    ]
    above, below = legendre(stages), [*legendre(stages - 1), mpf(0)]
    polynomial = [a - b for a, b in zip(above, below, strict=True)]
    nodes = sorted(mpmath.re(r) for r in mpmath.polyroots(polynomial[::-1], 500, extraprec=400))
    powers = mpmath.matrix(stages, stages)
    integrals = mpmath.matrix(stages, stages)
    for i, c in enumerate(nodes):
        for j in range(stages):
            powers[i, j] = c**j
            integrals[i, j] = c ** (j + 1) / (j + 1)
    return nodes, integrals * mpmath.inverse(powers)


def step(model, h, y, sensitivity, q, matrix):
    """One step: the end state and its derivatives with respect to q, one column each."""
    s, n = matrix.rows, len(y)
    stages = [list(y) for _ in range(s)]
    for _ in range(60):
        flows = [model.flow(Y, q) for Y in stages]
        jacobians = [model.jacobian(Y, q) for Y in stages]
        system, residual = mpmath.eye(s * n), mpmath.matrix(s * n, 1)
        for i in range(s):
            for a in range(n):
                inside = mpmath.fsum(matrix[i, j] * flows[j][a] for j in range(s))
                residual[i * n + a] = stages[i][a] - y[a] - h * inside
                for j in range(s):
                    for b in range(n):
                        system[i * n + a, j * n + b] -= h * matrix[i, j] * jacobians[j][a][b]
        factors, order = mp.LU_decomp(system)
        change = mp.U_solve(factors, mp.L_solve(factors, residual, order))
        for i in range(s):
            for a in range(n):
                stages[i][a] -= change[i * n + a]
        size = max(
            abs(change[i * n + a]) / (abs(stages[i][a]) + mpf(10) ** -30)
            for i in range(s)
            for a in range(n)
        )
        if size < mpf(10) ** -38:
            break
    else:
        raise RuntimeError(f"Newton did not converge: {mpmath.nstr(size, 3)}")
    after = []
    for k, column in enumerate(sensitivity):
        forcing = [model.parametric(Y, q, k) for Y in stages]
        right = mpmath.matrix(s * n, 1)
        for i in range(s):
            for a in range(n):
                inside = mpmath.fsum(matrix[i, j] * forcing[j][a] for j in range(s))
                right[i * n + a] = column[a] + h * inside
        solved = mp.U_solve(factors, mp.L_solve(factors, right, order))
        after.append([solved[(s - 1) * n + a] for a in range(n)])
    return stages[-1], after


def integrate(model, mesh, stages):
    q = [mpf(value) for value in model.q]
    y = [mpf(value) for value in model.start]
    sensitivity = [[mpf(0)] * len(y) for _ in q]
    _, matrix = radau(stages)
    times = [mpf(float(t)) for t in mesh]
    for before, after in pairwise(times):
        y, sensitivity = step(model, after - before, y, sensitivity, q, matrix)
    return y, sensitivity


class VanDerPol:
    """y' = w, w' = mu (1 - y²) w - y."""

    q, start, end = ("1000",), ("2", "0"), 2000.0

    @staticmethod
    def flow(Y, q):
        y, w = Y
        return w, q[0] * (1 - y * y) * w - y

    @staticmethod
    def jacobian(Y, q):
        y, w = Y
        return (0, 1), (-2 * q[0] * y * w - 1, q[0] * (1 - y * y))

    @staticmethod
    def parametric(Y, q, k):
        y, w = Y
        return 0, (1 - y * y) * w


class Robertson:
    """The first two of three species; the third is what is missing to one."""

    q, start, end = ("0.04", "3e7", "1e4"), ("1", "0"), 4e10

    @staticmethod
    def flow(Y, q):
        a, b = Y
        k1, k2, k3 = q
        back = k3 * b * (1 - a - b)
        return -k1 * a + back, k1 * a - back - k2 * b * b

    @staticmethod
    def jacobian(Y, q):
        a, b = Y
        k1, k2, k3 = q
        back_a, back_b = -k3 * b, k3 * (1 - a - 2 * b)
        return (-k1 + back_a, back_b), (k1 - back_a, -back_b - 2 * k2 * b)

    @staticmethod
    def parametric(Y, q, k):
        a, b = Y
        back = b * (1 - a - b)
        return ((-a, a), (0, -b * b), (back, -back))[k]


def mesh(model, tolerance, halve):
    """Where scipy's Radau stepped, as it is or with every interval cut in two."""
    q = [float(value) for value in model.q]
    done = solve_ivp(
        lambda t, y: model.flow(y, q),
        (0.0, model.end),
        [float(value) for value in model.start],
        "Radau",
        rtol=tolerance,
        atol=tolerance * 1e-4,
        jac=lambda t, y: np.array(model.jacobian(y, q), float),
        first_step=1e-6,
    )
    if not halve:
        return done.t
    return np.sort(np.concatenate([done.t, (done.t[1:] + done.t[:-1]) / 2]))


def taylor(mu, order=22, start=(2, 0), end=2000):
    """y(end) by Taylor series in 80-bit numbers: explicit, so hundreds of thousands of steps."""
    real = np.longdouble
    y, w, mu, t, end = real(start[0]), real(start[1]), real(mu), real(0), real(end)
    ys, ws, us = (np.zeros(order + 1, real) for _ in range(3))
    powers = np.arange(order + 1)
    while t < end:
        ys[0], ws[0] = y, w
        for k in range(order):
            us[k] = -(ys[: k + 1] @ ys[k::-1])
            if k == 0:
                us[0] += 1
            ys[k + 1] = ws[k] / (k + 1)
            ws[k + 1] = (mu * (us[: k + 1] @ ws[k::-1]) - ys[k]) / (k + 1)
        sizes = np.abs(ys[-2:]) / max(abs(y), real(1)) + np.abs(ws[-2:]) / max(abs(w), real(1e-4))
        h = min(
            (real(1e-20) / max(sizes[k], real(1e-4000))) ** (real(1) / (order - 1 + k))
            for k in (0, 1)
        )
        h = min(h, end - t)
        factors = h**powers
        y, w, t = ys @ factors, ws @ factors, t + h
    return y


def cauer_samples(p):
    """The states at `CAUER_TIMES`, after a reset where both coincide, by DOP853."""
    flow = lambda t, x: np.array(problems.cauer_ode(t, x, p, np))
    full = lambda t, x: x[3] - problems.CAUER_LEVEL
    full.terminal, full.direction = True, 1.0
    tight = {"method": "DOP853", "rtol": 1e-13, "atol": 1e-14}
    times = problems.CAUER_TIMES
    samples = np.zeros((times.size, 5))
    t, x = 0.0, np.zeros(5)
    while t < times[-1]:
        part = solve_ivp(flow, (t, times[-1]), x, events=full, max_step=0.05, **tight)
        inside = np.flatnonzero((times >= t) & (times <= part.t[-1]))
        for k in inside:
            row = np.searchsorted(part.t, times[k], side="right") - 1
            samples[k] = part.y[:, row]
            if times[k] > part.t[row]:  # a step of its own: the interpolant has fewer digits
                span = (part.t[row], times[k])
                samples[k] = solve_ivp(flow, span, samples[k], **tight).y[:, -1]
        t, x = part.t[-1], part.y[:, -1] * np.array([1.0, 1.0, 1.0, 0.0, 1.0])
    return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--taylor", action="store_true", help="the second method for van der Pol")
    parser.add_argument("--cauer", action="store_true", help="write the ladder's samples again")
    options = parser.parse_args()
    if options.cauer:
        samples = cauer_samples(problems.CAUER_TRUTH)
        loss = np.mean((cauer_samples(problems.CAUER) - samples) ** 2)
        print("loss against its 45-digit value:", loss / problems.CAUER_VALUE - 1.0)
        return np.save(Path(__file__).parent / "problems" / "data" / "cauer_samples.npy", samples)
    if options.taylor:
        nudge = np.longdouble("1e-3")
        for order in (20, 24):
            low, mid, high = (taylor(1000 + k * nudge, order) for k in (-1, 0, 1))
            print("Taylor", order, mid, (high - low) / (2 * nudge), flush=True)
        return
    for model in (VanDerPol, Robertson):
        for stages, halve in ((8, False), (11, False), (8, True)):
            y, sensitivity = integrate(model, mesh(model, 1e-6, halve), stages)
            print(f"{model.__name__}, {stages} stages{', halved' if halve else ''}")
            print("  state", [mpmath.nstr(value, 25) for value in y])
            for name, column in zip(model.q, sensitivity, strict=True):
                print("  d/dq at", name, [mpmath.nstr(value, 25) for value in column], flush=True)


if __name__ == "__main__":
    main()
