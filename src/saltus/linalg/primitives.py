"""Programs for the linear algebra of large systems: one kernel each, with derivative rules.

A program is a hashable callable on arrays. Bound as a primitive it stays in one piece: on a CPU it
is compiled as one kernel wherever it is used, the transpose of a solve is another solve instead of
the transpose of its loops, and `vmap` is applied inside. All programs can be differentiated any
number of times, in any nesting, because the rules bind the same primitives again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import core
from jax.extend.core import Primitive
from jax.interpreters import ad

from ..base.kernel import always_compiled, register
from ..base.types import Array, Aval, Matrix, Tangent

Program = Callable[..., list[Any]]
MAX_TERMS = 1024  # of a product of matrices that is written out


@dataclass(frozen=True)
class _Mapped:
    """A program over lanes; `axes` says which of its arguments have an axis for them."""

    program: Program
    axes: tuple[int | None, ...]

    def __call__(self, *args: Array) -> list[Array]:
        return jax.vmap(self.program, in_axes=self.axes)(*args)


def _mapped(program: Program, dims: Sequence[int | None]) -> Program:
    axes = tuple(None if d is None else 0 for d in dims)
    return program if all(a is None for a in axes) else _Mapped(program, axes)


def _to_front(args: Sequence[Array], dims: Sequence[int | None]) -> list[Array]:
    return [a if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)]


def _run(*args: Array, program: Program, **_: Any) -> list[Array]:
    return program(*args)


run_p = Primitive("saltus_run")
run_p.multiple_results = True


def run(program: Program, *args: Array) -> list[Array]:
    """`program(*args)` as one kernel."""
    return run_p.bind(*args, program=program)


def _run_batch(
    args: Sequence[Array], dims: Sequence[int | None], *, program: Program
) -> tuple[list[Array], list[int]]:
    out = run_p.bind(*_to_front(args, dims), program=_mapped(program, dims))
    return out, [0] * len(out)


def _run_jvp(
    primals: Sequence[Array], tangents: Sequence[Tangent], *, program: Program
) -> tuple[list[Array], list[Array]]:
    return jax.jvp(program, tuple(primals), tuple(map(ad.instantiate_zeros, tangents)))


def _abstract(*avals: Aval, program: Program, **_: Any) -> list[Aval]:
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    return [core.ShapedArray(s.shape, s.dtype) for s in jax.eval_shape(program, *shapes)]


register(run_p, _run, _abstract, batch=_run_batch, jvp=_run_jvp, kernel=True, in_kernels=True)


def _linear_primitive(name: str, kernel: bool) -> Primitive:
    r"""A primitive for $x = A^{-1} b$: `program(*constants, b)`, and `back` for $A^{-T}$."""
    solve_p = Primitive(name)
    solve_p.multiple_results = True

    @functools.partial(always_compiled, static_argnames=["program", "back"])
    def eagerly(*args: Array, program: Program, back: Program) -> list[Array]:
        return solve_p.bind(*args, program=program, back=back)

    def abstract(*avals: Aval, program: Program, back: Program) -> list[Aval]:
        return [core.ShapedArray(avals[-1].shape, avals[-1].dtype)]

    def batch(
        args: Sequence[Array], dims: Sequence[int | None], *, program: Program, back: Program
    ) -> tuple[list[Array], list[int]]:
        args = _to_front(args, dims)
        if dims[-1] is None:
            size = next(a.shape[0] for a, d in zip(args, dims, strict=True) if d is not None)
            args[-1] = jnp.broadcast_to(args[-1], (size, *args[-1].shape))
        dims = (*dims[:-1], 0)
        out = solve_p.bind(*args, program=_mapped(program, dims), back=_mapped(back, dims))
        return out, [0]

    def jvp(
        primals: Sequence[Array], tangents: Sequence[Tangent], *, program: Program, back: Program
    ) -> tuple[list[Array], list[Array]]:
        *fixed, change = tangents
        if not all(isinstance(t, ad.Zero) for t in fixed):
            return jax.jvp(program, tuple(primals), tuple(map(ad.instantiate_zeros, tangents)))
        out = solve_p.bind(*primals, program=program, back=back)
        change = ad.instantiate_zeros(change)
        return out, solve_p.bind(*primals[:-1], change, program=program, back=back)

    def transpose(
        cotangents: Sequence[Tangent], *args: Array, program: Program, back: Program
    ) -> list[Array | None]:
        (ct,) = cotangents
        nothing = [None] * (len(args) - 1)
        if isinstance(ct, ad.Zero):
            return [*nothing, None]
        return [*nothing, *solve_p.bind(*args[:-1], ct, program=back, back=program)]

    impl = None if kernel else eagerly
    register(
        solve_p, _run, abstract, batch=batch, jvp=jvp, transpose=transpose, impl=impl,
        kernel=kernel, in_kernels=kernel,
    )  # fmt: skip
    return solve_p


_inside_p = _linear_primitive("saltus_solve", kernel=True)
_outside_p = _linear_primitive("saltus_solve_outside", kernel=False)


def linear(
    program: Program,
    back: Program,
    constants: Iterable[Array],
    vector: Array,
    outside: bool = False,
) -> Array:
    r"""$A^{-1} b$ from `program(*constants, b)`, linear in `b`, with `back` as its transpose.

    With `outside`, the programs call a library, and cannot be part of a kernel.
    """
    primitive = _outside_p if outside else _inside_p
    return primitive.bind(*constants, vector, program=program, back=back)[0]


inverse_p = Primitive("saltus_inverse")


def inverse(program: Callable, matrix: Matrix) -> Matrix:
    r"""$X = A^{-1}$ from `program(A)`, differentiated by $dX = -X\,dA\,X$.

    This also holds if $X$ is the inverse of a block of $A$ and zero elsewhere.
    """
    return inverse_p.bind(matrix, program=program)


@functools.partial(always_compiled, static_argnames=["program"])
def _invert_eagerly(matrix: Matrix, program: Callable) -> Matrix:
    return inverse_p.bind(matrix, program=program)


def _inverse_batch(
    args: Sequence[Array], dims: Sequence[int | None], *, program: Callable
) -> tuple[Array, int]:
    return inverse_p.bind(*_to_front(args, dims), program=_Many(program)), 0


def _inverse_jvp(
    primals: Sequence[Array], tangents: Sequence[Tangent], *, program: Callable
) -> tuple[Matrix, Matrix]:
    made = inverse_p.bind(*primals, program=program)
    change = ad.instantiate_zeros(tangents[0])
    return made, -_times(_times(made, change), made)


def _times(a: Matrix, b: Matrix) -> Matrix:
    """A product of matrices; small ones are written out, so that they stay in one kernel."""
    if a.shape[-1] ** 3 > MAX_TERMS:
        return a @ b
    return jnp.sum(a[..., :, :, None] * b[..., None, :, :], axis=-2)


@dataclass(frozen=True)
class _Many:
    """A program for one matrix, applied to each lane."""

    program: Callable

    def __call__(self, matrices: Array) -> Array:
        return jax.vmap(self.program)(matrices)


register(
    inverse_p,
    lambda a, program: program(a),
    lambda a, program: core.ShapedArray(a.shape, a.dtype),
    batch=_inverse_batch,
    jvp=_inverse_jvp,
    impl=_invert_eagerly,
    in_kernels=True,
)
