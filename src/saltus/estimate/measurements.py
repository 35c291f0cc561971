"""Measurements: from files, data frames and arrays to named series of numbers."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

import numpy as np

from ..base.types import Units
from ..io.data_files import TIME, Place, table_of
from ..io.data_times import NUMBERS, Times, Zero, first_of, model_times, read_times
from ..io.units import split
from .data import Experiment, Measured, Spreads
from .data_columns import (
    PERHAPS_TIME,
    Column,
    names_of,
    no_output,
    output_of,
    place_of,
    read_columns,
    time_of,
)


# -- outputs --------------------------------------------------------------------------------------
def series(experiment: Experiment, outputs: Sequence[str], units: Units) -> dict[str, Measured]:
    """The measured outputs of an experiment, by the model's names, without missing values."""
    read = read_columns(experiment, outputs, units)
    if not read.columns and read.strange:
        raise ValueError(no_output(*next(iter(read.strange.items())), outputs))
    (first, _), sd = first_date(experiment, units), _spreads(experiment, outputs, units)
    found = {}
    for name, column in read.columns.items():
        times = model_times(name, column.times, experiment.t0, units, first)
        found[name] = _clean(name, column, times, sd)
    return {name: m for name, m in found.items() if m.t.size}


def _clean(name: str, column: Column, times: np.ndarray, spreads: Spreads) -> Measured:
    """One measured output without missing values, in order of time."""
    values, place = column.values, column.place
    if times.shape != values.shape or times.ndim != 1:
        raise ValueError(
            f'data: "{name}" has values of shape {values.shape} and times of shape {times.shape}, '
            "expected one axis of equal length."
        )
    sd = _deviation(spreads, name, values.shape)
    for k in np.flatnonzero(np.isinf(values)):
        raise ValueError(
            f'data: {place(k)}: the value of "{name}" is infinite. Missing ones are NaN or empty.'
        )
    keep = np.isfinite(values)
    for k in np.flatnonzero(keep & ~np.isfinite(times)):
        raise ValueError(
            f'data: {place(k)}: "{name}" has a value without a time. Give one, or leave it out.'
        )
    if sd is not None:
        keep &= np.isfinite(sd)
        sd = sd[keep]
        if np.any(sd <= 0):
            raise ValueError(f'data: sd of "{name}" must be positive.')
    order = np.argsort(times[keep], kind="stable")
    return Measured(times[keep][order], values[keep][order], None if sd is None else sd[order])


def _spreads(experiment: Experiment, outputs: Sequence[str], units: Units) -> Spreads:
    """The given standard deviations, by the model's names."""
    if not isinstance(experiment.sd, Mapping):
        return experiment.sd
    events = observed(experiment, units)
    for name in experiment.sd:
        near = difflib.get_close_matches(name, outputs, n=1, cutoff=0.7)
        if near and output_of(name, outputs) is None and name not in events:
            raise ValueError(f'data: sd names "{name}". Did you mean {near[0]}?')
    return {output_of(name, outputs) or name: sd for name, sd in experiment.sd.items()}


def _deviation(sd: Spreads, name: str, shape: tuple) -> np.ndarray | None:
    given = sd.get(name) if isinstance(sd, Mapping) else sd
    if given is None:
        return None
    given = np.asarray(given, dtype=float)
    if given.shape not in ((), shape):
        raise ValueError(f'data: sd of "{name}" has shape {given.shape}, its values have {shape}.')
    return np.broadcast_to(given, shape).copy()


# -- events ---------------------------------------------------------------------------------------
def event_times(
    experiment: Experiment, events: Sequence[str], units: Units = None
) -> dict[str, Measured]:
    """Observed event times by the event's name (`pair[3]` is member 3 of a family)."""
    found, (first, _) = {}, first_date(experiment, units)
    for name, given in observed(experiment, units).items():
        if name.partition("[")[0] not in events:
            there = ", ".join(events) or "none"
            raise ValueError(f'events: no event of the model is called "{name}"; it has {there}.')
        times = np.sort(model_times(name, given, experiment.t0, units, first))
        sd = experiment.sd if isinstance(experiment.sd, Mapping) else None
        found[name] = Measured(times, times, _deviation(sd, name, times.shape))
    return found


def observed(experiment: Experiment, units: Units) -> dict[str, Times]:
    """Observed times as they were given, by event."""
    given = experiment.events
    if given is None:
        return {}
    if isinstance(given, Mapping) and not any(split(str(k))[0] == "event" for k in given):
        lists = {str(k): np.atleast_1d(np.asarray(v)) for k, v in given.items()}
        return {
            k: _finite(k, read_times(k, v, "", units, place_of(k)), place_of(k))
            for k, v in lists.items()
        }
    table = table_of(given)
    names: dict[str, str | None] = {h: split(h)[0] for h in table}
    when, kind = time_of(table, names), next((h for h in table if names[h] == "event"), None)
    if when is None or kind is None:
        raise ValueError(
            "events: expected columns t and event, or a mapping {name: times}; got "
            f"{', '.join(table)}."
        )
    times = read_times("events", table[when], split(when)[1], units, table.place)
    times = _finite("events", times, table.place)
    kinds = np.asarray([str(k) for k in table[kind]])
    return {k: Times(times.values[kinds == k], times.kind) for k in dict.fromkeys(kinds.tolist())}


def _finite(name: str, times: Times, place: Place) -> Times:
    for k in np.flatnonzero(~np.isfinite(times.values)):
        raise ValueError(f'events: {place(k)}: a time of "{name}" is not finite. Leave it out.')
    return times


# -- the first date -------------------------------------------------------------------------------
def first_date(experiment: Experiment, units: Units) -> tuple[Zero, str]:
    """The first date of an experiment (or `None`), and its kind."""
    listed = [*_clocks(experiment, units).items(), *observed(experiment, units).items()]
    kinds = {times.kind: name for name, times in listed if times.values.size}
    if len(kinds) > 1:
        (a, first), (b, second), *_ = kinds.items()
        raise ValueError(
            f"data: the times of {first} are {a}, those of {second} are {b}. Write all times of "
            "an experiment in the same way, so that they have the same zero."
        )
    kind = next(iter(kinds), NUMBERS)
    if kind == NUMBERS:
        return None, kind
    dates = [times.values for _, times in listed if times.kind == kind]
    return first_of(np.concatenate(dates)), kind


def _clocks(experiment: Experiment, units: Units) -> dict[str, Times]:
    """All times of the data, including those of unused columns; dates before numbers."""
    table = table_of(experiment.data)
    names, found, own = names_of(experiment, table), {}, {}
    for k, (header, values) in enumerate(table.items()):
        name = names[header]
        if isinstance(values, tuple) and name is not None:
            found[name] = read_times(name, values[0], "", units, place_of(name))
        elif name in TIME or (name == PERHAPS_TIME and k == 0) or header == table.index:
            own[header] = read_times(header, values, "", units, table.place)
    dated = {h: times for h, times in own.items() if times.kind != NUMBERS}
    return {**found, **(dated or dict(list(own.items())[:1]))}
