"""Programs that run once or a few times: traced by JAX, computed by NumPy, and not compiled.

To compile a thousand operations takes seconds, to compute them in NumPy milliseconds. `rarely` is
used where `jax.jit` would be. Inside of other programs it is `jax.jit`; outside, operations are
computed one after the other (host_rules.py), and only those that are loops of ours or have no rule
are compiled. A program that is called often enough for compilation to pay is compiled after all,
and so is one with so many numbers among its arguments that NumPy would need longer, or much memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from .host_rules import RULES
from .jax_names import aval_of, bind_again, inner_jaxprs, low, scan_sizes, under_jit

CALLS_BEFORE_COMPILING = 12
MAX_NUMBERS = 200_000  # among the arguments of a program that NumPy computes
MAX_PROGRAMS = 512  # that are kept
MAX_LOOP_OPERATIONS = 20_000  # of a loop that Python runs
CALLS = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "remat", "checkpoint"}


def rarely(fn: Callable, *, static_argnums: Sequence[int] = ()) -> Callable:
    """`jax.jit(fn)` for a function that is called a few times: not compiled at first."""
    compiled = jax.jit(fn, static_argnums=tuple(static_argnums))
    programs: dict[Any, _Program] = {}

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        static = tuple((k, args[k]) for k in static_argnums)
        leaves, tree = jax.tree.flatten([v for k, v in enumerate(args) if k not in static_argnums])
        if under_jit() or not all(map(_simple, leaves)) or sum(map(np.size, leaves)) > MAX_NUMBERS:
            return compiled(*args)
        avals = tuple((np.shape(v), jnp.result_type(v)) for v in leaves)
        program = programs.get((tree, avals, static))
        if program is None:
            while len(programs) >= MAX_PROGRAMS:
                programs.pop(next(iter(programs)))
            program = programs[tree, avals, static] = _Program(fn, args, dict(static))
        program.calls += 1
        return compiled(*args) if program.calls > CALLS_BEFORE_COMPILING else program(leaves)

    return call


def _simple(value: Any) -> bool:
    """Whether it is a number or an array that NumPy can hold: keys and traced values are not."""
    dtype = getattr(value, "dtype", np.dtype(float))
    return isinstance(dtype, np.dtype) and not isinstance(value, Tracer)


class _Program:
    """The operations of a function for arguments of some shapes."""

    def __init__(self, fn: Callable, args: tuple, static: dict[int, Any]):
        def of_arrays(*given: Any) -> Any:
            it = iter(given)
            return fn(*(static[k] if k in static else next(it) for k in range(len(args))))

        arrays = [v for k, v in enumerate(args) if k not in static]
        closed, shape = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
        self.closed: ClosedJaxpr = low(closed)
        self.tree = jax.tree.structure(shape)
        self.calls = 0

    def __call__(self, leaves: Sequence[Any]) -> Any:
        given = [np.asarray(v) for v in leaves]
        with np.errstate(all="ignore"):
            found = evaluate(self.closed.jaxpr, self.closed.consts, given)
        return jax.tree.unflatten(self.tree, [_handed_on(v) for v in found])


def _handed_on(value: Any) -> Any:
    return value if isinstance(value, jax.Array) else jax.device_put(np.asarray(value))


def evaluate(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """The results of a program, operation by operation."""
    values: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        if isinstance(atom, Literal):
            return np.asarray(atom.val, aval_of(atom).dtype)
        return values[atom]

    values.update(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))
    for eqn, unneeded in zip(jaxpr.eqns, _last_uses(jaxpr), strict=True):
        results = _computed(eqn, [read(v) for v in eqn.invars])
        values.update(zip(eqn.outvars, results, strict=True))
        for v in unneeded:
            del values[v]
    return [read(v) for v in jaxpr.outvars]


@functools.lru_cache(maxsize=4 * MAX_PROGRAMS)
def _last_uses(jaxpr: Jaxpr) -> list[list[Any]]:
    """For each operation the values that none after it reads."""
    seen = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    found = []
    for eqn in reversed(jaxpr.eqns):
        own = {v for v in (*eqn.invars, *eqn.outvars) if not isinstance(v, Literal)}
        found.append(list(own - seen))
        seen |= own
    return found[::-1]


def _computed(eqn: JaxprEqn, args: list[Any]) -> Sequence[Any]:
    name, params = eqn.primitive.name, eqn.params
    if name in CALLS:
        inner = params.get("jaxpr", params.get("call_jaxpr"))
        if isinstance(inner, ClosedJaxpr):
            return evaluate(inner.jaxpr, inner.consts, args)
        if isinstance(inner, Jaxpr) and not inner.constvars:
            return evaluate(inner, (), args)
    if name == "cond":
        branches = params["branches"]
        chosen = branches[int(np.clip(int(args[0]), 0, len(branches) - 1))]
        return evaluate(chosen.jaxpr, chosen.consts, args[1:])
    if name == "scan" and eqn.params["length"] * size_of(eqn.params["jaxpr"]) < MAX_LOOP_OPERATIONS:
        return _scanned(eqn, args)
    if name == "while":
        return _repeated(eqn, args)
    rule = RULES.get(name)
    if rule is not None and all(map(_simple, args)):
        result = rule(params, *[np.asarray(a) for a in args])
        if result is not NotImplemented:
            return result if isinstance(result, list) else [result]
    return _compiled(eqn, args)


def _compiled(eqn: JaxprEqn, args: list[Any]) -> Sequence[Any]:
    found = bind_again(eqn, [_handed_on(a) if _simple(a) else a for a in args])
    return found if eqn.primitive.multiple_results else [found]


def size_of(closed: ClosedJaxpr) -> int:
    """The number of operations, without repetitions by loops."""
    inner = [jaxpr for eqn in closed.jaxpr.eqns for jaxpr in inner_jaxprs(eqn.params)]
    return len(closed.jaxpr.eqns) + sum(len(jaxpr.eqns) for jaxpr in inner)


def _scanned(eqn: JaxprEqn, args: list[Any]) -> list[Any]:
    params, body = eqn.params, eqn.params["jaxpr"]
    n_consts, n_carry = scan_sizes(eqn)
    consts, carry = args[:n_consts], args[n_consts : n_consts + n_carry]
    arrays = [np.asarray(v) for v in args[n_consts + n_carry :]]
    order = range(params["length"])
    rows = []
    for k in reversed(order) if params["reverse"] else order:
        found = evaluate(body.jaxpr, body.consts, [*consts, *carry, *(v[k] for v in arrays)])
        carry = found[:n_carry]
        rows.append(found[n_carry:])
    if params["reverse"]:
        rows.reverse()
    stacked = [np.stack([np.asarray(v) for v in column]) for column in zip(*rows, strict=True)]
    if not rows:
        stacked = [np.zeros(aval_of(v).shape, aval_of(v).dtype) for v in eqn.outvars[n_carry:]]
    return [*carry, *stacked]


def _repeated(eqn: JaxprEqn, args: list[Any]) -> Sequence[Any]:
    """A `while` loop, of which the rest is compiled if it goes on for long."""
    params = eqn.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    of_cond, of_body = args[:n_cond], args[n_cond : n_cond + n_body]
    carry, cond, body = args[n_cond + n_body :], params["cond_jaxpr"], params["body_jaxpr"]
    if aval_of(cond.jaxpr.outvars[0]).shape:  # lanes that end one by one
        return _compiled(eqn, args)
    most = MAX_LOOP_OPERATIONS // max(size_of(body), 1)
    for _ in range(most):
        if not bool(evaluate(cond.jaxpr, cond.consts, [*of_cond, *carry])[0]):
            return carry
        carry = evaluate(body.jaxpr, body.consts, [*of_body, *carry])
    return _compiled(eqn, [*of_cond, *of_body, *carry])
