"""A loss as a program: the solves inside it, and what it decides from its parameters alone.

A solve inside `jax.jit`, a loop or `jax.vmap` cannot be examined. JAX runs such a function once and
then keeps its program, so only the program tells of the solve every time.

A decision such as `(a > 1) & (b > 1)` is seen by moving both parameters. Among many directions,
those are kept along which what is computed from parameters alone is not smooth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex
from jax.flatten_util import ravel_pytree

from ..base.host_programs import rarely
from ..base.jax_names import inner_jaxprs
from ..base.types import Array, Atom, ClosedJaxpr, Equation, Jaxpr, Matrix, Params, Vector
from ..solver.context import gathering
from .operation_rules import aval_of, bind
from .refinement import sizes_of

SOLVES = {"saltus_simulate", "saltus_first_pass"}
CORNERS = 8  # directions that are kept, at most
TRIED_DIRECTIONS = 2048
MOVED_PART = 0.6  # of the numbers, in half of the directions
CORNER_LENGTH = 1e-7  # relative to the parameters
BENT = 1e-3  # relative difference of a change and its derivative: smooth results have less
ROUNDING = 1e-12  # of a result, relative
HIDDEN = (
    "certify: a solve happens inside jax.vmap, jax.jit or a loop of JAX, where it cannot be "
    "examined. Pass a loss without that; certify members of a batch one at a time: "
    "[saltus.certify(loss_of_one, q) for q in ...]."
)


class HiddenSolve(ValueError):
    """A solve is where it cannot be examined."""


def traced_loss(loss: Callable[[Params], Any], p: Params) -> ClosedJaxpr | None:
    """The program of a loss, or an error where a solve inside it cannot be examined.

    `None` for a loss that cannot be traced, because it reads numbers by Python."""
    count = 0

    def watched(p: Params) -> Any:
        nonlocal count
        with gathering() as sols:
            value = loss(p)
        if sols.inner:
            raise HiddenSolve(HIDDEN)
        count = len(sols)
        return value

    try:
        closed = jax.make_jaxpr(watched)(p)
    except HiddenSolve:
        raise
    except Exception:  # the first gradient raises it again, if it is an error there too
        return None
    if _solves(closed.jaxpr) > count:
        raise HiddenSolve(HIDDEN)
    return closed


def _solves(jaxpr: Jaxpr) -> int:
    inner = lambda eqn: sum(map(_solves, inner_jaxprs(eqn.params)))
    return sum(1 if eqn.primitive.name in SOLVES else inner(eqn) for eqn in jaxpr.eqns)


class _Part(NamedTuple):
    """The operations of a loss that depend on no solution, and what the others read of them."""

    jaxpr: Jaxpr
    eqns: Sequence[Equation]
    results: Sequence[jex.Var]

    @staticmethod
    def of(jaxpr: Jaxpr) -> _Part:
        after: set[jex.Var] = set()
        kept, read = [], [v for v in jaxpr.outvars if isinstance(v, jex.Var)]
        for eqn in jaxpr.eqns:
            ins = [v for v in eqn.invars if isinstance(v, jex.Var)]
            own = eqn.primitive.name in SOLVES or any(map(_solves, inner_jaxprs(eqn.params)))
            if own or any(v in after for v in ins):
                after.update(eqn.outvars)
                read += ins
            else:
                kept.append(eqn)
        made = {v for eqn in kept for v in eqn.outvars}
        return _Part(jaxpr, kept, [v for v in dict.fromkeys(read) if v in made])

    def run(self, consts: Sequence[Array], leaves: Sequence[Array]) -> Vector:
        """All results side by side; truth values and whole numbers as floats."""
        env: dict[Atom, Array] = dict(zip(self.jaxpr.constvars, consts, strict=True))
        env.update(zip(self.jaxpr.invars, leaves, strict=True))
        for eqn in self.eqns:
            values = [v.val if isinstance(v, jex.Literal) else env[v] for v in eqn.invars]
            env.update(zip(eqn.outvars, bind(eqn, values), strict=True))
        numbers = [env[v] for v in self.results if _real(v)]
        return jnp.concatenate([jnp.ravel(v).astype(jnp.float64) for v in numbers])


def _real(v: jex.Var) -> bool:
    dtype = aval_of(v).dtype
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))


def corners(closed: ClosedJaxpr, p: Params) -> tuple[Matrix, Vector] | None:
    """Directions along which results change otherwise than their derivatives at p say.

    With them, which are valid. `None` if nothing is computed from parameters alone."""
    part = _Part.of(closed.jaxpr)
    if sum(map(np.size, jax.tree.leaves(p))) < 2 or not any(map(_real, part.results)):
        return None

    @rarely
    def chosen(p: Params, consts: list) -> tuple[Matrix, Vector]:
        flat, back = ravel_pytree(p)

        def results(q: Vector) -> Vector:
            return part.run(consts, jax.tree.leaves(back(q)))

        tried = jnp.asarray(_tried(flat.size)) * sizes_of(p)
        steps = CORNER_LENGTH * tried
        value, moved = results(flat), jax.vmap(results)(flat + steps)
        expected = jax.vmap(lambda d: jax.jvp(results, (flat,), (d,))[1])(steps)
        size = jnp.maximum(jnp.max(jnp.abs(expected), axis=0), CORNER_LENGTH * jnp.abs(value))
        off = ~(jnp.abs(moved - value - expected) <= BENT * size + ROUNDING * jnp.abs(value))
        weights = jnp.asarray(np.random.default_rng(17).normal(size=value.size))
        return _rarest(tried, off @ weights)

    return chosen(p, list(closed.consts))


def _rarest(tried: Matrix, pattern: Vector) -> tuple[Matrix, Vector]:
    """One direction for each pattern of results that are off, the rarest patterns first."""
    order = jnp.argsort(pattern)
    found = pattern[order]
    before = jnp.concatenate([jnp.full(1, -jnp.inf), found[:-1]])
    first = (found != before) & (found != 0)
    count = jnp.searchsorted(found, found, side="right") - jnp.arange(found.size)
    best = jnp.argsort(jnp.where(first, count, found.size + 1))[:CORNERS]
    return tried[order[best]], first[best]


def _tried(n: int) -> np.ndarray:
    """Directions that move all or some of the numbers up or down, by different amounts."""
    rng = np.random.default_rng(13)
    signs = rng.choice([-1.0, 1.0], (TRIED_DIRECTIONS, n))
    signs[: TRIED_DIRECTIONS // 2] *= rng.random((TRIED_DIRECTIONS // 2, n)) < MOVED_PART
    signs[-2:] = [[1.0], [-1.0]]
    return signs * rng.uniform(0.3, 1.0, signs.shape)
