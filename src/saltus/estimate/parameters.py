r"""What is free in a fit: names, scales, bounds and priors, as one vector of numbers.

An optimiser sees a vector `u`. A free number is $v = \text{unit}\,u$ on the `linear` scale,
$v = \pm e^u$ on the `log` scale and $v = a + (b - a)/(1 + e^{-u})$ on the `logit` scale between
its bounds (M48).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from ..base.names import entry_name
from ..base.types import Array, Number, Params, Tree, Vector
from ..system.hybrid import Instant

T = TypeVar("T")
Values: TypeAlias = Array | np.ndarray  # traced in a program, of NumPy outside
SCALES = ("linear", "log", "logit")
P = -1  # the owner of parameters; starts are owned by the experiment with that number


@dataclasses.dataclass(frozen=True)
class Normal:
    """A normal prior with mean `mean` and standard deviation `sd`."""

    mean: Number
    sd: Number

    def residual(self, v: Values) -> Values:
        return (v - np.asarray(self.mean)) / np.asarray(self.sd)

    def slope(self, v: np.ndarray) -> np.ndarray:
        """Derivative of the residual by the number."""
        return np.ones_like(v) / np.asarray(self.sd)


@dataclasses.dataclass(frozen=True)
class LogNormal:
    """A log-normal prior with median `median`; one standard deviation is a factor of `factor`."""

    median: Number
    factor: Number

    def residual(self, v: Values) -> Values:
        logarithm = np.log if isinstance(v, np.ndarray | float) else jnp.log
        return logarithm(v / np.asarray(self.median)) / np.log(np.asarray(self.factor))

    def slope(self, v: np.ndarray) -> np.ndarray:
        """Derivative of the residual by the number."""
        return 1.0 / (v * np.log(np.asarray(self.factor)))


Prior: TypeAlias = Normal | LogNormal


def scaled(scale: str, u: Values, unit: Values, low: Values, high: Values) -> Values:
    """A number from its entry of the vector (M48)."""
    if scale == "log":
        return unit * jnp.exp(u)
    if scale == "logit":
        return low + (high - low) * jax.nn.sigmoid(u)
    return unit * u


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """Free entries of one leaf: of the parameters, or of the start of one experiment."""

    name: str
    owner: int
    leaf: int
    shape: tuple[int, ...]
    picked: np.ndarray  # flat indices of the free entries
    place: slice  # in the vector
    scale: str
    unit: np.ndarray
    low: np.ndarray
    high: np.ndarray
    prior: Prior | None = None

    @property
    def kind(self) -> tuple:
        """The static part; blocks of equal kind share compiled programs."""
        return (self.leaf, tuple(self.picked.tolist()), self.scale)

    def value(self, u: Values) -> Values:
        """The free entries from their part of the vector."""
        return scaled(self.scale, u, self.unit, self.low, self.high)

    def number(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The free entries and their derivatives, in NumPy."""
        if self.scale == "log":
            v = self.unit * np.exp(u)
            return v, v
        if self.scale == "logit":
            s = scipy.special.expit(u)
            width = self.high - self.low
            return self.low + width * s, width * s * (1 - s)
        return self.unit * u, np.broadcast_to(self.unit, u.shape)

    def vector(self, v: np.ndarray) -> np.ndarray:
        """The part of the vector that gives the entries `v`."""
        if self.scale == "log":
            return np.log(v / self.unit)
        if self.scale == "logit":
            s = (v - self.low) / (self.high - self.low)
            return np.log(s) - np.log1p(-s)
        return v / self.unit

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The bounds of its part of the vector."""
        if self.scale == "logit":
            return np.full(self.low.shape, -np.inf), np.full(self.low.shape, np.inf)
        if self.scale == "linear":
            return self.low / self.unit, self.high / self.unit
        negative = self.unit < 0
        small, large = (
            np.where(negative, -self.high, self.low),
            np.where(negative, -self.low, self.high),
        )
        with np.errstate(divide="ignore"):
            return np.log(np.maximum(small, 0.0)), np.log(np.maximum(large, 0.0))

    def names(self) -> list[str]:
        """A name for every entry."""
        if not self.shape:
            return [self.name]
        return [
            entry_name(self.name, map(int, np.unravel_index(k, self.shape))) for k in self.picked
        ]


class Free:
    """The free numbers of a fit, as blocks of one vector."""

    def __init__(self, blocks: Sequence[Block], p: Params, starts: Sequence[Instant | None]):
        self.blocks = tuple(blocks)
        self.note = ""  # for the user, on numbers that are not free
        self.p, self.starts = p, tuple(starts)
        self.size = sum(b.picked.size for b in self.blocks)
        self.names = [name for b in self.blocks for name in b.names()]
        self.initial = self.vector(self.natural_of(p, starts))
        both = [b.bounds() for b in self.blocks]
        self.low = np.concatenate([low for low, _ in both]) if both else np.zeros(0)
        self.high = np.concatenate([high for _, high in both]) if both else np.zeros(0)

    def natural_of(self, p: Params, starts: Sequence[Instant | None]) -> np.ndarray:
        """The free numbers of these parameters and starts."""
        values = []
        for b in self.blocks:
            leaf = jax.tree.leaves(_owned(b.owner, p, starts))[b.leaf]
            values.append(np.asarray(leaf, dtype=float).reshape(-1)[b.picked])
        return np.concatenate(values) if values else np.zeros(0)

    def vector(self, values: np.ndarray) -> np.ndarray:
        """The vector that gives these numbers."""
        parts = [b.vector(np.asarray(values)[b.place]) for b in self.blocks]
        return np.concatenate(parts) if parts else np.zeros(0)

    def natural(self, u: Values) -> Array:
        """The values of the free numbers, from the vector."""
        return jnp.concatenate([b.value(u[b.place]) for b in self.blocks])

    def into_p(self, u: Vector, p: Params) -> Params:
        """The parameters with the free numbers in them."""
        return put(p, [(*b.kind, b.value(u[b.place])) for b in self.blocks if b.owner == P])

    def into_start(self, u: Vector, start: Instant, owner: int) -> Instant:
        """The start of one experiment with the free numbers in it."""
        mine = [b for b in self.blocks if b.owner == owner]
        return put(start, [(*b.kind, b.value(u[b.place])) for b in mine])

    @property
    def believed(self) -> bool:
        """Whether there are priors."""
        return any(b.prior is not None for b in self.blocks)

    def prior_residuals(self, u: Vector) -> Vector:
        """What the priors add to the residuals, in JAX."""
        parts = [b.prior.residual(b.value(u[b.place])) for b in self.blocks if b.prior]
        return jnp.concatenate([jnp.atleast_1d(v) for v in parts]) if parts else jnp.zeros(0)

    def priors(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same and its Jacobian, in NumPy."""
        values, rows = [], []
        for b in self.blocks:
            if b.prior is None:
                continue
            v, slope = b.number(u[b.place])
            values.append(b.prior.residual(v))
            own = np.zeros((v.size, self.size))
            own[:, b.place] = np.diag(b.prior.slope(v) * slope)
            rows.append(own)
        return np.concatenate(values), np.concatenate(rows)

    def units(self) -> np.ndarray:
        """The scale of changes of a number near zero."""
        return np.concatenate([np.abs(b.unit) * (b.scale == "linear") for b in self.blocks])

    def slopes(self, u: np.ndarray) -> np.ndarray:
        """Derivative of every free number by its entry of the vector."""
        return np.concatenate([b.number(np.asarray(u)[b.place])[1] for b in self.blocks])


def _owned(owner: int, p: Params, starts: Sequence[Instant | None]) -> Tree:
    return p if owner == P else starts[owner]


def put(tree: T, entries: Sequence[tuple]) -> T:
    """A pytree with entries of its leaves replaced: (leaf, picked entries, scale, values) each."""
    if not entries:
        return tree
    leaves, treedef = jax.tree.flatten(tree)
    for leaf, picked, _, values in entries:
        old = jnp.asarray(leaves[leaf], dtype=float)
        full = len(picked) == old.size
        flat = values if full else old.reshape(-1).at[np.asarray(picked)].set(values)
        leaves[leaf] = flat.reshape(old.shape)
    return jax.tree.unflatten(treedef, leaves)
