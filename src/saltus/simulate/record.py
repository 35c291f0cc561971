"""The tape, and the state of the loop that writes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves
from ..base.types import Flag, Scalar, Tree, Vector, Whole
from ..methods.method import Stepper
from ..methods.tangent_error import Tangent
from ..model.model import At, Model

if TYPE_CHECKING:
    from ..solution.solution import Solution
    from ..sweep.rows import Mask, RowData

Kind = TypeVar("Kind", int, np.ndarray, jax.Array)

# Kinds of rows: a flow, or for each action an approach (the last bit of flow) and a reset.
FLOW = 0
# Lengths of approaches without a derivative: the guard may only touch zero, or jumps over it.
GRAZES, JUMPS = 1e-300, 2e-300
READ = -1  # an excursion to a save time; a short one is an approach of the action after the last


def approach_kind(action: Kind) -> Kind:
    return 1 + 2 * action


def reset_kind(action: Kind) -> Kind:
    return 2 + 2 * action


def action_of(kind: Kind) -> Kind:
    """The action of an approach or a reset; -1 for flow rows."""
    return (kind - 1) // 2


@overload
def is_reset(kind: np.ndarray) -> np.ndarray: ...
@overload
def is_reset(kind: jax.Array) -> jax.Array: ...
def is_reset(kind: np.ndarray | jax.Array) -> np.ndarray | jax.Array:
    return (kind > 0) & (kind % 2 == 0)


class Structure(Protocol):
    """The structure of a pytree, as `jax.tree.structure` returns it."""

    @property
    def num_leaves(self) -> int: ...

    def unflatten(self, leaves: Iterable[Tree], /) -> Tree: ...


class Rows(NamedTuple):
    """One row per accepted step or jump: where it starts, and what was decided about it.

    Every array has the row as its first axis, then lanes, then the leaf's own shape. Row `n` holds
    the final state.
    """

    tau: Vector
    w: Leaves
    i: Leaves
    h: Vector
    kind: Vector
    member: Leaves  # one array if the model has families of events, else none
    z: Leaves = ()  # the algebraic states at the start of the row
    aux: Leaves = ()  # what the method needs to compute the step again


class Knobs(NamedTuple):
    """Settings on which decisions depend; they are neither differentiated nor compiled in."""

    rtol: Scalar
    atol: Leaves  # of the moving leaves, then of the algebraic ones
    first_step: Scalar  # NaN: chosen automatically
    max_step: Scalar
    fixed: Scalar
    control: Leaves  # safety, shrink, grow, beta
    max_steps: Whole
    max_events: Whole
    asked: Scalar  # the relative tolerance as the user gave it, in units of `rtol`
    grazing: Whole  # what happens at a touch: a Grazing


class Tried(NamedTuple):
    """A step that was computed, and neither accepted nor rejected yet."""

    h: Scalar  # its length, positive
    at: At  # its end
    k: Leaves  # the flow at its end
    error: Scalar
    finite: Flag
    at_target: Flag
    mids: Leaves  # guards in the middle, and their slopes in time
    mid_slopes: Leaves
    values: Leaves  # guards at the end, and their slopes in time
    slopes: Leaves
    landed: Flag  # the search has reached its root
    aux: Leaves  # what is recorded with the row
    memory: Tree  # the method's
    converged: Flag  # whether the equations of an implicit step were solved
    evaluations: Whole
    retry: Flag  # worth another attempt of the same length
    impasse: Flag  # the step reaches or passes a point at which z is not determined
    blind: Flag  # `error` says nothing about derivatives


class Search(NamedTuple):
    """The location of a crossing between iterations; lengths count from the row's start."""

    on: Flag
    guard: Whole
    member: Whole
    before: Scalar  # the guard's sign before the crossing
    low: Scalar
    high: Scalar
    verified: Flag
    h: Scalar
    last: Scalar  # the last Newton correction
    iterations: Whole
    tiny: Scalar  # how far from zero the guard may be because of rounding
    curve: Scalar  # its second derivative at a minimum or a root, positive away from zero
    depth: Scalar  # how far beyond zero it was found before it turns back


