"""Consistent starts: what violates the constraint, and the nearest states that do not."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import frozen
from ..base.names import named
from ..base.results import Result
from ..base.tracing import is_tracer
from ..base.types import Flag, Params, Scalar, Tree
from ..model.algebraic_states import MIN_PIVOT_RATIO, attached, begun, regularity, solved, violated
from ..model.model import At, Model, Par
from ..model.projection import condition, projected
from ..solution.failure import determination, residual_words
from ..solution.tape import TAYLOR, instant
from ..system.hybrid import HybridSystem, Instant
from .start import first_state

SMALLEST_CHANGE = 1e-14  # relative to the largest x: less is rounding
RESIDUAL_TOLERANCE = 1e-8  # of equations of index 2


class Consistency(eqx.Module):
    """What `consistency` found: residuals, changes, and how well z is determined.

    `residuals` are those of the equations at the given start (with z solved for where possible),
    `change` is the smallest change of x that makes them zero, `start` the changed start with its z,
    `condition` the condition number of the equations for z. `determined` says whether the equations
    determine z, and `found` whether `start` satisfies them.
    """

    residuals: dict
    change: Tree
    condition: Scalar
    start: Instant
    found: Flag
    determined: Flag

    def __repr__(self) -> str:
        if is_tracer(self.found):
            return "consistency of the start, traced: numbers exist when the compiled function runs"
        lines = ["consistency of the start"]
        for name, value in self.residuals.items():
            lines.append(f"  residual of {name}: {np.array2string(np.asarray(value), precision=6)}")
        for name, moved in self._moves().items():
            lines.append(f"  {name} moves by {np.array2string(moved, precision=6)}")
        if np.isfinite(self.condition):
            lines.append(f"  condition number of the equations for z: {float(self.condition):.3g}")
        return "\n".join([*lines, f"  {self.verdict}"])

    def _moves(self) -> dict:
        """What moves by more than rounding."""
        size = max(np.max(np.abs(v), initial=0.0) for v in named(self.start.x, "x").values())
        moves = {name: np.asarray(v) for name, v in named(self.change, "x").items()}
        return {name: v for name, v in moves.items() if np.any(np.abs(v) > SMALLEST_CHANGE * size)}

    @property
    def verdict(self) -> str:
        """The conclusion in words."""
        if not bool(self.determined):
            return (
                "the equations do not determine z: they are singular here, or their index is "
                "higher than 2 and has to be reduced"
            )
        if not bool(self.found):
            return "no states that satisfy the equations were found near the start"
        return "consistent, with x moved as above" if self._moves() else "consistent"


def consistent(system: HybridSystem, start: Instant, p: Params) -> Instant:
    """The start with z solved for, and x changed as little as possible to satisfy the constraint.

    `system`, `start` and `p` are as for `solve`. The result is differentiable in `start` and `p`.
    `consistency` says what was changed. If no consistent start is found nearby, this is an error;
    inside `jit`, x and z are then NaN.
    """
    report, words = _report(system, start, p)
    ok = report.found & report.determined
    if is_tracer(ok):
        x, z = jax.tree.map(lambda v: jnp.where(ok, v, jnp.nan), (report.start.x, report.start.z))
        return report.start.replace(x=x, z=z)
    if not bool(ok):
        raise ValueError(f"consistent: {report.verdict}. {words()}")
    return report.start


def consistency(system: HybridSystem, start: Instant, p: Params) -> Consistency:
    """Residuals by equation, the smallest change of x that removes them, and the repaired start.

    `system`, `start` and `p` are as for `solve`.
    """
    return _report(system, start, p)[0]


def _report(system: HybridSystem, start: Instant, p: Params) -> tuple[Consistency, Any]:
    """The report, and a function that describes the residuals in words."""
    model, given, par = first_state(system, start, p)
    rule = model.constraint
    if rule is None:
        raise ValueError("consistency: this system has no constraint; every start is consistent.")
    before = model.residuals(given, par)
    near = projected(model, given, par)
    at = attached(model, begun(model, near, par), par, TAYLOR)
    found, determined = _outcome(model, near, *frozen((at, par)))
    moved = tuple(a - b for a, b in zip(at.w, given.w, strict=True))[: model.nx]
    now = instant(model, at, par)
    if system.modes:
        now = now.replace(mode=start.mode)
    now = now.replace(u=None, member=None)
    if system.adapt_back is not None:
        now = system.adapt_back(now)
    report = Consistency(
        residuals=dict(zip(rule.equations, before, strict=True)),
        change=model.x.join(moved, ()),
        condition=condition(model, at, par),
        start=now,
        found=found,
        determined=determined,
    )

    def words() -> str:
        start = frozen(begun(model, near, par))
        off = bool(_violated(model, start, frozen(par)))
        what = Result.inconsistent if off else Result.no_consistent_state
        residuals = residual_words(model, start, frozen(par), what)
        return residuals if off else f"{residuals} {determination(model, start, frozen(par))}"

    return report, words


def _outcome(model: Model, near: At, at: At, par: Par) -> tuple[Any, Any]:
    """Whether the equations hold, and whether they determine z."""
    found = solved(model, near, par)[1] & ~_violated(model, at, par)
    return found, regularity(model, begun(model, near, par), par) > MIN_PIVOT_RATIO


def _violated(model: Model, at: At, par: Par) -> Flag:
    return violated(
        model, at, par, RESIDUAL_TOLERANCE, (jnp.asarray(RESIDUAL_TOLERANCE),) * model.moving
    )
