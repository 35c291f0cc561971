"""How programs and primitives are compiled, on every platform.

`register` gives a primitive its rules, and is the only function that does. A platform with an entry
in `KERNELS` is treated differently from the others: there, a loop is compiled as one kernel.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import core
from jax.extend import core as jex
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters.mlir import ir

from .jax_names import aval_of, inner_jaxprs, low
from .types import Array, Aval, ClosedJaxpr, Equation, Jaxpr, Scalar, T, Tree

Program: TypeAlias = Callable[..., Any]  # from arrays to a list of arrays

# XLA's CPU compiler runs a loop body as a list of small kernels, which costs a microsecond per
# iteration. A call with these marks is compiled as one function instead: ten times faster for the
# scalar loops here, and quicker to compile. A compiler that does not know the marks ignores them.
_ONE_KERNEL = {"inlineable": "false", "xla_cpu_small_call": "true"}
_ELEMENTWISE = [
    "add", "sub", "mul", "div", "neg", "sign", "abs", "max", "min", "pow", "integer_pow", "sqrt",
    "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tan", "asin", "acos",
    "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erf_inv",
    "lgamma", "digamma", "logistic", "floor", "ceil", "round", "rem", "square", "select_n", "eq",
    "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor", "clamp", "is_finite", "nextafter",
    "shift_left", "shift_right_logical", "shift_right_arithmetic", "convert_element_type",
    "add_any", "copy", "stop_gradient", "reduce_precision", "population_count", "clz", "real",
    "imag", "complex", "conj",
]  # fmt: skip
_SHAPES = [
    "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "concatenate", "slice",
    "dynamic_slice", "dynamic_update_slice", "gather", "pad", "iota", "rev", "transpose", "split",
    "stack", "unstack", "tile", "reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or",
    "reduce_prod", "argmax", "argmin", "cumsum", "cumprod", "cummax", "cummin",
]  # fmt: skip
_CONTROL = [
    "while", "cond", "scan", "jit", "pjit", "closed_call", "core_call", "custom_jvp_call",
    "custom_vjp_call", "remat", "remat2", "checkpoint",
]  # fmt: skip
_KNOWN = {*_ELEMENTWISE, *_SHAPES, *_CONTROL}  # and saltus's own primitives, see `register`


def _fits(jaxpr: Jaxpr) -> bool:
    """Whether every operation is one that a single CPU kernel can hold."""
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name == "dot_general":
            if not _small_dot(eqn):
                return False
        elif name == "custom_linear_solve":
            if not _fits(eqn.params["jaxprs"].solve.jaxpr):
                return False
        elif name not in _KNOWN or _library_sum(eqn):
            return False
        for sub in inner_jaxprs(eqn.params):
            if not _fits(sub):
                return False
    return True


def _small_dot(eqn: Equation) -> bool:
    """Whether this is a small product with a vector; others are better left to the library."""
    (_, (batch_a, batch_b)) = eqn.params["dimension_numbers"]
    sizes = [aval_of(v).size for v in eqn.invars]
    ranks = [aval_of(v).ndim for v in eqn.invars]
    return not batch_a and not batch_b and min(ranks) <= 1 and max(sizes) <= 4096


def _library_sum(eqn: Equation) -> bool:
    """Whether the compiler calls a library for this reduction, which a kernel cannot do."""
    if eqn.primitive.name not in ("reduce_sum", "reduce_max", "reduce_min"):
        return False
    operand = aval_of(eqn.invars[0])
    return operand.size >= 4096 and operand.dtype.kind == "f"


def _touch(args: Sequence[Array]) -> Scalar:
    """A number that depends on every argument: the compiler aborts if one is not used."""
    return sum((jnp.real(jnp.ravel(a)[0]).astype(jnp.float64) for a in args), jnp.zeros(()))


def _cpu_kernel(fn: Program) -> Program:
    """`fn` on flat arguments as one function of XLA's CPU compiler, if all of it fits into one."""

    def call(*args: Array) -> Sequence[Array]:
        some = [jnp.size(a) > 0 for a in args]

        def touched(*given: Array) -> list[Array]:
            it = iter(given)
            full = [next(it) if s else jnp.zeros_like(a) for a, s in zip(args, some, strict=True)]
            return [*fn(*full), _touch(given)]

        given = [a for a, s in zip(args, some, strict=True) if s]
        closed = low(jax.make_jaxpr(touched)(*given))
        if not _fits(closed.jaxpr):
            return jex.jaxpr_as_fun(closed)(*given)[:-1]
        # The barrier keeps the compiler from moving constants in, which leaves arguments unused.
        barrier = jax.lax.optimization_barrier
        return barrier(kernel_p.bind(*barrier(given), closed=closed))[:-1]

    return call


KERNELS: dict[str, Callable[[Program], Program]] = {"cpu": _cpu_kernel}  # by platform


def one_kernel(fn: Program, platform: str | None) -> Program:
    """`fn` on flat arguments, compiled as one kernel where the platform and the model allow it.

    Set the environment variable SALTUS_ONE_KERNEL=0 to switch this off.
    """

    def call(*args: Array) -> Sequence[Array]:
        if platform not in KERNELS or os.environ.get("SALTUS_ONE_KERNEL", "1") == "0":
            return fn(*args)
        return KERNELS[platform](fn)(*args)

    return call


def platform_of(args: Sequence[Array]) -> str:
    """The platform, `cpu` or `gpu`, of the arrays that a program is given."""
    return next(iter(jnp.asarray(args[0]).devices())).platform


