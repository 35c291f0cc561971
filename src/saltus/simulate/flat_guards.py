"""Guards that become active at a zero of higher order, where rounding must not decide.

When a string goes slack, the gap between its ends and its full length is zero, and so are its first
and second derivative: only the third says whether the gap opens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ..base.control_flow import branch, staged
from ..base.leaves import Leaves
from ..base.types import Scalar
from ..linalg.newton import own_moves
from ..model.model import At, Model, Par
from .guards import Here
from .states import Side

ROUNDING = 1e-12  # in the units of guards and slopes: smaller values count as zero
MAX_TOLERANCE = 1e-4  # in the same units: larger values are not zero, whatever the tolerances
Slopes = Callable[[Model, At, Par, Leaves], tuple[Leaves, Leaves]]  # guards, and along a flow


def flat(model: Model, here: Here, par: Par, slopes: Slopes, rtol: Scalar) -> Leaves:
    """Which guards are zero together with their slopes, up to errors.

    The units for errors are the changes of a guard and its slope when everything they depend on
    changes by about its own size (M93). Rounding always counts as an error; the tolerance does so
    only if the guard does not turn to its firing side, so that no event is too early.
    """
    at = here.at
    n, m = len(at.w), len(at.w) + len(at.z)
    given = (at.tau, *at.w, *at.z, *par.theta)

    def both(given: Leaves) -> tuple[Leaves, Leaves]:
        there = At(given[0], given[1 : 1 + n], at.i, given[1 + n : 1 + m])
        moved = par._replace(theta=given[1 + m :])
        return slopes(model, there, moved, model.flow(there, moved))

    on = (jnp.ones(()), *here.k1)
    on = (*on, *(jnp.zeros_like(v) for v in given[len(on) :]))
    ways = tuple(
        jnp.concatenate([way, (at.tau * d).astype(v.dtype)[None]])
        for way, v, d in zip(own_moves(given), given, on, strict=True)
    )
    moves = jax.vmap(lambda way: jax.jvp(both, (given,), (way,))[1])(ways)
    sig = jnp.where(par.backward, -1.0, 1.0)
    loose = jnp.clip(10 * rtol, ROUNDING, MAX_TOLERANCE)
    out = []
    for j, action in enumerate(model.guards):
        value, slope = jnp.abs(here.values[j]), jnp.abs(here.slopes[j])
        of_value, of_slope = (jnp.nan_to_num(part[j]) for part in moves)
        near, steep = (jnp.sum(jnp.abs(v[:3]), axis=0) for v in (of_value, of_slope))
        turn = of_slope[3]  # the curvature times the time so far
        exact = (value <= ROUNDING * (near + jnp.abs(of_value[3]))) & (
            slope <= ROUNDING * (steep + jnp.abs(turn))
        )
        back = (jnp.sign(at.tau * turn) == -sig * action.direction) & (action.direction != 0)
        away = back | ((jnp.abs(turn) <= loose * steep) & (at.tau != 0))
        out.append(exact | ((value <= loose * near) & (slope <= loose * steep) & away))
    return tuple(out)


def flattened(
    model: Model, here: Here, par: Par, sides: Leaves, slopes: Slopes, rtol: Scalar
) -> Here:
    """`here`, with exact zeros for guards that become active where they and their slopes are zero.

    Their higher derivatives along the flow then decide where such guards go, and not rounding.
    """
    if all(action.active is None for action in model.guards):
        return here

    def zeros() -> tuple[Leaves, Leaves]:
        fresh = [(s == Side.INACTIVE) & a for s, a in zip(sides, here.active, strict=True)]
        ask = functools.reduce(jnp.logical_or, map(jnp.any, fresh)).astype(jnp.int32)
        no = tuple(jnp.zeros(jnp.shape(v), bool) for v in here.values)
        found = branch(ask, [lambda: no, lambda: flat(model, here, par, slopes, rtol)], lazy=True)
        zero = [a & b for a, b in zip(found, fresh, strict=True)]
        values, rates = (
            tuple(jnp.where(f, 0.0, v) for f, v in zip(zero, leaves, strict=True))
            for leaves in (here.values, here.slopes)
        )
        return values, rates

    values, rates = staged(zeros)
    return here._replace(values=values, slopes=rates)
