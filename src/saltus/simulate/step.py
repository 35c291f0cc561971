"""One step attempt, or one iteration of event location: the same with another length."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..base.control_flow import branch, staged
from ..base.leaves import Leaves, select
from ..base.results import Result
from ..methods.jacobian_reuse import steadier
from ..methods.method import Goal, Stepper
from ..methods.step_control import FORGOTTEN, PI
from ..methods.tangent_error import asked, counted, taken
from ..model.algebraic_states import turning
from ..model.impasse import collapses, followed, with_cause
from ..model.model import At, Model, Par
from .detection import (
    Candidate,
    Knots,
    cubic,
    look,
    model_error,
    modelled,
    quiet,
    side_after,
    value_of,
)
from .firing import choose
from .guards import guard_slopes, resolution, rounding, sigma
from .location import arrivals, begin_search, pick_first, polish, search
from .record import FLOW, Carry, Knobs, Rows
from .tangent_step import looked

ASK, REJECT, ACCEPT, LOOK, SEARCH = range(-1, 4)
NOISE = 64  # times rounding: a guard that is no larger than that is zero
PREDICTED = 0.3  # relative change of a Jacobian over a step, by its slopes: it does not jump
MOMENT = 1e-9  # of the time so far: a determinant that is gone by then is zero here
SHORT = 1e-7  # of the way to the next prescribed time: steps that do not get there
VAIN = 8  # short steps that make good for one attempt that was not finite
PLACES = (1 / 8, 1 / 4, 3 / 8, 5 / 8, 3 / 4, 7 / 8)  # where guards that count are looked at
DOUBTS = 12  # a guard that is still not resolved after so many halvings is taken as it is


class Tried(NamedTuple):
    """A step that was computed and not yet judged."""

    h: Any  # its length, positive
    at: At  # its end
    k: Leaves  # the flow there
    error: Any
    finite: Any
    at_target: Any
    mids: Leaves  # guards in the middle, and their slopes in time
    mid_slopes: Leaves
    values: Leaves  # guards at the end, and their slopes in time
    slopes: Leaves
    landed: Any  # the search has reached its root
    aux: Leaves  # what is recorded with the row
    memory: Any  # the method's
    converged: Any  # whether the equations of an implicit step were solved
    evaluations: Any
    retry: Any  # worth another attempt of the same length
    impasse: Any  # it comes to a point at which z is not determined, or passes one
    blind: Any  # its error says nothing about derivatives


def attempt(spec: Any, par: Par, knobs: Knobs, c: Carry) -> tuple[Carry, Rows]:
    """Try a step and decide: reject, accept as one row, look closer, or go on searching."""
    model, stepper, adaptive = spec.model, spec.stepper, spec.adaptive
    tried = staged(lambda: _try(model, stepper, adaptive, par, knobs, c))
    if followed(model):
        tried = _with_impasse(model, adaptive, par, knobs, c, tried)
    if spec.resolve:
        unseen = staged(lambda: _unresolved(model, par, knobs, c, tried))
        tried = tried._replace(error=jnp.maximum(tried.error, unseen))
    if model.guards:
        tried = staged(lambda: polish(model, par, c, tried))
    if c.tangent:
        tried = tried._replace(error=jnp.maximum(tried.error, counted(c.tangent)))
    row = Rows(
        c.at.tau, c.at.w, c.at.i, sigma(par) * tried.h, jnp.full((), FLOW, jnp.int32),
        (c.member,) * model.families, c.at.z, tried.aux,
    )  # fmt: skip
    verdict = staged(lambda: _verdict(model, adaptive, par, c, tried))
    h, memory = staged(lambda: _next_length(model, stepper, adaptive, knobs, c, tried, verdict))
    counts = c.counts._replace(
        steps=c.counts.steps + 1, evaluations=c.counts.evaluations + tried.evaluations
    )
    c = c._replace(counts=counts, memory=tried.memory)
    cases = [
        lambda: _reject(spec, par, knobs, c, tried, h, verdict == ASK),
        lambda: _accept(model, stepper, par, c, tried),
    ]
    if model.guards:
        cases.append(lambda: _look(model, stepper, adaptive, par, c, tried))
        cases.append(lambda: search(model, par, knobs, c, tried, _moved(stepper, c, tried)))
    new = branch(jnp.maximum(verdict, REJECT) if c.tangent else verdict, cases, lazy=True)
    full = counts.steps >= knobs.max_steps
    running = new.code == int(Result.running)
    stuck = (h <= resolution(new.at.tau)) & ~new.search.on
    why = jnp.where(stuck, int(Result.step_underflow), int(Result.too_many_steps))
    code = jnp.where((full | stuck) & running & (new.jump < 0), why, new.code)
    if model.constraint is not None:
        code = with_cause(model, new.at, par, new.k1, knobs.atol, code)
    if c.tangent:
        h = jnp.where(verdict == ASK, new.h, h)
    return new._replace(code=code, h=h, error=memory), row


def _try(model: Model, stepper: Stepper, adaptive: bool, par: Par, knobs: Knobs, c: Carry) -> Tried:
    sig, tau = sigma(par), c.at.tau
    room = sig * (c.target - tau)
    free = jnp.minimum(c.h, jnp.minimum(c.cap, knobs.max_step))
    at_target = ~c.search.on & (room <= 1.001 * free)
    h = jnp.where(c.search.on, c.search.h, jnp.where(at_target, room, free))
    goal = Goal(knobs.rtol, knobs.atol, adaptive)
    trial = stepper.attempt(model, par, goal, c.at, c.k1, sig * h, c.memory)
    total = trial.error + sum(jnp.sum(v) for v in (*model.moving_of(trial.end), *trial.k))
    total = total + sum(jnp.sum(v) for v in trial.end.z)
    at = trial.end._replace(tau=jnp.where(at_target, c.target, tau + sig * h))
    values: Leaves = ()
    slopes: Leaves = ()
    mids: Leaves = ()
    mid_slopes: Leaves = ()
    if model.guards:
        values, slopes = guard_slopes(model, at, par, trial.k)
        mids, mid_slopes = guard_slopes(model, trial.middle, par, trial.k_middle)
        total = total + sum(jnp.sum(v) for v in (*values, *mids))
    finite = jnp.isfinite(total)
    return Tried(
        h, at, trial.k, trial.error, finite, at_target, mids, mid_slopes, values, slopes,
        jnp.zeros((), bool), trial.aux, trial.memory, trial.converged, trial.evaluations,
        jnp.asarray(trial.retry), jnp.zeros((), bool), jnp.asarray(trial.blind),
    )  # fmt: skip


def _with_impasse(
    model: Model, adaptive: bool, par: Par, knobs: Knobs, c: Carry, tried: Tried
) -> Tried:
    """Judges a step at whose end z is hardly determined, or on another branch, as unsolved.

    A Jacobian that jumps, as at a kink of the constraint, has no slopes to show for it: it passes.
    """
    good = tried.finite & tried.converged
    suspect = staged(lambda: collapses(model, c.at, tried.at, par, not adaptive))

    def judged() -> Any:
        n, new, old = model.nx, tried.at, c.at
        moment = sigma(par) * jnp.maximum(tried.h, MOMENT * jnp.abs(old.tau))
        time = jnp.where(good, new.tau - old.tau, moment)
        moved = [a - b for a, b in zip(model.x_of(new), model.x_of(old), strict=True)]
        flow = [(moment * k).astype(v.dtype) for k, v in zip(c.k1[:n], moved, strict=True)]
        way = select(good, tuple(moved), tuple(flow))
        room = zip(new.z, old.z, knobs.atol[model.moving :], strict=True)
        in_z = tuple(jnp.where(good, a - b, e + knobs.rtol * jnp.abs(b)) for a, b, e in room)
        change, shrinks = turning(model, select(good, new, old), par, time, way, in_z, ~good)
        return jnp.where(good, change > PREDICTED, shrinks < -PREDICTED)

    ask, no = suspect | ~good, jnp.zeros((), bool)
    impasse = branch(ask.astype(jnp.int32), [lambda: no, judged], lazy=True)
    return tried._replace(impasse=impasse, converged=tried.converged & ~impasse)


def _unresolved(model: Model, par: Par, knobs: Knobs, c: Carry, tried: Tried) -> Any:
    """The error of the guards' models, as the error norm sees it."""
    worst, sig = jnp.zeros(()), sigma(par)
    least = functools.reduce(jnp.minimum, [jnp.min(a) for a in knobs.atol])
    values = _between(model, par, c, tried)
    for j, mid in enumerate(tried.mids):
        scale = jnp.maximum(jnp.maximum(jnp.abs(c.values[j]), jnp.abs(tried.values[j])), abs(mid))
        knots = _knots(c, tried, j, sig)
        error = model_error(knots)
        for u, value in zip(PLACES, values[j], strict=True):
            error = jnp.maximum(error, jnp.abs(value - modelled(knots, u)))
        worst = jnp.maximum(worst, jnp.max(error / 16 / (least + knobs.rtol * scale)))
    return worst


