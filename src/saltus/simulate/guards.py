"""Values, signs, slopes and rounding of guards."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..base.leaves import Leaves, select
from ..base.types import Array, Flag, Scalar, Whole
from ..model.algebraic_states import attached, solved
from ..model.model import Action, At, Model, Par
from .detection import fires
from .record import Carry
from .states import Side, is_armed

EPS = float(jnp.finfo(jnp.float64).eps)
GUARD_NOISE = 64  # times the rounding of a guard; smaller values count as zero


def sigma(par: Par) -> Scalar:
    """+1 forward, -1 backward in time."""
    return jnp.where(par.backward, -1.0, 1.0)


def resolution(tau: Scalar | float, h: Scalar | float = 0.0) -> Scalar:
    """The smallest difference between times near `tau` that is more than rounding."""
    return 8 * EPS * jnp.maximum(jnp.abs(tau), jnp.abs(h))


def guard_slopes(model: Model, at: At, par: Par, k: Leaves) -> tuple[Leaves, Leaves]:
    """The guards and their derivatives along the flow `k`."""
    k = tuple(d.astype(v.dtype) for d, v in zip(k, model.moving_of(at), strict=True))

    def values(tau: Scalar, moving: Leaves) -> Leaves:
        here = model.with_moving(at, moving, tau=tau)
        if looking:
            here = attached(model, here, par, 1)
        return model.guard_values(here, par)

    looking = model.constraint is not None and any(model.constraint.seen)
    return jax.jvp(values, (at.tau, model.moving_of(at)), (jnp.ones_like(at.tau), tuple(k)))


def rounding(model: Model, at: At, par: Par, slopes: Leaves) -> Leaves:
    """How far from zero each guard may be because of rounding of the state and of time."""
    w, z = at.w, at.z

    def values(tau: Scalar, leaves: Leaves, z: Leaves) -> Leaves:
        return model.guard_values(At(tau, leaves, at.i, z), par)

    _, scales = jax.jvp(values, (at.tau, w, z), (at.tau, w, z))
    return tuple(
        64 * EPS * (jnp.abs(s) + jnp.abs(at.tau * d)) for s, d in zip(scales, slopes, strict=True)
    )


def _guard_side(
    action: Action,
    was: Array,
    value: Array,
    tiny: Array,
    active: Flag,
    fired: Flag,
    waits: Flag,
    sig: Scalar,
) -> Array:
    """The side of one guard after a jump (or at a start, where `was` is Side.INACTIVE)."""
    direction = action.direction * sig
    sign = jnp.sign(value).astype(jnp.int32)
    if action.direction == 0:
        was = jnp.where(was == Side.ABOVE, 1, jnp.where(was == Side.BELOW, -1, was))
    zero = jnp.abs(value) <= tiny
    firing_side = fires(sign, direction) & (action.direction != 0)
    across = jnp.where(firing_side, -sign, sign)  # as if it came from the other side: it fires
    came = jnp.where(sig > 0, across, sign) if action.level else sign  # backward: as an "edge"
    armed = is_armed(was)
    side = jnp.where(
        armed,
        jnp.where((sign != was) & fires(sign, direction), was, sign),
        jnp.where(was == Side.FRESH, across, jnp.where(was == Side.INACTIVE, came, sign)),
    )
    fresh = jnp.where(was > 0, Side.ABOVE, Side.BELOW) if action.direction == 0 else Side.FRESH
    landed = jnp.where(
        armed, jnp.where(waits, was, fresh), jnp.where(was == Side.INACTIVE, Side.FRESH, was)
    )
    side = jnp.where(zero, landed, side)
    if action.contact:  # if it is beyond zero when it becomes active, it counts as zero
        side = jnp.where((was == Side.INACTIVE) & firing_side & (sig > 0), Side.FRESH, side)
    side = jnp.where(fired, jnp.where(zero, Side.FIRED, sign), side)
    return jnp.where(active, side, Side.INACTIVE).astype(jnp.int32)


def members(action: Action) -> Array | int:
    return 0 if action.size is None else jnp.arange(action.size, dtype=jnp.int32)


class Here(NamedTuple):
    """What is evaluated after a jump."""

    at: At  # with its algebraic states
    found: Flag  # whether they were found
    k1: Leaves
    values: Leaves
    slopes: Leaves
    tiny: Leaves
    active: Leaves


def evaluated(model: Model, at: At, par: Par) -> Here:
    new, found = solved(model, at, par)
    at = at._replace(z=select(found, new.z, at.z))
    k1 = model.flow(at, par)
    if not model.guards:
        return Here(at=at, found=found, k1=k1, values=(), slopes=(), tiny=(), active=())
    values, slopes = guard_slopes(model, at, par, k1)
    active = tuple(jnp.asarray(a) for a in model.guard_active(at, par))
    tiny = rounding(model, at, par, slopes)
    return Here(at=at, found=found, k1=k1, values=values, slopes=slopes, tiny=tiny, active=active)


def _passes(c: Carry, here: Here, j: int) -> Flag:
    """Whether a guard reached zero along the flow, and moves on in the same way after the reset."""
    armed = is_armed(c.sides[j])
    same = jnp.sign(here.slopes[j]) * jnp.sign(c.slopes[j]) > 0
    return armed & same & (jnp.abs(here.values[j] - c.values[j]) <= here.tiny[j])


def guards_after(
    model: Model, par: Par, c: Carry, here: Here, fired: Whole, member: Whole | int, starting: bool
) -> tuple[Leaves, Leaves, Leaves]:
    """The sides of guards, which of them wait their turn, and which the jump moved across zero."""
    sig = sigma(par)
    sides, together, due = [], [], []
    for j, action in enumerate(model.guards):
        value, tiny, active = here.values[j], here.tiny[j], here.active[j]
        mine = (fired == model.actions.index(action)) & (members(action) == member)
        if not starting:  # a root counts as zero, in spite of rounding
            unmoved = c.together[j] & (jnp.abs(value - c.values[j]) <= tiny)
            tiny = jnp.where(unmoved, jnp.maximum(tiny, jnp.abs(value)), tiny)
        waits = c.together[j] & ~mine & (jnp.abs(value) <= tiny) & active
        side = _guard_side(action, c.sides[j], value, tiny, active, mine, waits, sig)
        contact = action.reset is not None and not action.terminal
        if starting and not contact:
            side = jnp.where(side == Side.FRESH, Side.FIRED, side)
        if not starting:
            side = jnp.where((side == Side.FIRED) & mine & _passes(c, here, j), Side.PASSED, side)
        if contact and not starting and action.direction != 0:
            # it has fired, and another reset at this instant turns it to its firing side again
            turned = fires(jnp.sign(here.slopes[j]).astype(jnp.int32), action.direction * sig)
            if not action.contact:
                turned = turned & (action.direction * sig * c.slopes[j] < 0)
            side = jnp.where(
                ((side == Side.FIRED) | (side == Side.PASSED)) & ~mine & turned, Side.FRESH, side
            )
        if action.kink:
            side = 2 * c.at.i[model.place_flags] - 1
        sign = jnp.sign(value).astype(jnp.int32)
        armed = is_armed(side)
        crossed = armed & (sign == -side) & fires(sign, action.direction * sig)
        sides.append(side)
        together.append(waits)
        due.append(waits | (crossed & (jnp.abs(value) > tiny)))
    return tuple(sides), tuple(together), tuple(due)


def timers_after(
    model: Model, at: At, par: Par, c: Carry, fired: Whole
) -> tuple[Leaves, Leaves, Scalar]:
    """Timed actions that are due later, those that are due now, and the next time."""
    sig, tol = sigma(par), resolution(at.tau)
    armed, due, target = [], [], sig * jnp.inf
    for k, action in enumerate(model.timed):
        time = model.time_of(action, at, par)
        here = jnp.abs(time - at.tau) <= tol
        if action.kind != "stop":
            here = here & c.armed[k] & (fired != model.actions.index(action))
        ready = ((sig * (time - at.tau) > tol) | here) & jnp.isfinite(time)
        armed.append(ready)
        due.append(here & ready)
        target = jnp.where(ready & (sig * (time - target) < 0), time, target)
    return tuple(armed), tuple(due), target


def refresh_flags(model: Model, at: At, par: Par, fired: Whole, member: Whole | int) -> At:
    """The outcomes of the comparisons in `when`, after a jump or at the start.

    The one that fired is reversed. The others follow the sign of their guard, or that of its slope
    if the guard is zero.
    """
    if not model.kinks:
        return at
    action = next(a for a in model.actions if a.kink)
    values, slopes = guard_slopes(model, at, par, model.flow(at, par))
    value, slope = values[action.index], slopes[action.index]
    tiny = rounding(model, at, par, slopes)[action.index]
    old = at.i[model.place_flags]
    mine = fired == model.actions.index(action)
    leaving = sigma(par) * slope > 0
    here = jnp.where(jnp.abs(value) > tiny, value > 0, leaving).astype(old.dtype)
    turned = jnp.where(jnp.arange(model.kinks) == member, 1 - old, old)
    flags = jnp.where(mine, turned, here)
    return at._replace(i=(*at.i[: model.place_flags], flags))
