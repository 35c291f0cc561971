"""Why a solve stopped: names, messages, remedies, and the errors that carry them."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .pickling import portable

if TYPE_CHECKING:
    from ..solution.files import SavedSolution
    from ..solution.solution import Solution


class Result(enum.IntEnum):
    """The outcome of a solve: why it ended. `success` and `terminated` are no failures (`ok`)."""

    running = -1
    success = 0
    terminated = 1
    too_many_steps = 2
    too_many_events = 3
    non_finite = 4
    step_underflow = 5
    endless_chain = 6
    events_accumulate = 7
    resting_contact = 8
    newton_failed = 9
    no_consistent_state = 10
    inconsistent = 11
    singular = 12
    chattering = 13
    grazing = 14
    interrupted = 15
    invalid_time = 16
    invalid_save_time = 17
    invalid_input = 18
    invalid_period = 19
    invalid_mode = 20
    invalid_setting = 21
    backward_unknown = 22

    @property
    def what(self) -> str:
        """What happened."""
        return MESSAGES[self][0]

    @property
    def advice(self) -> str:
        """What to do about it."""
        return MESSAGES[self][1]

    @property
    def message(self) -> str:
        return " ".join(part for part in MESSAGES[self] if part)

    @property
    def ok(self) -> bool:
        return self in (Result.success, Result.terminated)


# What happened, and what to do about it.
MESSAGES: dict[Result, tuple[str, str]] = {
    Result.running: ("The solve has not finished.", ""),
    Result.success: ("The end time was reached.", ""),
    Result.terminated: ("A terminal event ended the solve.", ""),
    Result.too_many_steps: (
        "More steps than `max_steps`.",
        "Inside `jit` the tape has a fixed size: give `max_steps=` as many rows as the trajectory "
        "needs. If an explicit method takes very many short steps, the system may be stiff: write "
        "method=saltus.Radau5(). If the steps pile up at one place, look there for a kink or for a "
        "guard that jumps over zero; or loosen `rtol` and `atol`.",
    ),
    Result.too_many_events: (
        "More events than `max_events`.",
        "If they pile up at one time the model is Zeno there: stop before it with a terminal "
        "event, or switch to a sliding or resting mode. Otherwise raise `max_events`.",
    ),
    Result.non_finite: (
        "A model function returned NaN or infinity, and shorter steps did not help.",
        "Check its domain (square roots, logarithms, divisions) at the state given here.",
    ),
    Result.step_underflow: (
        "The step size fell below the resolution of time.",
        "The solution may have a pole here: stop before it with a terminal event. Or the flow has "
        "a kink the error control cannot step over: make it an event (`saltus.when`). Or a guard "
        "jumps over zero: write a guard that is continuous there.",
    ),
    Result.endless_chain: (
        "Resets kept triggering each other at one instant.",
        "Give the guards a gap (hysteresis), or let a reset change the mode so that its guard is "
        "no longer active.",
    ),
    Result.events_accumulate: (
        "Events accumulate: the time between them shrinks geometrically to zero (Zeno).",
        "Say how to go on from there with `Event(..., zeno=...)` (a reset to the state at rest, or "
        "the name of a resting mode), or stop with a terminal event once the motion is small.",
    ),
    Result.resting_contact: (
        "The state rests on a guard and is pushed to its firing side, and the reset does not move "
        "it: a resting contact.",
        "Switch to a resting mode in the reset (say, hold the body still while it is pressed "
        "against the stop), or give the event one: `Event(..., zeno=...)`.",
    ),
    Result.newton_failed: (
        "The equations of an implicit step could not be solved, however short the step.",
        "The solution may end here, or a model function has a kink: make it an event "
        "(`saltus.when`).",
    ),
    Result.no_consistent_state: (
        "No algebraic states that satisfy the constraint were found from the guess at hand.",
        "Give a better guess for z in the start, or in the reset: now.replace(x=..., z=...). If "
        "none helps, the equations may have no solution at all at this x: check them, and p.",
    ),
    Result.inconsistent: (
        "The differential states violate the constraint.",
        "At the start: correct them, or let `saltus.consistent(system, start, p)` (or solve(..., "
        "repair=True)) move them to the nearest consistent ones. After a reset: return a "
        "consistent x, say with `saltus.implicit_reset`.",
    ),
    Result.singular: (
        "The constraint does not determine the algebraic states here (singular): an impasse point, "
        "or a system of higher index than declared.",
        "At an impasse, stop before it with a terminal event. Otherwise differentiate the equation "
        "that lacks z until z appears in it.",
    ),
    Result.chattering: (
        "The flows on both sides of a surface point at it, so that the state can neither cross it "
        "nor leave it: it chatters.",
        "Let it slide along the surface (`saltus.sliding`), or give the switching a gap "
        "(hysteresis).",
    ),
    Result.grazing: (
        'A guard touches zero without crossing it, and `on_grazing` is "raise": whether the event '
        "happens here depends on the last digit, and no derivative exists.",
        'Change the parameters, or write on_grazing="fire" or "ignore".',
    ),
    Result.interrupted: (
        "The solve was stopped by hand (Ctrl-C).",
        "What was computed until then is in `error.solution`; to continue from there, start "
        "another solve at `error.solution.last`.",
    ),
    Result.invalid_time: (
        "The start's t, or t1, is NaN or infinite.",
        "To run until something happens, give a late end and a terminal event.",
    ),
    Result.invalid_save_time: (
        "A save time in `ts` is NaN, or does not lie between the start's t and t1.",
        "Move t1, or drop those times.",
    ),
    Result.invalid_input: (
        "The times of an input (`Steps`, `Ramps`) do not increase strictly, or one is NaN.",
        "Sort them and drop repeats; for breakpoints that are fitted, make each the one before it "
        "plus a positive number.",
    ),
    Result.invalid_period: (
        "The period of `every` is not a positive number, or its offset is not finite.",
        "Keep the period positive: for example, make it the exponential of a parameter.",
    ),
    Result.invalid_mode: (
        "The number of the mode, in the start or after a reset, is not one of the automaton's.",
        "Modes are counted from 0 in the order in which they are written.",
    ),
    Result.invalid_setting: (
        "A tolerance or a step length of the method is negative, not finite, or such that no step "
        "can meet it.",
        "Write rtol and atol from 0 to 1, one of them above 0, and step lengths above 0.",
    ),
    Result.backward_unknown: (
        "Time runs backward, which was not known when the program was compiled, and this model has "
        "events that have to be undone, or cannot be.",
        "Give the start's t and t1 as numbers: close over them instead of passing them to `jit` or "
        "`vmap`.",
    ),
}


class SolveError(RuntimeError):
    """A solve stopped early. Its text says what happened, where, and what to do.

    `result` is the reason, `t` the time, `mode` the automaton's mode there, `event` the name of
    the event at fault or else of the last one, `values` the states there and what else matters for
    the failure, `advice` the remedy alone, and `solution` everything computed until then.
    """

    def __init__(
        self,
        text: str,
        *,
        result: Result,
        t: float,
        event: str | None = None,
        solution: Solution | SavedSolution | None = None,
        mode: str | None = None,
        values: dict[str, Any] | None = None,
        advice: str | None = None,
    ):
        super().__init__(text)
        self.result = result
        self.t = t
        self.mode = mode
        self.event = event
        self.values = {} if values is None else values
        self.solution = solution
        self.advice = result.advice if advice is None else advice

    def retold(self, text: str) -> SolveError:
        """The same error with another text."""
        return _restored(type(self), text, dict(self.__dict__))

    def __reduce__(self) -> tuple[Callable[..., SolveError], tuple[Any, ...]]:
        return _restored, (type(self), str(self), portable(self.__dict__, "error"))

    def __copy__(self) -> SolveError:
        return self.retold(str(self))

    def __deepcopy__(self, memo: dict) -> SolveError:
        return self.retold(str(self))


def _restored(kind: type[SolveError], text: str, attributes: dict[str, Any]) -> SolveError:
    error = kind.__new__(kind, text)
    error.__dict__.update(attributes)
    return error


class EventError(SolveError):
    """A solve stopped at events: too many, an endless chain, at rest, chattering or grazing."""


class ZenoError(EventError):
    """A solve stopped where events accumulate, at the time `values["accumulation time"]`."""


class StepError(SolveError):
    """A solve stopped at its steps: too many, too short, or equations without a solution."""


class NonFiniteError(SolveError):
    """A model function returned NaN or infinity; `values` has its name and value."""


class ConstraintError(SolveError):
    """No algebraic states were found, or the differential states violate the constraint."""


class SolveInterrupted(SolveError, KeyboardInterrupt):
    """A solve was interrupted with Ctrl-C. It is a KeyboardInterrupt, and can be caught as one."""


KINDS: dict[Result, type[SolveError]] = {
    Result.too_many_steps: StepError,
    Result.step_underflow: StepError,
    Result.newton_failed: StepError,
    Result.too_many_events: EventError,
    Result.endless_chain: EventError,
    Result.resting_contact: EventError,
    Result.chattering: EventError,
    Result.grazing: EventError,
    Result.events_accumulate: ZenoError,
    Result.non_finite: NonFiniteError,
    Result.no_consistent_state: ConstraintError,
    Result.inconsistent: ConstraintError,
    Result.singular: ConstraintError,
    Result.interrupted: SolveInterrupted,
    Result.invalid_time: SolveError,
    Result.invalid_save_time: SolveError,
    Result.invalid_input: SolveError,
    Result.invalid_period: SolveError,
    Result.invalid_mode: SolveError,
    Result.invalid_setting: SolveError,
    Result.backward_unknown: SolveError,
}


class ReverseOverReverse(NotImplementedError):
    """Reverse mode was applied to a reverse-mode derivative of a solve."""

    def __init__(self):
        super().__init__(
            "reverse-mode differentiation of a reverse-mode derivative of `solve` (such as "
            "`jax.grad` of `jax.grad`, or `jax.jacrev(jax.jacrev(...))`) is not available. Write "
            "`jax.hessian(loss)` or `jax.jacfwd(jax.grad(loss))` for Hessians, and "
            "`jax.jvp(jax.grad(loss), (p,), (v,))` for Hessian-vector products: same numbers, "
            "and cheaper."
        )
