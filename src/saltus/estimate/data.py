"""Measurements: from files, frames and arrays to series of numbers with names."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..base.names import unit_of
from ..io import data_files as files
from ..io.data_files import TIME, Place, Table, Times, read_times, split, table_of

MANY = 8  # columns or notes that are told one by one
PERHAPS_TIME = "T"  # a first column, where nothing else is the time and no output is called so


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
    (extra `units`). Times may be dates: they count in the model's unit of time from `t0`, or from
    the first date of the experiment, which is one for all its outputs and events.
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
class Column(NamedTuple):
    """A measured output as it stands in its table."""

    header: str
    times: Times
    values: np.ndarray
    place: Place


class Read(NamedTuple):
    """A table by the model's names, the names that the model does not have, and notes."""

    columns: dict[str, Column]
    strange: dict[str, str]  # by header
    notes: list[str]


def series(experiment: Experiment, outputs: Sequence[str], units: Any) -> dict[str, Measured]:
    """The measured outputs of an experiment, by the model's names, without missing values."""
    read = _read(experiment, outputs, units)
    if not read.columns and read.strange:
        raise ValueError(_no_output(*next(iter(read.strange.items())), outputs))
    (first, _), sd = _first(experiment, units), _spreads(experiment, outputs, units)
    found = {}
    for name, column in read.columns.items():
        times = files.model_times(name, column.times, experiment.t0, units, first)
        found[name] = _clean(name, column, times, sd)
    return {name: m for name, m in found.items() if m.t.size}


def _names(experiment: Experiment, table: Table) -> dict[str, str | None]:
    """What the columns are called, by header; None for one that is left out."""
    own, renamed = {h: split(h)[0] for h in table}, experiment.columns
    for key in renamed:
        if key not in table and key not in own.values():
            raise ValueError(
                f'data: Experiment(columns={{"{key}": ...}}) names no column of {experiment.name}; '
                f"there are {', '.join(own.values())}.{_did_you_mean(key, [*own.values()])}"
            )
    return {h: renamed.get(h, renamed.get(name, name)) for h, name in own.items()}


def _read(experiment: Experiment, outputs: Sequence[str], units: Any) -> Read:
    """The columns that the model knows, in its units."""
    table = table_of(experiment.data)
    names = _names(experiment, table)
    known = {h: _output(name, outputs) for h, name in names.items()}
    when = _time(table, {h: None if known[h] else name for h, name in names.items()})
    read, times = Read({}, {}, [table.note] if table.note else []), None
    if when:
        times = read_times("t", table[when], split(when)[1], units, table.place)
        if names[when] == PERHAPS_TIME:
            read.notes.append(f"The column {when} was taken for the times")
    other = next((h for h in table if known[h] is None), "...")
    for header, name in names.items():
        output, index = known[header], header == table.index
        if name is None or header == when or (index and when and output is None):
            continue
        if output in read.columns or (when and output is None and name in TIME):
            raise ValueError(
                f'data: two columns are "{output or "t"}" of the model. Leave one of them out.'
            )
        if output is None and name != split(header)[0]:  # so columns= says
            raise ValueError(_no_output(header, name, outputs))
        if output is None:
            read.strange[header] = name
            continue
        read.columns[output] = _column(table, header, output, times, units, other)
        unit = split(header)[1]
        if unit and files.ROUND.match(header) and not unit_of(units, output):
            read.notes.append(f'The column "{header}" was read as {output} in {unit}')
    return read


def _column(
    table: Table, header: str, name: str, times: Times | None, units: Any, other: str
) -> Column:
    """A column that the model knows; `other` is one that may be the times."""
    values, place = table[header], table.place
    if isinstance(values, tuple):
        place, (given, values) = _of(name), values
        times = read_times(name, given, "", units, place)
    if times is None:
        raise ValueError(
            f"data: no times for {name}: no column is called t, time or Time; there are "
            f'{", ".join(table)}. Write Experiment(columns={{"{other}": "t"}}), or give '
            f'{{"{name}": (times, values)}}.'
        )
    values = files.converted(split(header)[0], name, values, split(header)[1], units, place)
    return Column(header, times, files.numbers(header, values, place), place)


def _of(name: str) -> Place:
    return lambda k: f"value {k + 1} of {name}"


def _time(table: Table, names: Mapping[str, str | None]) -> str | None:
    """The header of the times, of columns that are no outputs; T only where it comes first."""
    found, first = files.time_header(table, names), next(iter(table), "")
    perhaps = names.get(first) == PERHAPS_TIME and not isinstance(table[first], tuple)
    return first if found is None and perhaps else found


