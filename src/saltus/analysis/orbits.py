"""Periodic motions by shooting: their starts, periods and stability."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from ..base.names import named, number_names, unknown
from ..base.text import number
from ..base.tracing import is_traced
from ..base.types import Array, Matrix, Number, Params, Tree, Vector
from ..methods import Method
from ..solution.solution import Solution
from ..system.hybrid import HybridSystem, Instant
from .gauss_newton import NoReturn, NotFound, Root, Scales, attach_root, gauss_newton, missed, plain
from .local_state import driven, local, manifold, packed, slope, tangent
from .return_map import Way, find_event, method_for, way_by_event, whole

SINGULAR_VALUE_ZERO = 1e-7  # of a return map, relative to the largest
SHORT_TIME = 1e-4  # relative to the time in which a state changes by its own size
FLOW_DIRECTION_ERROR = 1e-5  # relative, with which the flow has multiplier one
NEUTRAL_MARGIN = 1e-6  # multipliers this close to the unit circle are neutral
SIZE_POINTS = 65  # of a motion, from which the sizes of its states are found
MAX_SHOWN = 8  # states and multipliers in a summary


class Orbit(eqx.Module):
    """A periodic motion: its start, its period, and its response to small disturbances.

    `start`, `period`, `monodromy` and `section` are differentiable in p. `end` is the instant one
    period later, and `residual` the largest difference between its x and that of the start.
    """

    start: Instant
    period: Number
    end: Instant
    residual: float
    p: Params = eqx.field(repr=False)
    system: HybridSystem = eqx.field(static=True, repr=False)
    way: Way = eqx.field(static=True, repr=False)

    @property
    def names(self) -> list[str]:
        """The names of the states, in the order of rows and columns."""
        return number_names(self.start.x, "x")

    @property
    def solution(self) -> Solution:
        """One period of the motion as a new solution."""
        return whole(self.way, self.system, self.start, self.p, self.period)

    @property
    def section(self) -> Matrix:
        """The derivative of the state after the event by the state after the previous event."""
        return self._slopes()[0]

    @property
    def monodromy(self) -> Matrix:
        """The derivative of the state one period later by the start, at fixed times (M69)."""
        after, time = self._slopes()
        return after - jnp.outer(slope(self.system, self.end, self.p), time)

    def _slopes(self) -> tuple[Any, Any]:
        x, join = packed(self.start.x)

        def after(v: Vector) -> tuple[Any, Any]:
            now, period = self.way(self.start.replace(x=join(v)), self.p, self.period)
            return packed(now.x)[0], jnp.asarray(period, jnp.float64)

        return jax.jacfwd(after)(x)

    @property
    def multipliers(self) -> npt.NDArray[np.complex128]:
        """The Floquet multipliers, largest first, of directions that obey all constraints."""
        return self._multipliers()[0]

    @property
    def stable(self) -> bool:
        """Whether disturbances decay: all multipliers but that of the flow are below 1 in size."""
        return bool(np.all(np.abs(self._multipliers()[1]) < 1 - NEUTRAL_MARGIN))

    def _multipliers(self) -> tuple[npt.NDArray[np.complex128], npt.NDArray[np.complex128]]:
        """All multipliers, and those that are not along the flow."""
        start, end, p = plain("orbit.multipliers", (self.start, self.end, self.p))
        matrix = np.asarray(plain("orbit.multipliers", self.monodromy))
        free = tangent(self.system, start, p)
        found = np.linalg.eigvals(free.T @ matrix @ free).astype(complex)
        found = found[np.argsort(-np.abs(found), kind="stable")]
        along = np.asarray(slope(self.system, end, p))
        room = np.linalg.norm(matrix, 2) * np.linalg.norm(along)
        if np.linalg.norm(matrix @ along - along) > FLOW_DIRECTION_ERROR * room:
            return found, found
        return found, np.delete(found, np.argmin(np.abs(found - 1)))

    def __repr__(self) -> str:
        if is_traced((self.start, self.period)):
            return "Orbit, being differentiated: its numbers are known outside only"
        found, others = self._multipliers()
        largest = float(np.max(np.abs(others), initial=0.0))
        word = (
            "neutral"
            if abs(largest - 1) <= NEUTRAL_MARGIN
            else "stable"
            if largest < 1
            else "unstable"
        )
        by = f' from "{self.way.event}" to "{self.way.event}"' if self.way.event else ""
        lines = [
            f"Orbit of period {number(self.period, 8)}{by}: {word}",
            f"  start        {_listed(named(self.start.x, 'x'))}",
            f"  multipliers  {', '.join(_complex(v) for v in found[:MAX_SHOWN])}",
            f"  residual     {number(self.residual, 2)}",
        ]
        moved = [k for k, v in named(self.start.d, "d").items() if _differ(v, self.end.d, k)]
        if moved:
            lines.append(f"  not the same after a period: {', '.join(moved)} in d")
        return "\n".join(lines)


def orbit(
    system: HybridSystem,
    start: Instant,
    p: Params,
    *,
    event: str | None = None,
    count: int = 1,
    period: Number | None = None,
    t1: float | None = None,
    method: Method | None = None,
    free: Sequence[str] | None = None,
    tol: float = 1e-10,
) -> Orbit:
    """The periodic motion of `system` near `start`.

    Give `event` or `period`. With `event`, the start lies just after this event, and the state just
    after its next firing number `count` must equal the start; `t1` is the latest time for each
    firing. With `period`, for systems driven by time, the state must be the same one period later.
    `free` names the states that may be changed (default: all). The discrete state of the start is
    kept. `tol` is the relative tolerance, and `method` by default one that is accurate enough for
    it.

    Differentiable in `p`, the start and the period. Raises `NotFound`, with the best start as
    `best`, if no such motion is found nearby.
    """
    _check(system, event, count, period)
    method = method_for(system, tol) if method is None else method
    calm, quiet, length = plain("orbit", (start, p, period))
    chosen = _chosen(calm.x, free)
    way = Way(system, method, event, count, t1)
    if event is not None:
        moment = _moment(system, calm, quiet, event)
        way = way_by_event(system, calm, quiet, way, moment)

    def residual(y: Vector, start: Instant, p: Params, period: Number | None) -> Vector:
        now = _placed(start, chosen, y)
        miss = packed(way(now, p, period)[0].x)[0] - packed(now.x)[0]
        return jnp.concatenate([miss, manifold(system, now, p)])

    given = (calm, quiet, length)
    root = _shoot(lambda y: residual(y, *given), system, way, given, chosen, tol)
    best = _placed(calm, chosen, jnp.asarray(root.value))
    if root.why:
        raise NotFound(
            f"orbit: no periodic motion was found; {missed(root, tol)}. The best start is `best` "
            "of this error. Start closer, or give a method with smaller rtol and atol.",
            best,
            root.size,
        )
    _check_mode(system, start, way(best, quiet, length)[0], best)
    y = attach_root(lambda y: residual(y, start, p, period), root)
    start = _placed(start, chosen, y)
    end, found_period = way(start, p, period)
    miss = plain("orbit", packed(end.x)[0] - packed(start.x)[0])
    start = start.replace(z=end.z, dx=end.dx)
    return Orbit(start, found_period, end, float(np.max(np.abs(miss))), p, system, way)


def _shoot(
    residual: Callable[[Vector], Vector],
    system: HybridSystem,
    way: Way,
    given: tuple,
    chosen: np.ndarray,
    tol: float,
) -> Root:
    """The state that returns to itself, by Newton's method in units of the motion's size."""
    start, p, _ = given
    try:
        sizes = _sizes(way.motion(*given))
        rows = np.concatenate([sizes, np.zeros(manifold(system, start, p).size)])
        first = packed(start.x)[0][chosen]
        return gauss_newton(residual, first, Scales(sizes[chosen], rows), tol, SINGULAR_VALUE_ZERO)
    except NoReturn as error:
        raise NotFound(f"orbit: {error}.", best=start) from error


def _sizes(legs: list[Solution]) -> np.ndarray:
    """How large each state becomes; 1 for states that stay zero up to rounding."""
    seen = []
    for sol in legs:
        now = sol.at(np.linspace(float(sol.start), float(sol.last.t), SIZE_POINTS))
        seen += [np.asarray(jax.vmap(lambda x: packed(x)[0])(now.x))]
    largest = np.nanmax(np.abs(np.concatenate(seen)), axis=0)
    return np.where(largest > 1e-10 * np.max(largest, initial=0.0), largest, 1.0)


def _placed(start: Instant, chosen: np.ndarray, y: Vector) -> Instant:
    """The start with its chosen states replaced."""
    x, join = packed(start.x)
    return start.replace(x=join(x.at[chosen].set(y)))


def _chosen(x: Tree, free: Sequence[str] | None) -> np.ndarray:
    """The indices of the states that may be changed."""
    names = number_names(x, "x")
    if free is None:
        return np.arange(len(names))
    free = [free] if isinstance(free, str) else list(free)
    for name in free:
        if not any(_is(known, name) for known in names):
            raise unknown(name, names, "state")
    return np.array([k for k, known in enumerate(names) if any(_is(known, n) for n in free)])


def _is(known: str, name: str) -> bool:
    return known == name or known.startswith(f"{name}[")


def _moment(system: HybridSystem, start: Instant, p: Params, event: str) -> float:
    """A short time at the start; an error if the system is driven by time, or at rest."""
    if driven(local(system, start, p)[0]):
        raise ValueError(
            f"orbit: the system is driven (its flow, constraint or guards read now.t), so a "
            f'return to "{event}" does not make a motion periodic. Give the period of the drive: '
            "orbit(system, start, p, period=...)."
        )
    speed = float(jnp.linalg.norm(slope(system, start, p)))
    if speed == 0:
        raise NotFound("orbit: the start is an equilibrium: nothing moves there.", best=start)
    return SHORT_TIME * (float(jnp.linalg.norm(packed(start.x)[0])) or speed) / speed


def _check(system: HybridSystem, event: str | None, count: int, period: Number | None) -> None:
    if (event is None) == (period is None):
        given = "neither" if event is None else "both"
        raise ValueError(
            f"orbit: {given} of event and period are given, expected one. Write "
            'orbit(system, start, p, event="bounce"), or period=2.0 for a driven system.'
        )
    if count != int(count) or count < 1:
        raise ValueError(f"orbit: count is {count}, expected a whole number of at least 1.")
    if event is not None:
        find_event(system, event)


def _check_mode(system: HybridSystem, start: Instant, end: Instant, best: Instant) -> None:
    if not system.modes:
        return
    names = system.modes
    first = start.mode if isinstance(start.mode, str) else names[int(start.mode)]
    last = names[int(end.mode)]
    if first != last:
        raise NotFound(
            f'orbit: the motion starts in mode "{first}" and is in "{last}" one period later. '
            "Start just after another event, or give a larger count.",
            best,
        )


def _listed(values: dict[str, Any]) -> str:
    clean = {k: np.where(np.abs(v) < 1e-12, 0.0, v) for k, v in values.items()}
    shown = [f"{k} = {np.array2string(v, precision=6)}" for k, v in clean.items()]
    return ", ".join([*shown[:MAX_SHOWN], *(["..."] if len(shown) > MAX_SHOWN else [])])


def _complex(value: complex) -> str:
    if abs(value.imag) <= 1e-12 * abs(value):
        return number(value.real, 5)
    return f"{number(value.real, 5)}{'+' if value.imag > 0 else '-'}{number(abs(value.imag), 5)}i"


def _differ(value: Array, after: Tree, name: str) -> bool:
    return not np.allclose(np.asarray(value), np.asarray(named(after, "d")[name]), rtol=1e-6)
