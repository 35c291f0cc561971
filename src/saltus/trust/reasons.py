"""Why a gradient may not be trusted: each reason with its text, its advice and its rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from ..base.types import Array, Flag, Scalar, Whole
from .verdict import DEGRADED, TRUSTED, UNTRUSTED

GROWS = "errors grow along the solution"
CHANGES = "derivatives change within the error of the solution"
DISAGREE = "tangent and adjoint sweep disagree"  # only a reason where no other explains it
ACCUMULATED_TOLERANCES = 10  # errors of many steps add up: closer values cannot be told apart


class Evidence(NamedTuple):
    """Measurements of a solution; numbers and flags that work inside `jit`."""

    failed: Flag  # the solve stopped early
    touched: Flag  # a guard touches zero
    watching: Flag  # touches count (`on_grazing` is not "ignore")
    near: Scalar  # from a guard that is not reached to zero, in units of its error
    unseen: Flag  # a guard crossed zero between the places at which it was sampled
    grazing: Scalar  # the relative error of the worst event that almost grazes
    promised: Scalar  # the relative error that TRUSTED allows
    order: Whole  # the level of simultaneous events that do not commute
    saved: Flag  # an event falls on a save time
    ended: Flag  # an event falls on the end
    undecided: Flag  # a guard is within the error of zero at the start or after a reset
    kinked: Flag  # the solve has passed a hidden kink
    jump: Scalar  # of the flow at the worst of these, relative to the flow
    growth: Scalar  # of errors along the solution, times the tolerance
    shift: Scalar  # of derivatives when all states change by their tolerances
    condition: Scalar  # of the equations for algebraic states
    drift: Scalar  # off the constraint, in units of the tolerance
    dot: Scalar  # the relative difference of tangent and adjoint sweep
    leaps: Flag  # a guard jumps at an event


class Reason(NamedTuple):
    """A reason for doubt: `rule(evidence)` returns whether it is DEGRADED, and UNTRUSTED."""

    text: str
    advice: str
    rule: Callable[[Evidence], tuple[Flag | bool, Flag | bool]]

    def level(self, evidence: Evidence) -> Whole:
        some, bad = self.rule(evidence)
        return jnp.where(bad, UNTRUSTED, jnp.where(some, DEGRADED, TRUSTED))


def above(value: Array, limit: Array | float) -> Array:
    """Whether a number is larger than a limit; true for NaN."""
    return ~(value <= limit)


def worse(e: Evidence, value: Array, some: Array | float, bad: Array | float) -> tuple[Flag, Flag]:
    """Whether a number is above two limits; a guard that jumps explains one that is not finite."""
    told = e.leaps & ~jnp.isfinite(value)
    return above(value, some) & ~told, above(value, bad) & ~told


TABLE = (
    Reason(
        "the solve failed",
        "Read sol.error.",
        lambda e: (False, e.failed),
    ),
    Reason(
        "a guard touches zero",
        "No derivative exists here: move the parameters, or write on_grazing=...",
        lambda e: (e.touched, e.touched & e.watching),
    ),
    Reason(
        "whether a guard is reached is within the error of the solution",
        "Tighten rtol and atol, or move the parameters.",
        lambda e: (~(e.near >= 100), ~(e.near >= ACCUMULATED_TOLERANCES) & e.watching),
    ),
    Reason(
        "a guard seems to have crossed zero unseen",
        "It changes faster than the steps resolve: write solve(..., resolve_guards=True).",
        lambda e: (False, e.unseen & ~e.leaps),
    ),
    Reason(
        "an event is almost grazing",
        "Derivatives of its time grow without bound as it grazes: tighten rtol and atol.",
        lambda e: worse(e, e.grazing, e.promised, 0.1),
    ),
    Reason(
        "simultaneous events that do not commute",
        "Only one-sided derivatives exist: saltus.certify(loss, p).one_sided(direction).",
        lambda e: (e.order >= DEGRADED, e.order >= UNTRUSTED),
    ),
    Reason(
        "an event at a saved time",
        "Saved values jump or bend there: move the save time, or use a loss that is an integral.",
        lambda e: (False, e.saved),
    ),
    Reason(
        "an event at the end",
        "Values at the end jump or bend there: move t1, or use a loss that is an integral.",
        lambda e: (False, e.ended),
    ),
    Reason(
        "a guard is within the error of zero where the solve starts or after a reset",
        "Whether it fires is not decided: tighten rtol and atol.",
        lambda e: (False, e.undecided),
    ),
    Reason(
        "the model has a hidden kink",
        "Make it an event: saltus.when(condition, a, b).",
        lambda e: (e.kinked, e.jump > 1e-6),  # NaN: whether it jumps is not known
    ),
    Reason(
        GROWS,
        "Shorten the time span, or tighten rtol and atol.",
        lambda e: worse(e, e.growth, 1e-4, 0.1),
    ),
    Reason(
        CHANGES,
        "The model is strongly nonlinear here, or at rest, so the steps are too long for the "
        "derivatives: tighten rtol and atol, or write method=saltus.Tsit5(max_step=...).",
        lambda e: worse(e, e.shift, e.promised, 0.1),
    ),
    Reason(
        "the equations for algebraic states are ill-conditioned",
        "Look for a singular point near the trajectory.",
        lambda e: (above(e.condition, 1e8), above(e.condition, 1e12)),
    ),
    Reason(
        "the constraint is not kept",
        "Tighten rtol and atol, or give invariant=.",
        lambda e: (above(e.drift, 100), ~jnp.isfinite(e.drift)),
    ),
    Reason(
        DISAGREE,
        "This should not happen: please report it with the model.",
        lambda e: (above(e.dot, 1e-10), above(e.dot, 1e-7)),
    ),
    Reason(
        "a guard jumps at an event",
        "Its time is that of the jump, on which the guard's derivatives say nothing: write a guard "
        "that goes through zero continuously there.",
        lambda e: (False, e.leaps),
    ),
)
REASONS = tuple(reason.text for reason in TABLE)
ADVICE = tuple(reason.advice for reason in TABLE)


def levels_of(evidence: Evidence) -> Array:
    """How bad each reason is, in the order of `REASONS`."""
    levels = jnp.stack([reason.level(evidence).astype(jnp.int32) for reason in TABLE])
    own = jnp.asarray([text == DISAGREE for text in REASONS])
    explained = jnp.max(jnp.where(own, TRUSTED, levels)) >= UNTRUSTED
    return jnp.where(own & explained, TRUSTED, levels)
