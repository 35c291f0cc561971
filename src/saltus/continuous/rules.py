"""How a row is differentiated by continuous methods: rules that replace those of the sweeps.

Between jumps, tangents follow the variational equations and adjoints the adjoint equations, each
integrated with an error control of its own (M81, M82). At jumps they follow explicit transition
formulas (M83, M84). All results of a solution (values at save times, integrals, event times and
states at events) are computed from such rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ..base.leaves import Leaves
from ..simulate.record import Spec
from ..sweep.rows import Mask, RowData, branches, pulled, spread
from .adjoint_equations import flow_adjoint, transposed
from .backsolve_drift import warn_of_drift
from .fields import arrival, explicit, late_by_guard, late_by_time
from .forward_equations import flow_tangent

if TYPE_CHECKING:
    from ..solution.solution import Solution

VARIANTS = ("interpolating", "quadrature", "backsolve")


@dataclasses.dataclass(frozen=True)
class Continuous:
    """Derivatives by continuous forward and adjoint equations instead of the sweeps.

    `rtol` is the tolerance of tangents and adjoints, relative to their own size. `variant` says how
    the adjoint equations get the states: "interpolating" reads them from the dense solution and
    integrates the gradient with the adjoints; "quadrature" integrates the adjoints alone and gets
    the gradient by quadrature; "backsolve" integrates the states backward together with the
    adjoints, from jump to jump.
    """

    variant: str = "interpolating"
    rtol: float = 1e-10

    def __post_init__(self):
        if self.variant not in VARIANTS:
            raise ValueError(
                f"Continuous: variant is {self.variant!r}, expected one of "
                f"{', '.join(map(repr, VARIANTS))}."
            )
        if not isinstance(self.rtol, int | float) or not 1e-14 <= self.rtol <= 0.1:
            raise ValueError(f"Continuous: rtol is {self.rtol!r}, expected 1e-14 to 0.1.")

    def carried(self, spec: Spec, state: Leaves) -> Leaves:
        """Values that an adjoint sweep carries with the adjoints, starting at the end."""
        if self.variant != "backsolve":
            return ()
        if spec.model.invariant is not None:
            raise ValueError(
                'Continuous: variant="backsolve" cannot reverse the projections onto invariants. '
                'Write variant="interpolating".'
            )
        if not explicit(spec):
            raise ValueError(
                f'Continuous: variant="backsolve" integrates backward with an explicit method, '
                f"which does not suit {spec.stepper.name}, a method for stiff systems and "
                'constraints. Write variant="interpolating", or method=saltus.Tsit5().'
            )
        return state

    def look_at(self, sol: Solution) -> None:
        """Called with every solution that is differentiated in this way."""
        if self.variant == "backsolve" and explicit(sol.spec):
            warn_of_drift(self, sol)

    def tangent(
        self, spec: Spec, masks: tuple[Mask, ...], row: RowData, s: Leaves, theta: Leaves,
        ds: Leaves, dtheta: Leaves,
    ) -> Leaves:  # fmt: skip
        """The tangent at the end of a row (M81, M83)."""
        full = spread(dtheta, theta, masks[-1])
        flow = lambda: flow_tangent(self.rtol, spec, masks, row, s, theta, ds, full)
        cases: list[Callable] = [flow]
        for there, fn in _jumps(spec, masks, row):
            cases.append(lambda there=there: there(s, theta, ds, full))
            if fn is not None:
                cases.append(lambda fn=fn: jax.jvp(fn, (s, theta), (ds, full))[1])
        return _choose(row, cases)

    def cotangent(
        self, spec: Spec, masks: tuple[Mask, ...], row: RowData, s: Leaves, theta: Leaves,
        lam: Leaves, held: Leaves,
    ) -> tuple[Leaves, Leaves, Leaves]:  # fmt: skip
        """Adjoints at the start of a row, its share of the gradient, and the carried values."""
        flow = lambda: flow_adjoint(self, spec, masks, row, s, theta, lam, held)
        kept = s if held else ()
        cases: list[Callable] = [flow]
        for there, fn in _jumps(spec, masks, row):
            cases.append(lambda there=there: (*transposed(there, masks[-1], s, theta, lam), kept))
            if fn is not None:
                cases.append(lambda fn=fn: (*pulled(fn, masks[-1], s, theta, lam), kept))
        return _choose(row, cases)


def _choose(row: RowData, cases: list[Callable]) -> Any:
    """The case for the kind of row; kinds beyond the last case use the last case."""
    return jax.lax.switch(jnp.clip(row.kind, 0, len(cases) - 1), cases)


def _jumps(spec: Spec, masks: tuple[Mask, ...], row: RowData) -> list[tuple[Callable, Any]]:
    """For each action the transition up to it, and its reset (`None` for the stop)."""
    maps, found = branches(spec, masks, row), []
    for k, action in enumerate(spec.model.actions):
        if action.kind == "guard":
            late = late_by_guard(spec, k, row, len(masks))
        else:
            late = late_by_time(spec, k, row)
        reset = maps[2 + 2 * k] if 2 + 2 * k < len(maps) else None
        found.append((arrival(spec, masks, row, late), reset))
    return found
