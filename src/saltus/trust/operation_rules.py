"""What a non-smooth operation decides, and what follows from the decision.

`abs` decides on a sign, `max` on the larger one, `sort` on an order. With the decision given, each
is a smooth function of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from ..base.jax_names import bind_again
from ..base.types import Array, Aval, Equation


def bind(eqn: Equation, values: list) -> list[Array]:
    """The results of an operation on other values."""
    out = bind_again(eqn, values)
    return list(out) if eqn.primitive.multiple_results else [out]


def whole(eqn: Equation) -> bool:
    """Whether no result is a float: a comparison, a place in a table, a rounded number."""
    return not any(_varying(v) for v in eqn.outvars)


def _order(eqn: Equation, values: list) -> Array:
    axis = eqn.params["dimension"]
    place = jax.lax.broadcasted_iota(jnp.int32, jnp.shape(values[0]), axis)
    keys = eqn.params["num_keys"]
    return jax.lax.sort((*values, place), dimension=axis, num_keys=keys, is_stable=True)[-1]


def _in_order(eqn: Equation, values: list, order: Array) -> list[Array]:
    axis = eqn.params["dimension"]
    return [jnp.take_along_axis(jnp.asarray(v), order, axis) for v in values]


def _together(eqn: Equation, v: Array) -> Array:
    """The reduced axes as one, at the end."""
    axes = eqn.params["axes"]
    kept = [k for k in range(v.ndim) if k not in axes]
    return jnp.transpose(v, (*kept, *axes)).reshape(*[v.shape[k] for k in kept], -1)


def _picked(eqn: Equation, v: Array, which: Array) -> list[Array]:
    wide = _together(eqn, v)
    return [jnp.take_along_axis(wide, which[..., None], -1)[..., 0]]


def _turn(v: list) -> Array:
    """The side of the branch cut of `atan2`, if the point is near it; on its axis, 2 or 3."""
    turn = jnp.where(v[1] < 0, jnp.where(v[0] < 0, -1, 1), 0)
    return jnp.where(v[0] == 0, jnp.where(v[1] < 0, 2, 3), turn)


def _angle(v: list, turn: Array) -> list[Array]:
    """The angle without the jump of a full turn, and on the axis without that of half a turn."""
    here = _turn(v)
    full = jnp.where((abs(turn) == 1) & (turn + here == 0), 2 * jnp.pi * turn, 0.0)
    on_axis = jnp.where(turn == 2, jnp.pi, 0.0)
    return [jnp.where((turn >= 2) & (here >= 2), on_axis, jnp.arctan2(*v) + full)]


def _best(eqn: Equation, v: Array, which: Array) -> list[Array]:
    return [jnp.take_along_axis(v, which, eqn.params.get("axis", -1)), which]


class Rule(NamedTuple):
    """The rule of an operation with float results; otherwise the results are the decision."""

    decide: Callable[[Equation, list], Array]
    follow: Callable[[Equation, list, Array], list[Array]]


_ROUND = Rule(lambda e, v: bind(e, v)[0], lambda e, v, o: [o])
RULES = {
    "abs": Rule(lambda e, v: v[0] < 0, lambda e, v, o: [jnp.where(o, -v[0], v[0])]),
    "max": Rule(lambda e, v: v[0] > v[1], lambda e, v, o: [jnp.where(o, v[0], v[1])]),
    "min": Rule(lambda e, v: v[0] < v[1], lambda e, v, o: [jnp.where(o, v[0], v[1])]),
    "sign": _ROUND,
    "floor": _ROUND,
    "ceil": _ROUND,
    "round": _ROUND,
    "rem": Rule(lambda e, v: jnp.trunc(v[0] / v[1]), lambda e, v, o: [v[0] - o * v[1]]),
    "clamp": Rule(
        lambda e, v: jnp.where(v[1] < v[0], -1, jnp.where(v[1] > v[2], 1, 0)),
        lambda e, v, o: [jnp.where(o < 0, v[0], jnp.where(o > 0, v[2], v[1]))],
    ),
    "atan2": Rule(lambda e, v: _turn(v), lambda e, v, o: _angle(v, o)),
    "top_k": Rule(lambda e, v: bind(e, v)[1], lambda e, v, o: _best(e, v[0], o)),
    "sort": Rule(_order, _in_order),
    "reduce_max": Rule(
        lambda e, v: jnp.argmax(_together(e, v[0]), -1), lambda e, v, o: _picked(e, v[0], o)
    ),
    "reduce_min": Rule(
        lambda e, v: jnp.argmin(_together(e, v[0]), -1), lambda e, v, o: _picked(e, v[0], o)
    ),
}
BITS = "bitcast_convert_type"  # integers that change with every change of a float
READS_BITS = {
    "shift_right_logical", "shift_right_arithmetic", "eq", "ne", "lt", "le", "gt", "ge",
    "population_count", "clz",
}  # fmt: skip


def aval_of(v: jex.Var | jex.Literal) -> Aval:
    return cast(Aval, v.aval)  # values of models have shapes


def _floating(v: jex.Var | jex.Literal) -> bool:
    return jnp.issubdtype(aval_of(v).dtype, jnp.floating)


def _varying(v: jex.Var | jex.Literal) -> bool:
    """Whether it is a float or a complex number."""
    return jnp.issubdtype(aval_of(v).dtype, jnp.inexact)


def can_decide(eqn: Equation, moving: list[bool]) -> bool:
    """Whether the outcome of an operation can change when these inputs vary."""
    name = eqn.primitive.name
    floats = [m and _floating(v) for v, m in zip(eqn.invars, moving, strict=True)]
    if name in RULES and any(floats):
        return True
    varying = [m and _varying(v) for v, m in zip(eqn.invars, moving, strict=True)]
    return any(varying) and name != BITS and whole(eqn)


def makes_bits(eqn: Equation, moving: list[bool]) -> bool:
    """Whether the results are the bits of floats that vary."""
    floats = [m and _floating(v) for v, m in zip(eqn.invars, moving, strict=True)]
    return eqn.primitive.name == BITS and any(floats)


def reads_bits(eqn: Equation) -> bool:
    """Whether an operation on the bits of a float decides something: its sign, its exponent."""
    return eqn.primitive.name in READS_BITS and whole(eqn)


def outcome_count(eqn: Equation) -> int:
    """How many outcomes an operation has."""
    if whole(eqn):
        return sum(aval_of(v).size for v in eqn.outvars)
    return aval_of(eqn.invars[0] if eqn.primitive.name == "sort" else eqn.outvars[0]).size


def decide(eqn: Equation, values: list) -> list[Array]:
    """What an operation decides about these values."""
    if whole(eqn):
        return bind(eqn, values)
    return [RULES[eqn.primitive.name].decide(eqn, values)]


def follow(eqn: Equation, values: list, decided: list) -> list[Array]:
    """The results of an operation, given its decision."""
    if whole(eqn):
        return decided
    found = RULES[eqn.primitive.name].follow(eqn, values, decided[0])
    return [v.astype(aval_of(a).dtype) for v, a in zip(found, eqn.outvars, strict=True)]
