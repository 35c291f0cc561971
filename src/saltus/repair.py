"""Consistent starts: what violates the constraint, and the nearest states that do not."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np

from .consistent import attached, begun
from .projection import condition, projected
from .readout import TAYLOR, instant
from .solve import first_state
from .system import HybridSystem, Instant


class Consistency(eqx.Module):
    """What `consistency` found: residuals before, changes made, and how well z is determined.

    `residuals` are those of the equations at the given start (with z solved where possible),
    `change` the smallest change of x that makes them zero, `start` the changed start with its z,
    `condition` the condition number of the equations for z.
    """

    residuals: dict
    change: Any
    condition: Any
    start: Instant

    def __repr__(self) -> str:
        lines = ["consistency of the start"]
        for name, value in self.residuals.items():
            lines.append(f"  residual of {name}: {np.array2string(np.asarray(value), precision=6)}")
        for path, leaf in jax.tree_util.tree_flatten_with_path(self.change)[0]:
            moved = np.asarray(leaf)
            if np.any(moved != 0):
                name = jax.tree_util.keystr(path).strip(".[]'\"") or "x"
                lines.append(f"  {name} moves by {np.array2string(moved, precision=6)}")
        lines.append(f"  condition number of the equations for z: {float(self.condition):.3g}")
        return "\n".join(lines)


def consistent(system: HybridSystem, start: Instant, p: Any) -> Instant:
    """The start with z solved, and x moved as little as possible to satisfy the constraint.

    Differentiable in the start and in p. `consistency` says what was changed.
    """
    return consistency(system, start, p).start


def consistency(system: HybridSystem, start: Instant, p: Any) -> Consistency:
    """Residuals by equation, the smallest change of x that removes them, the repaired start."""
    model, given, par = first_state(system, start, p)
    rule = model.constraint
    if rule is None:
        raise ValueError("consistency: this system has no constraint; every start is consistent.")
    before = model.residuals(given, par)
    at = projected(model, given, par)
    at = attached(model, begun(model, at, par), par, TAYLOR)
    n = model.nx
    moved = tuple(a - b for a, b in zip(at.w[:n], given.w[:n], strict=True))
    now = instant(model, at, par)
    if system.modes:
        now = now.replace(mode=start.mode)
    now = now.replace(u=None, member=None)
    if system.adapt_back is not None:
        now = system.adapt_back(now)
    return Consistency(
        residuals=dict(zip(rule.equations, before, strict=True)),
        change=model.x.join(moved, ()),
        condition=condition(model, at, par),
        start=now,
    )
