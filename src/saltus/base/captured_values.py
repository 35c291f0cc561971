"""What functions read besides their arguments: globals, cells, defaults, attributes, containers.

A model is traced once. `current(owner)` notices if a value that its functions read at that time has
changed: the objects are compared by identity, which takes a microsecond, and all of them by value
if one was replaced.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import sys
import types
import weakref
from array import array
from collections import deque
from collections.abc import Collection, Container, Mapping
from operator import is_
from typing import Any, Generic, Protocol

import jax
import numpy as np

from .bytecode import foreign, names_of
from .tracing import is_tracer

MAX_OBJECTS = 20_000  # further objects are not examined
MAX_COMPARED_BYTES = 2**16  # a JAX array, which cannot change, is compared by value up to this size
MISSING = object()
OWN_ATTRIBUTES = ("_reads", "_built")  # in which saltus stores results on an object
# Functions that use one of these may read any attribute of an object.
ATTRIBUTE_READERS = {"vars", "getattr", "__dict__", "asdict", "astuple", "fields", "eval", "exec"}
# JAX caches what it has traced of functions that are passed to these.
TRACING_FUNCTIONS = {
    "jit", "cond", "switch", "scan", "while_loop", "fori_loop", "map", "associative_scan",
    "checkpoint", "remat", "custom_jvp", "custom_vjp", "custom_root", "custom_linear_solve",
    "filter_jit", "filter_checkpoint",
}  # fmt: skip
NUMBERS = (bool, int, float, complex, str, bytes, type(None), np.generic)
TREES = jax.tree_util.PyTreeDef  # compared by their structure
ATOMS = (*NUMBERS, type(Ellipsis), slice, range, np.dtype, types.CodeType, TREES)
JITTED = type(jax.jit(len))
CALLED = (
    types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, np.ufunc, JITTED,
    types.MethodWrapperType,
)  # fmt: skip
PLAIN_BASES = (object, abc.ABC, Generic, Protocol)  # base classes that read no attributes
CONTAINERS = (dict, list, tuple, set, frozenset, np.ndarray)
DESCRIBED = (types.MemberDescriptorType, types.GetSetDescriptorType)


def forgotten() -> None:
    """Stands for recorded values in another process, where they are read again."""


class Same:
    """Compares an object by identity, and keeps it alive so that its id is not used again."""

    __slots__ = ("thing",)

    def __init__(self, thing: object):
        self.thing = thing

    def __hash__(self) -> int:
        return id(self.thing)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.thing is other.thing


class Key:
    """The values that were read, with their hash computed once."""

    __slots__ = ("hash", "value")

    def __init__(self, value: tuple):
        self.value = value
        self.hash = hash(value)

    def __hash__(self) -> int:
        return self.hash

    def __reduce__(self) -> tuple:
        return forgotten, ()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Key) and self.hash == other.hash and self.value == other.value


class Reads:
    """Everything that some functions read: the values as a key, and a test for changes."""

    def __init__(self, owner: object):
        self.owner = owner
        names: frozenset[str] = frozenset()
        while True:  # until no function is found that reads other attributes
            found = _Walk(names)
            found.visit_all(owner)
            if found.names <= names:
                break
            names |= found.names
        self.key = Key(tuple(found.key))
        self.kept = found.data and bool(found.jitted or names & TRACING_FUNCTIONS)
        self._entries = list(found.entries.values())
        self._cells, self._attributes = found.cells, found.attributes
        self._lists, self._dicts = found.lists, found.dicts
        self._arrays, self._sets, self._sizes = found.arrays, found.sets, found.sizes

    def unchanged(self) -> bool:
        """Whether each name is still bound to the same object, and each object has its values."""
        for where, name, value in self._entries:
            if where.get(name, MISSING) is not value:
                return False
        for where, size in self._sizes:
            if len(where) != size:
                return False
        for thing, name, value in self._attributes:
            if getattr(thing, name, MISSING) is not value:
                return False
        for cell, value in self._cells:
            if _contents(cell) is not value:
                return False
        for items, were in self._lists:
            if len(items) != len(were) or not all(map(is_, items, were)):
                return False
        for items, keys, values in self._dicts:
            if len(items) != len(keys) or not all(map(is_, items, keys)):
                return False
            if not all(map(is_, items.values(), values)):
                return False
        for values, was in self._arrays:
            if _bytes(values) != was:
                return False
        return all(items == were for items, were in self._sets)

    def __reduce__(self) -> tuple:
        return forgotten, ()  # a copy is examined afresh

    def tracing(self) -> contextlib.AbstractContextManager[None]:
        """A context in which JAX does not reuse what it has traced with other values."""
        return _values_read(self.key) if self.kept and _values_read else contextlib.nullcontext()


_values_read: Any = getattr(jax, "make_user_context", lambda: None)()


def _contents(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is empty
        return MISSING


def _bytes(values: Any) -> tuple:
    """The numbers of an array, or of a data frame or the like."""
    values = values.to_numpy() if hasattr(values, "to_numpy") else values
    return values.shape, values.dtype, values.tobytes()


class _Walk:
    """Everything that can be reached from functions, each object once."""

    def __init__(self, names: frozenset[str]):
        self.wanted, self.names = names, frozenset()
        self.key: list = []
        self.seen: dict[int, tuple[int, Any]] = {}  # keeps objects alive, and so their ids
        self.waiting: deque = deque()
        self.entries: dict[tuple[int, str], tuple] = {}  # (mapping, name, value)
        self.attributes: list[tuple] = []  # (object, name, value)
        self.cells: list[tuple] = []
        self.lists: list[tuple] = []
        self.dicts: list[tuple] = []
        self.arrays: list[tuple] = []
        self.sets: list[tuple] = []
        self.sizes: list[tuple] = []  # of mappings, which may gain names
        self.data = self.jitted = False

    def visit_all(self, thing: object) -> None:
        """Add a value and all that can be reached from it, the nearest first."""
        self.visit(thing)
        while self.waiting:
            self._look(self.waiting.popleft())

    def visit(self, thing: object) -> None:
        """Add a value; one that contains others is queued."""
        if isinstance(thing, ATOMS) and not (
            hasattr(thing, "__dict__") and not foreign(type(thing))
        ):
            exact = repr(thing) if isinstance(thing, float | complex | np.generic) else thing
            self.key.append((type(thing), str(exact) if isinstance(thing, slice) else exact))
            return
        if id(thing) in self.seen:
            self.key.append(("again", self.seen[id(thing)][0]))
            return
        if len(self.seen) >= MAX_OBJECTS:
            self.key.append("more")
            return
        self.key.append(("object", len(self.seen)))
        self.seen[id(thing)] = len(self.seen), thing
        self.waiting.append(thing)

    def _look(self, thing: object) -> None:
        if isinstance(thing, types.FunctionType):
            self._function(thing)
        elif isinstance(thing, types.ModuleType):
            self._module(thing)
        elif isinstance(thing, type):
            self._class(thing)
        elif isinstance(thing, JITTED):
            self.key.append("jit")
            self.visit(getattr(thing, "__wrapped__", None))
        elif is_tracer(thing) or isinstance(thing, CALLED):
            self.key.append(Same(thing))
        elif isinstance(thing, jax.Array):
            small = (
                jax.numpy.issubdtype(thing.dtype, np.generic) and thing.nbytes <= MAX_COMPARED_BYTES
            )
            self.key.append(_bytes(np.asarray(thing)) if small else Same(thing))
        elif isinstance(thing, np.ndarray) or hasattr(type(thing), "to_numpy"):
            self.arrays.append((thing, _bytes(thing)))
            self.key.append(self.arrays[-1][1])
            if isinstance(thing, np.ndarray) and thing.dtype.hasobject:
                self._all("array", thing.ravel().tolist())
        elif isinstance(thing, set | frozenset):
            self.sets.append((thing, frozenset(thing)))
            self.key.append(self.sets[-1][1])
        elif isinstance(thing, array | bytearray):
            self.sets.append((thing, thing[:]))
            self.key.append(bytes(thing))
        elif isinstance(thing, dict | types.MappingProxyType):
            self.dicts.append((thing, tuple(thing), tuple(thing.values())))
            self._all("dict", [*thing.keys(), *thing.values()])
        elif isinstance(thing, tuple):
            self._all(type(thing), thing)
        elif isinstance(thing, weakref.ref):
            self._all("reference", [thing()])
        elif isinstance(thing, NUMBERS):
            self.key.append(repr(thing))
            self._object(thing)  # an instance of a subclass
        elif isinstance(thing, list | deque):
            self.lists.append((thing, tuple(thing)))
            self._all("list", thing)
        else:
            self._object(thing)
            return
        if isinstance(thing, CONTAINERS) and hasattr(thing, "__dict__"):
            self._object(thing)  # an instance of a subclass

    def _all(self, kind: object, things: Collection[object]) -> None:
        self.key.append((kind, len(things)))
        for thing in things:
            self.visit(thing)

    # -- functions --------------------------------------------------------------------------------
    def _function(self, fn: types.FunctionType) -> None:
        self.key.append(("function", fn.__code__))
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self._attribute(fn, name, skip=name == "__code__")
        for cell in fn.__closure__ or ():
            value = _contents(cell)
            self.cells.append((cell, value))
            self._value(value, own=not foreign(fn))
        if not foreign(fn):
            self._globals(fn)
        self._named(fn.__dict__, {"__wrapped__"} | self.wanted)

    def _globals(self, fn: types.FunctionType) -> None:
        found = names_of(fn.__code__)
        self.names |= found.attributes | frozenset(found.globals)
        for name in found.globals:
            self._entry(fn.__globals__, name)
        for name in found.modules:
            if isinstance(sys.modules.get(name), types.ModuleType):
                self.visit(sys.modules[name])

    def _value(self, value: object, own: bool = True) -> None:
        """A value that a function reads; what one of the user's (`own`) reads may be data."""
        if value is MISSING:
            self.key.append("missing")
            return
        self.jitted |= isinstance(value, JITTED) and not foreign(value)
        self.jitted |= isinstance(value, types.FunctionType) and _keeps(value)
        self.data |= own and not isinstance(value, CALLED)
        self.visit(value)

    def _entry(self, where: Mapping[str, object], name: str) -> None:
        value = where.get(name, MISSING)
        self.key.append(name)
        if (id(where), name) in self.entries:
            return
        self.entries[id(where), name] = (where, name, value)
        self._value(value)

    def _attribute(self, thing: object, name: str, skip: bool = False) -> None:
        value = getattr(thing, name, MISSING)
        self.attributes.append((thing, name, value))
        if not skip:
            self._value(value, own=False)

    def _named(self, where: Mapping[str, Any], names: Container[str]) -> None:
        self.sizes.append((where, len(where)))
        for name in sorted(n for n in where if n in names and n not in OWN_ATTRIBUTES):
            self._entry(where, name)

    def _module(self, module: types.ModuleType) -> None:
        self.key.append(Same(module))
        if not foreign(module):
            self._named(vars(module), self.wanted)

    # -- objects ----------------------------------------------------------------------------------
    def _class(self, kind: type) -> None:
        self.key.append(Same(kind))
        for base in (*kind.__mro__, *type.mro(type(kind))):
            if not foreign(base):
                methods = {
                    name
                    for name, value in vars(base).items()
                    if name.startswith("__") and isinstance(value, types.FunctionType)
                }
                self._named(vars(base), methods | self.wanted)

    def _object(self, thing: object) -> None:
        """The attributes of an object: for users' classes, those whose names occur in functions."""
        kind = type(thing)
        self.key.append(kind)
        self.visit(kind)
        whole = _has_foreign_methods(kind) or self.wanted & ATTRIBUTE_READERS or _is_tree(thing)
        inner = getattr(thing, "__dict__", None)
        some = False
        if isinstance(inner, dict):
            self.attributes.append((thing, "__dict__", inner))
            self._named(inner, inner if whole else self.wanted)
            some = True
        for name in _slots(kind):
            if whole or name in self.wanted:
                self._attribute(thing, name)
            some = True
        for name in ("__func__", "__self__", "func", "args", "keywords", "fget", "__wrapped__"):
            if isinstance(getattr(kind, name, None), DESCRIBED):
                self._attribute(thing, name)
                some = True
        if not some:
            self.key.append(Same(thing))


