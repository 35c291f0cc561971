"""One step attempt, or one iteration of event location, which is a step of another length."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from ..base.control_flow import branch, staged
from ..base.leaves import Leaves, select
from ..base.results import Result
from ..base.types import Flag, Scalar, Whole
from ..methods.jacobian_reuse import steadier
from ..methods.method import Goal, Stepper
from ..methods.step_control import INITIAL_LOG_ERROR, PI
from ..methods.tangent_error import asked, counted, taken
from ..model.algebraic_states import turning
from ..model.impasse import collapses, followed, with_cause
from ..model.model import Model, Par
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
from .firing import at_rest, choose, pushed
from .guards import GUARD_NOISE, guard_slopes, resolution, rounding, sigma
from .location import arrivals, begin_search, pick_first, polish, search
from .record import FLOW, Carry, Knobs, Rows, Spec, Tried
from .states import Inspection, Verdict
from .tangent_step import looked

MAX_JACOBIAN_CHANGE = 0.3  # relative, over a step, as predicted by its slopes
IMPASSE_HORIZON = 1e-9  # of the time so far: an impasse that near counts as reached
SHORT_STEP = 1e-7  # of the time to the next prescribed one: too short to get there
MAX_NON_FINITE_ATTEMPTS = 20  # in a row
SHORT_STEPS_PER_ATTEMPT = 8  # that make up for one attempt that was not finite
SAMPLE_PLACES = (1 / 8, 1 / 4, 3 / 8, 5 / 8, 3 / 4, 7 / 8)  # of guards, as parts of a step
MAX_HALVINGS = 12  # of a step in which a crossing may be hidden; then it is accepted


def attempt(spec: Spec, par: Par, knobs: Knobs, c: Carry) -> tuple[Carry, Rows]:
    """Try a step and decide: reject it, accept it as a row, inspect the guards, or search on."""
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
        tau=c.at.tau, w=c.at.w, i=c.at.i, z=c.at.z, h=sigma(par) * tried.h,
        kind=jnp.full((), FLOW, jnp.int32), member=(c.member,) * model.families, aux=tried.aux,
    )  # fmt: skip
    verdict = staged(lambda: _verdict(model, adaptive, par, c, tried))
    h, memory = staged(lambda: _next_length(model, stepper, adaptive, knobs, c, tried, verdict))
    counts = c.counts._replace(
        steps=c.counts.steps + 1, evaluations=c.counts.evaluations + tried.evaluations
    )
    c = c._replace(counts=counts, memory=tried.memory)
    cases = {
        Verdict.REJECT: lambda: _reject(
            spec, par, knobs, c, tried, h, verdict == Verdict.TEST_TANGENT
        ),
        Verdict.ACCEPT: lambda: _accept(model, stepper, par, c, tried),
    }
    if model.guards:
        moved = lambda: _moved(stepper, c, tried)
        cases[Verdict.INSPECT] = lambda: _look(model, stepper, adaptive, par, c, tried)
        cases[Verdict.LOCATE] = lambda: search(model, par, knobs, c, tried, moved())
    index = jnp.maximum(verdict, Verdict.REJECT) if c.tangent else verdict
    new = branch(index, [cases[k] for k in Verdict if k in cases], lazy=True)
    full = counts.steps >= knobs.max_steps
    running = new.code == int(Result.running)
    stuck = (h <= resolution(new.at.tau)) & ~new.search.on
    why = jnp.where(stuck, int(Result.step_underflow), int(Result.too_many_steps))
    code = jnp.where((full | stuck) & running & (new.jump < 0), why, new.code)
    if model.constraint is not None:
        code = with_cause(model, new.at, par, new.k1, knobs.atol, code)
    if c.tangent:
        h = jnp.where(verdict == Verdict.TEST_TANGENT, new.h, h)
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
        h=h, at=at, k=trial.k, error=trial.error, finite=finite, at_target=at_target,
        mids=mids, mid_slopes=mid_slopes, values=values, slopes=slopes,
        landed=jnp.zeros((), bool), aux=trial.aux, memory=trial.memory, converged=trial.converged,
        evaluations=trial.evaluations, retry=jnp.asarray(trial.retry),
        impasse=jnp.zeros((), bool), blind=jnp.asarray(trial.blind),
    )  # fmt: skip


def _with_impasse(
    model: Model, adaptive: bool, par: Par, knobs: Knobs, c: Carry, tried: Tried
) -> Tried:
    """Count a step as not converged if z is nearly undetermined at its end, or on another branch.

    At a jump of the Jacobian, as at a kink of the constraint, its slopes do not predict the change:
    such a step is not rejected.
    """
    good = tried.finite & tried.converged
    suspect = staged(lambda: collapses(model, c.at, tried.at, par, not adaptive))

    def judged() -> Flag:
        n, new, old = model.nx, tried.at, c.at
        moment = sigma(par) * jnp.maximum(tried.h, IMPASSE_HORIZON * jnp.abs(old.tau))
        time = jnp.where(good, new.tau - old.tau, moment)
        moved = [a - b for a, b in zip(model.x_of(new), model.x_of(old), strict=True)]
        flow = [(moment * k).astype(v.dtype) for k, v in zip(c.k1[:n], moved, strict=True)]
        way = select(good, tuple(moved), tuple(flow))
        room = zip(new.z, old.z, knobs.atol[model.moving :], strict=True)
        in_z = tuple(jnp.where(good, a - b, e + knobs.rtol * jnp.abs(b)) for a, b, e in room)
        change, shrinks = turning(model, select(good, new, old), par, time, way, in_z, ~good)
        return jnp.where(good, change > MAX_JACOBIAN_CHANGE, shrinks < -MAX_JACOBIAN_CHANGE)

    ask, no = suspect | ~good, jnp.zeros((), bool)
    impasse = branch(ask.astype(jnp.int32), [lambda: no, judged], lazy=True)
    return tried._replace(impasse=impasse, converged=tried.converged & ~impasse)


def _unresolved(model: Model, par: Par, knobs: Knobs, c: Carry, tried: Tried) -> Scalar:
    """The error of the models of the guards, in units of the tolerances."""
    worst, sig = jnp.zeros(()), sigma(par)
    least = functools.reduce(jnp.minimum, [jnp.min(a) for a in knobs.atol])
    values = _between(model, par, c, tried)
    for j, mid in enumerate(tried.mids):
        scale = jnp.maximum(jnp.maximum(jnp.abs(c.values[j]), jnp.abs(tried.values[j])), abs(mid))
        knots = _knots(c, tried, j, sig)
        error = model_error(knots)
        for u, value in zip(SAMPLE_PLACES, values[j], strict=True):
            error = jnp.maximum(error, jnp.abs(value - modelled(knots, u)))
        worst = jnp.maximum(worst, jnp.max(error / 16 / (least + knobs.rtol * scale)))
    return worst


def _between(model: Model, par: Par, c: Carry, tried: Tried) -> Leaves:
    """The guards at further places in the step, with states on the cubic through both ends.

    Its error is 16 times that of the cubics on the halves of the step, as in the middle."""
    h = sigma(par) * tried.h
    ends = model.moving_of(c.at), model.moving_of(tried.at)
    pairs = list(zip(*ends, c.k1, tried.k, strict=True))

    def there(u: Scalar) -> Leaves:
        moving = tuple(
            value_of(cubic(a, b, h * f, h * g), u).astype(a.dtype) for a, b, f, g in pairs
        )
        at = model.with_moving(c.at, moving, tau=c.at.tau + u * h)
        return model.guard_values(at, par)

    return jax.vmap(there)(jnp.asarray(SAMPLE_PLACES))


def _knots(c: Carry, tried: Tried, j: int, sig: Scalar) -> Knots:
    g = sig * tried.h
    return Knots(
        start=c.values[j], start_slope=g * c.slopes[j],
        mid=tried.mids[j], mid_slope=g * tried.mid_slopes[j],
        end=tried.values[j], end_slope=g * tried.slopes[j],
    )  # fmt: skip


def _verdict(model: Model, adaptive: bool, par: Par, c: Carry, tried: Tried) -> Whole:
    """What to do with the step."""
    ok = tried.finite & tried.converged
    if adaptive:
        ok = ok & (c.search.on | (tried.error <= 1.0))
    good: Whole | Verdict = Verdict.ACCEPT
    if model.guards:
        sig = sigma(par)
        calm = jnp.ones((), bool)
        for j in range(len(model.guards)):
            calm = calm & jnp.all(quiet(_knots(c, tried, j, sig), c.sides[j]))
        good = jnp.where(
            c.search.on, Verdict.LOCATE, jnp.where(calm, Verdict.ACCEPT, Verdict.INSPECT)
        )
    if c.tangent:
        good = jnp.where(
            asked(c.tangent, tried.blind, tried.h) & ~c.search.on, Verdict.TEST_TANGENT, good
        )
    return jnp.where(ok, good, Verdict.REJECT).astype(jnp.int32)


def _next_length(
    model: Model,
    stepper: Stepper,
    adaptive: bool,
    knobs: Knobs,
    c: Carry,
    tried: Tried,
    verdict: Whole,
) -> tuple[Scalar, Scalar]:
    """The next step's length, and the logarithm of the error for the step size control."""
    if not adaptive:
        return knobs.fixed, c.error
    control = PI(*knobs.control)
    log_error = jnp.log(jnp.maximum(tried.error, 1e-300))
    factor = control.factor(log_error, c.error, stepper.error_order)
    if stepper.steady(model):
        factor = steadier(factor)
    grown = jnp.where(c.counts.shaken > 0, jnp.minimum(factor, 1.0), factor) * tried.h
    grown = jnp.where(tried.at_target, jnp.maximum(c.h, grown), grown)
    grown = jnp.where((verdict == Verdict.LOCATE) | (verdict == Verdict.TEST_TANGENT), c.h, grown)
    shorter = jnp.where(tried.converged, jnp.minimum(factor, 0.9), 0.25)
    shorter = jnp.where(tried.retry, 1.0, shorter)
    failed = jnp.where(tried.finite, shorter, 0.1) * tried.h
    taken = (verdict == Verdict.ACCEPT) | (verdict == Verdict.INSPECT)
    memory = jnp.where(taken, jnp.maximum(log_error, INITIAL_LOG_ERROR), c.error)
    return jnp.where(verdict == Verdict.REJECT, failed, grown), memory


