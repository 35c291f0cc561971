"""One-sided derivatives at kinks, and checks of gradients by finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from ..base.types import Params, Scalar, Tree
from ..solution.solution import Solution
from ..solver.context import gathering

EPS = float(np.finfo(float).eps)
STEPS = (1e-7, 1e-8, 1e-9)  # relative to the parameters, for one-sided derivatives


class OneSided(NamedTuple):
    """Derivatives along a direction from either side, and the jump of the loss itself."""

    left: float  # the limit of the derivative from the left
    right: float  # ... and from the right
    jump: float  # of the loss, from left to right
    value: float = 0.0  # of the loss, on the left

    @property
    def agree(self) -> bool:
        """Whether both derivatives agree and the loss does not jump."""
        size = max(abs(self.left), abs(self.right), 1e-300)
        return abs(self.left - self.right) <= 1e-5 * size and abs(self.jump) <= 1e-9


class Differences(NamedTuple):
    """A directional derivative by differences, and that of the gradient."""

    gradient: float
    difference: float
    error: float  # the estimated error of the difference
    step: float  # relative; NaN where every step changes the sequence of events
    spread: float = np.nan  # the same, estimated from three step lengths

    @property
    def valid(self) -> bool:
        return bool(np.isfinite(self.step))

    @property
    def disagree(self) -> bool:
        return self.valid and not abs(self.gradient - self.difference) <= 10 * self.error

    def __repr__(self) -> str:
        if not self.valid:
            return "finite differences: not possible, every step changes the sequence of events"
        return (
            f"finite differences: {self.difference:.8g} +- {self.error:.1g} for "
            f"{self.gradient:.8g} (relative step {self.step:.0e}, same events)"
        )


def signature(sol: Solution) -> tuple:
    """Which events happened, in order, kinks included."""
    fired = [f for f in sol.tape.events(sol.spec.model) if f.action.kind != "signal"]
    return (int(sol.result), tuple(f.number for f in fired), tuple(f.member for f in fired))


def _at(loss: Callable, p: Params, direction: Tree, length: float) -> tuple[float, float, tuple]:
    """The loss, its derivative along the direction, and the events, `length` further on."""

    def along(s: Scalar) -> tuple[Scalar, tuple[Solution, ...]]:
        with gathering() as sols:
            value = loss(jax.tree.map(lambda v, d: v + s * d, p, direction))
        return value, tuple(sols)

    value, slope, made = jax.jvp(along, (float(length),), (1.0,), has_aux=True)
    return float(value), float(slope), tuple(signature(s) for s in made)


def _forgiving(*point: Any) -> tuple[float, float, tuple]:
    """The same; NaN where the loss cannot be computed."""
    try:
        return _at(*point)
    except Exception:  # any error means that the loss has no value there
        return float("nan"), float("nan"), ()


def _unit(p: Params, direction: Tree) -> float:
    """The length at which the direction is as large as the parameters."""
    sizes = [np.max(np.abs(np.asarray(v)), initial=0.0) for v in jax.tree.leaves(p)]
    steps = [np.max(np.abs(np.asarray(v)), initial=0.0) for v in jax.tree.leaves(direction)]
    if not max(steps, default=0.0) > 0:
        raise ValueError("one_sided: the direction is zero.")
    ratios = [s / d for s, d in zip(sizes, steps, strict=True) if d > 0 and s > 0]
    return float(min(ratios, default=1.0 / max(steps)))


def one_sided(
    loss: Callable, p: Params, direction: Tree, unit: float | None = None, forgiving: bool = False
) -> OneSided:
    """Limits of the derivative from both sides, extrapolated to the point itself (M77)."""
    unit = _unit(p, direction) if unit is None else unit
    look = _forgiving if forgiving else _at

    def looked(step: float) -> tuple:
        return step, look(loss, p, direction, step), look(loss, p, direction, 2 * step)

    def side(sign: float) -> tuple[float, float]:
        step, near, far = looked(sign * STEPS[0] * unit)
        for relative in STEPS[1:]:
            if near[2] == far[2]:
                break
            step, near, far = looked(sign * relative * unit)
        slope = 2 * near[1] - far[1]
        return near[0] - step * 0.5 * (slope + near[1]), slope

    (below, left), (above, right) = side(-1.0), side(1.0)
    return OneSided(left, right, above - below, below)


def checked(loss: Callable, p: Params, gradient: Tree) -> Differences:
    """Central differences along the gradient, with steps that keep the sequence of events."""
    scale = jax.tree.map(lambda v: abs(v) + 1e-3 * (v == 0), p)
    direction = jax.tree.map(lambda g, s: np.sign(np.asarray(g)) * s, gradient, scale)
    pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
    return difference(loss, p, direction, float(sum(np.sum(np.asarray(g) * d) for g, d in pairs)))


def difference(loss: Callable, p: Params, direction: Tree, slope: float) -> Differences:
    """The same along `direction`, scaled to the size of the parameters; `slope` is by AD."""

    def value(length: float) -> tuple[float, tuple]:
        with gathering() as sols:
            out = loss(jax.tree.map(lambda v, d: v + length * d, p, direction))
        return float(out), tuple(signature(s) for s in sols)

    base = value(0.0)
    for step in (1e-3, 1e-4, 1e-5, 1e-6):
        around = [value(s * step) for s in (-1.0, 1.0, -0.5, 0.5)]
        if any(events != base[1] for _, events in around):
            continue
        near = [value(s * step)[0] for s in (-0.25, 0.25)]
        coarse = (around[1][0] - around[0][0]) / (2 * step)
        fine = (around[3][0] - around[2][0]) / step
        finest = 2 * (near[1] - near[0]) / step
        best = fine + (fine - coarse) / 3
        other = finest + (finest - fine) / 3
        noise = 1e-9 * max(abs(base[0]), 1e-300) / step
        uneven = 4 * sum(near) - around[2][0] - around[3][0] - 6 * base[0]  # noise, if smooth
        spread = abs(best - other) + (abs(uneven) + 8 * EPS * abs(base[0])) / step
        return Differences(slope, best, abs(best - fine) + noise, step, spread)
    return Differences(slope, np.nan, np.nan, np.nan)
