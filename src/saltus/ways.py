"""How a solve is done where that is asked for from outside: derivatives, method, save times.

What is asked for is part of what JAX compares before it takes a compiled function from its cache:
functions under `jit` are traced anew for every way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from .jax_names import context_setting

_OWN = "own"  # as `solve` was told
_asked = context_setting(_OWN)


def current_way(given: Any) -> Any:
    """The way of a solve that was given `given`."""
    if given is not None and (isinstance(given, type) or not hasattr(given, "cotangent")):
        raise TypeError(
            f"solve: sensitivity is {given!r}, expected None or a Continuous. Write "
            "sensitivity=saltus.continuous.Continuous()."
        )
    return given if _asked.value == _OWN else _asked.value


_replaced = context_setting(None)


def current_method(given: Any) -> Any:
    """The method of a solve that was given `given`."""
    return given if _replaced.value is None else _replaced.value.like(given)


_parts = context_setting(1)


def current_times(ts: Any) -> Any:
    """The save times of a solve that was given `ts`: with others between them inside `denser`."""
    parts = _parts.value
    if parts == 1 or ts is None or ts.shape[0] < 2:
        return ts
    shares = jnp.arange(parts) / parts
    inner = ts[:-1, None] + shares * (ts[1:] - ts[:-1])[:, None]
    return jnp.append(inner.reshape(-1), ts[-1])


@contextlib.contextmanager
def denser(parts: int) -> Iterator[None]:
    """All solves inside divide the time between two save times into so many parts."""
    with _parts(parts):
        yield


@contextlib.contextmanager
def replacing(method: Any) -> Iterator[None]:
    """All solves inside use this class of methods, with the tolerances of their own."""
    with _replaced(method):
        yield


@contextlib.contextmanager
def asking(way: Any) -> Iterator[None]:
    """All solves inside are differentiated in this way (`None`: by the sweeps)."""
    with _asked(way):
        yield
