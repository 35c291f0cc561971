"""Decisions around jumps: who fires next at this instant, and what the guards know afterwards."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from ..base.control_flow import staged
from ..base.leaves import Leaves, blank, select
from ..base.results import Result
from ..methods.method import Stepper
from ..methods.step_control import FORGOTTEN
from ..methods.tangent_error import renewed
from ..model.algebraic_states import SINGULAR, begun, hidden, regularity, solved, violated
from ..model.invariants import broken
from ..model.model import Action, At, Model, Par
from .detection import INACTIVE
from .flat_guards import flattened
from .guards import _evaluate, _guards_after, _timers_after, guard_slopes, refresh_flags
from .record import Carry, Counts, Knobs, Rows, approach_kind, empty_pace, empty_search, reset_kind
from .traced_checks import bad_mode
from .zeno import paced, trapped


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
    waiting = model.pending_of(at)
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
    unmoved = jnp.ones((), bool)
    for a, b in zip(model.x_of(at), model.x_of(c.at), strict=True):
        unmoved = unmoved & jnp.all(a == b)
    counts = counts._replace(pressed=jnp.where(unmoved, counts.pressed, 0))
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