def _between(model: Model, par: Par, c: Carry, tried: Tried) -> Leaves:
    """The guards at some more places in the step, on the cubic through both of its ends.

    Its error is 16 times that of a cubic on a half of the step, as for the middle."""
    h = sigma(par) * tried.h
    ends = model.moving_of(c.at), model.moving_of(tried.at)
    pairs = list(zip(*ends, c.k1, tried.k, strict=True))

    def there(u: Any) -> Leaves:
        moving = tuple(
            value_of(cubic(a, b, h * f, h * g), u).astype(a.dtype) for a, b, f, g in pairs
        )
        at = model.with_moving(c.at, moving, tau=c.at.tau + u * h)
        return model.guard_values(at, par)

    return jax.vmap(there)(jnp.asarray(PLACES))


def _knots(c: Carry, tried: Tried, j: int, sig: Any) -> Knots:
    g = sig * tried.h
    return Knots(
        c.values[j], g * c.slopes[j], tried.mids[j], g * tried.mid_slopes[j],
        tried.values[j], g * tried.slopes[j],
    )  # fmt: skip


def _verdict(model: Model, adaptive: bool, par: Par, c: Carry, tried: Tried) -> Any:
    """What to do with the step."""
    ok = tried.finite & tried.converged
    if adaptive:
        ok = ok & (c.search.on | (tried.error <= 1.0))
    good: Any = ACCEPT
    if model.guards:
        sig = sigma(par)
        calm = jnp.ones((), bool)
        for j in range(len(model.guards)):
            calm = calm & jnp.all(quiet(_knots(c, tried, j, sig), c.sides[j]))
        good = jnp.where(c.search.on, SEARCH, jnp.where(calm, ACCEPT, LOOK))
    if c.tangent:
        good = jnp.where(asked(c.tangent, tried.blind, tried.h) & ~c.search.on, ASK, good)
    return jnp.where(ok, good, REJECT).astype(jnp.int32)


