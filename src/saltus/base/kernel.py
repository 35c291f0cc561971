"""Batches as lanes of one loop, and loops as one kernel.

A primitive is batched level by level: each `vmap` around it adds one level, which says for every
argument whether it has that axis. Arrays with rows keep the row axis first, then the levels,
outermost first: `(rows, lanes, leaf)`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import core
from jax.extend import core as jex
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from .control_flow import call_lowering, compiled_alone
from .jax_names import inner_jaxprs, low

# XLA's CPU compiler runs a loop body as a list of small kernels, which costs a microsecond per
# iteration. A call with these marks is compiled as one function instead: ten times faster for the
# scalar loops here, and quicker to compile. Unknown to a compiler, they change nothing.
_ONE_KERNEL = {"inlineable": "false", "xla_cpu_small_call": "true"}
_ELEMENTWISE = [
    "add",
    "sub",
    "mul",
    "div",
    "neg",
    "sign",
    "abs",
    "max",
    "min",
    "pow",
    "integer_pow",
    "sqrt",
    "rsqrt",
    "cbrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "atan2",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "erf_inv",
    "lgamma",
    "digamma",
    "logistic",
    "floor",
    "ceil",
    "round",
    "rem",
    "square",
    "select_n",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "and",
    "or",
    "not",
    "xor",
    "clamp",
    "is_finite",
    "nextafter",
    "shift_left",
    "shift_right_logical",
    "shift_right_arithmetic",
    "convert_element_type",
    "add_any",
    "copy",
    "stop_gradient",
    "reduce_precision",
    "population_count",
    "clz",
    "real",
    "imag",
    "complex",
    "conj",
]
_SHAPES = [
    "broadcast_in_dim",
    "reshape",
    "squeeze",
    "expand_dims",
    "concatenate",
    "slice",
    "dynamic_slice",
    "dynamic_update_slice",
    "gather",
    "pad",
    "iota",
    "rev",
    "transpose",
    "split",
    "stack",
    "unstack",
    "tile",
    "reduce_sum",
    "reduce_max",
    "reduce_min",
    "reduce_and",
    "reduce_or",
    "reduce_prod",
    "argmax",
    "argmin",
    "cumsum",
    "cumprod",
    "cummax",
    "cummin",
]
_CONTROL = [
    "while",
    "cond",
    "scan",
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "remat",
    "remat2",
    "checkpoint",
    "saltus_stage",
    "saltus_branch",
    "saltus_when",
    "saltus_run",
    "saltus_solve",
    "saltus_inverse",
]
_KNOWN = frozenset(_ELEMENTWISE + _SHAPES + _CONTROL)


def _fits(jaxpr: Any) -> bool:
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


def _small_dot(eqn: Any) -> bool:
    """Matrix-vector products; larger ones are better left to the library."""
    (_, (batch_a, batch_b)) = eqn.params["dimension_numbers"]
    sizes = [v.aval.size for v in eqn.invars]
    ranks = [v.aval.ndim for v in eqn.invars]
    return not batch_a and not batch_b and min(ranks) <= 1 and max(sizes) <= 4096


def _library_sum(eqn: Any) -> bool:
    """Reductions that the compiler gives to a library, which it cannot call from one kernel."""
    if eqn.primitive.name not in ("reduce_sum", "reduce_max", "reduce_min"):
        return False
    operand = eqn.invars[0].aval
    return operand.size >= 4096 and operand.dtype.kind == "f"


kernel_p = Primitive("saltus_kernel")
kernel_p.multiple_results = True


@kernel_p.def_abstract_eval
def _kernel_abstract(*avals: Any, closed: Any) -> list:
    return list(closed.out_avals)


def _kernel_lowering(ctx: Any, *args: Any, closed: Any) -> Any:
    return call_lowering(ctx, *args, closed=closed, marks=_ONE_KERNEL)


mlir.register_lowering(kernel_p, _kernel_lowering)


def _touch(args: Sequence[Any]) -> Any:
    """Something that depends on every argument: the compiler aborts on one that is not used."""
    return sum((jnp.real(jnp.ravel(a)[0]).astype(jnp.float64) for a in args), jnp.zeros(()))


def one_kernel(fn: Callable, platform: str) -> Callable:
    """`fn` on flat arguments, compiled as one kernel where the platform and the model allow it.

    Set the environment variable SALTUS_ONE_KERNEL=0 to do without.
    """

    def call(*args: Any) -> Any:
        if platform != "cpu" or os.environ.get("SALTUS_ONE_KERNEL", "1") == "0":
            return fn(*args)
        some = [jnp.size(a) > 0 for a in args]

        def touched(*given: Any) -> list:
            it = iter(given)
            full = [next(it) if s else jnp.zeros_like(a) for a, s in zip(args, some, strict=True)]
            return [*fn(*full), _touch(given)]

        given = [a for a, s in zip(args, some, strict=True) if s]
        closed = low(jax.make_jaxpr(touched)(*given))
        if not _fits(closed.jaxpr):
            return jex.jaxpr_as_fun(closed)(*given)[:-1]
        # Behind a barrier, the compiler cannot pull constants in and leave arguments unused.
        barrier = jax.lax.optimization_barrier
        return barrier(kernel_p.bind(*barrier(given), closed=closed))[:-1]

    return call


loop_p = Primitive("saltus_loop")
loop_p.multiple_results = True


def one_by_one(fn: Callable, elements: Any) -> Any:
    """`fn` of each element along the first axis, in a loop that is one kernel; no derivatives."""
    flat, tree = jax.tree.flatten(jax.lax.stop_gradient(elements))

    def program(*args: Any) -> Any:
        return jax.lax.map(fn, jax.tree.unflatten(tree, args))

    closed, shape = jax.make_jaxpr(program, return_shape=True)(*flat)
    out = loop_p.bind(*closed.consts, *flat, closed=_open(closed))
    return jax.tree.unflatten(jax.tree.structure(shape), out)


def _open(closed: Any) -> Any:
    """The same program with its constants as leading arguments."""
    fn = lambda *args: core.eval_jaxpr(
        closed.jaxpr, args[: len(closed.consts)], *args[len(closed.consts) :]
    )
    return low(jax.make_jaxpr(fn)(*closed.consts, *[v.aval for v in closed.jaxpr.invars]))


@loop_p.def_abstract_eval
def _loop_abstract(*avals: Any, closed: Any) -> list:
    return list(closed.out_avals)


def _loop_batch(args: Any, dims: Any, *, closed: Any) -> tuple:
    fn = jax.vmap(jex.jaxpr_as_fun(closed), in_axes=tuple(dims), out_axes=0)
    out = loop_p.bind(*args, closed=jax.make_jaxpr(fn)(*args))
    return out, [0] * len(out)


batching.primitive_batchers[loop_p] = _loop_batch


def _loop_lowering(platform: str) -> Any:
    def run(*args: Any, closed: Any) -> list:
        return one_kernel(jex.jaxpr_as_fun(closed), platform)(*args)

    return mlir.lower_fun(run, multiple_results=True)


mlir.register_lowering(loop_p, _loop_lowering("cpu"), platform="cpu")
mlir.register_lowering(loop_p, _loop_lowering("other"))
for primitive in (kernel_p, loop_p):
    compiled_alone(primitive)
