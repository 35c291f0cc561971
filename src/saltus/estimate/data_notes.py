"""Notes on the data: what was left out, what counts twice, when t is 0."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base.types import Units
from ..io.data_times import ZONED, written
from .data import Experiment
from .data_columns import Read, bracket_hint, read_columns
from .measurements import first_date, observed, series

MOST_NOTES = 8  # columns or notes that are listed one by one


def notes(listed: Sequence[Experiment], outputs: Sequence[str], units: Units) -> str:
    """Notes on the data in words: what was left out, what counts twice, when t is 0."""
    strange: dict[str, str] = {}
    found: list[str] = []
    same: dict[Any, str] = {}
    for e in listed:
        read = read_columns(e, outputs, units)
        strange.update(read.strange)
        own = [*_zero(e, units), *read.notes, *_empty(read), *_repeated(read)]
        found += [f"{text} ({e.name})" if len(listed) > 1 else text for text in own]
        content = [(n, m.t.tobytes(), m.y.tobytes()) for n, m in series(e, outputs, units).items()]
        content += [(n, t.values.tobytes()) for n, t in observed(e, units).items()]
        other = same.setdefault(tuple(content), str(e.name))
        if other != e.name:
            found.append(f"Experiments {other} and {e.name} have the same data, which count twice")
    if len(found) > MOST_NOTES:
        found[MOST_NOTES:] = [f"There are {len(found) - MOST_NOTES} more notes of this kind"]
    return _unused(strange, outputs) + "".join(f" {text}." for text in found)


def _zero(e: Experiment, units: Units) -> list[str]:
    first, kind = first_date(e, units)
    if first is None or e.t0 is not None:
        return []
    zone = "Z" if kind == ZONED else ""
    return [f"Dates are counted from the first: t = 0 is {written(first)}{zone}"]


def _empty(read: Read) -> list[str]:
    empty = [c.header for c in read.columns.values() if not np.isfinite(c.values).any()]
    return [f"Empty columns were not used: {', '.join(empty)}"] if empty else []


def _repeated(read: Read) -> list[str]:
    """Rows with the same time and the same values."""
    notes = []
    for clock in {id(c.times): c.times for c in read.columns.values()}.values():
        columns = [c for c in read.columns.values() if c.times is clock]
        rows = np.stack([c.values for c in columns], axis=1)
        kept = np.flatnonzero(np.isfinite(rows).any(axis=1))
        cells = np.column_stack([clock.values.view(np.int64), rows.view(np.int64)])
        _, once = np.unique(cells[kept], axis=0, return_index=True)
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
    few = ", ".join([name or '""' for name in strange.values()][:MOST_NOTES]) + (
        ", ..." if len(strange) > MOST_NOTES else ""
    )
    return (
        f" Columns that the model does not have were ignored: {few}.{hint}{bracket_hint(strange)}"
    )
