"""Makes `drag_ball.json`: a bouncing ball with quadratic drag, to 25 digits.

h' = v, v' = -g - k v|v|, q' = h; at h = 0 (falling) v := -e v.

Between an apex (v = 0) and a bounce the sign of v is constant, so every piece is analytic: its
Taylor series is summed term by term, and pieces end at a root found by Newton's method on the
series. Derivatives are central differences with a step of 1e-15 in 70-digit arithmetic (error about
1e-30). No sensitivity equation is used. A second, separate computation from the closed forms (tan
and tanh pieces) has to agree before anything is written.

    python tests/data/make_drag_reference.py
"""

import json
from itertools import combinations
from pathlib import Path

from mpmath import acosh, atan, cos, cosh, exp, log, mp, mpf, sqrt, tan, tanh

mp.dps = 70
ORDER, STEP = 64, mpf("0.05")
DIFFERENCE = mpf(10) ** -15
DIGITS = 25

CASES = {
    # several bounces and apexes
    "long": {"p": {"h0": "2", "v0": "1", "g": "9.81", "k": "0.15", "e": "0.85"}, "T": "2.5"},
    # one bounce, and the end before the next apex: smooth between events, for orders of convergence
    "short": {"p": {"h0": "2", "v0": "-0.5", "g": "9.81", "k": "0.4", "e": "0.85"}, "T": "0.85"},
}


def series(h, v, q, sign, g, k):
    """Taylor coefficients of (h, v, q) about now, for the piece on which |v| = sign v."""
    hs, vs, qs = [h], [v], [q]
    for n in range(ORDER):
        square = sum(vs[i] * vs[n - i] for i in range(n + 1))
        vs.append((-(g if n == 0 else 0) - sign * k * square) / (n + 1))
        hs.append(vs[n] / (n + 1))
        qs.append(hs[n] / (n + 1))
    return hs, vs, qs


def horner(coefficients, dt):
    total = mpf(0)
    for c in reversed(coefficients):
        total = total * dt + c
    return total


def root(coefficients, guess):
    """Newton's method on a Taylor polynomial."""
    derivative = [n * c for n, c in enumerate(coefficients)][1:]
    dt = guess
    for _ in range(200):
        change = horner(coefficients, dt) / horner(derivative, dt)
        dt -= change
        if abs(change) < mpf(10) ** (5 - mp.dps):
            return dt
    raise ArithmeticError("no root")


def by_taylor(h0, v0, g, k, e, end):
    """h, v and the integral of h at `end`; bounce times, speeds before them, apex times."""
    t, h, v, q = mpf(0), h0, v0, mpf(0)
    sign = 1 if v0 > 0 else -1
    bounces, speeds, apexes = [], [], []
    while t < end:
        hs, vs, qs = series(h, v, q, sign, g, k)
        dt = min(STEP, end - t)
        watched = vs if sign > 0 else hs  # upwards: the next apex; downwards: the floor
        crossed = horner(watched, dt) < 0
        if crossed:
            dt = root(watched, dt)
        t, h, v, q = t + dt, horner(hs, dt), horner(vs, dt), horner(qs, dt)
        if crossed and sign > 0:
            apexes.append(t)
            v, sign = mpf(0), -1
        elif crossed:
            bounces.append(t)
            speeds.append(v)
            h, v, sign = mpf(0), -e * v, 1
    return (
        {"h(T)": h, "v(T)": v, "int_h": q}
        | named("t", bounces)
        | named("v-", speeds)
        | named("apex", apexes)
    )


def rising(h, phase, w, k, dt):
    """The integral of the height over a rising piece."""
    return mp.quad(lambda s: h + log(cos(phase - w * s) / cos(phase)) / k, [0, dt])


def falling(h, phase, w, k, dt):
    """The integral of the height over a falling piece."""
    return mp.quad(lambda s: h - log(cosh(phase + w * s) / cosh(phase)) / k, [0, dt])


