"""A model as functions of plain vectors, compiled once for each model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..base.leaves import Leaves
from ..base.tracing import is_tracer
from ..base.types import Array, Scalar, Vector
from ..methods.method import Stepper
from ..model.model import At, Model, Par
from ..simulate.arrival import arrive
from ..simulate.firing import fire
from ..simulate.loop import begin
from ..simulate.record import Rows, Spec
from .events import dips, first_length, landed, left, settled

Known = TypeVar("Known")  # a pytree of numbers
Dimensions: TypeAlias = tuple[tuple[int, ...], ...]  # of leaves


class Tools:
    """Flow, equations, Jacobian and guards as functions of `(y, t, at, par)`; parts of the loop.

    `y` has the moving and the algebraic leaves in one vector; other leaves are those of `at`."""

    def __init__(self, spec: Spec, shapes: Dimensions, algebraic: Dimensions):
        self.model, model = spec.model, spec.model
        moving = tuple(jnp.zeros(s) for s in shapes)
        z = tuple(jnp.zeros(s) for s in algebraic)
        self.moving = ravel_pytree(moving)[0].size
        whole, self.back = ravel_pytree((moving, z))
        self.size = whole.size
        self.flow = jax.jit(self._flow)
        self.jacobian = jax.jit(jax.jacfwd(self._flow))
        self.guards = jax.jit(self._guards)
        self.begin = _compiled(begin, spec)
        self.first_length = _compiled(first_length, model)
        self.settled = _compiled(settled, model)
        self.dips = _compiled(dips, spec)
        self.landed = _compiled(landed, spec)
        self.left = _compiled(left, spec)
        self.arrive = _compiled(arrive, model, spec.stepper)
        self.fire = _compiled(fire, model, spec.stepper)

    def state(self, tau: Scalar, y: Vector, at: At) -> At:
        moving, z = self.back(y)
        return self.model.with_moving(at, moving, tau=tau, z=z)

    def vector(self, at: At) -> np.ndarray:
        return np.asarray(ravel_pytree((self.model.moving_of(at), at.z))[0])

    def each(self, flat: np.ndarray) -> Leaves:
        """The entries of all guards, in one array, as a leaf for each guard."""
        ends = np.cumsum([g.size or 1 for g in self.model.guards])[:-1]
        parts = zip(np.split(flat, ends), self.model.guards, strict=False)
        return tuple(jnp.asarray(p[0] if g.size is None else p) for p, g in parts)

    def _flow(self, y: Vector, tau: Scalar, at: At, par: Par) -> Vector:
        """`(x', q', g)`: slopes, then residuals of the equations."""
        here = self.state(tau, y, at)
        rates = ravel_pytree(self.model.flow(here, par))[0]
        if self.model.constraint is None:
            return rates
        return jnp.concatenate([rates, ravel_pytree(self.model.residuals(here, par))[0]])

    def _guards(self, y: Vector, tau: Scalar, at: At, par: Par) -> Vector:
        values = self.model.guard_values(self.state(tau, y, at), par)
        return jnp.concatenate([jnp.ravel(v) for v in values])


def _compiled(fn: Callable[..., Known], *static: Model | Spec | Stepper) -> Callable[..., Known]:
    """`fn` with these static arguments, compiled; its results have the types of the loop's."""
    typed = lambda v: jnp.asarray(v, v.dtype)
    return jax.jit(lambda *args: jax.tree.map(typed, fn(*static, *args)))


@functools.lru_cache(maxsize=64)
def _tools(spec: Spec, shapes: Dimensions, algebraic: Dimensions) -> Tools:
    return Tools(spec, shapes, algebraic)


def tools(spec: Spec, at: At) -> Tools:
    """The `Tools` of a model, made once for each shape of its states."""
    shapes = tuple(np.shape(v) for v in spec.model.moving_of(at))
    return _tools(spec, shapes, tuple(np.shape(v) for v in at.z))


def concrete(tree: Known, who: str) -> Known:
    """The numbers in a pytree, or an error if they are not known."""

    def known(leaf: Array) -> Array:
        leaf = jax.lax.stop_gradient(leaf)
        if is_tracer(leaf):
            raise TypeError(
                f"{who} runs outside of JAX and needs numbers: it works under jax.grad, jax.jacfwd "
                "and jax.hessian, not inside jax.jit or jax.vmap. Write a Python loop, or "
                "method=saltus.Radau5()."
            )
        return jnp.asarray(np.asarray(leaf))  # not of a weak type

    return jax.tree.map(known, tree)


def stacked(rows: list[Rows], size: int) -> Rows:
    """Rows as arrays with the row as their first axis, padded to `size`."""

    def one(*column: Array) -> Array:
        values = np.stack([np.asarray(v) for v in column])
        pad = [(0, size - len(values))] + [(0, 0)] * (values.ndim - 1)
        return jnp.asarray(np.pad(values, pad))

    return jax.tree.map(one, *rows)
