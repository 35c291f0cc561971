"""Problems of the Test Set for IVP Solvers (Bari/CWI), with its reference solutions.

Equations and constants are those of the test set's published description. Chemistry and circuits
here; mechanics in a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import jax.numpy as jnp
import numpy as np

from ivp_mechanics import beam, car_axis, fekete, slider_crank, squeezer
from ivp_problem import IvpProblem
from saltus import HybridSystem, Instant, Ramps, Steps, mass_matrix

# -- chemistry ----------------------------------------------------------------------------------


def robertson() -> IvpProblem:
    def flow(now, p):
        a, b, c = now.x
        k1, k2, k3 = (0.04, 1e4, 3e7) if p is None else p
        slow, back, fast = k1 * a, k2 * b * c, k3 * b**2
        return jnp.stack([back - slow, slow - back - fast, fast])

    return IvpProblem(
        "rober", HybridSystem(flow), Instant(0.0, jnp.array([1.0, 0.0, 0.0])), 0, 1e-22
    )


def robertson_dae() -> IvpProblem:
    """The last concentration from the conservation of mass."""

    def flow(now, p):
        (a, b), c = now.x, now.z
        slow, back, fast = 0.04 * a, 1e4 * b * c, 3e7 * b**2
        return jnp.stack([back - slow, slow - back - fast])

    system = HybridSystem(flow, constraint=lambda now, p: jnp.sum(now.x) + now.z - 1.0)
    return IvpProblem(
        "rober_dae",
        system,
        Instant(0.0, jnp.array([1.0, 0.0]), z=0.0),
        1,
        1e-22,
        solution=lambda final: jnp.append(final.x, final.z),
    )


def hires() -> IvpProblem:
    def flow(now, p):
        a, b, c, d, e, f, g, h = now.x
        bind = 280 * f * h
        return jnp.stack(
            [
                -1.71 * a + 0.43 * b + 8.32 * c + 0.0007,
                1.71 * a - 8.75 * b,
                -10.03 * c + 0.43 * d + 0.035 * e,
                8.32 * b + 1.71 * c - 1.12 * d,
                -1.745 * e + 0.43 * f + 0.43 * g,
                -bind + 0.69 * d + 1.71 * e - 0.43 * f + 0.69 * g,
                bind - 1.81 * g,
                -bind + 1.81 * g,
            ]
        )

    start = Instant(0.0, jnp.array([1.0, 0, 0, 0, 0, 0, 0, 0.0057]))
    return IvpProblem("hires", HybridSystem(flow), start, 0, 1e-12)


# Reactions of the pollution problem: rate constant, what reacts, what is made (species 1..20).
POLLUTION = [
    (0.35, [1], [2, 3]),
    (26.6, [2, 4], [1]),
    (12300.0, [5, 2], [6, 1]),
    (0.00086, [7], [5, 5, 8]),
    (0.00082, [7], [8]),
    (15000.0, [7, 6], [5, 8]),
    (0.00013, [9], [5, 8, 10]),
    (24000.0, [9, 6], [11]),
    (16500.0, [11, 2], [10, 1, 12]),
    (9000.0, [11, 1], [13]),
    (0.022, [13], [11, 1]),
    (12000.0, [10, 2], [14, 1]),
    (1.88, [14], [7, 5]),
    (16300.0, [1, 6], [15]),
    (4800000.0, [3], [4]),
    (0.00035, [4], [16]),
    (0.0175, [4], [3]),
    (1e8, [16], [6, 6]),
    (4.44e11, [16], [3]),
    (1240.0, [17, 6], [5, 18]),
    (2.1, [19], [2]),
    (5.78, [19], [1, 3]),
    (0.0474, [1, 4], [19]),
    (1780.0, [19, 1], [20]),
    (3.12, [20], [1, 19]),
]


def pollution() -> IvpProblem:
    constants = jnp.array([k for k, _, _ in POLLUTION])
    change = np.zeros((20, 25))
    for j, (_, reactants, products) in enumerate(POLLUTION):
        for i in reactants:
            change[i - 1, j] -= 1
        for i in products:
            change[i - 1, j] += 1
    first = jnp.array([reactants[0] - 1 for _, reactants, _ in POLLUTION])
    second = jnp.array([reactants[1] - 1 if reactants[1:] else 20 for _, reactants, _ in POLLUTION])

    def flow(now, p):
        padded = jnp.append(now.x, 1.0)
        return jnp.asarray(change) @ (constants * padded[first] * padded[second])

    start = np.zeros(20)
    start[[1, 3, 6, 7, 8, 16]] = 0.2, 0.04, 0.1, 0.3, 0.01, 0.007
    return IvpProblem("pollution", HybridSystem(flow), Instant(0.0, jnp.array(start)), 0, 1e-14)


def oregonator() -> IvpProblem:
    def flow(now, p):
        a, b, c = now.x
        return jnp.stack(
            [
                77.27 * (b + a * (1 - 8.375e-6 * a - b)),
                (c - (1 + a) * b) / 77.27,
                0.161 * (a - c),
            ]
        )

    return IvpProblem(
        "orego", HybridSystem(flow), Instant(0.0, jnp.array([1.0, 2.0, 3.0])), 0, 1e-8
    )


def e5() -> IvpProblem:
    """Concentrations down to 1e-22, to the time 1e13.

    What is bound is conserved, b = c + d; as an ODE in four states rounding alone breaks that at
    1e-26 and the end is lost. So c is algebraic.
    """

    def flow(now, p):
        (a, b, d), c = now.x, now.z
        birth, bind, meet, decay = 7.89e-10 * a, 1.1e7 * a * c, 1.13e9 * b * c, 1.13e3 * d
        return jnp.stack([-birth - bind, birth - meet, bind - decay])

    system = HybridSystem(flow, constraint=lambda now, p: now.z - now.x[1] + now.x[2])
    start = Instant(0.0, jnp.array([1.76e-3, 0.0, 0.0]), z=0.0)
    solution = lambda final: jnp.stack([*final.x[:2], final.z, final.x[2]])
    return IvpProblem("E5", system, start, 1, 1e-31, solution)


# -- circuits -----------------------------------------------------------------------------------


def van_der_pol() -> IvpProblem:
    flow = lambda now, p: jnp.stack(
        [now.x[1], (1000.0 if p is None else p) * (1 - now.x[0] ** 2) * now.x[1] - now.x[0]]
    )
    return IvpProblem("vdpol", HybridSystem(flow), Instant(0.0, jnp.array([2.0, 0.0])), 0, 1e-8)


def ring_modulator() -> IvpProblem:
    def flow(now, p):
        y1, y2, y3, y4, y5, y6, y7, y8, y9, y10, y11, y12, y13, y14, y15 = now.x
        u1 = 0.5 * jnp.sin(2e3 * jnp.pi * now.t)
        u2 = 2.0 * jnp.sin(2e4 * jnp.pi * now.t)
        diode = lambda u: 40.67286402e-9 * jnp.expm1(17.7493332 * u)
        q1, q2 = diode(y3 - y5 - y7 - u2), diode(-y4 + y6 - y7 - u2)
        q3, q4 = diode(y4 + y5 + y7 + u2), diode(-y3 - y6 + y7 + u2)
        return jnp.stack(
            [
                (y8 - 0.5 * y10 + 0.5 * y11 + y14 - y1 / 25e3) / 1.6e-8,
                (y9 - 0.5 * y12 + 0.5 * y13 + y15 - y2 / 25e3) / 1.6e-8,
                (y10 - q1 + q4) / 2e-12,
                (-y11 + q2 - q3) / 2e-12,
                (y12 + q1 - q3) / 2e-12,
                (-y13 - q2 + q4) / 2e-12,
                (-y7 / 50.0 + q1 + q2 - q3 - q4) / 1e-8,
                -y1 / 4.45,
                -y2 / 4.45,
                (0.5 * y1 - y3 - 17.3 * y10) / 5e-4,
                (-0.5 * y1 + y4 - 17.3 * y11) / 5e-4,
                (0.5 * y2 - y5 - 17.3 * y12) / 5e-4,
                (-0.5 * y2 + y6 - 17.3 * y13) / 5e-4,
                (-y1 + u1 - (50.0 + 36.3) * y14) / 2e-3,
                (-y2 - (600.0 + 36.3) * y15) / 2e-3,
            ]
        )

    return IvpProblem("ring", HybridSystem(flow), Instant(0.0, jnp.zeros(15)), 0, 1e-9)


def amplifier_currents(t, y):
    y1, y2, y3, y4, y5, y6, y7, y8 = y
    source = 0.1 * jnp.sin(200 * jnp.pi * t)
    g2, g5 = 1e-6 * jnp.expm1((y2 - y3) / 0.026), 1e-6 * jnp.expm1((y5 - y6) / 0.026)
    return (
        (y1 - source) / 1e3,
        (2 * y2 - 6) / 9e3 + 0.01 * g2,
        y3 / 9e3 - g2,
        (y4 - 6) / 9e3 + 0.99 * g2,
        (2 * y5 - 6) / 9e3 + 0.01 * g5,
        y6 / 9e3 - g5,
        (y7 - 6) / 9e3 + 0.99 * g5,
        y8 / 9e3,
    )


def transistor_amplifier() -> IvpProblem:
    """C y' = f(y) with a constant singular C: capacitors between nodes 1-2, 4-5 and 7-8.

    Their voltages (and those of nodes 3 and 6) are the differential states; the potentials of
    nodes 1, 4 and 7 are algebraic: the two currents of a capacitor add up to 0.
    """

    def potentials(now):
        (c1, y3, c3, y6, c5), (y1, y4, y7) = now.x, now.z
        return y1, y1 + c1, y3, y4, y4 + c3, y6, y7, y7 + c5

    def flow(now, p):
        f1, _, f3, f4, _, f6, f7, _ = amplifier_currents(now.t, potentials(now))
        return jnp.stack([f1 / 1e-6, -f3 / 2e-6, f4 / 3e-6, -f6 / 4e-6, f7 / 5e-6])

    def constraint(now, p):
        f1, f2, _, f4, f5, _, f7, f8 = amplifier_currents(now.t, potentials(now))
        return {"nodes 1, 2": f1 + f2, "nodes 4, 5": f4 + f5, "nodes 7, 8": f7 + f8}

    start = Instant(0.0, jnp.array([3.0, 3.0, -3.0, 3.0, -6.0]), z=jnp.array([0.0, 6.0, 6.0]))
    return IvpProblem(
        "transistor",
        HybridSystem(flow, constraint=constraint),
        start,
        1,
        1e-8,
        solution=lambda final: jnp.stack(potentials(final)),
    )


def transistor_amplifier_mass() -> IvpProblem:
    """The same circuit as it is published: C y' = f, with all potentials in x."""
    pairs = ((0, 1, 1e-6), (2, 2, 2e-6), (3, 4, 3e-6), (5, 5, 4e-6), (6, 7, 5e-6))
    c = np.zeros((8, 8))
    for i, j, farad in pairs:
        c[i, i] = c[j, j] = -farad
        if i != j:
            c[i, j] = c[j, i] = farad
    system = mass_matrix(c, lambda now, p: jnp.stack(amplifier_currents(now.t, now.x)))
    start = Instant(0.0, jnp.array([0.0, 3.0, 3.0, 6.0, 3.0, 3.0, 6.0, 0.0]))
    return IvpProblem("transistor_mass", system, start, 1, 1e-8)


