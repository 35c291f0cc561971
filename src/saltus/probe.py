"""How good is this gradient? An estimate of the error of a value and of its gradient.

Each step is perturbed by `eps` times its own local error, as two half steps see it. The derivative
of a loss in `eps` is then the error that all steps together make in it, and the derivative of its
gradient is the error of the gradient (M47). On stiff problems that can be far larger than the error
of the value.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .leaves import picture


class _Probe:
    def __init__(self, eps: Any):
        self.eps = eps
        self.used = False


_current: contextvars.ContextVar[_Probe | None] = contextvars.ContextVar("probe", default=None)


def current_probe() -> Any:
    """The probe that a solve passes on to its steps: zero unless an estimate is asked for."""
    probe = _current.get()
    if probe is None:
        return jnp.zeros(())
    probe.used = True
    return jnp.asarray(probe.eps, jnp.float64)


@contextlib.contextmanager
def _probing(eps: Any) -> Iterator[_Probe]:
    probe = _Probe(eps)
    token = _current.set(probe)
    try:
        yield probe
    finally:
        _current.reset(token)


class Estimate(eqx.Module):
    """A value and its gradient, with estimates of the error of each.

    The errors are what is missing: `value + value_error` estimates the value of the exact solution.
    """

    value: Any
    gradient: Any
    value_error: Any
    gradient_error: Any

    def __repr__(self) -> str:
        lines = [f"value {float(self.value):.10g}, error about {float(self.value_error):.1e}"]
        leaves = jax.tree_util.tree_flatten_with_path(self.gradient)[0]
        errors = jax.tree.leaves(self.gradient_error)
        for (path, g), e in zip(leaves, errors, strict=True):
            name = jax.tree_util.keystr(path).strip(".[]'\"") or "parameter"
            size = np.max(np.abs(np.asarray(e)))
            worst = np.max(np.abs(np.asarray(g)))
            lines.append(f"d/d {name}: size {worst:.6g}, error about {size:.1e}")
        return "\n".join(lines)


def promoted(leaf: Any) -> Any:
    """Whole numbers as floats: a gradient is asked for."""
    dtype = getattr(leaf, "dtype", type(leaf))
    whole = dtype is int or (dtype is not bool and jnp.issubdtype(dtype, jnp.integer))
    return jnp.asarray(leaf, jnp.float64) if whole else leaf


def _is_float(leaf: Any) -> bool:
    """Also of what is traced, of which equinox's own question is not answered by every jax."""
    if isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))
    return isinstance(leaf, float | complex)


def numbers_of(p: Any, owner: str) -> tuple[Any, Callable[[Any], Any]]:
    """The numbers in p, whole ones as floats, and how p is put together again."""
    if callable(p) and not jax.tree.leaves(eqx.filter(p, eqx.is_array_like)):
        raise TypeError(f"{owner}: p is a function. The function comes first, then p.")
    numbers, others = eqx.partition(jax.tree.map(promoted, p), _is_float)
    if not jax.tree.leaves(numbers):
        raise ValueError(f"{owner}: p is {picture(p)}, which has no numbers to differentiate in.")
    return numbers, lambda q: eqx.combine(q, others)


def of_numbers(loss: Callable, p: Any, owner: str) -> tuple[Callable, Any]:
    """A loss as a function of the numbers in p; functions in p (of a network) stay as they are."""
    numbers, whole = numbers_of(p, owner)
    if jax.tree.structure(numbers) == jax.tree.structure(p):
        return loss, numbers
    return (lambda q: loss(whole(q))), numbers


_JITTED: Any = (type(jax.jit(lambda: 0)), type(eqx.filter_jit(lambda: 0)))


def uncompiled(fn: Callable) -> Callable:
    """What `jax.jit` or `equinox.filter_jit` was given; every other function as it is.

    `__wrapped__` alone says nothing: a decorator may do anything with the function it wraps."""
    if isinstance(fn, types.MethodType):
        inner = uncompiled(fn.__func__)
        return fn if inner is fn.__func__ else types.MethodType(inner, fn.__self__)
    if isinstance(fn, functools.partial):
        inner = uncompiled(fn.func)
        return fn if inner is fn.func else functools.partial(inner, *fn.args, **fn.keywords)
    if not isinstance(fn, _JITTED):
        return fn
    given: Any = getattr(fn, "_fun", None) or fn.__wrapped__  # `wraps` may set `__wrapped__` anew
    return uncompiled(given)


def unless_nan(value: Any, gradient: Any) -> Any:
    """The gradient of a loss, which is no number where the loss is none: not zero."""
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


def error_estimate(loss: Callable[[Any], Any], p: Any) -> Estimate:
    """The value and the gradient of `loss(p)`, and estimates of their discretisation errors.

    `loss` calls `solve` and returns a number. Errors are exact minus computed: adding them improves
    the result. The estimate is for the steps that were taken; it assumes that they are small enough
    for the method to show its order, and that the flow is smooth: of kinks hidden in it, `certify`
    knows. It costs several gradients.
    Pass the plain function, not one wrapped in `jax.jit`; jit the call of `error_estimate` instead.
    """
    plain, p = of_numbers(uncompiled(loss), p, "error_estimate")
    seen: list[_Probe] = []

    def perturbed(eps: Any) -> tuple:
        def value(p: Any) -> Any:
            with _probing(eps) as probe:
                seen.append(probe)
                return scalar(plain(p))

        return jax.value_and_grad(value)(p)

    zero = jnp.zeros(())
    (value, gradient), (dv, dg) = jax.jvp(perturbed, (zero,), (jnp.ones(()),))
    if not any(probe.used for probe in seen):
        raise ValueError(
            "error_estimate: the loss did not call saltus.solve, or calls it inside a function "
            "that was compiled before. Pass a loss whose solves are not inside jax.jit."
        )
    return Estimate(value, unless_nan(value, gradient), dv, unless_nan(value, dg))
