"""Checks of the arguments of `solve`: methods, numbers, counts, save times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from ..base.foreign_names import method_named
from ..base.leaves import array_of, check_precision
from ..base.tracing import is_tracer
from ..base.types import Array, Number, Numbers, Scalar
from ..methods import METHODS, Method, default
from ..model.model import Model
from ..simulate.states import Grazing

if TYPE_CHECKING:
    from ..system.hybrid import HybridSystem

MAX_COUNT = 2**31 - 1  # what an int32 can hold
GRAZING = {
    "record": Grazing.NO_EVENT,
    "ignore": Grazing.NO_EVENT,
    "raise": Grazing.RAISE,
    "fire": Grazing.FIRE,
}


def method_of(system: HybridSystem, method: object) -> Method:
    check_precision()
    if method is None:
        return default(constrained=getattr(system, "constraint", None) is not None)
    if isinstance(method, type) and issubclass(method, Method):
        home = "saltus.external" if method.external else "saltus"
        raise TypeError(
            f"solve: method is the class {method.__name__}, expected an object. "
            f"Write method={home}.{method.__name__}()."
        )
    if isinstance(method, str):
        raise TypeError(
            f"solve: method is {method!r}, expected an object with its tolerances. Write "
            f"method={method_named(method)}."
        )
    if not isinstance(method, Method):
        raise TypeError(
            f"solve: method is {method!r}, expected {_offered()}. Write "
            "method=saltus.Tsit5(rtol=1e-8, atol=1e-8)."
        )
    return method


def _offered() -> str:
    *names, last = (f"{name}()" for name in METHODS)
    return f"{', '.join(names)} or {last}"


def check_index(model: Model, method: Method) -> None:
    rule = model.constraint
    if rule is not None and rule.highest > method.highest_index:
        worst = rule.equations[rule.index.index(rule.highest)]
        raise ValueError(
            f'solve: equation "{worst}" has index {rule.highest}, which {type(method).__name__} '
            "cannot solve. Write method=saltus.Radau5(), or leave method out."
        )


def number(name: str, value: object) -> Scalar:
    try:
        value = array_of(value, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"solve: {name} is {value!r}, expected a number.") from None
    if value.ndim:
        raise ValueError(f"solve: {name} has shape {value.shape}, expected a number.")
    if not is_tracer(value) and not np.isfinite(value):
        late = "To run until something happens, give a late t1 and a terminal event."
        raise ValueError(
            f"solve: {name} is {float(value)}, expected a finite number. "
            f"{late if name == 't1' else ''}".strip()
        )
    return value


def count(name: str, value: Number) -> int:
    try:
        exact = not is_tracer(value) and not isinstance(value, bool)
        whole = int(value) if exact and int(value) == value else 0  # type: ignore[arg-type]
    except (TypeError, ValueError):
        whole = 0
    if not 1 <= whole <= MAX_COUNT:
        raise ValueError(
            f"solve: {name} is {value!r}, expected a whole number from 1 to {MAX_COUNT} that is "
            "known before the solve runs."
        )
    return whole


def times(ts: Numbers, t0: Scalar, t1: Scalar) -> Array:
    """Save times, in any order and possibly repeated; saved values are in the same order."""
    ts = jnp.asarray(ts, dtype=jnp.float64)
    if ts.ndim != 1:
        raise ValueError(
            f"solve: ts has shape {ts.shape}, expected one axis of times. Write "
            "ts=jnp.linspace(t0, t1, 100), or leave ts out to save the end only."
        )
    if not any(is_tracer(v) for v in (ts, t0, t1)) and ts.size:
        low, high = sorted((float(t0), float(t1)))
        slack = 1e-12 * max(abs(low), abs(high), 1e-300)
        outside = np.asarray(~((ts >= low - slack) & (ts <= high + slack)))  # NaN is also outside
        if outside.any():
            raise ValueError(
                f"solve: ts contains {float(ts[int(outside.argmax())])}, outside of "
                f"[{low}, {high}]. Move t1, or drop those times."
            )
    return ts


def grazing(word: str) -> int:
    if word not in GRAZING:
        raise ValueError(
            f"solve: on_grazing is {word!r}, expected one of {', '.join(map(repr, GRAZING))}."
        )
    return GRAZING[word]
