"""Minimising any loss of a simulation, under constraints: optimal control and design."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..extras import available
from ..tables import number, table
from .between import between
from .caution import Cautious
from .choosing import choose
from .monitor import Monitor, read_checkpoint
from .optimisers import Ending, Limits, is_optax
from .optimisers import optimiser as named_optimiser
from .problem import AT_A_KINK, Problem, boxed
from .starts import FEASIBLE, Start, counted, drawn, first_line, listed, tally


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Minimum:
    """What `minimise` found."""

    p: Any
    loss: float
    constraints: dict[str, Any]
    extras: Any  # what the loss returned beside its value, at the minimum
    result: str
    message: str
    history: list[dict[str, Any]]
    names: list[str]
    values: np.ndarray
    violation: float
    seconds: float
    starts: list[Start] = dataclasses.field(default_factory=list)
    rejected: dict[str, int] = dataclasses.field(default_factory=dict)  # draws, by reason
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.result == "converged"

    def __repr__(self) -> str:
        rows = [
            [n, number(v, 6, True)] for n, v in list(zip(self.names, self.values, strict=True))[:24]
        ]
        held = [[f"  {n}", _few(v)] for n, v in self.constraints.items()]
        lines = [
            f"Local minimum: {self.result}. {self.message}",
            *(f"  Note: {text}" for text in self.notes),
            f"  loss {self.loss:.8g}, largest violation {self.violation:.1e}, "
            f"{len(self.history)} iterations, {self.seconds:.1f} s",
            table(["", "value"], [*rows, *held]),
        ]
        return "\n".join([*lines, "", listed(self.starts)] if len(self.starts) > 1 else lines)


def _few(value: Any) -> str:
    value = np.asarray(value)
    return number(value, 6) if value.ndim == 0 else f"{value.min():.6g} to {value.max():.6g}"


def minimise(
    loss: Callable,
    p: Any,
    *,
    free: Any = None,
    bounds: Mapping[str, Any] | None = None,
    scales: Mapping[str, str] | None = None,
    subject_to: Mapping[str, Any] | None = None,
    optimiser: Any = "auto",
    starts: int = 1,
    seed: int = 0,
    max_iterations: int = 200,
    tolerance: float = 1e-8,
    options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    log: Any = None,
    checkpoint: Any = None,
    resume: Any = None,
) -> Minimum:
    """The parameters at which `loss(p)` is least, within bounds and under constraints.

    `loss` is any JAX function of the parameters that returns a number, or a number and a dict.
    Entries of the dict that `subject_to` names are constraints, in `(low, high)` (None for no
    bound) or equal to a number; arrays are constrained entry by entry. A `Solution` in the dict is
    how changes of the event sequence are seen; it is in `extras` of the result. Inputs, start and
    end times are parameters like any other.

    `starts` is a number of first guesses: the given one, then a Sobol sequence within the bounds,
    drawn again where the loss is not finite. `starts` of the result lists how each ended. What is
    found is a local minimum, the least of them. Constraints on saved values are looked at between
    the saved times afterwards; `sol.min` and `sol.max` hold them everywhere.
    """
    try:
        chosen = choose(p, [], [], free, bounds, scales)
    except ValueError as error:
        raise ValueError(f"minimise: {error}") from error
    problem = Problem(loss, chosen, dict(subject_to or {}), p)
    if optimiser == "auto":
        optimiser = ("ipopt" if available("ipyopt") else "slsqp") if subject_to else "l-bfgs-b"
    method = named_optimiser(optimiser)
    if problem.below.size and optimiser not in ("ipopt", "slsqp"):
        raise ValueError(
            f'minimise: {optimiser!r} keeps no constraints. Write optimiser="ipopt" or "slsqp".'
        )
    monitor = Monitor(chosen.names, progress, log, checkpoint, max_iterations)
    limits = Limits(max_iterations, tolerance)
    given, extra = dict(options or {}), {}
    first = chosen.initial
    if resume is not None:
        first, extra = read_checkpoint(resume, chosen.names)
        if extra and is_optax(optimiser):
            given["resume"] = extra
    clock = time.perf_counter()

    def search(guess: np.ndarray) -> Ending:
        if is_optax(optimiser):
            return method(Cautious(problem, guess), guess, monitor, limits, **given)
        return boxed(method, problem, guess, monitor, limits, given)

    run = _Run(problem, search, monitor)
    try:
        run.all(first, starts, seed)
    finally:
        if run.best is not None:
            monitor.end(run.best.u, problem.value(run.best.u))
        monitor.close()
    return _minimum(problem, run, monitor, time.perf_counter() - clock)


class _Run:
    """Searches from several first guesses, the best ending of all, and a line for each."""

    def __init__(self, problem: Problem, search: Callable, monitor: Monitor):
        self.problem, self._search, self._monitor = problem, search, monitor
        self.best: Ending | None = None
        self.starts: list[Start] = []
        self.rejected: dict[str, int] = {}
        self.wanted = 1
        self.interrupted = False
        self._errors: list[Exception] = []

    def all(self, first: np.ndarray, count: int, seed: int) -> None:
        """From `first`, then from others that are drawn."""
        self.wanted, guesses = count, [first]
        try:
            if count > 1:
                self._monitor.enter("drawing starts", self.problem)
                others, self.rejected = drawn(self.problem, count - 1, seed)
                guesses += others
            for k, guess in enumerate(guesses):
                name = "minimise" if count == 1 else f"start {k + 1} of {len(guesses)}"
                self._monitor.enter(name, self.problem)
                self._one(guess)
        except KeyboardInterrupt:
            self._stop(guesses)
        if self.best is None:
            self._none()

    def _one(self, guess: np.ndarray) -> None:
        problem, entry = self.problem, self._entry(guess)
        problem.best = None
        try:
            why = problem.unusable(guess)
            entry = self._entry(guess, problem.value(guess), problem.violation(guess))
            if why and not np.isfinite(entry.start_loss):
                self.starts.append(dataclasses.replace(entry, result="not_finite", message=why))
                return
            ending = self._search(guess)
        except Exception as error:
            self._errors.append(error)
            text = first_line(error)
            self.starts.append(dataclasses.replace(entry, result="raised", message=text))
            return
        self._ended(entry, ending)

    def _entry(self, guess: np.ndarray, loss: float = np.nan, off: float = np.nan) -> Start:
        return Start(self.problem.natural(guess), loss, off, "interrupted")

    def _ended(self, entry: Start, ending: Ending, result: str = "") -> None:
        problem, u = self.problem, ending.u
        named, text = _verdict(problem, ending, entry.start_loss)
        self.starts.append(
            dataclasses.replace(
                entry, result=result or named, message=text, loss=problem.value(u),
                violation=problem.violation(u), end=problem.natural(u),
            )
        )  # fmt: skip
        if self.best is None or _better(problem, ending, self.best):
            self.best = ending

    def _stop(self, guesses: list[np.ndarray]) -> None:
        """By hand: the best point of the start that was under way counts, others did not run."""
        self.interrupted = True
        here, problem = guesses[len(self.starts)], self.problem
        u = here if problem.best is None else problem.best[1]
        entry = self._entry(here, problem.value(here), problem.violation(here))
        self._ended(entry, Ending(u, False, ""), "interrupted")
        for guess in guesses[len(self.starts) :]:
            self.starts.append(dataclasses.replace(self._entry(guess), result="not_run"))

    def _none(self) -> None:
        """No start got anywhere."""
        if self._errors:
            raise self._errors[0]
        why = self.starts[0].message
        raise ValueError(
            f"minimise: the loss is not finite at the first guess ({why}). Run the simulation "
            "there by hand to see why: loss(p)."
            + (f" {counted(self.rejected, self.wanted - 1, 0)}" if self.wanted > 1 else "")
        )


def _better(problem: Problem, one: Ending, other: Ending) -> bool:
    """Less violation first, then less loss."""
    a, b = (max(problem.violation(e.u), FEASIBLE) for e in (one, other))
    return (a, problem.value(one.u)) < (b, problem.value(other.u))


def _verdict(problem: Problem, ending: Ending, first: float) -> tuple[str, str]:
    """How a search ended, and in words."""
    u, message = ending.u, ending.message
    if problem.violation(u) > FEASIBLE:
        return "infeasible", f"No point satisfies all constraints: {problem.worst(u)}."
    if not ending.satisfied and problem.value(u) < -1e9 * max(1.0, abs(first)):
        return "failed", "The loss falls without end: it has no lower bound. Give bounds."
    if message == AT_A_KINK:
        return "stalled", message
    return ("converged" if ending.satisfied else "out_of_iterations"), message


def _minimum(problem: Problem, run: _Run, monitor: Monitor, seconds: float) -> Minimum:
    ending: Any = run.best
    u, value = ending.u, problem.value(ending.u)
    result, message = _verdict(problem, ending, run.starts[0].start_loss)
    if run.interrupted:
        result, message = "interrupted", "Stopped by hand; this is the best point so far."
    elif result == "converged":
        message = f"A local minimum ({message.rstrip('.')})."
        if run.wanted == 1:
            message += " Others may be lower: starts=8 looks for them."
    if run.wanted > 1:
        message += f" Of {len(run.starts)} starts: {tally(run.starts, value)}."
    notes = [counted(run.rejected, run.wanted - 1, len(run.starts) - 1)]
    if not run.interrupted and result != "infeasible":
        notes += between(problem, u)
    extras = problem.extras(u)
    held = {n: np.asarray(extras[n]) for n in problem.wanted}
    p = problem.free.into_p(jnp.asarray(u), problem._p)
    return Minimum(
        p, value, held, extras, result, message, monitor.history, problem.free.names,
        problem.natural(u), problem.violation(u), seconds, run.starts, run.rejected,
        [text for text in notes if text],
    )  # fmt: skip
