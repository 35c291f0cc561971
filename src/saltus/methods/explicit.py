"""Explicit Runge-Kutta pairs on tuples of leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from ..control import PI, Fixed
from ..leaves import Leaves, combine, rms
from . import tableaus
from .tableaus import Tableau

Flow = Callable[[Any, Leaves], Leaves]


class Explicit(eqx.Module):
    """An explicit method with its tolerances. Changing a number never recompiles.

    The error of a step is the root mean square of `error / (atol + rtol * max(|x0|, |x1|))` over
    all states and integrals. `control=Fixed(h)` turns the error control off; `first_step` and
    `max_step` bound the steps.
    """

    rtol: Any = 1e-8
    atol: Any = 1e-8
    control: PI | Fixed = PI()
    first_step: Any = None
    max_step: Any = float("inf")

    def __check_init__(self):
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if isinstance(value, int | float) and not value >= 0:
                raise ValueError(
                    f"{type(self).__name__}: {name} is {value}, expected a number >= 0."
                )
        if not isinstance(self.control, PI | Fixed):
            raise TypeError(
                f"{type(self).__name__}: control is {self.control!r}, expected saltus.PI() or "
                "saltus.Fixed(h)."
            )

    @property
    def tableau(self) -> Tableau:
        raise NotImplementedError


class Tsit5(Explicit):
    """Tsitouras' order 5(4): the default for ordinary differential equations."""

    @property
    def tableau(self) -> Tableau:
        return tableaus.tsit5()


class Dopri5(Explicit):
    """Dormand and Prince's order 5(4)."""

    @property
    def tableau(self) -> Tableau:
        return tableaus.dopri5()


class Dopri8(Explicit):
    """Dormand and Prince's order 8(5, 3): for tight tolerances."""

    @property
    def tableau(self) -> Tableau:
        return tableaus.dopri8()


def stages(tab: Tableau, flow: Flow, t: Any, x: Leaves, h: Any, k1: Leaves) -> list[Leaves]:
    """All stages but the last (the flow at the end of the step)."""
    ks = [k1]
    for j in range(1, tab.stages - 1):
        ks.append(flow(t + tab.c[j] * h, combine(x, h, tab.a[j], ks)))
    return ks


def step(tab: Tableau, flow: Flow, t: Any, x: Leaves, h: Any) -> Leaves:
    """The step map (M3): `x + h sum b_i k_i`, finite and smooth at `h = 0`."""
    ks = stages(tab, flow, t, x, h, flow(t, x))
    return combine(x, h, tab.b[:-1], ks)


def full_step(
    tab: Tableau, flow: Flow, t: Any, x: Leaves, h: Any, k1: Leaves
) -> tuple[Leaves, list[Leaves]]:
    """The end of the step and all stages; the last stage is the flow at the end."""
    ks = stages(tab, flow, t, x, h, k1)
    end = combine(x, h, tab.b[:-1], ks)
    ks.append(flow(t + h, end))
    return end, ks


def error_norm(
    tab: Tableau, x0: Leaves, x1: Leaves, h: Any, ks: Sequence[Leaves], rtol: Any, atol: Any
) -> Any:
    """The scaled error of a step (M20)."""
    zero = tuple(jnp.zeros_like(leaf) for leaf in x0)
    scales = [
        a + rtol * jnp.maximum(jnp.abs(u), jnp.abs(v)) for u, v, a in zip(x0, x1, atol, strict=True)
    ]
    norms = []
    for weights in tab.error:
        error = combine(zero, h, weights, ks)
        norms.append(rms([e / s for e, s in zip(error, scales, strict=True)]))
    if len(norms) == 1:
        return norms[0]
    fifth, third = norms[0] ** 2, norms[1] ** 2
    return jnp.where(fifth == 0, fifth, fifth / jnp.sqrt(fifth + 0.01 * third + 1e-300))


def middle(tab: Tableau, x: Leaves, h: Any, ks: Sequence[Leaves]) -> tuple[Leaves, Leaves]:
    """State and slope in the middle of the step, from its stages."""
    zero = tuple(jnp.zeros_like(leaf) for leaf in x)
    return combine(x, h, tab.mid, ks), combine(zero, 1.0, tab.mid_slope, ks)
