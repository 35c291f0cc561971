"""Reading the tape: values at any time, the end, the events. Plain JAX on its rows."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from ..base.leaves import Leaves, select
from ..base.unreached_values import hide, only
from ..model.algebraic_states import attached, determined
from ..model.model import At, Model, Par
from ..simulate.record import Spec, action_of, is_reset
from ..simulate.save_times import Visits, find_row, within
from ..system.hybrid import Instant

TAYLOR = 3  # derivatives of algebraic states and of dense output are exact up to this order


class Tape(eqx.Module):
    """The rows of a solve as differentiable arrays, with what was decided about them."""

    tau: Any
    w: Leaves
    i: Leaves
    h: Any
    kind: Any
    member: Leaves
    n: Any
    end: At  # the final state
    theta: Leaves
    iota: Leaves
    backward: Any
    z: Leaves = ()
    aux: Leaves = ()
    depends: Any = None  # a number with a derivative by everything the solve depends on

    @property
    def t0(self) -> Any:
        return self.par().t0

    @property
    def t1(self) -> Any:
        return self.par().t1

    def par(self) -> Par:
        return Par(self.theta, self.iota, self.backward)

    def state(self, k: Any) -> At:
        """The state at the start of row `k` (the final state for `k = n`)."""
        pick = functools.partial(jnp.take, indices=k, axis=0, mode="clip")
        return At(
            pick(self.tau), tuple(map(pick, self.w)), tuple(map(pick, self.i)),
            tuple(map(pick, self.z)),
        )  # fmt: skip

    def noted(self, k: Any) -> tuple[Any, Leaves]:
        """The length of row `k` and what its method recorded."""
        pick = functools.partial(jnp.take, indices=k, axis=0, mode="clip")
        return pick(self.h), tuple(map(pick, self.aux))


def instant(model: Model, at: At, par: Par, member: Any = None) -> Instant:
    """Leaves as what the user named them."""
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


def integrals(model: Model, at: At) -> Any:
    return model.q.join(model.integrals_of(at), ())


def state_at(spec: Spec, tape: Tape, offset: Any, side: str) -> At:
    """The state at an offset from t0: the step map from the start of its row (M15)."""
    k = find_row(tape.tau, tape.n, tape.backward, tape.t0, offset, side)
    return along_row(spec, tape, k, offset - tape.state(k).tau)._replace(tau=offset)


def along_row(spec: Spec, tape: Tape, k: Any, h: Any) -> At:
    """The state a time `h` after the start of row `k`."""
    model, par = spec.model, tape.par()
    at = tape.state(k)
    length, aux = tape.noted(k)
    there = spec.stepper.reach(model, par, at, h, aux, length, TAYLOR)
    return determined(model, there, par, TAYLOR)


def output(model: Model, at: At, par: Par) -> Any:
    if model.output_fn is None:
        return instant(model, at, par).x
    leaves = model.output_fn(model.args(at, par), par)
    return jax.tree.unflatten(model.output_fn.out, leaves)


def _reading(spec: Spec, tape: Tape, t: Any, side: str) -> tuple[At, Any, Any]:
    """The state at a time, whether that was reached, and a number with all it depends on."""
    offset = t - tape.t0
    inside = within(tape.t0, offset, tape.end.tau, tape.backward)
    # Elsewhere it is read where the flow is sure to be finite. Without rows nothing has flowed.
    flows = tape.n > 0
    theta, w, z = only(flows, (tape.theta, tape.w, tape.z))
    flowing = dataclasses.replace(tape, theta=theta, w=w, z=z)
    at = state_at(spec, flowing, only(flows, jnp.where(inside, offset, 0.0)), side)
    at = select(flows, at, tape.state(0))
    return only(inside, at), inside, tape.depends + t


@functools.partial(jax.jit, static_argnames=("spec", "side"))
def read(spec: Spec, tape: Tape, ts: Any, side: str) -> tuple[Any, Any, Any]:
    """Outputs and integrals at the times `ts`, and which of them were reached."""
    par = tape.par()

    def one(t: Any) -> tuple[Any, Any, Any]:
        at, inside, depends = _reading(spec, tape, t, side)
        return (output(spec.model, at, par), integrals(spec.model, at)), inside, depends

    values, inside, depends = jax.vmap(one)(ts)
    return *hide(inside, values, depends), inside


@functools.partial(jax.jit, static_argnames=("spec", "side"))
def read_instants(spec: Spec, tape: Tape, ts: Any, side: str) -> Instant:
    """What a model function may look at, at the times `ts`; NaN where they were not reached."""
    par = tape.par()

    def one(t: Any) -> tuple[Instant, Any, Any]:
        at, inside, depends = _reading(spec, tape, t, side)
        return instant(spec.model, at, par), inside, depends

    now, inside, depends = jax.vmap(one)(ts)
    return hide(inside, now, depends)


@functools.partial(jax.jit, static_argnames=("spec",))
def read_visits(spec: Spec, visits: Visits, tape: Tape, ts: Any) -> tuple[Any, Any, Any]:
    """Outputs and integrals at the save times, and which of them were reached."""
    par = tape.par()
    pick = functools.partial(jnp.take, indices=visits.place, axis=0)
    at = jax.vmap(only)(visits.reached, jax.tree.map(pick, visits.at))

    def one(at: At) -> Any:
        y = output(spec.model, attached(spec.model, at, par, TAYLOR), par)
        return y, integrals(spec.model, at)

    return *hide(visits.reached, jax.vmap(one)(at), tape.depends + ts), visits.reached


@functools.partial(jax.jit, static_argnames=("spec",))
def read_end(spec: Spec, tape: Tape, ok: Any) -> tuple[Instant, tuple]:
    """Where the solve stopped; and that instant, its integrals and output, NaN unless `ok`."""
    par = tape.par()
    last = instant(spec.model, tape.end, par)
    end, par = only(ok, (tape.end, par))
    at = attached(spec.model, end, par, TAYLOR)
    reached = (instant(spec.model, at, par), integrals(spec.model, at), output(spec.model, at, par))
    return last, hide(ok, reached, tape.depends)


def _over(model: Model, one: Any) -> Any:
    """A function over all entries of the log; one after the other where each is a lot of work."""
    if model.pattern is None:
        return jax.vmap(one)

    def go(index: Any, valid: Any) -> Any:
        def entry(given: tuple) -> Any:
            blank = jax.tree.map(lambda v: jnp.zeros(v.shape, v.dtype), jax.eval_shape(one, *given))
            return jax.lax.cond(given[1], lambda: one(*given), lambda: blank)

        return jax.lax.map(entry, (index, valid))

    return go


@functools.partial(jax.jit, static_argnames=("spec", "size"))
def read_events(spec: Spec, tape: Tape, size: int) -> tuple:
    """The first `size` firings: (t, which, member, before, after, count)."""
    model, par = spec.model, tape.par()
    own = jnp.asarray([a.logged for a in model.actions])
    rows = jnp.arange(tape.kind.shape[0])
    action = action_of(tape.kind.astype(jnp.int32))
    is_event = (rows < tape.n) & is_reset(tape.kind) & own[jnp.clip(action, 0)]
    logged = any(a.logged for a in model.actions)  # a constant sum is slow to compile
    count = jnp.sum(is_event) if logged else jnp.zeros((), int)
    index = jnp.nonzero(is_event, size=size, fill_value=0)[0]
    valid = jnp.arange(size) < count

    def one(k: Any, real: Any) -> tuple:
        member = tape.member[0][k] if tape.member else jnp.zeros((), jnp.int32)
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
