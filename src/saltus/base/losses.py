"""Losses as users pass them: compiled or not, of any pytree of parameters, one number each."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .host_programs import rarely
from .text import picture
from .types import Array, Params, Scalar, T


def promoted(leaf: T) -> T | Array:
    """Integers as floats, because a gradient is to be taken."""
    dtype = getattr(leaf, "dtype", type(leaf))
    whole = dtype is int or (dtype is not bool and jnp.issubdtype(dtype, jnp.integer))
    return jnp.asarray(leaf, jnp.float64) if whole else leaf


def _is_float(leaf: object) -> bool:
    """Also for tracers, for which equinox's own test does not work in every version of JAX."""
    if isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))
    return isinstance(leaf, float | complex)


def numbers_of(p: Params, owner: str) -> tuple[Any, Callable[[Any], Any]]:
    """The numbers in p, integers as floats, and a function that puts p together again."""
    if callable(p) and not jax.tree.leaves(eqx.filter(p, eqx.is_array_like)):
        raise TypeError(f"{owner}: p is a function. The function comes first, then p.")
    numbers, others = eqx.partition(jax.tree.map(promoted, p), _is_float)
    if not jax.tree.leaves(numbers):
        raise ValueError(f"{owner}: p is {picture(p)}, which has no numbers.")
    return numbers, lambda q: eqx.combine(q, others)


def of_numbers(loss: Callable, p: Params, owner: str) -> tuple[Callable, Any]:
    """A loss as a function of the numbers in p, with what else is in p (functions) held fixed."""
    numbers, whole = numbers_of(p, owner)
    if jax.tree.structure(numbers) == jax.tree.structure(p):
        return loss, numbers
    return (lambda q: loss(whole(q))), numbers


_JITTED: Any = (type(jax.jit(lambda: 0)), type(eqx.filter_jit(lambda: 0)))


def uncompiled(fn: Callable) -> Callable:
    """The function inside a `jax.jit` or `equinox.filter_jit`; any other function as it is.

    To have `__wrapped__` is not enough: other decorators may change what the function does."""
    if isinstance(fn, types.MethodType):
        inner = uncompiled(fn.__func__)
        return fn if inner is fn.__func__ else types.MethodType(inner, fn.__self__)
    if isinstance(fn, functools.partial):
        inner = uncompiled(fn.func)
        return fn if inner is fn.func else functools.partial(inner, *fn.args, **fn.keywords)
    if not isinstance(fn, _JITTED):
        return fn
    # `functools.wraps` may have replaced `__wrapped__`
    return uncompiled(getattr(fn, "_fun", None) or getattr(fn, "__wrapped__"))  # noqa: B009


@rarely
def unless_nan(value: Scalar, gradient: T) -> T:
    """The gradient of a loss: NaN, and not zero, where the loss is not finite."""
    finite = jnp.isfinite(value)
    return jax.tree.map(lambda g: jnp.where(finite, g, jnp.nan), gradient)


def scalar(
    value: Any, owner: str = "error_estimate", write: str = 'lambda p: solve(...).final.x["h"]'
) -> Any:
    """The value of a loss, or an error where it is not one real number."""
    if not hasattr(value, "dtype") and not isinstance(value, int | float):
        shown = picture(value)
    elif jnp.ndim(value):
        shown = f"an array of shape {jnp.shape(value)}"
    elif not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        shown = "a whole number, which has no derivatives"
    else:
        return value
    raise ValueError(
        f"{owner}: the loss returned {shown}, expected one number. Write {write}, or a sum."
    )
