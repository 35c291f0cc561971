"""Experiments as given by users: what was measured, and how the real system was run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..base.foreign_parts import EXPERIMENT, constructs
from ..base.types import Numbers, Params
from ..io.data_files import TableLike
from ..io.data_times import Time
from ..system.hybrid import Instant

StartLike: TypeAlias = Instant | Callable[[Params], Instant]
DataLike: TypeAlias = TableLike | Mapping[str, tuple]  # a table, or outputs with their own times
Spreads: TypeAlias = Mapping[str, Numbers] | float | None  # standard deviations, of one or of all


class Measured(NamedTuple):
    """One output as it was measured."""

    t: np.ndarray
    y: np.ndarray
    sd: np.ndarray | None = None


@constructs(EXPERIMENT)
@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """One run of the real system: what was measured, and how it was run.

    `data` is the path of a CSV or Parquet file, a data frame, a mapping of columns with the times
    under "t", or a mapping `{output: (times, values)}` if outputs have times of their own. NaN and
    empty cells are missing values. `start` (an `Instant` or a function of p), `set` (parameters
    that differ in this run, by name) and `t1` (its end) replace those of the model. `events` are
    observed event times, `{"bounce": [0.64, 1.5]}` or a table with columns `t` and `event`. `sd`
    are standard deviations of the measurements, in the model's units, by the name of the output or
    event: a number, or an array with one entry per value. `name` is used in messages and reports.

    `columns` renames columns, `{"height_m": "h"}`; a column renamed to None is left out. Columns
    that the model does not have are also left out, with a note. Columns in another unit, `h [cm]`,
    are converted (extra `units`). Times may be dates: they are counted in the model's unit of time
    from `t0`, or from the first date of the experiment, for all its outputs and events.
    """

    data: DataLike = None
    start: StartLike | None = None
    set: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    t1: float | None = None
    events: DataLike = None
    sd: Spreads = None
    columns: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    name: str | None = None
    t0: Time = None


def experiments(data: DataLike | Experiment | Sequence[DataLike | Experiment]) -> list[Experiment]:
    """The data given to `fit`, as a list of experiments with different names."""
    listed = list(data) if isinstance(data, Sequence) and not isinstance(data, str) else [data]
    if not listed:
        raise ValueError("fit: no data. Give a table, or a list of experiments.")
    made = [e if isinstance(e, Experiment) else Experiment(e) for e in listed]
    names: list[str] = []
    for k, e in enumerate(made):
        name = e.name
        if name is None:
            name = Path(e.data).stem if isinstance(e.data, str | Path) else f"run{k + 1}"
        names.append(name if name not in names else f"{name}_{k + 1}")
    return [dataclasses.replace(e, name=n) for e, n in zip(made, names, strict=True)]
