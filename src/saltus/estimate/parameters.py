r"""What is free in a fit: names, scales, bounds and priors, as one vector of numbers.

An optimiser sees a vector `u`. A free number is $v = \text{unit}\,u$ on the `linear` scale,
$v = \pm e^u$ on the `log` scale and $v = a + (b - a)/(1 + e^{-u})$ on the `logit` scale between
its bounds (M48).
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from ..names import unknown
from ..system import Instant
from ..tables import path_name

SCALES = ("linear", "log", "logit")
P = -1  # the owner of parameters; starts are owned by the experiment with that number


@dataclasses.dataclass(frozen=True)
class Normal:
    """A belief about a number before the data: `mean`, give or take `sd`."""

    mean: Any
    sd: Any

    def residual(self, v: Any) -> Any:
        return (v - np.asarray(self.mean)) / np.asarray(self.sd)

    def slope(self, v: Any) -> Any:
        """Derivative of the residual by the number."""
        return np.ones_like(v) / np.asarray(self.sd)


@dataclasses.dataclass(frozen=True)
class LogNormal:
    """A belief about a positive number: `median`, up to a factor `factor` either way (1 sd)."""

    median: Any
    factor: Any

    def residual(self, v: Any) -> Any:
        logarithm = np.log if isinstance(v, np.ndarray | float) else jnp.log
        return logarithm(v / np.asarray(self.median)) / np.log(np.asarray(self.factor))

    def slope(self, v: Any) -> Any:
        """Derivative of the residual by the number."""
        return 1.0 / (v * np.log(np.asarray(self.factor)))


def scaled(scale: str, u: Any, unit: Any, low: Any, high: Any) -> Any:
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
    prior: Any = None

    @property
    def kind(self) -> tuple:
        """What is static about it; equal kinds share compiled programs."""
        return (self.leaf, tuple(self.picked.tolist()), self.scale)

    def value(self, u: Any) -> Any:
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
            f"{self.name}[{','.join(map(str, np.unravel_index(k, self.shape)))}]"
            for k in self.picked
        ]


class Free:
    """The free numbers of a fit, as blocks of one vector."""

    def __init__(self, blocks: Sequence[Block], p: Any, starts: Sequence[Instant | None]):
        self.blocks = tuple(blocks)
        self.p, self.starts = p, tuple(starts)
        self.size = sum(b.picked.size for b in self.blocks)
        self.names = [name for b in self.blocks for name in b.names()]
        self.initial = self.vector(self.natural_of(p, starts))
        both = [b.bounds() for b in self.blocks]
        self.low = np.concatenate([low for low, _ in both]) if both else np.zeros(0)
        self.high = np.concatenate([high for _, high in both]) if both else np.zeros(0)

    def natural_of(self, p: Any, starts: Sequence[Instant | None]) -> np.ndarray:
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

    def natural(self, u: Any) -> Any:
        """The free numbers, on their own scales."""
        return jnp.concatenate([b.value(u[b.place]) for b in self.blocks])

    def into_p(self, u: Any, p: Any) -> Any:
        """The parameters with the free numbers in them."""
        return put(p, [(*b.kind, b.value(u[b.place])) for b in self.blocks if b.owner == P])

    def into_start(self, u: Any, start: Any, owner: int) -> Any:
        """The start of one experiment with the free numbers in it."""
        mine = [b for b in self.blocks if b.owner == owner]
        return put(start, [(*b.kind, b.value(u[b.place])) for b in mine])

    @property
    def believed(self) -> bool:
        """Whether there are priors."""
        return any(b.prior is not None for b in self.blocks)

    def prior_residuals(self, u: Any) -> Any:
        """What the priors add to the residuals, as JAX sees it."""
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
        """What a change is small or large against where a number is near zero."""
        return np.concatenate([np.abs(b.unit) * (b.scale == "linear") for b in self.blocks])

    def slopes(self, u: np.ndarray) -> np.ndarray:
        """Derivative of every free number by its entry of the vector."""
        return np.concatenate([b.number(np.asarray(u)[b.place])[1] for b in self.blocks])


def _owned(owner: int, p: Any, starts: Sequence[Instant | None]) -> Any:
    return p if owner == P else starts[owner]


def put(tree: Any, entries: Sequence[tuple]) -> Any:
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


# -- from what a user writes ----------------------------------------------------------------------
def choose(
    p: Any,
    starts: Sequence[Instant | None],
    labels: Sequence[str],
    free: Any = None,
    bounds: Mapping[str, Any] | None = None,
    scales: Mapping[str, str] | None = None,
    priors: Mapping[str, Any] | None = None,
) -> Free:
    """The free numbers, from names, patterns and prefixes; without any, all floats of `p`."""
    table = _table(p, starts, labels)
    floats = [name for name, e in table.items() if e.owner == P and e.floating]
    wanted = floats if free is None else _listed(free)
    found: dict[str, np.ndarray] = {}
    for name in wanted:
        for key, picked in _matching(name, table).items():
            found[key] = np.union1d(found[key], picked) if key in found else picked
    options = [
        _spread(given, table, found, what)
        for given, what in ((bounds, "bounds"), (scales, "scales"), (priors, "priors"))
    ]
    blocks, at = [], 0
    for key, picked in found.items():
        own = [option.get(key) for option in options]
        entry = table[key]
        blocks.append(_block(entry, picked, slice(at, at + picked.size), *own))
        at += picked.size
    if not blocks:
        raise ValueError(
            "fit: nothing is free. Name parameters: free=['k', 'c']; the model has "
            f"{', '.join(table)}."
        )
    return Free(blocks, p, starts)


@dataclasses.dataclass(frozen=True)
class _Entry:
    name: str
    owner: int
    leaf: int
    value: np.ndarray
    floating: bool = True


def _listed(free: Any) -> list[str]:
    names = [free] if isinstance(free, str) else list(free)
    return [part.strip() for name in names for part in name.split(";") if part.strip()]


def _table(p: Any, starts: Sequence[Instant | None], labels: Sequence[str]) -> dict[str, _Entry]:
    """Every number that may be free, by name."""
    table = {}
    for k, (path, leaf) in enumerate(jax.tree_util.tree_flatten_with_path(p)[0]):
        if _is_number(leaf):
            name = path_name(path) or "p"
            name = f"p{name}" if name.startswith("[") else name
            whole = np.issubdtype(np.asarray(leaf).dtype, np.integer)
            table[name] = _Entry(name, P, k, np.asarray(leaf, dtype=float), not whole)
    for owner, start in enumerate(starts):
        prefix = "start" if len(starts) == 1 else f"{labels[owner]}.start"
        for k, (path, leaf) in enumerate(jax.tree_util.tree_flatten_with_path(start)[0]):
            field = getattr(path[0], "name", None)
            if field in ("x", "d") and _is_number(leaf) and _floating(leaf):
                rest = path_name(path[1:]) or field
                name = f"{prefix}{rest}" if rest.startswith("[") else f"{prefix}.{rest}"
                table[name] = _Entry(name, owner, k, np.asarray(leaf, dtype=float))
    return table


def _is_number(leaf: Any) -> bool:
    if isinstance(leaf, bool):
        return False
    if isinstance(leaf, int | float):
        return True
    return _floating(leaf)


def _floating(leaf: Any) -> bool:
    if isinstance(leaf, int | float) and not isinstance(leaf, bool):
        return True
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return False
    return jnp.issubdtype(dtype, jnp.floating) or (
        jnp.issubdtype(dtype, jnp.integer) and np.ndim(leaf) == 0
    )


def _matching(name: str, table: Mapping[str, _Entry]) -> dict[str, np.ndarray]:
    """Leaf names and entries meant by a name: exact, an entry, a prefix, a pattern."""
    everything = lambda key: np.arange(table[key].value.size)
    if name in table:
        return {name: everything(name)}
    stem, _, index = name.rpartition("[")
    if stem in table and index.endswith("]"):
        place = tuple(int(v) for v in index[:-1].split(","))
        return {stem: np.array([np.ravel_multi_index(place, table[stem].value.shape)])}
    several = [k for k in table if k.startswith((f"{name}.", f"{name}["))]
    several = several or [k for k in table if fnmatch.fnmatchcase(k, name)]
    if not several and name.startswith("start"):  # of every experiment its own
        several = [k for k in table if k.endswith(f".{name}") or f".{name}." in k]
    if not several:
        raise ValueError(f"fit: {unknown(name, table)}")
    return {k: everything(k) for k in several}


def _spread(given: Any, table: Mapping[str, _Entry], found: Any, what: str) -> dict[str, Any]:
    """Options by leaf; a prefix or pattern stands for all its leaves."""
    spread = {}
    for name, value in dict(given or {}).items():
        for key in _matching(name, table):
            if key in found:
                spread[key] = value
    return spread


def _block(
    entry: _Entry, picked: np.ndarray, place: slice, bounds: Any, scale: Any, prior: Any
) -> Block:
    value = entry.value.reshape(-1)[picked]
    low, high = (-np.inf, np.inf) if bounds is None else bounds
    low = np.broadcast_to(np.asarray(-np.inf if low is None else low, dtype=float), value.shape)
    high = np.broadcast_to(np.asarray(np.inf if high is None else high, dtype=float), value.shape)
    scale = scale or "linear"
    _check(entry.name, value, low, high, scale)
    if isinstance(prior, tuple | list):
        prior = Normal(*prior)
    unit = np.where(value == 0, 1.0, np.abs(value))
    if scale == "log":
        unit = np.sign(value)
    elif np.any(value == 0):
        width = np.where(np.isfinite(high - low), high - low, np.max(np.abs(value), initial=0.0))
        unit = np.where((value == 0) & (width > 0), width, unit)
    shape = entry.value.shape
    return Block(
        entry.name, entry.owner, entry.leaf, shape, picked, place, scale, unit, low, high, prior
    )


def _check(name: str, value: Any, low: Any, high: Any, scale: str) -> None:
    if scale not in SCALES:
        raise ValueError(f'fit: scale of "{name}" is {scale!r}, expected one of {SCALES}.')
    if not np.all(np.isfinite(value)):
        raise ValueError(f'fit: "{name}" starts as {value}, expected finite numbers.')
    if np.any(low >= high):
        raise ValueError(f'fit: bounds of "{name}" are {low} to {high}: low must be below high.')
    outside = (value < low) | (value > high)
    if np.any(outside):
        raise ValueError(
            f'fit: "{name}" starts at {value[outside][0]:.6g}, outside of its bounds '
            f"[{low[outside][0]:.6g}, {high[outside][0]:.6g}]. Move the first guess inside."
        )
    if scale == "log" and np.any(value == 0):
        raise ValueError(f'fit: "{name}" starts at 0, which has no logarithm. Use scale "linear".')
    if scale == "logit" and not np.all(np.isfinite(low) & np.isfinite(high)):
        raise ValueError(
            f'fit: scale "logit" of "{name}" needs two bounds: bounds={{"{name}": (low, high)}}.'
        )
    if scale == "logit" and np.any((value <= low) | (value >= high)):
        raise ValueError(f'fit: "{name}" starts on a bound; on the logit scale it must be inside.')
