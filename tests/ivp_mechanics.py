"""Mechanical problems of the Test Set for IVP Solvers, index 3 there, stabilised index 2 here."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ivp_problem import IvpProblem
from saltus import HybridSystem, Instant, TimeEvent


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


def mechanism(
    position: Callable, force: Callable, mass: Callable | None = None
) -> tuple[Callable, Callable]:
    """Flow and constraint of M(q) v' = F(t, q, v) - G'lam, 0 = g(t, q), stabilised: q' = v - G'mu.

    `position(t, q)` is g, and G its derivative with respect to q."""

    def pull(now, multipliers):
        return jax.vjp(lambda q: position(now.t, q), now.x["q"])[1](multipliers)[0]

    def flow(now, p):
        q, v = now.x["q"], now.x["v"]
        total = force(now.t, q, v) - pull(now, now.z["lam"])
        return {
            "q": v - pull(now, now.z["mu"]),
            "v": total if mass is None else jnp.linalg.solve(mass(q), total),
        }

    def constraint(now, p):
        at, along = (now.t, now.x["q"]), (jnp.ones_like(now.t), now.x["v"])
        value, rate = jax.jvp(position, at, along)
        return {"position": value, "velocity": rate}

    return flow, constraint


def fekete() -> IvpProblem:
    """Twenty points that repel each other on the unit sphere come to rest."""

    def force(t, q, v):
        apart = q[:, None] - q[None]
        square = jnp.sum(apart**2, axis=-1) + jnp.eye(20)
        return jnp.sum(apart / square[..., None], axis=1) - 0.5 * v

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
    flow, constraint = mechanism(lambda t, q: jnp.sum(q**2, axis=1) - 1.0, force)
    start = Instant(
        0.0,
        {"q": jnp.array(points), "v": jnp.zeros((20, 3))},
        z={"lam": jnp.zeros(20), "mu": jnp.zeros(20)},
    )

    def solution(final):
        x, z = final.x, final.z  # the multipliers of the test set have the opposite sign
        return jnp.concatenate([x["q"].ravel(), x["v"].ravel(), -z["lam"], -z["mu"]])

    return IvpProblem("fekete", HybridSystem(flow, constraint=constraint), start, 2, 1e-8, solution)


def car_axis() -> IvpProblem:
    """Two masses on springs over a bumpy road; one constraint moves with time."""
    k, length, rest = 10 * 0.01**2 / 2, 1.0, 0.5

    def road(t):
        y = 0.1 * jnp.sin(10 * t)
        return jnp.sqrt(length**2 - y**2), y

    def position(t, q):
        (xl, yl, xr, yr), (xb, yb) = q, road(t)
        return jnp.stack([xb * xl + yb * yl, (xl - xr) ** 2 + (yl - yr) ** 2 - length**2])

    def force(t, q, v):
        (xl, yl, xr, yr), (xb, yb) = q, road(t)
        left, right = jnp.hypot(xl, yl), jnp.hypot(xr - xb, yr - yb)
        spring_l, spring_r = (rest - left) / left, (rest - right) / right
        pulls = jnp.stack(
            [spring_l * xl, spring_l * yl, spring_r * (xr - xb), spring_r * (yr - yb)]
        )
        return pulls - k * jnp.array([0.0, 1.0, 0.0, 1.0])

    flow, constraint = mechanism(position, force, mass=lambda q: k * jnp.eye(4))
    start = Instant(
        0.0,
        {"q": jnp.array([0.0, 0.5, 1.0, 0.5]), "v": jnp.array([-0.5, 0.0, -0.5, 0.0])},
        z={"lam": jnp.zeros(2), "mu": jnp.zeros(2)},
    )
    solution = lambda final: jnp.concatenate([final.x["q"], final.x["v"], -final.z["lam"]])
    system = HybridSystem(flow, constraint=constraint)
    return IvpProblem("caraxis", system, start, 2, 1e-8, solution)


def squeezer() -> IvpProblem:
    """Andrews' squeezing mechanism: seven bodies, a motor and a spring.

    The reference has nine digits of the positions; the test set compares them only.
    """
    m2, m4, m5, m6, m7 = 0.00365, 0.00706, 0.0705, 0.00706, 0.05498
    i2, i4, i5, i6, i7 = 4.41e-7, 5.667e-7, 1.169e-5, 5.667e-7, 1.912e-5
    d, da, rr, ra, e, zf, zt, u = 0.028, 0.0115, 0.007, 0.00092, 0.02, 0.02, 0.04, 0.04
    e1, f1 = e - 0.01421, zf - 0.01421
    sc, sd, ss = 0.018, 0.02, 0.035
    xa, ya, xb, yb, xc, yc = -0.06934, -0.00227, -0.03635, 0.03273, 0.014, 0.072

    def mass(q):
        _, theta, _, phi, _, omega, _ = q
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

    def force(t, q, v):
        _, theta, gamma, phi, _, omega, _ = q
        db, dtheta, _, dphi, ddelta, domega, depsilon = v
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

    def position(t, q):
        beta, theta, gamma, phi, delta, omega, epsilon = q
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
    flow, constraint = mechanism(position, force, mass)
    return IvpProblem(
        "andrews",
        HybridSystem(flow, constraint=constraint),
        Instant(
            0.0,
            {"q": jnp.array(start), "v": jnp.zeros(7)},
            z={"lam": jnp.zeros(6), "mu": jnp.zeros(6)},
        ),
        2,
        1e-8,
        solution=lambda final: final.x["q"],
        known=7,
    )
