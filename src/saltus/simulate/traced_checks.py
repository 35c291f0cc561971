"""Checks of numbers that are known only when a program runs, which cannot raise errors.

Outside of `jit` an invalid number is an error where it is given. Inside, `solve` does not begin:
its result says which check failed, and all values are NaN.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..base.results import Result
from ..base.types import Array, Flag, Scalar, Whole
from ..model.model import At, Model, Par
from .record import Knobs


def _any(flags: list[Array]) -> Flag:
    found = jnp.zeros((), bool)
    for flag in flags:
        found = found | jnp.any(flag)
    return found


def bad_times(par: Par) -> Flag:
    """Whether the start or the end is not a finite time."""
    return ~(jnp.isfinite(par.t0) & jnp.isfinite(par.t1))


def bad_breakpoints(model: Model, par: Par) -> Flag:
    """Whether the breakpoints of an input do not increase strictly."""
    given = [model.signal_of(par, k)[0] for k in range(len(model.signals))]
    return _any([jnp.isnan(t) for t in given] + [~(t[1:] > t[:-1]) for t in given])


def bad_periods(model: Model, par: Par) -> Flag:
    """Whether the period of `every` is not positive, or its offset not finite."""
    ticks = [model.tick_of(par, k) for k in range(model.ticks)]
    return _any(
        [~((v > 0) & jnp.isfinite(v)) for v, _ in ticks] + [~jnp.isfinite(v) for _, v in ticks]
    )


def bad_mode(model: Model, at: At) -> Flag:
    """Whether the mode is not one of the system's."""
    if not model.modes:
        return jnp.zeros((), bool)
    mode = at.i[model.place_mode]
    return (mode < 0) | (mode >= len(model.modes))


def verdict(model: Model, par: Par, knobs: Knobs, code: Whole) -> Whole:
    """The reason why a solve cannot begin, or else its `code`."""
    checks = [(jnp.isnan(knobs.rtol), Result.invalid_setting)]
    if model.ticks:
        checks.append((bad_periods(model, par), Result.invalid_period))
    if model.signals:
        checks.append((bad_breakpoints(model, par), Result.invalid_input))
    if model.one_way:
        checks.append((par.backward, Result.backward_unknown))
    checks.append((bad_times(par), Result.invalid_time))
    for bad, why in checks:
        code = jnp.where(bad, int(why), code)
    return code.astype(jnp.int32)


# Results of solves that cannot begin, if no row was written.
REFUSALS = (
    Result.non_finite, Result.no_consistent_state, Result.inconsistent, Result.singular,
    Result.invalid_time, Result.invalid_input, Result.invalid_period, Result.invalid_mode,
    Result.invalid_setting, Result.backward_unknown,
)  # fmt: skip


def begun(code: Whole, rows: Whole) -> Flag:
    """Whether a solve has begun, by its result and the number of its rows."""
    return (rows > 0) | ~_any([code == int(why) for why in REFUSALS])


def sound(settings: dict[str, Any], fixed: bool) -> Flag:
    """Whether the numbers of a method are valid.

    `Method` checks them in the same way if they are known; a relative tolerance below rounding is
    replaced by it.
    """
    rtol, first, longest = settings["rtol"], settings["first_step"], settings["max_step"]
    atol = settings["atol"]
    good = (rtol >= 0) & (rtol <= 1) & (longest > 0)
    positive = rtol > 0
    for v in atol:
        good = good & jnp.all((v >= 0) & jnp.isfinite(v))
        positive = positive | jnp.any(v > 0)
    if first is not None:
        good = good & (first > 0) & jnp.isfinite(first)
    if fixed:
        return good & (settings["h"] > 0) & jnp.isfinite(settings["h"])
    return good & positive


def outside(ts: Array, t0: Scalar, t1: Scalar) -> Array:
    """Which save times do not lie between start and end, or are not finite."""
    low, high = jnp.minimum(t0, t1), jnp.maximum(t0, t1)
    slack = 1e-12 * jnp.maximum(jnp.maximum(jnp.abs(low), jnp.abs(high)), 1e-300)
    return ~((ts >= low - slack) & (ts <= high + slack))
