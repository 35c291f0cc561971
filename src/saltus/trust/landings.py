"""Jumps that land on the guard of another event by chance.

A reset may put the state on a guard for all parameters, as `x := p.low` does for the guard
`x - p.low`: the solution is then smooth. If the guard is zero there for these parameters only, a
small change of them gives it either sign, and its event happens at once, later or never: no
derivative exists. Tangents tell the two cases apart: in the first they leave the guard at zero.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..base.leaves import Leaves, frozen
from ..base.types import Array, Flag, Scalar, Vector, Whole
from ..model.algebraic_states import attached
from ..model.model import At
from ..solution.solution import Solution
from .guard_outline import flat_guards
from .margins import Fired, Watched

TANGENT_ROUNDING = 1e-9  # relative to the sum of the terms of a tangent
MOVED_TOLERANCES = 10  # a guard closer to zero before the reset was not moved there by it


def landings(sol: Solution, seen: Watched, rows: Fired, tangents: tuple) -> Flag:
    """Whether a reset lands by chance on the guard of an event, which then may or may not happen.

    `tangents` are several tangents of p and of the rows, stacked."""
    model, tape = sol.spec.model, sol.tape
    if not model.n_guards:
        return jnp.zeros((), bool)
    sol, seen, rows, tangents = frozen((sol, seen, rows, tangents))
    zero = jnp.abs(seen.value) <= seen.tiny
    met = seen.active[:-1] & (
        jnp.abs(seen.value[:-1]) <= MOVED_TOLERANCES * seen.unsure[:-1]
    )  # simultaneous
    lands = rows.event[:-1, None] & seen.active[1:] & zero[1:] & ~rows.own[:-1] & ~met
    way = jnp.asarray([g.direction for g in model.guards for _ in range(g.size or 1)], jnp.int32)
    beyond = seen.active[:-1] & (way * seen.value[:-1] > 0)
    returns = beyond & (way * seen.slope[1:] < 0) & ~tape.backward  # no event on either side
    moves = jnp.any(jax.vmap(lambda t: _moves(sol, seen, *t))(tangents), axis=0)
    return jnp.any(lands & ~returns & moves[1:])


def _moves(sol: Solution, seen: Watched, dp: Leaves, tangent: list) -> Array:
    """Whether the guards at the start of every row move along a tangent: (rows, guards)."""
    model, tape = sol.spec.model, sol.tape
    par = tape.par()
    p = model.p_of(par)

    def row(k: Whole, dt: Scalar, dw: Leaves) -> tuple[Vector, Vector]:
        at = tape.state(k)

        def values(tau: Scalar, w: Leaves, p: Leaves) -> Vector:
            there = model.with_p(par, p)
            here = attached(model, At(tau, w, at.i, at.z), there, 1)
            return flat_guards(model, model.guard_values(here, there))

        push = lambda d: jax.jvp(values, (at.tau, at.w, p), d)[1]
        none = jax.tree.map(jnp.zeros_like, (dt, dw, dp))
        by_t, by_p = push((dt, *none[1:])), push((*none[:2], dp))
        total = push((dt, dw, dp))
        return total, jnp.abs(by_t) + jnp.abs(by_p) + jnp.abs(total - by_t - by_p)

    total, parts = jax.vmap(row)(jnp.arange(tape.tau.shape[0]), tangent[0], tuple(tangent[1:]))
    rtol, atol = sol.tolerance
    sizes = [a + rtol * jnp.abs(v) for v, a in zip(model.x_of(tape), atol, strict=False)]
    each = [
        jnp.max(jnp.abs(d / s), axis=tuple(range(1, d.ndim)), initial=0.0)
        for d, s in zip(tangent[1:], sizes, strict=False)
    ]
    largest = jnp.max(jnp.stack(each), axis=0)[:, None]
    return ~(jnp.abs(total) <= TANGENT_ROUNDING * (parts + seen.unsure * largest) + seen.tiny)
