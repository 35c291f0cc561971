"""Noise: standard deviations, known or estimated, and likelihoods with heavy tails."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np

from ..base.types import Array
from .data import Measured


@dataclasses.dataclass(frozen=True)
class Student:
    """Student's t distribution: outliers count less. `freedom` is its degrees of freedom.

    Its negative log-likelihood is half the square of a transformed residual,
    $\\rho = \\mathrm{sign}(r) \\sqrt{(\\nu + 1) \\log(1 + r^2/\\nu)}$, so least squares applies.
    """

    freedom: float = 4.0

    def transform(self, r: Array) -> Array:
        s = r**2 / self.freedom
        small = s < 1e-8
        safe = jnp.where(small, 1.0, s)
        ratio = jnp.where(small, 1.0 - s / 2, jnp.log1p(safe) / safe)
        return r * jnp.sqrt((self.freedom + 1) / self.freedom * ratio)

    def restore(self, rho: np.ndarray) -> np.ndarray:
        """The residual that was transformed to `rho`."""
        s = np.expm1(rho**2 / (self.freedom + 1))
        return np.sign(rho) * np.sqrt(self.freedom * s)

    def spread(self, r: np.ndarray, sd: float) -> float:
        """The most likely scale of these residuals (one step of an iteration)."""
        weights = (self.freedom + 1) / (self.freedom + (r / sd) ** 2)
        return float(np.sqrt(np.mean(weights * r**2)))


@dataclasses.dataclass(frozen=True)
class Gauss:
    """Normal noise: plain least squares."""

    transform = None

    def restore(self, rho: np.ndarray) -> np.ndarray:
        return rho

    def spread(self, r: np.ndarray, sd: float) -> float:
        return float(np.sqrt(np.mean(r**2)))


Likelihood: TypeAlias = Gauss | Student


def likelihood(given: str | Likelihood) -> Gauss | Student:
    """The likelihood by name."""
    if isinstance(given, Gauss | Student):
        return given
    if given in ("normal", "student"):
        return Gauss() if given == "normal" else Student()
    raise ValueError(
        f'fit: likelihood is {given!r}, expected "normal", "student" or a Student(...) from '
        "saltus.estimate. For any other likelihood, minimise your own loss with saltus.minimise."
    )


def given_noise(
    noise: float | Mapping[str, float] | None, names: Sequence[str]
) -> dict[str, float]:
    """Standard deviations that the user knows, by output or event."""
    if noise is None:
        return {}
    if not isinstance(noise, Mapping):
        noise = dict.fromkeys(names, noise)
    unknown = sorted(set(noise) - set(names))
    if unknown:
        raise ValueError(
            f'fit: noise names "{unknown[0]}", which is not measured; there are measurements of '
            f"{', '.join(names)}."
        )
    known = {name: float(v) for name, v in noise.items()}
    bad = [name for name, v in known.items() if not (np.isfinite(v) and v > 0)]
    if bad:
        raise ValueError(
            f'fit: noise of "{bad[0]}" is {known[bad[0]]}, expected a positive number.'
        )
    return known


def first_noise(
    measured: Sequence[Mapping[str, Measured]],
    events: Sequence[Mapping[str, Measured]],
    spans: Sequence[float],
) -> dict[str, float]:
    """Initial scales where the noise is not known: the spread of the data."""
    scales: dict[str, float] = {}
    for name in dict.fromkeys(n for m in measured for n in m):
        y = np.concatenate([m[name].y for m in measured if name in m])
        spread = float(np.std(y)) or float(np.max(np.abs(y), initial=0.0)) or 1.0
        scales[name] = spread
    for name in dict.fromkeys(n for m in events for n in m):
        scales[name] = 0.1 * float(max(spans)) or 1.0
    return scales
