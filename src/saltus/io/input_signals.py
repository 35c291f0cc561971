"""Columns of tables as inputs of a model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np

from ..base.names import unit_of
from ..base.types import Units
from ..system.inputs import Ramps, Steps
from .data_files import Table, TableLike, numbers, table_of, time_header
from .data_times import Time, converted, model_times, read_times
from .units import split


def steps(
    data: TableLike,
    column: str,
    *,
    time: str = "",
    t0: Time = None,
    units: Units = None,
) -> Steps:
    """A column of a table as a piecewise constant input: each value holds until the next.

    `data` is the path of a CSV or Parquet file, a data frame, or a mapping of columns. `column` is
    the header of the values, with or without its unit. `time` is the header of the times; by
    default t, time or Time, or the index of a data frame. `t0` is the time or date that becomes
    zero in the model. `units` are those of the model, `{"t": "s", "u": "V"}`; columns are converted
    to them. Without `units` numbers stay as they are, with a warning if a header has a unit.
    """
    return Steps(*_signal(data, column, time, t0, units))


def ramps(
    data: TableLike,
    column: str,
    *,
    time: str = "",
    t0: Time = None,
    units: Units = None,
) -> Ramps:
    """A column of a table as a piecewise linear input.

    `data`, `column`, `time`, `t0` and `units` are as in `steps`.
    """
    return Ramps(*_signal(data, column, time, t0, units))


def _signal(
    data: TableLike, column: str, time: str, t0: Time, units: Units
) -> tuple[np.ndarray, np.ndarray]:
    table = table_of(data)
    names: dict[str, str | None] = {h: split(h)[0] for h in table}
    wanted = _called(column, names)
    when = _called(time, names) if time else time_header(table, names)
    if when is None:
        other = next((str(n) for h, n in names.items() if h != wanted), "...")
        raise ValueError(
            f"data: no column of times is called t, time or Time; there are "
            f'{", ".join(map(str, names.values()))}. Say which it is: time="{other}".'
        )
    _warn_unconverted(column, split(wanted)[1], table, when, units)
    values = converted(column, column, table[wanted], split(wanted)[1], units, table.place)
    values = numbers(column, values, table.place)
    given = read_times(column, table[when], split(when)[1], units, table.place)
    t = model_times(column, given, t0, units)
    keep = np.flatnonzero(np.isfinite(values) & np.isfinite(t))
    order = keep[np.argsort(t[keep], kind="stable")]
    again = np.flatnonzero(np.diff(t[order]) == 0)
    if again.size:
        k, j = order[again[0]], order[again[0] + 1]
        raise ValueError(
            f'data: {table.place(j)}: the time of "{column}" is the same as in {table.place(k)}, '
            "expected one value at each time. Drop one of them."
        )
    return t[order], values[order]


def _warn_unconverted(column: str, unit: str, table: Table, when: str, units: Units) -> None:
    """A warning if headers have units, and nobody said which units the model has."""
    clock = split(when)[1]
    found = {"t": "" if clock == "s" else clock, split(column)[0]: unit}
    missing = {name: own for name, own in found.items() if own and not unit_of(units, name)}
    if missing:
        entries = ", ".join(f'"{name}": "{own}"' for name, own in missing.items())
        warnings.warn(
            f'data: "{column}" was not converted: its columns are in '
            f"{' and '.join(missing.values())}, and units= does not say which units the model has. "
            f"Write units={{{entries}}} if it has the same, or its own units instead.",
            stacklevel=4,
        )


def _called(name: str, names: Mapping[str, str | None]) -> str:
    """The header of the column called `name`, with or without its unit."""
    for header, own in names.items():
        if name in (header, own):
            return header
    there = ", ".join(map(str, names.values()))
    raise ValueError(f'data: no column is called "{name}"; there are {there}.')
