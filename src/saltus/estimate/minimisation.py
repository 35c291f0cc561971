"""Minimising any loss of a simulation under constraints, for optimal control and design."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..base.extras import available
from ..base.foreign_names import MINIMISE, MINIMUM, answered, missing
from ..base.leaves import check_precision
from ..base.text import first_line, number, table
from ..base.types import Number, Params, Tree
from .boxes import Counted, boxed, counted, in_boxes
from .constrained_loss import LossOutput, Problem
from .curvature import Look, between, look
from .monitor import Monitor, read_checkpoint
from .optimisers import OUT_OF_ITERATIONS, Ending, Limits, OptimiserLike, is_optax
from .optimisers import optimiser as named_optimiser
from .selection import BoundsLike, FreeNames, choose
from .starts import (
    BETWEEN,
    MOST_FALLS,
    STUCK,
    VIOLATION_LIMIT,
    Judged,
    Start,
    drawn,
    listed,
    on_the_way,
    tally,
    verdict,
)
from .starts import counted as counted_draws

TITLES = {
    "minimum": "Local minimum",
    "flat": "Local minimum or flat region",
    "unknown": "Stationary point",
}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Minimum:
    """What `minimise` found."""

    p: Params
    loss: float
    constraints: dict[str, Any]
    extras: Mapping[str, Tree]  # what the loss returned beside its value, at the minimum
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
    kind: str = "unknown"  # of a point that converged: "minimum", "flat" or "unknown"

    @property
    def ok(self) -> bool:
        """Whether the search converged, and not to a point known not to be a minimum."""
        return self.result == "converged"

    def __getattr__(self, name: str) -> Any:
        raise missing(self, "a minimum", name, MINIMUM)

    def __repr__(self) -> str:
        rows = [
            [n, number(v, 6, True)] for n, v in list(zip(self.names, self.values, strict=True))[:24]
        ]
        held = [[f"  {n}", _few(v)] for n, v in self.constraints.items()]
        lines = [
            f"{self._title()}{'.' if self.ok else ':'} {self.message}",
            *(f"  Note: {text}" for text in self.notes),
            f"  loss {self.loss:.8g}, largest violation {self.violation:.1e}, "
            f"{len(self.history)} iterations, {self.seconds:.1f} s",
            table(["", "value"], [*rows, *held]),
        ]
        many = ["", listed(self.starts, self.names)] if len(self.starts) > 1 else []
        return "\n".join([*lines, *many])

    def _title(self) -> str:
        if self.ok:
            return f"{TITLES[self.kind]}: converged"
        return self.result.replace("_", " ").capitalize()


def _few(value: Number) -> str:
    value = np.asarray(value)
    return number(value, 6) if value.ndim == 0 else f"{value.min():.6g} to {value.max():.6g}"


@functools.partial(answered, table=MINIMISE)
def minimise(
    loss: Callable[[Params], LossOutput],
    p: Params,
    *,
    free: FreeNames = None,
    bounds: BoundsLike = None,
    scales: Mapping[str, str] | None = None,
    subject_to: Mapping[str, Any] | None = None,
    optimiser: OptimiserLike = "auto",
    starts: int = 1,
    seed: int = 0,
    max_iterations: int = 200,
    tolerance: float = 1e-8,
    options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    log: str | Path | None = None,
    checkpoint: str | Path | None = None,
    resume: str | Path | None = None,
) -> Minimum:
    """The parameters at which `loss(p)` is least, within bounds and under constraints.

    `loss` is any JAX function of the parameters that returns a number, or a number and a dict.
    Entries of the dict that `subject_to` names are constraints: `(low, high)` (None for no bound)
    or a number that they must equal; arrays are constrained entry by entry. Put the `Solution` into
    the dict as well, so that changes of the event sequence are noticed; the dict is `extras` of the
    result. Inputs, start and end times can be parameters like any other.

    `p` is the first guess, any pytree of numbers. `free`, `bounds` and `scales` are as in `fit`: by
    default all floats of `p` are free. `optimiser` is `"l-bfgs-b"`, `"trust"`, `"ipopt"`,
    `"slsqp"`, `"adam"` or another optax rule; `"auto"` is `"l-bfgs-b"`, or with constraints
    `"ipopt"` if it is installed, else `"slsqp"`. `options` are passed on to it, and `tolerance`
    decides when it stops. `progress` shows a bar (by default on a terminal), `log` is a file of
    JSON lines, and `checkpoint` a file to write, from which `resume` continues.

    `starts` is the number of first guesses: the given one, then points of a Sobol sequence within
    the bounds, which depends on `seed`; points at which the loss is not finite are replaced.
    `starts` of the result lists how each search ended. The result is a local minimum, the least of
    those found. Constraints on saved values are checked between the saved times afterwards;
    constraints on `sol.min` and `sol.max` hold everywhere.

    `max_iterations` is the limit for each start, all stages included. A zero gradient is not taken
    for a minimum: where a search ends, the curvature is checked along directions that bounds and
    constraints leave free, and from a saddle or a maximum the search continues at a lower point.
    The curvature is found from differences of gradients, with two evaluations per parameter (24
    products for more than 32 parameters); only if these are not clear is the Hessian compiled. A
    point that is not a minimum, but from which no lower one is found, is called `stationary`, not
    `converged`.
    """
    check_precision()
    _check_count("starts", starts, "the given guess is one of them")
    _check_count("max_iterations", max_iterations, "for every start")
    try:
        chosen = choose(p, [], [], free, bounds, scales)
    except ValueError as error:
        raise ValueError(f"minimise: {error}") from error
    problem = Problem(loss, chosen, dict(subject_to or {}), p)
    if optimiser == "auto":
        optimiser = ("ipopt" if available("ipyopt") else "slsqp") if subject_to else "l-bfgs-b"
    method = named_optimiser(optimiser)
    if problem.below.size and str(optimiser).lower() not in ("ipopt", "slsqp"):
        raise ValueError(
            f"minimise: {optimiser!r} cannot handle constraints. Write "
            'optimiser="ipopt" or "slsqp".'
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

    def search(guess: np.ndarray) -> Judged:
        own = dict(given)
        given.pop("resume", None)  # its memory is for the first start
        once = counted if is_optax(optimiser) else boxed
        return _searched(once, method, problem, guess, monitor, limits, own)

    run = _Run(problem, search, monitor)
    try:
        run.all(first, starts, seed)
    finally:
        if run.best is not None:
            monitor.end(run.best.u, problem.value(run.best.u))
        monitor.close()
    return _minimum(problem, run, monitor, time.perf_counter() - clock)


def _check_count(name: str, given: Any, what: str) -> None:
    """Raises an error unless a count is a whole number of at least 1."""
    whole = isinstance(given, int | np.integer) and not isinstance(given, bool)
    if not whole or given < 1:
        raise ValueError(
            f"minimise: {name} is {given!r}, expected a whole number from 1 ({what}). "
            f"Write {name}={8 if name == 'starts' else 200}, or leave it out."
        )


def _searched(
    once: Callable, method: Callable, problem: Problem, u: np.ndarray, monitor: Monitor,
    limits: Limits, given: dict,
) -> Judged:  # fmt: skip
    """One search; from a point that is not a minimum it continues at a lower one."""
    watched = Counted(monitor, problem, limits.iterations)
    for left in range(MOST_FALLS + 1):
        ending = once(method, problem, u, watched, limits, given)
        end, ok, text = ending.u, ending.satisfied, ending.message
        if not ok or problem.violation(end) > VIOLATION_LIMIT:
            return Judged(end, ok, text, left=left)
        problem.keep(end)
        try:
            ending, seen = _looked(problem, ending, watched, limits)
        except Exception as error:  # the loss cannot be evaluated near its minimum
            why = f"the loss raised near it ({first_line(error)})"
            return Judged(end, ok, text, Look("unknown", why=why), left)
        end, ok, text = ending.u, ending.satisfied, ending.message
        if seen.lower is None:
            return Judged(end, ok, text, seen, left)
        u, given = seen.lower, {k: v for k, v in given.items() if k != "resume"}
        if watched.left <= 0:
            return Judged(u, False, OUT_OF_ITERATIONS, left=left + 1)
    return Judged(u, False, f"after {MOST_FALLS + 1} stationary points", left=MOST_FALLS + 1)


def _looked(
    problem: Problem, ending: Ending, watched: Counted, limits: Limits
) -> tuple[Ending, Look]:
    """The curvature where a search has ended; from a kink it first continues in boxes."""
    seen = look(problem, ending.u, limits.tolerance)
    if seen.kind == "steep":  # an optimiser for smooth losses stopped at a kink
        ending = in_boxes(problem, ending.u, watched, limits)
        seen = look(problem, ending.u, limits.tolerance) if ending.satisfied else Look("unknown")
        if seen.kind == "steep":
            ending = Ending(ending.u, False, STUCK)
    return ending, seen


class _Run:
    """Searches from several first guesses, the best result, and an entry for each."""

    def __init__(self, problem: Problem, search: Callable, monitor: Monitor):
        self.problem, self._search, self._monitor = problem, search, monitor
        self.best: Judged | None = None
        self.chosen = 0  # the start that ended best
        self.starts: list[Start] = []
        self.rejected: dict[str, int] = {}
        self.wanted = 1
        self.interrupted = False
        self._errors: list[Exception] = []

    def all(self, first: np.ndarray, count: int, seed: int) -> None:
        """Search from `first`, then from other guesses that are drawn."""
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
            problem.keep(ending.u)
        except Exception as error:
            self._errors.append(error)
            text = first_line(error)
            self.starts.append(dataclasses.replace(entry, result="raised", message=text))
            return
        self._ended(entry, ending)

    def _entry(self, guess: np.ndarray, loss: float = np.nan, off: float = np.nan) -> Start:
        return Start(self.problem.natural(guess), loss, off, "interrupted")

    def _ended(self, entry: Start, ending: Judged, result: str = "") -> None:
        problem, u = self.problem, ending.u
        named, text = verdict(problem, ending, entry.start_loss)
        self.starts.append(
            dataclasses.replace(
                entry, result=result or named, message=text, loss=problem.value(u),
                violation=problem.violation(u), end=problem.natural(u),
            )
        )  # fmt: skip
        if self.best is None or _better(problem, ending, self.best):
            self.best, self.chosen = ending, len(self.starts) - 1

    def _stop(self, guesses: list[np.ndarray]) -> None:
        """After an interrupt: the running start keeps its best point, later ones did not run."""
        self.interrupted = True
        here, problem = guesses[len(self.starts)], self.problem
        u = here if problem.best is None else problem.best[1]
        entry = self._entry(
            here, *(tried(f, np.nan, here) for f in (problem.value, problem.violation))
        )
        if problem.best is None and not np.isfinite(entry.start_loss):
            self.starts.append(entry)
        else:
            self._ended(entry, Judged(u, False, ""), "interrupted")
        for guess in guesses[len(self.starts) :]:
            self.starts.append(dataclasses.replace(self._entry(guess), result="not_run"))

    def _none(self) -> None:
        """Raises the error for the case that no start succeeded."""
        if self._errors:
            raise self._errors[0]
        why = self.starts[0].message
        raise ValueError(
            f"minimise: the loss is not finite at the first guess ({why}). Call loss(p) yourself "
            "to see why."
            + (f" {counted_draws(self.rejected, self.wanted - 1, 0)}" if self.wanted > 1 else "")
        )


def _better(problem: Problem, one: Judged, other: Judged) -> bool:
    """Less violation first, then less loss."""
    a, b = (max(problem.violation(e.u), VIOLATION_LIMIT) for e in (one, other))
    return (a, problem.value(one.u)) < (b, problem.value(other.u))


def tried(fn: Callable, otherwise: Any, u: np.ndarray, raised: list[str] | None = None) -> Any:
    """`fn(u)`, or `otherwise` where the loss raises; `raised` collects what."""
    try:
        return fn(u)
    except (Exception, KeyboardInterrupt) as error:
        if raised is not None:
            raised.append(first_line(error))
        return otherwise


def _same_loss(problem: Problem, run: _Run) -> str:
    """How many starts ended where, in words."""
    best = run.starts[run.chosen]

    def between(a: np.ndarray, b: np.ndarray) -> float:
        on_the_line = [problem.free.vector(a + share * (b - a)) for share in BETWEEN]
        return float(np.max([tried(problem.value, np.inf, u) for u in on_the_line]))

    return tally(run.starts, best, problem.free.units(), between)


def _minimum(problem: Problem, run: _Run, monitor: Monitor, seconds: float) -> Minimum:
    ending: Any = run.best
    u, value = ending.u, problem.value(ending.u)
    result, message = verdict(problem, ending, run.starts[0].start_loss)
    if run.interrupted:
        result, message = "interrupted", "Stopped by hand; this is the best point so far."
    elif result == "converged" and run.wanted == 1:
        message += " There may be lower ones: try starts=8."
    if run.wanted > 1:
        message += f" Of {len(run.starts)} starts: {_same_loss(problem, run)}."
    notes = [counted_draws(run.rejected, run.wanted - 1, len(run.starts) - 1), on_the_way(ending)]
    if not run.interrupted and result != "infeasible":
        notes += between(problem, u)
    raised: list[str] = []
    extras = tried(problem.extras, {}, u, raised)
    if raised:
        notes.append(
            f"The loss raised when it was called for extras, so there are none: {raised[0]}."
        )
    held = {n: np.asarray(extras[n]) for n in problem.wanted if not raised}
    held = held or problem.constraints_by_name(u)
    p = problem.free.into_p(jnp.asarray(u), problem._p)
    return Minimum(
        p, value, held, extras, result, message, monitor.history, problem.free.names,
        problem.natural(u), problem.violation(u), seconds, run.starts, run.rejected,
        [text for text in notes if text], ending.seen.kind if result == "converged" else "",
    )  # fmt: skip
