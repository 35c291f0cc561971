"""Decisions around jumps: who fires next at this instant, and what the guards know afterwards."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .consistent import SINGULAR, attached, begun, hidden, regularity, solved, violated
from .control import FORGOTTEN
from .flat import flattened
from .invariants import broken
from .leaves import Leaves, blank, select
from .locate import ABOVE, BELOW, FIRED, FRESH, INACTIVE, PASSED, fires
from .methods.base import Stepper
from .methods.tangent import renewed
from .model import Action, At, Model, Par
from .record import (
    Carry,
    Counts,
    Knobs,
    Rows,
    approach_kind,
    empty_pace,
    empty_search,
    reset_kind,
)
from .results import Result
from .rhythm import paced, trapped
from .staging import staged
from .validity import bad_mode

EPS = float(jnp.finfo(jnp.float64).eps)


def sigma(par: Par) -> Any:
    """+1 forward, -1 backward in time."""
    return jnp.where(par.backward, -1.0, 1.0)


def resolution(tau: Any, h: Any = 0.0) -> Any:
    """The shortest difference of times that means anything here."""
    return 8 * EPS * jnp.maximum(jnp.abs(tau), jnp.abs(h))


def guard_slopes(model: Model, at: At, par: Par, k: Leaves) -> tuple[Leaves, Leaves]:
    """The guards and their derivatives along the flow `k`."""
    m = model.moving
    rest = at.w[m:]
    k = tuple(d.astype(v.dtype) for d, v in zip(k, at.w[:m], strict=True))

    def values(tau: Any, moving: Leaves) -> Leaves:
        here = At(tau, (*moving, *rest), at.i, at.z)
        if looking:
            here = attached(model, here, par, 1)
        return model.guard_values(here, par)

    looking = model.constraint is not None and any(model.constraint.seen)
    return jax.jvp(values, (at.tau, at.w[:m]), (jnp.ones_like(at.tau), tuple(k)))


def rounding(model: Model, at: At, par: Par, slopes: Leaves) -> Leaves:
    """How far from zero each guard may be by rounding of the state and of time."""
    w, z = at.w, at.z

    def values(tau: Any, leaves: Leaves, z: Leaves) -> Leaves:
        return model.guard_values(At(tau, leaves, at.i, z), par)

    _, scales = jax.jvp(values, (at.tau, w, z), (at.tau, w, z))
    return tuple(
        64 * EPS * (jnp.abs(s) + jnp.abs(at.tau * d)) for s, d in zip(scales, slopes, strict=True)
    )


def _guard_side(
    action: Action, was: Any, value: Any, tiny: Any, active: Any, fired: Any, waits: Any, sig: Any
) -> Any:
    """The side of one guard after a jump (or at a start, where `was` is INACTIVE)."""
    direction = action.direction * sig
    sign = jnp.sign(value).astype(jnp.int32)
    if action.direction == 0:
        was = jnp.where(was == ABOVE, 1, jnp.where(was == BELOW, -1, was))
    zero = jnp.abs(value) <= tiny
    firing_side = fires(sign, direction) & (action.direction != 0)
    across = jnp.where(firing_side, -sign, sign)  # pretend it came from the other side: it fires
    came = jnp.where(sig > 0, across, sign) if action.level else sign  # backward there are edges
    armed = (was == 1) | (was == -1)
    side = jnp.where(
        armed,
        jnp.where((sign != was) & fires(sign, direction), was, sign),
        jnp.where(was == FRESH, across, jnp.where(was == INACTIVE, came, sign)),
    )
    fresh = jnp.where(was > 0, ABOVE, BELOW) if action.direction == 0 else FRESH
    landed = jnp.where(armed, jnp.where(waits, was, fresh), jnp.where(was == INACTIVE, FRESH, was))
    side = jnp.where(zero, landed, side)
    if action.contact:  # where it comes into force beyond zero, it counts as being there
        side = jnp.where((was == INACTIVE) & firing_side & (sig > 0), FRESH, side)
    side = jnp.where(fired, jnp.where(zero, FIRED, sign), side)
    return jnp.where(active, side, INACTIVE).astype(jnp.int32)


def members(action: Action) -> Any:
    return 0 if action.size is None else jnp.arange(action.size, dtype=jnp.int32)


class _Here(NamedTuple):
    """What is evaluated after a jump."""

    at: At  # with its algebraic states
    found: Any  # whether there are any
    k1: Leaves
    values: Leaves
    slopes: Leaves
    tiny: Leaves
    active: Leaves


def _evaluate(model: Model, at: At, par: Par) -> _Here:
    new, found = solved(model, at, par)
    at = at._replace(z=select(found, new.z, at.z))
    k1 = model.flow(at, par)
    if not model.guards:
        return _Here(at, found, k1, (), (), (), ())
    values, slopes = guard_slopes(model, at, par, k1)
    active = tuple(jnp.asarray(a) for a in model.guard_active(at, par))
    return _Here(at, found, k1, values, slopes, rounding(model, at, par, slopes), active)


def _passes(c: Carry, here: _Here, j: int) -> Any:
    """Whether a guard came to zero by itself, and moves on the same way after the reset."""
    armed = (c.sides[j] == 1) | (c.sides[j] == -1)
    same = jnp.sign(here.slopes[j]) * jnp.sign(c.slopes[j]) > 0
    return armed & same & (jnp.abs(here.values[j] - c.values[j]) <= here.tiny[j])


def _guards_after(
    model: Model, par: Par, c: Carry, here: _Here, fired: Any, member: Any, starting: bool
) -> tuple[Leaves, Leaves, Leaves]:
    """Sides, those that wait for their turn, and those that the jump has carried across zero."""
    sig = sigma(par)
    sides, together, due = [], [], []
    for j, action in enumerate(model.guards):
        value, tiny, active = here.values[j], here.tiny[j], here.active[j]
        mine = (fired == model.actions.index(action)) & (members(action) == member)
        if not starting:  # a root is zero, whatever rounding makes of it
            unmoved = c.together[j] & (jnp.abs(value - c.values[j]) <= tiny)
            tiny = jnp.where(unmoved, jnp.maximum(tiny, jnp.abs(value)), tiny)
        waits = c.together[j] & ~mine & (jnp.abs(value) <= tiny) & active
        side = _guard_side(action, c.sides[j], value, tiny, active, mine, waits, sig)
        contact = action.reset is not None and not action.terminal
        if starting and not contact:
            side = jnp.where(side == FRESH, FIRED, side)
        if not starting:
            side = jnp.where((side == FIRED) & mine & _passes(c, here, j), PASSED, side)
        if contact and not starting and action.direction != 0:
            # it has fired, and another reset of this instant turns it back to its firing side
            turned = fires(jnp.sign(here.slopes[j]).astype(jnp.int32), action.direction * sig)
            if not action.contact:
                turned = turned & (action.direction * sig * c.slopes[j] < 0)
            side = jnp.where(((side == FIRED) | (side == PASSED)) & ~mine & turned, FRESH, side)
        if action.kink:
            side = 2 * c.at.i[model.place_flags] - 1
        sign = jnp.sign(value).astype(jnp.int32)
        armed = (side == 1) | (side == -1)
        crossed = armed & (sign == -side) & fires(sign, action.direction * sig)
        sides.append(side)
        together.append(waits)
        due.append(waits | (crossed & (jnp.abs(value) > tiny)))
    return tuple(sides), tuple(together), tuple(due)


def _timers_after(
    model: Model, at: At, par: Par, c: Carry, fired: Any
) -> tuple[Leaves, Leaves, Any]:
    """Timed actions that lie ahead, those due right now, and the nearest time ahead."""
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


def settle(
    model: Model,
    at: At,
    par: Par,
    c: Carry,
    fired: Any,
    member: Any,
    knobs: Knobs,
    starting: bool = False,
) -> Carry:
    """The loop's state after a jump to `at` (or at the start), with the next firing chosen."""
    first = staged(lambda: _evaluate(model, at, par))
    here = first
    if not starting:
        here = flattened(model, first, par, c.sides, guard_slopes, asked(knobs)[0])
    sides, together, due = staged(
        lambda: _guards_after(model, par, c, here, fired, member, starting)
    )
    at = here.at
    armed, now, target = staged(lambda: _timers_after(model, at, par, c, fired))
    code = c.code
    waiting = at.w[model.place_pending :]
    if waiting:
        lost = functools.reduce(jnp.logical_or, [jnp.isnan(v) for v in waiting])
        running = code == int(Result.running)
        code = jnp.where(lost & running, int(Result.non_finite), code).astype(code.dtype)
    if model.modes:
        code = jnp.where(bad_mode(model, at), int(Result.invalid_mode), code).astype(code.dtype)
    if model.constraint is not None or model.invariant is not None:
        before = code
        code = staged(lambda: _consistency(model, at, par, knobs, here.found, before))
    c = c._replace(
        code=code, at=at, k1=here.k1, values=here.values, slopes=here.slopes, sides=sides,
        leaving=tuple(jnp.zeros_like(v) for v in here.values), together=together, armed=armed,
        target=target,
    )  # fmt: skip
    pairs = [*zip(due, together, strict=True), *((f, f) for f in now)]
    return choose(model, c, pairs)


