"""User functions as closed programs: traced once, their closed-over values hoisted.

A function rebuilt inside a loss is a new Python object but the same program; `Traced` compares by
a canonical form of the jaxpr, so that everything compiled for it is found again.
"""

from __future__ import annotations

import linecache
import os
import re
import textwrap
import traceback
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.extend import core as jex

from .jax_names import inner_jaxprs
from .rewrite import awkward, rewritten

_interned: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


class Traced:
    """A jaxpr with its constants as leading arguments, wrapped in one inner `jit`."""

    def __init__(self, key: Any, jaxpr: Any):
        self.key = key
        self.jaxpr = jaxpr
        self.n_consts = len(jaxpr.constvars)
        closed = jex.ClosedJaxpr(_constvars_to_invars(jaxpr), [])
        self.call = jax.jit(jex.jaxpr_as_fun(closed))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Traced) and self.key == other.key)


def _constvars_to_invars(jaxpr: Any) -> Any:
    return jaxpr.replace(
        constvars=[],
        invars=[*jaxpr.constvars, *jaxpr.invars],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )


def trace(fn: Callable, avals: Sequence[jax.ShapeDtypeStruct]) -> tuple[Traced, list[Any]]:
    """`fn(*leaves) -> list of leaves` as a program, and the values it closed over."""
    closed = jax.make_jaxpr(fn)(*avals)
    if awkward(closed.jaxpr):
        old = closed
        closed = jax.make_jaxpr(lambda *a: rewritten(old.jaxpr, old.consts, a))(*avals)
    return intern(closed.jaxpr), list(closed.consts)


def intern(jaxpr: Any) -> Traced:
    """The one `Traced` for all jaxprs that read alike."""
    key = canonical(jaxpr)
    found = _interned.get(key)
    if found is None:
        found = Traced(key, jaxpr)
        _interned[key] = found
    return found


class _Key:
    """A hash computed once."""

    __slots__ = ("__weakref__", "hash", "value")

    def __init__(self, value: tuple):
        self.value = value
        self.hash = hash(value)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.hash == other.hash and self.value == other.value


def canonical(jaxpr: Any) -> _Key:
    """A hashable form of a jaxpr that does not depend on the identity of its variables."""
    number: dict[Any, int] = {}

    def name(var: Any) -> Any:
        if isinstance(var, jex.Literal):
            value = np.asarray(var.val)
            return ("literal", str(var.aval), value.tobytes())
        if var not in number:
            number[var] = len(number)
        return number[var]

    head = tuple((name(v), str(v.aval)) for v in [*jaxpr.constvars, *jaxpr.invars])
    body = []
    for eqn in jaxpr.eqns:
        inputs = tuple(name(v) for v in eqn.invars)
        params = tuple((k, _param(v)) for k, v in sorted(eqn.params.items()))
        outputs = tuple((name(v), str(v.aval)) for v in eqn.outvars)
        body.append((eqn.primitive.name, inputs, params, outputs))
    tail = tuple(name(v) for v in jaxpr.outvars)
    return _Key((len(jaxpr.constvars), head, tuple(body), tail))


def _param(value: Any) -> Any:
    if isinstance(value, jex.ClosedJaxpr):
        return ("closed", canonical(value.jaxpr), tuple(id(c) for c in value.consts))
    if isinstance(value, jex.Jaxpr):
        return ("jaxpr", canonical(value))
    if isinstance(value, tuple | list):
        return tuple(_param(v) for v in value)
    try:
        hash(value)
    except TypeError:
        return ("id", id(value))
    return value


def operations(jaxpr: Any) -> int:
    """How many operations a program contains, those of inner programs included."""
    return sum(1 + sum(map(operations, inner_jaxprs(eqn.params))) for eqn in jaxpr.eqns)


def is_tracer(value: Any) -> bool:
    return isinstance(value, core.Tracer)


# -- functions that cannot be traced ------------------------------------------------------------
LONG = 90  # characters of a line that are shown
NOTE = "In the model: "
LIBRARIES = {"saltus", "jax", "jaxlib", "equinox", "numpy", "scipy"}
# Errors of functions that need a value where there is a placeholder: what happened, what to write.
UNKNOWN: dict[type[Exception], tuple[str, str]] = {
    jax.errors.TracerBoolConversionError: (
        "a Python condition (if, while, and, or, not, min, max, bool)",
        "saltus.when(condition, a, b) where the model switches there, an event where something "
        "happens, or jnp.where(condition, a, b) where a and b join smoothly; &, | and ~ for and, "
        "or and not; jnp.minimum and jnp.maximum for min and max",
    ),
    jax.errors.TracerArrayConversionError: (
        "a NumPy function, or another that is not made with JAX,",
        "{jnp} (import jax.numpy as jnp), and so with other functions",
    ),
    jax.errors.TracerIntegerConversionError: (
        "an index of a list, a range or a size",
        "jnp.asarray(values)[k] instead of values[k]; a range or a size must not depend on states "
        "or parameters",
    ),
    jax.errors.NonConcreteBooleanIndexError: (
        "a condition as an index",
        "jnp.where(condition, array, 0.0) instead of array[condition]",
    ),
    jax.errors.ConcretizationTypeError: (
        "a function that needs a plain number (one of math, float, int, a size)",
        "{jnp}, leave float(...) out, write jnp.floor(...) instead of int(...); a size must not "
        "depend on states or parameters",
    ),
}
UNTRACEABLE = tuple(UNKNOWN)


def untraceable(owner: str, error: Exception) -> TypeError:
    """An error of tracing in words about the model function in which it arose."""
    what, write = next(words for kind, words in UNKNOWN.items() if isinstance(error, kind))
    place, line = _place(error)
    used = [f for f in re.findall(r"\b(?:np|numpy|math)\.(\w+)", line) if hasattr(jnp, f)]
    module = "math" if isinstance(error, jax.errors.ConcretizationTypeError) else "np"
    names = dict.fromkeys(used or ["sin"])
    instead = " and ".join(f"jnp.{name} instead of {module}.{name}" for name in names)
    write = write.format(jnp=instead)
    where = f" in {place} ({line})" if line else f" in {place}" if place else ""
    return TypeError(
        f"{owner}: {what} got a state or a parameter{where}. Their values are not known while the "
        f"model is translated, which is done once, before there are numbers. Write {write}."
    )


def noted(owner: str, error: Exception) -> None:
    """Add to an error in which model function, and where, it arose."""
    here = traceback.walk_tb(error.__traceback__)
    ours = [_library(frame) == "saltus" for frame, _ in here][-1:] == [True]
    if ours or any(note.startswith(NOTE) for note in getattr(error, "__notes__", ())):
        return  # it says so itself
    place, _ = _place(error)
    error.add_note(f"{NOTE}{owner}{place and f', at {place}'}.")


def _place(error: Exception) -> tuple[str, str]:
    """Where in the user's files an error arose, `model.py:12`, and what is written there."""
    own = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _library(frame) not in LIBRARIES
    ]
    if not own:
        return "", ""
    file, line = own[-1]
    written = textwrap.shorten(linecache.getline(file, line), LONG, placeholder=" ...")
    return f"{os.path.basename(file)}:{line}", written


def _library(frame: Any) -> str:
    return (frame.f_globals.get("__name__") or "").partition(".")[0]