def nand_gate() -> IvpProblem:
    """C(y) y' = f(t, y): three transistors, driven by ramps with a corner every 5 s."""
    corners = np.arange(0.0, 85.0, 5.0)
    drives = np.array([((0.0, 0.0, 5.0, 5.0)[k % 4], 0.0 if k % 8 < 4 else 5.0) for k in range(17)])
    cgs, cgd, c9, vdd, vbb = 6e-5, 6e-5, 5e-5, 5.0, -2.5
    depletion = (-2.43, 0.2, 1.28, 5.35e-4, 5.35e-4)
    enhancement = (0.2, 0.035, 1.01, 1.748e-3, 1.748e-4)  # backwards a tenth: so is the reference

    def junction(v):  # capacitance from bulk to source or drain
        below = 2.4e-5 / jnp.sqrt(1 - jnp.minimum(v, 0.0) / 0.87)
        return jnp.where(v <= 0, below, 2.4e-5 * (1 + v / 1.74))

    def leak(v):
        return jnp.where(v <= 0, -1e-14 * jnp.expm1(jnp.minimum(v, 0.0) / 25.85), 0.0)

    def channel(kind, vds, vgs, vbs, vgd, vbd):  # Shichman and Hodges
        vt0, gamma, phi, forward, backward = kind
        beta = jnp.where(vds > 0, forward, backward)
        bulk, gate = jnp.where(vds > 0, vbs, vbd), jnp.where(vds > 0, vgs, vgd)
        over = gate - vt0 - gamma * (jnp.sqrt(phi - bulk) - jnp.sqrt(phi))
        size = jnp.abs(vds)
        current = jnp.where(over <= size, over**2, size * (2 * over - size))
        return jnp.where(over <= 0, 0.0, -jnp.sign(vds) * beta * current * (1 + 0.02 * size))

    def flow(now, p):
        y1, y2, y3, y4, y5, y6, y7, y8, y9, y10, y11, y12, y13, y14 = now.x
        (v1, v2), (d1, d2) = now.u["drive"], now.u["slope"]
        top = channel(depletion, y2 - y1, y5 - y1, y3 - y5, y5 - y2, y4 - vdd)
        middle = channel(enhancement, y7 - y6, v1 - y6, y8 - y10, v1 - y7, y9 - y5)
        bottom = channel(enhancement, y12 - y11, v2 - y11, y13, v2 - y12, y14 - y10)
        return jnp.stack(
            [
                -(y1 - y5) / 4 - top,
                -(y2 - vdd) / 4 + top,
                -(y3 - vbb) / 10 + leak(y3 - y5),
                -(y4 - vbb) / 10 + leak(y4 - vdd),
                -(y5 - y1) / 4 - leak(y3 - y5) - (y5 - y7) / 4 - leak(y9 - y5),
                cgs * d1 - (y6 - y10) / 4 - middle,
                cgd * d1 - (y7 - y5) / 4 + middle,
                -(y8 - vbb) / 10 + leak(y8 - y10),
                -(y9 - vbb) / 10 + leak(y9 - y5),
                -(y10 - y6) / 4 - leak(y8 - y10) - (y10 - y12) / 4 - leak(y14 - y10),
                cgs * d2 - y11 / 4 - bottom,
                cgd * d2 - (y12 - y10) / 4 + bottom,
                -(y13 - vbb) / 10 + leak(y13),
                -(y14 - vbb) / 10 + leak(y14 - y10),
            ]
        )

    def mass(now, p):
        y = now.x
        c = jnp.diag(jnp.array([0, 0, 0, 0, c9, cgs, cgd, 0, 0, c9, cgs, cgd, 0, 0]))
        between = [
            (0, 4, cgs),
            (1, 4, cgd),
            *((i, j, junction(y[i] - y[j])) for i, j in ((2, 4), (8, 4), (7, 9), (13, 9))),
        ]
        for i, j, farad in between:
            c = c.at[[i, j, i, j], [i, j, j, i]].add(farad * jnp.array([1.0, 1.0, -1.0, -1.0]))
        c = c.at[3, 3].add(junction(y[3] - vdd))
        return c.at[12, 12].add(junction(y[12]))

    inputs = lambda p: {
        "drive": Ramps(jnp.array(corners), jnp.array(drives)),
        "slope": Steps(jnp.array(corners), jnp.diff(drives, axis=0) / 5.0),
    }
    start = np.array([5, 5, vbb, vbb, 5, 3.62385, 5, vbb, vbb, 3.62385, 0, 3.62385, vbb, vbb])
    system = mass_matrix(mass, flow, inputs=inputs)
    return IvpProblem("nand", system, Instant(0.0, jnp.array(start)), 0, 1e-8)


IVP_PROBLEMS: dict[str, Callable[[], IvpProblem]] = {
    "robertson": robertson,
    "robertson_dae": robertson_dae,
    "hires": hires,
    "pollution": pollution,
    "oregonator": oregonator,
    "e5": e5,
    "van_der_pol": van_der_pol,
    "ring_modulator": ring_modulator,
    "transistor_amplifier": transistor_amplifier,
    "transistor_amplifier_mass": transistor_amplifier_mass,
    "nand_gate": nand_gate,
    "beam": beam,
    "fekete": fekete,
    "car_axis": car_axis,
    "squeezer": squeezer,
    "slider_crank": slider_crank,
    "car_axis_index1": lambda: car_axis("index1"),
    "squeezer_index1": lambda: squeezer("index1"),
    "slider_crank_index1": lambda: slider_crank("index1"),
}


@cache
def ivp(name: str) -> IvpProblem:
    return IVP_PROBLEMS[name]()
