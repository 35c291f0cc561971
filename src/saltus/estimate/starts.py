"""First guesses at which the loss is finite, and how the searches from them ended."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..base.text import first_line, number, table
from .optimisers import OUT_OF_ITERATIONS, Ending, sobol

if TYPE_CHECKING:
    from .constrained_loss import Problem

DRAWS_PER_START = 32  # until its loss is finite
CHOICES_PER_START = 4  # among which those that satisfy the constraints are preferred
VIOLATION_LIMIT = 1e-6  # largest violation of a constraint that counts as none, relative above 1
REASON_LENGTH = 70  # characters of an error in a table
SHOWN_PARAMETERS = 3  # of an end, in a table
LOSS_DIFFERENCE = 1e-6  # losses that are closer are equal, relative above 1
SAME_DISTANCE = 1e-4  # ends that are closer are the same point
NEAR_DISTANCE = 1e-2  # ends that are closer are the same if the loss is no higher in between
BETWEEN = (0.5, 0.382)  # shares of the way; in the middle alone there may be a third minimum
MOST_FALLS = 5  # stationary points that are not minima, after which a search ends
NOTHING_BETTER = "No better point was found in ever smaller boxes around this one"
AT_A_KINK = (
    f"{NOTHING_BETTER}. It is a minimum at a kink, where the sequence of events changes, or is "
    "limited by an event that only just does not happen. Make that a constraint, or try starts=8."
)
IT_JUMPS = (
    f"{NOTHING_BETTER}, and its gradient is not zero: the loss, a constraint or its gradient jumps "
    "here. Mark a kink with saltus.when, or try starts=8."
)
STUCK = (
    f"{NOTHING_BETTER}, although its gradient is not zero. The reason may be errors of the loss: "
    "simulate with smaller rtol and atol, or try starts=8."
)
STALLED = (AT_A_KINK, IT_JUMPS, STUCK)


@dataclasses.dataclass(frozen=True, eq=False)
class Start:
    """One first guess of `minimise`, and where the search from it ended."""

    values: np.ndarray  # of the free parameters, in their order
    start_loss: float
    start_violation: float
    result: str  # as in `Minimum.result`; or "not_finite", "raised", "not_run"
    message: str = ""
    loss: float = np.nan  # where it ended
    violation: float = np.nan
    end: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Look:
    """What the curvature says about a point."""

    kind: str  # "minimum", "flat", "falls" (not a minimum), "steep" (not stationary), "unknown"
    lower: np.ndarray | None = None  # a point near it with a smaller loss
    along: np.ndarray | None = None  # the direction of least curvature
    curvature: float = 0.0
    why: str = ""  # why the kind is unknown, or a limit of what is known


@dataclasses.dataclass(frozen=True)
class Judged(Ending):
    """Where a search ended, its curvature, and how many stationary points it passed."""

    seen: Look = Look("unknown")
    left: int = 0


def listed(starts: list[Start], names: Sequence[str]) -> str:
    """A table of all starts."""
    rows = []
    for k, s in enumerate(starts):
        how = s.result if s.end is not None or not s.message else f"{s.result}: {s.message}"
        cells = (s.start_loss, s.loss)
        losses = [number(v, 6, True) if np.isfinite(v) else "-" for v in cells]
        off = f"{s.violation:.1e}" if np.isfinite(s.violation) else "-"
        rows.append([f"{k + 1}", *losses, off, how[:REASON_LENGTH], place(s.end, names)])
    head = ["start", "loss there", "loss at its end", "violation", "how it ended", "its end"]
    return table(head, rows, left=(4, 5))


def place(end: np.ndarray | None, names: Sequence[str]) -> str:
    """Where a search ended, in short."""
    if end is None:
        return "-"
    shown = [f"{n} = {v:.4g}" for n, v in zip(names, end, strict=True)][:SHOWN_PARAMETERS]
    more = [f"and {len(end) - SHOWN_PARAMETERS} more"] if len(end) > SHOWN_PARAMETERS else []
    return ", ".join(shown + more)


def drawn(problem: Problem, count: int, seed: int) -> tuple[list[np.ndarray], dict[str, int]]:
    """First guesses with finite loss, constraints and gradient; and why others were rejected.

    Points of a Sobol sequence within the bounds are tried until there are enough. Those that
    satisfy the constraints come first.
    """
    rejected: collections.Counter[str] = collections.Counter()
    found: list[tuple[float, int, np.ndarray]] = []
    if count <= 0:
        return [], {}
    inequalities = bool(np.any(problem.below < problem.above))
    for k, u in enumerate(sobol(problem.free, DRAWS_PER_START * count, seed)):
        feasible = sum(off <= VIOLATION_LIMIT for off, _, _ in found)
        enough = feasible if inequalities and k < CHOICES_PER_START * count else len(found)
        if enough >= count:
            break
        why = refused(problem, u)
        if why:
            rejected[why] += 1
        else:
            found.append((max(problem.violation(u), VIOLATION_LIMIT), k, u))
    best = sorted(found, key=lambda entry: entry[:2])
    if len(best) > count:
        rejected["others satisfy the constraints better"] += len(best) - count
    return [u for _, _, u in best[:count]], dict(rejected)


def refused(problem: Problem, u: np.ndarray) -> str:
    """Why no search can start at `u`; empty if one can."""
    try:
        return problem.unusable(u)
    except Exception as error:
        return first_line(error)[:REASON_LENGTH]


def counted(rejected: dict[str, int], wanted: int, got: int) -> str:
    """How many draws were rejected to find `got` of `wanted` further starts, in words."""
    if not rejected:
        return ""
    many = sum(rejected.values())
    why = "; ".join(f"{n} x {text}" for text, n in sorted(rejected.items(), key=lambda e: -e[1]))
    lead = "1 draw was" if many == 1 else f"{many} draws were"
    text = f"{lead} rejected as starts: {why}."
    if got < wanted:
        text += f" Only {got} of {wanted} further starts were found: give narrower bounds."
    return text


def tally(starts: list[Start], best: Start, scale: np.ndarray, between: Callable) -> str:
    """How the starts ended, compared to the best of them, in words, by loss and by place.

    `between(a, b)` is the largest loss found between two ends; `scale` is the scale of distances.
    """
    ends = [s for s in starts if s.result == "converged" and s.violation <= VIOLATION_LIMIT]
    level = best.loss + LOSS_DIFFERENCE * max(1.0, abs(best.loss))
    low, higher = [s for s in ends if s.loss <= level], sum(s.loss > level for s in ends)
    places = [best]
    found: collections.Counter[int] = collections.Counter()
    for s in low:
        known = [k for k, q in enumerate(places) if _one_place(s, q, scale, between, level)]
        found[known[0] if known else len(places)] += 1
        places += [] if known else [s]
    away = sum(found.values()) - found[0]
    parts = [f"{found[0]} ended here"] if found[0] else []
    if away:
        where = "another place" if len(places) == 2 else f"{len(places) - 1} other places"
        parts.append(f"{away} at {where} with the same loss")
    if higher:
        parts.append(f"{higher} with a higher loss")
    others = collections.Counter(s.result for s in starts if s.result != "converged")
    parts += [f"{n} {name.replace('_', ' ')}" for name, n in others.items()]
    return ", ".join(parts)


def _one_place(a: Start, b: Start, scale: np.ndarray, between: Callable, level: float) -> bool:
    """Whether two ends are the same point, up to the accuracy of an optimiser."""
    one, other = np.asarray(a.end), np.asarray(b.end)
    size = np.maximum(scale, np.maximum(np.abs(one), np.abs(other)))
    far = float(np.max(np.abs(one - other) / np.where(size > 0, size, 1.0), initial=0.0))
    return far <= SAME_DISTANCE or (far <= NEAR_DISTANCE and between(one, other) <= level)


def verdict(problem: Problem, ending: Judged, first: float) -> tuple[str, str]:
    """How a search ended, as a keyword and in words."""
    u, message = ending.u, ending.message.rstrip(".")
    if problem.violation(u) > VIOLATION_LIMIT and ending.message == OUT_OF_ITERATIONS:
        return "out_of_iterations", (
            "The iterations ran out before all constraints were satisfied: "
            f"{problem.worst(u)}. Raise max_iterations."
        )
    if problem.violation(u) > VIOLATION_LIMIT:
        return "infeasible", (
            f"No point was found that satisfies all constraints: {problem.worst(u)} where the "
            "violation is least."
        )
    if not ending.satisfied and problem.value(u) < -1e9 * max(1.0, abs(first)):
        return "failed", "The loss falls without limit: it has no lower bound. Give bounds."
    if ending.message in STALLED:
        return "stalled", ending.message
    if not ending.satisfied:
        return "out_of_iterations", _unfinished(problem, ending)
    seen, along = ending.seen, _along(problem, ending.seen.along)
    if seen.kind == "falls":
        return "stationary", (
            f"Stationary, but not a minimum: the loss curves downwards along {along} (second "
            f"derivative {seen.curvature:.2g}), and no lower point was found nearby. Try another "
            "first guess, or starts=8."
        )
    if seen.kind == "minimum":
        return "converged", f"A local minimum{seen.why} ({message})."
    if seen.kind == "flat":
        return "converged", (
            f"A local minimum or a flat region: the loss hardly changes along {along} ({message})."
        )
    return "converged", f"Stationary ({message}). Whether it is a minimum is not known: {seen.why}."


def _unfinished(problem: Problem, ending: Judged) -> str:
    """Why a search did not converge."""
    if ending.left > MOST_FALLS:
        return (
            f"It passed {ending.left} stationary points that are not minima, each followed by a "
            "lower point; this is the last. Continue from here, or try another first guess."
        )
    _, slope = problem.gradient(ending.u)
    steep = float(np.max(np.abs(slope), initial=0.0))
    return (
        f"The iterations ran out before the search converged; the largest entry of the "
        f"gradient is {steep:.2g}. Raise max_iterations."
    )


def _along(problem: Problem, direction: np.ndarray | None) -> str:
    """The parameters with the largest parts in a direction."""
    if direction is None:
        return ""
    size = np.abs(direction)
    order = [int(k) for k in np.argsort(-size) if size[k] >= 0.3 * np.max(size)]
    names = [problem.free.names[k] for k in order[:3]]
    return ", ".join(names) + (" and others" if len(order) > 3 else "")


def on_the_way(ending: Judged) -> str:
    """Stationary points that were passed by the search, in words."""
    if not ending.left or ending.left > MOST_FALLS:
        return ""
    what = (
        "A stationary point that is not a minimum was"
        if ending.left == 1
        else (f"{ending.left} stationary points that are not minima were")
    )
    return f"{what} passed on the way to a lower one."
