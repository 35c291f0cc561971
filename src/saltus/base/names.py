"""Numbers in a model by name: `k`, `arm.k`, `w[2]`, and `start.v` for an initial value.

Names are those that tables show: the path to a leaf of a pytree, or to one entry of an array.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .tracing import is_tracer
from .types import Number, Tree, Units

MAX_LISTED = 12  # names in an error
ENTRY = re.compile(r"(.*)\[([\d, ]+)\]")


class UnknownName(ValueError):
    """A name that nothing in the model has."""


class WrongValue(ValueError):
    """A value that does not fit the one it should replace."""


# -- names --------------------------------------------------------------------------------------
def leaf_names(tree: Tree, root: str = "") -> list[str]:
    """The names of the numbers and arrays in a pytree; a pytree that is a leaf is called `root`."""
    return list(_numbers(tree, root))


def number_names(tree: Tree, root: str = "") -> list[str]:
    """The names of all single numbers: an array is listed entry by entry, as `w[0]`, `w[1]`."""
    return [entry for name, leaf in _numbers(tree, root).items() for entry in entries(name, leaf)]


def entries(name: str, leaf: Number) -> list[str]:
    """The names of the entries of one leaf: `w[0]`, `A[0,1]`, or just `k` for a number."""
    return [entry_name(name, index) for index in np.ndindex(*np.shape(leaf))]


def entry_name(name: str, index: Iterable[int | np.integer]) -> str:
    """The name of one entry: `w[2]`, `A[0,1]`; for an empty index, `name` itself."""
    inside = ",".join(map(str, index))
    return f"{name}[{inside}]" if inside else name


def value_of(tree: Tree, name: str, root: str = "") -> Any:
    """The value with this name: a leaf, or an entry of one."""
    leaves = _numbers(tree, root)
    at, index = _locate(leaves, name)
    return leaves[at] if index is None else leaves[at][index]


def unknown(name: str, known: Iterable[str], what: str = "number") -> UnknownName:
    """The error for a name that is not there, with the nearest ones that are."""
    known = list(known)
    if not known:
        return UnknownName(f'no {what} is called "{name}": there are none in the model.')
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    near += [k for k in known if _last(k) == _last(name) and k not in near][:3]
    guess = f" Did you mean {' or '.join(near)}?" if near else ""
    more = f" and {len(known) - MAX_LISTED} more" if len(known) > MAX_LISTED else ""
    return UnknownName(
        f'no {what} is called "{name}".{guess} There are {", ".join(known[:MAX_LISTED])}{more}.'
    )


def _last(name: str) -> str:
    return name.rpartition(".")[2].partition("[")[0].lower()


def _numbers(tree: Tree, root: str) -> dict[str, Any]:
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {leaf_name(path, root): leaf for path, leaf in flat if _is_numeric(leaf)}


def _is_numeric(leaf: object) -> bool:
    if isinstance(leaf, bool | int | float):
        return True
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and (
        jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)
    )


def _locate(leaves: Mapping[str, Any], name: str) -> tuple[str, tuple[int, ...] | None]:
    """The leaf that has this name, and which of its entries is meant (None: all of it)."""
    if name in leaves:
        return name, None
    entry = ENTRY.fullmatch(name)
    if not entry or entry[1] not in leaves:
        raise unknown(name, leaves)
    index = tuple(int(k) for k in entry[2].split(","))
    shape = np.shape(leaves[entry[1]])
    if len(index) != len(shape) or any(k >= n for k, n in zip(index, shape, strict=True)):
        size = f"has shape {shape}" if shape else "is one number"
        raise UnknownName(
            f'no number is called "{name}": {entry[1]} {size}, and entries are counted from 0.'
        )
    return entry[1], index


def whole_name(name: str) -> str:
    """The name without indices."""
    return name.partition("[")[0]


def last_name(name: str) -> str:
    """The last part of the name, without indices: that of `arm.q[2]` is `q`."""
    return whole_name(name).rpartition(".")[2]


# -- values -------------------------------------------------------------------------------------
def with_values(
    tree: Tree, values: Mapping[str, Any], root: str = "", any_shape: bool = False
) -> Tree:
    """The same pytree with some of its numbers replaced, each by name.

    A value is a number or an array of the leaf's shape (of any shape if `any_shape`), possibly
    traced. An integer leaf becomes a float if its new value is one.
    """
    new = _numbers(tree, root)
    for name, value in values.items():
        at, index = _locate(new, name)
        if any_shape and index is None and np.shape(value) != np.shape(new[at]):
            new[at] = jnp.asarray(value, jnp.result_type(new[at]))
            continue
        new[at] = _replaced(name, new[at], index, value)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: new.get(leaf_name(path, root), leaf) if _is_numeric(leaf) else leaf, tree
    )


def _replaced(name: str, leaf: Number, index: tuple[int, ...] | None, value: Number) -> Number:
    """The leaf with a new value, or with a new value in one of its entries."""
    traced = is_tracer(value) or is_tracer(leaf)
    value = value if traced else _checked(name, value)
    shape = np.shape(leaf) if index is None else ()
    if np.shape(value) != shape:
        raise WrongValue(_misfit(name, shape, value))
    own = jnp.result_type(leaf)
    kind = own if jnp.issubdtype(own, jnp.floating) else jnp.result_type(leaf, value)
    if index is not None:
        return jnp.asarray(leaf, kind).at[index].set(value)
    if traced or hasattr(leaf, "dtype"):
        return jnp.asarray(value, kind)
    return np.asarray(value, kind).item()


def _checked(name: str, value: object) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise WrongValue(f"{name} = {value!r}: expected a number, or a list of numbers.")
    return array


def _misfit(name: str, shape: tuple[int, ...], value: Number) -> str:
    got = "one number" if np.ndim(value) == 0 else f"shape {np.shape(value)}"
    if not shape:
        return f"{name} is one number, but its new value has {got}. Write {name}=1.5."
    few = ", ".join(["1.5"] * shape[0]) if len(shape) == 1 and shape[0] <= 4 else "..."
    first = entry_name(name, [0] * len(shape))
    return (
        f"{name} has shape {shape}, but its new value is {got}. "
        f"Write {name}=[{few}], or {first}=1.5 for one entry."
    )


# -- names --------------------------------------------------------------------------------------
def expression(path: Sequence[Any], root: str) -> str:
    """A path through a pytree as Python: `x["v"][3]`."""
    text = root
    for key in path:
        if hasattr(key, "name"):
            text += f".{key.name}"
        else:
            index = getattr(key, "key", getattr(key, "idx", key))
            text += f'["{index}"]' if isinstance(index, str) else f"[{index}]"
    return text


def path_name(path: Sequence[Any]) -> str:
    """A path through a pytree as a person writes it: `arm.q[2]`."""
    text = ""
    for key in path:
        name = getattr(key, "key", getattr(key, "name", None))
        if name is None or isinstance(name, int):
            text += f"[{getattr(key, 'idx', name)}]"
        else:
            text += f".{name}" if text else str(name)
    return text


def named(tree: Tree, root: str) -> dict[str, Any]:
    """The array leaves of a pytree by name; a tree that is one leaf is called `root`."""
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if hasattr(leaf, "dtype") or isinstance(leaf, bool | int | float):
            found[leaf_name(path, root)] = leaf
    return found


def leaf_name(path: Sequence[Any], root: str) -> str:
    """The name of a leaf; if its path has no name at the front, `root` is put there."""
    name = path_name(path)
    return root + name if not name or name.startswith("[") else name


def unit_of(units: Units, name: str) -> str:
    """The unit listed for a full name, for the name without indices, or for its last part."""
    table = dict(units or ())
    for key in (name, whole_name(name), last_name(name)):
        if key in table:
            return str(table[key])
    return ""


def label(name: str, units: Units) -> str:
    """`h [m]`, or `h` where no unit is known."""
    unit = unit_of(units, name)
    return f"{name} [{unit}]" if unit else name


def dotted_name(path: Sequence[Any]) -> str:
    """A path through a pytree with dots only: `arm.q.2`."""
    parts = []
    for key in path:
        name = getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))
        parts.append(str(name))
    return ".".join(parts)


def numbered(names: Sequence[str], shapes: Sequence[tuple[int, ...]], root: str) -> list[str]:
    """A name for every number of some leaves: `u[3]`."""
    out = []
    for name, shape in zip(names, shapes, strict=True):
        out += [entry_name(name or root, index) for index in np.ndindex(*shape)]
    return out
