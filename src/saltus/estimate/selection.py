"""The free numbers, from names, patterns, bounds, scales and priors as users write them."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ..base.names import path_name, unknown
from ..base.types import Numbers, Params
from ..system.hybrid import Instant
from .parameters import SCALES, Block, Free, LogNormal, Normal, P, Prior

FreeNames: TypeAlias = str | Sequence[str] | None
Limit: TypeAlias = Numbers | None
BoundsLike: TypeAlias = Mapping[str, tuple[Limit, Limit]] | None  # (low, high) by name


def choose(
    p: Params,
    starts: Sequence[Instant | None],
    labels: Sequence[str],
    free: FreeNames = None,
    bounds: BoundsLike = None,
    scales: Mapping[str, str] | None = None,
    priors: Mapping[str, Any] | None = None,
) -> Free:
    """The free numbers, from names, patterns and prefixes; without any, all floats of `p`."""
    table = _table(p, starts, labels)
    mine = {name: e for name, e in table.items() if e.owner == P}
    whole = [name for name, e in mine.items() if not e.floating]
    floats = [name for name in mine if name not in whole]
    wanted = floats if free is None else _listed(free)
    found: dict[str, np.ndarray] = {}
    for name in wanted:
        for key, picked in _matching(name, table).items():
            found[key] = np.union1d(found[key], picked) if key in found else picked
    given = {"bounds": bounds, "scales": scales, "priors": priors}
    options = [_spread(_by_name(what, option), table) for what, option in given.items()]
    blocks, at = [], 0
    for key, picked in found.items():
        for own, members in _alike(picked, [option.get(key, {}) for option in options]):
            place = slice(at, at + members.size)
            blocks.append(_block(table[key], members, place, *own))
            at += members.size
    if not blocks:
        raise ValueError(
            "nothing is free. Name parameters: free=['k', 'c']; there are "
            f"{', '.join(table)}." + (f" {_held(whole)}" if whole else "")
        )
    chosen = Free(blocks, p, starts)
    chosen.note = _held(whole) if whole and free is None else ""
    return chosen


def _held(whole: Sequence[str]) -> str:
    return (
        f"Whole numbers are fixed: {', '.join(whole)}. Write {whole[0]} as 1.0, not 1, or name it "
        "in free= to estimate it."
    )


@dataclasses.dataclass(frozen=True)
class _Entry:
    name: str
    owner: int
    leaf: int
    value: np.ndarray
    floating: bool = True


def _listed(free: str | Sequence[str]) -> list[str]:
    names = [free] if isinstance(free, str) else list(free)
    return [part.strip() for name in names for part in name.split(";") if part.strip()]


def _table(p: Params, starts: Sequence[Instant | None], labels: Sequence[str]) -> dict[str, _Entry]:
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


def _is_number(leaf: object) -> bool:
    if isinstance(leaf, bool):
        return False
    if isinstance(leaf, int | float):
        return True
    return _floating(leaf)


def _floating(leaf: object) -> bool:
    if isinstance(leaf, int | float) and not isinstance(leaf, bool):
        return True
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and (
        jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    )


def _matching(name: str, table: Mapping[str, _Entry]) -> dict[str, np.ndarray]:
    """The leaves and entries that a name means: an exact name, an entry, a prefix, a pattern."""
    everything = lambda key: np.arange(table[key].value.size)
    if name in table:
        return {name: everything(name)}
    stem, _, index = name.rpartition("[")
    if stem in table and index.endswith("]"):
        place = tuple(int(v) for v in index[:-1].split(","))
        return {stem: np.array([np.ravel_multi_index(place, table[stem].value.shape)])}
    several = [k for k in table if k.startswith((f"{name}.", f"{name}["))]
    several = several or [k for k in table if fnmatch.fnmatchcase(k, name)]
    if not several and name.startswith("start"):  # one for each experiment
        several = [k for k in table if k.endswith(f".{name}") or f".{name}." in k]
    if not several:
        raise ValueError(str(unknown(name, table)))
    return {k: everything(k) for k in several}


EXAMPLES = {"bounds": (0.0, 10.0), "scales": "log", "priors": (2.0, 0.5)}


def _by_name(what: str, given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """An option of parameters, which has to be given by their names."""
    if given is None:
        return {}
    example = f'{what}={{"k": {EXAMPLES[what]!r}}}'
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} is {given!r}, expected entries by name: {example}.")
    for name, pair in given.items():
        if what == "bounds" and pair is not None and (np.ndim(pair) == 0 or len(pair) != 2):
            raise TypeError(
                f'bounds of "{name}" are {pair!r}, expected (low, high), each a number or None: '
                f"{example}."
            )
    return given


def _spread(given: Mapping[str, Any], table: Mapping[str, _Entry]) -> dict[str, dict[int, Any]]:
    """Options by leaf and entry; a prefix or pattern stands for all its leaves."""
    spread: dict[str, dict[int, Any]] = {}
    for name, value in given.items():
        for key, picked in _matching(name, table).items():
            spread.setdefault(key, {}).update(dict.fromkeys(picked.tolist(), value))
    return spread


def _alike(picked: np.ndarray, options: list[dict[int, Any]]) -> list[tuple[list, np.ndarray]]:
    """Entries of a leaf in groups that have the same options."""
    groups: dict[tuple, tuple[list, list[int]]] = {}
    for k in picked.tolist():
        own = [option.get(k) for option in options]
        groups.setdefault(tuple(map(id, own)), (own, []))[1].append(k)
    return [(own, np.array(members)) for own, members in groups.values()]


def _block(
    entry: _Entry,
    picked: np.ndarray,
    place: slice,
    bounds: tuple[Limit, Limit] | None,
    scale: str | None,
    prior: Prior | tuple | None,
) -> Block:
    value = entry.value.reshape(-1)[picked]
    low, high = (None, None) if bounds is None else bounds
    low = _entries(entry, picked, -np.inf if low is None else low)
    high = _entries(entry, picked, np.inf if high is None else high)
    scale = scale or "linear"
    _check(entry.name, value, low, high, scale)
    if isinstance(prior, tuple | list):
        prior = Normal(*prior)
    spread = getattr(prior, "sd", getattr(prior, "factor", 2.0))
    if np.any(np.asarray(spread) <= (1.0 if isinstance(prior, LogNormal) else 0.0)):
        raise ValueError(f'the spread {spread} of the prior of "{entry.name}" is too small.')
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


def _entries(entry: _Entry, picked: np.ndarray, given: Numbers) -> np.ndarray:
    """A number for all, or an array like the leaf, at the picked entries."""
    given = np.asarray(given, dtype=float)
    if given.ndim == 0:
        return np.full(picked.size, float(given))
    return np.broadcast_to(given, entry.value.shape).reshape(-1)[picked]


def _check(name: str, value: np.ndarray, low: np.ndarray, high: np.ndarray, scale: str) -> None:
    if scale not in SCALES:
        raise ValueError(f'scale of "{name}" is {scale!r}, expected one of {SCALES}.')
    if not np.all(np.isfinite(value)):
        raise ValueError(f'"{name}" starts as {value}, expected finite numbers.')
    if np.any(low >= high):
        raise ValueError(f'bounds of "{name}" are {low} to {high}: low must be below high.')
    outside = (value < low) | (value > high)
    if np.any(outside):
        raise ValueError(
            f'"{name}" starts at {value[outside][0]:.6g}, outside of its bounds '
            f"[{low[outside][0]:.6g}, {high[outside][0]:.6g}]. Move the first guess inside."
        )
    if scale == "log" and np.any(value == 0):
        raise ValueError(f'"{name}" starts at 0, which has no logarithm. Use scale "linear".')
    if scale == "logit" and not np.all(np.isfinite(low) & np.isfinite(high)):
        raise ValueError(
            f'scale "logit" of "{name}" needs two bounds: bounds={{"{name}": (low, high)}}.'
        )
    if scale == "logit" and np.any((value <= low) | (value >= high)):
        raise ValueError(f'"{name}" starts on a bound; on the logit scale it must be inside.')
