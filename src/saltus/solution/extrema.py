"""The least and the largest value of a quantity over a whole trajectory, differentiable.

A trajectory is sampled in cells: eight in every step, and sixty-four or more over its span. In the
best of them the stationary point is located. The value there has the same derivatives as the
quantity at a fixed place, because the motion of the place is multiplied by a slope of zero (M94).
At the start, at the end and on both sides of every jump the quantity need not be stationary; the
states there carry the derivatives of their times.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ..base.kernel import one_by_one
from ..base.leaves import Leaves, check_precision
from ..base.names import leaf_names, unknown, value_of
from ..base.results import Result
from ..base.text import picture
from ..base.tracing import Traced, trace
from ..base.tracing_errors import UNTRACEABLE, untraceable
from ..base.types import Array, Flag, Function, Scalar, Tree, Whole
from ..base.unreached_values import hide, only
from ..model.algebraic_states import attached
from ..model.model import At, Par
from ..simulate.record import Spec
from ..system.hybrid import called
from .peaks import Found, find
from .tape import TAYLOR, Tape, along_row, instant, output

if TYPE_CHECKING:
    from ..system.hybrid import Instant


def quantity(
    spec: Spec, tape: Tape, what: str | Function, adapt: Callable | None
) -> tuple[Traced, list]:
    """`what` as a program of a row state and the parameters, and the values it closes over."""
    model, given = spec.model, (tape.state(0), tape.par())
    flat, tree = jax.tree.flatten(given)

    def read(*leaves: Array) -> Scalar:
        at, par = jax.tree.unflatten(tree, leaves)
        now = instant(model, at, par)
        now = now if adapt is None else adapt(now)
        if isinstance(what, str):
            return _called(what, output(model, at, par), now)
        p = model.p.join(model.p_of(par), par.iota[: model.n_p[1]])
        return called("sol.max or sol.min", what, now, p)

    def program(*leaves: Array) -> list:
        value = read(*leaves)
        if not hasattr(value, "dtype") and not isinstance(value, bool | int | float):
            raise TypeError(
                f"sol.max or sol.min: the function returned {picture(value)}, expected a number "
                "or an array. Write sol.max(lambda now, p: now.x[...])."
            )
        return [jnp.asarray(value, jnp.float64)]

    if not isinstance(what, str) and not callable(what):
        raise TypeError(
            f"sol.max or sol.min: {what!r} is neither the name of a quantity nor a function "
            '(now, p) -> number. Write sol.max("h").'
        )
    avals = [jax.ShapeDtypeStruct(jnp.shape(v), jnp.result_type(v)) for v in flat]
    try:
        return trace(program, avals)
    except UNTRACEABLE as error:
        raise untraceable("sol.max or sol.min", error) from error


def _called(name: str, y: Tree, now: Instant) -> Scalar:
    """An output, state or input of this name."""
    trees = ((y, "y"), (now.x, "x"), (now.z, "z"), (now.d, "d"), (now.u, "u"))
    known: list[str] = []
    for tree, root in trees:
        names = leaf_names(tree, root)
        if name in names or name.partition("[")[0] in names:
            return value_of(tree, name, root)
        known += [n for n in names if n not in known]
    raise unknown(name, known, "output, state or input")


def extremum(
    spec: Spec, tape: Tape, ok: Flag, what: str | Function, sign: float,
    adapt: Callable | None, places: int, rtol: Scalar,
) -> tuple[Array, Array]:  # fmt: skip
    """The largest (`sign` 1) or least (`sign` -1) value of a quantity, and when it occurs (M94).

    Arrays are searched entry by entry. Among equal values one is chosen, with its derivative."""
    program, consts = quantity(spec, tape, what, adapt)
    shape = program.outputs[0].shape
    rtol = jnp.max(jax.lax.stop_gradient(rtol))
    given = (tape, ok, tuple(consts), jnp.asarray(sign), jnp.asarray(rtol))
    run = functools.partial(_extremum, spec, program, int(places))
    if not shape:
        return run(jnp.zeros((), int), *given)
    value, t = jax.lax.map(lambda j: run(j, *given), jnp.arange(math.prod(shape)))
    return value.reshape(shape), t.reshape(shape)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _extremum(
    spec: Spec, program: Traced, places: int, entry: Whole, tape: Tape, ok: Flag, consts: Leaves,
    sign: Scalar, rtol: Scalar,
) -> tuple[Array, Array]:  # fmt: skip
    def quantity(at: At, par: Par) -> Scalar:
        return sign * jnp.reshape(program.call(*consts, *jax.tree.leaves((at, par)))[0], -1)[entry]

    frozen, fixed = jax.lax.stop_gradient((tape, consts))

    def held(at: At, par: Par) -> Scalar:
        return sign * jnp.reshape(program.call(*fixed, *jax.tree.leaves((at, par)))[0], -1)[entry]

    one = jax.tree.map(lambda v: v[None], frozen)
    found = one_by_one(lambda tape: find(spec, tape, held, places, rtol), one)
    found = jax.tree.map(lambda v: jax.lax.stop_gradient(v[0]), found)
    known = ok & ~found.missing
    floats = [jnp.sum(c) for c in consts if jnp.issubdtype(jnp.result_type(c), jnp.floating)]
    depends = sum(floats, tape.depends)
    tape, consts = only(known, (tape, consts))
    inner, t_inner = _inside(spec, tape, quantity, found)
    at = attached(spec.model, tape.state(found.edge), tape.par(), TAYLOR)
    outer, t_outer = quantity(at, tape.par()), tape.t0 + at.tau
    value = jnp.where(found.inside, inner, outer)
    t = jnp.where(found.inside, t_inner, t_outer)
    value, t = _underivable(value, found.kink), _underivable(t, found.kink)
    return hide(known, (sign * value, t), depends)


@jax.custom_jvp
def _underivable(value: Array, bad: Flag) -> Array:
    """The same value; its derivatives are NaN where `bad`."""
    return value


@_underivable.defjvp
def _underivable_jvp(given: tuple, along: tuple) -> tuple:
    value, bad = given
    return _underivable(value, bad), along[0] * jnp.where(bad, jnp.nan, 1.0)


# -- derivatives --------------------------------------------------------------------------------
def _inside(spec: Spec, tape: Tape, quantity: Callable, found: Found) -> tuple[Any, Any]:
    """Value and time at a place inside a row, as functions of the parameters (M94).

    The place moves so that the slope stays the same; two Newton steps with the curvature held
    constant make its first two derivatives exact without changing its value."""
    par, k = tape.par(), found.row
    start = tape.state(k).tau
    h = jax.lax.stop_gradient(found.part * (tape.state(k + 1).tau - start))

    def value(h: Scalar) -> Scalar:
        return quantity(along_row(spec, tape, k, h), par)

    def slope(h: Scalar) -> Scalar:
        return jax.jvp(value, (h,), (jnp.ones_like(h),))[1]

    first, bend = jax.lax.stop_gradient(jax.jvp(slope, (h,), (jnp.ones_like(h),)))
    curved = jnp.isfinite(bend) & (bend < 0)
    bend = jnp.where(curved, bend, -jnp.inf)
    place = h
    for _ in range(2):
        place = place - (slope(place) - first) / bend
    return value(place), tape.t0 + start + place


# -- methods of a solution ------------------------------------------------------------------------
class Extremes:
    """Extrema of a solution over its whole time span."""

    def max(self, what: str | Function, *, places: int = 64) -> Array:
        """The largest value of `what` from the start to the end, differentiable (M94).

        `what` is the name of an output, state or input, or a function `(now, p) -> number`; an
        array is searched entry by entry. Both sides of every jump count. The search starts from
        eight samples in every step, and from at least `places` over the whole span. NaN if the
        solve failed.
        """
        return self._extremum(what, 1.0, places)[0]

    def min(self, what: str | Function, *, places: int = 64) -> Array:
        """The least value of `what` from the start to the end; see `max` for the arguments."""
        return self._extremum(what, -1.0, places)[0]

    def argmax(self, what: str | Function, *, places: int = 64) -> Array:
        """The time at which `what` is largest, differentiable; see `max` for the arguments."""
        return self._extremum(what, 1.0, places)[1]

    def argmin(self, what: str | Function, *, places: int = 64) -> Array:
        """The time at which `what` is least, differentiable; see `max` for the arguments."""
        return self._extremum(what, -1.0, places)[1]

    def _extremum(self: Any, what: str | Function, sign: float, places: int) -> tuple[Any, Any]:
        check_precision()

        def one(tape: Tape, ok: Flag, rtol: Scalar) -> tuple[Any, Any]:
            return extremum(self.spec, tape, ok, what, sign, self.adapt, places, rtol)

        ok = self.result <= int(Result.terminated)
        for _ in range(jnp.ndim(self.tape.n)):
            one = jax.vmap(one)
        return one(self.tape, ok, self.tolerance[0])
