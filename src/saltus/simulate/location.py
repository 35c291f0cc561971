"""The location of a crossing: Newton's method on the step map inside a bracket, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp

from ..base.control_flow import branch, staged
from ..base.leaves import Leaves
from ..base.results import Result
from ..base.types import Array, Flag, Scalar, Whole
from ..model.model import Model, Par
from .detection import Candidate, fires
from .firing import choose
from .guards import EPS, members, resolution, sigma
from .record import Carry, Knobs, Search, Tried
from .states import Grazing, Location, Side

MAX_ITERATIONS = 80  # of the location of a crossing
MAX_MINIMUM_ITERATIONS = 12  # of the location of a minimum


def begin_search(
    seen: list[Candidate], tiny: Leaves, h: Scalar, key: Scalar, guard: Whole, member: Whole
) -> Search:
    """The first search for a crossing, where the model of the guard predicts it."""
    return Search(
        on=jnp.ones((), bool), guard=guard, member=member,
        before=pick([s.before for s in seen], guard, member),
        low=jnp.zeros(()), high=pick([s.high for s in seen], guard, member) * h,
        verified=pick([s.verified for s in seen], guard, member), h=key * h,
        last=jnp.full((), jnp.inf), iterations=jnp.zeros((), jnp.int32),
        tiny=pick(list(tiny), guard, member),
        curve=pick([s.curve for s in seen], guard, member) / (h * h),
        depth=pick([s.depth for s in seen], guard, member),
    )  # fmt: skip


def seeking(s: Search) -> Flag:
    """Whether the search looks for a minimum of the guard, and has not found it beyond zero."""
    return ~s.verified & (s.curve > 0)


def polish(model: Model, par: Par, c: Carry, tried: Tried) -> Tried:
    """If the search is very close to the root, move there along the flow.

    A correction below 1e-8 of the step has no second-order effect in double precision, so the
    step need not be computed again.
    """
    s, sig = c.search, sigma(par)
    value = pick(list(tried.values), s.guard, s.member)
    slope = sig * pick(list(tried.slopes), s.guard, s.member)
    move = -value / jnp.where(slope == 0, 1.0, slope)
    right_way = (jnp.sign(slope) == -s.before) & (slope != 0)
    near = s.on & tried.finite & right_way & (jnp.abs(move) <= 1e-8 * tried.h) & ~seeking(s)
    move = jnp.where(near, move, 0.0)
    pairs = zip(model.moving_of(tried.at), tried.k, strict=True)
    moved = tuple((v + sig * move * k).astype(v.dtype) for v, k in pairs)
    values = tuple(v + sig * move * d for v, d in zip(tried.values, tried.slopes, strict=True))
    at = model.with_moving(tried.at, moved, tau=tried.at.tau + sig * move)
    return tried._replace(h=tried.h + move, at=at, values=values, landed=near)


class _Iteration(NamedTuple):
    """What an iteration of the search has found; see `Search` for the lengths."""

    verdict: Whole  # a Location
    low: Scalar
    high: Scalar
    verified: Flag
    aim: Scalar  # the next length
    correction: Scalar
    touch: Flag  # the guard touches zero without crossing it
    depth: Scalar


def search(model: Model, par: Par, knobs: Knobs, c: Carry, tried: Tried, moved: Carry) -> Carry:
    """One iteration (M18): continue, accept the step without a crossing, or end at the crossing.

    At its end, if another guard crossed earlier, the search continues with that one; guards that
    reach zero within rounding form a batch with this one.
    """
    s = c.search
    earlier, together = staged(lambda: arrivals(model, par, c, tried))
    mine = tuple((s.guard == j) & (members(a) == s.member) for j, a in enumerate(model.guards))
    earlier = tuple(e & ~m for e, m in zip(earlier, mine, strict=True))
    together = tuple(t | m for t, m in zip(together, mine, strict=True))
    it = staged(lambda: _iterate(model, par, knobs, c, tried, earlier))

    def again() -> Carry:
        new = s._replace(
            low=it.low, high=it.high, verified=it.verified, h=it.aim, last=it.correction,
            iterations=s.iterations + 1, depth=it.depth,
        )  # fmt: skip
        return c._replace(search=new)

    def event() -> Carry:
        sides = tuple(
            jnp.where(t, b.astype(v.dtype), v)
            for t, b, v in zip(together, c.leaving, moved.sides, strict=True)
        )
        turn = pick(list(tried.slopes), s.guard, s.member) - pick(
            list(tried.mid_slopes), s.guard, s.member
        )
        bend = moved.search._replace(curve=2 * jnp.abs(turn) / tried.h)
        new = moved._replace(together=together, sides=sides, search=bend)
        nothing = (jnp.zeros((), bool), jnp.zeros((), bool))
        return choose(model, new, [(t, t) for t in together] + [nothing] * len(model.timed))

    def nothing() -> Carry:
        """Zero up to rounding is not a crossing yet: that depends on the next step."""
        rests = seeking(s) & (jnp.abs(pick(list(tried.values), s.guard, s.member)) <= s.tiny)
        sides = tuple(
            jnp.where(m & rests, s.before.astype(v.dtype), v)
            for m, v in zip(mine, moved.sides, strict=True)
        )
        return moved._replace(sides=sides)

    cases = {
        Location.CONTINUE: again,
        Location.NO_CROSSING: nothing,
        Location.EVENT: event,
        Location.EARLIER_CROSSING: lambda: _another(model, c, tried, earlier),
    }
    new = branch(it.verdict, [cases[k] for k in Location])
    counts = new.counts._replace(touches=new.counts.touches + it.touch.astype(jnp.int32))
    stop = it.touch & (knobs.grazing == Grazing.RAISE)
    code = jnp.where(stop, int(Result.grazing), new.code).astype(new.code.dtype)
    return new._replace(counts=counts, code=code)


class _Bottom(NamedTuple):
    """What is known about the minimum that a search looks for."""

    done: Flag  # there is nothing to find
    touch: Flag  # the minimum is zero
    aim: Scalar


def _bottom(s: Search, h: Scalar, value: Scalar, slope: Scalar) -> _Bottom:
    """One Newton step on the slope of a guard towards its minimum (M72).

    A minimum within rounding of zero is a touch; the search then goes a little further, to where
    the guard has left zero.
    """
    curve = jnp.where(s.curve > 0, s.curve, 1.0)
    depth = 0.5 * slope * slope / curve  # of the minimum, below the value here
    clear = value - 8 * depth > s.tiny  # the curvature is the model's, not the guard's
    left = s.last < 0
    touch = ~clear & ~left & (depth <= 0.1 * s.tiny) & (jnp.abs(value) <= s.tiny)
    move = jnp.where(touch, jnp.sqrt(32 * s.tiny / curve), -slope / curve)
    return _Bottom(
        clear | left | (s.iterations > MAX_MINIMUM_ITERATIONS),
        touch,
        h + jnp.clip(move, -0.3 * h, 0.3 * h),
    )


def _iterate(
    model: Model, par: Par, knobs: Knobs, c: Carry, tried: Tried, earlier: Leaves
) -> _Iteration:
    s, sig, h = c.search, sigma(par), tried.h
    value = pick(list(tried.values), s.guard, s.member)
    slope = sig * pick(list(tried.slopes), s.guard, s.member)
    direction = pick([jnp.full((), a.direction, jnp.int32) for a in model.guards], s.guard, 0)
    match = fires(-s.before, direction * sig)
    beyond = (jnp.sign(value) == -s.before) & (~seeking(s) | (jnp.abs(value) > s.tiny))
    crossed = beyond & match
    looking = seeking(s) & ~crossed
    low, high = jnp.where(crossed | looking, s.low, h), jnp.where(crossed, h, s.high)
    verified = s.verified | crossed
    correction = -value / jnp.where(slope == 0, 1.0, slope)
    size = jnp.abs(correction)
    tol = 2 * EPS * jnp.maximum(jnp.abs(tried.at.tau), h)
    right_way = (jnp.sign(slope) == -s.before) & (slope != 0)
    stalled = (size >= 0.5 * jnp.abs(s.last)) & (size <= 1e-10 * h)
    tight = verified & (high - low <= tol)
    late = s.iterations > MAX_ITERATIONS
    landed = tried.landed | (right_way & ((size <= tol) | stalled)) | ((tight | late) & crossed)
    nothing = ~verified & ~landed & ((h >= s.high * (1 - 1e-12)) | late)

    newton = h + correction
    inside = right_way & (newton > low) & (newton < high)
    slow = (size > 0.7 * jnp.abs(s.last)) & verified & (s.iterations > 3)
    aim = jnp.where(inside & ~slow, newton, 0.5 * (low + high))
    aim = jnp.where(~verified & ~inside, s.high, aim)
    aim = jnp.where(tight, high, aim)

    overtaken = jnp.zeros((), bool)
    for e in earlier:
        overtaken = overtaken | jnp.any(e)
    verdict = jnp.where(
        landed,
        jnp.where(overtaken, Location.EARLIER_CROSSING, Location.EVENT),
        jnp.where(nothing, Location.NO_CROSSING, Location.CONTINUE),
    )
    low_point = _bottom(s, h, s.before * value, s.before * slope)
    touch = looking & low_point.touch & match
    low_verdict = jnp.where(low_point.done | beyond, Location.NO_CROSSING, Location.CONTINUE)
    happens = jnp.where(knobs.grazing == Grazing.FIRE, Location.EVENT, Location.NO_CROSSING)
    low_verdict = jnp.where(touch & (knobs.grazing != Grazing.NO_EVENT), happens, low_verdict)
    verdict = jnp.where(looking, low_verdict, verdict)
    aim = jnp.where(looking, low_point.aim, aim)
    correction = jnp.where(looking, jnp.where(low_point.touch, -1.0, jnp.inf), correction)
    depth = jnp.maximum(s.depth, jnp.where(crossed, jnp.abs(value), 0.0))
    return _Iteration(
        verdict=verdict.astype(jnp.int32), low=low, high=high, verified=verified, aim=aim,
        correction=correction, touch=touch, depth=depth,
    )  # fmt: skip


def _another(model: Model, c: Carry, tried: Tried, earlier: Leaves) -> Carry:
    """Another guard crossed before the one that was located: search for that one instead."""
    _, guard, member = pick_first([jnp.where(e, 0.0, jnp.inf) for e in earlier], model)
    start = jnp.abs(pick(list(c.values), guard, member))
    end = jnp.abs(pick(list(tried.values), guard, member))
    new = Search(
        on=jnp.ones((), bool), guard=guard, member=member,
        before=pick(list(c.leaving), guard, member), low=jnp.zeros(()), high=tried.h,
        verified=jnp.ones((), bool), h=tried.h * start / jnp.maximum(start + end, 1e-300),
        last=jnp.full((), jnp.inf), iterations=jnp.zeros((), jnp.int32), tiny=jnp.zeros(()),
        curve=jnp.zeros(()), depth=end,
    )  # fmt: skip
    return c._replace(search=new)


def arrivals(model: Model, par: Par, c: Carry, tried: Tried) -> tuple[Leaves, Leaves]:
    """Which guards have crossed before the end of the step, and which reach zero just there."""
    sig = sigma(par)
    tol = resolution(tried.at.tau, tried.h)
    earlier, together = [], []
    for j, action in enumerate(model.guards):
        value, slope, before = tried.values[j], tried.slopes[j], c.leaving[j]
        legal = (
            (before != 0) & fires(-before, action.direction * sig) & (c.sides[j] != Side.INACTIVE)
        )
        close = jnp.abs(value) <= jnp.abs(slope) * tol
        towards = jnp.sign(sig * slope) == -before
        earlier.append(legal & (jnp.sign(value) == -before) & ~close)
        together.append(legal & close & towards)
    return tuple(earlier), tuple(together)


def pick_first(keys: list[Array], model: Model) -> tuple[Scalar, Whole, Whole]:
    """The smallest key over all guards and members: (key, guard, member)."""
    best = jnp.full((), jnp.inf)
    guard = jnp.zeros((), jnp.int32)
    member = jnp.zeros((), jnp.int32)
    for j, action in enumerate(model.guards):
        key, m = keys[j], jnp.zeros((), jnp.int32)
        if action.size is not None:
            m = jnp.argmin(key).astype(jnp.int32)
            key = jnp.min(key)
        better = key < best
        best = jnp.where(better, key, best)
        guard = jnp.where(better, j, guard)
        member = jnp.where(better, m, member)
    return best, guard, member


def pick(leaves: Sequence[Array], guard: Whole, member: Whole | int) -> Array:
    """The entry of one guard and member."""
    out = None
    for j, leaf in enumerate(leaves):
        value = leaf
        if jnp.ndim(leaf):
            here = jnp.arange(leaf.shape[0]) == jnp.clip(member, 0, leaf.shape[0] - 1)
            value = (
                jnp.any(here & leaf) if leaf.dtype == bool else jnp.sum(jnp.where(here, leaf, 0))
            )
            value = value.astype(leaf.dtype)
        out = value if out is None else jnp.where(guard == j, value, out)
    assert out is not None, "there are no guards"
    return out
