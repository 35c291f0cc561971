"""Operations of JAX computed by NumPy, for programs that run too rarely to be compiled.

Each rule takes the parameters of an operation and its operands, and gives what XLA would up to
rounding of elementary functions. Operations without a rule are left to XLA (host_programs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .types import HostArray

Rule = Callable[..., Any]  # (parameters, *operands) -> one result, or a list; or a ufunc


def _plain(function: Callable) -> Rule:
    return lambda params, *args: function(*args)


def _quotient(params: dict, a: HostArray, b: HostArray) -> HostArray:
    if a.dtype.kind in "iu":
        safe = np.where(b == 0, b.dtype.type(1), b)
        exact = np.abs(a) // np.abs(safe) * np.sign(a) * np.sign(safe)
        return np.where(b == 0, ~np.zeros_like(exact), exact)  # all bits are set, as in XLA
    return np.divide(a, b)


def _power(params: dict, a: HostArray, b: HostArray) -> HostArray:
    return np.power(a, np.asarray(b, np.result_type(a)))


def _rounded(params: dict, a: HostArray) -> HostArray:
    if int(params["rounding_method"]) == 1:  # to even
        return np.round(a)
    return np.trunc(a + np.copysign(0.5, a))


def _selected(params: dict, which: HostArray, *cases: HostArray) -> HostArray:
    if len(cases) == 2:
        return np.where(which if which.dtype.kind == "b" else which != 0, cases[1], cases[0])
    return np.choose(which, cases)


def _converted(params: dict, a: HostArray) -> HostArray:
    dtype = params["new_dtype"]
    if dtype.kind in "iu" and a.dtype.kind in "fc":
        limits = np.iinfo(dtype)  # XLA saturates, and makes 0 of NaN
        a = np.clip(
            np.nan_to_num(a, nan=0.0, posinf=np.inf, neginf=-np.inf), limits.min, limits.max
        )
        top = a >= float(limits.max)
        return np.where(top, limits.max, np.where(top, 0, a).astype(dtype)).astype(dtype)
    if a.dtype.kind == "c" and dtype.kind != "c":
        a = np.real(a)
    return a.astype(dtype)


def _spread(params: dict, a: HostArray) -> HostArray:
    shape, places = params["shape"], params["broadcast_dimensions"]
    middle = [1] * len(shape)
    for size, place in zip(np.shape(a), places, strict=True):
        middle[place] = size
    return np.broadcast_to(np.reshape(a, middle), shape)


def _counted(params: dict) -> HostArray:
    shape, axis = params["shape"], params["dimension"]
    line = np.arange(shape[axis], dtype=params["dtype"])
    return np.broadcast_to(line.reshape([-1 if k == axis else 1 for k in range(len(shape))]), shape)


def _sliced(params: dict, a: HostArray) -> HostArray:
    strides = params["strides"] or (1,) * np.ndim(a)
    bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return a[tuple(slice(*b) for b in bounds)]


def _window(shape: Sequence[int], sizes: Sequence[int], starts: Sequence[Any]) -> tuple[slice, ...]:
    """A block that starts there, or as near to it as it fits."""
    clipped = [
        int(np.clip(s, 0, n - size)) for s, n, size in zip(starts, shape, sizes, strict=True)
    ]
    return tuple(slice(s, s + size) for s, size in zip(clipped, sizes, strict=True))


def _sliced_at(params: dict, a: HostArray, *starts: HostArray) -> HostArray:
    return a[_window(a.shape, params["slice_sizes"], starts)]


def _updated_at(params: dict, a: HostArray, new: HostArray, *starts: HostArray) -> HostArray:
    out = np.array(a)
    out[_window(out.shape, np.shape(new), starts)] = new
    return out


def _padded(params: dict, a: HostArray, value: HostArray) -> HostArray:
    """Edges that may be negative, and gaps between entries."""
    config = params["padding_config"]
    sizes = [
        low + high + n + max(n - 1, 0) * gap
        for (low, high, gap), n in zip(config, a.shape, strict=True)
    ]
    out = np.full(sizes, value, a.dtype)
    taken, there = [], []
    for (low, _, gap), n, size in zip(config, a.shape, sizes, strict=True):
        place = low + (gap + 1) * np.arange(n)
        inside = (place >= 0) & (place < size)
        taken.append(np.flatnonzero(inside))
        there.append(place[inside])
    out[np.ix_(*there)] = a[np.ix_(*taken)]
    return out


def _before(strict: bool) -> Rule:
    """The order by which JAX sorts: NaN comes last."""

    def rule(params: dict, a: HostArray, b: HostArray) -> HostArray:
        known = ~np.isnan(a)
        if strict:
            return (a < b) | (known & np.isnan(b))
        return (a <= b) | np.isnan(b)

    return rule


def _sorted(params: dict, *args: HostArray) -> list[HostArray]:
    if params["num_keys"] != 1:
        return NotImplemented
    order = np.argsort(args[0], axis=params["dimension"], kind="stable")
    return [np.take_along_axis(v, order, axis=params["dimension"]) for v in args]


def _reduced(ufunc: np.ufunc) -> Rule:
    def rule(params: dict, a: HostArray) -> HostArray:
        axes = tuple(params["axes"])
        if not np.size(a) and ufunc in (np.maximum, np.minimum):
            return NotImplemented
        if a.dtype.kind == "b":
            return ufunc.reduce(a, axis=axes)
        return ufunc.reduce(a, axis=axes, dtype=a.dtype)

    return rule


def _place(pick: Callable) -> Rule:
    def rule(params: dict, a: HostArray) -> HostArray:
        (axis,) = params["axes"]
        return pick(a, axis=axis).astype(params["index_dtype"])

    return rule


def _running(ufunc: np.ufunc) -> Rule:
    def rule(params: dict, a: HostArray) -> HostArray:
        axis = params["axis"]
        if params["reverse"]:
            return np.flip(ufunc.accumulate(np.flip(a, axis), axis=axis, dtype=a.dtype), axis)
        return ufunc.accumulate(a, axis=axis, dtype=a.dtype)

    return rule


def _product(params: dict, a: HostArray, b: HostArray) -> HostArray:
    (over_a, over_b), (batch_a, batch_b) = params["dimension_numbers"]
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    of_a = [next(letters) for _ in np.shape(a)]
    of_b = [next(letters) for _ in np.shape(b)]
    for i, j in zip((*over_a, *batch_a), (*over_b, *batch_b), strict=True):
        of_b[j] = of_a[i]
    batch = [of_a[i] for i in batch_a]
    rest = [c for k, c in enumerate(of_a) if k not in (*over_a, *batch_a)]
    rest += [c for k, c in enumerate(of_b) if k not in (*over_b, *batch_b)]
    return np.einsum(f"{''.join(of_a)},{''.join(of_b)}->{''.join([*batch, *rest])}", a, b)


class Blocks(NamedTuple):
    """Blocks of an array: which of its axes they have, and where they start."""

    offsets: tuple[int, ...]  # axes of the result along which blocks extend
    collapsed: tuple[int, ...]  # axes of the array along which blocks are one wide, and left out
    started: tuple[int, ...]  # axes of the array that the starts are for
    batched: tuple[int, ...]  # axes of the array that are gone through together with ...
    lanes: tuple[int, ...]  # ... these axes of the starts

    def places(
        self, shape: Sequence[int], sizes: Sequence[int], indices: HostArray
    ) -> tuple[tuple[HostArray, ...], HostArray, list[int]]:
        """For each entry of all blocks its place in the array, whether the block is inside of it,
        and the shape of all blocks together."""
        starts = np.asarray(indices).astype(np.int64)
        rank = starts.ndim - 1 + len(self.offsets)
        lane_axes = [k for k in range(rank) if k not in self.offsets]
        kept = [k for k in range(len(shape)) if k not in (*self.collapsed, *self.batched)]

        def along(values: HostArray, axes: Sequence[int]) -> HostArray:
            middle = [1] * rank
            for axis, size in zip(axes, values.shape, strict=True):
                middle[axis] = size
            return values.reshape(middle)

        inside, place = np.ones([1] * rank, bool), []
        for axis, size in enumerate(shape):
            where = np.zeros([1] * rank, np.int64)
            if axis in self.started:
                own, last = starts[..., self.started.index(axis)], size - sizes[axis]
                inside = inside & along((own >= 0) & (own <= last), lane_axes)
                where = where + along(np.clip(own, 0, last), lane_axes)
            if axis in self.batched:
                lane = self.lanes[self.batched.index(axis)]
                where = where + along(np.arange(size), [lane_axes[lane]])
            if axis in kept:
                where = where + along(np.arange(sizes[axis]), [self.offsets[kept.index(axis)]])
            place.append(where)
        out = [0] * rank
        for axis, size in zip(lane_axes, starts.shape[:-1], strict=True):
            out[axis] = size
        for axis, k in zip(self.offsets, kept, strict=True):
            out[axis] = sizes[k]
        return tuple(place), inside, out


def _gathered(params: dict, a: HostArray, indices: HostArray) -> HostArray:
    d = params["dimension_numbers"]
    blocks = Blocks(
        d.offset_dims, d.collapsed_slice_dims, d.start_index_map, d.operand_batching_dims,
        d.start_indices_batching_dims,
    )  # fmt: skip
    place, inside, shape = blocks.places(a.shape, params["slice_sizes"], indices)
    found = np.broadcast_to(a[place] if place else a, shape)
    return found if _clips(params) else np.where(inside, found, _fill(params, a.dtype))


def _scattered(ufunc: np.ufunc | None) -> Rule:
    """Entries of blocks combined with those of an array; written over them without a function."""

    def rule(params: dict, a: HostArray, indices: HostArray, updates: HostArray) -> HostArray:
        d = params["dimension_numbers"]
        blocks = Blocks(
            d.update_window_dims, d.inserted_window_dims, d.scatter_dims_to_operand_dims,
            d.operand_batching_dims, d.scatter_indices_batching_dims,
        )  # fmt: skip
        sizes = [1] * a.ndim
        kept = [k for k in range(a.ndim) if k not in (*blocks.collapsed, *blocks.batched)]
        for axis, k in zip(blocks.offsets, kept, strict=True):
            sizes[k] = updates.shape[axis]
        place, inside, shape = blocks.places(a.shape, sizes, indices)
        if not place:
            return NotImplemented
        there = np.broadcast_to(inside | _clips(params), shape)
        place = tuple(np.broadcast_to(v, shape)[there] for v in place)
        out = np.array(a)
        if ufunc is None:
            out[place] = updates[there]
        else:
            ufunc.at(out, place, updates[there])
        return out

    return rule


def _clips(params: dict) -> bool:
    return "FILL" not in str(params["mode"]).upper()


def _fill(params: dict, dtype: np.dtype) -> Any:
    if params.get("fill_value") is not None:
        return params["fill_value"]
    if np.issubdtype(dtype, np.inexact):
        return np.nan
    if dtype.kind == "b":
        return True
    limits = np.iinfo(dtype)
    return limits.min if np.issubdtype(dtype, np.signedinteger) else limits.max


def _split(params: dict, a: HostArray) -> list[HostArray]:
    return np.split(a, np.cumsum(params["sizes"])[:-1], axis=params["axis"])


def _singular_values(params: dict, a: HostArray) -> Any:
    if params["compute_uv"]:
        return NotImplemented
    known = np.all(np.isfinite(a), axis=(-2, -1), keepdims=True)
    found = np.linalg.svd(np.where(known, a, 0.0), compute_uv=False)
    return [np.where(known[..., 0], found, np.nan).astype(a.dtype)]


def _shifted_right(params: dict, a: HostArray, b: HostArray) -> HostArray:
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    return np.right_shift(np.asarray(a).view(unsigned), np.asarray(b).view(unsigned)).view(a.dtype)


RULES: dict[str, Rule] = {
    **{
        name: ufunc if isinstance(ufunc, np.ufunc) else _plain(ufunc)
        for name, ufunc in {
            "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative,
            "sign": np.sign, "abs": np.abs, "max": np.maximum, "min": np.minimum,
            "sqrt": np.sqrt, "exp": np.exp, "expm1": np.expm1, "exp2": np.exp2, "log": np.log,
            "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
            "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh,
            "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh,
            "atanh": np.arctanh, "floor": np.floor, "ceil": np.ceil, "rem": np.fmod,
            "square": np.square, "cbrt": np.cbrt, "eq": np.equal, "ne": np.not_equal,
            "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
            "is_finite": np.isfinite, "nextafter": np.nextafter, "add_any": np.add,
            "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
            "not": np.invert, "real": np.real, "imag": np.imag,
        }.items()
    },
    "div": _quotient,
    "pow": _power,
    "integer_pow": lambda params, a: np.power(a, np.asarray(params["y"], np.result_type(a)))
    if params["y"] >= 0
    else 1 / np.power(a, -params["y"]),
    "rsqrt": lambda params, a: 1 / np.sqrt(a),
    "logistic": lambda params, a: 1 / (1 + np.exp(-a)),
    "round": _rounded,
    "clamp": lambda params, low, a, high: np.minimum(np.maximum(a, low), high),
    "select_n": _selected,
    "convert_element_type": _converted,
    "broadcast_in_dim": _spread,
    "iota": _counted,
    "reshape": lambda params, a: np.reshape(a, params["new_sizes"]),
    "squeeze": lambda params, a: np.squeeze(a, tuple(params["dimensions"])),
    "expand_dims": lambda params, a: np.expand_dims(a, tuple(params["dimensions"])),
    "transpose": lambda params, a: np.transpose(a, params["permutation"]),
    "rev": lambda params, a: np.flip(a, tuple(params["dimensions"])),
    "concatenate": lambda params, *args: np.concatenate(args, axis=params["dimension"]),
    "slice": _sliced,
    "dynamic_slice": _sliced_at,
    "dynamic_update_slice": _updated_at,
    "pad": _padded,
    "gather": _gathered,
    "scatter": _scattered(None),
    "scatter-add": _scattered(np.add),
    "scatter-mul": _scattered(np.multiply),
    "scatter-max": _scattered(np.maximum),
    "scatter-min": _scattered(np.minimum),
    "split": _split,
    "stack": lambda params, *args: np.stack(args, axis=params["axis"]),
    "unstack": lambda params, a: list(np.moveaxis(a, params["axis"], 0)),
    "tile": lambda params, a: np.tile(a, params["reps"]),
    "reduce_sum": _reduced(np.add),
    "reduce_prod": _reduced(np.multiply),
    "reduce_max": _reduced(np.maximum),
    "reduce_min": _reduced(np.minimum),
    "reduce_and": _reduced(np.logical_and),
    "reduce_or": _reduced(np.logical_or),
    "argmax": _place(np.argmax),
    "argmin": _place(np.argmin),
    "cumsum": _running(np.add),
    "cumprod": _running(np.multiply),
    "cummax": _running(np.maximum),
    "cummin": _running(np.minimum),
    "dot_general": _product,
    "stop_gradient": lambda params, a: a,
    "copy": lambda params, a: a,
    "copy_p": lambda params, a: a,
    "optimization_barrier": lambda params, *args: list(args),
    "svd": _singular_values,
    "lt_to": _before(strict=True),
    "le_to": _before(strict=False),
    "sort": _sorted,
    "shift_left": _plain(np.left_shift),
    "shift_right_logical": _shifted_right,
}  # fmt: skip