def _reject(
    spec: Spec, par: Par, knobs: Knobs, c: Carry, tried: Tried, h: Scalar, asks: Flag
) -> Carry:
    """Try again with a shorter step, or after a test of the tangent, or end the solve."""
    bad = jnp.where(tried.finite, c.counts.bad, c.counts.bad + SHORT_STEPS_PER_ATTEMPT)
    shaken = jnp.where(tried.finite, c.counts.shaken, 1).astype(jnp.int32)
    counts = c.counts._replace(rejected=c.counts.rejected + 1, bad=bad, shaken=shaken)
    least = resolution(c.at.tau) + 1e-300
    hopeless = h <= least
    hopeless = hopeless | (bad >= MAX_NON_FINITE_ATTEMPTS * SHORT_STEPS_PER_ATTEMPT)
    hopeless = hopeless | (not spec.adaptive)
    why = jnp.where(tried.converged, int(Result.step_underflow), int(Result.newton_failed))
    why = jnp.where(tried.finite, why, int(Result.non_finite))
    if spec.model.constraint is not None:
        why = jnp.where(tried.impasse, int(Result.singular), why)
    code = jnp.where(hopeless, why, c.code)
    off = c.search._replace(on=jnp.zeros((), bool))  # with a shorter step, a search starts again
    c = c._replace(counts=counts, code=code, search=off, h=h)
    if not c.tangent:
        return c
    return looked(spec, par, knobs, c, tried.at, tried.h, asks)