def asked(knobs: Knobs) -> tuple[Any, Leaves]:
    """The tolerances as the user gave them, whatever the method makes of them."""
    return knobs.rtol * knobs.asked, tuple(a * knobs.asked for a in knobs.atol)


def _consistency(model: Model, at: At, par: Par, knobs: Knobs, found: Any, code: Any) -> Any:
    """Why the state after a jump (or at the start) cannot be gone on with, if so."""
    rtol, atol = asked(knobs)
    off = violated(model, at, par, rtol, atol) | broken(model, at, par, rtol, atol)
    if model.constraint is None:
        return jnp.where(off, int(Result.inconsistent), code).astype(code.dtype)
    finite = jnp.isfinite(sum(jnp.sum(v) for v in hidden(model, at, par)))
    flat = finite & ~(regularity(model, at, par) > SINGULAR)
    why = jnp.where(off, int(Result.inconsistent), int(Result.no_consistent_state))
    why = jnp.where(flat, int(Result.singular), why)
    return jnp.where(found & ~off & ~flat, code, why).astype(code.dtype)


def choose(model: Model, c: Carry, due: list) -> Carry:
    """The first due action in order of declaration; `due` holds (due, rooted), guards first."""
    guards = iter(due[: len(model.guards)])
    timed = iter(due[len(model.guards) :])
    jump = jnp.full((), -1, jnp.int32)
    member = jnp.zeros((), jnp.int32)
    rooted = jnp.zeros((), bool)
    for place, action in enumerate(model.actions):
        if action.kind == "zeno":
            continue
        flags, roots = next(guards if action.kind == "guard" else timed)
        first = jnp.zeros((), jnp.int32)
        if action.size is not None:
            first = jnp.argmax(flags).astype(jnp.int32)
            flags, roots = jnp.any(flags), jnp.asarray(roots)[first]
        take = (jump < 0) & flags
        jump = jnp.where(take, place, jump)
        member = jnp.where(take, first, member)
        rooted = jnp.where(take, roots, rooted)
    return c._replace(jump=jump, member=member, rooted=rooted)


