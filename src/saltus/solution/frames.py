"""Solutions as pandas and xarray objects and as CSV files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..base.extras import need
from ..base.names import entry_name, label, named, unit_of
from ..base.results import Result
from ..base.text import write_columns
from ..base.tracing import is_traced
from ..base.types import Tree, Units
from .description import algebraic_names, mode_name
from .event_log import EventLog

if TYPE_CHECKING:
    from os import PathLike

    import pandas as pd
    import xarray as xr

    from .files import SavedSolution
    from .solution import Solution


# -- data frames and datasets -------------------------------------------------------------------
def _numbers(tree: Tree, call: str) -> None:
    if is_traced((tree.t, tree.which if isinstance(tree, EventLog) else tree.result)):
        raise TypeError(
            f"{call} needs numbers, but these are traced by jit, vmap or grad. Return what you "
            "need from the traced function, or call it outside."
        )


def _columns(tree: Tree, root: str, axes: int) -> dict[str, np.ndarray]:
    """Every component of every leaf as a column, after `axes` leading axes."""
    columns = {}
    for name, leaf in named(tree, root).items():
        leaf = np.asarray(leaf)
        if leaf.ndim == axes:
            columns[name] = leaf
            continue
        for index in np.ndindex(*leaf.shape[axes:]):
            columns[entry_name(name, index)] = leaf[(..., *index)]
    return columns


def labelled(y: Tree, axes: int, units: Units) -> dict[str, np.ndarray]:
    """The columns of a table of outputs, with units in their names."""
    return {label(k, units): v for k, v in _columns(y, "y", axes).items()}


def to_pandas(sol: Solution | SavedSolution) -> pd.DataFrame:
    """The saved outputs as a data frame."""
    pd = need("pandas", "data", "sol.to_pandas()")
    _numbers(sol, "sol.to_pandas()")
    if np.ndim(sol.result):
        lanes = {k: to_pandas(sol[k]) for k in range(len(sol.result))}
        return pd.concat(lanes, names=["batch"])
    axes = np.ndim(sol.t)
    columns = labelled(sol.y, axes, sol.units)
    index = pd.Index(np.atleast_1d(np.asarray(sol.t)), name=label("t", sol.units))
    return pd.DataFrame({k: np.atleast_1d(v) for k, v in columns.items()}, index=index)


def to_csv(sol: Solution | SavedSolution, path: str | PathLike[str]) -> Path:
    """The saved outputs as a CSV file."""
    _numbers(sol, "sol.to_csv()")
    if np.ndim(sol.result):
        raise ValueError("sol.to_csv(): this is a batch of solutions. Write sol[k].to_csv(path).")
    columns = {label("t", sol.units): sol.t, **labelled(sol.y, np.ndim(sol.t), sol.units)}
    return write_columns(Path(path), {k: np.atleast_1d(v) for k, v in columns.items()})


def _cut(log: EventLog) -> EventLog:
    """Only the entries that are events, without padding."""
    n, count = int(log.count), log.count
    cut = jax.tree.map(lambda v: v[:n] if np.ndim(v) else v, log)
    return dataclasses.replace(cut, count=count)


def _event_columns(log: EventLog) -> dict[str, np.ndarray]:
    """Names and values of the log's columns; a state appears as `h before` and `h after`."""
    log = _cut(log)
    names = [log.names[int(k)] for k in np.asarray(log.which)]
    columns: dict[str, Any] = {"t": np.asarray(log.t), "event": np.asarray(names, dtype=object)}
    if any(log.families):
        columns["member"] = np.asarray(log.member)
    for when, now in (("before", log.before), ("after", log.after)):
        for tree, root in ((now.x, "x"), (algebraic_names(now), "z"), (now.d, "d")):
            for name, value in _columns(tree, root, 1).items():
                columns[f"{name} {when}"] = value
        if log.modes:
            modes = [mode_name(log, k) for k in np.asarray(now.mode)]
            columns[f"mode {when}"] = np.asarray(modes, dtype=object)
    return columns


def _event_unit(log: EventLog, column: str) -> str:
    return unit_of(log.units, column.removesuffix(" before").removesuffix(" after"))


def _one_log(log: EventLog, call: str) -> None:
    _numbers(log, call)
    if np.ndim(log.which) > 1:
        raise ValueError(f"{call}: this is a batch of logs. Use that of one solve: sol[k].events.")


def events_to_pandas(log: EventLog) -> pd.DataFrame:
    """The events as a data frame."""
    pd = need("pandas", "data", "sol.events.to_pandas()")
    _one_log(log, "sol.events.to_pandas()")
    return pd.DataFrame(labelled_events(log))


def labelled_events(log: EventLog) -> dict[str, np.ndarray]:
    """The columns of a table of events, with units in their names."""
    columns = {}
    for name, value in _event_columns(log).items():
        unit = _event_unit(log, name)
        columns[f"{name} [{unit}]" if unit else name] = value
    return columns


def to_xarray(sol: Solution | SavedSolution) -> xr.Dataset:
    """The saved outputs as a dataset."""
    xr = need("xarray", "data", "sol.to_xarray()")
    _numbers(sol, "sol.to_xarray()")
    lanes = np.ndim(sol.result)
    batch = ["batch"] if lanes == 1 else [f"batch{k}" for k in range(lanes)]
    t = np.asarray(sol.t)
    saved = ["t"] if t.ndim > lanes else []
    dims = [*batch, *saved]
    variables = {}
    for name, leaf in named(sol.y, "y").items():
        inner = [f"{name}_{k}" for k in range(np.ndim(leaf) - len(dims))]
        unit = unit_of(sol.units, name)
        variables[name] = ([*dims, *inner], np.asarray(leaf), {"units": unit} if unit else {})
    variables["reached"] = (dims, np.asarray(sol.reached))
    first = t.reshape(-1, t.shape[-1])[0] if saved else t
    same = not saved or np.array_equal(np.broadcast_to(first, t.shape), t)
    unit = unit_of(sol.units, "t")
    attributes = {"units": unit} if unit else {}
    name, axes, times = ("t", saved or dims, first) if same else ("time", dims, t)
    codes = np.asarray(sol.result).reshape(-1)
    results = ", ".join(sorted({Result(int(c)).name for c in codes}))
    return xr.Dataset(variables, {name: (axes, times, attributes)}, attrs={"result": results})


def events_to_xarray(log: EventLog) -> xr.Dataset:
    """The events as a dataset."""
    xr = need("xarray", "data", "sol.events.to_xarray()")
    _one_log(log, "sol.events.to_xarray()")
    variables = {}
    for name, value in _event_columns(log).items():
        unit = _event_unit(log, name)
        value = value.astype(str) if value.dtype == object else value
        variables[name] = ("number", value, {"units": unit} if unit else {})
    return xr.Dataset(variables)
