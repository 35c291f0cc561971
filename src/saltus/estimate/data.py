"""Measurements: from files, frames and arrays to series of numbers with names."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..io.data_files import TIME, Words, converted, model_times, seconds, split, table_of


class Measured(NamedTuple):
    """One output as it was measured."""

    t: np.ndarray
    y: np.ndarray
    sd: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """One run of the real system: what was measured, and how it was run.

    `data` is the path of a CSV or Parquet file, a data frame, a mapping of columns with the times
    under "t", or a mapping `{output: (times, values)}` where outputs have times of their own. NaN
    and empty cells are missing. `start` (an `Instant` or a function of p), `set` (parameters that
    differ in this run, by name) and `t1` are its own; what is not given is the model's. `events`
    are observed event times, `{"bounce": [0.64, 1.5]}` or a table with columns `t` and `event`.
    `sd` are standard deviations of the measurements, in the model's units: a number per output, or
    an array per point; those of event times under the event's name.

    `columns` renames columns, `{"height_m": "h"}`; a column renamed to None is left out, and so is
    one that the model does not have, with a note. Columns in another unit, `h [cm]`, are converted
    (extra `units`). Times may be dates: they count in the model's unit of time from the first, or
    from `t0`.
    """

    data: Any = None
    start: Any = None
    set: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    t1: float | None = None
    events: Any = None
    sd: Mapping[str, Any] | float | None = None
    columns: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    name: str | None = None
    t0: Any = None


def experiments(data: Any) -> list[Experiment]:
    """What was given to `fit`, as a list of experiments with names that differ."""
    several = isinstance(data, Sequence) and not isinstance(data, str)
    listed = list(data) if several else [data]
    if not listed:
        raise ValueError("fit: no data. Give a table, or a list of experiments.")
    made = [e if isinstance(e, Experiment) else Experiment(e) for e in listed]
    names: list[str] = []
    for k, e in enumerate(made):
        name = e.name
        if name is None:
            path = isinstance(e.data, str | Path)
            name = Path(e.data).stem if path else f"run{k + 1}"
        names.append(name if name not in names else f"{name}_{k + 1}")
    return [dataclasses.replace(e, name=n) for e, n in zip(made, names, strict=True)]


# -- outputs --------------------------------------------------------------------------------------
def series(experiment: Experiment, outputs: Sequence[str], units: Any) -> dict[str, Measured]:
    """The measured outputs of an experiment, by the model's names, without missing values."""
    if experiment.data is None:
        return {}
    columns, strange = _columns(experiment, outputs, units)
    t = columns.pop("t", None)
    if not columns and strange:
        raise ValueError(_no_output(strange[0], outputs))
    found = {}
    for name, values in columns.items():
        times, values = values if isinstance(values, tuple) else (t, values)
        if times is None:
            raise ValueError(
                f"data: no times for {name}. Call the time column t, or give "
                f'{{"{name}": (times, values)}}.'
            )
        times = model_times(name, times, experiment.t0, units)
        found[name] = _clean(experiment, name, times, values)
    return {name: m for name, m in found.items() if m.t.size}


def _columns(
    experiment: Experiment, outputs: Sequence[str], units: Any
) -> tuple[dict[str, Any], list[str]]:
    """The columns that the model knows, in its units; and the names of the others."""
    columns: dict[str, Any] = {}
    strange = []
    renamed = dict(experiment.columns)
    for header, values in table_of(experiment.data).items():
        name, unit = split(header)
        asked = header in renamed or name in renamed
        name = renamed.get(header, renamed.get(name, name))
        if name is None:
            continue
        known = _output(name, outputs)
        if known is None and asked:
            raise ValueError(_no_output(name, outputs))
        if known is None:
            strange.append(name)
            continue
        if known in columns:
            raise ValueError(
                f'data: two columns are "{known}" of the model. Leave one of them out.'
            )
        dates = known == "t" and isinstance(values, Words)
        columns[known] = values if dates else converted(name, known, values, unit, units)
    return columns, strange


def ignored(listed: Sequence[Experiment], outputs: Sequence[str], units: Any) -> str:
    """Columns that were not used, in words."""
    names: dict[str, None] = {}
    for e in listed:
        if e.data is not None:
            names.update(dict.fromkeys(_columns(e, outputs, units)[1]))
    if not names:
        return ""
    hint = ""
    for name in names:
        for near in difflib.get_close_matches(name, outputs, 1, 0.75):
            hint = f' If {name} is {near}, write columns={{"{name}": "{near}"}}.'
    few = ", ".join(list(names)[:8]) + (", ..." if len(names) > 8 else "")
    return f" Columns that the model does not have were ignored: {few}.{hint}"


