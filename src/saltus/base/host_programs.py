"""Programs that run once or a few times: traced by JAX, computed by NumPy, and not compiled.

To compile a thousand operations takes seconds, to compute them in NumPy milliseconds. `rarely` is
used where `jax.jit` would be. Inside of other programs it is `jax.jit`; outside, operations are
computed one after the other (host_steps.py), and only those that are loops of ours or have no rule
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

from .host_steps import Steps, handed_on, is_simple, size_of
from .jax_names import low, under_jit

PROGRAM_SECONDS = 0.03  # to compile a program, and ...
OPERATION_SECONDS = 2e-3  # ... for each of its operations, measured with certificates
STEP_SECONDS = 2e-6  # for one operation by NumPy, and ...
NUMBER_SECONDS = 2e-10  # ... for each number among the arguments of its program
MAX_NUMBERS = 200_000  # among the arguments of a program that NumPy computes
MAX_PROGRAMS = 512  # that are kept


def rarely(fn: Callable, *, static_argnums: Sequence[int] = ()) -> Callable:
    """`jax.jit(fn)` for a function that is called a few times: not compiled at first."""
    compiled = jax.jit(fn, static_argnums=tuple(static_argnums))
    programs: dict[Any, _Program] = {}

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        static = tuple((k, args[k]) for k in static_argnums)
        leaves, tree = jax.tree.flatten([v for k, v in enumerate(args) if k not in static_argnums])
        if under_jit() or not all(map(_known, leaves)) or sum(map(np.size, leaves)) > MAX_NUMBERS:
            return compiled(*args)
        avals = tuple((np.shape(v), jnp.result_type(v)) for v in leaves)
        program = programs.get((tree, avals, static))
        if program is None:
            while len(programs) >= MAX_PROGRAMS:
                programs.pop(next(iter(programs)))
            program = programs[tree, avals, static] = _Program(fn, args, dict(static))
        return compiled(*args) if program.pays() else program(leaves)

    return call


def _known(value: Any) -> bool:
    """Whether it is a number or an array that NumPy can hold: keys and traced values are not."""
    return is_simple(value) and not isinstance(value, Tracer)


class _Program:
    """The operations of a function for arguments of some shapes."""

    def __init__(self, fn: Callable, args: tuple, static: dict[int, Any]):
        def of_arrays(*given: Any) -> Any:
            it = iter(given)
            return fn(*(static[k] if k in static else next(it) for k in range(len(args))))

        arrays = [v for k, v in enumerate(args) if k not in static]
        closed, shape = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
        closed = low(closed)
        self._steps = Steps(closed)
        self._tree = jax.tree.structure(shape)
        self._step_seconds = STEP_SECONDS + NUMBER_SECONDS * sum(
            map(np.size, jax.tree.leaves(arrays))
        )
        self._compile_seconds = PROGRAM_SECONDS + OPERATION_SECONDS * size_of(closed)
        self._seconds = 0.0  # of all calls so far, estimated

    def pays(self) -> bool:
        """Whether compilation would have paid: NumPy has needed as long as it would."""
        return self._seconds > self._compile_seconds

    def __call__(self, leaves: Sequence[Any]) -> Any:
        with np.errstate(all="ignore"):
            found = self._steps([np.asarray(v) for v in leaves])
        self._seconds += self._step_seconds * self._steps.runs
        return jax.tree.unflatten(self._tree, [handed_on(v) for v in found])