# -- programs that are not part of another ---------------------------------------------------------
def always_compiled(fn: Callable, **options: Any) -> Callable:
    """`jax.jit(fn)`, also inside `jax.disable_jit()`, where a step would take milliseconds."""
    program = jax.jit(fn, **options)

    @functools.wraps(fn)
    def call(*args: Sequence[Array], **given: Any) -> Any:
        if not jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
            return program(*args, **given)
        with jax.disable_jit(False):
            return program(*args, **given)

    return call


def compiled_kernel(run: Program) -> Program:
    """`run(*args, **params)` as one kernel, compiled once for equal `params`."""

    @functools.lru_cache(maxsize=512)
    def compiled(platform: str, **params: Any) -> Callable:
        return always_compiled(one_kernel(functools.partial(run, **params), platform))

    return lambda *args, **params: compiled(platform_of(args), **params)(*args)


def _compiled_alone(primitive: Primitive) -> Program:
    def impl(*args: Array, **params: Any) -> Any:
        return always_compiled(lambda *a: primitive.bind(*a, **params))(*args)

    return impl


# -- primitives ------------------------------------------------------------------------------------
def register(
    primitive: Primitive,
    run: Program,
    abstract: Callable,
    *,
    batch: Callable | None = None,
    jvp: Callable | None = None,
    transpose: Callable | None = None,
    impl: Callable | None = None,
    kernel: bool = False,
    in_kernels: bool = False,
    marks: Mapping[str, str] | None = None,
) -> None:
    """Give a primitive its rules, for all transformations and on all platforms.

    `run(*args, **params)` computes the result and `abstract` gives its shapes; `batch`, `jvp` and
    `transpose` are JAX's rules. On platforms with an entry in `KERNELS` the primitive is compiled
    as one kernel if `kernel`, and may be part of others if `in_kernels`; one that holds a program,
    `closed`, becomes a call with `marks` for XLA's CPU compiler. Outside of `jit` it is computed by
    `impl`, or without that as a compiled program of its own.
    """
    if in_kernels:
        _KNOWN.add(primitive.name)
    alone = compiled_kernel(run) if kernel else _compiled_alone(primitive)
    primitive.def_impl(impl or alone)
    primitive.def_abstract_eval(abstract)
    if batch is not None:
        batching.primitive_batchers[primitive] = batch
    if jvp is not None:
        ad.primitive_jvps[primitive] = jvp
    if transpose is not None:
        ad.primitive_transposes[primitive] = transpose

    def lowering(platform: str | None) -> Callable:
        def compiled(*args: Array, **params: Any) -> Any:
            if not kernel:
                return run(*args, **params)
            return one_kernel(functools.partial(run, **params), platform)(*args)

        return mlir.lower_fun(compiled, multiple_results=primitive.multiple_results)

    mlir.register_lowering(primitive, lowering(None))
    for platform in KERNELS if kernel else ():
        mlir.register_lowering(primitive, lowering(platform), platform=platform)
    if marks:
        mlir.register_lowering(
            primitive, functools.partial(_marked_call, marks=marks), platform="cpu"
        )


def _marked_call(
    ctx: mlir.LoweringRuleContext, *args: Any, closed: ClosedJaxpr, marks: Mapping[str, str]
) -> Any:
    """A call with marks for the compiler."""
    out = mlir.core_call_lowering(ctx, *args, name="saltus_call", call_jaxpr=closed)
    if out:
        first = out[0][0] if isinstance(out[0], list | tuple) else out[0]
        attributes: dict[str, ir.Attribute] = {k: ir.StringAttr.get(v) for k, v in marks.items()}
        first.owner.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get(attributes)
    return out


# -- primitives that hold a program ----------------------------------------------------------------
def run_closed(*args: Array, closed: ClosedJaxpr) -> list[Array]:
    """The results of the program that a primitive holds."""
    return jex.jaxpr_as_fun(closed)(*args)


def results_of_closed(*avals: Aval, closed: ClosedJaxpr) -> list[Any]:
    """The shapes of the results of the program that a primitive holds."""
    return list(closed.out_avals)


kernel_p = Primitive("saltus_kernel")
kernel_p.multiple_results = True
register(kernel_p, run_closed, results_of_closed, marks=_ONE_KERNEL)

loop_p = Primitive("saltus_loop")
loop_p.multiple_results = True


def one_by_one(fn: Callable[[Any], T], elements: Tree) -> T:
    """`fn` of each element along the first axis, in a loop that is one kernel; no derivatives."""
    flat, tree = jax.tree.flatten(jax.lax.stop_gradient(elements))

    def program(*args: Array) -> Tree:
        return jax.lax.map(fn, jax.tree.unflatten(tree, args))

    closed, shape = jax.make_jaxpr(program, return_shape=True)(*flat)
    out = loop_p.bind(*closed.consts, *flat, closed=_open(closed))
    return jax.tree.unflatten(jax.tree.structure(shape), out)


def _open(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program with its constants as leading arguments."""
    fn = lambda *args: core.eval_jaxpr(
        closed.jaxpr, args[: len(closed.consts)], *args[len(closed.consts) :]
    )
    return low(jax.make_jaxpr(fn)(*closed.consts, *[v.aval for v in closed.jaxpr.invars]))


def _loop_batch(
    args: Sequence[Array], dims: Sequence[int | None], *, closed: ClosedJaxpr
) -> tuple[list[Array], list[int]]:
    fn = jax.vmap(jex.jaxpr_as_fun(closed), in_axes=tuple(dims), out_axes=0)
    out = loop_p.bind(*args, closed=jax.make_jaxpr(fn)(*args))
    return out, [0] * len(out)


register(loop_p, run_closed, results_of_closed, batch=_loop_batch, kernel=True)
