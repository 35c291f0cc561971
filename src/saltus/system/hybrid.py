"""What users write: instants, events, systems. Checks on construction, no numerics."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import equinox as eqx
import numpy as np

from ..base.foreign_names import answered
from ..base.foreign_parts import EVENT, INSTANT, SYSTEM, TICKS, TIME_EVENT, constructs
from ..base.text import picture
from ..base.tracing import is_tracer
from ..base.tracing_errors import UNTRACEABLE, noted, untraceable
from ..base.types import Function, HostArray, Number, Params, Tree

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Direction = Literal["falling", "rising", "either"]
DIRECTIONS = {"falling": -1, "rising": 1, "either": 0}


@constructs(INSTANT)
class Instant(eqx.Module):
    """Everything that a model function can read: the time, the states, the inputs.

    `t` is the time, `x` are the differential states, `z` the algebraic states (in a start: the
    guess from which they are solved) and `d` the discrete states, which change only at events; each
    may be any pytree, so that states have names. `mode` is the mode of an automaton: its name in a
    start, its integer inside model functions. `dx` is x' in fully implicit systems (in a start: a
    guess). The solver fills in `u`, the current values of the inputs, and `member`, the index of
    the member of an event family that fired.
    """

    t: Any
    x: Tree
    z: Tree = None
    d: Tree = None
    u: Tree = None
    member: Any = None
    mode: Any = None
    dx: Tree = None

    def __repr__(self) -> str:
        fields = [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self)]
        shown = ", ".join(f"{k}={_values(v)}" for k, v in fields if v is not None)
        return f"Instant({shown})"

    def replace(self, **changes: Any) -> Instant:
        """The same instant with some fields changed."""
        unknown = set(changes) - {f.name for f in dataclasses.fields(self)}
        if unknown:
            raise TypeError(
                f"Instant has no field {', '.join(sorted(unknown))}. Its fields are t, x, z, d, "
                "mode: write now.replace(x=...)."
            )
        return dataclasses.replace(self, **changes)


def _values(tree: Tree) -> str:
    """A pytree with its numbers written out where they are known and few."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{k!r}: {_values(v)}" for k, v in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        inner = ", ".join(map(_values, tree))
        return f"({inner})" if isinstance(tree, tuple) else f"[{inner}]"
    dtype = getattr(tree, "dtype", None)
    if dtype is None or is_tracer(tree) or np.size(tree) > 8:
        return eqx.tree_pformat(tree)
    if not (np.issubdtype(dtype, np.number) or np.issubdtype(dtype, np.bool_)):
        return eqx.tree_pformat(tree)
    return np.array2string(np.asarray(tree), precision=8, separator=", ")


# found in messages to which nothing needs to be added
FULL_MESSAGE = re.compile(r"There, now\.|Model functions are called|while the model is translated")
WRONG_ARITY = re.compile(r"takes .*positional argument|missing \d+ required positional")


def called(owner: str, fn: Function, now: object, p: Params) -> Any:
    """`fn(now, p)`; errors in it are reported with `owner`, the role of the function."""
    try:
        return fn(now, p)
    except UNTRACEABLE as error:
        raise untraceable(owner, error) from error
    except (KeyError, AttributeError) as error:
        what = f"it reads {error}, which is not there" if isinstance(error, KeyError) else error
        raise ValueError(f"{owner}: {what}. {_names(now, p)}") from error
    except Exception as error:
        text = (
            str(error)
            if isinstance(error, TypeError) and not FULL_MESSAGE.search(str(error))
            else ""
        )
        if WRONG_ARITY.search(text):
            raise TypeError(
                f"{owner}: {error}. Model functions are called with (now, p): write "
                "lambda now, p: ..., also where p is not used."
            ) from error
        if "'NoneType' object" in text:
            raise TypeError(f"{owner}: {error}. {_names(now, p)}") from error
        noted(owner, error)
        raise


def _names(now: object, p: Params) -> str:
    names = getattr(now, "shown", ("x", "z", "d", "u", "dx"))
    fields = [(k, getattr(now, k)) for k in names]
    shown = [f"now.{k} is {picture(v)}" for k, v in fields if v is not None or k in "xz"]
    return f"There, {', '.join(shown)}, and p is {picture(p)}."


