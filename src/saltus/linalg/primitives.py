"""Programs for the linear algebra of large systems: one kernel each, with derivative rules.

A program is a hashable callable on arrays. Bound as a primitive it stays in one piece: on a CPU it
is compiled as one kernel wherever it is used, a solve is transposed by its own transpose instead
of by that of its loops, and lanes are mapped inside. Everything here can be differentiated any
number of times, in any nesting: the rules bind the same primitives again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import core
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..base.control_flow import always_compiled
from ..base.kernel import one_kernel

Program = Callable[..., list[Any]]
SMALL = 1024  # terms of a product of matrices that is written out


@dataclass(frozen=True)
class _Mapped:
    """A program over lanes; `axes` says which of its arguments have them."""

    program: Program
    axes: tuple[int | None, ...]

    def __call__(self, *args: Any) -> list[Any]:
        return jax.vmap(self.program, in_axes=self.axes)(*args)


def _mapped(program: Program, dims: Any) -> Program:
    axes = tuple(None if d is None else 0 for d in dims)
    return program if all(a is None for a in axes) else _Mapped(program, axes)


def _to_front(args: Any, dims: Any) -> list[Any]:
    return [a if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)]


def _lower(primitive: Primitive, kernel: bool) -> None:
    def plain(*args: Any, program: Program, **_: Any) -> list[Any]:
        return program(*args)

    def cpu(*args: Any, program: Program, **_: Any) -> list[Any]:
        return one_kernel(program, "cpu")(*args)

    mlir.register_lowering(primitive, mlir.lower_fun(plain, multiple_results=True))
    if kernel:
        mlir.register_lowering(
            primitive, mlir.lower_fun(cpu, multiple_results=True), platform="cpu"
        )


run_p = Primitive("saltus_run")
run_p.multiple_results = True


def run(program: Program, *args: Any) -> list[Any]:
    """`program(*args)` as one kernel."""
    return run_p.bind(*args, program=program)


@functools.partial(always_compiled, static_argnames=["program"])
def _run_eagerly(*args: Any, program: Program) -> list[Any]:
    return run_p.bind(*args, program=program)


def _run_batch(args: Any, dims: Any, *, program: Program) -> tuple:
    out = run_p.bind(*_to_front(args, dims), program=_mapped(program, dims))
    return out, [0] * len(out)


def _run_jvp(primals: Any, tangents: Any, *, program: Program) -> tuple:
    return jax.jvp(program, tuple(primals), tuple(map(ad.instantiate_zeros, tangents)))


def _abstract(*avals: Any, program: Program, **_: Any) -> list[Any]:
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    return [core.ShapedArray(s.shape, s.dtype) for s in jax.eval_shape(program, *shapes)]


run_p.def_impl(_run_eagerly)
run_p.def_abstract_eval(_abstract)
batching.primitive_batchers[run_p] = _run_batch
ad.primitive_jvps[run_p] = _run_jvp
_lower(run_p, kernel=True)


def _linear_primitive(name: str, kernel: bool) -> Primitive:
    r"""A primitive for $x = A^{-1} b$: `program(*constants, b)`, and `back` for $A^{-T}$."""
    solve_p = Primitive(name)
    solve_p.multiple_results = True

    @functools.partial(always_compiled, static_argnames=["program", "back"])
    def eagerly(*args: Any, program: Program, back: Program) -> list[Any]:
        return solve_p.bind(*args, program=program, back=back)

    def abstract(*avals: Any, program: Program, back: Program) -> list[Any]:
        return [core.ShapedArray(avals[-1].shape, avals[-1].dtype)]

    def batch(args: Any, dims: Any, *, program: Program, back: Program) -> tuple:
        args = _to_front(args, dims)
        if dims[-1] is None:
            size = next(a.shape[0] for a, d in zip(args, dims, strict=True) if d is not None)
            args[-1] = jnp.broadcast_to(args[-1], (size, *args[-1].shape))
        dims = (*dims[:-1], 0)
        out = solve_p.bind(*args, program=_mapped(program, dims), back=_mapped(back, dims))
        return out, [0]

    def jvp(primals: Any, tangents: Any, *, program: Program, back: Program) -> tuple:
        *fixed, change = tangents
        if not all(isinstance(t, ad.Zero) for t in fixed):
            return jax.jvp(program, tuple(primals), tuple(map(ad.instantiate_zeros, tangents)))
        out = solve_p.bind(*primals, program=program, back=back)
        change = ad.instantiate_zeros(change)
        return out, solve_p.bind(*primals[:-1], change, program=program, back=back)

    def transpose(cotangents: Any, *args: Any, program: Program, back: Program) -> list[Any]:
        (ct,) = cotangents
        nothing = [None] * (len(args) - 1)
        if isinstance(ct, ad.Zero):
            return [*nothing, None]
        return [*nothing, *solve_p.bind(*args[:-1], ct, program=back, back=program)]

    solve_p.def_impl(eagerly)
    solve_p.def_abstract_eval(abstract)
    batching.primitive_batchers[solve_p] = batch
    ad.primitive_jvps[solve_p] = jvp
    ad.primitive_transposes[solve_p] = transpose
    _lower(solve_p, kernel)
    return solve_p


_inside_p = _linear_primitive("saltus_solve", kernel=True)
_outside_p = _linear_primitive("saltus_solve_outside", kernel=False)


def linear(
    program: Program, back: Program, constants: Any, vector: Any, outside: bool = False
) -> Any:
    r"""$A^{-1} b$ from `program(*constants, b)`, linear in `b`, with `back` as its transpose.

    `outside`: the programs call a library, which no kernel can hold.
    """
    primitive = _outside_p if outside else _inside_p
    return primitive.bind(*constants, vector, program=program, back=back)[0]


inverse_p = Primitive("saltus_inverse")


def inverse(program: Callable, matrix: Any) -> Any:
    r"""$X = A^{-1}$ from `program(A)`, differentiated by $dX = -X\,dA\,X$.

    That is also right for $X$ that inverts a block of $A$ and is zero elsewhere.
    """
    return inverse_p.bind(matrix, program=program)


@functools.partial(always_compiled, static_argnames=["program"])
def _invert_eagerly(matrix: Any, program: Callable) -> Any:
    return inverse_p.bind(matrix, program=program)


def _inverse_batch(args: Any, dims: Any, *, program: Callable) -> tuple:
    return inverse_p.bind(*_to_front(args, dims), program=_Many(program)), 0


def _inverse_jvp(primals: Any, tangents: Any, *, program: Callable) -> tuple:
    made = inverse_p.bind(*primals, program=program)
    change = ad.instantiate_zeros(tangents[0])
    return made, -_times(_times(made, change), made)


def _times(a: Any, b: Any) -> Any:
    """A product of matrices; small ones written out, for one kernel."""
    if a.shape[-1] ** 3 > SMALL:
        return a @ b
    return jnp.sum(a[..., :, :, None] * b[..., None, :, :], axis=-2)


@dataclass(frozen=True)
class _Many:
    """A program for one matrix, over lanes."""

    program: Callable

    def __call__(self, matrices: Any) -> Any:
        return jax.vmap(self.program)(matrices)


inverse_p.def_impl(_invert_eagerly)
inverse_p.def_abstract_eval(lambda a, program: core.ShapedArray(a.shape, a.dtype))
batching.primitive_batchers[inverse_p] = _inverse_batch
ad.primitive_jvps[inverse_p] = _inverse_jvp
mlir.register_lowering(
    inverse_p, mlir.lower_fun(lambda a, program: program(a), multiple_results=False)
)
