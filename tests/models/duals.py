"""Closed forms with their derivatives: numbers with 64 binary digits and a row of partials.

The truth of the random search is computed with these, in NumPy's long double, so that it shares
neither code nor rounding with what it judges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Wide = np.longdouble


class Dual:
    """A number in each lane, with its derivatives by all parameters: (lanes,) and (k, lanes)."""

    __array_ufunc__ = None  # so that NumPy leaves `array - dual` to this class

    def __init__(self, value: Any, partials: Any):
        self.value, self.partials = value, partials

    def _with(self, value: Any, slope: Any) -> Dual:
        return Dual(value, slope * self.partials)

    def __add__(self, other: Any) -> Dual:
        b = _dual(other, self)
        return Dual(self.value + b.value, self.partials + b.partials)

    def __mul__(self, other: Any) -> Dual:
        b = _dual(other, self)
        return Dual(self.value * b.value, self.value * b.partials + b.value * self.partials)

    def __truediv__(self, other: Any) -> Dual:
        b = _dual(other, self)
        q = self.value / b.value
        return Dual(q, (self.partials - q * b.partials) / b.value)

    def __neg__(self) -> Dual:
        return Dual(-self.value, -self.partials)

    def __sub__(self, other: Any) -> Dual:
        return self + (-other)

    def __radd__(self, other: Any) -> Dual:
        return self + other

    def __rmul__(self, other: Any) -> Dual:
        return self * other

    def __rsub__(self, other: Any) -> Dual:
        return (-self) + other

    def __rtruediv__(self, other: Any) -> Dual:
        return _dual(other, self) / self

    def __pow__(self, n: int) -> Dual:
        return self._with(self.value**n, n * self.value ** (n - 1))


def _dual(x: Any, like: Dual) -> Dual:
    if isinstance(x, Dual):
        return x
    value = np.broadcast_to(np.asarray(x, Wide), like.value.shape)
    return Dual(value, np.zeros_like(like.partials))


def duals(q: np.ndarray) -> list[Dual]:
    """The columns of q (lanes, k), each the derivative of itself."""
    lanes, k = q.shape
    columns = q.T.astype(Wide)
    unit = np.repeat(np.eye(k, dtype=Wide)[:, :, None], lanes, axis=2)
    return [Dual(columns[j], unit[j]) for j in range(k)]


def where(condition: Any, a: Any, b: Any) -> Dual:
    like = a if isinstance(a, Dual) else b
    a, b = _dual(a, like), _dual(b, like)
    return Dual(np.where(condition, a.value, b.value), np.where(condition, a.partials, b.partials))


def without_slope(x: Dual) -> Dual:
    """The same number where it has no derivative."""
    return Dual(x.value, np.full_like(x.partials, np.nan))


def sqrt(x: Dual) -> Dual:
    root = np.sqrt(x.value)
    return Dual(root, 0.5 * x.partials / root)


def exp(x: Dual) -> Dual:
    e = np.exp(x.value)
    return Dual(e, e * x.partials)


def log(x: Dual) -> Dual:
    return Dual(np.log(x.value), x.partials / x.value)


def sin(x: Dual) -> Dual:
    return Dual(np.sin(x.value), np.cos(x.value) * x.partials)


def cos(x: Dual) -> Dual:
    return Dual(np.cos(x.value), -np.sin(x.value) * x.partials)


def arccos(x: Dual) -> Dual:
    return Dual(np.arccos(x.value), -x.partials / np.sqrt(1 - x.value**2))


def arctan2(y: Dual, x: Dual) -> Dual:
    size = x.value**2 + y.value**2
    return Dual(np.arctan2(y.value, x.value), (x.value * y.partials - y.value * x.partials) / size)


def solved(f: Callable[[Any], Any], low: Any, high: Any, like: Dual) -> Dual:
    """The root of f between low and high, where f has opposite signs, with its derivatives.

    By bisection to the last digit; then one step of Newton's method whose value is rounding and
    whose derivative is that of the root.
    """
    low, high = (np.array(np.broadcast_to(v, like.value.shape), Wide) for v in (low, high))
    start = np.sign(f(_dual(low, like)).value)
    for _ in range(80):
        middle = 0.5 * (low + high)
        left = np.sign(f(_dual(middle, like)).value) == start
        low, high = np.where(left, middle, low), np.where(left, high, middle)
    root = _dual(0.5 * (low + high), like)
    unit = np.concatenate([np.ones_like(like.partials[:1]), np.zeros_like(like.partials[1:])])
    slope = f(Dual(root.value, unit)).partials[0] - f(root).partials[0]
    return root - f(root) / slope