@functools.lru_cache(maxsize=1024)
def _slots(kind: type) -> tuple[str, ...]:
    found: list[str] = []
    for base in kind.__mro__:
        given = vars(base).get("__slots__", ())
        found += [given] if isinstance(given, str) else list(given)
    return tuple(n for n in found if n not in ("__dict__", "__weakref__"))


@functools.lru_cache(maxsize=1024)
def _has_foreign_methods(kind: type) -> bool:
    """Whether methods of a library's base class, which are not examined, may read attributes."""
    return any(foreign(base) for base in kind.__mro__ if base not in PLAIN_BASES)


def _keeps(fn: types.FunctionType) -> bool:
    """Whether JAX caches what it traces of functions that `fn` is passed, or that it wraps."""
    wraps = fn.__closure__ is not None and hasattr(fn, "__wrapped__")
    return foreign(fn) and (fn.__name__ in TRACING_FUNCTIONS or wraps)


def _is_tree(thing: object) -> bool:
    """Whether JAX would flatten `thing`, and so read all of it."""
    return jax.tree.structure(thing) != jax.tree.structure(0)


def current(owner: object) -> Reads:
    """What the functions in an object read now: the same `Reads` until something changes."""
    kept = getattr(owner, "__dict__", None)
    if not isinstance(kept, dict):
        return Reads(owner)
    reads = kept.setdefault("_reads", None)
    if reads is None or reads.owner is not owner or not reads.unchanged():
        reads = kept["_reads"] = Reads(owner)
    return reads
