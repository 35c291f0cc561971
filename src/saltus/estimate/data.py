"""Measurements: from files, frames and arrays to series of numbers with names."""

from __future__ import annotations

import csv
import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..tables import unit_of

TIME = ("t", "time", "Time", "T")
MISSING = ("", "na", "nan", "n/a", "null", "none", "-")
HEADER = re.compile(r"^(?P<name>.*?)\s*(?:\[(?P<unit>[^\[\]]*)\])?$")


class Measured(NamedTuple):
    """One output as it was measured."""

    t: np.ndarray
    y: np.ndarray
    sd: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """One run of the real system: what was measured, and how it was run.

    `data` is the path of a CSV file, a data frame, a mapping of columns with the times under "t",
    or a mapping `{output: (times, values)}` where outputs have times of their own. NaN and empty
    cells are missing. `start` (an `Instant` or a function of p), `set` (parameters that differ in
    this run, by name) and `t1` are its own; what is not given is the model's. `events` are observed
    event times, `{"bounce": [0.64, 1.5]}` or a table with columns `t` and `event`. `sd` are
    standard deviations of the measurements: a number per output, or an array per point; those of
    event times under the event's name. `columns` renames columns, `{"height_m": "h"}`; a column
    renamed to None is left out.
    """

    data: Any = None
    start: Any = None
    set: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    t1: float | None = None
    events: Any = None
    sd: Mapping[str, Any] | float | None = None
    columns: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    name: str | None = None


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


# -- tables ---------------------------------------------------------------------------------------
def read_csv(path: Any) -> dict[str, Any]:
    """The columns of a CSV file; columns of words stay words."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"data: there is no file {path}.")
    text = path.read_text(encoding="utf-8-sig")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if len(lines) < 2:
        raise ValueError(f"data: {path} has no rows under a header.")
    mark = max(",;\t", key=lines[0].count)
    head, *rows = csv.reader(lines, delimiter=mark)
    head = [h.strip() for h in head]
    short = [k for k, row in enumerate(rows, 2) if len(row) != len(head)]
    if short:
        raise ValueError(
            f"data: {path} has {len(head)} columns, but line {short[0]} has "
            f"{len(rows[short[0] - 2])} cells."
        )
    columns = zip(*rows, strict=True)
    return {h: _cells(cells, mark) for h, cells in zip(head, columns, strict=True)}


def _cells(cells: Sequence[str], mark: str) -> np.ndarray:
    """Numbers where all cells are numbers (with a decimal comma in files of semicolons)."""
    words = [c.strip() for c in cells]
    try:
        return np.array(
            [
                np.nan if w.lower() in MISSING else float(w.replace(",", ".") if mark == ";" else w)
                for w in words
            ]
        )
    except ValueError:
        return np.array(words, dtype=object)


def _table(data: Any) -> dict[str, Any]:
    """Any table as a mapping of columns."""
    if isinstance(data, str | Path):
        return read_csv(data)
    if hasattr(data, "columns") and hasattr(data, "index"):  # a data frame
        table = {str(c): data[c].to_numpy() for c in data.columns}
        names = [split(c)[0] for c in table]
        index = str(data.index.name or "")
        if any(name in TIME for name in names):
            return table
        if split(index)[0] in TIME or getattr(data.index.dtype, "kind", "") == "f":
            return {index or "t": data.index.to_numpy(), **table}
        return table
    if isinstance(data, Mapping):
        return dict(data)
    raise TypeError(
        f"data: {type(data).__name__} is not a table. Give the path of a CSV file, a data frame, "
        'or a mapping {"t": times, "h": values}.'
    )


def split(header: str) -> tuple[str, str]:
    """`h [m]` as name and unit; `q[0]` is a name."""
    found = HEADER.match(header.strip())
    name, unit = (found["name"], found["unit"]) if found else (header, None)
    if unit is None or re.fullmatch(r"[\d,\s]+", unit):
        return header.strip(), ""
    return name, unit


def series(experiment: Experiment, outputs: Sequence[str], units: Any) -> dict[str, Measured]:
    """The measured outputs of an experiment, by the model's names, without missing values."""
    if experiment.data is None:
        return {}
    table = _table(experiment.data)
    renamed = dict(experiment.columns)
    columns: dict[str, Any] = {}
    for header, values in table.items():
        name, unit = split(header)
        name = renamed.get(header, renamed.get(name, name))
        if name is not None:
            columns[_output(name, unit, outputs, units)] = values
    t = columns.pop("t", None)
    found = {}
    for name, values in columns.items():
        times, values = values if isinstance(values, tuple) else (t, values)
        if times is None:
            raise ValueError(
                f"data: no times for {name}. Call the time column t, or give "
                f'{{"{name}": (times, values)}}.'
            )
        found[name] = _clean(experiment, name, times, values)
    return {name: m for name, m in found.items() if m.t.size}


def _output(name: str, unit: str, outputs: Sequence[str], units: Any) -> str:
    """The model's name for a column."""
    if name in TIME and name not in outputs:
        _same_unit(name, "t", unit, units)
        return "t"
    ends = [o for o in outputs if o.rpartition(".")[2] == name]
    aliases = {"x" + o[1:]: o for o in outputs if o.startswith("y[")} | {"x": "y"}
    known = name if name in outputs else ends[0] if len(ends) == 1 else aliases.get(name, "")
    if known not in outputs:
        near = difflib.get_close_matches(name, outputs, n=2, cutoff=0.5)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(
            f'data: column "{name}" is no output of the model, which are {", ".join(outputs)}.'
            f'{hint} Rename it, Experiment(columns={{"{name}": ...}}) (None leaves it out), or add '
            "it to output= of the system."
        )
    _same_unit(name, known, unit, units)
    return known


def _same_unit(name: str, known: str, unit: str, units: Any) -> None:
    own = unit_of(units, known)
    if unit and own and unit.replace(" ", "") != own.replace(" ", ""):
        raise ValueError(
            f'data: column "{name}" is in {unit}, the model has {known} in {own}. '
            "Convert the column, or correct the unit."
        )


def _times(name: str, given: Any) -> np.ndarray:
    """Times as numbers."""
    given = np.asarray(given)
    if given.dtype.kind in "mM":
        raise ValueError(
            f"data: times of {name} are dates. Convert them to numbers since the start: "
            "(t - t[0]).total_seconds()."
        )
    if given.dtype == object or given.dtype.kind in "US":
        raise ValueError(f"data: times of {name} have cells that are not numbers.")
    return given.astype(float)


def _clean(experiment: Experiment, name: str, times: Any, values: Any) -> Measured:
    times, values = _times(name, times), np.asarray(values)
    if values.dtype == object:
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
        for header, values in _table(given).items():
            name, unit = split(header)
            table[name] = values
            if name in TIME:
                _same_unit(name, "t", unit, units)
        if "event" not in table or not any(name in table for name in TIME):
            raise ValueError(
                "events: expected columns t and event, or a mapping {name: times}; got "
                f"{', '.join(table)}."
            )
        t = _times("events", next(table[name] for name in TIME if name in table))
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


def _no_event(name: str, events: Sequence[str]) -> str:
    return (
        f'events: no event of the model is called "{name}"; it has {", ".join(events) or "none"}.'
    )
