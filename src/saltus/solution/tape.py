"""Reading the tape: values at any time, the end, the events. Plain JAX functions of its rows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..base.host_programs import rarely
from ..base.leaves import Leaves, select
from ..base.types import Array, Flag, Scalar, Tree, Whole
from ..base.unreached_values import hide, only
from ..model.algebraic_states import attached, determined
from ..model.model import Action, At, Model, Par
from ..simulate.record import FLOW, Spec, action_of, is_reset
from ..simulate.save_times import Visits, find_row, within
from ..system.hybrid import Instant

TAYLOR = 3  # derivatives of algebraic states and of dense output are exact up to this order


class EventRow(NamedTuple):
    """One reset on the tape: of an event, a kink or a breakpoint."""

    row: int
    number: int  # of its action in the model
    action: Action
    member: int
    rooted: bool  # whether it has its own time, and was not triggered by another reset


class Tape(eqx.Module):
    """The rows of a solve as differentiable arrays, with what was decided about them."""

    tau: Array
    w: Leaves
    i: Leaves
    h: Array
    kind: Array
    member: Leaves
    n: Whole
    end: At  # the final state
    theta: Leaves
    iota: Leaves
    backward: Flag
    z: Leaves
    aux: Leaves
    depends: Scalar  # carries derivatives by everything the solve depends on

    @property
    def t0(self) -> Scalar:
        return self.par().t0

    @property
    def t1(self) -> Scalar:
        return self.par().t1

    def par(self) -> Par:
        return Par(self.theta, self.iota, self.backward)

    def state(self, k: Whole | int) -> At:
        """The state at the start of row `k` (the final state for `k = n`)."""
        pick = functools.partial(jnp.take, indices=k, axis=0, mode="clip")
        return At(
            pick(self.tau), tuple(map(pick, self.w)), tuple(map(pick, self.i)),
            tuple(map(pick, self.z)),
        )  # fmt: skip

    def noted(self, k: Whole | int) -> tuple[Any, Leaves]:
        """The length of row `k` and what its method recorded."""
        pick = functools.partial(jnp.take, indices=k, axis=0, mode="clip")
        return pick(self.h), tuple(map(pick, self.aux))

    # The kinds of rows. No other code reads `kind`.

    @property
    def size(self) -> int:
        """How many rows the buffer has, used or not."""
        return self.kind.shape[0]

    def used_rows(self) -> Array:
        """Which rows of the buffer are rows of the solve."""
        return jnp.arange(self.size) < self.n

    def flow_rows(self) -> Array:
        """Which rows are steps."""
        return self.used_rows() & (self.kind == FLOW)

    def reset_rows(self) -> Array:
        """Which rows are resets."""
        return self.used_rows() & is_reset(self.kind)

    def approach_rows(self) -> Array:
        """Which rows are steps that end at an event."""
        return self.used_rows() & (self.kind > 0) & ~is_reset(self.kind)

    def resets_of(self, chosen: Array) -> tuple[Array, Array]:
        """Which rows are resets of the chosen actions, and the number of the action of each row."""
        rows, action = jnp.arange(self.size), self.action_indices()
        resets = (rows < self.n) & is_reset(self.kind)
        return resets & chosen[jnp.clip(action, 0)], action

    def rooted_rows(self) -> Array:
        """Which rows are resets at a time of their own, not triggered by another reset."""
        before = jnp.concatenate([jnp.zeros_like(self.kind[:1]), self.kind[:-1]])
        return self.reset_rows() & (before == self.kind - 1)

    def first_flow_row(self) -> Whole:
        """The first step; if there is none, an unused row, where the flow is defined."""
        return jnp.argmax(self.kind == FLOW)

    def flows(self, k: Whole) -> Flag:
        """Whether row `k` is a step."""
        return (k < self.n) & (self._kind(k) == FLOW)

    def resets(self, k: Whole) -> Flag:
        """Whether row `k` is a reset."""
        return (k < self.n) & is_reset(self._kind(k))

    def action_indices(self) -> Array:
        """For each row, the number of the action whose approach or reset it is; -1 for steps."""
        return action_of(self.kind.astype(jnp.int32))

    def action_index(self, k: Array | int) -> Array:
        """The same for row `k`, or for several."""
        return action_of(self._kind(k).astype(jnp.int32))

    def members(self) -> Array:
        """For each row, which member of a family of events fired."""
        return self.member[0] if self.member else jnp.zeros(self.kind.shape, jnp.int32)

    def member_of(self, k: Array | int) -> Array:
        """The same for row `k`, or for several."""
        return self.member[0][k] if self.member else jnp.zeros(jnp.shape(k), jnp.int32)

    def _kind(self, k: Array | int) -> Array:
        return self.kind[jnp.minimum(k, self.size - 1)]

    def last_action(self, model: Model) -> Action | None:
        """The action whose reset gave the final state; `None` without rows or after a step."""
        index = int(self.action_index(self.n - 1)) if int(self.n) else -1
        return model.actions[index] if index >= 0 else None

    def events(self, model: Model) -> list[EventRow]:
        """All resets in order; needs known numbers."""
        resets, *columns = _event_columns(self)
        rows = np.flatnonzero(resets)
        index, member, rooted = (np.asarray(v)[rows].tolist() for v in columns)
        actions = [model.actions[k] for k in index]
        return [
            EventRow(*row)
            for row in zip(rows.tolist(), index, actions, member, rooted, strict=True)
        ]


@rarely
def _event_columns(tape: Tape) -> tuple[Array, Array, Array, Array]:
    return tape.reset_rows(), tape.action_indices(), tape.members(), tape.rooted_rows()


def instant(model: Model, at: At, par: Par, member: Whole | None = None) -> Instant:
    """Leaves under the names and in the structure that the user gave them."""
    t = par.t0 + at.tau
    u = None
    if model.u_tree is not None:
        u = jax.tree.unflatten(model.u_tree, model.inputs(t, at.i, par))
    return Instant(
        t=t,
        x=model.x.join(model.x_of(at), ()),
        z=model.z.join(at.z, ()),
        d=model.d.join(model.discrete_of(at), at.i[: model.place_mode]),
        u=u,
        member=member,
        mode=at.i[model.place_mode] if model.modes else None,
    )


def integrals(model: Model, at: At) -> Tree:
    return model.q.join(model.integrals_of(at), ())


def state_at(spec: Spec, tape: Tape, offset: Scalar, side: str) -> At:
    """The state at an offset from t0: the step map from the start of its row (M15)."""
    k = find_row(tape.tau, tape.n, tape.backward, tape.t0, offset, side)
    return along_row(spec, tape, k, offset - tape.state(k).tau)._replace(tau=offset)


def along_row(spec: Spec, tape: Tape, k: Whole, h: Scalar) -> At:
    """The state a time `h` after the start of row `k`."""
    model, par = spec.model, tape.par()
    at = tape.state(k)
    length, aux = tape.noted(k)
    there = spec.stepper.reach(model, par, at, h, aux, length, TAYLOR)
    return determined(model, there, par, TAYLOR)


def output(model: Model, at: At, par: Par) -> Tree:
    if model.output_fn is None:
        return instant(model, at, par).x
    leaves = model.output_fn(model.args(at, par), par)
    return jax.tree.unflatten(model.output_fn.out, leaves)


def _reading(spec: Spec, tape: Tape, t: Scalar, side: str) -> tuple[At, Any, Any]:
    """The state at a time, whether the time was reached, and a number that depends on both."""
    offset = t - tape.t0
    inside = within(tape.t0, offset, tape.end.tau, tape.backward)
    # A time that was not reached is replaced by the start, where the flow is finite.
    flows = tape.n > 0
    theta, w, z = only(flows, (tape.theta, tape.w, tape.z))
    flowing = dataclasses.replace(tape, theta=theta, w=w, z=z)
    at = state_at(spec, flowing, only(flows, jnp.where(inside, offset, 0.0)), side)
    at = select(flows, at, tape.state(0))
    return only(inside, at), inside, tape.depends + t


@functools.partial(jax.jit, static_argnames=("spec", "side"))
def read(spec: Spec, tape: Tape, ts: Array, side: str) -> tuple[Any, Any, Any]:
    """Outputs and integrals at the times `ts`, and which of them were reached."""
    par = tape.par()

    def one(t: Scalar) -> tuple[Any, Any, Any]:
        at, inside, depends = _reading(spec, tape, t, side)
        return (output(spec.model, at, par), integrals(spec.model, at)), inside, depends

    values, inside, depends = jax.vmap(one)(ts)
    return *hide(inside, values, depends), inside


@functools.partial(jax.jit, static_argnames=("spec", "side"))
def read_instants(spec: Spec, tape: Tape, ts: Array, side: str) -> Instant:
    """The instants at the times `ts`; NaN at times that were not reached."""
    par = tape.par()

    def one(t: Scalar) -> tuple[Instant, Any, Any]:
        at, inside, depends = _reading(spec, tape, t, side)
        return instant(spec.model, at, par), inside, depends

    now, inside, depends = jax.vmap(one)(ts)
    return hide(inside, now, depends)


@functools.partial(jax.jit, static_argnames=("spec",))
def read_visits(spec: Spec, visits: Visits, tape: Tape, ts: Array) -> tuple[Any, Any, Any]:
    """Outputs and integrals at the save times, and which of them were reached."""
    par = tape.par()
    pick = functools.partial(jnp.take, indices=visits.place, axis=0)
    at = jax.vmap(only)(visits.reached, jax.tree.map(pick, visits.at))

    def one(at: At) -> Tree:
        y = output(spec.model, attached(spec.model, at, par, TAYLOR), par)
        return y, integrals(spec.model, at)

    return *hide(visits.reached, jax.vmap(one)(at), tape.depends + ts), visits.reached


@functools.partial(jax.jit, static_argnames=("spec",))
def read_end(spec: Spec, tape: Tape, ok: Flag) -> tuple[Instant, tuple]:
    """Where the solve stopped; and that instant, its integrals and output, NaN unless `ok`."""
    par = tape.par()
    last = instant(spec.model, tape.end, par)
    end, par = only(ok, (tape.end, par))
    at = attached(spec.model, end, par, TAYLOR)
    reached = (instant(spec.model, at, par), integrals(spec.model, at), output(spec.model, at, par))
    return last, hide(ok, reached, tape.depends)


def _over(model: Model, one: Callable[[Whole, Flag], Tree]) -> Callable[[Array, Array], Tree]:
    """A function mapped over all entries of the log; one by one if each is expensive."""
    if model.pattern is None:
        return jax.vmap(one)

    def go(index: Array, valid: Array) -> Tree:
        def entry(given: tuple) -> Tree:
            blank = jax.tree.map(lambda v: jnp.zeros(v.shape, v.dtype), jax.eval_shape(one, *given))
            return jax.lax.cond(given[1], lambda: one(*given), lambda: blank)

        return jax.lax.map(entry, (index, valid))

    return go


@functools.partial(jax.jit, static_argnames=("spec", "size"))
def read_events(spec: Spec, tape: Tape, size: int) -> tuple:
    """The first `size` firings: (t, which, member, before, after, count)."""
    model, par = spec.model, tape.par()
    own = jnp.asarray([a.logged for a in model.actions])
    is_event, action = tape.resets_of(own)
    logged = any(a.logged for a in model.actions)  # a constant sum is slow to compile
    count = jnp.sum(is_event) if logged else jnp.zeros((), int)
    index = jnp.nonzero(is_event, size=size, fill_value=0)[0]
    valid = jnp.arange(size) < count

    def one(k: Whole, real: Flag) -> tuple:
        member = tape.member_of(k)
        which = jnp.where(real, action[k], -1)
        before = attached(model, tape.state(k), par, TAYLOR)
        after = attached(model, tape.state(k + 1), par, TAYLOR)
        return (
            instant(model, before, par, member),
            instant(model, after, par, member),
            which,
            member,
        )

    before, after, which, member = _over(model, one)(index, valid)
    before, after = hide(valid, (before, after), tape.depends)
    return (
        before.t,
        jnp.where(valid, which, -1),
        jnp.where(valid, member, -1),
        before,
        after,
        count,
    )