class Counts(NamedTuple):
    rows: Whole
    steps: Whole
    rejected: Whole
    evaluations: Whole
    events: Whole
    chain: Whole  # jumps at this instant
    bad: Whole  # weight of attempts that were not finite, see step.py
    shaken: Whole  # whether the last attempt was not finite
    doubt: Whole  # attempts in a row in which a guard may have hidden a crossing
    pressed: Whole  # firings at this instant of a surface towards which both flows point
    touches: Whole  # guards that reached zero and did not cross it


class Pace(NamedTuple):
    """How fast events follow each other, to notice that they accumulate: an entry per guard."""

    last: Vector
    gap: Vector
    ratio: Vector
    streak: Vector
    which: Whole  # the guard that fired last


class Carry(NamedTuple):
    """The state of the loop: everything that its decisions depend on."""

    at: At
    k1: Leaves  # the flow at `at`
    h: Scalar  # the next step's length, positive
    error: Scalar  # the logarithm of the last error, for the step size control
    values: Leaves  # the guards at `at`, and their slopes in time
    slopes: Leaves
    sides: Leaves  # what is known about the signs of the guards: Side
    leaving: Leaves  # during a search, the sign of each guard just after the start of the row
    together: Leaves  # guards that reached zero in this batch and wait for their turn
    armed: Leaves  # timed actions that are due later
    target: Scalar  # the next of their times
    jump: Whole  # the action to fire now, or -1
    member: Whole
    rooted: Flag  # whether it has a root or a time here, for which there is no row yet
    search: Search
    counts: Counts
    pace: Pace
    code: Whole
    cap: Scalar  # the longest step in which no guard can hide a crossing
    memory: Tree = ()  # of the method, from one attempt to the next
    spent: Scalar | tuple[()] = ()  # the scaled errors of all steps, where there are guards
    tangent: (
        Tangent | tuple[()]
    ) = ()  # computed along the solution while states are at rest (methods/tangent_error.py)


def empty_search() -> Search:
    zero, off = jnp.zeros(()), jnp.zeros((), bool)
    whole = jnp.zeros((), jnp.int32)
    return Search(
        on=off, guard=whole, member=whole, before=zero, low=zero, high=zero, verified=off, h=zero,
        last=zero, iterations=whole, tiny=zero, curve=zero, depth=zero,
    )  # fmt: skip


def empty_counts() -> Counts:
    whole = jnp.zeros((), jnp.int32)
    return Counts(*([whole] * len(Counts._fields)))


def empty_pace(guards: int) -> Pace:
    zero = jnp.zeros((guards,))
    return Pace(
        last=zero,
        streak=jnp.zeros((guards,), jnp.int32),
        gap=jnp.full((guards,), jnp.inf),
        ratio=zero,
        which=jnp.zeros((), jnp.int32),
    )


def accumulation(pace: Pace, tau: Scalar) -> Scalar:
    """Where the events of the guard that fired last accumulate, if their times shrink further."""
    gap, ratio = pace.gap[pace.which], pace.ratio[pace.which]
    return tau + gap * ratio / (1 - ratio)


class RowRules(Protocol):
    """Another way to differentiate rows than by their own Jacobians.

    `s` are time and float leaves at the start of a row, `theta` the parameters, `ds` and `dtheta`
    their tangents, `lam` the adjoints at its end, `held` what else an adjoint sweep carries.
    """

    def tangent(
        self, spec: Spec, masks: tuple[Mask, ...], row: RowData, s: Leaves, theta: Leaves,
        ds: Leaves, dtheta: Leaves,
    ) -> Leaves:  # fmt: skip
        """The tangent at the end of a row."""
        ...

    def cotangent(
        self, spec: Spec, masks: tuple[Mask, ...], row: RowData, s: Leaves, theta: Leaves,
        lam: Leaves, held: Leaves,
    ) -> tuple[Leaves, Leaves, Leaves]:  # fmt: skip
        """Adjoints at the start of a row, its part of the gradient, and the new `held`."""
        ...

    def carried(self, spec: Spec, state: Leaves) -> Leaves:
        """The `held` with which an adjoint sweep begins, at the end of the solve."""
        ...

    def look_at(self, sol: Solution) -> None:
        """Called with every solution that will be differentiated by these rules."""
        ...


class Spec(NamedTuple):
    """What the compiled loop depends on."""

    model: Model
    stepper: Stepper
    adaptive: bool
    resolve: bool = False  # guards count in the error norm
    rules: RowRules | None = None  # how rows are differentiated, if not by their own Jacobians
