"""Guards that dip and come back between two rows, where neither end shows anything of it.

The states are followed by the polynomial of degree 5 with their values and first two derivatives at
both ends of a row, and the guards are evaluated there. A guard that is on another side of zero
than its own polynomial (outline.py), and far from zero, was not resolved by the steps.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..leaves import Leaves
from ..model import At, Model, Par
from ..solution import Solution
from .outline import Edge, quintic, value_at

PLACES = tuple((2 * k + 1) / 16 for k in range(8))
FAR = 0.05  # of the largest value that the guard has in the row


def _edge(model: Model, at: At, par: Par, h: Any) -> tuple[Edge, ...]:
    """Each moving leaf at the start of a row, with its first two derivatives."""
    m = model.moving

    def flow(tau: Any, moving: Leaves) -> Leaves:
        return model.flow(At(tau, (*moving, *at.w[m:]), at.i, at.z), par)

    slope = flow(at.tau, at.w[:m])
    bend = jax.jvp(flow, (at.tau, at.w[:m]), (jnp.ones_like(at.tau), tuple(slope)))[1]
    return tuple(Edge(v, h * s, h * h * b) for v, s, b in zip(at.w, slope, bend, strict=False))


def _mirrored(edge: Edge) -> Edge:
    return Edge(edge.value, -edge.slope, edge.bend)


def dips(sol: Solution, left: Edge, right: Edge, flat: Any) -> Any:
    """(rows, guards): whether a guard is far on the other side of zero inside of a row.

    Systems with a constraint are left out: their guards would need z at every place.
    """
    model, tape = sol.spec.model, sol.tape
    if model.constraint is not None or left.value.size == 0:
        return jnp.zeros(left.value.shape, bool)
    par = tape.par()

    def row(k: Any) -> Any:
        at, h = tape.state(k), tape.h[k]
        first = _edge(model, at, par, h)
        last = map(_mirrored, _edge(model, tape.state(k + 1), par, h))
        pairs = list(zip(first, last, strict=True))

        def guards(u: Any) -> Any:
            moving = tuple(quintic(a, b, u)[0].astype(a.value.dtype) for a, b in pairs)
            there = At(at.tau + u * h, (*moving, *at.w[model.moving :]), at.i, at.z)
            return flat(model, model.guard_values(there, par))

        return jax.vmap(guards)(jnp.asarray(PLACES))

    values = jax.vmap(row, out_axes=1)(jnp.arange(tape.tau.shape[0] - 1))  # (places, rows, guards)
    models = jnp.stack([value_at(left, right, jnp.full((), u)) for u in PLACES])
    ends = (left.value, right.value, 0.25 * left.slope, 0.25 * right.slope)
    scale = jnp.max(jnp.stack([jnp.abs(v) for v in ends]), axis=0)
    far = (jnp.abs(values) > FAR * scale) & (jnp.sign(values) * jnp.sign(models) < 0)
    return jnp.any(far, axis=0)
