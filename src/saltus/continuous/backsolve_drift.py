"""How far states drift when they are integrated backward."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from ..analysis.adjoint_history import adjoint_history
from ..base.tracing import is_traced
from ..solution.solution import Solution

if TYPE_CHECKING:
    from .rules import Continuous

MAX_DRIFT = 1e3  # in tolerances


def drifted(way: Continuous, sol: Solution) -> float | None:
    """How far a backsolve drifts from the recorded states, in tolerances; `None` if traced."""
    tape = jax.tree.map(jax.lax.stop_gradient, sol.tape)
    rtol, atol = jax.tree.map(jax.lax.stop_gradient, (sol.tolerance[0], tuple(sol.tolerance[1])))
    if is_traced((tape, rtol, atol)):
        return None
    no_loss = tuple(jnp.zeros_like(v) for v in (tape.tau, *tape.w))
    states = adjoint_history(sol.spec._replace(rules=way), tape, no_loss).carried
    nx, flows = sol.spec.model.nx, np.asarray(tape.flow_rows())
    worst = 0.0
    for a, b, size in zip(states[1 : 1 + nx], tape.w[:nx], atol, strict=False):
        off = np.abs(a - b) / (np.asarray(size) + np.asarray(rtol) * np.abs(b))
        worst = np.maximum(worst, np.max(off[flows], initial=0.0))  # NaN stays
    return float(worst)


def warn_of_drift(way: Continuous, sol: Solution) -> None:
    """Warns if a backsolve cannot be trusted; inside `jit` there is no warning."""
    off = drifted(way, sol)
    if off is None or off <= MAX_DRIFT:
        return
    size = f"of up to {off:.1g} tolerances" if np.isfinite(off) else "that are not finite"
    warnings.warn(
        f'Continuous: with variant="backsolve" the states return with errors {size}, '
        "and so do derivatives: errors that decay forward in time grow backward. "
        'Write variant="interpolating".',
        RuntimeWarning,
        stacklevel=4,
    )
