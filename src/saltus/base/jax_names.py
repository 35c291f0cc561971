"""JAX functions whose module differs between versions: looked up here, each with a fallback.

Everything else that saltus uses of JAX is in its public interface or in `jax.extend` and
`jax.interpreters`, where it has been since the oldest version that `pyproject.toml` admits.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
from jax.core import ShapedArray, Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

# (module, name), the newest location first
HOMES: dict[str, list[tuple[str, str]]] = {
    "jaxprs_in_params": [
        ("jax.extend.core", "jaxprs_in_params"),  # since 0.10
        ("jax.core", "jaxprs_in_params"),
    ],
    "get_opaque_trace_state": [
        ("jax.extend.core", "get_opaque_trace_state"),  # since 0.10
        ("jax.core", "get_opaque_trace_state"),
    ],
    "am_i_under_a_jit": [
        ("jax.extend.core", "unsafe_am_i_under_a_jit_DO_NOT_USE"),  # since 0.10
        ("jax.core", "unsafe_am_i_under_a_jit_DO_NOT_USE"),
    ],
    "user_context": [("jax._src.source_info_util", "user_context")],
    "make_user_context": [("jax", "make_user_context")],
    "program_cache": [("jax._src", "compilation_cache")],
}


def found(name: str) -> Any:
    """What a name stands for in the installed version of JAX, or None."""
    for module, attribute in HOMES[name]:
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(module), attribute)
    return None


_jaxprs_in_params = found("jaxprs_in_params")
_opaque_state = found("get_opaque_trace_state")
_am_i_under_a_jit = found("am_i_under_a_jit")
_user_context = found("user_context")


def inner_jaxprs(params: dict) -> Iterator[Jaxpr]:
    """The jaxprs among the parameters of an equation, in tuples and lists too."""
    if _jaxprs_in_params is not None:
        yield from _jaxprs_in_params(params)
        return
    for value in params.values():
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, Jaxpr):
                yield item


def aval_of(value: Var | Literal) -> ShapedArray:
    """The shape and dtype of a value in a program, which has to be an array."""
    aval = value.aval
    assert isinstance(aval, ShapedArray)
    return aval


def trace_state() -> object:
    """Equal for two moments between which no JAX transformation was entered or left."""
    if _opaque_state is not None:
        return _opaque_state(convention="flax")
    return object()  # equal to no other: certificates then report that they could not check


def under_jit() -> bool:
    """Whether the program being run is being traced into a jaxpr, whose shapes are fixed."""
    if _am_i_under_a_jit is not None:
        return bool(_am_i_under_a_jit())
    return isinstance(jax.numpy.zeros(()) + 0, Tracer)


def line_of(traceback: object) -> contextlib.AbstractContextManager[None]:
    """A context in which traced operations are attributed to the line that `traceback` is of.

    Without it, rewritten operations could not be attributed to a line of the user's code."""
    return contextlib.nullcontext() if _user_context is None else _user_context(traceback)


class _Setting:
    """A value set for a while; JAX's caches do not depend on it, so they are cleared."""

    def __init__(self, default: object):
        self.value = default

    @contextlib.contextmanager
    def __call__(self, value: object) -> Iterator[None]:
        before, self.value = self.value, value
        jax.clear_caches()  # what they hold was compiled with the previous value
        try:
            yield
        finally:
            self.value = before
            jax.clear_caches()


context_setting: Callable[[Any], Any] = found("make_user_context") or _Setting


def install_cache(cache: Any, folder: str) -> bool:
    """Let JAX keep compiled programs in `cache`, an object with `get(key)` and `put(key, value)`.

    JAX asks it as long as its setting `jax_compilation_cache_dir` is `folder`. Without the names
    that this needs, programs are not kept."""
    module = found("program_cache")
    names = ("_cache", "_cache_initialized", "_cache_initialized_mutex")
    if not all(hasattr(module, name) for name in names) or module._cache is not None:
        return False
    with module._cache_initialized_mutex:
        module._cache, module._cache_initialized = cache, True
    jax.config.update("jax_compilation_cache_dir", folder)
    if jax.config.jax_persistent_cache_min_compile_time_secs == 1.0:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return True


def remove_cache() -> None:
    """Let JAX make a cache from its settings when it needs one again."""
    module = found("program_cache")
    with module._cache_initialized_mutex:
        module._cache, module._cache_initialized = None, False


def bind_again(eqn: JaxprEqn, values: Iterable[Any]) -> Any:
    """The operation of an equation on other values, with its custom rules if it has any.

    Up to JAX 0.9 the rules were separate from the parameters, since then they are among them."""
    given = eqn.primitive.get_bind_params(eqn.params)
    functions, params = given if isinstance(given, tuple) else ((), given)
    return eqn.primitive.bind(*functions, *values, **params)


def scan_sizes(eqn: JaxprEqn) -> tuple[int, int]:
    """How many constants and how many carried values a `scan` has.

    Found from the shapes, as the parameters with these numbers were renamed in JAX 0.12: within an
    iteration, arrays that are scanned over have one axis fewer, and all others are the same."""
    inner = eqn.params["jaxpr"].jaxpr
    whole = lambda outer, own: len(outer.aval.shape) == len(own.aval.shape)
    carried = sum(map(whole, eqn.outvars, inner.outvars))
    return sum(map(whole, eqn.invars, inner.invars)) - carried, carried


def is_high(eqn: JaxprEqn) -> bool:
    """Whether an operation can be expanded into others (`jnp.interp`, since JAX 0.12)."""
    asked = getattr(eqn.primitive, "is_high", None)
    return asked is not None and bool(asked(*[v.aval for v in eqn.invars], **eqn.params))


def hides_comparisons(eqn: JaxprEqn) -> bool:
    """Whether an operation expands into comparisons only, without derivatives of its own."""
    return is_high(eqn) and type(eqn.params.get("_prim")).__name__ in ("SearchSorted", "Nonzero")


def expanded(eqn: JaxprEqn, values: Iterable[Any]) -> list[Any]:
    """The results of an operation that can be expanded, on other values, by its expansion."""
    out = eqn.primitive.to_lojax(*values, **eqn.params)
    return list(out) if eqn.primitive.multiple_results else [out]


def low(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program with every operation expanded that can be.

    The programs inside saltus's own primitives are compiled as they are, and need this."""
    if not any(map(is_high, closed.jaxpr.eqns)):
        return closed

    def run(*args: jax.Array) -> list[jax.Array]:
        jaxpr = closed.jaxpr
        env: dict = dict(
            zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *args], strict=True)
        )
        read = lambda v: v.val if isinstance(v, Literal) else env[v]
        for eqn in jaxpr.eqns:
            values = [read(v) for v in eqn.invars]
            if is_high(eqn):
                out = expanded(eqn, values)
            else:
                out = bind_again(eqn, values)
                out = out if eqn.primitive.multiple_results else [out]
            env.update(zip(eqn.outvars, out, strict=True))
        return [read(v) for v in jaxpr.outvars]

    return jax.make_jaxpr(run)(*closed.in_avals)
