"""From the arguments of `fit` to experiments as arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from ..base.names import with_values
from ..base.types import Array, Params, Tree
from ..methods.method import Method
from ..solver.scenario import Scenario, started
from ..solver.solving import solve
from ..system.hybrid import HybridSystem, Instant
from .data import DataLike, Experiment, Measured, StartLike, experiments
from .data_notes import notes
from .experiments import Run, Shape, columns, make_run
from .measurements import event_times, series
from .noise import first_noise, given_noise
from .parameters import Free
from .selection import BoundsLike, FreeNames, choose


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """Everything that a fit starts with."""

    scenario: Scenario
    experiments: list[Experiment]
    starts: list[StartLike]  # Instants, or functions of p
    parameters: list[Params]  # p of each experiment, with what it sets
    measured: list[dict[str, Measured]]
    events: list[dict[str, Measured]]
    ends: list[float]
    free: Free
    known: dict[str, float]
    noise: dict[str, float]
    shapes: list[Shape]
    runs: list[Run]
    note: str = ""  # on data that were left out


def scenario_of(
    model: Scenario | HybridSystem,
    p: Params,
    start: StartLike | None,
    t1: float | None,
    method: Method | None,
) -> Scenario:
    """The model as a scenario, with the given values in place of its own."""
    if isinstance(model, HybridSystem):
        missing = [n for n, v in (("p", p), ("start", start)) if v is None]
        if missing or start is None:
            raise TypeError(
                f"fit: a HybridSystem needs {' and '.join(missing)}. Write saltus.fit(system, "
                "data, p, start=saltus.Instant(t=0.0, x=...)), or give a saltus.Scenario."
            )
        return Scenario(model, start, p, t1, method)
    if not isinstance(model, Scenario):
        raise TypeError(
            f"fit: the model is {type(model).__name__}, expected a Scenario or a HybridSystem."
        )
    given = {"p": p, "start": start, "t1": t1, "method": method}
    return model.replace(**{k: v for k, v in given.items() if v is not None})


def set_up(
    scenario: Scenario,
    data: DataLike | Experiment | Sequence[DataLike | Experiment],
    t1: float | None,
    free: FreeNames,
    bounds: BoundsLike,
    scales: Mapping | None,
    priors: Mapping | None,
    noise: float | Mapping[str, float] | None,
) -> Setup:
    """Match data and model, choose the free numbers, and convert everything to arrays."""
    listed = experiments(data)
    if t1 is not None:
        listed = [e if e.t1 is not None else dataclasses.replace(e, t1=float(t1)) for e in listed]
    starts, parameters = zip(*(_own(scenario, e) for e in listed), strict=True)
    outputs, names = _outputs(scenario, starts[0], parameters[0])
    measured = [series(e, outputs, scenario.system.units) for e in listed]
    events = [event_times(e, names, scenario.system.units) for e in listed]
    for e, m, v in zip(listed, measured, events, strict=True):
        if not m and not v:
            raise ValueError(f"fit: experiment {e.name} has no measurements.")
    firsts = [float(started(s, p).t) for s, p in zip(starts, parameters, strict=True)]
    ends = [_end(scenario, *given) for given in zip(listed, measured, events, firsts, strict=True)]
    try:
        chosen = choose(
            scenario.p,
            [s if isinstance(s, Instant) else None for s in starts],
            [str(e.name) for e in listed],
            scenario.free if free is None else free,
            {**scenario.bounds, **(bounds or {})},
            {**scenario.scales, **(scales or {})},
            {**scenario.priors, **(priors or {})},
        )
    except ValueError as error:
        raise ValueError(f"fit: {error}") from error
    _check_set(listed, chosen)
    both = list(dict.fromkeys(n for m in (*measured, *events) for n in m))
    known = {**_own_noise(measured, events), **given_noise(noise, both)}
    spans = [b - a for a, b in zip(firsts, ends, strict=True)]
    scale = {**first_noise(measured, events, spans), **known}
    made = [
        make_run(
            scenario.system, chosen, k, parameters[k], starts[k], firsts[k], ends[k], measured[k],
            events[k], scale,
        )
        for k in range(len(listed))
    ]  # fmt: skip
    shapes, runs = zip(*made, strict=True)
    return Setup(
        scenario, listed, list(starts), list(parameters), measured, events, ends, chosen, known,
        scale, list(shapes), list(runs), notes(listed, outputs, scenario.system.units),
    )  # fmt: skip


def _own(scenario: Scenario, e: Experiment) -> tuple[StartLike, Params]:
    """Start and parameters of one experiment."""
    start = scenario.start if e.start is None else e.start
    values = {n: v for n, v in e.set.items() if not n.startswith("start.")}
    own = {n.removeprefix("start."): v for n, v in e.set.items() if n.startswith("start.")}
    p = scenario.p
    for name in [n for n, v in values.items() if isinstance(p, Mapping) and n in p and _is_tree(v)]:
        p = {**p, name: values.pop(name)}
    p = with_values(p, values, "p", any_shape=True) if values else p
    if own:
        start = started(start, p)
        start = start.replace(x=with_values(start.x, own, "x"))
    return start, p


def _own_noise(measured: list, events: list) -> dict[str, float]:
    """Standard deviations of quantities for which every experiment gives its own."""
    every: dict[str, list[Measured]] = {}
    for m in (*measured, *events):
        for name, one in m.items():
            every.setdefault(name, []).append(one)
    own = {}
    for name, several in every.items():
        given = [m.sd for m in several if m.sd is not None]
        if len(given) == len(several) and sum(sd.size for sd in given):
            own[name] = float(np.mean(np.concatenate(given)))
    return own


def _is_tree(value: object) -> bool:
    """Whether a value is more than a number or an array: signals, dicts."""
    return (
        not isinstance(value, list | tuple)
        and not hasattr(value, "dtype")
        and bool(jax.tree.structure(value).num_leaves != 1 or hasattr(value, "__dict__"))
    )


def _check_set(listed: list[Experiment], chosen: Free) -> None:
    free = {b.name for b in chosen.blocks} | set(chosen.names)
    for e in listed:
        both = sorted(set(e.set) & free)
        if both:
            raise ValueError(
                f'fit: experiment {e.name} sets "{both[0]}", which is also free. Leave out one.'
            )


def _outputs(scenario: Scenario, start: StartLike, p: Params) -> tuple[list[str], list[str]]:
    """Names of the outputs and of the events, without simulating."""
    system, first = scenario.system, started(start, p)
    t1 = float(first.t) + 1.0

    def saved(ts: Array) -> Tree:
        return solve(system, first, p, t1, ts=ts, method=scenario.method, throw=False).y

    y = jax.eval_shape(saved, np.array([t1]))
    names = list(columns(jax.tree.map(lambda v: np.zeros(v.shape), y)))
    return names, [e.name for e in system.events]


def _end(
    scenario: Scenario,
    e: Experiment,
    m: Mapping[str, Measured],
    events: Mapping[str, Measured],
    first: float,
) -> float:
    """The end of an experiment: its own, else where its data end."""
    times = [v.t for v in (*m.values(), *events.values()) if v.t.size]
    last = float(max(t.max() for t in times)) if times else first
    begin = float(min(t.min() for t in times)) if times else first
    if begin < first - 1e-12 * max(abs(first), 1.0):
        raise ValueError(
            f"data: experiment {e.name} has a measurement at t = {begin:.6g}, before its start at "
            f"t = {first:.6g}. Move the start, or drop the measurement."
        )
    if e.t1 is not None and e.t1 < last:
        raise ValueError(
            f"data: experiment {e.name} has measurements until t = {last:.6g}, after its end t1 = "
            f"{e.t1:.6g}."
        )
    end = e.t1 if e.t1 is not None else _beyond(scenario, events, first, last)
    if end <= first:
        raise ValueError(
            f"data: experiment {e.name} ends where it starts, at t = {first:.6g}. Give it an end: "
            "Experiment(..., t1=...)."
        )
    return end


def _beyond(scenario: Scenario, events: Mapping[str, Measured], first: float, last: float) -> float:
    """The end of a simulation whose data end with an event: later by half the time since the event
    before, so that a late prediction is included."""
    seen = np.sort(np.concatenate([v.t for v in events.values()] or [np.zeros(0)]))
    if not seen.size or seen[-1] < last:
        return last
    gap = seen[-1] - (seen[-2] if seen.size > 1 else first)
    end = last + 0.5 * gap
    return end if scenario.t1 is None or scenario.t1 <= last else min(end, scenario.t1)
