"""The loop's state after a step of an external solver; events follow the rules of `firing.py`."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..base.leaves import Leaves, blank, select
from ..base.results import Result
from ..base.types import Array, Flag, Scalar
from ..model.algebraic_states import attached, solved
from ..model.impasse import near_impasse
from ..model.invariants import onto
from ..model.model import At, Model, Par
from ..simulate.detection import cubic, fires, lowest, side_after, value_of
from ..simulate.firing import at_rest, choose, pushed
from ..simulate.guards import guard_slopes, resolution, sigma
from ..simulate.record import FLOW, Carry, Knobs, Rows, Spec
from ..simulate.states import Side, is_armed

LOOKAHEAD = 1e-6  # of the time span: how far the flow is examined after SUNDIALS has failed
MAX_REST_HEIGHT = 10.0  # tolerances: a lower bounce cannot be distinguished from rest
FLAT_SLOPE = 1e-3  # of a guard's change over a step: a smaller slope counts as zero


class Step(NamedTuple):
    """A step that an external solver has taken."""

    at: At  # its end
    crossed: Leaves  # the signs of guards after they cross zero there; 0 for those that do not
    at_target: Flag  # it ends at the next prescribed time


def landed(spec: Spec, par: Par, c: Carry, step: Step) -> tuple[Carry, Rows]:
    """The loop's state at the end of a step, with the next firing chosen, and its row."""
    model = spec.model
    row = Rows(
        tau=c.at.tau, w=c.at.w, i=c.at.i, z=c.at.z, h=step.at.tau - c.at.tau,
        kind=jnp.full((), FLOW, jnp.int32), member=(c.member,) * model.families,
        aux=blank(spec.stepper.aux(model)),
    )  # fmt: skip
    at = step.at if model.invariant is None else onto(model, step.at, par)
    at = solved(model, at, par)[0]
    k1 = model.flow(at, par)
    values, slopes = guard_slopes(model, at, par, k1) if model.guards else ((), ())
    crossed = _crossed(model, par, c, step, at, values, slopes)
    together = tuple(s != 0 for s in crossed)
    sides = tuple(
        jnp.where(s != 0, -s, side_after(old, v)).astype(old.dtype)
        for s, old, v in zip(crossed, c.sides, values, strict=True)
    )
    none = jnp.zeros((), jnp.int32)
    counts = c.counts._replace(
        rows=c.counts.rows + 1, steps=c.counts.steps + 1, chain=none, pressed=none
    )
    new = c._replace(
        at=at, k1=k1, values=values, slopes=slopes, sides=sides, together=together, counts=counts
    )
    due = [(t, t) for t in together]
    for armed, action in zip(c.armed, model.timed, strict=True):
        here = jnp.abs(model.time_of(action, at, par) - at.tau) <= resolution(at.tau)
        flag = step.at_target & armed & here
        due.append((flag, flag))
    return choose(model, new, due), row


def _crossed(
    model: Model, par: Par, c: Carry, step: Step, at: At, values: Leaves, slopes: Leaves
) -> list[Array]:
    """The crossings, including those of guards that reach zero just at a prescribed time."""
    out, sig = [], sigma(par)
    for j, action in enumerate(model.guards):
        side, way = c.sides[j], jnp.sign(sig * slopes[j]).astype(jnp.int32)
        armed = is_armed(side)
        close = jnp.abs(values[j]) <= jnp.abs(slopes[j]) * resolution(at.tau)
        here = step.at_target & armed & close & (way == -side) & fires(way, action.direction * sig)
        out.append(jnp.where((step.crossed[j] == 0) & here, way, step.crossed[j]))
    return out


def dips(spec: Spec, par: Par, old: Carry, new: Carry) -> Flag:
    """Whether a guard may have crossed zero and returned within a step.

    It is approximated by the cubic through its values and slopes at both ends."""
    h = new.at.tau - old.at.tau
    seen = jnp.zeros((), bool)
    for j, action in enumerate(spec.model.guards):
        side = old.sides[j]
        armed = is_armed(side)
        ends = (old.values[j], new.values[j], h * old.slopes[j], h * new.slopes[j])
        curve = cubic(*(side * v for v in ends))
        low = lowest(curve)
        beyond = (low < 1) & (value_of(curve, low) < 0) & (side * new.values[j] > 0)
        seen = seen | jnp.any(armed & beyond & fires(-side, action.direction * sigma(par)))
    return seen


def left(spec: Spec, par: Par, c: Carry, at: At) -> Carry:
    """The loop's state at the start of a step, where guards that are zero may fire or rest."""
    model, sig = spec.model, sigma(par)
    h = at.tau - c.at.tau
    firing, resting = [], []
    for j, action in enumerate(model.guards):
        value = model.guard_values(at, par)[j]
        outward = fires(jnp.sign(value).astype(jnp.int32), action.direction * sig)
        outward = outward & (action.direction != 0)
        contact = action.reset is not None and not action.terminal
        flat = jnp.abs(h * c.slopes[j]) <= FLAT_SLOPE * jnp.abs(value)
        side = c.sides[j]
        across = ((side == Side.ABOVE) & (value < 0)) | ((side == Side.BELOW) & (value > 0))
        firing.append((outward & (side == Side.FRESH)) | across)
        resting.append(outward & (side == Side.FIRED) & flat & contact)
    fires_here = functools.reduce(jnp.logical_or, map(jnp.any, firing))
    rests_here = functools.reduce(jnp.logical_or, map(jnp.any, resting))
    here = select(rests_here, at_rest(model, c, resting), c)
    return select(fires_here, pushed(model, c, firing), here)


