"""Optimisers that keep constraints: IPOPT with exact Hessians, and SLSQP; also in boxes.

Boxes are for what smooth optimisers do not manage: optima where the sequence of events changes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize

from ..base.extras import need
from .curvature import is_stationary
from .monitor import Monitor
from .optimisers import OUT_OF_ITERATIONS, Ending, Limits, finite, restarting, tell
from .starts import AT_A_KINK, FEASIBLE, IT_JUMPS, STUCK
from .step_limits import Cautious

IPOPT_SAYS = {
    0: "solved",
    1: "solved to an acceptable level",
    2: "no point satisfies the constraints nearby: it converged to one of least violation",
    3: "the search direction became too small",
    4: "the iterates diverge",
    5: "stopped by hand",
    6: "a feasible point was found",
    -1: OUT_OF_ITERATIONS,
    -2: "restoration of feasibility failed",
    -3: "no step could be computed",
    -13: "the loss or a constraint is not finite where it is needed",
}
NO_BOUND = 2e19
MOST_BOXES, SMALLEST_BOX, SMALL_BOX = 60, 1e-5, 1e-2


def ipopt(target: Any, u: np.ndarray, monitor: Monitor, limits: Limits, **options: Any) -> Ending:
    """An interior-point method on exact first and second derivatives."""
    module = need("ipyopt", "ipopt", 'optimiser="ipopt"')
    n, m = u.size, target.below.size
    rows, columns = np.tril_indices(n)
    caught: list[BaseException] = []
    latest = [np.array(u)]

    def value(x: np.ndarray) -> float:
        return _guarded(caught, lambda: target.value(x), np.nan)

    def slope(x: np.ndarray, out: np.ndarray) -> None:
        latest[0] = np.array(x)
        out[:] = _guarded(caught, lambda: target.gradient(x)[1], np.nan)

    def constraint(x: np.ndarray, out: np.ndarray) -> None:
        out[:] = _guarded(caught, lambda: target.constraints(x), np.nan)

    def jacobian(x: np.ndarray, out: np.ndarray) -> None:
        out[:] = _guarded(caught, lambda: target.constraint_jacobian(x).ravel(), np.nan)

    def hessian(x: np.ndarray, weights: np.ndarray, factor: float, out: np.ndarray) -> None:
        h = _guarded(caught, lambda: target.lagrangian_hessian(x, factor, np.array(weights)), None)
        out[:] = np.nan if h is None else h[rows, columns]

    def each(mode: int, number: int, *rest: Any) -> bool:
        if not caught and number > 0:  # 0 is the first guess
            _guarded(
                caught, lambda: tell(monitor, target, latest[0], *target.gradient(latest[0])), 0
            )
        return not caught

    grid = np.divmod(np.arange(m * n), n) if m else (np.zeros(0, int), np.zeros(0, int))
    problem = module.Problem(
        n, np.clip(target.low, -NO_BOUND, NO_BOUND), np.clip(target.high, -NO_BOUND, NO_BOUND), m,
        np.clip(target.below, -NO_BOUND, NO_BOUND), np.clip(target.above, -NO_BOUND, NO_BOUND),
        grid, (rows, columns), value, slope, constraint, jacobian, hessian,
        intermediate_callback=each,
        ipopt_options={
            "print_level": 0, "sb": "yes", "max_iter": limits.iterations,
            "tol": max(limits.tolerance, 1e-9), **options,
        },
    )  # fmt: skip
    x, _, code = problem.solve(np.clip(np.array(u, dtype=float), target.low, target.high))
    if caught:
        raise caught[0]
    return Ending(np.array(x), code in (0, 1), IPOPT_SAYS.get(code, f"IPOPT ended with {code}"))


def _guarded(caught: list[BaseException], fn: Any, otherwise: Any) -> Any:
    """A call from compiled code: an exception is kept and raised afterwards."""
    if caught:
        return otherwise
    try:
        return fn()
    except BaseException as error:
        caught.append(error)
        return otherwise


def slsqp(target: Any, u: np.ndarray, monitor: Monitor, limits: Limits, **options: Any) -> Ending:
    """Sequential quadratic programming; its Hessian is dropped when the events change."""
    bounds = scipy.optimize.Bounds(target.low, target.high)  # type: ignore[call-arg]
    size = max(1.0, float(np.max(np.abs(target.gradient(u)[1]), initial=0.0)))

    def loss(u: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = target.gradient(u)
        return value / size, slope / size  # its first step is as long as the gradient

    def once(u: np.ndarray, each: Any, left: int) -> Any:
        return scipy.optimize.minimize(
            finite(loss), u, jac=True, method="SLSQP", bounds=bounds, callback=each,
            constraints=_for_slsqp(target),
            options={"maxiter": left, "ftol": max(limits.tolerance, 1e-12), **options},
        )  # fmt: skip

    return restarting(once, target, u, monitor, limits)


def _for_slsqp(target: Any) -> list[dict]:
    """Equalities and the two sides of inequalities, as SLSQP wants them."""
    below, above = target.below, target.above
    equal = below == above
    kinds = []
    for kind, mask, sign, bound in (
        ("eq", equal, 1.0, below),
        ("ineq", ~equal & np.isfinite(below), 1.0, below),
        ("ineq", ~equal & np.isfinite(above), -1.0, above),
    ):
        if np.any(mask):
            kinds.append(
                {
                    "type": kind,
                    "fun": lambda u, k=mask, s=sign, b=bound: _known(
                        s * (target.constraints(u) - b)[k]
                    ),
                    "jac": lambda u, k=mask, s=sign: np.nan_to_num(
                        s * target.constraint_jacobian(u)[k]
                    ),
                }
            )
    return kinds


def _known(values: np.ndarray) -> np.ndarray:
    """Constraints that could not be evaluated count as badly violated."""
    return np.where(np.isfinite(values), values, -1e6)


class Boxed:
    """A problem within a box around a point."""

    def __init__(self, problem: Any, u: np.ndarray, width: np.ndarray):
        self._problem = problem
        self.low, self.high = (np.clip(u + s * width, problem.low, problem.high) for s in (-1, 1))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)


class Spent(Exception):
    """The iterations that one start may have are used up."""


class Counted:
    """A monitor that stops a search after a number of iterations, whichever optimiser counts.

    Once the sequence of events has changed, half of them are kept for boxes.
    """

    def __init__(self, monitor: Monitor, problem: Any, limit: int):
        self._monitor, self._problem, self._limit = monitor, problem, limit
        self.left, self.boxes = limit, False
        problem.sequences = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._monitor, name)

    @property
    def extra(self) -> dict[str, np.ndarray]:
        return self._monitor.extra

    @extra.setter
    def extra(self, given: dict[str, np.ndarray]) -> None:
        self._monitor.extra = given

    def iteration(self, *args: Any) -> None:
        if self.left <= self._kept():
            raise Spent
        self.left -= 1
        self._monitor.iteration(*args)

    def _kept(self) -> int:
        return 0 if self.boxes or len(self._problem.sequences) < 2 else self._limit // 2


def counted(
    method: Callable, problem: Any, u: np.ndarray, monitor: Counted, limits: Limits, given: dict
) -> Ending:
    """A search with the iterations that are left; where there are none, its best point."""
    few = dataclasses.replace(limits, iterations=min(limits.iterations, monitor.left))
    try:
        if few.iterations > 0:
            return method(Cautious(problem, u), u, monitor, few, **given)
    except Spent:
        pass
    return Ending(u if problem.best is None else problem.best[1], False, OUT_OF_ITERATIONS)


def boxed(
    method: Callable, problem: Any, u: np.ndarray, monitor: Counted, limits: Limits, given: dict
) -> Ending:
    """The optimiser as it is; if it does not arrive, from the best point in boxes."""
    monitor.boxes = False
    ending = counted(method, problem, u, monitor, limits, given)
    if (ending.satisfied and problem.violation(ending.u) <= FEASIBLE) or problem.best is None:
        return ending
    return in_boxes(problem, u, monitor, limits)


def in_boxes(problem: Any, u: np.ndarray, monitor: Counted, limits: Limits) -> Ending:
    """From the best point, in boxes that shrink.

    Where the sequence of events changes, loss and constraints jump or have a kink, and an optimiser
    for smooth problems may circle. In a box it can only improve on the best point or not; boxes
    grow and shrink with that (M59).
    """
    monitor.boxes = True
    size = np.where(np.isfinite(problem.high - problem.low), problem.high - problem.low, 0.0)
    size = np.where(size > 0, size, np.maximum(np.abs(u), 1.0))
    fraction, few, changes = 0.1, dataclasses.replace(limits, iterations=12), False
    for _ in range(MOST_BOXES):
        rank, here = problem.best
        if monitor.left <= 0:
            return Ending(here, False, OUT_OF_ITERATIONS)
        monitor.enter(f"box of {100 * fraction:.2g} %", problem)
        problem.sequences = set()
        inside: Any = Boxed(problem, here, fraction * size)
        _in_box(inside, here, monitor, few)
        changes |= fraction <= SMALL_BOX and len(problem.sequences) > 1
        gained = problem.best[0] < (rank[0] * (1 - 1e-6), np.inf) or (
            problem.best[0] < (rank[0], rank[1] - limits.tolerance * max(1.0, abs(rank[1])))
        )
        fraction = min(2 * fraction, 0.5) if gained else fraction / 3
        if fraction < SMALLEST_BOX:
            break
    else:
        return Ending(problem.best[1], False, OUT_OF_ITERATIONS)
    here = problem.best[1]
    if problem.best[0][0] <= FEASIBLE and is_stationary(problem, here):
        return Ending(here, True, "found in boxes")
    return Ending(here, False, AT_A_KINK if changes else _stuck(problem, here, size))


def _in_box(inside: Any, u: np.ndarray, monitor: Any, few: Limits) -> None:
    """A short search in a box; the problem keeps its best point."""
    with contextlib.suppress(Spent):
        slsqp(inside, u, monitor, dataclasses.replace(few, iterations=min(12, monitor.left)))


def _stuck(problem: Any, u: np.ndarray, size: np.ndarray) -> str:
    """Why nothing better was found, in words: whether anything jumps along the gradient."""
    slope = problem.gradient(u)[1] * size
    step = size * slope / max(float(np.linalg.norm(slope)), 1e-300)
    jumps = []
    for length in (1e-5, 1e-6):  # smooth functions change ten times less, jumps do not
        ends = [np.clip(u + s * length * step, problem.low, problem.high) for s in (-1, 1)]
        (before, left), (after, right) = (problem._evaluate(end) for end in ends)
        across = (left + right) / 2 @ (ends[1] - ends[0])
        large = np.abs(right - left) > 0.1 * np.maximum(np.abs(left), np.abs(right))
        far = np.abs(after - before - across) > 0.5 * np.abs(across) + 1e-9 * np.abs(before)
        jumps.append(bool(np.any(large) or np.any(far)))
    return IT_JUMPS if all(jumps) else STUCK
