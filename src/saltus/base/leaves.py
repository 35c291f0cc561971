"""Conversion of pytrees to tuples of leaves and back, and a few operations on these tuples.

A leaf is of one of four kinds: `f` float (differentiated), `i` integer or bool (recorded), `k`
random key (recorded as its integer data), `s` anything else (static).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.interpreters import ad

from .jax_names import under_jit
from .names import dotted_name, expression
from .types import Array, Flag, Leaves, Number, Scalar, Shapes, T, Tree, Treedef

P = ParamSpec("P")
R = TypeVar("R")


def float_shapes(shapes: Sequence[tuple[int, ...]]) -> Shapes:
    return tuple(jax.ShapeDtypeStruct(shape, np.float64) for shape in shapes)


def blank(shapes: Shapes) -> Leaves:
    return tuple(jnp.zeros(v.shape, v.dtype) for v in shapes)


class _Same:
    """A static leaf compared by equality where it can be, else by identity."""

    def __init__(self, value: object):
        self.value = value
        try:
            self._hash = hash(value)
            self._by_id = False
        except TypeError:
            self._hash = id(value)
            self._by_id = True

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same):
            return NotImplemented
        if self.value is other.value:
            return True
        return not (self._by_id or other._by_id) and bool(self.value == other.value)


def _kind(leaf: object) -> str:
    if isinstance(leaf, bool | int | np.bool_ | np.integer):
        return "i"
    if isinstance(leaf, float | np.floating):
        return "f"
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or not hasattr(leaf, "shape"):
        return "s"
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return "k"
    if jnp.issubdtype(dtype, jnp.floating):
        return "f"
    if jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_):
        return "i"
    return "s"


class Shape:
    """The static side of a pytree: its structure, the kinds of its leaves, its static leaves."""

    def __init__(self, treedef: Treedef, kinds: tuple[str, ...], statics: tuple, impls: tuple):
        self.treedef = treedef
        self.kinds = kinds
        self.statics = statics
        self.impls = impls
        self.key = (treedef, kinds, tuple(_Same(s) for s in statics), impls)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self.key == other.key

    def join(self, floats: Sequence[Any], others: Sequence[Any]) -> Tree:
        """The pytree with these float and recorded leaves."""
        f, i, s, m = iter(floats), iter(others), iter(self.statics), iter(self.impls)
        leaves = []
        for kind in self.kinds:
            if kind == "f":
                leaves.append(next(f))
            elif kind == "i":
                leaves.append(next(i))
            elif kind == "k":
                leaves.append(jax.random.wrap_key_data(next(i), impl=next(m)))
            else:
                leaves.append(next(s))
        return jax.tree_util.tree_unflatten(self.treedef, leaves)

    def names(self) -> list[str]:
        """A readable name for each float leaf."""
        tree = jax.tree_util.tree_unflatten(self.treedef, list(self.kinds))
        paths = jax.tree_util.tree_flatten_with_path(tree)[0]
        return [dotted_name(path) for path, kind in paths if kind == "f"]


def split(tree: Tree, floats_only: bool = False) -> tuple[Shape, Leaves, Leaves]:
    """A pytree as (shape, float leaves, recorded leaves); `floats_only` makes integers floats."""
    flat, treedef = jax.tree_util.tree_flatten(tree)
    kinds, floats, others, statics, impls = [], [], [], [], []
    for leaf in flat:
        kind = _kind(leaf)
        if kind == "i" and floats_only:
            leaf, kind = array_of(leaf, np.float64), "f"
        kinds.append(kind)
        if kind == "f":
            floats.append(as_array(leaf))
        elif kind == "i":
            others.append(as_array(leaf))
        elif kind == "k":
            others.append(jax.random.key_data(leaf))
            impls.append(str(jax.random.key_impl(leaf)))
        else:
            statics.append(leaf)
    shape = Shape(treedef, tuple(kinds), tuple(statics), tuple(impls))
    return shape, tuple(floats), tuple(others)


def array_of(value: object, dtype: Any = None) -> Array:
    """`jnp.asarray(value, dtype)`; for a number that is known, without compiling a conversion."""
    if under_jit() or not isinstance(value, bool | int | float | np.ndarray | np.generic):
        return jnp.asarray(value, dtype=dtype)
    return jax.device_put(np.asarray(value, dtype))


def dense(tangent: Any) -> Any:
    """A tangent as an array, also where it is known to be zero; without compiling that."""
    if isinstance(tangent, ad.Zero) and not under_jit():
        aval = tangent.aval
        if isinstance(aval, core.ShapedArray) and jnp.issubdtype(aval.dtype, jnp.floating):
            return jax.device_put(np.zeros(aval.shape, aval.dtype))
    return ad.instantiate_zeros(tangent)


def unraveller(tree: Tree) -> Callable[[Array], Tree]:
    """From a vector to a pytree like this one: the inverse of `ravel_pytree`."""
    leaves, treedef = jax.tree.flatten(jax.eval_shape(lambda: tree))
    ends = np.cumsum([0, *(v.size for v in leaves)])

    def back(flat: Array) -> Tree:
        parts = zip(leaves, ends[:-1], ends[1:], strict=True)
        return treedef.unflatten(flat[a:b].reshape(v.shape).astype(v.dtype) for v, a, b in parts)

    return back


def as_array(leaf: Number) -> Array:
    """An array of the leaf's own dtype; Python floats become float64, integers int64.

    Its type is never weak: `jax.grad` with a Python float would compile everything a second time.
    """
    if isinstance(leaf, jax.Array):
        return jax.lax.convert_element_type(leaf, leaf.dtype) if leaf.weak_type else leaf
    if isinstance(leaf, bool):
        return array_of(leaf)
    if isinstance(leaf, float):
        return array_of(leaf, np.float64)
    if isinstance(leaf, int):
        return jnp.asarray(leaf, dtype=jnp.int64)
    return jnp.asarray(leaf)


def aval(leaf: Number) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))


def combine(
    x: Leaves, h: Scalar | float, weights: Sequence[float], stages: Sequence[Leaves]
) -> Leaves:
    """`x + h * sum_i weights[i] * stages[i]`, leaf by leaf, skipping zero weights."""
    used = [(w, k) for w, k in zip(weights, stages, strict=True) if w != 0.0]
    if not used:
        return x
    out = []
    for j, leaf in enumerate(x):
        total = used[0][0] * used[0][1][j]
        for w, k in used[1:]:
            total = total + w * k[j]
        out.append((leaf + h * total).astype(leaf.dtype))
    return tuple(out)


def select(pred: Flag, a: T, b: T) -> T:
    """`a` where `pred`, else `b`, over whole trees; `pred` is a scalar."""
    return jax.tree.map(lambda u, v: jnp.where(pred, u, v), a, b)


def rms(ratios: Sequence[Any]) -> Scalar:
    """Root mean square over all entries of all leaves."""
    size = sum(int(np.prod(jnp.shape(r))) for r in ratios)
    if size == 0:
        return jnp.zeros(())
    total = sum(jnp.sum(r * r) if jnp.ndim(r) else r * r for r in ratios)
    return jnp.sqrt(total / size)


def check_precision() -> None:
    """Raise an error unless JAX computes in double precision, as set when saltus is imported."""
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise RuntimeError(
            "saltus computes in double precision, which was switched off after saltus was "
            'imported: write jax.config.update("jax_enable_x64", True), and dtype=jnp.float32 '
            "where you want single precision."
        )


def in_double_precision() -> AbstractContextManager:
    """A context in which JAX computes in double precision."""
    on = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    return contextlib.nullcontext() if on else jax.enable_x64(True)


def precise(fn: Callable[P, R]) -> Callable[P, R]:
    """`fn`, which first raises an error unless JAX computes in double precision."""

    @functools.wraps(fn)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        check_precision()
        return fn(*args, **kwargs)

    return checked


def frozen(tree: T) -> T:
    """The same values without derivatives."""
    return jax.tree.map(jax.lax.stop_gradient, tree)


def spelled(shape: Shape, root: str) -> list[str]:
    """Python expressions for the float leaves of a pytree: `x["v"]`."""
    tree = jax.tree_util.tree_unflatten(shape.treedef, list(shape.kinds))
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [expression(path, root) for path, kind in paths if kind == "f"]
