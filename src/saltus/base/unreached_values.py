"""Values that were not reached: NaN, with derivatives that are NaN as well.

`where(reached, v, nan)` would have derivative 0 where nothing was reached, which an optimiser takes
for a minimum. Here every derivative is NaN there, in each direction and of each order, with one
exception: a cotangent that is exactly zero stays zero, so that a loss that leaves out the values
that were not reached has a finite gradient.

With `r` for reached and a number `b` that depends on all that the value may depend on, the value is
`a` where `r` and NaN elsewhere, its tangent `da` where `r` and NaN elsewhere, and the cotangent `c`
goes to `a` where `r`, and as NaN to `b` elsewhere (M89).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import core
from jax.extend.core import Primitive
from jax.interpreters import ad

from .batching import aligned
from .kernel import register
from .leaves import dense
from .types import Array, Flag, Leaves, Number, Scalar, T, Tangent

value_p = Primitive("saltus_reached")  # (reached, a, b) -> a, or NaN
tangent_p = Primitive("saltus_reached_tangent")  # (reached, b, da, db) -> da, or NaN
cotangent_p = Primitive("saltus_reached_cotangent")  # (reached, b, c) -> 0, or NaN where c is not


def _value(reached: Array, a: Array, b: Array) -> Array:
    return jnp.where(reached, a, jnp.nan)


def _tangent(reached: Array, b: Array, da: Array, db: Array) -> Array:
    return jnp.where(reached, da, jnp.nan)


def _cotangent(reached: Array, b: Array, c: Array) -> Array:
    return jnp.where(reached | (c == 0), jnp.zeros_like(c), jnp.nan)


def _still(*tangents: Tangent) -> bool:
    return all(isinstance(t, ad.Zero) for t in tangents)


def _zero(out: Array) -> ad.Zero:
    return ad.Zero(jax.typeof(out).to_tangent_aval())


def _value_jvp(primals: Sequence[Array], tangents: Sequence[Tangent]) -> tuple[Array, Tangent]:
    (reached, _, b), (_, *moved) = primals, tangents
    out = value_p.bind(*primals)
    if _still(*moved):
        return out, _zero(out)
    return out, tangent_p.bind(reached, b, *map(dense, moved))


def _tangent_jvp(primals: Sequence[Array], tangents: Sequence[Tangent]) -> tuple[Array, Tangent]:
    """The tangent of NaN is NaN: a tangent of `b` counts as well."""
    (reached, b, _, _), (_, *moved) = primals, tangents
    out = tangent_p.bind(*primals)
    if _still(*moved):
        return out, _zero(out)
    tb, tda, tdb = map(dense, moved)
    return out, tangent_p.bind(reached, b, tda, tdb + tb)


def _tangent_transpose(
    c: Tangent,
    reached: Array,
    b: Array,
    da: Array | ad.UndefinedPrimal,
    db: Array | ad.UndefinedPrimal,
) -> tuple:
    if isinstance(c, ad.Zero):
        return None, None, c, c
    own = jnp.where(reached, c, jnp.zeros_like(c)) if ad.is_undefined_primal(da) else None
    lost = cotangent_p.bind(reached, b, c) if ad.is_undefined_primal(db) else None
    return None, None, own, lost


def _cotangent_jvp(primals: Sequence[Array], tangents: Sequence[Tangent]) -> tuple[Array, Tangent]:
    (reached, b, c), (_, tb, tc) = primals, tangents
    out = cotangent_p.bind(*primals)
    if _still(tb, tc):
        return out, _zero(out)
    dout = cotangent_p.bind(reached, b, dense(tc))
    clean = reached | (c == 0)
    return out, dout + tangent_p.bind(clean, b, jnp.zeros_like(c), dense(tb))


def _cotangent_transpose(ct: Tangent, reached: Array, b: Array, c: ad.UndefinedPrimal) -> tuple:
    return None, None, ct if isinstance(ct, ad.Zero) else cotangent_p.bind(reached, b, ct)


def _define(
    primitive: Primitive, fn: Callable, jvp: Callable, transpose: Callable | None = None
) -> None:
    """Register a primitive that acts entry by entry on operands of one shape."""
    register(
        primitive,
        fn,
        lambda *avals: core.ShapedArray(avals[-1].shape, avals[-1].dtype),
        batch=lambda args, dims: (primitive.bind(*aligned(args, dims)), 0),
        jvp=jvp,
        transpose=transpose,
        impl=jax.jit(fn),
    )


_define(value_p, _value, _value_jvp)
_define(tangent_p, _tangent, _tangent_jvp, _tangent_transpose)
_define(cotangent_p, _cotangent, _cotangent_jvp, _cotangent_transpose)


@jax.jit
def everything(leaves: Leaves) -> Scalar:
    """One number that depends on every float in `leaves`."""
    floats = [v for v in leaves if jnp.issubdtype(v.dtype, jnp.floating)]
    return sum((jnp.sum(v, dtype=jnp.float64) for v in floats), jnp.zeros(()))


def hide(reached: Array, tree: T, depends: Array | float | None) -> T:
    """The floats of `tree` where `reached`, and elsewhere NaN.

    `reached` has the leading axes of the leaves. `depends` is a number, or one for each entry of
    `reached`: where a value is NaN, so are its derivatives with respect to everything on which that
    number depends. With None, there are no such derivatives.
    """
    reached = jnp.asarray(reached)
    depends = jnp.broadcast_to(0.0 if depends is None else depends, reached.shape)

    def one(v: Number) -> Array:
        v = jnp.asarray(v)
        if not jnp.issubdtype(v.dtype, jnp.floating):
            return v
        axes = tuple(range(reached.ndim, v.ndim))
        known, whole = (
            jnp.broadcast_to(jnp.expand_dims(u, axes), v.shape) for u in (reached, depends)
        )
        return value_p.bind(known, v, whole.astype(v.dtype))

    return jax.tree.map(one, tree)


def only(ok: Flag, tree: T) -> T:
    """The same values, without derivatives unless `ok`: this keeps `0 * nan` out of gradients."""

    def one(v: Array) -> Array:
        if not jnp.issubdtype(jnp.result_type(v), jnp.floating):
            return v
        return jnp.where(ok, v, jax.lax.stop_gradient(v))

    return jax.tree.map(one, tree)
