"""Operations that only move entries, carried out on NumPy arrays, and results on known values.

Applied to the numbers of the entries, such an operation shows where each entry of its result comes
from; applied to values, it gives the result. NumPy is used because compiling each operation would
take longer than everything else together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.jax_names import aval_of, bind_again
from ..base.types import Equation, HostArray, T

MAX_KNOWN = 1_000_000  # most entries of a value that is computed


def move(
    eqn: Equation, data: Sequence[np.ndarray], index: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The results of an operation of `MOVES` on the arrays it moves, given its index operands."""
    out = MOVES[eqn.primitive.name](eqn, data, index)
    return out if isinstance(out, list) else [out]


def split_operands(name: str, operands: Sequence[T]) -> tuple[list[T], list[T]]:
    """The operands that are moved, and those that are indices."""
    if name == "select_n":
        return list(operands[1:]), list(operands[:1])
    count = _MOVED.get(name, len(operands))
    return list(operands[:count]), list(operands[count:])


_MOVED = {"dynamic_slice": 1, "dynamic_update_slice": 2, "gather": 1}


def _slice(eqn: Equation, data: Sequence[HostArray], index: Sequence[HostArray]) -> HostArray:
    p = eqn.params
    strides = p["strides"] or (1,) * len(p["start_indices"])
    cuts = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
    return data[0][tuple(slice(*cut) for cut in cuts)]


def _broadcast(eqn: Equation, data: Sequence[HostArray], index: Sequence[HostArray]) -> HostArray:
    shape, dims = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    full = [1] * len(shape)
    for k, d in enumerate(dims):
        full[d] = data[0].shape[k]
    return np.broadcast_to(data[0].reshape(full), shape)


def _pad(eqn: Equation, data: Sequence[HostArray], index: Sequence[HostArray]) -> HostArray:
    array, filler = data
    for axis, (low, high, between) in enumerate(eqn.params["padding_config"]):
        array = np.moveaxis(array, axis, 0)
        n = array.shape[0]
        wide = np.full((max(n + between * (n - 1), 0), *array.shape[1:]), filler, array.dtype)
        wide[:: between + 1] = array
        wide = wide[max(-low, 0) : len(wide) - max(-high, 0)]
        ends = [np.full((max(k, 0), *array.shape[1:]), filler, array.dtype) for k in (low, high)]
        array = np.moveaxis(np.concatenate([ends[0], wide, ends[1]]), 0, axis)
    return array


def _window(
    array: np.ndarray, part: Sequence[int], index: Sequence[HostArray]
) -> tuple[slice, ...]:
    first = [min(max(int(i), 0), n - m) for i, n, m in zip(index, array.shape, part, strict=True)]
    return tuple(slice(i, i + m) for i, m in zip(first, part, strict=True))


def _dynamic_slice(
    eqn: Equation, data: Sequence[HostArray], index: Sequence[HostArray]
) -> HostArray:
    return data[0][_window(data[0], eqn.params["slice_sizes"], index)]


def _dynamic_update_slice(
    eqn: Equation, data: Sequence[HostArray], index: Sequence[HostArray]
) -> HostArray:
    array = np.array(data[0])
    array[_window(array, data[1].shape, index)] = data[1]
    return array


def _select(eqn: Equation, data: Sequence[HostArray], index: Sequence[HostArray]) -> HostArray:
    data = np.broadcast_arrays(*data)
    which = np.broadcast_to(index[0].astype(np.int64), data[0].shape)
    return np.choose(which, data) if len(data) < 32 else np.stack(data)[which]


def _gather(eqn: Equation, data: Sequence[HostArray], index: Sequence[HostArray]) -> HostArray:
    """A gather of entry numbers; -1 where it reads outside of the array."""
    d, p = eqn.params["dimension_numbers"], eqn.params
    batching = d.operand_batching_dims, d.start_indices_batching_dims
    dims = d.offset_dims, (*d.collapsed_slice_dims, *batching[0]), d.start_index_map, batching
    places = _places(data[0].shape, index[0], dims, p["slice_sizes"], p["mode"])
    return np.where(places < 0, -1, data[0].reshape(-1)[places])


def scatter_places(eqn: Equation, indices: np.ndarray) -> np.ndarray:
    """The place in the flat operand of each entry of a scatter's updates; -1 if it is dropped."""
    d, (target, _, update) = eqn.params["dimension_numbers"], [aval_of(v) for v in eqn.invars]
    batching = d.operand_batching_dims, d.scatter_indices_batching_dims
    dropped = (*d.inserted_window_dims, *batching[0])
    dims = d.update_window_dims, dropped, d.scatter_dims_to_operand_dims, batching
    window = iter(update.shape[k] for k in d.update_window_dims)
    sizes = [1 if k in dropped else next(window) for k in range(target.ndim)]
    return _places(target.shape, indices, dims, sizes, eqn.params["mode"])


