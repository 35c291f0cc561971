"""States at which nothing moves."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from ..base.names import named
from ..base.text import number
from ..base.types import Params, Vector
from ..model.model import At, Model, Par
from ..simulate.guards import refresh_flags
from ..system.hybrid import HybridSystem, Instant
from .gauss_newton import NotFound, Root, Scales, attach_root, gauss_newton, missed, plain
from .local_state import cut, flat, local, rules, seen

SINGULAR_VALUE_ZERO = 1e-11  # relative to the largest


def equilibrium(system: HybridSystem, guess: Instant, p: Params, *, tol: float = 1e-10) -> Instant:
    """The equilibrium of `system` near `guess`: x' = 0, constraints and invariants hold (M70).

    The time, the mode and the discrete state are those of the guess. Differentiable in `p`. `tol`
    is the relative tolerance. If equilibria are not isolated, the result is the one to which the
    iteration converges from the guess. Raises `NotFound` if none is found nearby. For its
    stability, see `linearise(system, found, p).eigenvalues`.
    """
    model, at, par = local(system, guess, p)
    calm, par_now, p_now = plain("equilibrium", (at, par, p))

    def residual(y: Vector, at: At, par: Par, p: Params) -> Vector:
        here = _placed(model, at, y)
        here = refresh_flags(model, here, par, jnp.full((), -1, jnp.int32), 0)
        parts = [*model.flow(here, par)[: model.nx], rules(system, model, here, par, p)]
        if model.constraint is not None:
            parts += model.residuals(here, par)
        return flat(parts)

    first = np.asarray(flat((*model.x_of(calm), *calm.z)))
    still_here = lambda y: residual(y, calm, par_now, p_now)
    scales = Scales(1 + np.abs(first), np.zeros(still_here(jnp.asarray(first)).size))
    root = gauss_newton(still_here, first, scales, tol, SINGULAR_VALUE_ZERO)
    best = _instant(system, guess, model, _placed(model, calm, jnp.asarray(root.value)), par_now)
    if root.why:
        raise NotFound(_failure(model, calm, par_now, root, tol), best, root.size)
    y = attach_root(lambda y: residual(y, at, par, p), root)
    return _instant(system, guess, model, _placed(model, at, y), par)


def _placed(model: Model, at: At, y: Vector) -> At:
    """The state with these numbers for x and z."""
    n = model.nx
    new = cut(y, (*model.x_of(at), *at.z))
    return model.with_x(at, new[:n], z=tuple(new[n:]))


def _instant(system: HybridSystem, guess: Instant, model: Model, at: At, par: Par) -> Instant:
    now = seen(system, model, at, par)
    return now.replace(mode=guess.mode) if system.modes else now


def _failure(model: Model, at: At, par: Par, root: Root, tol: float) -> str:
    """Why the search failed, with the state whose slope is furthest from zero."""
    slopes = model.flow(_placed(model, at, jnp.asarray(root.value)), par)[: model.nx]
    sizes = {
        name: float(np.max(np.abs(v), initial=0.0))
        for name, v in named(model.x.join(slopes, ()), "x").items()
    }
    worst = max(sizes, key=lambda name: sizes[name])
    return (
        f"equilibrium: none was found near the guess; {missed(root, tol)}. At the best point "
        f"{worst}' is {number(sizes[worst], 3)}. Give a better guess, or check that one exists."
    )