def refresh_flags(model: Model, at: At, par: Par, fired: Any, member: Any) -> At:
    """Outcomes of the comparisons that `when` marked, after a jump (or before anything fired).

    The one that fired is turned over. The others follow their guard, or where that is zero, the
    way it is going.
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


def start(model: Model, at: At, par: Par, knobs: Knobs) -> Carry:
    """The loop's state before the first decision (step size still open)."""
    zero = jnp.zeros(())
    shapes = [() if a.size is None else (a.size,) for a in model.guards]
    blank = Carry(
        at=at, k1=(), h=zero, error=zero, values=(), slopes=(),
        sides=tuple(jnp.full(s, INACTIVE, jnp.int32) for s in shapes), leaving=(),
        together=tuple(jnp.zeros(s, bool) for s in shapes),
        armed=tuple(jnp.zeros((), bool) for _ in model.timed),
        target=zero, jump=jnp.full((), -1, jnp.int32), member=jnp.zeros((), jnp.int32),
        rooted=jnp.zeros((), bool), search=empty_search(),
        counts=Counts(*([jnp.zeros((), jnp.int32)] * len(Counts._fields))),
        pace=empty_pace(model.n_guards), code=jnp.full((), int(Result.running), jnp.int32),
        cap=jnp.full((), jnp.inf), spent=jnp.zeros(()) if model.guards else (),
    )  # fmt: skip
    nobody = jnp.full((), -1, jnp.int32)
    return settle(model, at, par, blank, nobody, 0, knobs, starting=True)