def _output(name: str, outputs: Sequence[str]) -> str | None:
    """The model's name for a column; None if it has none."""
    if name in TIME and name not in outputs:
        return "t"
    ends = [o for o in outputs if o.rpartition(".")[2] == name]
    aliases = {"x" + o[1:]: o for o in outputs if o.startswith("y[")} | {"x": "y"}
    known = name if name in outputs else ends[0] if len(ends) == 1 else aliases.get(name, "")
    return known if known in outputs else None


def _no_output(name: str, outputs: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, outputs, n=2, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return (
        f'data: column "{name}" is no output of the model, which are {", ".join(outputs)}.'
        f'{hint} Rename it, Experiment(columns={{"{name}": ...}}) (None leaves it out), or add '
        "it to output= of the system."
    )


def _clean(experiment: Experiment, name: str, times: np.ndarray, values: Any) -> Measured:
    if isinstance(values, Words):
        raise ValueError(f"data: {values.complaint()}.")
    values = np.asarray(values)
    if values.dtype == object or values.dtype.kind in "USMm":
        raise ValueError(f'data: column "{name}" has cells that are not numbers.')
    values = values.astype(float)
    if times.shape != values.shape or times.ndim != 1:
        raise ValueError(
            f'data: "{name}" has {values.shape} values at {times.shape} times; expected one axis '
            "of equal length."
        )
    sd = _deviation(experiment.sd, name, values.shape)
    if np.any(np.isinf(values)):
        raise ValueError(f'data: "{name}" has infinite values. Missing ones are NaN or empty.')
    keep = np.isfinite(values)
    if not np.all(np.isfinite(times[keep])):
        raise ValueError(f'data: "{name}" has values without a time.')
    if sd is not None:
        keep &= np.isfinite(sd)
        sd = sd[keep]
        if np.any(sd <= 0):
            raise ValueError(f'data: sd of "{name}" must be positive.')
    order = np.argsort(times[keep], kind="stable")
    return Measured(times[keep][order], values[keep][order], None if sd is None else sd[order])


def _deviation(sd: Any, name: str, shape: tuple) -> np.ndarray | None:
    given = sd.get(name) if isinstance(sd, Mapping) else sd
    if given is None:
        return None
    given = np.asarray(given, dtype=float)
    if given.shape not in ((), shape):
        raise ValueError(f'data: sd of "{name}" has shape {given.shape}, its values {shape}.')
    return np.broadcast_to(given, shape).copy()


def event_times(
    experiment: Experiment, events: Sequence[str], units: Any = None
) -> dict[str, Measured]:
    """Observed event times by the event's name (`pair[3]` is member 3 of a family)."""
    given = experiment.events
    if given is None:
        return {}
    if isinstance(given, Mapping) and not any(split(str(k))[0] in ("event",) for k in given):
        lists = {str(k): np.asarray(v, dtype=float) for k, v in given.items()}
    else:
        table = {}
        for header, values in table_of(given).items():
            name, unit = split(header)
            plain = isinstance(values, Words) or name not in TIME
            table[name] = values if plain else converted(name, "t", values, unit, units)
        if "event" not in table or not any(name in table for name in TIME):
            raise ValueError(
                "events: expected columns t and event, or a mapping {name: times}; got "
                f"{', '.join(table)}."
            )
        t = next(table[name] for name in TIME if name in table)
        t = model_times("events", t, experiment.t0, units, _first(experiment))
        kinds = np.asarray([str(k) for k in table["event"]])
        lists = {str(k): t[kinds == k] for k in dict.fromkeys(kinds) if str(k) in events}
        unknown = sorted(set(map(str, kinds)) - set(events))
        if unknown:
            raise ValueError(_no_event(unknown[0], events))
    found = {}
    for name, times in lists.items():
        if name.partition("[")[0] not in events:
            raise ValueError(_no_event(name, events))
        times = np.sort(np.atleast_1d(times))
        if not np.all(np.isfinite(times)):
            raise ValueError(f'events: "{name}" has a time that is not finite. Leave it out.')
        sd = _deviation(
            experiment.sd if isinstance(experiment.sd, Mapping) else None, name, times.shape
        )
        found[name] = Measured(times, times, sd)
    return found


def _first(experiment: Experiment) -> float | None:
    """The first date among the times of the outputs, where they are dates."""
    if experiment.data is None:
        return None
    for header, values in table_of(experiment.data).items():
        if split(header)[0] in TIME:
            times, dates = seconds("t", values)
            return float(np.nanmin(times)) if dates else None
    return None


def _no_event(name: str, events: Sequence[str]) -> str:
    return (
        f'events: no event of the model is called "{name}"; it has {", ".join(events) or "none"}.'
    )
