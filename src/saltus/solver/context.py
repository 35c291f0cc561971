"""Settings around a call of `solve`: observers, replaced methods, probes of the error."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from ..base.jax_names import context_setting, trace_state
from ..base.leaves import array_of
from ..base.types import Array, Number, Scalar

if TYPE_CHECKING:
    from ..methods import Method
    from ..simulate.record import RowRules
    from ..solution.solution import Solution

_OWN = "own"  # as given to `solve`
_asked = context_setting(_OWN)


def current_way(given: RowRules | None) -> RowRules | None:
    """How a solve with `sensitivity=given` is differentiated: `asking` takes precedence."""
    if given is not None and (isinstance(given, type) or not hasattr(given, "cotangent")):
        raise TypeError(
            f"solve: sensitivity is {given!r}, expected None or a Continuous. Write "
            "sensitivity=saltus.continuous.Continuous()."
        )
    return given if _asked.value == _OWN else _asked.value


_replaced = context_setting(None)


def current_method(given: Method) -> Method:
    """The method of a solve with `method=given`: `replacing` takes precedence."""
    return given if _replaced.value is None else _replaced.value.like(given)


_parts = context_setting(1)


def current_times(ts: Array | None) -> Array | None:
    """The save times of a solve with `ts`; inside `denser` there are more of them."""
    parts = _parts.value
    if parts == 1 or ts is None or ts.shape[0] < 2:
        return ts
    shares = jnp.arange(parts) / parts
    inner = ts[:-1, None] + shares * (ts[1:] - ts[:-1])[:, None]
    return jnp.append(inner.reshape(-1), ts[-1])


@contextlib.contextmanager
def denser(parts: int) -> Iterator[None]:
    """All solves inside divide the time between two save times into `parts` parts."""
    with _parts(parts):
        yield


@contextlib.contextmanager
def replacing(method: type[Method]) -> Iterator[None]:
    """All solves inside use the class `method`, each with its own tolerances."""
    with _replaced(method):
        yield


@contextlib.contextmanager
def asking(way: RowRules | None) -> Iterator[None]:
    """All solves inside are differentiated by `way` (`None`: by the sweeps)."""
    with _asked(way):
        yield


class Seen(list):
    """Solutions, and whether there were others that exist only inside a traced function."""

    def __init__(self):
        self.trace = trace_state()
        self.inner = False  # one was made inside a function that JAX maps, compiles or loops


_open: contextvars.ContextVar[Seen | None] = contextvars.ContextVar("solutions", default=None)


def note(sol: Solution) -> None:
    """Called by `solve` with every solution it returns."""
    seen = _open.get()
    if seen is None:
        return
    if trace_state() == seen.trace:
        seen.append(sol)
    else:
        seen.inner = True


@contextlib.contextmanager
def gathering() -> Iterator[Seen]:
    """The solutions made inside, in a list."""
    seen = Seen()
    token = _open.set(seen)
    try:
        yield seen
    finally:
        _open.reset(token)


class _Probe:
    def __init__(self, eps: Number):
        self.eps = eps
        self.used = False


_current: contextvars.ContextVar[_Probe | None] = contextvars.ContextVar("probe", default=None)


def current_probe() -> Scalar:
    """The probe that a solve passes on to its steps: zero unless an estimate is asked for."""
    probe = _current.get()
    if probe is None:
        return array_of(0.0, np.float64)
    probe.used = True
    return array_of(probe.eps, np.float64)


_tighter: contextvars.ContextVar[Number] = contextvars.ContextVar("accuracy", default=1.0)


def current_accuracy() -> Number:
    """By how much the tolerances of a solve are multiplied: one, or less inside `tightening`."""
    return _tighter.get()


@contextlib.contextmanager
def tightening(factor: Number) -> Iterator[None]:
    """All solves inside have tolerances that are `factor` times theirs, a number or a tracer."""
    token = _tighter.set(factor)
    try:
        yield
    finally:
        _tighter.reset(token)


@contextlib.contextmanager
def _probing(eps: Number) -> Iterator[_Probe]:
    probe = _Probe(eps)
    token = _current.set(probe)
    try:
        yield probe
    finally:
        _current.reset(token)
