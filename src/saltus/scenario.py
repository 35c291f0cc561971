"""A system together with what it takes to run it: start, parameters, horizon."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .methods import Method
from .solution import Solution
from .solve import solve
from .system import HybridSystem, Instant


@dataclasses.dataclass(frozen=True, eq=False)
class Scenario:
    """A system, its start, its parameters and its end: what can be simulated as it is.

    `start` is an `Instant`, or a function `p -> Instant` where the start depends on parameters.
    `free`, `bounds`, `scales` and `priors` are what `saltus.fit` uses unless told otherwise. The
    command line takes scenarios by name: `saltus simulate model.py:ball`.
    """

    system: HybridSystem
    start: Instant | Callable[[Any], Instant]
    p: Any
    t1: float | None = None
    method: Method | None = None
    free: Sequence[str] | None = None
    bounds: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    scales: Mapping[str, str] = dataclasses.field(default_factory=dict)
    priors: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
    name: str = "model"

    def __post_init__(self):
        if not isinstance(self.system, HybridSystem):
            raise TypeError(
                f"Scenario: system is {self.system!r}, expected a HybridSystem. Write "
                "saltus.Scenario(system, start, p, t1)."
            )
        if not isinstance(self.start, Instant) and not callable(self.start):
            raise TypeError(
                f"Scenario: start is {self.start!r}, expected an Instant or a function of p. "
                "Write start=saltus.Instant(t=0.0, x=...)."
            )

    def replace(self, **changes: Any) -> Scenario:
        """The same scenario with some fields changed."""
        return dataclasses.replace(self, **changes)

    def start_at(self, p: Any) -> Instant:
        """The start for the parameters `p`."""
        return started(self.start, p)

    def solve(self, p: Any = None, t1: Any = None, **options: Any) -> Solution:
        """`saltus.solve` of this scenario, with its own parameters and end unless given."""
        p = self.p if p is None else p
        t1 = self.t1 if t1 is None else t1
        if t1 is None:
            raise ValueError(f"{self.name}: no end is known. Write solve(t1=...).")
        options.setdefault("method", self.method)
        return solve(self.system, self.start_at(p), p, t1, **options)


def started(start: Any, p: Any) -> Instant:
    """The start as an instant, whether it was given as one or as a function of p."""
    return start if isinstance(start, Instant) else start(p)
