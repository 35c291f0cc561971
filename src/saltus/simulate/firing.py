"""Decisions about jumps: which event fires next, and what is known about the guards afterwards."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ..base.control_flow import staged
from ..base.leaves import Leaves, array_of, blank, select
from ..base.results import Result
from ..base.tracing import is_traced
from ..base.types import Array, Flag, Scalar, Whole
from ..methods.method import Stepper
from ..methods.step_control import INITIAL_LOG_ERROR
from ..methods.tangent_error import renewed
from ..model.algebraic_states import MIN_PIVOT_RATIO, begun, hidden, regularity, solved, violated
from ..model.invariants import broken
from ..model.model import Action, At, Model, Par
from .flat_guards import flattened
from .guards import evaluated, guard_slopes, guards_after, refresh_flags, timers_after
from .record import (
    Carry,
    Counts,
    Knobs,
    Rows,
    approach_kind,
    empty_counts,
    empty_pace,
    empty_search,
    reset_kind,
)
from .states import Side
from .traced_checks import bad_mode
from .zeno import paced, trapped

CHAIN_LIMIT = 100  # most jumps at one instant
CHAIN_LIMIT_PER_GUARD = 4  # additional ones for each guard


def ended(code: Whole, reasons: Sequence[tuple[Flag, Result]]) -> Whole:
    """The `code` of a solve after checks for reasons to end it; of several, the last one counts."""
    for condition, result in reasons:
        code = jnp.where(condition, int(result), code).astype(code.dtype)
    return code


def settle(
    model: Model,
    at: At,
    par: Par,
    c: Carry,
    fired: Whole,
    member: Whole | int,
    knobs: Knobs,
    starting: bool = False,
) -> Carry:
    """The loop's state after a jump to `at` (or at the start), with the next firing chosen."""
    first = staged(lambda: evaluated(model, at, par))
    here = first
    if not starting:
        here = flattened(model, first, par, c.sides, guard_slopes, asked(knobs)[0])
    sides, together, due = staged(
        lambda: guards_after(model, par, c, here, fired, member, starting)
    )
    at = here.at
    armed, now, target = staged(lambda: timers_after(model, at, par, c, fired))
    reasons = []
    waiting = model.pending_of(at)
    if waiting:
        lost = functools.reduce(jnp.logical_or, [jnp.isnan(v) for v in waiting])
        reasons.append((lost & (c.code == int(Result.running)), Result.non_finite))
    if model.modes:
        reasons.append((bad_mode(model, at), Result.invalid_mode))
    code = ended(c.code, reasons)
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


def asked(knobs: Knobs) -> tuple[Scalar, Leaves]:
    """The tolerances as the user gave them, before the method changed them."""
    if not is_traced(knobs):  # known numbers need no program
        knobs = jax.tree.map(np.asarray, knobs)
    rtol, *atol = (array_of(v * knobs.asked) for v in (knobs.rtol, *knobs.atol))
    return rtol, tuple(atol)


def _consistency(model: Model, at: At, par: Par, knobs: Knobs, found: Flag, code: Whole) -> Whole:
    """The code after a check whether the state after a jump, or at the start, is consistent."""
    rtol, atol = asked(knobs)
    off = violated(model, at, par, rtol, atol) | broken(model, at, par, rtol, atol)
    if model.constraint is None:
        return jnp.where(off, int(Result.inconsistent), code).astype(code.dtype)
    finite = jnp.isfinite(sum(jnp.sum(v) for v in hidden(model, at, par)))
    flat = finite & ~(regularity(model, at, par) > MIN_PIVOT_RATIO)
    why = jnp.where(off, int(Result.inconsistent), int(Result.no_consistent_state))
    why = jnp.where(flat, int(Result.singular), why)
    return jnp.where(found & ~off & ~flat, code, why).astype(code.dtype)


def choose(model: Model, c: Carry, due: list[tuple[Array, Array]]) -> Carry:
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


def at_rest(
    model: Model,
    c: Carry,
    flags: Sequence[Array],
    why: Whole | int = int(Result.resting_contact),
) -> Carry:
    """A contact that does not move ends the solve, unless its event has a `zeno` rule."""
    code, jump = jnp.asarray(why, jnp.int32), c.jump
    member = jnp.zeros((), jnp.int32)
    for action, flag in zip(model.guards, flags, strict=True):
        if action.zeno:
            take = jnp.any(flag) & (jump < 0)
            jump = jnp.where(take, model.actions.index(action) + 1, jump)
            member = jnp.where(take, jnp.argmax(flag), member).astype(jnp.int32)
    code = jnp.where(jump < 0, code, c.code).astype(c.code.dtype)
    return c._replace(code=code, jump=jump, member=member, rooted=jnp.zeros((), bool))


def pushed(model: Model, c: Carry, flags: Sequence[Array]) -> Carry:
    """Guards that are zero and leave zero to their firing side fire here."""
    nothing = (jnp.zeros((), bool), jnp.zeros((), bool))
    pressed = c._replace(counts=c.counts._replace(pressed=c.counts.pressed + 1))
    due = [(f, jnp.zeros_like(f)) for f in flags]
    return choose(model, pressed, due + [nothing] * len(model.timed))


