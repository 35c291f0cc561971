"""Implicit functions: Newton finds a root, `attach` gives it its derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .linalg import Layout, Vec, add, factor_jacobian, jacobian, mean_square, solve

EPS = float(jnp.finfo(jnp.float64).eps)


class Root(NamedTuple):
    value: Vec
    found: Any


def still(tree: Any) -> Any:
    """The same values without derivatives."""
    return jax.tree.map(jax.lax.stop_gradient, tree)


def attach(residual: Callable[[Vec], Vec], root: Vec, factors: Any, degree: int) -> Vec:
    """A root with its first `degree` derivatives (M38).

    Chord-Newton from the root held constant: each repetition makes one more derivative exact, and
    the value moves by rounding only.
    """
    out = still(root)
    for _ in range(degree):
        out = add((1.0, out), (-1.0, solve(factors, residual(out))))
    return out


def newton(
    residual: Callable[[Vec], Vec], guess: Vec, layout: Layout | None = None, limit: int = 100
) -> Root:
    """A root by Newton's method with the exact Jacobian, to rounding (M37).

    Where a step makes the residual larger it is shortened. `found` is false, and the value NaN,
    where the iteration does not settle.
    """

    structure = None if layout is None else layout.structure

    def size(v: Vec) -> Any:
        return jnp.sqrt(mean_square(v))

    def iterate(state: tuple) -> tuple:
        k, y, r, damping, _, _ = state
        step = solve(factor_jacobian(layout, jacobian(residual, y, structure)), r)
        new = add((1.0, y), (-1.0, tuple(damping * s for s in step)))
        r_new = residual(new)
        worse = ~(size(r_new) <= (1.0 - 0.1 * damping) * size(r))
        scale = size(new) + size(y)
        tiny = size(step) <= 1e-9 * scale
        exact = size(r_new) == 0.0
        settled = (size(step) <= 4 * EPS * scale) | (tiny & worse & (damping == 1.0)) | exact
        settled = (settled | (size(r) == 0.0)) & jnp.isfinite(scale + size(step))
        keep = worse & ~settled & ~tiny
        # after a tiny step the residual is rounding: the next step cannot help
        y = tuple(jnp.where(keep, a, b) for a, b in zip(y, new, strict=True))
        r = tuple(jnp.where(keep, a, b) for a, b in zip(r, r_new, strict=True))
        damping = jnp.where(keep, 0.5 * damping, jnp.minimum(2.0 * damping, 1.0))
        lost = ~jnp.isfinite(size(step)) | (damping < 1e-8)
        return k + 1, y, r, damping, settled, lost

    def going(state: tuple) -> Any:
        k, _, _, _, settled, lost = state
        return (k < limit) & ~settled & ~lost

    no = jnp.zeros((), bool)
    start = (jnp.zeros((), jnp.int32), guess, residual(guess), jnp.ones(()), no, no)
    _, y, _, _, found, _ = jax.lax.while_loop(going, iterate, start)
    bad = jnp.where(found, 0.0, jnp.nan)
    return Root(tuple(v + bad for v in y), found)
