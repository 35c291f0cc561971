"""Tables as CSV files: every number with all its digits, units in the header."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..base.names import label
from ..base.text import write_columns
from .frames import labelled, labelled_events


def write_trajectory(path: Path, t: Any, y: Any, units: Any) -> Path:
    """Outputs `y` at the times `t`."""
    return write_columns(path, {label("t", units): np.asarray(t), **labelled(y, 1, units)})


def write_events(path: Path, log: Any) -> Path:
    """A line per event: time, name, states before and after."""
    return write_columns(path, labelled_events(log))
