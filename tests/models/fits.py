"""Fits that many tests look at: a bouncing ball with noisy data, fitted once per way."""

from __future__ import annotations

import functools

import numpy as np

import saltus

TRUTH = {"e": 0.8, "g": 9.81}
GUESS = {"e": 0.77, "g": 9.3}
END, NOISE = 4.0, 0.02
METHOD = saltus.Tsit5(rtol=1e-9, atol=1e-9)

ball = saltus.HybridSystem(
    lambda now, p: {"h": now.x["v"], "v": -p["g"]},
    events=[
        saltus.Event(
            "bounce",
            guard=lambda now, p: now.x["h"],
            reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]}),
        )
    ],
    units={"t": "s", "h": "m", "v": "m/s", "g": "m/s^2"},
)
START = saltus.Instant(t=0.0, x={"h": 3.0, "v": 1.0})
SAMPLES = np.linspace(0.1, END, 40)


def scenario(**changes) -> saltus.Scenario:
    return saltus.Scenario(ball, START, dict(GUESS), END, METHOD).replace(**changes)


@functools.cache
def clean() -> saltus.Solution:
    """The ball that made the data."""
    return saltus.solve(ball, START, dict(TRUTH), END, ts=SAMPLES, method=METHOD)


@functools.cache
def bounces() -> np.ndarray:
    """Its bounces, as they were observed."""
    rng = np.random.default_rng(5)
    exact = np.asarray(clean().events.t)
    return exact + 0.002 * rng.normal(size=exact.size)


def table(seed: int = 3, noise: float = NOISE) -> dict:
    """Its height, as it was measured."""
    rng = np.random.default_rng(seed)
    h = np.asarray(clean().y["h"])
    return {"t": SAMPLES, "h": h + noise * rng.normal(size=h.size)}


@functools.cache
def fitted(**options) -> saltus.Fit:
    """A fit of the height, by the given way."""
    return saltus.fit(scenario(), table(), noise={"h": NOISE}, **options)


def near_truth(fit: saltus.Fit, deviations: float = 4.0) -> bool:
    """Whether the fit found the parameters of the ball that made the data."""
    truth = np.array([TRUTH[name] for name in fit.names])
    return bool(np.all(np.abs(fit.values - truth) <= deviations * fit.sd))
