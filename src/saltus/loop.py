"""The flat loop: each iteration is one step attempt, one iteration of event location, or one jump.

It makes every discrete decision and writes the record. It is never differentiated.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .arrival import arrive
from .attempt import attempt
from .consistent import solved
from .control import FORGOTTEN
from .firing import fire, guard_slopes, refresh_flags, sigma, start
from .lanes import Level, nest
from .leaves import rms, select
from .methods.base import Stepper
from .methods.tangent import unborn
from .model import At, Model, Par
from .record import FLOW, Carry, Knobs, Rows
from .results import Result
from .staging import branch
from .validity import verdict


class Spec(NamedTuple):
    """What the compiled loop depends on."""

    model: Model
    stepper: Stepper
    adaptive: bool
    resolve: bool = False  # guards count in the error norm
    rules: Any = None  # how rows are differentiated, if not by their own Jacobians


def first_length(spec: Spec, c: Carry, par: Par, knobs: Knobs) -> Any:
    """An initial step from the size of the flow and its change (Hairer, Norsett, Wanner II.4)."""
    if not spec.adaptive:
        return knobs.fixed
    m, sig = spec.model.moving, sigma(par)
    x, f0 = c.at.w[:m], c.k1
    scale = [a + knobs.rtol * jnp.abs(v) for v, a in zip(x, knobs.atol, strict=False)]
    d0 = rms([v / s for v, s in zip(x, scale, strict=True)])
    d1 = rms([v / s for v, s in zip(f0, scale, strict=True)])
    small = (d0 < 1e-5) | (d1 < 1e-5)
    span = jnp.abs(par.theta[1] - par.theta[0])
    h0 = jnp.where(small, 1e-6 * jnp.minimum(span, 1.0), 0.01 * d0 / jnp.where(small, 1.0, d1))
    h0 = jnp.minimum(h0, span)
    step = tuple((v + sig * h0 * k).astype(v.dtype) for v, k in zip(x, f0, strict=True))
    at = At(c.at.tau + sig * h0, (*step, *c.at.w[m:]), c.at.i, c.at.z)
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
        h = jnp.minimum(h, 1e-6 * span)  # from there it grows as far as the guards allow
    return jnp.where(jnp.isnan(knobs.first_step), h, knobs.first_step)


def _guards_turn(spec: Spec, c: Carry, at: At, par: Par, k: Any) -> Any:
    """About when the first guard has turned around, from its slopes here and at `at`."""
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
    c = c._replace(h=h, error=jnp.full((), FORGOTTEN), counts=counts, memory=memory, code=code)
    return c._replace(tangent=unborn(spec.model)) if spec.adaptive else c


def iterate(spec: Spec, c: Carry, par: Par, knobs: Knobs) -> tuple[Carry, Rows]:
    """One iteration of one lane."""
    cases = [
        lambda: attempt(spec, par, knobs, c),
        lambda: arrive(spec.model, spec.stepper, par, knobs, c),
    ]
    if len(spec.model.actions) > 1:
        cases.append(lambda: fire(spec.model, spec.stepper, par, knobs, c))
    which = jnp.where(c.jump < 0, 0, jnp.where(c.rooted, 1, 2))
    return branch(which.astype(jnp.int32), cases, lazy=True)


def blank_rows(spec: Spec, at: At, capacity: int) -> Rows:
    """Room for `capacity` rows and the final state; `at` may have lanes."""

    def room(leaf: Any, dtype: Any = None) -> Any:
        return jnp.zeros((capacity + 1, *jnp.shape(leaf)), dtype or leaf.dtype)

    def noted(leaf: Any) -> Any:
        return jnp.zeros((capacity + 1, *jnp.shape(at.tau), *leaf.shape), leaf.dtype)

    model, whole = spec.model, jnp.int32
    return Rows(
        room(at.tau), tuple(map(room, at.w)), tuple(map(room, at.i)),
        room(at.tau), room(at.tau, model.kind_dtype), (room(at.tau, whole),) * model.families,
        tuple(map(room, at.z)), tuple(map(noted, spec.stepper.aux(model))),
    )  # fmt: skip


SLABS = 16


def write(rows: Rows, n: Any, row: Rows, active: Any) -> Rows:
    """`row` at index `n` of each lane."""
    if jnp.ndim(n) == 0:
        return jax.tree.map(lambda a, v: put(a, v, (n,)), rows, row)
    lanes = n.ndim
    flat = n.reshape(-1)

    def join(v: Any, axis: int) -> Any:
        return v.reshape(*v.shape[:axis], flat.size, *v.shape[axis + lanes :])

    wide = jax.tree.map(lambda a: join(a, 1), rows)
    values = jax.tree.map(lambda v: join(v, 0), row)
    wide = _write_lanes(wide, flat, values, active.reshape(-1))
    return jax.tree.map(lambda a, old: a.reshape(old.shape), wide, rows)


def put(array: Any, value: Any, where: tuple) -> Any:
    """One entry, in place; no scatter, which would not fit into one kernel."""
    start = (*where, *[0] * (array.ndim - len(where)))
    update = value.astype(array.dtype).reshape((1,) * len(where) + array.shape[len(where) :])
    start = tuple(jnp.asarray(k, jnp.int32) for k in start)
    return jax.lax.dynamic_update_slice(array, update, start)


def _write_lanes(rows: Rows, n: Any, row: Rows, active: Any) -> Rows:
    """Whole rows of lanes at once while the lanes are close together, else lane by lane."""
    low = jnp.min(jnp.where(active, n, jnp.iinfo(jnp.int32).max))
    high = jnp.max(jnp.where(active, n, -1))
    together = high - low < SLABS

    def slab(state: tuple) -> tuple:
        r, tape = state

        def blend(a: Any, v: Any) -> Any:
            old = jax.lax.dynamic_index_in_dim(a, r, 0, keepdims=False)
            here = jnp.reshape(n == r, n.shape + (1,) * (v.ndim - 1))
            return put(a, jnp.where(here, v, old), (r,))

        return r + 1, jax.tree.map(blend, tape, row)

    def single(state: tuple) -> tuple:
        j, tape = state
        k = jax.lax.dynamic_index_in_dim(n, j, 0, keepdims=False)

        def one(a: Any, v: Any) -> Any:
            return put(a, jax.lax.dynamic_index_in_dim(v, j, 0, keepdims=False), (k, j))

        return j + 1, jax.tree.map(one, tape, row)

    last = jnp.where(together, high, low - 1)
    rows = jax.lax.while_loop(lambda s: s[0] <= last, slab, (low, rows))[1]
    first = jnp.where(together, n.size, 0).astype(jnp.int32)
    return jax.lax.while_loop(lambda s: s[0] < n.size, single, (first, rows))[1]


def loop(
    spec: Spec,
    levels: tuple[Level, ...],
    carry: Carry,
    rows: Rows,
    args: list,
    limit: Any = None,
    base: Any = 0,
) -> tuple[Carry, Rows, Any]:
    """Iterate until every lane has stopped or filled its rows, and at most `limit` times.

    With a limit, the number of iterations is the third result. `base` rows are kept elsewhere.
    """
    room = base + rows.tau.shape[0] - 1

    def lane(c: Carry, flat: list) -> tuple[Carry, Rows]:
        _, par, knobs = unpack(spec, flat)
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

    def going(state: tuple) -> Any:
        c, _, *count = state
        some = jnp.any(active(c, room))
        return some & (count[0] < limit) if count else some

    first = () if limit is None else (jnp.zeros((), jnp.int32),)
    carry, rows, *count = jax.lax.while_loop(going, body, (carry, rows, *first))
    rows = write_end(rows, carry.counts.rows - base, carry.at)
    return carry, rows, count[0] if count else None


def write_end(rows: Rows, n: Any, at: At) -> Rows:
    """The final state as the row `n` of each lane."""
    blank, whole = jnp.zeros_like(at.tau), jnp.zeros_like(n)
    members = tuple(whole for _ in rows.member)
    aux = jax.tree.map(lambda v: jnp.zeros(v.shape[1:], v.dtype), rows.aux)
    final = Rows(at.tau, at.w, at.i, blank, whole + FLOW, members, at.z, aux)
    return write(rows, n, final, jnp.ones_like(n, bool))


def active(c: Carry, room: Any) -> Any:
    """Whether a lane goes on."""
    return (c.code == int(Result.running)) & (c.counts.rows < room)


def unpack(spec: Spec, flat: Any) -> tuple[At, Par, Knobs]:
    """Flat arguments as (start, parameters, knobs)."""
    m = spec.model
    at = At(0, (0,) * m.n_w, (0,) * m.n_i, (0,) * m.n_z)
    par = Par((0,) * m.n_theta, (0,) * m.n_iota, 0)
    knobs = Knobs(0, (0,) * (m.moving + m.n_z), 0, 0, 0, (0,) * 4, 0, 0, 0, 0)
    return jax.tree.unflatten(jax.tree.structure((at, par, knobs)), list(flat))