def _output(name: str | None, outputs: Sequence[str]) -> str | None:
    """The model's name for a column; None if it has none."""
    if name in TIME and name not in outputs:
        return None
    ends = [o for o in outputs if o.rpartition(".")[2] == name]
    aliases = {"x" + o[1:]: o for o in outputs if o.startswith("y[")} | {"x": "y"}
    known = name if name in outputs else ends[0] if len(ends) == 1 else aliases.get(name or "", "")
    return known if known in outputs else None


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _no_output(header: str, name: str, outputs: Sequence[str]) -> str:
    return (
        f'data: column "{name}" is no output of the model, which are {", ".join(outputs)}.'
        f'{_did_you_mean(name, outputs)} Rename it, Experiment(columns={{"{header}": ...}}) (None '
        f"leaves it out), or add it to output= of the system.{_brackets([header])}"
    )


def _brackets(headers: Iterable[str]) -> str:
    """How units are written, where something in parentheses may be one."""
    for found in filter(None, map(files.ROUND.match, headers)):
        if not split(found[0])[1]:
            return (
                f" If ({found['unit']}) is a unit, write [{found['unit']}]; in parentheses they "
                "are read where pint (extra `units`) knows them."
            )
    return ""


def _clean(name: str, column: Column, times: np.ndarray, spreads: Any) -> Measured:
    """Without missing values, in order of time."""
    values, place = column.values, column.place
    if times.shape != values.shape or times.ndim != 1:
        raise ValueError(
            f'data: "{name}" has {values.shape} values at {times.shape} times; expected one axis '
            "of equal length."
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


def _spreads(experiment: Experiment, outputs: Sequence[str], units: Any) -> Any:
    """The given standard deviations, by the model's names."""
    if not isinstance(experiment.sd, Mapping):
        return experiment.sd
    events = _observed(experiment, units)
    for name in experiment.sd:
        near = difflib.get_close_matches(name, outputs, n=1, cutoff=0.7)
        if near and _output(name, outputs) is None and name not in events:
            raise ValueError(f'data: sd names "{name}". Did you mean {near[0]}?')
    return {_output(name, outputs) or name: sd for name, sd in experiment.sd.items()}


def _deviation(sd: Any, name: str, shape: tuple) -> np.ndarray | None:
    given = sd.get(name) if isinstance(sd, Mapping) else sd
    if given is None:
        return None
    given = np.asarray(given, dtype=float)
    if given.shape not in ((), shape):
        raise ValueError(f'data: sd of "{name}" has shape {given.shape}, its values {shape}.')
    return np.broadcast_to(given, shape).copy()


# -- events ---------------------------------------------------------------------------------------
def event_times(
    experiment: Experiment, events: Sequence[str], units: Any = None
) -> dict[str, Measured]:
    """Observed event times by the event's name (`pair[3]` is member 3 of a family)."""
    found, (first, _) = {}, _first(experiment, units)
    for name, given in _observed(experiment, units).items():
        if name.partition("[")[0] not in events:
            there = ", ".join(events) or "none"
            raise ValueError(f'events: no event of the model is called "{name}"; it has {there}.')
        times = np.sort(files.model_times(name, given, experiment.t0, units, first))
        sd = experiment.sd if isinstance(experiment.sd, Mapping) else None
        found[name] = Measured(times, times, _deviation(sd, name, times.shape))
    return found


def _observed(experiment: Experiment, units: Any) -> dict[str, Times]:
    """Observed times as they were given, by event."""
    given = experiment.events
    if given is None:
        return {}
    if isinstance(given, Mapping) and not any(split(str(k))[0] == "event" for k in given):
        lists = {str(k): np.atleast_1d(np.asarray(v)) for k, v in given.items()}
        return {
            k: _finite(k, read_times(k, v, "", units, _of(k)), _of(k)) for k, v in lists.items()
        }
    table = table_of(given)
    names: dict[str, str | None] = {h: split(h)[0] for h in table}
    when, kind = _time(table, names), next((h for h in table if names[h] == "event"), None)
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


# -- when it began --------------------------------------------------------------------------------
def _first(experiment: Experiment, units: Any) -> tuple[float | None, str]:
    """The first date of an experiment in seconds since 1970, None without dates; and its kind."""
    listed = [*_clocks(experiment, units).items(), *_observed(experiment, units).items()]
    kinds = {times.kind: name for name, times in listed if times.values.size}
    if len(kinds) > 1:
        (a, first), (b, second), *_ = kinds.items()
        raise ValueError(
            f"data: the times of {first} are {a}, those of {second} are {b}. Write those of one "
            "experiment in one way, so that they have the same zero."
        )
    kind = next(iter(kinds), files.NUMBERS)
    dates = np.concatenate([np.zeros(0), *(times.values for _, times in listed)])
    dates = dates[np.isfinite(dates)]
    return (float(dates.min()) if dates.size and kind != files.NUMBERS else None), kind


def _clocks(experiment: Experiment, units: Any) -> dict[str, Times]:
    """All times of the data, also beside columns that are not used; dates before numbers."""
    table = table_of(experiment.data)
    names, found, own = _names(experiment, table), {}, {}
    for k, (header, values) in enumerate(table.items()):
        name = names[header]
        if isinstance(values, tuple) and name is not None:
            found[name] = read_times(name, values[0], "", units, _of(name))
        elif name in TIME or (name == PERHAPS_TIME and k == 0) or header == table.index:
            own[header] = read_times(header, values, "", units, table.place)
    dated = {h: times for h, times in own.items() if times.kind != files.NUMBERS}
    return {**found, **(dated or dict(list(own.items())[:1]))}


# -- notes ----------------------------------------------------------------------------------------
def ignored(listed: Sequence[Experiment], outputs: Sequence[str], units: Any) -> str:
    """What to know of the data, in words: what was left out, what counts twice, when t is 0."""
    strange: dict[str, str] = {}
    notes: list[str] = []
    same: dict[Any, str] = {}
    for e in listed:
        read = _read(e, outputs, units)
        strange.update(read.strange)
        own = [*_zero(e, units), *read.notes, *_empty(read), *_repeated(read)]
        notes += [f"{text} ({e.name})" if len(listed) > 1 else text for text in own]
        content = [(n, m.t.tobytes(), m.y.tobytes()) for n, m in series(e, outputs, units).items()]
        content += [(n, t.values.tobytes()) for n, t in _observed(e, units).items()]
        other = same.setdefault(tuple(content), str(e.name))
        if other != e.name:
            notes.append(f"Experiments {other} and {e.name} have the same data: they count twice")
    if len(notes) > MANY:
        notes[MANY:] = [f"There are {len(notes) - MANY} more notes of this kind"]
    return _unused(strange, outputs) + "".join(f" {text}." for text in notes)


def _zero(e: Experiment, units: Any) -> list[str]:
    first, kind = _first(e, units)
    if first is None or e.t0 is not None:
        return []
    date = files.EPOCH + datetime.timedelta(microseconds=round(first * 1e6))
    zone = "Z" if kind == files.ZONED else ""
    return [f"Dates count from the first: t = 0 is {date.isoformat()}{zone}"]


def _empty(read: Read) -> list[str]:
    empty = [c.header for c in read.columns.values() if not np.isfinite(c.values).any()]
    return [f"Empty columns were not used: {', '.join(empty)}"] if empty else []


def _repeated(read: Read) -> list[str]:
    """Rows with the same time and the same values."""
    notes = []
    for clock in {id(c.times): c.times for c in read.columns.values()}.values():
        columns = [c for c in read.columns.values() if c.times is clock]
        rows = np.stack([clock.values, *(c.values for c in columns)], axis=1)
        kept = np.flatnonzero(np.isfinite(rows[:, 1:]).any(axis=1))
        _, once = np.unique(rows[kept].view(np.int64), axis=0, return_index=True)
        again = np.delete(kept, once)
        if again.size:
            what = "1 row is" if again.size == 1 else f"{again.size} rows are"
            where = columns[0].place(again[0])
            notes.append(f"{what} repeated (the first: {where}): they count twice")
    return notes


def _unused(strange: Mapping[str, str], outputs: Sequence[str]) -> str:
    """Columns that the model does not have."""
    if not strange:
        return ""
    hint = ""
    for header, name in strange.items():
        for near in difflib.get_close_matches(name, outputs, 1, 0.75):
            hint = f' If {name} is {near}, write Experiment(columns={{"{header}": "{near}"}}).'
    few = ", ".join(list(strange.values())[:MANY]) + (", ..." if len(strange) > MANY else "")
    return f" Columns that the model does not have were ignored: {few}.{hint}{_brackets(strange)}"
