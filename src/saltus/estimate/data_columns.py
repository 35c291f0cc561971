"""The columns of a table as outputs of a model: which is which, in which unit, at which times."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..base.names import unit_of
from ..base.types import Units
from ..io.data_files import TIME, Place, Table, numbers, table_of, time_header
from ..io.data_times import Times, converted, read_times
from ..io.units import ROUND, split
from .data import Experiment

PERHAPS_TIME = "T"  # the time if it is the first column, with no other time and no such output


class Column(NamedTuple):
    """A measured output as found in its table."""

    header: str
    times: Times
    values: np.ndarray
    place: Place


class Read(NamedTuple):
    """A table by the model's names, the columns that the model does not have, and notes."""

    columns: dict[str, Column]
    strange: dict[str, str]  # by header
    notes: list[str]


def names_of(experiment: Experiment, table: Table) -> dict[str, str | None]:
    """The names of the columns, by header; `None` for a column that is left out."""
    own, renamed = {h: split(h)[0] for h in table}, experiment.columns
    for key in renamed:
        if key not in table and key not in own.values():
            raise ValueError(
                f'data: Experiment(columns={{"{key}": ...}}) names no column of {experiment.name}; '
                f"there are {', '.join(own.values())}.{_did_you_mean(key, [*own.values()])}"
            )
    return {h: renamed.get(h, renamed.get(name, name)) for h, name in own.items()}


def read_columns(experiment: Experiment, outputs: Sequence[str], units: Units) -> Read:
    """The columns that belong to outputs of the model, in its units."""
    table = table_of(experiment.data)
    names = names_of(experiment, table)
    known = {h: output_of(name, outputs) for h, name in names.items()}
    when = time_of(table, {h: None if known[h] else name for h, name in names.items()})
    read, times = Read({}, {}, [table.note] if table.note else []), None
    if when:
        times = read_times("t", table[when], split(when)[1], units, table.place)
        if names[when] == PERHAPS_TIME:
            read.notes.append(f"The column {when} was read as the times")
        if split(when)[1] not in ("", "s") and not unit_of(units, "t"):
            read.notes.append(
                f'The times "{when}" were not converted: the model gives no unit of t '
                '(units={"t": "s"} of the system)'
            )
    other = next((h for h in table if known[h] is None), "...")
    for header, name in names.items():
        output, index = known[header], header == table.index
        if name is None or header == when or (index and when and output is None):
            continue
        if output in read.columns or (when and output is None and name in TIME):
            raise ValueError(
                f'data: two columns are "{output or "t"}" in the model. Leave one of them out.'
            )
        if output is None and name != split(header)[0]:  # as given by columns=
            raise ValueError(no_output(header, name, outputs))
        if output is None:
            read.strange[header] = name
            continue
        read.columns[output] = _column(table, header, output, times, units, other)
        unit = split(header)[1]
        if unit and ROUND.match(header) and not unit_of(units, output):
            read.notes.append(f'The column "{header}" was read as {output} in {unit}')
    return read


def _column(
    table: Table, header: str, name: str, times: Times | None, units: Units, other: str
) -> Column:
    """A column of the model; `other` is a column that may be the times."""
    values, place = table[header], table.place
    if isinstance(values, tuple):
        place, (given, values) = place_of(name), values
        times = read_times(name, given, "", units, place)
    if times is None:
        raise ValueError(
            f"data: no times for {name}: no column is called t, time or Time; there are "
            f'{", ".join(table)}. Write Experiment(columns={{"{other}": "t"}}), or give '
            f'{{"{name}": (times, values)}}.'
        )
    values = converted(split(header)[0], name, values, split(header)[1], units, place)
    return Column(header, times, numbers(header, values, place), place)


def place_of(name: str) -> Place:
    return lambda k: f"value {k + 1} of {name}"


def time_of(table: Table, names: Mapping[str, str | None]) -> str | None:
    """The header of the times, among columns that are not outputs; T only if it comes first."""
    found, first = time_header(table, names), next(iter(table), "")
    perhaps = names.get(first) == PERHAPS_TIME and not isinstance(table[first], tuple)
    return first if found is None and perhaps else found


def output_of(name: str | None, outputs: Sequence[str]) -> str | None:
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


def no_output(header: str, name: str, outputs: Sequence[str]) -> str:
    return (
        f'data: column "{name}" is not an output of the model; there are {", ".join(outputs)}.'
        f'{_did_you_mean(name, outputs)} Rename it, Experiment(columns={{"{header}": ...}}) (None '
        f"leaves it out), or add it to output= of the system.{bracket_hint([header])}"
    )


def bracket_hint(headers: Iterable[str]) -> str:
    """A hint on how to write units, if something in parentheses may be one."""
    for found in filter(None, map(ROUND.match, headers)):
        if not split(found[0])[1]:
            return (
                f" If ({found['unit']}) is a unit, write [{found['unit']}]; in parentheses, units "
                "are only read if pint (extra `units`) knows them."
            )
    return ""
