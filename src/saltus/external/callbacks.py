"""Model functions that are not JAX: values and Jacobians by callback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def from_callbacks(
    value: Callable[..., Any], jacobian: Callable[..., Any], size: int
) -> Callable[..., Any]:
    """A function of vectors that JAX can differentiate once, from plain Python.

    `value(*vectors)` returns a vector of this `size`, `jacobian(*vectors)` the tuple of its
    Jacobians, one for each argument, both as NumPy arrays; numbers arrive as vectors of one entry.
    Use the result inside model functions: `flow=lambda now, p: {"x": f(now.x["x"], p)}`. It has
    first derivatives, no second ones: in flows it goes with explicit methods, `Radau5`, `CVODE` and
    `IDA`, in constraints with `IDA`.
    """
    out = jax.ShapeDtypeStruct((size,), jnp.float64)

    def checked_value(*args: Any) -> np.ndarray:
        found = np.asarray(value(*map(np.asarray, args)), float)
        if found.shape != (size,):
            raise ValueError(
                f"from_callbacks: value returned shape {found.shape}, expected ({size},)."
            )
        return found

    def checked_jacobian(*args: Any) -> tuple[np.ndarray, ...]:
        found = tuple(np.asarray(m, float) for m in jacobian(*map(np.asarray, args)))
        wanted = tuple((size, np.size(a)) for a in args)
        if tuple(m.shape for m in found) != wanted:
            raise ValueError(
                f"from_callbacks: jacobian returned shapes {[m.shape for m in found]}, expected "
                f"{list(wanted)}: one matrix for each argument."
            )
        return found

    @jax.custom_jvp
    def fn(*args: Any) -> Any:
        return jax.pure_callback(checked_value, out, *args, vmap_method="sequential")

    @fn.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Any, Any]:
        change = sum(m @ t for m, t in zip(matrices(*primals), tangents, strict=True))
        return fn(*primals), change

    @jax.custom_jvp
    def matrices(*args: Any) -> Any:
        shapes = tuple(jax.ShapeDtypeStruct((size, a.size), jnp.float64) for a in args)
        return jax.pure_callback(checked_jacobian, shapes, *args, vmap_method="sequential")

    @matrices.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Any, Any]:
        raise NotImplementedError(
            "from_callbacks: a second derivative is needed here, and callbacks offer first ones. "
            "Hessians and Rodas5P need it, and so does every method but IDA where a constraint is "
            "a callback. Write method=saltus.external.IDA(), or this function in JAX."
        )

    def on_vectors(*args: Any) -> Any:
        return fn(*(jnp.ravel(jnp.asarray(a, jnp.float64)) for a in args))

    return on_vectors
