"""Tables as CSV files: every number with all its digits, units in the header."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..export import labelled, labelled_events
from ..tables import label


def write_columns(path: Path, columns: Mapping[str, Any]) -> Path:
    """A file with one named column after the other."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(v) for v in row] for row in zip(*columns.values(), strict=True))
    return path


def _cell(value: Any) -> Any:
    """Floats so that they read back as they were; NaN as an empty cell."""
    value = value.item() if hasattr(value, "dtype") else value
    if isinstance(value, float):
        return "" if np.isnan(value) else repr(value)
    return value


def write_trajectory(path: Path, t: Any, y: Any, units: Any) -> Path:
    """Outputs `y` at the times `t`."""
    return write_columns(path, {label("t", units): np.asarray(t), **labelled(y, 1, units)})


def write_events(path: Path, log: Any) -> Path:
    """A line per event: time, name, states before and after."""
    return write_columns(path, labelled_events(log))
