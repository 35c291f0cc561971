"""A system near one instant: its states as a vector, its slope, its possible directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.interpreters import partial_eval as pe

from ..base.leaves import split
from ..base.types import Params, Tree, Vector
from ..model.algebraic_states import attached
from ..model.model import At, Fn, Model, Par
from ..model.taylor import velocity
from ..simulate.guards import refresh_flags
from ..solution.tape import instant
from ..solver.start import first_state
from ..system.hybrid import HybridSystem, Instant, called

DEPENDENT_EQUATIONS = 1e-9  # a relative singular value below which equations repeat each other


def flat(leaves: Sequence[Any]) -> Vector:
    """All numbers of some leaves as one vector."""
    return jnp.concatenate([jnp.ravel(v).astype(jnp.float64) for v in leaves])


def cut(vector: Vector, like: Sequence[Any]) -> list:
    """The inverse of `flat`: a vector as leaves shaped like `like`."""
    parts = jnp.split(jnp.asarray(vector), np.cumsum([v.size for v in like])[:-1])
    return [jnp.reshape(v, u.shape).astype(u.dtype) for v, u in zip(parts, like, strict=True)]


def packed(x: Tree) -> tuple[Any, Callable]:
    """A state as one vector, and the inverse map."""
    shape, floats, _ = split(x, floats_only=True)
    return flat(floats), lambda vector: shape.join(cut(vector, floats), ())


def vector(model: Model, at: At) -> tuple[Any, Callable]:
    """The x of a row state as one vector, and a function that replaces it."""
    x = model.x_of(at)
    return flat(x), lambda new: model.with_x(at, cut(new, x))


def again(now: Instant) -> Instant:
    """An instant of a solution as a start."""
    return now.replace(u=None, member=None)


def local(system: HybridSystem, now: Instant, p: Params) -> tuple[Model, At, Par]:
    """The model of a system and its row state at an instant, z solved."""
    model, at, par = first_state(system, now, p)
    return model, refresh_flags(model, at, par, jnp.full((), -1, jnp.int32), 0), par


def seen(system: HybridSystem, model: Model, at: At, par: Par) -> Instant:
    """A row state as an instant in the user's own structure."""
    now = again(instant(model, at, par))
    return now if system.adapt_back is None else system.adapt_back(now)


def slope(system: HybridSystem, now: Instant, p: Params) -> Vector:
    """x' at an instant, as a vector."""
    model, at, par = local(system, now, p)

    def state(s: tuple) -> Vector:
        here = attached(model, At(s[0], s[1:], at.i, at.z), par, 1)
        return packed(seen(system, model, here, par).x)[0]

    return jax.jvp(state, ((at.tau, *at.w),), (velocity(model, at, par, 1),))[1]


def manifold(system: HybridSystem, now: Instant, p: Params) -> Vector:
    """What must be zero at an instant: equations of index 2, and invariants."""
    return rules(system, *local(system, now, p), p)


def rules(system: HybridSystem, model: Model, at: At, par: Par, p: Params) -> Vector:
    """The same for a row state."""
    values, rule = [jnp.zeros(0)], model.constraint
    if rule is not None:
        pins = (False,) * len(rule.index)
        if rule.pinned is not None:
            pins = tuple(rule.pinned(model.args(at, par), par))
        found = zip(model.residuals(at, par), rule.index, pins, strict=True)
        values += [jnp.ravel(jnp.where(pin, 0.0, v)) for v, index, pin in found if index == 2]
    invariant = getattr(system, "invariant", None)
    if invariant is not None:
        value = called("invariant", invariant, instant(model, at, par), p)
        values.append(ravel_pytree(value)[0])
    return jnp.concatenate(values)


def tangent(system: HybridSystem, now: Instant, p: Params) -> np.ndarray:
    """An orthonormal basis, in columns, of the directions that keep `manifold` at zero."""
    x, join = packed(now.x)
    slopes = jax.jacfwd(lambda v: manifold(system, now.replace(x=join(v)), p))(x)
    return null_space(np.asarray(slopes))


def null_space(rows: np.ndarray) -> np.ndarray:
    """The directions that some linear equations leave free, each equation in its own units."""
    size = np.max(np.abs(rows), axis=1, keepdims=True, initial=0.0)
    rows = rows[size[:, 0] > 0] / size[size[:, 0] > 0]
    if not len(rows):
        return np.eye(rows.shape[1])
    _, values, vectors = np.linalg.svd(rows)
    return vectors[np.sum(values > DEPENDENT_EQUATIONS * values[0]) :].T


def driven(model: Model) -> bool:
    """Whether the flow, a constraint or a guard reads the time."""
    kinks = bool(model.kinks)
    fns: list[tuple[Fn | None, int, int]] = [(model.flow_fn, model.nx, kinks)]
    if model.constraint is not None:
        fns.append((model.constraint.fn, len(model.constraint.index), kinks))
    fns += [(a.guard, 1, 0) for a in model.guards]
    return any(fn is not None and _reads(fn, outs, place) for fn, outs, place in fns)


def _reads(fn: Fn, outs: int, place: int) -> bool:
    jaxpr = fn.traced.jaxpr
    wanted = [k < outs for k in range(len(jaxpr.outvars))]
    return pe.dce_jaxpr(jaxpr, wanted)[1][place]