def start(model: Model, at: At, par: Par, knobs: Knobs) -> Carry:
    """The loop's state before the first decision; the step length is not chosen yet."""
    zero = jnp.zeros(())
    shapes = [() if a.size is None else (a.size,) for a in model.guards]
    blank = Carry(
        at=at, k1=(), h=zero, error=zero, values=(), slopes=(),
        sides=tuple(jnp.full(s, Side.INACTIVE, jnp.int32) for s in shapes), leaving=(),
        together=tuple(jnp.zeros(s, bool) for s in shapes),
        armed=tuple(jnp.zeros((), bool) for _ in model.timed),
        target=zero, jump=jnp.full((), -1, jnp.int32), member=jnp.zeros((), jnp.int32),
        rooted=jnp.zeros((), bool), search=empty_search(),
        counts=empty_counts(),
        pace=empty_pace(model.n_guards), code=jnp.full((), int(Result.running), jnp.int32),
        cap=jnp.full((), jnp.inf), spent=jnp.zeros(()) if model.guards else (),
    )  # fmt: skip
    nobody = jnp.full((), -1, jnp.int32)
    return settle(model, at, par, blank, nobody, 0, knobs, starting=True)


def jump_row(model: Model, stepper: Stepper, c: Carry, kind: Whole) -> Rows:
    return Rows(
        tau=c.at.tau, w=c.at.w, i=c.at.i, z=c.at.z, h=jnp.zeros(()), kind=kind,
        member=(c.member,) * model.families, aux=blank(stepper.aux(model)),
    )  # fmt: skip


def _possible(model: Model, par: Par, c: Carry) -> Flag | None:
    """Backward in time, whether the event that is about to be undone can have happened here."""
    if all(a.possible is None for a in model.actions):
        return None
    args, yes = model.args(c.at, par, c.member), jnp.ones((), bool)
    flags = [yes if a.possible is None else a.possible(args, par)[0] for a in model.actions]
    return jnp.stack(flags)[c.jump]


def fire(model: Model, stepper: Stepper, par: Par, knobs: Knobs, c: Carry) -> tuple[Carry, Rows]:
    """Carry out the chosen jump: one row of length zero."""
    if model.constraint is not None:  # the last correction of a root changed x, but not z
        c = c._replace(at=solved(model, c.at, par)[0])
    row = jump_row(model, stepper, c, reset_kind(c.jump))
    at, happened = _reset(model, par, c)
    logged = _of_jump(c, [a.logged for a in model.actions])
    if happened is not None:  # if it did not happen, the solve continues without it
        kind = jnp.where(happened, reset_kind(c.jump), approach_kind(c.jump))
        row = row._replace(kind=kind.astype(row.kind.dtype))
        logged = logged & happened
    here = c._replace(at=at, values=model.guard_values(c.at, par))
    new = settle(model, at, par, here, c.jump, c.member, knobs)
    new = new._replace(
        counts=_counted(model, c, at, logged), error=jnp.full((), INITIAL_LOG_ERROR),
        search=empty_search(), memory=stepper.memory(model), tangent=renewed(c.tangent),
    )  # fmt: skip
    return _judged(model, par, knobs, c, new, logged), row


def _of_jump(c: Carry, flags: list[bool]) -> Flag:
    """The flag of the chosen jump, from a list with a flag for each action."""
    return jnp.asarray(flags)[c.jump]


def _reset(model: Model, par: Par, c: Carry) -> tuple[At, Flag | None]:
    """The state after the chosen jump, and backward in time whether the event has happened."""

    def reset(action: Action) -> Callable[[At], At]:
        def go(at: At) -> At:
            after = model.reset(action, at, par, c.member)
            if model.kinks or any(a.kind == "time" for a in model.actions):
                after = model.with_pending_times(begun(model, after, par), par)
            return jax.tree.map(lambda new, old: new.astype(old.dtype), after, at)

        return go

    cases = [reset(a) for a in model.actions[:-1]]  # the last one is the stop
    at = jax.lax.switch(c.jump, cases, c.at) if cases else c.at
    happened = _possible(model, par, c)
    if happened is not None:
        at = select(happened, at, c.at)
    return refresh_flags(model, at, par, c.jump, c.member), happened


def _counted(model: Model, c: Carry, at: At, logged: Flag) -> Counts:
    """The counts after a jump to `at`."""
    unmoved = jnp.ones((), bool)
    for a, b in zip(model.x_of(at), model.x_of(c.at), strict=True):
        unmoved = unmoved & jnp.all(a == b)
    return c.counts._replace(
        rows=c.counts.rows + 1,
        evaluations=c.counts.evaluations + 1,
        chain=c.counts.chain + 1,
        events=c.counts.events + logged.astype(jnp.int32),
        pressed=jnp.where(unmoved, c.counts.pressed, 0),
    )


def _judged(
    model: Model, par: Par, knobs: Knobs, old: Carry, new: Carry, logged: Flag
) -> Carry:  # fmt: skip
    """Whether and how the solve continues after a jump: a `zeno` rule may be next."""
    counts = new.counts
    endless = counts.chain > CHAIN_LIMIT + CHAIN_LIMIT_PER_GUARD * model.n_guards
    reasons = [
        (endless, Result.endless_chain),
        (endless & (2 * counts.pressed >= counts.chain), Result.chattering),
        (trapped(model, par, new, old), Result.chattering),
        (logged & (counts.events > knobs.max_events), Result.too_many_events),
    ]
    if model.guards:
        guard = _of_jump(old, [a.kind == "guard" for a in model.actions])
        pace, accumulate = paced(model, old.pace, old.jump, old.member, new.at.tau)
        accumulate = accumulate & guard
        rests = accumulate & _of_jump(old, [a.zeno for a in model.actions])
        reasons.append((accumulate & ~rests, Result.events_accumulate))
        new = new._replace(
            pace=select(guard, pace, old.pace),
            jump=jnp.where(rests, old.jump + 1, new.jump),
            member=jnp.where(rests, old.member, new.member),
            rooted=new.rooted & ~rests,
        )
    terminal = _of_jump(old, [a.terminal for a in model.actions])
    return new._replace(code=ended(new.code, [*reasons, (terminal, Result.terminated)]))
