"""Results of a solve as differentiable functions of numbers in the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..base.names import entries, leaf_names, named, unknown, value_of, with_values
from ..base.text import number
from ..base.types import Number, Params, Scalar, Tree, Vector
from ..solution.description import algebraic_names, event_name
from ..solution.event_log import EventLog
from ..solution.solution import Solution
from ..solver.scenario import START, Scenario, divided
from ..solver.start import first_state
from ..system.hybrid import Instant


# -- results of a solve -------------------------------------------------------------------------
def quantities(scenario: Scenario, sol: Solution, ts: Iterable[float] = ()) -> dict[str, Scalar]:
    """Outputs, states and integrals at the end, outputs at `ts`, and event times, each a number.

    Outputs have precedence where a state has the same name. `h(0.5)` is an output at a time, and
    `t(bounce #3)` the time of the third bounce. `sol` must save the end only.
    """
    outputs = {} if scenario.system.output is None else named(sol.y, "y")
    states = {**named(sol.final.x, "x"), **algebraic_names(sol.final)}
    integrals = {
        name if name.startswith("integral") else f"integral.{name}": leaf
        for name, leaf in named(sol.integral, "integral").items()
    }
    found = _entries({**states, **outputs, **integrals})
    for t in ts:
        root = "x" if scenario.system.output is None else "y"
        there = _entries(named(sol(t), root))
        found |= {f"{name}({number(t)})": value for name, value in there.items()}
    return found | event_times(sol.events)


def _entries(leaves: dict[str, Any]) -> dict[str, Any]:
    """Every float by its name, arrays entry by entry."""
    found = {}
    for name, leaf in leaves.items():
        if _is_a(leaf, jnp.floating):
            flat = jnp.reshape(leaf, -1)
            found |= {entry: flat[k] for k, entry in enumerate(entries(name, leaf))}
    return found


def event_times(log: EventLog) -> dict[str, Scalar]:
    """The times of all events, counted from 1 for each kind."""
    seen: dict[str, int] = {}
    times = {}
    for k in range(len(log)):
        name = event_name(log, k)
        seen[name] = seen.get(name, 0) + 1
        times[f"t({name} #{seen[name]})"] = log.t[k]
    return times


def chosen(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """The quantities called `names`: `h`, entries of an array `w`, `bounce`, `bounce #3`."""
    known = list(known)
    found = []
    for name in names:
        those = [k for k in known if _means(name, k)]
        if not those:
            kinds = dict.fromkeys(k.partition(" #")[0].removeprefix("t(") for k in known)
            kinds = [k for k in kinds if "(" not in k]
            raise unknown(name, kinds, "result")
        found += those
    return list(dict.fromkeys(found))


def _means(name: str, quantity: str) -> bool:
    starts = (f"{name}(", f"{name}[", f"{name}.", f"t({name} #", f"t({name}[")
    return quantity in (name, f"t({name})") or quantity.startswith(starts)


# -- numbers in the model -----------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Inputs:
    """Numbers of a scenario that are varied, by a vector of changes that is zero for no change.

    A start that is a function of p follows p; a change of `start.v` is added to it.
    """

    scenario: Scenario
    of_p: list[str]
    of_x: list[str]
    ts: Sequence[float] | np.ndarray = ()  # times at which outputs are also results

    @property
    def leaves(self) -> dict[str, Any]:
        """The varied numbers and arrays and their values, by name."""
        p, x = self.scenario.p, self.scenario.start_at(self.scenario.p).x
        in_p = {name: value_of(p, name, "p") for name in self.of_p}
        return in_p | {START + name: value_of(x, name, "x") for name in self.of_x}

    @property
    def names(self) -> list[str]:
        """The name of every number in the vector."""
        return [entry for name, leaf in self.leaves.items() for entry in entries(name, leaf)]

    @property
    def values(self) -> np.ndarray:
        """The values of these numbers."""
        flat = [np.reshape(np.asarray(v, dtype=float), -1) for v in self.leaves.values()]
        return np.concatenate(flat) if flat else np.zeros(0)

    def results(self, change: Vector) -> dict[str, Scalar]:
        """The quantities of the changed model."""
        return quantities(self.scenario, self.solve(change), self.ts)

    def solve(self, change: Vector, **options: Any) -> Solution:
        """The solution of the changed model."""
        moved, at = {}, 0
        for name, leaf in self.leaves.items():
            size = int(np.size(leaf))
            moved[name] = jnp.reshape(change[at : at + size], np.shape(leaf))
            at += size
        s = self.scenario
        p = _shifted(s.p, {name: moved[name] for name in self.of_p}, "p")

        def start(p: Params) -> Instant:
            now = s.start_at(p)
            return now.replace(x=_shifted(now.x, {k: moved[START + k] for k in self.of_x}, "x"))

        return s.replace(start=start).solve(p, **options)


def _shifted(tree: Tree, changes: dict[str, Any], root: str) -> Tree:
    values = {name: value_of(tree, name, root) + change for name, change in changes.items()}
    return with_values(tree, values, root) if values else tree


def inputs(
    scenario: Scenario, names: Sequence[str] | None, ts: Sequence[float] | np.ndarray = ()
) -> Inputs:
    """The numbers called `names`, or all floats of p and of the start.

    Where equations restrict x (index 2), a start cannot be varied number by number.
    """
    if names is not None:
        return Inputs(scenario, *divided(dict.fromkeys(names), scenario), ts)
    start = scenario.start_at(scenario.p)
    rule = first_state(scenario.system, start, scenario.p)[0].constraint
    restricted = rule is not None and rule.highest > 1
    of_x = [] if restricted else floats(start.x, "x")
    return Inputs(scenario, floats(scenario.p, "p"), of_x, ts)


def floats(tree: Tree, root: str) -> list[str]:
    """The names of the numbers that are differentiated by default: all floats."""
    return [k for k in leaf_names(tree, root) if _is_a(value_of(tree, k, root), jnp.floating)]


def whole_numbers(scenario: Scenario) -> list[str]:
    """The names of numbers without a derivative because they are integers."""
    p, x = scenario.p, scenario.start_at(scenario.p).x
    of_p = [k for k in leaf_names(p, "p") if _is_a(value_of(p, k, "p"), jnp.integer)]
    of_x = [k for k in leaf_names(x, "x") if _is_a(value_of(x, k, "x"), jnp.integer)]
    return [*of_p, *(START + name for name in of_x)]


def _is_a(leaf: Number, kind: type) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(leaf), kind))
