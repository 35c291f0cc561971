"""A traced program as a list of steps in NumPy.

Everything that is known before the program runs is done once: nested programs become part of the
list, operations are bound to their parameters, and values have numbered places. What remains for
each operation is one call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from .host_rules import RULES
from .jax_names import aval_of, bind_again, inner_jaxprs, scan_sizes

Atom: TypeAlias = Any  # a variable or a literal of a jaxpr

MAX_LOOP_OPERATIONS = 20_000  # of a loop that Python runs
CALLS = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "remat", "checkpoint"}


class Step(NamedTuple):
    """One operation: what it calls, and the places of its operands and results."""

    call: Callable[..., Any]
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    ends: tuple[int, ...]  # values that no later step reads


class Steps:
    """A program that NumPy runs, made from a closed jaxpr."""

    def __init__(self, closed: ClosedJaxpr):
        self._start: list[Any] = []  # the values at all places before the first step
        self._constants: dict[int, tuple[Any, int]] = {}  # by identity: the value, its place
        steps: list[Step] = []
        self.runs = 0  # operations in the last run, with those of loops
        self._into = [self._place() for _ in closed.jaxpr.invars]
        self._out = self._laid_out(closed.jaxpr, closed.consts, self._into, steps)
        self._steps = self._with_ends(steps)

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """The results for these operands, which are NumPy arrays (or keys of JAX)."""
        values = self._start.copy()
        self.runs = len(self._steps)
        for k, v in zip(self._into, args, strict=True):
            values[k] = v
        for call, takes, gives, ends in self._steps:
            found = call(*[values[k] for k in takes])
            if type(found) is list:
                for k, v in zip(gives, found, strict=True):
                    values[k] = v
            else:
                values[gives[0]] = found
            for k in ends:
                values[k] = None
        return [values[k] for k in self._out]

    # -- laying out -----------------------------------------------------------------------------
    def _place(self, value: Any = None) -> int:
        self._start.append(value)
        return len(self._start) - 1

    def _constant(self, value: Any) -> int:
        if id(value) not in self._constants:
            self._constants[id(value)] = value, self._place(_on_host(value))
        return self._constants[id(value)][1]

    def _laid_out(
        self, jaxpr: Jaxpr, consts: Sequence[Any], into: Sequence[int], steps: list[Step]
    ) -> list[int]:
        """Append the steps of a jaxpr; the places of its results."""
        places: dict[Any, int] = dict(zip(jaxpr.invars, into, strict=True))
        places.update((v, self._constant(c)) for v, c in zip(jaxpr.constvars, consts, strict=True))

        def place(atom: Atom) -> int:
            if isinstance(atom, Literal):
                return self._place(np.asarray(atom.val, aval_of(atom).dtype))
            return places[atom]

        for eqn in jaxpr.eqns:
            takes = [place(v) for v in eqn.invars]
            inner = _called(eqn)
            if inner is not None:
                gives = self._laid_out(*inner, takes, steps)
            else:
                gives = [self._place() for _ in eqn.outvars]
                steps.append(Step(self._operation(eqn), tuple(takes), tuple(gives), ()))
            places.update(zip(eqn.outvars, gives, strict=True))
        return [place(v) for v in jaxpr.outvars]

    def _with_ends(self, steps: list[Step]) -> list[Step]:
        seen = {*self._out, *(place for _, place in self._constants.values())}
        found = []
        for step in reversed(steps):
            own = {*step.takes, *step.gives} - seen
            found.append(step._replace(ends=tuple(own)))
            seen |= own
        return found[::-1]

    def _operation(self, eqn: JaxprEqn) -> Callable[..., Any]:
        name = eqn.primitive.name
        if name == "cond":
            return self._branches(eqn)
        if name == "scan" and eqn.params["length"] * size_of(eqn.params["jaxpr"]) < (
            MAX_LOOP_OPERATIONS
        ):
            return self._scan(eqn)
        if name == "while" and not aval_of(eqn.params["cond_jaxpr"].jaxpr.outvars[0]).shape:
            return self._while(eqn)  # others have lanes that end one by one
        rule, compiled = RULES.get(name), functools.partial(_compiled, eqn)
        if rule is None or not all(is_simple(v.aval) for v in eqn.invars):
            return compiled
        if isinstance(rule, np.ufunc):
            return rule

        def computed(*args: Any) -> Any:
            found = rule(eqn.params, *args)
            return compiled(*args) if found is NotImplemented else found

        return computed

    # -- operations that hold programs ----------------------------------------------------------
    def _run(self, steps: Steps, args: Sequence[Any]) -> list[Any]:
        found = steps(args)
        self.runs += steps.runs
        return found

    def _branches(self, eqn: JaxprEqn) -> Callable[..., list[Any]]:
        branches = [Steps(b) for b in eqn.params["branches"]]

        def chosen(index: Any, *args: Any) -> list[Any]:
            return self._run(branches[min(max(int(index), 0), len(branches) - 1)], args)

        return chosen

    def _scan(self, eqn: JaxprEqn) -> Callable[..., list[Any]]:
        params, body = eqn.params, Steps(eqn.params["jaxpr"])
        n_consts, n_carry = scan_sizes(eqn)

        def scanned(*args: Any) -> list[Any]:
            consts, carry = args[:n_consts], list(args[n_consts : n_consts + n_carry])
            arrays, rows = args[n_consts + n_carry :], []
            order = range(params["length"])
            for k in reversed(order) if params["reverse"] else order:
                found = self._run(body, [*consts, *carry, *(v[k] for v in arrays)])
                carry = found[:n_carry]
                rows.append(found[n_carry:])
            if params["reverse"]:
                rows.reverse()
            if rows:
                return [*carry, *(np.stack(column) for column in zip(*rows, strict=True))]
            empty = [aval_of(v) for v in eqn.outvars[n_carry:]]
            return [*carry, *(np.zeros(v.shape, v.dtype) for v in empty)]

        return scanned

    def _while(self, eqn: JaxprEqn) -> Callable[..., list[Any]]:
        """A `while` loop, of which the rest is compiled if it goes on for long."""
        params = eqn.params
        n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
        cond, body = Steps(params["cond_jaxpr"]), Steps(params["body_jaxpr"])
        most = MAX_LOOP_OPERATIONS // max(size_of(params["body_jaxpr"]), 1)

        def repeated(*args: Any) -> list[Any]:
            consts, carry = args[: n_cond + n_body], list(args[n_cond + n_body :])
            for _ in range(most):
                if not self._run(cond, [*consts[:n_cond], *carry])[0]:
                    return carry
                carry = self._run(body, [*consts[n_cond:], *carry])
            return _compiled(eqn, *consts, *carry)

        return repeated


def _called(eqn: JaxprEqn) -> tuple[Jaxpr, Sequence[Any]] | None:
    """The program that an operation only calls, with its constants."""
    if eqn.primitive.name not in CALLS:
        return None
    inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    if isinstance(inner, ClosedJaxpr):
        return inner.jaxpr, inner.consts
    return (inner, ()) if isinstance(inner, Jaxpr) and not inner.constvars else None


def _compiled(eqn: JaxprEqn, *args: Any) -> list[Any]:
    """The results of one operation by XLA."""
    found = bind_again(eqn, [handed_on(v) for v in args])
    return [_on_host(v) for v in (found if eqn.primitive.multiple_results else [found])]


def _on_host(value: Any) -> Any:
    """As an array of NumPy; keys of JAX stay as they are."""
    return np.asarray(value) if is_simple(value) else value


def handed_on(value: Any) -> jax.Array:
    """As an array of JAX."""
    return value if isinstance(value, jax.Array) else jax.device_put(np.asarray(value))


def is_simple(value: Any) -> bool:
    """Whether NumPy can hold it: a key of JAX has a dtype of its own."""
    return isinstance(getattr(value, "dtype", np.dtype(float)), np.dtype)


def size_of(closed: ClosedJaxpr) -> int:
    """The number of operations, each loop and each branch once."""
    return sum(1 for _ in _operations(closed.jaxpr))


def _operations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in inner_jaxprs(eqn.params):
            yield from _operations(inner)
