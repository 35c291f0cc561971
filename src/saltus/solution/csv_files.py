"""Tables as CSV files: every number with all its digits, units in the header."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..base.names import label
from ..base.text import write_columns
from ..base.types import HostArray, Tree, Units
from .frames import labelled, labelled_events

if TYPE_CHECKING:
    from .event_log import EventLog


def write_trajectory(path: Path, t: HostArray, y: Tree, units: Units) -> Path:
    """Outputs `y` at the times `t`."""
    return write_columns(path, {label("t", units): np.asarray(t), **labelled(y, 1, units)})


def write_events(path: Path, log: EventLog) -> Path:
    """A line per event: time, name, states before and after."""
    return write_columns(path, labelled_events(log))
