"""Model functions that are not written in JAX: values and Jacobians by callback."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..base.types import Matrix, Number, Numbers, Vector

Vectors: TypeAlias = tuple[Vector, ...]


def from_callbacks(
    value: Callable[..., Numbers], jacobian: Callable[..., Sequence[Numbers]], size: int
) -> Callable[..., Vector]:
    """A function of vectors that JAX can differentiate once, from plain Python functions.

    `value(*vectors)` returns a vector of length `size`, `jacobian(*vectors)` a tuple of Jacobians,
    one for each argument. Both are given NumPy arrays, numbers as vectors of one entry, and return
    NumPy arrays. Use the result in model functions: `flow=lambda now, p: {"x": f(now.x["x"], p)}`.
    It has first derivatives, but no second ones: in flows it can be used with explicit methods,
    `Radau5`, `CVODE` and `IDA`, in constraints with `IDA`.
    """
    out = jax.ShapeDtypeStruct((size,), jnp.float64)

    def checked_value(*args: ArrayLike) -> np.ndarray:
        found = np.asarray(value(*map(np.asarray, args)), float)
        if found.shape != (size,):
            raise ValueError(
                f"from_callbacks: value returned shape {found.shape}, expected ({size},)."
            )
        return found

    def checked_jacobian(*args: ArrayLike) -> tuple[np.ndarray, ...]:
        found = tuple(np.asarray(m, float) for m in jacobian(*map(np.asarray, args)))
        wanted = tuple((size, np.size(a)) for a in args)
        if tuple(m.shape for m in found) != wanted:
            raise ValueError(
                f"from_callbacks: jacobian returned shapes {[m.shape for m in found]}, expected "
                f"{list(wanted)}: one matrix for each argument."
            )
        return found

    @jax.custom_jvp
    def fn(*args: Vector) -> Vector:
        return jax.pure_callback(checked_value, out, *args, vmap_method="sequential")

    @fn.defjvp
    def _(primals: Vectors, tangents: Vectors) -> tuple[Vector, Vector]:
        terms = [m @ t for m, t in zip(matrices(*primals), tangents, strict=True)]
        return fn(*primals), functools.reduce(jnp.add, terms)

    @jax.custom_jvp
    def matrices(*args: Vector) -> tuple[Matrix, ...]:
        shapes = tuple(jax.ShapeDtypeStruct((size, a.size), jnp.float64) for a in args)
        return jax.pure_callback(checked_jacobian, shapes, *args, vmap_method="sequential")

    @matrices.defjvp
    def _(primals: Vectors, tangents: Vectors) -> NoReturn:
        raise NotImplementedError(
            "from_callbacks: a second derivative is needed here, and callbacks have only first "
            "ones. Hessians and Rodas5P need it, and so does every method but IDA if a constraint "
            "is a callback. Write method=saltus.external.IDA(), or this function in JAX."
        )

    def on_vectors(*args: Number) -> Vector:
        return fn(*(jnp.ravel(jnp.asarray(a, jnp.float64)) for a in args))

    return on_vectors
