"""Roots of equations that may be dependent, or more numerous than the unknowns.

Jacobians are singular if coordinates obey invariants, or if a motion has no section. Steps are
therefore least-squares steps of least length, on the host, with the exact Jacobian.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import frozen
from ..base.results import SolveError
from ..base.text import number
from ..base.tracing import is_traced
from ..base.types import Array, HostArray, Vector
from ..system.hybrid import Instant

T = TypeVar("T")

MAX_ITERATIONS = 60
MIN_DAMPING = 1e-4  # the shortest damped step, relative to the whole one
EXACT_DERIVATIVES = 2  # of a root: first and second


class NotFound(RuntimeError):
    """No such motion was found. `best` is the closest instant, `residual` its residual."""

    def __init__(self, text: str, best: Instant | None = None, residual: float = float("nan")):
        super().__init__(text)
        self.best = best
        self.residual = residual


class NoReturn(RuntimeError):
    """A motion that does not return; that of a shorter step may."""


class Root(NamedTuple):
    value: HostArray
    size: float  # of the residual, relative to the scale of each row
    inverse: HostArray  # pseudo-inverse of the Jacobian there
    why: str  # why it is not good enough; empty if it is


class Scales(NamedTuple):
    """The sizes of the unknowns, and for each residual the smallest scale."""

    unknowns: HostArray
    rows: HostArray


def gauss_newton(
    residual: Callable, start: Array | HostArray, scales: Scales, tol: float, smallest: float
) -> Root:
    """The root near `start`: `|r_i| <= tol (rows_i + max sum_j |J_ij| unknowns_j)` (M68).

    Singular values below `smallest` times the largest count as zero. A step that does not reduce
    the residual is halved.
    """
    y, why = np.asarray(start, float), ""
    s = np.asarray(scales.unknowns, float)
    r, jac = _both(residual, y)
    room = np.zeros(len(r))
    for last in range(MAX_ITERATIONS, 0, -1):
        # the largest so far: a residual that is flat at its root would otherwise never be small
        room = np.maximum(room, np.asarray(scales.rows, float) + np.abs(jac) @ s)
        rows = np.where(room > 0, room, 1.0)
        weighed, miss = jac * s / rows[:, None], r / rows
        inverse = np.linalg.pinv(weighed, rcond=smallest)
        size = float(np.max(np.abs(miss), initial=0.0))
        root = Root(y, size, s[:, None] * inverse / rows, why)
        if size <= tol or why:
            return root._replace(why="" if size <= tol else why)
        if last == 1:
            return root._replace(why=f"{MAX_ITERATIONS} iterations were not enough")
        y, why = _shorter(residual, y, -s * (inverse @ miss), rows, miss)
        r, jac = _both(residual, y)
    raise AssertionError("MAX_ITERATIONS is positive")


def _both(residual: Callable, y: HostArray) -> tuple[Any, Any]:
    jac, r = jax.jacfwd(lambda v: (residual(v),) * 2, has_aux=True)(jnp.asarray(y))
    return np.asarray(r), np.asarray(jac)


def _shorter(
    residual: Callable, y: HostArray, step: HostArray, rows: HostArray, miss: HostArray
) -> tuple[Any, str]:
    """The first point along a step at which the residual is smaller, or why there is none."""
    part, last = 1.0, ""
    while part >= MIN_DAMPING:
        try:
            new = np.asarray(residual(jnp.asarray(y + part * step))) / rows
            if np.linalg.norm(new) < (1 - 0.1 * part) * np.linalg.norm(miss):
                return y + part * step, ""
        except (SolveError, NoReturn) as error:
            last = f"; the last motion that was tried: {error}"
        part /= 2
    return y, f"no step makes the residual smaller{last}"


def attach_root(residual: Callable, root: Root) -> Vector:
    """The root with its derivatives: least-length chord steps from it held constant (M68)."""
    out, inverse = jnp.asarray(root.value), jnp.asarray(root.inverse)
    for _ in range(EXACT_DERIVATIVES):
        out = out - inverse @ residual(out)
    return out


def plain(name: str, tree: T) -> T:
    """The numbers in a tree without their derivatives; an error inside `jit`."""
    tree = jax.tree.map(lambda v: frozen(v) if eqx.is_array_like(v) else v, tree)
    if is_traced(tree):
        raise TypeError(
            f"{name} iterates on numbers, but these are traced by jit or vmap. Call it outside of "
            "them; jax.grad, jax.jacfwd and jax.hessian do work."
        )
    return tree


def missed(root: Root, tol: float) -> str:
    """How far from a root an iteration ended, in words."""
    return f"the residual is {number(root.size, 3)}, but tol is {number(tol, 3)}: {root.why}"