def _next_length(
    model: Model,
    stepper: Stepper,
    adaptive: bool,
    knobs: Knobs,
    c: Carry,
    tried: Tried,
    verdict: Any,
) -> tuple[Any, Any]:
    """The next step's length and the controller's memory."""
    if not adaptive:
        return knobs.fixed, c.error
    control = PI(*knobs.control)
    log_error = jnp.log(jnp.maximum(tried.error, 1e-300))
    factor = control.factor(log_error, c.error, stepper.error_order)
    if stepper.steady(model):
        factor = steadier(factor)
    grown = jnp.where(c.counts.shaken > 0, jnp.minimum(factor, 1.0), factor) * tried.h
    grown = jnp.where(tried.at_target, jnp.maximum(c.h, grown), grown)
    grown = jnp.where((verdict == SEARCH) | (verdict == ASK), c.h, grown)
    shorter = jnp.where(tried.converged, jnp.minimum(factor, 0.9), 0.25)
    shorter = jnp.where(tried.retry, 1.0, shorter)
    failed = jnp.where(tried.finite, shorter, 0.1) * tried.h
    taken = (verdict == ACCEPT) | (verdict == LOOK)
    memory = jnp.where(taken, jnp.maximum(log_error, FORGOTTEN), c.error)
    return jnp.where(verdict == REJECT, failed, grown), memory


