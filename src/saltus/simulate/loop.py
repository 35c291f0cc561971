"""The flat loop: each iteration is one step attempt, one iteration of event location, or one jump.

It makes every discrete decision and writes the record. It is never differentiated.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..base.batching import Level, nest
from ..base.control_flow import branch
from ..base.leaves import rms, select
from ..base.results import Result
from ..base.types import Array, Flag, Leaves, Scalar, Whole
from ..methods.step_control import INITIAL_LOG_ERROR
from ..methods.tangent_error import unborn
from ..model.algebraic_states import solved
from ..model.model import At, Par
from .arrival import arrive
from .firing import fire, start
from .guards import guard_slopes, refresh_flags, sigma
from .record import Carry, Knobs, Rows, Spec, Structure
from .states import Move
from .step import attempt
from .tape_buffer import write, write_end
from .traced_checks import verdict


def first_length(spec: Spec, c: Carry, par: Par, knobs: Knobs) -> Scalar:
    """A first step length from the size and change of the flow (Hairer, Norsett, Wanner II.4)."""
    if not spec.adaptive:
        return knobs.fixed
    model, sig = spec.model, sigma(par)
    x, f0 = model.moving_of(c.at), c.k1
    scale = [a + knobs.rtol * jnp.abs(v) for v, a in zip(x, knobs.atol, strict=False)]
    d0 = rms([v / s for v, s in zip(x, scale, strict=True)])
    d1 = rms([v / s for v, s in zip(f0, scale, strict=True)])
    small = (d0 < 1e-5) | (d1 < 1e-5)
    span = jnp.abs(par.t1 - par.t0)
    h0 = jnp.where(small, 1e-6 * jnp.minimum(span, 1.0), 0.01 * d0 / jnp.where(small, 1.0, d1))
    h0 = jnp.minimum(h0, span)
    step = tuple((v + sig * h0 * k).astype(v.dtype) for v, k in zip(x, f0, strict=True))
    at = model.with_moving(c.at, step, tau=c.at.tau + sig * h0)
    at = solved(spec.model, at, par)[0]
    f1 = spec.model.flow(at, par)
    d2 = rms([(b - a) / s for a, b, s in zip(f0, f1, scale, strict=True)]) / h0
    steep = jnp.maximum(d1, d2)
    power = 1.0 / (spec.stepper.error_order + 1)
    h1 = jnp.where(
        steep <= 1e-15, jnp.maximum(1e-6, 1e-3 * h0), (0.01 / jnp.maximum(steep, 1e-15)) ** power
    )
    h = jnp.minimum(jnp.minimum(100 * h0, h1), span)
    h = jnp.where(jnp.isfinite(h) & (h > 0), h, 1e-6 * span)
    h = jnp.minimum(h, jnp.maximum(_guards_turn(spec, c, at, par, f1), 1e-6 * span))
    if spec.resolve:
        h = jnp.minimum(h, 1e-6 * span)  # later steps grow as far as the guards allow
    return jnp.where(jnp.isnan(knobs.first_step), h, knobs.first_step)


def _guards_turn(spec: Spec, c: Carry, at: At, par: Par, k: Leaves) -> Scalar:
    """The time after which a guard first turns around, estimated from slopes here and at `at`."""
    first = jnp.full((), jnp.inf)
    if not spec.model.guards:
        return first
    values, slopes = guard_slopes(spec.model, at, par, k)
    gap = jnp.abs(at.tau - c.at.tau)
    for y, a, b in zip(values, c.slopes, slopes, strict=True):
        bend = jnp.abs(b - a) / gap
        size = jnp.abs(y) + jnp.abs(a) ** 2 / jnp.where(bend > 0, bend, 1.0)
        time = jnp.where(bend > 0, 2.0 * jnp.sqrt(size / jnp.where(bend > 0, bend, 1.0)), jnp.inf)
        first = jnp.minimum(first, jnp.min(time))
    return first


def begin(spec: Spec, at: At, par: Par, knobs: Knobs) -> Carry:
    """The loop's state before its first iteration."""
    at = refresh_flags(spec.model, at, par, jnp.full((), -1, jnp.int32), 0)
    c = start(spec.model, at, par, knobs)
    h = first_length(spec, c, par, knobs)
    counts = c.counts._replace(evaluations=jnp.full((), 2 if spec.adaptive else 1, jnp.int32))
    memory = spec.stepper.memory(spec.model)
    code = verdict(spec.model, par, knobs, c.code)
    c = c._replace(
        h=h, error=jnp.full((), INITIAL_LOG_ERROR), counts=counts, memory=memory, code=code
    )
    return c._replace(tangent=unborn(spec.model)) if spec.adaptive else c


def iterate(spec: Spec, c: Carry, par: Par, knobs: Knobs) -> tuple[Carry, Rows]:
    """One iteration of one lane."""
    cases = {
        Move.ATTEMPT: lambda: attempt(spec, par, knobs, c),
        Move.ARRIVE: lambda: arrive(spec.model, spec.stepper, par, knobs, c),
    }
    if len(spec.model.actions) > 1:
        cases[Move.FIRE] = lambda: fire(spec.model, spec.stepper, par, knobs, c)
    free = c.jump < 0
    move = jnp.where(free, Move.ATTEMPT, jnp.where(c.rooted, Move.ARRIVE, Move.FIRE))
    return branch(move.astype(jnp.int32), [cases[k] for k in Move if k in cases], lazy=True)


def loop(
    spec: Spec,
    levels: tuple[Level, ...],
    structure: Structure,
    carry: Carry,
    rows: Rows,
    args: list[Array],
    limit: Whole | None = None,
    base: Whole | int = 0,
) -> tuple[Carry, Rows, Whole | None]:
    """Iterate until every lane has stopped or filled its rows, and at most `limit` times.

    `args` are the leaves of (start, parameters, knobs), and `structure` is the structure of these.
    With a limit, the number of iterations is the third result. The first `base` rows are stored
    elsewhere.
    """
    room = base + rows.tau.shape[0] - 1

    def lane(c: Carry, flat: list[Array]) -> tuple[Carry, Rows]:
        _, par, knobs = structure.unflatten(flat)
        new, row = iterate(spec, c, par, knobs)
        if levels:
            new = select(active(c, room), new, c)
        return new, row

    step = nest(lane, levels)

    def body(state: tuple) -> tuple:
        c, tape, *count = state
        new, row = step(c, args)
        tape = write(tape, c.counts.rows - base, row, active(c, room))
        return new, tape, *(k + 1 for k in count)

    def going(state: tuple) -> Flag:
        c, _, *count = state
        some = jnp.any(active(c, room))
        return some & (count[0] < limit) if count else some

    first = () if limit is None else (jnp.zeros((), jnp.int32),)
    carry, rows, *count = jax.lax.while_loop(going, body, (carry, rows, *first))
    rows = write_end(rows, carry.counts.rows - base, carry.at)
    return carry, rows, count[0] if count else None


def active(c: Carry, room: Whole | int) -> Flag:
    """Whether a lane continues."""
    return (c.code == int(Result.running)) & (c.counts.rows < room)
