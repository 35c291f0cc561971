"""The names that the bytecode of functions looks up, and whether an object is a library's."""

from __future__ import annotations

import dis
import functools
import sys
import sysconfig
import types
from typing import NamedTuple

from .user_code import LIBRARIES

INSTALLED = tuple({sysconfig.get_path(k) for k in ("stdlib", "platstdlib", "purelib", "platlib")})


class Names(NamedTuple):
    """The names that occur in a function and in the functions defined inside it."""

    globals: tuple[str, ...]
    attributes: frozenset[str]  # also strings, which may be attribute names
    modules: tuple[str, ...]  # imported by the function


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> Names:
    """The names that a function reads, by the place where they are looked up."""
    read: dict[str, None] = {}
    attributes, modules = set(), set()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            read[str(step.argval)] = None
        elif step.opname in ("IMPORT_NAME", "IMPORT_FROM"):
            modules.add(str(step.argval))
        elif step.opcode in dis.hasname:
            attributes.add(str(step.argval))
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            inner = names_of(value)
            read.update(dict.fromkeys(inner.globals))
            attributes |= inner.attributes
            modules.update(inner.modules)
        elif isinstance(value, str):
            attributes.add(value)
    return Names(tuple(read), frozenset(attributes | modules), tuple(modules))


def foreign(thing: object) -> bool:
    """Whether an object belongs to a library; globals of libraries are assumed not to change."""
    if isinstance(thing, types.FunctionType):
        name = thing.__globals__.get("__name__")
    elif isinstance(thing, types.ModuleType):
        name = thing.__name__
    else:
        name = getattr(thing, "__module__", None)
    return isinstance(name, str) and _installed(name)


@functools.lru_cache(maxsize=4096)
def _installed(name: str) -> bool:
    if name.partition(".")[0] in LIBRARIES:
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return name in sys.builtin_module_names
    return file.startswith(INSTALLED)
