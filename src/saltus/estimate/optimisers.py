"""One interface to optimisers of several libraries.

Each takes a target, a first vector and a monitor, and returns the vector it ended at and why it
stopped. Bounds are respected by all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from ..base.extras import need
from ..trust.verdict import UNTRUSTED
from .monitor import Monitor
from .parameters import Free
from .step_limits import leave


class Target(Protocol):
    """What an optimiser may ask for."""

    low: np.ndarray
    high: np.ndarray

    def residuals(self, u: np.ndarray) -> np.ndarray: ...
    def jacobian(self, u: np.ndarray) -> np.ndarray: ...
    def value(self, u: np.ndarray) -> float: ...
    def gradient(self, u: np.ndarray) -> tuple[float, np.ndarray]: ...
    def hessian(self, u: np.ndarray) -> np.ndarray: ...
    def signature(self, u: np.ndarray) -> str: ...
    def settle(self, u: np.ndarray) -> None: ...
    def level(self, u: np.ndarray) -> int: ...
    def share(self, u: np.ndarray) -> float: ...
    def events(self) -> int: ...
    def evaluations(self) -> int: ...


class ConstrainedTarget(Target, Protocol):
    """The same with constraints: values that must stay between `below` and `above`."""

    below: np.ndarray
    above: np.ndarray

    def constraints(self, u: np.ndarray) -> np.ndarray: ...
    def constraint_jacobian(self, u: np.ndarray) -> np.ndarray: ...
    def lagrangian_hessian(
        self, u: np.ndarray, factor: float, weights: np.ndarray
    ) -> np.ndarray: ...


class Rule(Protocol):
    """An update rule of optax."""

    init: Callable
    update: Callable


OptimiserLike: TypeAlias = str | Rule
OUT_OF_ITERATIONS = "out of iterations"
NO_GRADIENT = "No gradient exists here: an event grazes its guard, or touches it."


class Unconstrained:
    """The base of targets without constraints, which allow steps of any length."""

    below = above = np.zeros(0)

    def settle(self, u: np.ndarray) -> None:
        """The optimiser is now at `u`, from which steps are measured; see `Cautious`."""

    def share(self, u: np.ndarray) -> float:
        return 1.0

    def level(self, u: np.ndarray) -> int:
        return 0

    def constraints(self, u: np.ndarray) -> np.ndarray:
        return np.zeros(0)

    def constraint_jacobian(self, u: np.ndarray) -> np.ndarray:
        return np.zeros((0, u.size))

    def lagrangian_hessian(self, u: np.ndarray, factor: float, weights: np.ndarray) -> np.ndarray:
        return factor * self.hessian(u)  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True)
class Ending:
    """Where an optimiser ended, and whether it met its own test of convergence."""

    u: np.ndarray
    satisfied: bool
    message: str


@dataclasses.dataclass(frozen=True)
class Limits:
    """When to stop."""

    iterations: int = 200
    tolerance: float = 1e-12


def least_squares(
    target: Target,
    u: np.ndarray,
    monitor: Monitor,
    limits: Limits,
    flavour: str = "trf",
    **options: Any,
) -> Ending:
    """Levenberg–Marquardt within bounds (`trf`), or Gauss–Newton with a dogleg (`dogbox`)."""
    low, high = target.low, target.high
    u = _inside(u, low, high) if flavour == "trf" else np.clip(u, low, high)

    left, here = [limits.iterations], [u]

    def jacobian(u: np.ndarray) -> np.ndarray:
        j, r = target.jacobian(u), target.residuals(u)
        tell(monitor, target, u, 0.5 * float(r @ r), j.T @ r)
        here[0], left[0] = np.array(u), left[0] - 1
        if left[0] < 0:
            raise StopIteration
        return j

    small = limits.tolerance
    solver: Any = scipy.optimize.least_squares
    try:
        found = solver(
            target.residuals, u, jac=jacobian, bounds=(low, high), method=flavour, x_scale="jac",
            ftol=small, xtol=small, gtol=small, max_nfev=4 * limits.iterations, **options,
        )  # fmt: skip
    except StopIteration:
        return Ending(here[0], False, OUT_OF_ITERATIONS)
    message = str(found.message) if found.status > 0 else OUT_OF_ITERATIONS
    return Ending(found.x, found.status > 0, message)


def restarting(
    once: Callable[[np.ndarray, Callable, int], scipy.optimize.OptimizeResult],
    target: Target,
    u: np.ndarray,
    monitor: Monitor,
    limits: Limits,
) -> Ending:
    """Run `once(u, callback, iterations)`, afresh whenever the sequence of events changes.

    A quasi-Newton method's estimate of the curvature belongs to one sequence. If no gradient exists
    at a point, a separate step leads away from it (see `leave`).
    """
    left = limits.iterations
    while True:
        if target.level(u) == UNTRUSTED:
            better = leave(target, u)
            if better is None:
                return Ending(u, False, NO_GRADIENT)
            u = better
        target.settle(u)
        signature, path = target.signature(u), [u]

        def each(now: np.ndarray, path: list = path, signature: str = signature) -> None:
            tell(monitor, target, now, *target.gradient(now))
            path.append(np.array(now))
            if target.signature(now) != signature or target.level(now) == UNTRUSTED:
                raise StopIteration

        try:
            found = once(u, each, left)
            end, ok, text = found.x, bool(found.success), str(found.message)
        except StopIteration:  # where SciPy does not catch it
            end, ok, text = path[-1], False, "the sequence of events keeps changing"
        left -= max(len(path) - 1, 1)
        changed = target.signature(path[-1]) != signature or target.level(path[-1]) == UNTRUSTED
        u = path[-1] if changed else end
        if left <= 0 or not changed:
            return Ending(np.clip(u, target.low, target.high), ok, text)


def l_bfgs_b(
    target: Target, u: np.ndarray, monitor: Monitor, limits: Limits, **options: Any
) -> Ending:
    """Limited-memory BFGS; its memory is dropped when the sequence of events changes."""
    bounds = scipy.optimize.Bounds(target.low, target.high)  # type: ignore[call-arg]

    def once(u: np.ndarray, each: Callable, left: int) -> scipy.optimize.OptimizeResult:
        return scipy.optimize.minimize(
            finite(target.gradient), u, jac=True, method="L-BFGS-B", bounds=bounds, callback=each,
            options={"maxiter": left, "ftol": 1e-15, "gtol": 1e-9, "maxls": 40, **options},
        )  # fmt: skip

    return restarting(once, target, u, monitor, limits)


def trust(
    target: Target, u: np.ndarray, monitor: Monitor, limits: Limits, **options: Any
) -> Ending:
    """A trust region on the exact Hessian."""
    low, high = target.low, target.high
    bounded = bool(np.any(np.isfinite(low)) or np.any(np.isfinite(high)))

    def each(now: np.ndarray, *_: object) -> None:
        value, slope = target.gradient(now)
        tell(monitor, target, now, value, slope)

    extra: dict[str, Any] = {}
    if bounded:
        extra["bounds"] = scipy.optimize.Bounds(low, high)  # type: ignore[call-arg]
        given = {"maxiter": limits.iterations, "gtol": 1e-9, "xtol": 1e-12}
    else:
        given = {"maxiter": limits.iterations, "gtol": 1e-9}
    found = scipy.optimize.minimize(
        finite(target.gradient), u, jac=True, hess=target.hessian, callback=each,
        method="trust-constr" if bounded else "trust-exact", options={**given, **options}, **extra,
    )  # fmt: skip
    return Ending(np.clip(found.x, low, high), bool(found.success), str(found.message))


def optax(
    target: Target, u: np.ndarray, monitor: Monitor, limits: Limits, rule: OptimiserLike = "adam",
    learning_rate: float = 0.01, resume: Mapping[str, np.ndarray] | None = None, **options: Any,
) -> Ending:  # fmt: skip
    """Adam or any other optax rule, projected into the bounds."""
    module = need("optax", "fit", f'optimiser="{rule}"' if isinstance(rule, str) else "optax rules")
    if isinstance(rule, str):
        rule = cast(Rule, getattr(module, rule)(learning_rate, **options))
    at: Any = jnp.asarray(np.clip(u, target.low, target.high))
    state = rule.init(at)
    leaves, treedef = jax.tree.flatten(state)
    if resume and len(resume) == len(leaves) + 1:
        leaves = [jnp.asarray(resume[f"state{k}"]) for k in range(len(leaves))]
        state, at = jax.tree.unflatten(treedef, leaves), jnp.asarray(resume["u"])
    best, shorter = (np.inf, np.asarray(at)), 1.0
    for _ in range(limits.iterations):
        target.settle(np.asarray(at))
        value, slope = target.gradient(np.asarray(at))
        if not np.isfinite(value) or not np.all(np.isfinite(slope)):
            # the step was too long: start again from the best point, with shorter steps
            at, state, shorter = jnp.asarray(best[1]), rule.init(jnp.asarray(best[1])), shorter / 2
            continue
        best = min(best, (value, np.asarray(at)), key=lambda pair: pair[0])
        here = np.asarray(at)
        steps, state = rule.update(jnp.asarray(slope), state, at)
        at = jnp.clip(at + shorter * steps, target.low, target.high)
        at = here + target.share(np.asarray(at)) * (at - here)
        monitor.extra = {f"state{k}": np.asarray(v) for k, v in enumerate(jax.tree.leaves(state))}
        monitor.extra["u"] = np.asarray(at)
        tell(monitor, target, here, value, slope)
    end = np.asarray(at) if target.value(np.asarray(at)) < best[0] else best[1]
    target.settle(end)
    value, slope = target.gradient(end)
    flat = steepest(target, end, slope) <= 1e-6 * max(1.0, abs(value))
    return Ending(end, flat, "the gradient is zero" if flat else OUT_OF_ITERATIONS)


OPTAX = ("adam", "adamw", "adabelief", "nadam", "rmsprop", "sgd", "lion", "amsgrad")
NAMES = ("lm", "gauss-newton", "l-bfgs-b", "trust", "ipopt", "slsqp", *OPTAX)
LEAST_SQUARES = ("lm", "gauss-newton")


def is_optax(name: OptimiserLike) -> bool:
    """Whether an optimiser is an optax rule, given by name or as an object."""
    return name.lower() in OPTAX if isinstance(name, str) else hasattr(name, "update")


def optimiser(name: OptimiserLike) -> Callable[..., Ending]:
    """The optimiser called `name`, which may also be an optax rule."""
    from .constrained_optimisers import ipopt, slsqp

    if not isinstance(name, str):
        if hasattr(name, "init") and hasattr(name, "update"):
            return lambda *args, **options: optax(*args, rule=name, **options)
        raise TypeError(f"optimiser: {name!r} is neither a name nor an optax rule.")
    key = name.lower()
    if key in OPTAX:
        return lambda *args, **options: optax(*args, rule=key, **options)
    table = {
        "lm": least_squares,
        "gauss-newton": lambda *args, **options: least_squares(*args, flavour="dogbox", **options),
        "l-bfgs-b": l_bfgs_b,
        "trust": trust,
        "ipopt": ipopt,
        "slsqp": slsqp,
    }
    if key not in table:
        raise ValueError(f"optimiser: there is no {name!r}. Write one of {', '.join(NAMES)}.")
    return table[key]


def tell(monitor: Monitor, target: Target, u: np.ndarray, value: float, slope: np.ndarray) -> None:
    """Report an iteration to the monitor; slopes that point out of a bound do not count."""
    target.settle(u)
    steep = steepest(target, u, slope)
    monitor.iteration(u, value, steep, target.events(), target.evaluations())


def steepest(target: Target, u: np.ndarray, slope: np.ndarray) -> float:
    """The largest entry of the gradient, except those that point out of a bound."""
    stopped = ((u <= target.low) & (slope > 0)) | ((u >= target.high) & (slope < 0))
    return float(np.max(np.abs(np.where(stopped, 0.0, slope)), initial=0.0))


def finite(gradient: Callable) -> Callable:
    """A finite gradient function: where a simulation fails, a large loss with zero slope."""
    largest = [1.0]

    def safe(u: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = gradient(u)
        if not np.isfinite(value) or not np.all(np.isfinite(slope)):
            return 1e3 * largest[0], np.zeros_like(slope)
        largest[0] = max(largest[0], abs(value))
        return value, slope

    return safe


def _inside(u: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """A point strictly between the bounds, as interior methods need."""
    width = np.where(np.isfinite(high - low), high - low, np.maximum(np.abs(u), 1.0))
    edge = 1e-8 * width
    return np.clip(
        u,
        np.where(np.isfinite(low), low + edge, low),
        np.where(np.isfinite(high), high - edge, high),
    )


def sobol(free: Free, count: int, seed: int, spread: float = 0.5) -> list[np.ndarray]:
    """First guesses: a Sobol sequence within the bounds or, without any, around the first guess."""
    if count <= 0:
        return []
    from scipy.stats import qmc

    low = np.where(
        np.isfinite(free.low),
        free.low,
        free.initial - spread * np.maximum(np.abs(free.initial), 1.0),
    )
    high = np.where(
        np.isfinite(free.high),
        free.high,
        free.initial + spread * np.maximum(np.abs(free.initial), 1.0),
    )
    many = 2 ** int(np.ceil(np.log2(max(count, 1))))
    points = qmc.Sobol(free.size, rng=seed).random(many)[:count]
    return list(low + (high - low) * points)