def by_closed_form(h0, v0, g, k, e, end):
    """The same from tan (rising) and tanh (falling)."""
    w, r = sqrt(g * k), sqrt(g / k)  # rate and terminal speed
    t, h, v, q = mpf(0), h0, v0, mpf(0)
    bounces, speeds, apexes = [], [], []
    while True:
        if v > 0:
            phase, span = atan(v / r), atan(v / r) / w
            dt = min(span, end - t)
            q += rising(h, phase, w, k, dt)
            h += log(cos(phase - w * dt) / cos(phase)) / k
            v, t = r * tan(phase - w * dt), t + dt
            if span > dt:
                break
            apexes.append(t)
            v = mpf(0)
        else:
            phase = mp.atanh(-v / r)
            span = (acosh(cosh(phase) * exp(k * h)) - phase) / w
            dt = min(span, end - t)
            q += falling(h, phase, w, k, dt)
            h -= log(cosh(phase + w * dt) / cosh(phase)) / k
            v, t = -r * tanh(phase + w * dt), t + dt
            if span > dt:
                break
            bounces.append(t)
            speeds.append(v)
            h, v = mpf(0), -e * v
    return (
        {"h(T)": h, "v(T)": v, "int_h": q}
        | named("t", bounces)
        | named("v-", speeds)
        | named("apex", apexes)
    )


def named(stem, numbers):
    return {f"{stem}{i + 1}": x for i, x in enumerate(numbers)}


def derivatives(f, p):
    """Value, gradient and Hessian of a dict of outputs by central differences."""
    d = DIFFERENCE

    def at(**shift):
        return f(**{name: x + shift.get(name, 0) * d for name, x in p.items()})

    centre = at()
    plus = {a: at(**{a: 1}) for a in p}
    minus = {a: at(**{a: -1}) for a in p}
    mixed = {
        (a, b): [at(**{a: i, b: j}) for i, j in ((1, 1), (1, -1), (-1, 1), (-1, -1))]
        for a, b in combinations(p, 2)
    }
    gradient, hessian = {}, {}
    for y, value in centre.items():
        gradient[y] = {a: (plus[a][y] - minus[a][y]) / (2 * d) for a in p}
        matrix = {(a, a): (plus[a][y] - 2 * value + minus[a][y]) / d**2 for a in p}
        for (a, b), (pp, pm, mp_, mm) in mixed.items():
            matrix[a, b] = matrix[b, a] = (pp[y] - pm[y] - mp_[y] + mm[y]) / (4 * d**2)
        hessian[y] = [[matrix[a, b] for b in p] for a in p]
    return centre, gradient, hessian


def text(x):
    return mp.nstr(mpf(0) if abs(x) < mpf(10) ** -24 else x, DIGITS)


def main():
    problems = {}
    for name, case in CASES.items():
        p = {a: mpf(x) for a, x in case["p"].items()}
        end = mpf(case["T"])
        values, gradients, hessians = derivatives(lambda end=end, **q: by_taylor(**q, end=end), p)
        check = by_closed_form(**p, end=end)
        assert values.keys() == check.keys(), (values.keys(), check.keys())
        worst = max(abs(values[y] - check[y]) for y in values)
        assert worst < mpf(10) ** -40, worst
        print(name, "largest difference of the two methods:", mp.nstr(worst, 3))
        problems[name] = {
            "parameters": case["p"],
            "T": case["T"],
            "order": list(p),
            "values": {y: text(x) for y, x in values.items()},
            "gradients": {y: {a: text(x) for a, x in row.items()} for y, row in gradients.items()},
            "hessians": {
                y: [[text(x) for x in row] for row in rows] for y, rows in hessians.items()
            },
        }
    origin = (
        "independent reference computation: 70-digit Taylor series per smooth piece, central "
        "differences in the same arithmetic, values confirmed by closed forms; made by "
        "make_drag_reference.py"
    )
    model = (
        "h' = v, v' = -g - k v|v|, h(0) = h0, v(0) = v0; at h = 0 falling v := -e v; "
        "int_h = int_0^T h dt"
    )
    path = Path(__file__).with_name("drag_ball.json")
    path.write_text(
        json.dumps({"origin": origin, "model": model, "problems": problems}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
