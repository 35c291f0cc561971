"""The names of types in signatures, from a traced number to a pytree of parameters.

What is computed inside a model is a `jax.Array`, traced or not. The names below say which shape and
meaning it has; to a type checker they are all the same. Users may also pass numbers, NumPy arrays,
and pytrees of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend import core as jex
from jax.interpreters.ad import Zero
from jax.typing import ArrayLike

# Values inside the library.
Array: TypeAlias = jax.Array  # of any shape
Scalar: TypeAlias = jax.Array  # a real number, shape ()
Flag: TypeAlias = jax.Array  # a truth value, shape ()
Whole: TypeAlias = jax.Array  # an integer, shape ()
Vector: TypeAlias = jax.Array  # shape (n,)
Matrix: TypeAlias = jax.Array  # shape (m, n)
HostArray: TypeAlias = np.ndarray  # computed and kept by NumPy

# Values as people write them.
Number: TypeAlias = ArrayLike  # a number or array of Python, NumPy or JAX
Numbers: TypeAlias = ArrayLike | Sequence[Any]  # one or several of them
Tree: TypeAlias = Any  # numbers in dictionaries, tuples, dataclasses, to any depth
Params: TypeAlias = Any  # the tree of a model's parameters `p`
Units: TypeAlias = Mapping[str, str] | Sequence[tuple[str, str]] | None  # `{"h": "m"}`
T = TypeVar("T")  # what a function is passed, and returns

# Functions, and programs of JAX.
Function: TypeAlias = Callable[..., Any]  # a user's; what it is for determines its arguments
Leaves: TypeAlias = tuple[Any, ...]  # of a tree, in the order of `jax.tree.leaves`
Shapes: TypeAlias = tuple[jax.ShapeDtypeStruct, ...]  # of leaves
Aval: TypeAlias = ShapedArray  # shape and dtype of a value
Jaxpr: TypeAlias = jex.Jaxpr
ClosedJaxpr: TypeAlias = jex.ClosedJaxpr
Equation: TypeAlias = jex.JaxprEqn  # one operation of a program
Atom: TypeAlias = jex.Var | jex.Literal  # what an operation reads
Tangent: TypeAlias = jax.Array | Zero  # in rules for derivatives: a symbolic zero is no array


class Treedef(Protocol):
    """The structure of a pytree: JAX's `PyTreeDef`, of which it exports no type."""

    @property
    def num_leaves(self) -> int: ...