def _reject(spec: Any, par: Par, knobs: Knobs, c: Carry, tried: Tried, h: Any, asks: Any) -> Carry:
    """Try again with a shorter step, or after a look at a tangent, or give up with a name."""
    bad = jnp.where(tried.finite, c.counts.bad, c.counts.bad + VAIN)
    shaken = jnp.where(tried.finite, c.counts.shaken, 1).astype(jnp.int32)
    counts = c.counts._replace(rejected=c.counts.rejected + 1, bad=bad, shaken=shaken)
    least = resolution(c.at.tau) + 1e-300
    hopeless = (h <= least) | (bad >= 20 * VAIN) | (not spec.adaptive)
    why = jnp.where(tried.converged, int(Result.step_underflow), int(Result.newton_failed))
    why = jnp.where(tried.finite, why, int(Result.non_finite))
    if spec.model.constraint is not None:
        why = jnp.where(tried.impasse, int(Result.singular), why)
    code = jnp.where(hopeless, why, c.code)
    off = c.search._replace(on=jnp.zeros((), bool))  # a search begins anew with a shorter step
    c = c._replace(counts=counts, code=code, search=off, h=h)
    if not c.tangent:
        return c
    return looked(spec, par, knobs, c, tried.at, tried.h, asks)


def _recovered(c: Carry, tried: Tried) -> Any:
    """The weight of attempts that were not finite, after a step that succeeded.

    Twenty of them in a row are too many. A step that gets on forgets them; a short one takes back a
    part of one, so that those which alternate with hopelessly short steps are too many as well.
    """
    short = tried.h < SHORT * jnp.abs(c.target - c.at.tau)
    return jnp.where(short, jnp.maximum(c.counts.bad - 1, 0), 0)


def _moved(stepper: Stepper, c: Carry, tried: Tried) -> Carry:
    """The carry at the end of the step, one row further."""
    sides = tuple(side_after(s, v) for s, v in zip(c.sides, tried.values, strict=True))
    whole = jnp.zeros((), jnp.int32)
    counts = c.counts._replace(
        rows=c.counts.rows + 1,
        chain=whole,
        bad=_recovered(c, tried),
        shaken=whole,
        doubt=whole,
        pressed=whole,
    )
    return c._replace(
        at=tried.at, k1=tried.k, values=tried.values, slopes=tried.slopes, sides=sides,
        counts=counts, search=c.search._replace(on=jnp.zeros((), bool), curve=jnp.zeros(())),
        spent=c.spent + tried.error if tried.values else (),
        memory=stepper.accepted(c.memory), cap=1.25 * c.cap,
        tangent=c.tangent and taken(c.tangent, tried.blind, tried.h),
    )  # fmt: skip


def _accept(
    model: Model,
    stepper: Stepper,
    par: Par,
    c: Carry,
    tried: Tried,
    together: Leaves | None = None,
) -> Carry:
    """A row without a crossing; it may end at a prescribed time, with guards that arrive there."""
    moved = _moved(stepper, c, tried)
    if together is None:
        together = tuple(jnp.zeros_like(v, dtype=bool) for v in tried.values)
    due = [(t, t) for t in together]
    for k, action in enumerate(model.timed):
        time = model.time_of(action, moved.at, par)
        here = jnp.abs(time - moved.at.tau) <= resolution(moved.at.tau)
        flag = tried.at_target & c.armed[k] & here
        due.append((flag, flag))
    return choose(model, moved._replace(together=together), due)