def _places(
    shape: tuple[int, ...],
    indices: np.ndarray,
    dims: tuple[Any, Any, Any, Any],
    sizes: Sequence[int],
    mode: object,
) -> np.ndarray:
    """The flat place that each entry of a gather reads: starts of windows plus places in them."""
    window_dims, dropped, index_map, (batched, with_batch) = dims
    indices = indices.astype(np.int64)
    lanes, rank = indices.shape[:-1], len(shape)
    starts = np.zeros((*lanes, rank), np.int64)
    starts[..., list(index_map)] = indices
    for d, axis in zip(batched, with_batch, strict=True):
        starts[..., d] = np.arange(lanes[axis]).reshape(
            [-1 if k == axis else 1 for k in range(len(lanes))]
        )
    room = np.subtract(shape, sizes)
    inside = np.all((starts >= 0) & (starts <= room), -1)
    if "FILL" not in str(mode):
        starts, inside = np.clip(starts, 0, room), np.ones(lanes, bool)
    flat = np.zeros((*lanes, *[1] * rank), np.int64)
    for d in range(rank):
        along = np.arange(sizes[d]).reshape([-1 if k == d else 1 for k in range(rank)])
        stride = int(np.prod(shape[d + 1 :], dtype=np.int64))
        flat = flat + (starts[..., d].reshape([*lanes, *[1] * rank]) + along) * stride
    flat = np.where(inside.reshape([*lanes, *[1] * rank]), flat, -1)
    flat = flat.reshape([*lanes, *[n for d, n in enumerate(sizes) if d not in dropped]])
    return np.moveaxis(flat, range(len(lanes), flat.ndim), window_dims)


MOVES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "slice": _slice,
    "broadcast_in_dim": _broadcast,
    "reshape": lambda eqn, data, index: data[0].reshape(aval_of(eqn.outvars[0]).shape),
    "squeeze": lambda eqn, data, index: data[0].reshape(aval_of(eqn.outvars[0]).shape),
    "expand_dims": lambda eqn, data, index: data[0].reshape(aval_of(eqn.outvars[0]).shape),
    "transpose": lambda eqn, data, index: data[0].transpose(eqn.params["permutation"]),
    "rev": lambda eqn, data, index: np.flip(data[0], eqn.params["dimensions"]),
    "concatenate": lambda eqn, data, index: np.concatenate(data, eqn.params["dimension"]),
    "stack": lambda eqn, data, index: np.stack(data, eqn.params["axis"]),
    "tile": lambda eqn, data, index: np.tile(data[0], eqn.params["reps"]),
    "split": lambda eqn, data, index: np.split(
        data[0], np.cumsum(eqn.params["sizes"])[:-1], eqn.params["axis"]
    ),
    "pad": _pad,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "select_n": _select,
    "gather": _gather,
    "optimization_barrier": lambda eqn, data, index: list(data),
    "copy": lambda eqn, data, index: data[0],
    "copy_p": lambda eqn, data, index: data[0],
}

_UFUNCS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "add_any": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "abs": np.abs,
    "max": np.maximum,
    "min": np.minimum,
    "rem": np.fmod,
    "square": np.square,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


def numbers(eqn: Equation, values: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """The results of an operation on known values; None where they are not computed."""
    unknown: list[np.ndarray | None] = [None] * len(eqn.outvars)
    given = [v for v in values if v is not None]
    if len(given) < len(values) or any(aval_of(v).size > MAX_KNOWN for v in eqn.outvars):
        return unknown
    name, out = eqn.primitive.name, aval_of(eqn.outvars[0])
    if name == "iota":
        shape, axis = eqn.params["shape"], eqn.params["dimension"]
        line = np.arange(shape[axis]).reshape([-1 if k == axis else 1 for k in range(len(shape))])
        return [np.broadcast_to(line, shape).astype(out.dtype)]
    if name in MOVES:
        moved = move(eqn, *split_operands(name, given))
        return unknown if name == "gather" and "FILL" in str(eqn.params["mode"]) else list(moved)
    if name in _UFUNCS:
        with np.errstate(all="ignore"):
            return [np.asarray(_UFUNCS[name](*given), out.dtype)]
    if name == "convert_element_type":
        return [given[0].astype(out.dtype)]
    whole = all(aval_of(v).dtype.kind in "iub" for v in eqn.outvars)
    if whole and not eqn.effects and not _has_programs(eqn):
        with jax.ensure_compile_time_eval():
            results = bind_again(eqn, map(jnp.asarray, given))
        return [np.asarray(r) for r in (results if eqn.primitive.multiple_results else [results])]
    return unknown


def _has_programs(eqn: Equation) -> bool:
    return any("jaxpr" in key or key in ("branches", "programs", "program") for key in eqn.params)
