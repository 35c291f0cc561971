"""Implicit functions: Newton finds a root, `attach` gives it its derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..base.leaves import Leaves, frozen
from ..base.types import Flag, Scalar
from .dense import Factored
from .factor import Vec, factor_jacobian, jacobian, solve
from .vectors import Layout, add, mean_square

EPS = float(jnp.finfo(jnp.float64).eps)
ROUNDING_STEP = 1e-12  # a step this small, relative to its measure, may be due to rounding


def _lazily(asked: Flag, answer: Callable[[], Any]) -> Flag:
    """`asked & answer()`; the answer is computed only if `asked` (in any lane, over lanes)."""

    def once(state: tuple) -> tuple:
        return jnp.zeros((), bool), answer()

    return jax.lax.while_loop(lambda state: state[0], once, (asked, jnp.zeros((), bool)))[1]


class Root(NamedTuple):
    value: Vec
    found: Flag


def attach(residual: Callable[[Vec], Vec], root: Vec, factors: Factored, degree: int) -> Vec:
    """A root with its first `degree` derivatives (M38).

    Chord-Newton steps from the root, held constant: each step makes one more derivative exact, and
    changes the value by rounding only.
    """
    out = frozen(root)
    for _ in range(degree):
        out = add((1.0, out), (-1.0, solve(factors, residual(out))))
    return out


def own_moves(given: Leaves) -> Leaves:
    """Changes of every number by about its own size: three variants along a new first axis.

    Signs and sizes differ between the variants, so that nothing cancels in all of them.
    """
    out = []
    for k, leaf in enumerate(given):
        places = 2.4 * jnp.arange(jnp.size(leaf)).reshape((1, *jnp.shape(leaf))) + 1.7 * k
        phases = (jnp.arange(3) * (2 * jnp.pi / 3)).reshape((3, *[1] * jnp.ndim(leaf)))
        own = jnp.where(jnp.isfinite(leaf), leaf, 0.0)
        out.append((jnp.sin(places + phases) * own).astype(own.dtype))
    return tuple(out)


def _size(v: Vec) -> Scalar:
    return jnp.sqrt(mean_square(v))


def _rounded(
    residual: Callable[[Vec], Vec], moves: Callable[[Vec], Vec], y: Vec, new: Vec,
    factors: Factored, step: Vec,
) -> Flag:  # fmt: skip
    """Whether a step that does not reduce the residual is due to rounding.

    The Jacobian is the same before and after the step, so that it should have helped; and the step
    is as short as those that rounding of the inputs of the equations causes.
    """
    there = solve(factors, jax.jvp(residual, (new,), (step,))[1])
    turned = _size(add((1.0, there), (-1.0, step)))
    reach = jax.vmap(lambda way: solve(factors, way))(moves(y))
    within = turned <= 1e-3 * _size(step)
    for s, v, u in zip(step, reach, y, strict=True):
        own = jnp.sum(jnp.abs(v), axis=0) + jnp.abs(u)
        within = within & jnp.all(jnp.abs(s) <= ROUNDING_STEP * own)
    return within


def newton(
    residual: Callable[[Vec], Vec],
    guess: Vec,
    layout: Layout | None = None,
    limit: int = 100,
    moves: Callable[[Vec], Vec] | None = None,
) -> Root:
    """A root by Newton's method with the exact Jacobian, to rounding (M37).

    A step that makes the residual larger is shortened. If the iteration does not converge, `found`
    is false and the value NaN. The size of a root near zero is no measure for steps: `moves` says
    how the residual changes when its inputs change by about their own size, and the iteration
    ends where steps are as small as rounding of these inputs would cause (M91).
    """
    structure = None if layout is None else layout.structure

    def iterate(state: tuple) -> tuple:
        k, y, r, damping, _, _ = state
        factors = factor_jacobian(layout, jacobian(residual, y, structure))
        step = solve(factors, r)
        new = add((1.0, y), (-1.0, tuple(damping * s for s in step)))
        r_new = residual(new)
        worse = ~(_size(r_new) <= (1.0 - 0.1 * damping) * _size(r))
        scale = _size(new) + _size(y)
        tiny = _size(step) <= 1e-9 * scale
        exact = _size(r_new) == 0.0
        settled = (_size(step) <= 4 * EPS * scale) | (tiny & worse & (damping == 1.0)) | exact
        settled = (settled | (_size(r) == 0.0)) & jnp.isfinite(scale + _size(step))
        if moves is not None:
            asked = worse & ~settled & (damping == 1.0)
            at_rounding = functools.partial(_rounded, residual, moves, y, new, factors, step)
            settled = settled | _lazily(asked, at_rounding)
        keep = worse & ~settled & ~tiny
        # after a tiny step the residual is mere rounding: another step would not help
        y = tuple(jnp.where(keep, a, b) for a, b in zip(y, new, strict=True))
        r = tuple(jnp.where(keep, a, b) for a, b in zip(r, r_new, strict=True))
        damping = jnp.where(keep, 0.5 * damping, jnp.minimum(2.0 * damping, 1.0))
        lost = ~jnp.isfinite(_size(step)) | (damping < 1e-8)
        return k + 1, y, r, damping, settled, lost

    def going(state: tuple) -> Flag:
        k, _, _, _, settled, lost = state
        return (k < limit) & ~settled & ~lost

    no = jnp.zeros((), bool)
    start = (jnp.zeros((), jnp.int32), guess, residual(guess), jnp.ones(()), no, no)
    _, y, _, _, found, _ = jax.lax.while_loop(going, iterate, start)
    bad = jnp.where(found, 0.0, jnp.nan)
    return Root(tuple(v + bad for v in y), found)
