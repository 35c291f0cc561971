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
from .caution import Cautious
from .choosing import choose
from .monitor import Monitor, read_checkpoint
from .optimisers import Ending, Limits, is_optax, sobol
from .optimisers import optimiser as named_optimiser
from .problem import AT_A_KINK, FEASIBLE, Problem, boxed


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

    @property
    def ok(self) -> bool:
        return self.result == "converged"

    def __repr__(self) -> str:
        rows = [
            [n, number(v, 6, True)] for n, v in list(zip(self.names, self.values, strict=True))[:24]
        ]
        held = [[f"  {n}", _few(v)] for n, v in self.constraints.items()]
        return "\n".join(
            [
                f"Minimum: {self.result}. {self.message}",
                f"  loss {self.loss:.8g}, largest violation {self.violation:.1e}, "
                f"{len(self.history)} iterations, {self.seconds:.1f} s",
                table(["", "value"], [*rows, *held]),
            ]
        )


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
    end times are parameters like any other. `starts` is a number of first guesses, a Sobol sequence
    within the bounds after the given one.
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
    guesses = [first, *sobol(chosen, starts - 1, seed)]
    best, interrupted = None, False
    try:
        for k, guess in enumerate(guesses):
            monitor.enter("minimise" if starts == 1 else f"start {k + 1} of {starts}", problem)
            if not np.isfinite(problem.value(guess)):
                if len(guesses) == 1:
                    raise _not_finite()
                continue
            problem.best = None
            if is_optax(optimiser):
                ending = method(Cautious(problem, guess), guess, monitor, limits, **given)
            else:
                ending = boxed(method, problem, guess, monitor, limits, given)
            if best is None or _better(problem, ending, best):
                best = ending
    except KeyboardInterrupt:
        interrupted = True
        here = Ending(first if problem.best is None else problem.best[1], False, "")
        if best is None or _better(problem, here, best):
            best = here
    finally:
        if best is not None:
            monitor.end(best.u, problem.value(best.u))
        monitor.close()
    if best is None:
        raise _not_finite()
    return _minimum(problem, best, monitor, interrupted, time.perf_counter() - clock)


def _better(problem: Problem, one: Ending, other: Ending) -> bool:
    """Less violation first, then less loss."""
    a, b = (max(problem.violation(e.u), FEASIBLE) for e in (one, other))
    return (a, problem.value(one.u)) < (b, problem.value(other.u))


def _not_finite() -> ValueError:
    return ValueError(
        "minimise: the loss is not finite at the first guess. Run the simulation there by hand to "
        "see why: loss(p)."
    )


def _minimum(
    problem: Problem,
    ending: Ending,
    monitor: Monitor,
    stopped: bool,
    seconds: float,
) -> Minimum:
    u = ending.u
    violation = problem.violation(u)
    extras = problem.extras(u)
    result = "converged" if ending.satisfied else "out_of_iterations"
    if violation > FEASIBLE:
        result = "infeasible"
    if stopped:
        result = "interrupted"
    elif ending.message == AT_A_KINK and result != "infeasible":
        result = "stalled"
    message, first = ending.message, problem.value(problem.free.initial)
    if result == "interrupted":
        message = "Stopped by hand; this is the best point so far."
    elif result == "infeasible":
        message = f"No point satisfies all constraints: {problem.worst(u)}."
    elif result != "converged" and problem.value(u) < -1e9 * max(1.0, abs(first)):
        result, message = (
            "failed",
            "The loss falls without end: it has no lower bound. Give bounds.",
        )
    held = {n: np.asarray(extras[n]) for n in problem.wanted}
    p = problem.free.into_p(jnp.asarray(u), problem._p)
    return Minimum(
        p, problem.value(u), held, extras, result, message, monitor.history, problem.free.names,
        np.asarray(problem.free.natural(jnp.asarray(u))), violation, seconds,
    )  # fmt: skip