def check_function(
    owner: str, field: str, value: object, optional: bool = False, gives: str = "value",
    write: str = "",
) -> None:  # fmt: skip
    """Raise an error if a model function, which will be called with `(now, p)`, is none."""
    if callable(value) or (value is None and optional):
        return
    raise TypeError(
        f"{owner}: {field} is {value!r}, expected a function (now, p) -> {gives}. "
        f"Write {write or f'{field}=lambda now, p: ...'}"
    )


def _name(kind: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise TypeError(
            f"{kind}: the name is {name!r}, expected a non-empty string. "
            f'Write {kind}("bounce", ...), the name first.'
        )


@constructs(EVENT)
@dataclasses.dataclass(frozen=True, eq=False)
class Event:
    """Something that happens when `guard(now, p)` crosses zero.

    `name` identifies the event in the log and in messages. `direction` is the direction of the
    crossing along increasing time. `reset(now, p)` returns the instant just after the event
    (`now.replace(x=...)`); without a reset, the event is only logged. With `terminal=True` the
    solve ends there. A guard may return an array: a family of events, whose reset reads the index
    of the member that fired as `now.member`.

    `active(now, p) -> bool` switches the guard on and off. It is evaluated at the start and after
    every event, so it may depend on modes, discrete states and parameters only. `when` says what
    happens if the guard is already beyond zero when it is switched on: with "level" it fires at
    once, with "edge" it waits for a crossing. "contact" is for a guard that must not go beyond
    zero, such as the gap between two bodies: it also fires if it is beyond zero by a rounding error
    when it is switched on, or if its own reset has stopped it and another reset at the same instant
    pushes it on.

    `zeno` says how to continue where the events accumulate at one time, or where the state rests on
    the guard: a reset like `reset`, or the name of a mode. Without it the solve stops there.

    `undo(now, p)` is the inverse of `reset`: from the instant just after the event it returns the
    instant just before. With it, solves that run backward in time undo the event.
    """

    name: str
    guard: Function
    reset: Function | None = None
    direction: Direction = "falling"
    terminal: bool = False
    when: Literal["edge", "level", "contact"] = "edge"
    active: Function | None = None
    zeno: Callable | str | None = None
    undo: Function | None = None
    came: Function | None = dataclasses.field(default=None, repr=False)  # is now just after it?
    possible: Function | None = dataclasses.field(default=None, repr=False)  # see reversal.py

    def __post_init__(self):
        _name("Event", self.name)
        owner = f'event "{self.name}"'
        check_function(owner, "guard", self.guard)
        check_function(owner, "reset", self.reset, optional=True)
        check_function(owner, "active", self.active, optional=True)
        check_function(owner, "undo", self.undo, optional=True)
        if not isinstance(self.zeno, str):
            check_function(owner, "zeno", self.zeno, optional=True)
        if self.direction not in DIRECTIONS:
            raise ValueError(
                f"{owner}: direction is {self.direction!r}, expected one of 'falling', 'rising', "
                "'either'. Write direction=\"rising\"."
            )
        if self.when not in ("edge", "level", "contact"):
            raise ValueError(
                f"{owner}: when is {self.when!r}, expected 'edge', 'level' or 'contact'. Write "
                'when="edge".'
            )


@dataclasses.dataclass(frozen=True, eq=False)
class Ticks:
    """Times `offset + k * period`, counted with an integer so that they never drift."""

    period: Number | Function
    offset: Number | Function = 0.0


@functools.partial(answered, table=TICKS)
def every(period: Number | Function, offset: Number | Function = 0.0) -> Ticks:
    """The times `offset + k * period` strictly after the start, for `TimeEvent`.

    Both may be numbers or functions `(now, p) -> value`, evaluated at the start of the solve.
    """
    if not callable(period) and not is_tracer(period):
        length: Any = np.asarray(period)
        if not np.all((length > 0) & np.isfinite(length)):
            raise ValueError(f"every: the period is {period}, expected a positive number.")
    return Ticks(period, offset)


@constructs(TIME_EVENT)
@dataclasses.dataclass(frozen=True, eq=False)
class TimeEvent:
    """Something that happens at a time known in advance.

    `name`, `reset` and `terminal` are those of `Event`. `next_time(now, p)` is evaluated at the
    start and after every jump; if it is infinite, or not later than `now.t`, no event is pending.
    The time is hit exactly, and has derivatives with respect to `p` and to the state at which it
    was computed. For periodic events write `next_time=every(period, offset)`.
    """

    name: str
    next_time: Callable | Ticks
    reset: Function | None = None
    terminal: bool = False

    def __post_init__(self):
        _name("TimeEvent", self.name)
        owner = f'time event "{self.name}"'
        if not isinstance(self.next_time, Ticks):
            check_function(owner, "next_time", self.next_time)
        check_function(owner, "reset", self.reset, optional=True)


@constructs(SYSTEM)
@dataclasses.dataclass(frozen=True, eq=False)
class HybridSystem:
    """A system that flows and jumps. Every model function is `(now, p) -> value`.

    `flow` returns `x'` with the structure of `x`; `events` is a list of `Event` and `TimeEvent`;
    `rate` returns integrands, whose integrals are `sol.integral` (running costs); `output` returns
    what is saved (without it, the state `x`); `inputs(p)` returns a pytree of signals (`Steps`,
    `Ramps`), whose current values model functions read as `now.u`. `units` maps names to units for
    tables and plots.

    `constraint` returns the residuals of `0 = g(now, p)`, any pytree with as many numbers as `z`;
    the names of its leaves are the names of the equations. `index` is 1 (g can be solved for z) or
    2 (Hessenberg form: g does not depend on z, but its time derivative can be solved for z), either
    one number for all equations or a pytree like g; without it, equations that depend on z have
    index 1, the others index 2. `sparsity` says how the Jacobian of a large system is treated:
    "detect", "dense", or a boolean matrix that shows where it can be nonzero.

    `invariant` returns numbers that the flow keeps at zero, any pytree (say, how far a length or an
    energy is from its first value). They are checked at the start, after every reset and at the
    end, and every step ends with a projection onto them, so that they do not drift.
    """

    flow: Function
    constraint: Function | None = None
    events: Sequence[Event | TimeEvent] = ()
    rate: Function | None = None
    output: Function | None = None
    inputs: Function | Tree = None
    units: dict[str, str] | None = None
    index: int | Tree = None
    sparsity: str | HostArray | csr_array | None = None
    invariant: Function | None = None
    modes: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    pinned: Function | None = dataclasses.field(default=None, repr=False)
    adapt_start: Function | None = dataclasses.field(default=None, repr=False)
    adapt_back: Function | None = dataclasses.field(default=None, repr=False)
    check_start: Function | None = dataclasses.field(default=None, repr=False)
    projection: Function | None = dataclasses.field(default=None, repr=False)
    forward_only: str | None = dataclasses.field(default=None, repr=False)  # the reason, if it is

    def __post_init__(self):
        check_function("HybridSystem", "flow", self.flow)
        check_function("HybridSystem", "constraint", self.constraint, optional=True)
        check_function("HybridSystem", "rate", self.rate, optional=True)
        check_function("HybridSystem", "output", self.output, optional=True)
        check_function("HybridSystem", "invariant", self.invariant, optional=True)
        events = (self.events,) if isinstance(self.events, Event | TimeEvent) else self.events
        if not isinstance(events, Iterable):
            raise TypeError(
                f"HybridSystem: events is {events!r}, expected a list of Event and TimeEvent. "
                "Write events=[saltus.Event(...)]."
            )
        events = tuple(events)
        for e in events:
            if not isinstance(e, Event | TimeEvent):
                raise TypeError(
                    f"HybridSystem: events contains {e!r}, expected Event or TimeEvent objects. "
                    'Write events=[saltus.Event("name", guard=..., reset=...)].'
                )
        names = [e.name for e in events]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(
                f'HybridSystem: two events are called "{twice[0]}". Names are how the event log is '
                "read: give each event its own."
            )
        object.__setattr__(self, "events", events)


def from_function(f: Function) -> Function:
    """A flow from a plain right-hand side `f(t, x, p)`."""
    return lambda now, p: f(now.t, now.x, p)
