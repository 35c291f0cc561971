"""Adjoint variables along a solution: how a loss changes with a small change of the state.

`lambda(t) = dL/dx(t)` is what the adjoint sweep (M10) computes from the end back to the start. It
jumps at events, and at times at which the loss reads the solution: a change of the state before
such a time affects what is read, one after it does not. Such a time usually lies inside a row; the
rest of the row, up to the next such time, is then a step of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import numpy as np

from ..base.names import named
from ..base.text import number
from ..base.tracing import is_traced
from ..base.types import HostArray, Tree
from ..solution.solution import Solution
from .adjoint_curve import Curve, checked, marked, pulled_back

if TYPE_CHECKING:
    from ..simulate.record import RowRules

__all__ = ["Costates", "Curve", "checked", "costates", "extent", "marked", "pulled_back"]


class Costates(eqx.Module):
    """Sensitivities of a loss to the state at each row of a solution.

    `t` are the times. `x` and `d` have the structure of the state with one leading axis (in `d`,
    entries that are not floats are `None`). `time` is the sensitivity to a delay of the rest of the
    motion. The sensitivities jump at events, and at times at which the loss reads the solution
    (saved values, `sol(t)`, `sol.at(t)`, states after events). There are then two entries with the
    same time, and `jump` marks the first of them, which includes the effect of the read.
    """

    t: HostArray
    x: Tree
    d: Tree
    time: HostArray
    jump: HostArray

    def __repr__(self) -> str:
        if is_traced(self.t):
            return "Costates, traced"
        first = {k: np.asarray(v)[0] for k, v in named(self.x, "x").items()}
        shown = ", ".join(
            f"dL/d{k} = {number(v) if np.ndim(v) == 0 else v}" for k, v in list(first.items())[:8]
        )
        return f"Costates {extent(self.t, self.jump)}; at the start {shown}"


def extent(t: HostArray, jump: HostArray) -> str:
    """How many entries there are, from when to when, with how many jumps."""
    jumps = int(np.sum(jump))
    plural = "" if jumps == 1 else "s"
    span = f"t = {number(t[0])} to {number(t[-1])}"
    return f"at {len(t)} times from {span}, {jumps} jump{plural}"


def costates(
    loss: Callable[[Solution], Any], sol: Solution, sensitivity: RowRules | None = None
) -> Costates:
    """`dL/dx(t)` at every step and event, for a loss that is a function of a solution.

    Write `costates(lambda sol: sol.integral["cost"], sol)`. `loss` may use saved values, integrals,
    events, the final state, `sol(t)` and `sol.at(t)` of the solution `sol`. Times `t` that are
    known only inside `jax.vmap` or `jax.jit` get no entries of their own: write `sol(times)` with
    an array instead. `sensitivity` may be `saltus.continuous.Continuous()`, as for `solve`.
    """
    curve = pulled_back("costates", loss, sol, sensitivity)
    model, lam = sol.spec.model, curve.lam
    nd = model.n_d[0]
    x = lam[1 : 1 + model.nx]
    discrete = lam[1 + model.moving : 1 + model.moving + nd]
    d = model.d.join(discrete, [None] * model.n_d[1]) if nd else None
    jump = marked(curve.before, (lam[0], *x, *discrete))
    return Costates(curve.t, model.x.join(x, ()), d, lam[0], jump)
