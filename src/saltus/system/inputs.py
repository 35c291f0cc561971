"""Inputs given as signals over time: piecewise constant and piecewise linear."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ..base.foreign_parts import SIGNAL, constructs
from ..base.leaves import check_precision
from ..base.tracing import is_tracer
from ..base.types import Array, Flag, Numbers, Scalar, Vector, Whole


class Signal(eqx.Module):
    """A signal with breakpoints `times` (M) and `values` (leading axis M or M - 1)."""

    times: Vector
    values: Array

    def __init__(self, times: Numbers, values: Numbers):
        check_precision()
        self.times = jnp.asarray(times, dtype=float)
        self.values = jnp.asarray(values, dtype=float)
        name = type(self).__name__
        if self.times.ndim != 1 or self.times.shape[0] < 1:
            raise ValueError(
                f"{name}: times has shape {self.times.shape}, expected one axis of breakpoints. "
                f"Write {name}(times=[0.0, 1.0, 2.0], values=[...])."
            )
        if not is_tracer(self.times) and not _increase(np.asarray(self.times)):
            raise ValueError(f"{name}: times must increase strictly; sort them and drop repeats.")
        self._check(name)

    @classmethod
    def of_leaves(cls, times: Vector, values: Array) -> Signal:
        """A signal made of leaves that were checked before."""
        signal = object.__new__(cls)
        object.__setattr__(signal, "times", times)
        object.__setattr__(signal, "values", values)
        return signal

    def _check(self, name: str) -> None:
        raise NotImplementedError

    def value(self, t: Scalar, segment: Whole) -> Array:
        """The value at `t` when `segment` breakpoints have been passed."""
        raise NotImplementedError

    def segment(self, t: Scalar, backward: Flag | bool) -> Whole:
        """How many breakpoints precede `t`; one at `t` counts if time runs forward."""
        after = jnp.searchsorted(self.times, t, side="right")
        return jnp.where(backward, jnp.searchsorted(self.times, t, side="left"), after)


@constructs(SIGNAL)
class Steps(Signal):
    """A piecewise constant input: `values[j]` from `times[j]` to the next time.

    The first value also holds before the first time, and the last value after the last time. There
    may be one value fewer than times: the last time then only marks the end of the last piece.
    """

    def __init__(self, times: Numbers, values: Numbers):
        super().__init__(times, values)

    def _check(self, name: str) -> None:
        m = self.times.shape[0]
        if (
            self.values.ndim < 1
            or self.values.shape[0] not in (m, m - 1)
            or m == 1 > len(self.values)
        ):
            raise ValueError(
                f"{name}: {m} times and values of shape {self.values.shape}; expected {m} values "
                f"along the first axis (or {m - 1}, the last time being the end)."
            )

    def value(self, t: Scalar, segment: Whole) -> Array:
        return self.values[jnp.clip(segment - 1, 0, self.values.shape[0] - 1)]


@constructs(SIGNAL)
class Ramps(Signal):
    """A piecewise linear input through `values[j]` at `times[j]`, constant outside of the times."""

    def __init__(self, times: Numbers, values: Numbers):
        super().__init__(times, values)

    def _check(self, name: str) -> None:
        m = self.times.shape[0]
        if self.values.ndim < 1 or self.values.shape[0] != m:
            raise ValueError(
                f"{name}: {m} times and values of shape {self.values.shape}; expected {m} values "
                "along the first axis."
            )

    def value(self, t: Scalar, segment: Whole) -> Array:
        last = self.times.shape[0] - 1
        if last == 0:
            return self.values[0]
        j = jnp.clip(segment - 1, 0, last - 1)
        t0, t1 = self.times[j], self.times[j + 1]
        y0, y1 = self.values[j], self.values[j + 1]
        inside = y0 + (y1 - y0) * ((t - t0) / (t1 - t0))
        return jnp.where(
            segment <= 0, self.values[0], jnp.where(segment > last, self.values[last], inside)
        )


def _increase(times: np.ndarray) -> bool:
    return not np.isnan(times).any() and bool(np.all(times[1:] > times[:-1]))


def is_signal(node: object) -> bool:
    return isinstance(node, Signal)
