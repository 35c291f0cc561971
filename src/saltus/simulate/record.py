"""The tape, and the state of the loop that writes it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from ..base.leaves import Leaves
from ..methods.method import Stepper
from ..model.model import At, Model

# Kinds of rows: a flow, or for each action an approach (the last bit of flow) and a reset.
FLOW = 0
# Lengths of approaches without a derivative: the guard may only touch zero, or jumps over it.
GRAZES, JUMPS = 1e-300, 2e-300
READ = -1  # an excursion to a save time; a short one is the approach of an action after the last


def approach_kind(action: Any) -> Any:
    return 1 + 2 * action


def reset_kind(action: Any) -> Any:
    return 2 + 2 * action


def action_of(kind: Any) -> Any:
    """The action of an approach or a reset; -1 for flow rows."""
    return (kind - 1) // 2


def is_reset(kind: Any) -> Any:
    return (kind > 0) & (kind % 2 == 0)


class Rows(NamedTuple):
    """One row per accepted step or jump: where it starts, and what was decided about it.

    Every array has the row as its first axis, then lanes, then the leaf's own shape. Row `n` holds
    the final state.
    """

    tau: Any
    w: Leaves
    i: Leaves
    h: Any
    kind: Any
    member: Leaves  # one array if the model has families of events, else none
    z: Leaves = ()  # the algebraic states where it starts
    aux: Leaves = ()  # what the method needs to redo a step


NO_EVENT, RAISE, FIRE = range(3)


class Knobs(NamedTuple):
    """Numbers that steer the decisions; none is differentiated, none is compiled in."""

    rtol: Any
    atol: Leaves  # of the moving leaves, then of the algebraic ones
    first_step: Any  # NaN: choose one
    max_step: Any
    fixed: Any
    control: Leaves  # safety, shrink, grow, beta
    max_steps: Any
    max_events: Any
    asked: Any  # the tolerance as the user gave it, in units of rtol
    grazing: Any  # what a touch does: NO_EVENT, RAISE or FIRE


class Search(NamedTuple):
    """The location of a crossing between iterations; lengths count from the row's start."""

    on: Any
    guard: Any
    member: Any
    before: Any  # the guard's sign before the crossing
    low: Any
    high: Any
    verified: Any
    h: Any
    last: Any  # the last Newton correction
    count: Any
    tiny: Any  # how far from zero the guard may be by rounding
    curve: Any  # its second derivative, away from zero: at a minimum, or where it has a root
    depth: Any  # how far beyond zero it was seen before it turns back


class Counts(NamedTuple):
    rows: Any
    steps: Any
    rejected: Any
    evaluations: Any
    events: Any
    chain: Any  # jumps at this instant
    bad: Any  # weight of attempts that were not finite, see step.py
    shaken: Any  # whether the last attempt was one of them
    doubt: Any  # attempts in a row in which a guard may have hidden a crossing
    pressed: Any  # firings of this instant at a surface to which both sides lead
    touches: Any  # guards that came to zero and did not cross it


class Pace(NamedTuple):
    """How fast events follow each other, to see them accumulate: an entry for every guard."""

    last: Any
    gap: Any
    ratio: Any
    streak: Any
    which: Any  # the guard that fired last


class Carry(NamedTuple):
    """Everything the loop decides with."""

    at: At
    k1: Leaves  # the flow at `at`
    h: Any  # the next step's length, positive
    error: Any  # the controller's memory: the logarithm of the last error
    values: Leaves  # the guards at `at`, and their slopes in time
    slopes: Leaves
    sides: Leaves  # see detection.py
    leaving: Leaves  # the sign each guard left the row's start with, while searching
    together: Leaves  # guards that reached zero in this batch and wait for their turn
    armed: Leaves  # timed actions that lie ahead
    target: Any  # the next of their times
    jump: Any  # the action to fire now, or -1
    member: Any
    rooted: Any  # whether it has a root or a time here, and not yet a row for that
    search: Search
    counts: Counts
    pace: Pace
    code: Any
    cap: Any  # no longer step, lest guards hide crossings
    memory: Any = ()  # the method's
    spent: Any = ()  # the scaled errors of all steps, where there are guards
    tangent: Any = ()  # one that travels along where states are at rest (methods/tangent_error.py)


def empty_search() -> Search:
    zero, off = jnp.zeros(()), jnp.zeros((), bool)
    whole = jnp.zeros((), jnp.int32)
    return Search(off, whole, whole, zero, zero, zero, off, zero, zero, whole, zero, zero, zero)


def empty_counts() -> Counts:
    whole = jnp.zeros((), jnp.int32)
    return Counts(*([whole] * len(Counts._fields)))


def empty_pace(guards: int) -> Pace:
    zero = jnp.zeros((guards,))
    whole = jnp.zeros((guards,), jnp.int32)
    return Pace(zero, jnp.full((guards,), jnp.inf), zero, whole, jnp.zeros((), jnp.int32))


def accumulation(pace: Pace, tau: Any) -> Any:
    """Where the events of the guard that fired last pile up, if they go on like that."""
    gap, ratio = pace.gap[pace.which], pace.ratio[pace.which]
    return tau + gap * ratio / (1 - ratio)


class Spec(NamedTuple):
    """What the compiled loop depends on."""

    model: Model
    stepper: Stepper
    adaptive: bool
    resolve: bool = False  # guards count in the error norm
    rules: Any = None  # how rows are differentiated, if not by their own Jacobians
