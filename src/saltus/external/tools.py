"""A model as functions of plain vectors, compiled once for each model."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..consistent import solved
from ..jump import reset
from ..leaves import Leaves
from ..model import Action, At, Model, Par
from ..trace import is_tracer


class Tools:
    """Flow, equations, Jacobian and guards as functions of `(y, at, par)`.

    `y` are the moving leaves and the algebraic ones in one vector; `at` supplies the rest."""

    def __init__(self, model: Model, at: At, par: Par):
        self.model = model
        self.moving = ravel_pytree(at.w[: model.moving])[0].size
        self.back = ravel_pytree((at.w[: model.moving], at.z))[1]
        self._resets: dict[int, Any] = {}
        self.flow = jax.jit(self._flow)
        self.jacobian = jax.jit(jax.jacfwd(self._flow))
        self.guards = jax.jit(self._guards)
        self.active = jax.jit(self._active)
        self.solved = jax.jit(lambda at, par: solved(model, at, par))
        self.due = jax.jit(lambda at, par: [model.time_of(a, at, par) for a in model.timed])

    def state(self, tau: Any, y: Any, at: At) -> At:
        moving, z = self.back(y)
        return At(tau, (*moving, *at.w[self.model.moving :]), at.i, z)

    def vector(self, at: At) -> np.ndarray:
        return np.asarray(ravel_pytree((at.w[: self.model.moving], at.z))[0])

    def _flow(self, y: Any, tau: Any, at: At, par: Par) -> Any:
        """`(x', q', g)`: slopes, then residuals of the equations."""
        here = self.state(tau, y, at)
        rates = ravel_pytree(self.model.flow(here, par))[0]
        if self.model.constraint is None:
            return rates
        return jnp.concatenate([rates, ravel_pytree(self.model.residuals(here, par))[0]])

    def _guards(self, y: Any, tau: Any, at: At, par: Par) -> Any:
        values = self.model.guard_values(self.state(tau, y, at), par)
        return jnp.concatenate([jnp.ravel(v) for v in values])

    def _active(self, at: At, par: Par) -> Any:
        wide = [
            jnp.broadcast_to(jnp.asarray(a), (g.size or 1,))
            for a, g in zip(self.model.guard_active(at, par), self.model.guards, strict=True)
        ]
        return jnp.concatenate(wide)

    def reset(self, place: int) -> Any:
        """The reset of an action, with z solved after it."""
        if place not in self._resets:
            self._resets[place] = jax.jit(functools.partial(self._reset, place))
        return self._resets[place]

    def _reset(self, place: int, at: At, par: Par, member: Any) -> tuple[At, Any]:
        after = reset(self.model, self.model.actions[place], at, par, member, 1)
        return solved(self.model, after, par)


@functools.lru_cache(maxsize=64)
def _tools(model: Model, shapes: Any) -> list:
    return []


def tools(model: Model, at: At, par: Par) -> Tools:
    """Made once for each model and shape of its states."""
    shapes = tuple(np.shape(v) for v in (*at.w, *at.z))
    kept = _tools(model, shapes)
    if not kept:
        kept.append(Tools(model, at, par))
    return kept[0]


def members(model: Model) -> list[tuple[int, int, Action]]:
    """(place of the action, member, action) of every guard, in the order of their values."""
    return [(model.actions.index(g), k, g) for g in model.guards for k in range(g.size or 1)]


def concrete(tree: Any, who: str) -> Any:
    """The numbers in a tree, or an error where they are not known."""

    def known(leaf: Any) -> Any:
        leaf = jax.lax.stop_gradient(leaf)
        if is_tracer(leaf):
            raise TypeError(
                f"{who} runs outside of JAX and needs numbers: it works under jax.grad, jax.jacfwd "
                "and jax.hessian, not inside jax.jit or jax.vmap. Write a Python loop, or "
                "method=saltus.Radau5()."
            )
        return jnp.asarray(leaf)

    return jax.tree.map(known, tree)


def stacked(rows: list[Leaves], size: int) -> Leaves:
    """Leaves of rows with the row as their first axis, padded to `size`."""
    if not rows[0]:
        return ()
    out = []
    for column in zip(*rows, strict=True):
        values = np.stack([np.asarray(v) for v in column])
        pad = [(0, size - len(values))] + [(0, 0)] * (values.ndim - 1)
        out.append(jnp.asarray(np.pad(values, pad)))
    return tuple(out)
