"""Adapters: model functions of a user's states as functions of the states that are solved for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..base.types import Function, Params, T, Tree
from .hybrid import Event, Instant, Ticks, TimeEvent, called


def count(tree: Tree) -> int:
    """How many numbers a pytree has."""
    return sum(math.prod(jnp.shape(v)) for v in jax.tree.leaves(tree))


@dataclasses.dataclass(frozen=True)
class View:
    """Two functions: `seen` makes a user's instant of a solved one, `held` does the reverse."""

    seen: Callable[[Instant, Any], Any]
    held: Callable[[Any], Instant]
    kind: type = Instant  # of what `seen` returns

    def function(self, owner: str, fn: T) -> T | Function:
        """A model function of the user's instant as one of the instant that is solved for."""
        return (lambda now, p: called(owner, fn, self.seen(now, p), p)) if callable(fn) else fn

    def reset(self, owner: str, fn: Function | None) -> Function | None:
        if fn is None:
            return None

        def reset(now: Instant, p: Params) -> Instant:
            after = called(owner, fn, self.seen(now, p), p)
            return self.held(after) if isinstance(after, self.kind) else after

        return reset

    def event(self, event: T) -> T:
        owner = f'event "{getattr(event, "name", "")}"'
        if isinstance(event, Event):
            names = ("guard", "active")
            new = {k: self.function(f"{owner}: {k}", getattr(event, k)) for k in names}
            new["undo"] = self.reset(f"{owner}: undo", event.undo)
        elif isinstance(event, TimeEvent):
            own, when = lambda fn: self.function(f"{owner}: next_time", fn), event.next_time
            ticks = isinstance(when, Ticks)
            new = {"next_time": Ticks(own(when.period), own(when.offset)) if ticks else own(when)}
        else:
            return event  # `HybridSystem` reports what is wrong with it
        return dataclasses.replace(event, reset=self.reset(f"{owner}: reset", event.reset), **new)

    def events(self, events: Sequence[Event | TimeEvent]) -> Sequence[Event | TimeEvent]:
        if isinstance(events, Event | TimeEvent):
            return (self.event(events),)
        return tuple(map(self.event, events)) if isinstance(events, Sequence) else events
