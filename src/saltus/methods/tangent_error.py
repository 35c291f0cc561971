"""Error control of the linearised flow where the error of the states says nothing about it.

The states of a system at rest have no error however long the steps are, and those far below their
absolute tolerance have none that counts; but derivatives follow the linearised flow, which is as
fast there as anywhere. So if a component moves by less than its tolerance in a step, one tangent,
in a fixed direction without symmetries, is computed along the solution, and its error counts as
well (M95). Its push is the change that it gets from parameters.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves
from ..base.types import Array, Flag, Scalar, Vector, Whole
from ..linalg.dependence import dependence
from ..model.model import At, Model, Par

if TYPE_CHECKING:
    from .method import Goal

REST_TOLERANCES = 1.0  # a component that moves by less in a step is at rest
TINY_TOLERANCES = 1000.0  # absolute ones: a component that is smaller throughout a step is tiny
SMALLEST_RTOL = 3e-12  # a smaller one means that only `atol` was given
DEFAULT_RTOL = 1e-8  # for tangents, if only `atol` was given
MAX_PUSH = 1e-3  # most that parameters change a new tangent in its first step, in its units
EXACT_DEGREE = 4  # of polynomials in time that every method integrates exactly
MAX_VAIN_TESTS = 50.0  # more rejections than a part of the steps, after which tangents are given up
VAIN_PART = 0.3  # of the steps with a tangent may be rejected because of it


class Phase(enum.IntEnum):
    """What is known about the tangent."""

    OFF = 0  # there is none
    NEW = 1  # there was none since the start or a jump
    WAITS = 2  # it is at the start of a step, whose error for it is not known
    FITS = 3  # it is at the end of the step to be tried, whose error for it is known


class Tangent(NamedTuple):
    """A tangent of the moving leaves, in one vector, because loops copy every leaf they carry."""

    numbers: Vector  # its scaled error over a step, the part of its push, vain tests, its entries
    seen: Scalar  # the length of the last step in which all components moved
    phase: Whole

    @property
    def error(self) -> Scalar:
        return self.numbers[0]

    @property
    def push(self) -> Scalar:
        return self.numbers[1]

    @property
    def vain(self) -> Scalar:
        """How many more steps were rejected because of it than may be."""
        return self.numbers[2]

    @property
    def entries(self) -> Vector:
        """The tangent as one vector, at the end of the step over which `error` is."""
        return self.numbers[NAMED_NUMBERS:]


NAMED_NUMBERS = 3  # before the entries


def tested(old: Tangent, error: Scalar, push: Scalar, u: Vector, fits: Flag) -> Tangent:
    """The tangent after its error over a step was estimated, at the end of the step if it fits."""
    vain = jnp.where(fits, jnp.maximum(old.vain - VAIN_PART, 0.0), old.vain + 1.0)
    first = jnp.stack([jnp.minimum(error, 1.0), push, vain]).astype(jnp.float64)
    phase = jnp.where(fits, Phase.FITS, Phase.WAITS).astype(jnp.int32)
    return Tangent(jnp.concatenate([first, u]), old.seen, phase)


def flat(leaves: Sequence[Array]) -> Vector:
    return jnp.concatenate([jnp.ravel(v).astype(jnp.float64) for v in leaves])


def unflat(vector: Vector, like: Sequence[Array]) -> Leaves:
    sizes = [int(np.prod(jnp.shape(v))) for v in like]
    parts = jnp.split(vector, np.cumsum(sizes)[:-1])
    return tuple(p.reshape(jnp.shape(v)).astype(v.dtype) for p, v in zip(parts, like, strict=True))


class Way(NamedTuple):
    """A direction in all that a row depends on besides the moving leaves."""

    rest: Leaves  # the other float leaves of a row state
    theta: Leaves


def unborn(model: Model) -> Tangent | tuple[()]:
    """The tangent before the first step; `()` for flows that are `plain`, which need none."""
    if plain(model):
        return ()
    size = sum(v.size for v in model.flow_fn.traced.outputs)
    numbers, phase = jnp.zeros((NAMED_NUMBERS + size,)), jnp.full((), Phase.NEW, jnp.int32)
    return Tangent(numbers, seen=jnp.zeros(()), phase=phase)


def renewed(tangent: Tangent | tuple[()]) -> Tangent | tuple[()]:
    """The tangent after a jump."""
    if not tangent:
        return tangent
    return tangent._replace(seen=jnp.zeros(()), phase=jnp.full((), Phase.NEW, jnp.int32))


def asked(tangent: Tangent, blind: Flag, h: Scalar) -> Flag:
    """Whether the error of the tangent over a step, `blind` or not, must be known first.

    Not if the step is no longer than one in which all components moved, and the tangent is off.
    Where the linearised flow jumps, as at a kink on which a model rests, shorter steps do not make
    its error smaller: after many tests in vain, there are no more."""
    new = blind & (tangent.phase != Phase.FITS) & (h > tangent.seen)
    return ((tangent.phase == Phase.WAITS) | new) & (tangent.vain <= MAX_VAIN_TESTS)


def counted(tangent: Tangent) -> Scalar:
    """The scaled error of the tangent over a step; 0 if there is none."""
    return jnp.where(tangent.phase == Phase.FITS, tangent.error, 0.0)


def dropped(tangent: Tangent) -> Tangent:
    """The tangent after a step was rejected."""
    return tangent._replace(
        phase=jnp.where(tangent.phase == Phase.FITS, Phase.WAITS, tangent.phase)
    )


def taken(tangent: Tangent, blind: Flag, h: Scalar) -> Tangent:
    """The tangent after a step was accepted: it is needed while a component is at rest."""
    on = (tangent.phase == Phase.FITS) & blind
    phase = jnp.where(on, Phase.WAITS, Phase.OFF).astype(jnp.int32)
    return tangent._replace(seen=jnp.where(blind, tangent.seen, h), phase=phase)


def begun(tangent: Tangent, sizes: Vector) -> Vector:
    """The last tangent, or after a jump a new one.

    After steps without a tangent it is not a new one, because a stiff motion that is at rest now
    and then would need short steps for its transient each time."""
    return jnp.where(tangent.phase == Phase.NEW, _signs([sizes])[0] * sizes, tangent.entries)


def blind(
    model: Model, moves: Sequence[Array | int], sizes: Sequence[Array], ends: Sequence[Leaves],
    atol: Leaves,
) -> Flag:  # fmt: skip
    """Whether some component moves by less than its tolerance in a step, or is tiny (M95)."""
    lost = jnp.zeros((), bool)
    for k, moved in enumerate(driven(model)):
        if not moved:
            continue
        rests = moves[k] <= REST_TOLERANCES * sizes[k]
        if k < model.nx:  # a state, not an integral
            rests = rests | (
                jnp.maximum(*(jnp.abs(v[k]) for v in ends)) <= TINY_TOLERANCES * atol[k]
            )
        lost = lost | jnp.any(rests)
    return lost


def relative(goal: Goal) -> Scalar:
    """The relative tolerance for the tangent; a tiny one means that only `atol` was given."""
    return jnp.where(goal.rtol < SMALLEST_RTOL, DEFAULT_RTOL, goal.rtol)


# -- directions -----------------------------------------------------------------------------------


def _signs(leaves: Sequence[Array], place: int = 0) -> list[np.ndarray]:
    """Numbers between 1/2 and 1 of either sign, the same in every solve."""
    out = []
    for leaf in leaves:
        size = int(np.prod(jnp.shape(leaf)))
        turn = ((np.arange(place, place + size) + 1) * 0.6180339887498949) % 1.0
        sign = np.where((turn * 7) % 1.0 < 0.5, -1.0, 1.0)
        out.append((sign * (0.5 + 0.5 * turn)).reshape(jnp.shape(leaf)))
        place += size
    return out


def way(model: Model, at: At, par: Par) -> Way:
    """A direction in discrete floats and in parameters that are not times."""
    rest, m, used = model.held_of(at), len(model.discrete_of(at)), model.places_of_values
    flags = [*(j < m for j in range(len(rest))), *(j in used for j in range(len(par.theta)))]
    leaves = (*rest, *par.theta)
    out = tuple(
        (s * (1 + jnp.abs(v))).astype(v.dtype) if flag else jnp.zeros_like(v)
        for v, s, flag in zip(leaves, _signs(leaves, 1000), flags, strict=True)
    )
    return Way(out[: len(rest)], out[len(rest) :])


def gentle(tangent: Tangent, slope: Vector, sizes: Vector) -> Scalar:
    """The part of the push by which a new tangent changes little: its change is `slope`."""
    size = jnp.sqrt(jnp.mean((slope / sizes) ** 2))
    part = jnp.where(size > MAX_PUSH, MAX_PUSH / jnp.where(size > 0, size, 1.0), 1.0)
    return jnp.where(tangent.phase == Phase.WAITS, tangent.push, part)


# -- which flows ----------------------------------------------------------------------------------


def _places(model: Model) -> tuple[int, int]:
    """Where time and states begin and end in the arguments of the flow."""
    first = model.flow_fn.traced.n_consts + bool(model.kinks)
    return first, first + 1 + model.nx + model.n_z


@functools.lru_cache(maxsize=512)
def driven(model: Model) -> tuple[bool, ...]:
    """Which moving leaves have a slope that depends on anything that changes within a row."""
    traced = model.flow_fn.traced
    jaxpr, (first, last) = traced.jaxpr, _places(model)
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    nd_f, nd_i = model.n_d
    signals = last + nd_f + nd_i + bool(model.modes)
    changing = {*inputs[first:last], *inputs[signals : signals + len(model.signals)]}
    for eqn in jaxpr.eqns:
        if any(v in changing for v in eqn.invars if not hasattr(v, "val")):
            changing |= set(eqn.outvars)
    return tuple(not hasattr(v, "val") and v in changing for v in jaxpr.outvars)


@functools.lru_cache(maxsize=512)
def plain(model: Model) -> bool:
    """Whether tangents are polynomials in time that every method has exactly, or do not exist.

    The former is so if the flow's derivatives are constant and its Jacobian is nilpotent.
    """
    traced = model.flow_fn.traced
    avals = traced.inputs
    floats = [k for k, a in enumerate(avals) if jnp.issubdtype(a.dtype, jnp.floating)]
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]

    def tangents(args: list[Array], turn: list[Array]) -> list[Array]:
        def moved(some: list[Array]) -> list[Array]:
            full = list(args)
            for k, v in zip(floats, some, strict=True):
                full[k] = v
            return traced.call(*full)

        return jax.jvp(moved, ([args[k] for k in floats],), (turn,))[1]

    try:
        closed = jax.make_jaxpr(tangents)(shapes, [shapes[k] for k in floats])
    except Exception:  # a function without derivatives: there are no tangents
        return True
    if not model.light:
        return False
    first, last = _places(model)
    changing = [k for k in range(first, last)] + _signal_places(model, last)
    if dependence(closed, changing).nnz:
        return False
    moving = [len(avals) + floats.index(k) for k in range(first + 1, first + 1 + model.nx)]
    jac = dependence(closed, moving)
    power = jac = np.asarray(jac.todense(), float)[: jac.shape[1]]
    for _ in range(EXACT_DEGREE - 1):
        power = power @ jac
    return not power.any()


def _signal_places(model: Model, last: int) -> list[int]:
    nd_f, nd_i = model.n_d
    first = last + nd_f + nd_i + bool(model.modes)
    return list(range(first, first + len(model.signals)))
