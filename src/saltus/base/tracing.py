"""User functions as programs: traced once, with the values they close over as arguments.

A function that is defined again on each call of a loss is a new Python object but the same program.
`Traced` objects are compared by a canonical form of the jaxpr, so that what was compiled for one is
used for the other.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import core
from jax.extend import core as jex

from .jax_names import aval_of, inner_jaxprs
from .rewrite import awkward, rewritten
from .types import Atom, Jaxpr

_interned: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


class Traced:
    """A jaxpr with its constants as leading arguments, wrapped in one inner `jit`."""

    def __init__(self, key: _Key, jaxpr: Jaxpr):
        self.key = key
        self.jaxpr = jaxpr
        self.n_consts = len(jaxpr.constvars)
        self.inputs = tuple(map(aval_of, [*jaxpr.constvars, *jaxpr.invars]))
        self.outputs = tuple(map(aval_of, jaxpr.outvars))
        closed = jex.ClosedJaxpr(_constvars_to_invars(jaxpr), [])
        self.call = jax.jit(jex.jaxpr_as_fun(closed))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Traced) and self.key == other.key)


def _constvars_to_invars(jaxpr: Jaxpr) -> Jaxpr:
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


def intern(jaxpr: Jaxpr) -> Traced:
    """The `Traced` shared by all jaxprs with the same canonical form."""
    key = canonical(jaxpr)
    found = _interned.get(key)
    if found is None:
        found = Traced(key, jaxpr)
        _interned[key] = found
    return found


class _Key:
    """A value whose hash is computed once."""

    __slots__ = ("__weakref__", "hash", "value")

    def __init__(self, value: tuple):
        self.value = value
        self.hash = hash(value)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.hash == other.hash and self.value == other.value


def canonical(jaxpr: Jaxpr) -> _Key:
    """A hashable form of a jaxpr that does not depend on the identity of its variables."""
    number: dict[Any, int] = {}

    def name(var: Atom) -> int | tuple[str, str, bytes]:
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


def _param(value: object) -> object:
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


def operations(jaxpr: Jaxpr) -> int:
    """How many operations a program contains, those of inner programs included."""
    return sum(1 + sum(map(operations, inner_jaxprs(eqn.params))) for eqn in jaxpr.eqns)


def is_tracer(value: object) -> bool:
    return isinstance(value, core.Tracer)


def is_traced(tree: object) -> bool:
    return any(is_tracer(v) for v in jax.tree.leaves(tree))
