"""The map from a state to the state one period later, by events or by time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp

from ..base.leaves import frozen
from ..base.results import Result
from ..base.types import Flag, Number, Params, Scalar
from ..methods import Dopri8, Method, Radau5
from ..solution.solution import Solution, failure
from ..solver.solving import solve
from ..system.hybrid import Event, HybridSystem, Instant, TimeEvent
from .gauss_newton import NoReturn, NotFound
from .local_state import again

ARMING_EVENT = "(armed)"  # makes the section active again
LATEST_TIME = 1e12  # where no end is given
MAX_STEPS_PER_RETURN = 200_000  # where no end is given
WAITING_SHARE = 1e-3  # of a return, during which the section is not active
MAX_WAITING_SHARE = 0.02  # a longer wait was a bad guess
MAX_GUESSES = 6  # of the waiting time
PERIOD_OVERSHOOT = 1e-7  # relative: a solution this much longer includes the closing event


@dataclasses.dataclass(frozen=True, eq=False)
class Way:
    """The map from a start to the state after one period (M68).

    With an `event`, the period ends at its firing number `count`, and `system` stops there.
    """

    system: HybridSystem
    method: Method
    event: str | None = None
    count: int = 1
    t1: float | None = None

    def __call__(self, start: Instant, p: Params, period: Number | None) -> tuple[Instant, Any]:
        """The state one period later, and the time this took."""
        legs = self.motion(start, p, period)
        if self.event is not None:
            period = sum(sol.final.t - start.t for sol in legs)
        return again(legs[-1].final).replace(t=start.t + period), period

    def motion(self, start: Instant, p: Params, period: Number | None) -> list[Solution]:
        """The solutions that make up one period; each starts at the time of `start`."""
        if self.event is None:
            return [self._by_the_clock(start, p, period)]
        legs = [self._leg(start, p)]
        while len(legs) < self.count:
            legs.append(self._leg(again(legs[-1].final).replace(t=start.t), p))
        return legs

    def _by_the_clock(self, start: Instant, p: Params, period: Number | None) -> Solution:
        sol = solve(self.system, start, p, start.t + period, method=self.method, repair=True)
        if int(sol.result) != int(Result.success):
            raise NoReturn(
                f"a terminal event ends the motion at t = {float(frozen(sol.last.t)):.6g}"
            )
        return sol

    def _leg(self, start: Instant, p: Params) -> Solution:
        """The motion to the next firing of the event."""
        end = start.t + LATEST_TIME if self.t1 is None else self.t1
        sol = solve(
            self.system, start, p, end, method=self.method, throw=False, repair=True,
            max_steps=MAX_STEPS_PER_RETURN if self.t1 is None else None,
        )  # fmt: skip
        result = Result(int(sol.result))
        if not result.ok:
            raise NoReturn(f'the event "{self.event}" does not happen again: {failure(sol)}')
        stopped_by = sol.tape.last_action(sol.spec.model)
        if result == Result.success or stopped_by is None or stopped_by.name != self.event:
            t = float(frozen(sol.last.t))
            raise NoReturn(f'the event "{self.event}" does not happen again before t = {t:.6g}')
        return sol


def method_for(system: HybridSystem, tol: float) -> Method:
    """A method whose errors are small compared to `tol`."""
    if system.constraint is None:
        return Dopri8(rtol=0.1 * tol, atol=0.1 * tol)
    return Radau5(rtol=tol, atol=tol)


def find_event(system: HybridSystem, name: str) -> Event | TimeEvent:
    """The event of this name."""
    for event in system.events:
        if event.name == name:
            return event
    raise ValueError(
        f'orbit: no event is called "{name}"; the events are {[e.name for e in system.events]}. '
        'Write event="...", or period=... for a motion driven by time.'
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Waiting:
    """When an event is active: as before, but not until a time."""

    until: Scalar
    own: Callable | None
    changes_at_events: ClassVar[bool] = True  # at ARMING_EVENT

    def __call__(self, now: Instant, p: Params) -> Flag:
        return (now.t > self.until) & (True if self.own is None else self.own(now, p))


@dataclasses.dataclass(frozen=True, eq=False)
class _Once:
    """The time of an event, whatever the state."""

    time: Scalar

    def __call__(self, now: Instant, p: Params) -> Scalar:
        return self.time


def stopping(system: HybridSystem, name: str, t0: float, wait: float) -> HybridSystem:
    """The system that stops at the next firing of an event, not at the one it starts from.

    By rounding, a start on the section may be on either side of it. So the guard is inactive until
    `t0 + wait`, when an event that changes nothing else makes it active.
    """
    event = find_event(system, name)
    if isinstance(event, TimeEvent):
        ends = (dataclasses.replace(event, terminal=True),)
    else:
        active = _Waiting(jnp.asarray(t0 + 0.5 * wait), event.active)
        when = "edge" if event.active is None else event.when
        stop = dataclasses.replace(event, terminal=True, active=active, when=when)
        ends = (stop, TimeEvent(ARMING_EVENT, next_time=_Once(jnp.asarray(t0 + wait))))
    place = system.events.index(event)
    events = (*system.events[:place], ends[0], *system.events[place + 1 :], *ends[1:])
    return dataclasses.replace(system, events=events)


def way_by_event(system: HybridSystem, start: Instant, p: Params, way: Way, moment: float) -> Way:
    """The way from event to event; `moment` is a short time, estimated at the start."""
    wait, last = moment, ""
    for _ in range(MAX_GUESSES):
        made = _armed(system, start, way, wait)
        try:
            legs = made.motion(start, p, None)
        except NoReturn as error:
            wait, last = 1e-3 * wait, str(error)  # it may have returned while it was waiting
            continue
        shortest = min(float(sol.final.t) - float(start.t) for sol in legs)
        if wait <= MAX_WAITING_SHARE * shortest:
            return _armed(system, start, way, WAITING_SHARE * shortest)
        wait, last = WAITING_SHARE * shortest, "its returns are too short to tell apart"
    raise NotFound(
        f"orbit: the start does not return: {last}. Check that the start lies just after the "
        "event, or give a later t1.",
        best=start,
    )


def _armed(system: HybridSystem, start: Instant, way: Way, wait: float) -> Way:
    stops = stopping(system, str(way.event), float(start.t), wait)
    return dataclasses.replace(way, system=stops)


def whole(way: Way, system: HybridSystem, start: Instant, p: Params, period: Number) -> Solution:
    """One period as one solution, including the event that closes it, if there is one.

    It is a solution of `system`, unless the event would fire again right at the start.
    """
    if way.event is None:
        return solve(system, start, p, start.t + period, method=way.method, repair=True)
    end = start.t + period * (1 + PERIOD_OVERSHOOT)
    for made in (system, _without_stop(way)):
        sol = solve(made, start, p, end, method=way.method, throw=False, repair=True)
        if _firings(sol, way.event) == way.count:
            break
    return sol


def _without_stop(way: Way) -> HybridSystem:
    events = [
        dataclasses.replace(e, terminal=e.terminal and e.name != way.event)
        for e in way.system.events
    ]
    return dataclasses.replace(way.system, events=events)


def _firings(sol: Solution, name: str) -> int:
    return sum(event.action.name == name for event in sol.tape.events(sol.spec.model))
