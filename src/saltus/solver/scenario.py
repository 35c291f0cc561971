"""A system together with what is needed to run it: start, parameters, end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..base.foreign_parts import SCENARIO, constructs
from ..base.names import ENTRY, _locate, _numbers, leaf_names, unknown, with_values
from ..base.types import Number, Params
from ..methods import Method
from ..solution.solution import Solution
from ..system.hybrid import HybridSystem, Instant
from .solving import solve


@constructs(SCENARIO)
@dataclasses.dataclass(frozen=True, eq=False)
class Scenario:
    """A system with its start, parameters and end: everything needed to simulate it.

    `system` is a `HybridSystem`. `start` is an `Instant`, or a function `p -> Instant` if the start
    depends on parameters. `p` are the parameters and `t1` is the end. `method` is that of the
    solves, and `name` is used in reports. `free`, `bounds`, `scales` and `priors` are the defaults
    for `saltus.fit`. The command line takes scenarios by name: `saltus simulate model.py:ball`.
    """

    system: HybridSystem
    start: Instant | Callable[[Any], Instant]
    p: Params
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
        """The same scenario with the fields named in `changes` replaced."""
        return dataclasses.replace(self, **changes)

    def start_at(self, p: Params) -> Instant:
        """The start for the parameters `p`."""
        return started(self.start, p)

    def solve(self, p: Params = None, t1: Number | None = None, **options: Any) -> Solution:
        """Solve this scenario; `p` and `t1` replace its own, `options` go to `saltus.solve`."""
        p = self.p if p is None else p
        t1 = self.t1 if t1 is None else t1
        if t1 is None:
            raise ValueError(f"{self.name}: no end is given. Write solve(t1=...).")
        options.setdefault("method", self.method)
        return solve(self.system, self.start_at(p), p, t1, **options)


def started(start: Instant | Callable[[Params], Instant], p: Params) -> Instant:
    """The start as an instant, whether it was given as one or as a function of p."""
    return start if isinstance(start, Instant) else start(p)


START = "start."


# -- scenarios ----------------------------------------------------------------------------------
def scenario_names(scenario: Scenario) -> list[str]:
    """Every name that can be set in a scenario: those of p, then `start.` and those of x."""
    x = scenario.start_at(scenario.p).x
    return [*leaf_names(scenario.p, "p"), *(START + name for name in leaf_names(x, "x"))]


def divided(names: Iterable[str], scenario: Scenario) -> tuple[list[str], list[str]]:
    """Names of p, and names of x that were written as `start.name` (here without `start.`)."""
    leaves = _numbers(scenario.p, "p")
    states = _numbers(scenario.start_at(scenario.p).x, "x")
    of_p, of_x = [], []
    for name in names:
        for group, known, part in (
            (of_p, leaves, name),
            (of_x, states, name.removeprefix(START) if name.startswith(START) else ""),
        ):
            entry = ENTRY.fullmatch(part)
            if part in known or (entry and entry[1] in known):
                _locate(known, part)
                group.append(part)
                break
        else:
            raise unknown(name, scenario_names(scenario))
    return of_p, of_x


def override(scenario: Scenario, values: Mapping[str, Any]) -> Scenario:
    """The scenario with new values, say `{"k": 2.0, "start.v": 1.0}`.

    A start that is a function of p stays one; values set in it no longer depend on p.
    """
    of_p, of_x = divided(values, scenario)
    p = with_values(scenario.p, {name: values[name] for name in of_p}, "p")
    changes: dict[str, Any] = {"p": p}
    if of_x:
        first = {name: values[START + name] for name in of_x}

        def start(p: Params) -> Instant:
            now = scenario.start_at(p)
            return now.replace(x=with_values(now.x, first, "x"))

        changes["start"] = start if callable(scenario.start) else start(p)
    return scenario.replace(**changes)
