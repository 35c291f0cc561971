"""First guesses for an optimiser: drawn where the loss exists, and listed with how each ended."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import numpy as np

from ..tables import number, table
from .optimisers import sobol

DRAWS = 32  # for each start that is wanted, until its loss is finite
CHOICE = 4  # for each start, among which those that keep the constraints are preferred
FEASIBLE = 1e-6  # largest violation of a constraint that counts as none, relative above 1
REASON = 70  # characters of an error in a table


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


def listed(starts: list[Start]) -> str:
    """A table of all starts."""
    rows = []
    for k, s in enumerate(starts):
        how = s.result if s.end is not None or not s.message else f"{s.result}: {s.message}"
        cells = (s.start_loss, s.loss)
        losses = [number(v, 6, True) if np.isfinite(v) else "-" for v in cells]
        off = f"{s.violation:.1e}" if np.isfinite(s.violation) else "-"
        rows.append([f"{k + 1}", *losses, off, how[:REASON]])
    head = ["start", "loss there", "loss at its end", "violation", "how it ended"]
    return table(head, rows, left=(4,))


def first_line(error: BaseException) -> str:
    """An error in one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def drawn(problem: Any, count: int, seed: int) -> tuple[list[np.ndarray], dict[str, int]]:
    """First guesses at which loss, constraints and gradient are finite; and why others were not.

    A Sobol sequence within the bounds is gone through until there are enough of them. Of those that
    were looked at, the ones that keep the constraints come first.
    """
    rejected: collections.Counter[str] = collections.Counter()
    found: list[tuple[float, int, np.ndarray]] = []
    if count <= 0:
        return [], {}
    inequalities = bool(np.any(problem.below < problem.above))
    for k, u in enumerate(sobol(problem.free, DRAWS * count, seed)):
        feasible = sum(off <= FEASIBLE for off, _, _ in found)
        enough = feasible if inequalities and k < CHOICE * count else len(found)
        if enough >= count:
            break
        why = refused(problem, u)
        if why:
            rejected[why] += 1
        else:
            found.append((max(problem.violation(u), FEASIBLE), k, u))
    best = sorted(found, key=lambda entry: entry[:2])
    if len(best) > count:
        rejected["others keep the constraints better"] += len(best) - count
    return [u for _, _, u in best[:count]], dict(rejected)


def refused(problem: Any, u: np.ndarray) -> str:
    """Why no search can start at `u`; empty if one can."""
    try:
        return problem.unusable(u)
    except Exception as error:
        return first_line(error)[:REASON]


def counted(rejected: dict[str, int], wanted: int, got: int) -> str:
    """What was rejected on the way to `got` further starts of `wanted`, in words."""
    if not rejected:
        return ""
    many = sum(rejected.values())
    why = "; ".join(f"{n} x {text}" for text, n in sorted(rejected.items(), key=lambda e: -e[1]))
    lead = "1 draw was" if many == 1 else f"{many} draws were"
    text = f"{lead} rejected as starts: {why}."
    if got < wanted:
        text += f" Only {got} of {wanted} further starts were found: give narrower bounds."
    return text


def tally(starts: list[Start], best: float) -> str:
    """How the starts ended, beside the best of them, in words."""
    ends = [s.loss for s in starts if s.result == "converged" and s.violation <= FEASIBLE]
    same = sum(abs(v - best) <= 1e-6 * max(1.0, abs(best)) for v in ends)
    parts = [f"{same} ended here"] if same else []
    if len(ends) > same:
        parts.append(f"{len(ends) - same} in a higher one")
    others = collections.Counter(s.result for s in starts if s.result != "converged")
    parts += [f"{n} {name.replace('_', ' ')}" for name, n in others.items()]
    return ", ".join(parts)
