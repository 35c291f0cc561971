"""Optimisers with constraints: IPOPT with exact Hessians, and SLSQP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import scipy.optimize

from ..base.extras import need
from .monitor import Monitor
from .optimisers import (
    OUT_OF_ITERATIONS,
    ConstrainedTarget,
    Ending,
    Limits,
    finite,
    restarting,
    tell,
)

IPOPT_SAYS = {
    0: "solved",
    1: "solved to an acceptable level",
    2: "no point nearby satisfies the constraints: it converged to one of least violation",
    3: "the search direction became too small",
    4: "the iterates diverge",
    5: "stopped by hand",
    6: "a feasible point was found",
    -1: OUT_OF_ITERATIONS,
    -2: "restoration of feasibility failed",
    -3: "no step could be computed",
    -13: "the loss or a constraint is not finite where it is needed",
}
T = TypeVar("T")
S = TypeVar("S")
NO_BOUND = 2e19


def ipopt(
    target: ConstrainedTarget, u: np.ndarray, monitor: Monitor, limits: Limits, **options: Any
) -> Ending:
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

    def each(mode: int, number: int, *rest: object) -> bool:
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


def _guarded(caught: list[BaseException], fn: Callable[[], T], otherwise: S) -> T | S:
    """A call from compiled code: an exception is kept, to be raised afterwards."""
    if caught:
        return otherwise
    try:
        return fn()
    except BaseException as error:
        caught.append(error)
        return otherwise


def slsqp(
    target: ConstrainedTarget, u: np.ndarray, monitor: Monitor, limits: Limits, **options: Any
) -> Ending:
    """Sequential quadratic programming; its Hessian is dropped when the events change."""
    bounds = scipy.optimize.Bounds(target.low, target.high)  # type: ignore[call-arg]
    size = max(1.0, float(np.max(np.abs(target.gradient(u)[1]), initial=0.0)))

    def loss(u: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = target.gradient(u)
        return value / size, slope / size  # its first step has the length of the gradient

    def once(
        u: np.ndarray, each: Callable[[np.ndarray], None], left: int
    ) -> scipy.optimize.OptimizeResult:
        return scipy.optimize.minimize(
            finite(loss), u, jac=True, method="SLSQP", bounds=bounds, callback=each,
            constraints=_for_slsqp(target),
            options={"maxiter": left, "ftol": max(limits.tolerance, 1e-12), **options},
        )  # fmt: skip

    return restarting(once, target, u, monitor, limits)


def _for_slsqp(target: ConstrainedTarget) -> list[dict]:
    """Equalities and the two sides of inequalities, in the form that SLSQP expects."""
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