def _recovered(c: Carry, tried: Tried) -> Whole:
    """The weight of attempts that were not finite, after a step that succeeded.

    A step of ordinary length makes it zero. A short one takes away a part of one attempt only, so
    that attempts which alternate with extremely short steps reach the limit as well.
    """
    short = tried.h < SHORT_STEP * jnp.abs(c.target - c.at.tau)
    return jnp.where(short, jnp.maximum(c.counts.bad - 1, 0), 0)


def _moved(stepper: Stepper, c: Carry, tried: Tried) -> Carry:
    """The state of the loop at the end of the step, one row further."""
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
        spent=() if isinstance(c.spent, tuple) else c.spent + tried.error,
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


def _look(
    model: Model, stepper: Stepper, adaptive: bool, par: Par, c: Carry, tried: Tried
) -> Carry:
    """If a guard may cross in a step: fire at its start, begin a search, or accept it after all."""
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
        large = size > GUARD_NOISE * tiny[j]  # no crossing is hidden by rounding
        doubt = doubt | jnp.any(s.doubt & large)
    doubt = doubt & (c.counts.doubt < MAX_HALVINGS) & adaptive
    crosses = jnp.where(jnp.isfinite(key), Inspection.CROSSING, Inspection.NO_CROSSING)
    found = jnp.where(rest, Inspection.RESTS, crosses)
    found = jnp.where(fire, Inspection.FIRES_AT_START, found)
    found = jnp.where(doubt, Inspection.UNSURE, found)

    def search_now() -> Carry:
        return c._replace(search=begin_search(seen, tiny, tried.h, key, guard, member))

    def shorter() -> Carry:
        return c._replace(counts=c.counts._replace(doubt=c.counts.doubt + 1), cap=0.5 * tried.h)

    cases = {
        Inspection.NO_CROSSING: lambda: _arrive(model, stepper, par, c, tried),
        Inspection.FIRES_AT_START: lambda: pushed(model, c, [s.fire for s in seen]),
        Inspection.RESTS: lambda: at_rest(model, c, [s.rest for s in seen]),
        Inspection.CROSSING: search_now,
        Inspection.UNSURE: shorter,
    }
    return branch(staged(lambda: found.astype(jnp.int32)), [cases[k] for k in Inspection])


def _arrive(model: Model, stepper: Stepper, par: Par, c: Carry, tried: Tried) -> Carry:
    """Accept a step; guards that are zero at a prescribed time, within rounding, join its batch."""
    _, together = arrivals(model, par, c, tried)
    together = tuple(t & tried.at_target for t in together)
    new = _accept(model, stepper, par, c, tried, together)
    sides = tuple(
        jnp.where(t, b.astype(s.dtype), s)
        for t, b, s in zip(together, c.leaving, new.sides, strict=True)
    )
    return new._replace(sides=sides)
