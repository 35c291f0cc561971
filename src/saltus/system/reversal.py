"""Events backward in time: those that can be undone are undone (M90).

Going backward in time, the state is one after the event. The event has happened where the state
before it, `b = undo(now)`, has a guard that is zero and changes in the event's direction along the
flow at `b`. There the solve continues with `b`.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..base.tracing import is_tracer
from ..base.types import Array, Flag, Number, Params, T, Tree
from .hybrid import DIRECTIONS, Event, HybridSystem, Instant, TimeEvent

_known: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def one_way(system: HybridSystem) -> bool:
    """Whether solves backward in time look for other events than solves forward in time."""
    return system.forward_only is not None or any(_undone(e) for e in system.events)


def _undone(event: Event | TimeEvent) -> bool:
    return isinstance(event, Event) and (event.undo is not None or event.came is not None)


def directed(system: T, t0: Number, t1: Number) -> T | HybridSystem:
    """The system with its events for a solve from `t0` to `t1`, forward or backward in time.

    If these times are not known, time is assumed to go forward (see simulate/traced_checks.py).
    They are compared as they were given, because the result of any operation on them inside `jit`
    is not known.
    """
    if not isinstance(system, HybridSystem) or not one_way(system):
        return system
    t0, t1 = (jax.lax.stop_gradient(v) if is_tracer(v) else v for v in (t0, t1))
    if is_tracer(t0) or is_tracer(t1) or not np.all(np.asarray(t1) < np.asarray(t0)):
        return system
    if system not in _known:
        _known[system] = _reversed(system)
    return _known[system]


def _reversed(system: HybridSystem) -> HybridSystem:
    why = system.forward_only
    if why is None and system.constraint is not None:
        why = "modes with their own constraints cannot be left backward in time"
    stuck = [e for e in system.events if isinstance(e, Event) and e.came and e.undo is None]
    if why is None and stuck:
        why = (
            f'exit "{stuck[0].name}" has a reset, whose inverse is not known. Give it: '
            "Exit(..., undo=lambda now, p: now.replace(x=...))"
        )
    if why is not None:
        raise ValueError(f"solve: t1 lies before the start, but {why}.")
    events = tuple(
        _undoing(system.flow, e) if isinstance(e, Event) and _undone(e) else e
        for e in system.events
    )
    return dataclasses.replace(system, events=events)


def _undoing(flow: Callable, event: Event) -> Event:
    """The event for a solve backward in time, which undoes it."""
    undo: Callable = event.undo  # type: ignore[assignment]

    def guard(now: Instant, p: Params) -> Array:
        return event.guard(undo(now, p), p)

    def active(now: Instant, p: Params) -> Flag:
        return event.active(undo(now, p), p)  # type: ignore[misc]

    def possible(now: Instant, p: Params) -> Flag:
        b = undo(now, p)
        time = jnp.asarray(b.t, jnp.float64)
        along = (jnp.ones_like(time), _like(b.x, flow(b, p)))
        value = lambda t, x: jnp.asarray(event.guard(b.replace(t=t, x=x), p))
        slope = jax.jvp(value, (time, b.x), along)[1]
        slope = slope if slope.ndim == 0 else slope.reshape(-1)[now.member]
        direction = DIRECTIONS[event.direction]
        return slope * direction > 0 if direction else slope != 0

    in_force = event.came or (None if event.active is None else active)
    return dataclasses.replace(
        event, guard=guard, reset=undo, direction="either", when="edge", active=in_force,
        zeno=None, undo=None, came=None, possible=possible,
    )  # fmt: skip


def _like(x: Tree, dx: Tree) -> Tree:
    return jax.tree.map(lambda v, d: jnp.broadcast_to(d, jnp.shape(v)).astype(v.dtype), x, dx)
