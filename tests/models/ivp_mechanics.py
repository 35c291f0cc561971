"""Mechanical problems of the Test Set for IVP Solvers, index 3 (one of them 2) there.

Here each is a `Mechanism`, whose `form` says how it is computed.
"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
import numpy as np

from ivp_problem import IvpProblem
from saltus import HybridSystem, Instant, TimeEvent
from saltus.multibody import Mechanism

Form = Literal["index1", "index2"]


def index_of(form: Form) -> int:
    """The index of what is solved: of the first form, an ODE on the constraints, none."""
    return 2 if form == "index2" else 0


def beam() -> IvpProblem:
    """An elastic beam of 40 elements, pushed at its free end until t = pi."""
    n = 40

    def flow(now, p):
        theta, omega = now.x[:n], now.x[n:]
        push = jnp.where(now.d["pushed"] == 1, 1.5 * jnp.sin(now.t) ** 2, 0.0)
        ends = jnp.concatenate([-theta[:1], theta, theta[-1:]])
        bend = n**4 * (ends[:-2] - 2 * ends[1:-1] + ends[2:])
        v = bend + n**2 * push * (jnp.cos(theta) + jnp.sin(theta))
        step = theta[1:] - theta[:-1]
        cos, sin = jnp.cos(step), jnp.sin(step)
        weight = jnp.full(n, 2.0).at[0].set(1.0).at[-1].set(3.0)
        c = jnp.diag(weight) - jnp.diag(cos, 1) - jnp.diag(cos, -1)
        d = jnp.diag(sin, 1) - jnp.diag(sin, -1)
        tension = jnp.linalg.solve(c, d @ v + omega**2)
        return jnp.concatenate([omega, c @ v + d @ tension])

    release = TimeEvent(
        "release",
        next_time=lambda now, p: jnp.where(now.d["pushed"] == 1, jnp.pi, jnp.inf),
        reset=lambda now, p: now.replace(d={"pushed": 0}),
    )
    start = Instant(0.0, jnp.zeros(2 * n), d={"pushed": 1})
    return IvpProblem("beam", HybridSystem(flow, events=[release]), start, 0, 1e-8)


def fekete() -> IvpProblem:
    """Twenty points that repel each other on the unit sphere come to rest."""

    def force(now, p):
        apart = now.q[:, None] - now.q[None]
        square = jnp.sum(apart**2, axis=-1) + jnp.eye(20)
        return jnp.sum(apart / square[..., None], axis=1) - 0.5 * now.v

    rings = [(3, 1, 13, 3 / 8), (7, 1, 29, 1 / 8), (6, 1, 7, -2 / 15), (4, 0, 17, -3 / 10)]
    longitude = np.concatenate(
        [2 * np.pi * (np.arange(m) + k) / m + np.pi / s for m, k, s, _ in rings]
    )
    latitude = np.concatenate([np.full(m, np.pi * b) for m, _, _, b in rings])
    points = np.stack(
        [
            np.cos(longitude) * np.cos(latitude),
            np.sin(longitude) * np.cos(latitude),
            np.sin(latitude),
        ],
        axis=1,
    )
    bodies = Mechanism(1.0, force, lambda now, p: jnp.sum(now.q**2, axis=1) - 1.0)

    def solution(final):
        x, z = final.x, final.z
        return jnp.concatenate([x["q"].ravel(), x["v"].ravel(), z["lam"], z["mu"]])

    start = bodies.start(jnp.array(points))
    return IvpProblem("fekete", bodies.system("index2"), start, 2, 1e-8, solution)


def car_axis(form: Form = "index2") -> IvpProblem:
    """Two masses on springs over a bumpy road; one constraint moves with time."""
    k, length, rest = 10 * 0.01**2 / 2, 1.0, 0.5

    def road(t):
        y = 0.1 * jnp.sin(10 * t)
        return jnp.sqrt(length**2 - y**2), y

    def constraint(now, p):
        (xl, yl, xr, yr), (xb, yb) = now.q, road(now.t)
        return jnp.stack([xb * xl + yb * yl, (xl - xr) ** 2 + (yl - yr) ** 2 - length**2])

    def force(now, p):
        (xl, yl, xr, yr), (xb, yb) = now.q, road(now.t)
        left, right = jnp.hypot(xl, yl), jnp.hypot(xr - xb, yr - yb)
        spring_l, spring_r = (rest - left) / left, (rest - right) / right
        pulls = jnp.stack(
            [spring_l * xl, spring_l * yl, spring_r * (xr - xb), spring_r * (yr - yb)]
        )
        return pulls - k * jnp.array([0.0, 1.0, 0.0, 1.0])

    axis = Mechanism(k, force, constraint, output=lambda now, p: now.lam)
    system = axis.system(form)
    start = axis.start(jnp.array([0.0, 0.5, 1.0, 0.5]), jnp.array([-0.5, 0.0, -0.5, 0.0]))

    def solution(final):
        return jnp.concatenate([final.x["q"], final.x["v"], system.output(final, None)])

    return IvpProblem("caraxis", system, start, index_of(form), 1e-8, solution)


def squeezer(form: Form = "index2") -> IvpProblem:
    """Andrews' squeezing mechanism: seven bodies, a motor and a spring.

    The reference has nine digits of the positions; the test set compares them only.
    """
    m2, m4, m5, m6, m7 = 0.00365, 0.00706, 0.0705, 0.00706, 0.05498
    i2, i4, i5, i6, i7 = 4.41e-7, 5.667e-7, 1.169e-5, 5.667e-7, 1.912e-5
    d, da, rr, ra, e, zf, zt, u = 0.028, 0.0115, 0.007, 0.00092, 0.02, 0.02, 0.04, 0.04
    e1, f1 = e - 0.01421, zf - 0.01421
    sc, sd, ss = 0.018, 0.02, 0.035
    xa, ya, xb, yb, xc, yc = -0.06934, -0.00227, -0.03635, 0.03273, 0.014, 0.072

    def mass(now, p):
        _, theta, _, phi, _, omega, _ = now.q
        cos, sin4, sin6 = jnp.cos(theta), jnp.sin(phi), jnp.sin(omega)
        m = jnp.zeros((7, 7))
        m = m.at[0, 0].set(
            0.04325 * ra**2 + m2 * (rr**2 - 2 * da * rr * cos + da**2) + 2.194e-6 + i2
        )
        m = m.at[[0, 1], [1, 0]].set(m2 * (da**2 - da * rr * cos) + i2)
        m = m.at[1, 1].set(m2 * da**2 + i2)
        m = m.at[2, 2].set(0.02373 * (0.01874**2 + 0.01043**2) + 5.255e-6)
        m = m.at[3, 3].set(m4 * e1**2 + i4)
        m = m.at[[3, 4], [4, 3]].set(m4 * (e1**2 + zt * e1 * sin4) + i4)
        m = m.at[4, 4].set(
            m4 * (zt**2 + 2 * zt * e1 * sin4 + e1**2) + m5 * (0.02308**2 + 0.00916**2) + i4 + i5
        )
        m = m.at[5, 5].set(m6 * f1**2 + i6)
        m = m.at[[5, 6], [6, 5]].set(m6 * (f1**2 - u * f1 * sin6) + i6)
        return m.at[6, 6].set(
            m6 * (f1**2 - 2 * u * f1 * sin6 + u**2) + m7 * (0.01228**2 + 0.00449**2) + i6 + i7
        )

    def force(now, p):
        _, theta, gamma, phi, _, omega, _ = now.q
        db, dtheta, _, dphi, ddelta, domega, depsilon = now.v
        cos, sin = jnp.cos(gamma), jnp.sin(gamma)
        x, y = sd * cos + sc * sin + xb - xc, sd * sin - sc * cos + yb - yc
        length = jnp.hypot(x, y)
        pull = -4530.0 * (length - 0.07785) / length
        return jnp.stack(
            [
                0.033 - m2 * da * rr * dtheta * (dtheta + 2 * db) * jnp.sin(theta),
                m2 * da * rr * db**2 * jnp.sin(theta),
                pull * (x * (sc * cos - sd * sin) + y * (sd * cos + sc * sin)),
                m4 * zt * e1 * ddelta**2 * jnp.cos(phi),
                -m4 * zt * e1 * dphi * (dphi + 2 * ddelta) * jnp.cos(phi),
                -m6 * u * f1 * depsilon**2 * jnp.cos(omega),
                m6 * u * f1 * domega * (domega + 2 * depsilon) * jnp.cos(omega),
            ]
        )

    def constraint(now, p):
        beta, theta, gamma, phi, delta, omega, epsilon = now.q
        x = rr * jnp.cos(beta) - d * jnp.cos(beta + theta)
        y = rr * jnp.sin(beta) - d * jnp.sin(beta + theta)
        return jnp.stack(
            [
                x - ss * jnp.sin(gamma) - xb,
                y + ss * jnp.cos(gamma) - yb,
                x - e * jnp.sin(phi + delta) - zt * jnp.cos(delta) - xa,
                y + e * jnp.cos(phi + delta) - zt * jnp.sin(delta) - ya,
                x - zf * jnp.cos(omega + epsilon) - u * jnp.sin(epsilon) - xa,
                y - zf * jnp.sin(omega + epsilon) + u * jnp.cos(epsilon) - ya,
            ]
        )

    phi, start = 0.222668390165885884674473185609, np.zeros(7)
    start[[0, 2, 4]] = (
        -0.0617138900142764496358948458001,
        0.455279819163070380255912382449,
        0.487364979543842550225598953530,
    )
    start[[3, 5, 6]] = phi, -phi, 1.23054744454982119249735015568
    bodies = Mechanism(mass, force, constraint)
    return IvpProblem(
        "andrews",
        bodies.system(form),
        bodies.start(jnp.array(start)),
        index_of(form),
        1e-8,
        solution=lambda final: final.x["q"],
        known=7,
    )


def slider_crank(form: Form = "index2") -> IvpProblem:
    """A crank that turns steadily, an elastic connecting rod, and a slider, without damping.

    The rod bends in two sines, `q[3]` and `q[4]`, and stretches by quadratic functions of its
    middle and its end, `q[5]` and `q[6]`; stiffness is linear. Numbers are those of the test set,
    which has `pi` to eight digits and a longitudinal inertia larger than the rod's. Accelerations
    and multipliers are not compared: errors of the vibrations, 250 of them, are 1e8 times larger
    there.
    """
    pi, omega, l1, l2 = 3.1415927, 150.0, 0.15, 0.30
    j1, j2, m2, m3 = 0.002727, 0.0045339259, 0.151104, 0.075552
    modulus, thick = 0.2e12, 0.008

    stretch = modulus * thick**2 / l2
    bend = stretch * pi**4 * (thick / l2) ** 2
    stiffness = np.diag([bend / 24, bend * 2 / 3, stretch * 16 / 3, stretch * 7 / 3])
    stiffness[[2, 3], [3, 2]] = -stretch * 8 / 3
    inertia = m2 * np.diag([0.5, 0.5, 8.0, 2.0])
    inertia[[2, 3], [3, 2]] = m2

    # integrals along the rod of the shapes: along it (1) and across (2), times 1 and times x
    along, across = m2 * np.array([0, 0, 2 / 3, 1 / 6]), m2 * np.array([2 / pi, 0, 0, 0])
    along_x = m2 * l2 * np.array([0, 0, 1 / 3, 1 / 6])
    across_x = m2 * l2 * np.array([1 / pi, -0.5 / pi, 0, 0])
    twist = np.zeros((4, 4))
    twist[0, 2], twist[0, 3], twist[1, 3] = -16 / pi**3, 8 / pi**3 - 1 / pi, 0.5 / pi
    twist = m2 * (twist - twist.T)

    def kinetic(now, p):
        (phi1, phi2, _), (w1, w2, speed) = now.q[:3], now.v[:3]
        e, de = now.q[3:], now.v[3:]
        cos, sin = jnp.cos(phi1 - phi2), jnp.sin(phi1 - phi2)
        centre = 0.5 * m2 * l2 + along @ e  # times the mass, along the rod
        crank = 0.5 * (j1 + m2 * l1**2) * w1**2
        rod = 0.5 * (j2 + e @ inertia @ e + 2 * along_x @ e) * w2**2 + 0.5 * de @ inertia @ de
        rod = rod + w2 * (across_x @ de + e @ twist @ de)
        pin = l1 * w1 * w2 * (cos * centre + sin * across @ e)
        pin = pin + l1 * w1 * (cos * across @ de - sin * along @ de)
        return crank + rod + pin + 0.5 * m3 * speed**2

    def constraint(now, p):
        phi1, phi2, x, *_, end = now.q
        return {
            "height": l1 * jnp.sin(phi1) + (l2 + end) * jnp.sin(phi2),
            "slider": x - l1 * jnp.cos(phi1) - (l2 + end) * jnp.cos(phi2),
            "motor": phi1 - omega * now.t,
        }

    # The test set has nine digits, which obey the constraints to 1e-8: the slider where the rod
    # ends, and velocities after the impulse with which a solver would begin.
    end, speed = 0.169327969e-4, -0.268938672e-5
    q = jnp.array([0.0, 0.0, l1 + l2 + end, 0.0, 0.0, 0.103339863e-4, end])
    v = jnp.array([omega, -74.9957670, speed, 0.444896105, 0.463434311e-2, -0.178591076e-5, speed])
    linkage = Mechanism(
        kinetic=kinetic,
        potential=lambda now, p: 0.5 * now.q[3:] @ stiffness @ now.q[3:],
        constraint=constraint,
    )
    start = linkage.start(q, linkage.impact(Instant(0.0, {"q": q, "v": v}), None))
    return IvpProblem(
        "crank",
        linkage.system(form),
        start,
        index_of(form),
        1e-11,
        solution=lambda final: jnp.concatenate([final.x["q"], final.x["v"]]),
        known=14,
        floor=1e-2,  # the test set has 1
    )
