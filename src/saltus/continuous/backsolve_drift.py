"""How well states come back when they are integrated backward."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.tracing import is_traced
from ..simulate.record import FLOW
from ..solution.solution import Solution
from ..sweep.rows import RowData

DRIFT = 1e3  # tolerances by which states may come back elsewhere


def drifted(way: Any, sol: Solution) -> Any:
    """How far from the recorded states those of a backsolve come, in tolerances; None if traced."""
    tape = jax.tree.map(jax.lax.stop_gradient, sol.tape)
    rtol, atol = jax.tree.map(jax.lax.stop_gradient, (sol.tolerance[0], tuple(sol.tolerance[1])))
    if is_traced((tape, rtol, atol)):
        return None
    return float(_worst(sol.spec._replace(rules=way), tape, rtol, atol))


@functools.partial(jax.jit, static_argnames=("spec",))
def _worst(spec: Any, tape: Any, rtol: Any, atol: tuple) -> Any:
    none = (False,) * spec.model.n_theta
    member = tape.member[0] if tape.member else jnp.zeros_like(tape.kind, jnp.int32)
    nx = spec.model.nx

    def back(held: tuple, k: Any) -> tuple:
        at = tape.state(k)
        row = RowData(
            tape.h[k], tape.kind[k].astype(jnp.int32), member[k], at.i, at.z,
            tuple(v[k] for v in tape.aux), tape.iota, tape.backward,
        )  # fmt: skip
        s = (at.tau, *at.w)
        zero = tuple(jnp.zeros_like(v) for v in s)
        begun = spec.rules.cotangent(spec, (none,), row, s, tape.theta, zero, held)[2]
        held = tuple(jnp.where(k < tape.n, a, b) for a, b in zip(begun, s, strict=True))
        off = [
            jnp.max(jnp.abs(a - b) / (d + rtol * jnp.abs(b)))
            for a, b, d in zip(held[1 : 1 + nx], s[1 : 1 + nx], atol, strict=False)
        ]
        flows = (tape.kind[k] == FLOW) & (k < tape.n)
        return held, jnp.where(flows, jnp.max(jnp.stack(off)), 0.0)

    last = tape.kind.shape[0] - 1
    at = tape.state(last)
    rows = jnp.arange(last + 1)
    return jnp.max(jax.lax.scan(back, (at.tau, *at.w), rows, reverse=True)[1])


def warn_of_drift(way: Any, sol: Solution) -> None:
    """Says so where a backsolve cannot be trusted; inside `jit` nothing can be said."""
    off = drifted(way, sol)
    if off is None or off <= DRIFT:
        return
    size = f"{off:.1g} tolerances" if np.isfinite(off) else "any bound"
    warnings.warn(
        f'Continuous: with variant="backsolve" the states come back up to {size} away from where '
        "they were, and derivatives with them: errors that decay forward in time grow backward. "
        'Write variant="interpolating".',
        RuntimeWarning,
        stacklevel=4,
    )