class Arc(NamedTuple):
    """The parabola of a guard that has just fired, from zero back to zero."""

    slope: Array
    bend: Array

    @property
    def returns(self) -> Array:
        return self.slope * self.bend < 0

    @property
    def length(self) -> Array:
        return jnp.where(self.returns, 2 * jnp.abs(self.slope / self._curve), jnp.inf)

    @property
    def height(self) -> Array:
        return jnp.where(self.returns, 0.5 * self.slope**2 / jnp.abs(self._curve), jnp.inf)

    @property
    def _curve(self) -> Array:
        return jnp.where(self.returns, self.bend, 1.0)


def _along(model: Model, par: Par, c: Carry) -> tuple[list[Arc], Leaves]:
    """The parabola that each guard follows from here, and the second derivatives of the states."""
    sig = sigma(par)

    def slopes(tau: Scalar, moving: Leaves) -> tuple[Leaves, Leaves]:
        at = model.with_moving(c.at, moving, tau=tau)
        if model.constraint is not None:
            at = attached(model, at, par, 1)
        k = model.flow(at, par)
        return guard_slopes(model, at, par, k)[1], k

    along = (jnp.ones_like(c.at.tau), c.k1)
    (slope, _), (bend, bends) = jax.jvp(slopes, (c.at.tau, model.moving_of(c.at)), along)
    return [Arc(sig * a, b) for a, b in zip(slope, bend, strict=True)], bends


def _errors(c: Carry, knobs: Knobs) -> Leaves:
    return tuple(a + knobs.rtol * jnp.abs(v) for v, a in zip(c.at.w, knobs.atol, strict=False))


def first_length(model: Model, par: Par, knobs: Knobs, c: Carry) -> Scalar:
    """The length of a first step in which no guard that has just fired returns to zero."""
    arcs, bends = _along(model, par, c)
    length = jnp.abs(c.target - c.at.tau)
    for side, arc in zip(c.sides, arcs, strict=True):
        length = jnp.minimum(
            length, 0.25 * jnp.min(jnp.where(side == Side.FIRED, arc.length, jnp.inf))
        )
    for bend, error in zip(bends, _errors(c, knobs), strict=False):
        length = jnp.minimum(length, jnp.sqrt(jnp.min(error / (jnp.abs(bend) + 1e-300))))
    return length


def settled(model: Model, par: Par, knobs: Knobs, c: Carry) -> Carry:
    """The loop's state; a contact that bounces no higher than the tolerances resolve is at rest."""
    arcs, errors, sig = _along(model, par, c)[0], _errors(c, knobs), sigma(par)
    by_state = lambda moving: model.guard_values(model.with_moving(c.at, moving), par)
    jacobians = jax.jacfwd(by_state)(model.moving_of(c.at))
    flags = []
    for action, side, arc, row in zip(model.guards, c.sides, arcs, jacobians, strict=True):
        contact = action.reset is not None and not action.terminal and action.direction != 0
        bounces = jnp.sign(arc.slope) == -action.direction * sig
        terms = [jnp.abs(d) * e for d, e in zip(row, errors, strict=False)]
        unsure = sum(jnp.sum(t, axis=tuple(range(jnp.ndim(side), t.ndim))) for t in terms)
        flags.append(
            (side == Side.FIRED) & bounces & (arc.height <= MAX_REST_HEIGHT * unsure) & contact
        )
    low = functools.reduce(jnp.logical_or, map(jnp.any, flags))
    shrinking = jnp.max(c.pace.streak) >= 2
    why = jnp.where(shrinking, int(Result.events_accumulate), int(Result.resting_contact))
    return select(low, at_rest(model, c, flags, why), c)


def failure(spec: Spec, par: Par, knobs: Knobs, c: Carry, flag: int) -> Result:
    """The result of a solve in which SUNDIALS failed."""
    model = spec.model
    h = LOOKAHEAD * sigma(par) * jnp.abs(par.t1 - par.t0)
    ahead = tuple(v + h * k for v, k in zip(c.at.w, c.k1, strict=False))
    there = model.with_moving(c.at, ahead, tau=c.at.tau + h)
    rates = sum(jnp.sum(v) for v in (*c.k1, *model.flow(there, par)))
    if not bool(jnp.isfinite(rates)):
        return Result.non_finite
    if model.constraint is not None and bool(near_impasse(model, c.at, par, c.k1, knobs.atol)):
        return Result.singular
    return FAILURES.get(flag, Result.step_underflow)


FAILURES = {-1: Result.too_many_steps, -4: Result.newton_failed, -6: Result.newton_failed}