def at_rest(
    model: Model, c: Carry, flags: Sequence[Any], why: Any = int(Result.resting_contact)
) -> Carry:
    """A contact that does not move: the end, unless its event says how to go on."""
    code, jump = jnp.asarray(why, jnp.int32), c.jump
    member = jnp.zeros((), jnp.int32)
    for action, flag in zip(model.guards, flags, strict=True):
        if action.zeno:
            take = jnp.any(flag) & (jump < 0)
            jump = jnp.where(take, model.actions.index(action) + 1, jump)
            member = jnp.where(take, jnp.argmax(flag), member).astype(jnp.int32)
    code = jnp.where(jump < 0, code, c.code).astype(c.code.dtype)
    return c._replace(code=code, jump=jump, member=member, rooted=jnp.zeros((), bool))


def pushed(model: Model, c: Carry, flags: Sequence[Any]) -> Carry:
    """Guards that are zero and leave to their firing side: they fire here."""
    nothing = (jnp.zeros((), bool), jnp.zeros((), bool))
    pressed = c._replace(counts=c.counts._replace(pressed=c.counts.pressed + 1))
    due = [(f, jnp.zeros_like(f)) for f in flags]
    return choose(model, pressed, due + [nothing] * len(model.timed))


def _look(
    model: Model, stepper: Stepper, adaptive: bool, par: Par, c: Carry, tried: Tried
) -> Carry:
    """A guard may cross in this step: fire at its start, begin a search, or accept after all."""
    sig = sigma(par)
    seen: list[Candidate] = []
    for j, action in enumerate(model.guards):
        contact = action.reset is not None and not action.terminal
        way, length = action.direction * sig, tried.h / resolution(c.at.tau)
        seen.append(look(_knots(c, tried, j, sig), c.sides[j], way, contact, length))
    c = c._replace(leaving=tuple(s.before for s in seen))
    key, guard, member = pick_first([s.key for s in seen], model)
    tiny = staged(lambda: rounding(model, c.at, par, c.slopes))
    fire, rest, doubt = jnp.zeros((), bool), jnp.zeros((), bool), jnp.zeros((), bool)
    for j, s in enumerate(seen):
        fire, rest = fire | jnp.any(s.fire), rest | jnp.any(s.rest)
        size = jnp.maximum(jnp.abs(tried.mids[j]), jnp.abs(tried.values[j]))
        doubt = doubt | jnp.any(s.doubt & (size > NOISE * tiny[j]))  # nothing hides in rounding
    doubt = doubt & (c.counts.doubt < DOUBTS) & adaptive
    which = jnp.where(rest, 2, jnp.where(jnp.isfinite(key), 3, 0))
    which = jnp.where(doubt, 4, jnp.where(fire, 1, which))

    def search_now() -> Carry:
        return c._replace(search=begin_search(seen, tiny, tried.h, key, guard, member))

    cases = [
        lambda: _arrive(model, stepper, par, c, tried),
        lambda: pushed(model, c, [s.fire for s in seen]),
        lambda: at_rest(model, c, [s.rest for s in seen]),
        search_now,
        lambda: c._replace(counts=c.counts._replace(doubt=c.counts.doubt + 1), cap=0.5 * tried.h),
    ]
    return branch(staged(lambda: which.astype(jnp.int32)), cases)


def _arrive(model: Model, stepper: Stepper, par: Par, c: Carry, tried: Tried) -> Carry:
    """Accept; guards that reach zero within rounding of a prescribed time join its batch."""
    _, together = arrivals(model, par, c, tried)
    together = tuple(t & tried.at_target for t in together)
    new = _accept(model, stepper, par, c, tried, together)
    sides = tuple(
        jnp.where(t, b.astype(s.dtype), s)
        for t, b, s in zip(together, c.leaving, new.sides, strict=True)
    )
    return new._replace(sides=sides)
