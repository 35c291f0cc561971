"""Derivatives of any function that solves, by continuous equations."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..gather import gathering
from ..probe import promoted, scalar
from ..record import FLOW
from ..rowmaps import RowData
from ..solution import Solution
from ..tables import is_traced
from ..ways import asking
from .rules import Continuous

DRIFT = 1e3  # tolerances by which states may come back elsewhere


def forward(fn: Callable[[Any], Any], p: Any, *, rtol: float = 1e-10) -> Any:
    """The Jacobian of `fn(p)` by variational equations, like `jax.jacfwd(fn)(p)`.

    `fn` calls `saltus.solve` and may return any pytree of numbers: saved values, event times, ...
    All columns are integrated side by side.
    """
    p = jax.tree.map(promoted, p)
    with asking(Continuous(rtol=rtol)):
        return jax.jacfwd(_looked_at(fn, "forward"))(p)


def adjoint(
    loss: Callable[[Any], Any], p: Any, *, variant: str = "interpolating", rtol: float = 1e-10
) -> tuple[Any, Any]:
    """`(loss(p), gradient)` by adjoint equations, like `jax.value_and_grad(loss)(p)`.

    `variant` is "interpolating", "quadrature" or "backsolve" (see `Continuous`). The last one warns
    where states that are integrated backward come back elsewhere: it does not suit systems whose
    errors decay in time.
    """
    way = Continuous(variant, rtol)
    p = jax.tree.map(promoted, p)
    seen = _looked_at(loss, "adjoint")
    with asking(way):
        value, gradient = jax.value_and_grad(lambda q: scalar(seen(q), "adjoint"))(p)
        if variant == "backsolve" and not is_traced(value):
            with gathering() as sols:
                loss(p)
            for sol in sols:
                _warn_of_drift(way, sol)
    return value, gradient


def hessian(
    loss: Callable[[Any], Any], p: Any, *, variant: str = "interpolating", rtol: float = 1e-10
) -> Any:
    """The Hessian of `loss(p)`, forward over adjoint: all columns side by side (M86)."""
    p = jax.tree.map(promoted, p)
    with asking(Continuous(variant, rtol)):
        return jax.hessian(_looked_at(loss, "hessian"))(p)


def hvp(
    loss: Callable[[Any], Any], p: Any, v: Any, *, variant: str = "interpolating",
    rtol: float = 1e-10,
) -> Any:  # fmt: skip
    """The Hessian of `loss(p)` times `v`, forward over adjoint (M86)."""
    p = jax.tree.map(promoted, p)
    v = jax.tree.map(lambda a, b: jnp.asarray(b, jnp.result_type(a)), p, v)
    with asking(Continuous(variant, rtol)):
        return jax.jvp(jax.grad(_looked_at(loss, "hvp")), (p,), (v,))[1]


def _looked_at(fn: Callable, owner: str) -> Callable:
    """The function, with an error where it does not solve anything."""

    def run(p: Any) -> Any:
        with gathering() as sols:
            out = fn(p)
        if not sols and not sols.inner:
            raise ValueError(
                f"continuous.{owner}: the function did not call saltus.solve. Pass a function of p "
                "that solves."
            )
        return out

    return run


def drift(way: Continuous, sol: Solution) -> float:
    """How far from the recorded states those that are integrated backward come, in tolerances."""
    tape = jax.tree.map(jax.lax.stop_gradient, sol.tape)
    spec = sol.spec._replace(rules=way)
    return float(_drift(spec, tape, sol.tolerance[0], tuple(sol.tolerance[1])))


@functools.partial(jax.jit, static_argnames=("spec",))
def _drift(spec: Any, tape: Any, rtol: Any, atol: tuple) -> Any:
    none = (False,) * spec.model.n_theta
    member = tape.member[0] if tape.member else jnp.zeros_like(tape.kind, jnp.int32)
    nx = spec.model.nx

    def back(held: tuple, k: Any) -> tuple:
        at = tape.state(k)
        row = RowData(
            tape.h[k], tape.kind[k].astype(jnp.int32), member[k], at.i, at.z,
            tuple(v[k] for v in tape.aux), tape.iota, tape.backward,
        )  # fmt: skip
        s = (at.tau, *at.w)
        zero = tuple(jnp.zeros_like(v) for v in s)
        begun = spec.rules.cotangent(spec, (none,), row, s, tape.theta, zero, held)[2]
        held = tuple(jnp.where(k < tape.n, a, b) for a, b in zip(begun, s, strict=True))
        off = [
            jnp.max(jnp.abs(a - b) / (d + rtol * jnp.abs(b)))
            for a, b, d in zip(held[1 : 1 + nx], s[1 : 1 + nx], atol, strict=False)
        ]
        flows = (tape.kind[k] == FLOW) & (k < tape.n)
        return held, jnp.where(flows, jnp.max(jnp.stack(off)), 0.0)

    last = tape.kind.shape[0] - 1
    at = tape.state(last)
    rows = jnp.arange(last + 1)
    return jnp.max(jax.lax.scan(back, (at.tau, *at.w), rows, reverse=True)[1])


def _warn_of_drift(way: Continuous, sol: Solution) -> None:
    off = drift(way, sol)
    if not off <= DRIFT:
        size = f"{off:.1g} tolerances" if np.isfinite(off) else "any bound"
        warnings.warn(
            f'continuous.adjoint: with variant="backsolve" the states come back up to {size} away '
            "from where they were, and the gradient with them: errors that decay forward in time "
            'grow backward. Write variant="interpolating".',
            RuntimeWarning,
            stacklevel=3,
        )
