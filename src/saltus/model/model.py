"""A system as functions on leaves, which the loop, the sweeps and the solution use.

The order of the leaves is in layout.py. Models that compute the same are equal, and have one hash.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves, Shape
from ..base.tracing import Traced, operations
from ..base.types import Array, Scalar, Treedef, Whole
from ..linalg.pattern import Pattern
from ..system.inputs import Signal
from .layout import At, Par, Places

MAX_LIGHT, MAX_SHORT = 24, 100  # most operations of a `light` flow, and of one that is not `long`


@dataclasses.dataclass(frozen=True)
class Fn:
    """A traced function with the places of its closed-over values in (theta, iota)."""

    traced: Traced
    slots: tuple[tuple[str, int], ...]
    out: Treedef | None = None

    def closed_over(self, par: Par) -> list[Array]:
        """The values that the function closes over."""
        return [par.theta[j] if kind == "f" else par.iota[j] for kind, j in self.slots]

    def __call__(self, args: Leaves, par: Par) -> list[Array]:
        return self.traced.call(*self.closed_over(par), *args)


@dataclasses.dataclass(frozen=True)
class Action:
    """One way a row can jump: an event of the system, a breakpoint of an input, or the stop."""

    kind: str  # guard | zeno | time | ticks | signal | stop
    name: str
    direction: int = 0
    terminal: bool = False
    level: bool = False
    contact: bool = False  # must not go beyond zero
    size: int | None = None  # members of a family; None for a scalar guard
    index: int = 0  # place among guards, pending times, tick counts or segments
    guard: Fn | None = None
    active: Fn | None = None
    reset: Fn | None = None
    next_time: Fn | None = None
    logged: bool = False  # a user's event, not an internal one
    kink: bool = False  # a family made by `when`
    implicit: bool = False  # its reset solves equations
    moving: bool = False  # ticks whose period or offset may depend on parameters
    zeno: bool = False  # the next action, of kind "zeno", fires where its events accumulate
    possible: Fn | None = None  # backward in time: whether it may have happened here


@dataclasses.dataclass(frozen=True)
class Constraint:
    """The equations `0 = g`, and what is known about them before the first step."""

    fn: Fn
    equations: tuple[str, ...]  # a name for each leaf of g
    index: tuple[int, ...]  # of each leaf
    affine: bool  # z enters linearly, in equations of index 1 only
    shapes: tuple[tuple[int, ...], ...]  # of the leaves of z
    rows: tuple[tuple[int, ...], ...]  # of the leaves of g
    pinned: Fn | None = None  # per leaf of g: in this mode it is `0 = z_i`
    seen: tuple[bool, ...] = ()  # which guards (in order) depend on z

    @property
    def highest(self) -> int:
        return max(self.index)


@dataclasses.dataclass(frozen=True)
class Invariant:
    """Residuals that the flow keeps at zero, and the projection of a state onto them."""

    fn: Fn
    names: tuple[str, ...]  # of its leaves
    project: Fn


@dataclasses.dataclass(frozen=True)
class Model(Places):
    """Everything static about a solve. Equal models compute the same and share compiled code.

    `build` returns one object for all equal models, so that they are compared by identity.
    """

    x: Shape
    q: Shape
    z: Shape
    d: Shape
    p: Shape
    modes: tuple[str, ...]
    signals: tuple[tuple[type[Signal], int], ...]  # class and first slot of each signal
    u_tree: Treedef | None
    kinks: int  # comparisons marked by `when`
    ticks: int
    first_tick: int  # first slot of (period, offset) pairs in theta
    n_p: tuple[int, int]  # leaves of p in theta and in iota
    n_theta: int
    n_iota: int
    flow_fn: Fn
    output_fn: Fn | None
    actions: tuple[Action, ...]
    dtypes: tuple[Any, ...]  # of the moving leaves
    constraint: Constraint | None = None
    pattern: Pattern | None = (
        None  # where the Jacobian of (flow, constraint) by (x, z) can be nonzero
    )
    invariant: Invariant | None = None
    one_way: bool = False  # for solves forward in time only

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, f.name) for f in dataclasses.fields(self)))

    # -- what it is ---------------------------------------------------------------------------
    @property
    def x_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the differential leaves."""
        return tuple(v.shape for v in self.flow_fn.traced.outputs[: self.nx])

    @property
    def families(self) -> int:
        """1 if some guard has members, else 0."""
        return int(any(a.size is not None for a in self.actions))

    @property
    def kind_dtype(self) -> np.dtype:
        """The smallest integer type for the kind of a row: the tape has one for every row."""
        return jnp.dtype("int8") if 2 * len(self.actions) + 1 < 127 else jnp.dtype("int32")

    @property
    def guards(self) -> tuple[Action, ...]:
        return tuple(a for a in self.actions if a.kind == "guard")

    @property
    def n_guards(self) -> int:
        """Guards, each member of a family counted."""
        return sum(a.size or 1 for a in self.guards)

    @property
    def timed(self) -> tuple[Action, ...]:
        return tuple(a for a in self.actions if a.kind not in ("guard", "zeno"))

    @functools.cached_property
    def length(self) -> int:
        """How many operations the flow has."""
        return operations(self.flow_fn.traced.jaxpr)

    @property
    def light(self) -> bool:
        """Whether the flow is so short that copies of it in a program cost very little."""
        return self.constraint is None and self.length <= MAX_LIGHT

    @property
    def long(self) -> bool:
        """Whether the flow is so long that a program should not contain many copies of it."""
        return self.length > MAX_SHORT

    # -- arguments of user functions ----------------------------------------------------------
    def inputs(self, t: Scalar, i: Leaves, par: Par) -> list[Array]:
        """The inputs' values: each signal read in its own segment, constant within a row."""
        values = []
        for j, (cls, _) in enumerate(self.signals):
            signal = cls.of_leaves(*self.signal_of(par, j))
            values.append(signal.value(t, i[self.place_segments + j]))
        return values

    def args(self, at: At, par: Par, member: Whole | int = 0) -> Leaves:
        """The flat arguments of every traced user function."""
        t = par.t0 + at.tau
        return (
            t,
            *self.x_of(at),
            *at.z,
            *self.discrete_of(at),
            *at.i[: self.place_ticks],
            *self.inputs(t, at.i, par),
            jnp.asarray(member, dtype=jnp.int32),
            *self.p_of(par),
            *par.iota[: self.n_p[1]],
        )

    def zero_integrals(self) -> Leaves:
        outs = self.flow_fn.traced.outputs[self.nx :]
        return tuple(
            jnp.zeros(v.shape, d) for v, d in zip(outs, self.dtypes[self.nx :], strict=True)
        )

    # -- the system on leaves -----------------------------------------------------------------
    def flow(self, at: At, par: Par) -> Leaves:
        """`(x', q')` on the moving leaves (M1)."""
        out = self.flow_fn(self._flagged(at, par), par)
        return tuple(v.astype(dt) for v, dt in zip(out, self.dtypes, strict=True))

    def residuals(self, at: At, par: Par) -> Leaves:
        """`g`, leaf by leaf (M36)."""
        return tuple(self.constraint.fn(self._flagged(at, par), par))  # type: ignore[union-attr]

    def _flagged(self, at: At, par: Par) -> Leaves:
        """The arguments of functions with `when`: the flags of its comparisons come first."""
        args = self.args(at, par)
        return (at.i[self.place_flags], *args) if self.kinks else args

    def guard_values(self, at: At, par: Par) -> Leaves:
        """The guards in order of declaration, each a scalar or a vector of members."""
        args = self.args(at, par)
        return tuple(self._guard_value(a, args, par) for a in self.guards)

    def _guard_value(self, action: Action, args: Leaves, par: Par) -> Array:
        """A guard's value; 1 while it is not active, because it may not be defined there."""
        value = action.guard(args, par)[0]  # type: ignore[misc]
        if action.active is None:
            return value
        return jnp.where(action.active(args, par)[0], value, jnp.ones_like(value))

    def guard_active(self, at: At, par: Par) -> Leaves:
        """Which guards are active (`True` for those that always are)."""
        args = self.args(at, par)
        return tuple(True if a.active is None else a.active(args, par)[0] for a in self.guards)

    def one_guard(self, action: Action, at: At, par: Par, member: Whole | int) -> Scalar:
        """The value of one guard, of one member if it is a family."""
        value = action.guard(self.args(at, par), par)[0]  # type: ignore[misc]
        if action.size is None:
            return value
        return jax.lax.dynamic_index_in_dim(value, member, keepdims=False)

    def time_of(self, action: Action, at: At, par: Par) -> Scalar:
        """When a timed action is due, as an offset from t0; it may be in the past."""
        if action.kind == "time":
            return self.pending_of(at)[action.index] - par.t0
        if action.kind == "ticks":
            period, offset = self.tick_of(par, action.index)
            count = at.i[self.place_ticks + action.index]
            return period * count + (offset - par.t0)
        if action.kind == "signal":
            times = self.signal_of(par, action.index)[0]
            segment = at.i[self.place_segments + action.index] - par.backward.astype(jnp.int64)
            inside = jnp.clip(segment, 0, times.shape[0] - 1)
            return jax.lax.dynamic_index_in_dim(times, inside, keepdims=False) - par.t0
        return par.t1 - par.t0

    def with_pending_times(self, at: At, par: Par) -> At:
        """The same state with every `next_time` evaluated again."""
        timed = [a for a in self.actions if a.kind == "time"]
        if not timed:
            return at
        args = self.args(at, par)
        times = [a.next_time(args, par)[0] for a in timed]  # type: ignore[misc]
        times = [jnp.asarray(v, dtype=jnp.float64) for v in times]
        return self.with_pending(at, times)

    def reset(self, action: Action, at: At, par: Par, member: Whole | int) -> At:
        """The state just after `action` (M6): the reset, then counters.

        Its algebraic states are a guess, and its pending times are those before the reset."""
        i = at.i
        if action.reset is not None:
            out = list(action.reset(self.args(at, par, member), par))
            nd_f, n_i = self.n_d[0], self.place_ticks
            x, z = out[: self.nx], tuple(out[self.nx : self.nx + self.n_z])
            rest = out[self.nx + self.n_z :]
            at = self.with_held(self.with_x(at, x, z=z), (*rest[:nd_f], *self.pending_of(at)))
            i = (*rest[nd_f : nd_f + n_i], *i[n_i:])
        if action.kind in ("ticks", "signal"):
            base = self.place_ticks if action.kind == "ticks" else self.place_segments
            j = base + action.index
            step = jnp.where(par.backward, -1, 1).astype(i[j].dtype)
            i = (*i[:j], i[j] + step, *i[j + 1 :])
        return at._replace(i=i)
