"""Why a solve stopped: names, messages, remedies."""

from __future__ import annotations

import enum
from typing import Any


class Result(enum.IntEnum):
    """The outcome of a solve. Values up to `terminated` are good news."""

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

    @property
    def message(self) -> str:
        return MESSAGES[self]

    @property
    def ok(self) -> bool:
        return self in (Result.success, Result.terminated)


MESSAGES = {
    Result.running: "The solve has not finished.",
    Result.success: "The end time was reached.",
    Result.terminated: "A terminal event ended the solve.",
    Result.too_many_steps: (
        "More steps than `max_steps`. Inside `jit` the tape has a fixed size: give `max_steps=` "
        "as many rows as the trajectory needs. If the steps pile up at one place, look for a kink "
        "or a stiff mode there, or loosen `rtol` and `atol`."
    ),
    Result.too_many_events: (
        "More events than `max_events`. If they pile up at one time the model is Zeno there: stop "
        "before it with a terminal event, or switch to a sliding or resting mode. Otherwise raise "
        "`max_events`."
    ),
    Result.non_finite: (
        "A model function returned NaN or infinity, and shorter steps did not help. Check its "
        "domain (square roots, logarithms, divisions) at the state given here."
    ),
    Result.step_underflow: (
        "The step size fell below the resolution of time. The solution may have a pole here, or a "
        "kink the error control cannot step over: make the kink an event (`saltus.when`), or stop "
        "before the pole with a terminal event."
    ),
    Result.endless_chain: (
        "Resets kept triggering each other at one instant. Give the guards a gap (hysteresis), or "
        "let a reset change the mode so that its guard is no longer active."
    ),
    Result.events_accumulate: (
        "Events accumulate: the time between them shrinks geometrically to zero (Zeno). Stop with "
        "a terminal event once the motion is small, or switch to a resting mode in the reset."
    ),
    Result.resting_contact: (
        "The state rests on a guard and is pushed to its firing side, and the reset does not move "
        "it: a resting contact. Switch to a resting mode in the reset (say, hold the body still "
        "while it is pressed against the stop)."
    ),
    Result.newton_failed: (
        "The equations of an implicit step could not be solved, however short the step. The "
        "solution may end here, or a model function has a kink: make it an event (`saltus.when`)."
    ),
    Result.no_consistent_state: (
        "No algebraic states that satisfy the constraint were found from the guess at hand. Give a "
        "better guess for z in the start, or in the reset: now.replace(x=..., z=...)."
    ),
    Result.inconsistent: (
        "The differential states violate the constraint. At the start: correct them, or let "
        "`saltus.consistent(system, start, p)` (or solve(..., repair=True)) move them to the "
        "nearest consistent ones. After a reset: return a consistent x, say with "
        "`saltus.implicit_reset`."
    ),
    Result.singular: (
        "The constraint does not determine the algebraic states here (singular): an impasse point, "
        "or a system of higher index than declared."
    ),
}


class SolveError(RuntimeError):
    """A solve stopped early. Carries everything that was computed until then."""

    def __init__(self, text: str, *, result: Result, t: float, event: str | None, solution: Any):
        super().__init__(text)
        self.result = result
        self.t = t
        self.event = event
        self.solution = solution


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