def jump_row(model: Model, stepper: Stepper, c: Carry, kind: Any) -> Rows:
    return Rows(
        c.at.tau, c.at.w, c.at.i, jnp.zeros(()), kind, (c.member,) * model.families, c.at.z,
        blank(stepper.aux(model)),
    )  # fmt: skip


def _possible(model: Model, par: Par, c: Carry) -> Any:
    """Backward in time: whether the event that is to be undone may have happened here."""
    if all(a.possible is None for a in model.actions):
        return None
    args, yes = model.args(c.at, par, c.member), jnp.ones((), bool)
    flags = [yes if a.possible is None else a.possible(args, par)[0] for a in model.actions]
    return jnp.stack(flags)[c.jump]


def fire(model: Model, stepper: Stepper, par: Par, knobs: Knobs, c: Carry) -> tuple[Carry, Rows]:
    """Carry out the chosen jump: one row of length zero."""
    if model.constraint is not None:  # the last correction of a root moves x, not z
        c = c._replace(at=solved(model, c.at, par)[0])
    row = jump_row(model, stepper, c, reset_kind(c.jump))

    def branch(action: Action):
        def go(at: At) -> At:
            after = model.reset(action, at, par, c.member)
            if model.kinks or any(a.kind == "time" for a in model.actions):
                after = model.with_pending_times(begun(model, after, par), par)
            return jax.tree.map(lambda new, old: new.astype(old.dtype), after, at)

        return go

    cases = [branch(a) for a in model.actions[:-1]]  # the last one is the stop
    at = jax.lax.switch(c.jump, cases, c.at) if cases else c.at
    happened = _possible(model, par, c)
    if happened is not None:  # else it goes on as if nothing had been there
        at = select(happened, at, c.at)
        kind = jnp.where(happened, reset_kind(c.jump), approach_kind(c.jump))
        row = row._replace(kind=kind.astype(row.kind.dtype))
    at = refresh_flags(model, at, par, c.jump, c.member)
    here = c._replace(at=at, values=model.guard_values(c.at, par))
    new = settle(model, at, par, here, c.jump, c.member, knobs)
    code = new.code
    counts = c.counts._replace(
        rows=c.counts.rows + 1, evaluations=c.counts.evaluations + 1, chain=c.counts.chain + 1
    )
    own = jnp.asarray([a.logged for a in model.actions])[c.jump]
    own = own if happened is None else own & happened
    counts = counts._replace(events=counts.events + own.astype(jnp.int32))
    limit = 100 + 4 * sum(a.size or 1 for a in model.guards)
    still = jnp.ones((), bool)
    for a, b in zip(at.w[: model.nx], c.at.w[: model.nx], strict=True):
        still = still & jnp.all(a == b)
    counts = counts._replace(pressed=jnp.where(still, counts.pressed, 0))
    chatters = 2 * counts.pressed >= counts.chain
    why = jnp.where(chatters, int(Result.chattering), int(Result.endless_chain))
    code = jnp.where(counts.chain > limit, why, code)
    code = jnp.where(trapped(model, par, new, c), int(Result.chattering), code)
    code = jnp.where(own & (counts.events > knobs.max_events), int(Result.too_many_events), code)
    pace = c.pace
    if model.guards:
        guard = jnp.asarray([a.kind == "guard" for a in model.actions])[c.jump]
        pace, accumulate = paced(model, c.pace, c.jump, c.member, at.tau)
        pace = jax.tree.map(lambda a, b: jnp.where(guard, a, b), pace, c.pace)
        rests = jnp.asarray([a.zeno for a in model.actions])[c.jump] & guard & accumulate
        code = jnp.where(guard & accumulate & ~rests, int(Result.events_accumulate), code)
        new = new._replace(
            jump=jnp.where(rests, c.jump + 1, new.jump),
            member=jnp.where(rests, c.member, new.member),
            rooted=new.rooted & ~rests,
        )
    terminal = jnp.asarray([a.terminal for a in model.actions])[c.jump]
    code = jnp.where(terminal, int(Result.terminated), code)
    new = new._replace(
        counts=counts,
        pace=pace,
        code=code,
        error=jnp.full((), FORGOTTEN),
        search=empty_search(),
        memory=stepper.memory(model),
        tangent=renewed(c.tangent),
    )
    return new, row
