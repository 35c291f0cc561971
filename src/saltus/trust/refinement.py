"""How much a gradient changes when all solves are ten and fifty times as accurate.

Estimates along a solution say how its own errors grow. What a loss makes of them, for instance the
logarithm of a state that has decayed to the absolute tolerance, only other gradients can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..base.host_programs import rarely
from ..base.leaves import array_of
from ..base.results import SolveError
from ..base.types import Array, Flag, Params, Scalar, Tree, Vector, Whole
from ..solution.solution import Solution
from ..solver.context import tightening
from .margins import promised
from .reasons import CHANGES, GROWS, REASONS
from .solution_certificate import Certificate
from .verdict import DEGRADED, TRUSTED, UNTRUSTED

TIGHTER = (0.1, 0.02)  # tolerances in units of the first; two, as errors may agree by chance
CAUTION = 2.0  # the error may be larger than the change by this
VALUE_PART = 0.1  # of the relative change of the value: changes of a gradient may cancel by chance
MORE_STEPS = 1.15  # with fewer, other gradients say nothing about the steps of the first
FAR_LENGTH = 1e-2  # at this distance, a derivative that is zero at p shows its size
SMALLEST_SLOPE = 1e-2  # relative to the largest: smaller slopes are compared on this scale
EXCUSED = np.asarray([text in (GROWS, CHANGES) for text in REASONS])

Watched = Callable[[Params], tuple[Scalar, tuple[Solution, ...]]]


class Refinement(NamedTuple):
    """Gradients with finer tolerances, compared with the first."""

    level: Whole
    error: Scalar  # of the gradient, relative; NaN where it is not known
    value: Scalar  # the change of the value
    gradient: Vector  # the changes of the gradient, without sign
    excused: Flag  # steps were finer, and the gradients agree


@rarely
def sizes_of(p: Params) -> Vector:
    """The size of each number; for a zero the largest size in the same leaf, or one."""
    sizes = []
    for leaf in jax.tree.leaves(p):
        size = jnp.abs(jnp.asarray(leaf, jnp.float64)).ravel()
        most = jnp.max(size, initial=0.0)
        sizes.append(jnp.where(size > 0, size, jnp.where(most > 0, most, 1.0)))
    return jnp.concatenate(sizes)


class _Gradient(NamedTuple):
    value: Scalar
    slopes: Vector
    steps: Array  # of each solve
    ended: Array  # whether each solve came to its end


def refined(
    watched: Watched, p: Params, first: tuple[Scalar, Tree], sols: Sequence[Solution], traced: bool
) -> Refinement:
    """The gradient with finer tolerances beside the first one."""
    own = _gradient(*first, sols)
    rtol = _largest([s.tolerance[0] for s in sols])
    sizes = sizes_of(p)
    if traced:
        finer, far = _mapped(watched, p)
        return _compared(own, finer, far.slopes, sizes, rtol)
    found = [_computed(watched, p, factor) for factor in TIGHTER]
    if any(v is None or v.steps.shape != own.steps.shape for v in found):
        return _unknown(own.slopes)
    finer = jax.tree.map(_together, *found)
    first_look = _compared(own, finer, own.slopes, sizes, rtol)
    if int(first_look.level) == TRUSTED:
        return first_look
    far = _computed(watched, _moved(p), 1.0)
    return first_look if far is None else _compared(own, finer, far.slopes, sizes, rtol)


@rarely
def _together(*values: Array) -> Array:
    return jnp.stack(values)


@rarely
def _largest(values: Sequence[Array]) -> Scalar:
    return jnp.max(jnp.stack(values))


def _one(watched: Watched, p: Params, factor: Scalar | float) -> _Gradient:
    with tightening(factor):
        (value, sols), gradient = jax.value_and_grad(watched, has_aux=True)(p)
    return _gradient(value, gradient, sols)


def _gradient(value: Scalar, gradient: Tree, sols: Sequence[Solution]) -> _Gradient:
    return _gathered(value, gradient, [(s.stats.steps, s.result) for s in sols])


@rarely
def _gathered(value: Scalar, gradient: Tree, ends: list[tuple[Whole, Whole]]) -> _Gradient:
    steps, results = (jnp.stack(v) for v in zip(*ends, strict=True))
    slopes = ravel_pytree(gradient)[0]
    return _Gradient(jnp.asarray(value, jnp.float64), slopes, steps, results <= 1)


def _computed(watched: Watched, p: Params, factor: float) -> _Gradient | None:
    """The same; `None` where a solve fails."""
    try:
        return _one(watched, p, factor)
    except SolveError:
        return None


def _mapped(watched: Watched, p: Params) -> tuple[_Gradient, _Gradient]:
    """The finer gradients, and the gradient at some distance, in one program."""
    count = len(TIGHTER)
    points = jax.tree.map(lambda a, b: jnp.stack([a] * count + [b]), p, _moved(p))
    factors = jnp.asarray([*TIGHTER, 1.0])
    every = jax.lax.map(lambda given: _one(watched, *given), (points, factors))
    return jax.tree.map(lambda v: v[:count], every), jax.tree.map(lambda v: v[count], every)


def _moved(p: Params) -> Any:
    flat, back = ravel_pytree(p)
    signs = np.random.default_rng(5).choice([-1.0, 1.0], flat.size)
    return back(flat + FAR_LENGTH * signs * sizes_of(p))


def _unknown(slopes: Vector) -> Refinement:
    zero = array_of(0.0)
    return Refinement(
        array_of(np.int32(TRUSTED)), array_of(np.nan), zero, 0.0 * slopes, array_of(False)
    )


@rarely
def _compared(
    own: _Gradient, finer: _Gradient, far: Vector, sizes: Vector, rtol: Scalar
) -> Refinement:
    """Differences in units of the slopes here, and of those at some distance."""
    ended = jnp.all(finer.ended) & jnp.all(jnp.isfinite(finer.value))
    scale = jnp.maximum(jnp.abs(own.slopes), jnp.where(jnp.isfinite(far), jnp.abs(far), 0.0))
    scale = scale * sizes
    scale = jnp.maximum(scale, SMALLEST_SLOPE * jnp.max(scale))
    most_of = lambda off: jnp.where(ended, jnp.max(jnp.abs(off), axis=0), 0.0)
    change = most_of(finer.slopes - own.slopes)
    off = jnp.where(change == 0, 0.0, change * sizes / jnp.where(scale > 0, scale, 1e-300))
    value = most_of(finer.value - own.value)
    most = jnp.max(scale)
    apart = jnp.where(value == 0, 0.0, value / jnp.where(most > 0, most, 1e-300))
    error = CAUTION * jnp.maximum(jnp.max(off), VALUE_PART * apart)
    some, bad = ~(error <= promised(rtol)), ~(error <= 0.1)
    known = jnp.all(jnp.isfinite(own.slopes)) & ended
    level = jnp.where(bad, UNTRUSTED, jnp.where(some, DEGRADED, TRUSTED))
    more = jnp.all(finer.steps[0] >= MORE_STEPS * own.steps)
    return Refinement(
        level=jnp.where(known, level, TRUSTED).astype(jnp.int32),
        error=jnp.where(known, error, jnp.nan),
        value=jnp.where(known, value, 0.0),
        gradient=jnp.where(known, change, 0.0),
        excused=known & ~some & more,
    )


def excused(cert: Certificate, found: Refinement) -> Certificate:
    """A certificate without doubts about steps where finer steps give the same gradient."""
    new = _excused(cert.levels, found.excused)
    return eqx.tree_at(lambda c: (c.levels, c.level), cert, new)


@rarely
def _excused(levels: Array, known: Flag) -> tuple[Array, Whole]:
    forgiven = jnp.asarray(EXCUSED) & (levels == DEGRADED) & known
    levels = jnp.where(forgiven, TRUSTED, levels).astype(jnp.int32)
    return levels, jnp.max(levels, axis=-1)
