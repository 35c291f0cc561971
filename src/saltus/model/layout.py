"""The order of the leaves of a row state and of the parameters, defined here and nowhere else.

A row state is `(tau, w, i, z)`: the offset from the start time, the float leaves
`w = (x..., q..., d floats..., pending times...)`, the recorded leaves
`i = (d others..., mode, tick counts..., signal segments..., flags of kinks)`, and the algebraic
states. These are a function of the others (algebraic_states.py), so only their value is recorded.
Parameters are `theta = (t0, t1, p floats..., signals..., ticks..., closed-over floats..., probe)`,
differentiated, and `iota = (p others..., closed-over others...)`, not. Signals are pairs of times
and values, ticks pairs of period and offset. Sweeps append save times to `theta`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

from ..base.leaves import Leaves, Shape
from ..base.types import Array, Flag, Scalar, Vector


class HasW(Protocol):
    """Anything with the float leaves of a row state."""

    @property
    def w(self) -> Leaves: ...


class HasTheta(Protocol):
    """Anything with the parameters that are differentiated."""

    @property
    def theta(self) -> Leaves: ...


At_ = TypeVar("At_", bound=HasW)  # the result has the same type, with other leaves
Par_ = TypeVar("Par_", bound=HasTheta)
Record = TypeVar("Record")


class At(NamedTuple):
    """Where a row starts: offset from t0, float leaves, recorded leaves, algebraic states."""

    tau: Scalar
    w: Leaves
    i: Leaves
    z: Leaves = ()


class Par(NamedTuple):
    """What does not change along a solve; `backward` is true when time decreases."""

    theta: Leaves
    iota: Leaves
    backward: Flag

    @property
    def t0(self) -> Scalar:
        return self.theta[0]

    @property
    def t1(self) -> Scalar:
        return self.theta[1]


def _with(record: Record, **changes: Any) -> Record:
    """A named tuple or a dataclass with some fields changed."""
    old: Any = record
    named = hasattr(old, "_replace")
    return old._replace(**changes) if named else dataclasses.replace(old, **changes)


class Places:
    """Places of a `Model`'s leaves. `at` is anything with a field `w`, `par` with one `theta`."""

    x: Shape
    q: Shape
    z: Shape
    d: Shape
    modes: tuple[str, ...]
    signals: tuple[tuple[Any, int], ...]
    kinks: int
    ticks: int
    first_tick: int
    n_p: tuple[int, int]
    n_theta: int
    n_iota: int
    actions: tuple[Any, ...]

    # -- of w ---------------------------------------------------------------------------------
    @property
    def nx(self) -> int:
        return self.x.kinds.count("f")

    @property
    def moving(self) -> int:
        """How many leaves of `w` the flow moves: x and q come first."""
        return self.nx + self.q.kinds.count("f")

    @property
    def n_d(self) -> tuple[int, int]:
        floats = self.d.kinds.count("f")
        return floats, sum(k in "ik" for k in self.d.kinds)

    @property
    def place_pending(self) -> int:
        return self.moving + self.n_d[0]

    @property
    def n_w(self) -> int:
        """Float leaves of a row state."""
        return self.place_pending + sum(a.kind == "time" for a in self.actions)

    def x_of(self, at: HasW) -> Leaves:
        """The differential states."""
        return at.w[: self.nx]

    def integrals_of(self, at: HasW) -> Leaves:
        """The integrals q."""
        return at.w[self.nx : self.moving]

    def moving_of(self, at: HasW) -> Leaves:
        """What the flow moves: x and q."""
        return at.w[: self.moving]

    def held_of(self, at: HasW) -> Leaves:
        """What the flow does not move: discrete floats and pending times."""
        return at.w[self.moving :]

    def discrete_of(self, at: HasW) -> Leaves:
        """The discrete floats."""
        return at.w[self.moving : self.place_pending]

    def pending_of(self, at: HasW) -> Leaves:
        """The times of planned events."""
        return at.w[self.place_pending :]

    def with_x(self, at: At_, x: Iterable[Array], **changes: Any) -> At_:
        """The same with other differential states, and with changes of other fields."""
        return _with(at, w=(*x, *at.w[self.nx :]), **changes)

    def with_moving(self, at: At_, moving: Iterable[Array], **changes: Any) -> At_:
        """The same with another x and q, and with changes of other fields."""
        return _with(at, w=(*moving, *self.held_of(at)), **changes)

    def with_held(self, at: At_, held: Iterable[Array], **changes: Any) -> At_:
        """The same with other discrete floats and pending times."""
        return _with(at, w=(*self.moving_of(at), *held), **changes)

    def with_pending(self, at: At_, times: Iterable[Array]) -> At_:
        """The same with other times of planned events."""
        return _with(at, w=(*at.w[: self.place_pending], *times))

    def blank_at(self) -> At:
        """A row state with zeros for all leaves: its structure."""
        zero: Any = 0
        return At(zero, (0,) * self.n_w, (0,) * self.n_i, (0,) * self.n_z)

    def blank_par(self) -> Par:
        """Parameters with zeros for all leaves."""
        zero: Any = 0
        return Par((0,) * self.n_theta, (0,) * self.n_iota, zero)

    # -- of i and z ---------------------------------------------------------------------------
    @property
    def n_z(self) -> int:
        """Algebraic leaves."""
        return len(self.z.kinds)

    @property
    def n_i(self) -> int:
        """Recorded leaves of a row state."""
        return self.place_flags + bool(self.kinks)

    @property
    def place_mode(self) -> int:
        return self.n_d[1]

    @property
    def place_ticks(self) -> int:
        return self.place_mode + bool(self.modes)

    @property
    def place_segments(self) -> int:
        return self.place_ticks + self.ticks

    @property
    def place_flags(self) -> int:
        return self.place_segments + len(self.signals)

    # -- of theta -----------------------------------------------------------------------------
    def p_of(self, par: HasTheta) -> Leaves:
        """The floats of p."""
        return par.theta[2 : 2 + self.n_p[0]]

    def with_p(self, par: Par_, p: Iterable[Array]) -> Par_:
        """The same with other floats of p."""
        return self._with_theta(par, 2, p)

    def signal_of(self, par: HasTheta, k: int) -> tuple[Vector, Array]:
        """The times and the values of input number `k`."""
        slot = self.signals[k][1]
        return par.theta[slot], par.theta[slot + 1]

    def with_signals(self, par: Par_, leaves: Iterable[Array]) -> Par_:
        """The same with other times and values, in turn, of all inputs."""
        return self._with_theta(par, 2 + self.n_p[0], leaves)

    def tick_of(self, par: HasTheta, k: int) -> tuple[Scalar, Scalar]:
        """The period and the offset of ticks number `k`."""
        slot = self.first_tick + 2 * k
        return par.theta[slot], par.theta[slot + 1]

    def closed_over_of(self, par: HasTheta) -> Leaves:
        """The floats that model functions close over."""
        return par.theta[self.first_tick + 2 * self.ticks : self.n_theta - 1]

    def probe_of(self, par: HasTheta) -> Scalar:
        """The part of its local error that is added to each step, for error estimates."""
        return par.theta[self.n_theta - 1]

    def with_probe(self, par: Par_, probe: Scalar) -> Par_:
        """The same with another probe."""
        return self._with_theta(par, self.n_theta - 1, (probe,))

    def _with_theta(self, par: Par_, first: int, leaves: Iterable[Array]) -> Par_:
        new = tuple(leaves)
        return _with(par, theta=(*par.theta[:first], *new, *par.theta[first + len(new) :]))

    @property
    def places_of_values(self) -> frozenset[int]:
        """The places in theta of what is not a time: p, values of inputs, closed-over floats."""
        values = (slot + 1 for _, slot in self.signals)
        closed_over = range(self.first_tick + 2 * self.ticks, self.n_theta - 1)
        return frozenset((*range(2, 2 + self.n_p[0]), *values, *closed_over))
