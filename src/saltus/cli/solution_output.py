"""Solutions as output of the command line: solved, sampled, written to a folder, as JSON."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..base.extras import MissingExtra
from ..base.names import named
from ..base.results import Result, SolveError
from ..base.types import Tree
from ..estimate.monitor import said
from ..solution.csv_files import write_events, write_trajectory
from ..solution.description import algebraic_names, event_name, mode_name
from ..solution.event_log import EventLog
from ..solution.frames import labelled
from ..solution.plotting import MAX_PANELS, pyplot
from ..solution.solution import Solution
from ..system.hybrid import Instant
from .command import JSON, by_name, plain
from .options import Setup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAVED_POINTS = 201


@dataclasses.dataclass(frozen=True)
class Solved:
    """A solution, why it stopped early, if it did, and the times at which it is sampled.

    Without `ts` these are `points` times, from the start to the last time reached.
    """

    sol: Solution
    error: SolveError | None
    ts: np.ndarray | None = None
    points: int = SAVED_POINTS

    @functools.cached_property
    def samples(self) -> tuple[np.ndarray, Tree]:
        """Times that were reached, and the outputs there."""
        sol = self.sol
        if self.ts is None:
            t = np.linspace(float(sol.start), float(sol.last.t), self.points)
            return t, sol(t)
        keep = np.asarray(sol.reached)
        return np.asarray(sol.t)[keep], jax.tree.map(lambda v: np.asarray(v)[keep], sol.y)


def solved(setup: Setup, ts: np.ndarray | None = None, points: int | None = None) -> Solved:
    """Solve; if that fails, keep the partial solution."""
    error = None
    with said(f"simulating {setup.scenario.name}"):
        try:
            sol = setup.scenario.solve(ts=ts)
        except SolveError as stop:
            assert isinstance(stop.solution, Solution)
            sol, error = stop.solution, stop
    return Solved(sol, error, ts, points or SAVED_POINTS)


# -- files --------------------------------------------------------------------------------------
def write(run: Solved, folder: Path) -> tuple[list[Path], list[str]]:
    """Writes a solution to files in `folder`; returns them, and notes on what is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    sol = run.sol
    files = [
        write_trajectory(folder / "trajectory.csv", *run.samples, sol.units),
        write_events(folder / "events.csv", sol.events),
        sol.save(folder / "solution.npz"),
    ]
    names = list(named(sol.y, "y"))
    figure, notes = picture(folder / "trajectory.png", lambda: sol.plot(*names[:MAX_PANELS]))
    if figure and len(names) > MAX_PANELS:
        notes.append(f"{figure.name} shows the first {MAX_PANELS} of {len(names)} outputs.")
    return [*files, *([figure] if figure else [])], notes


def picture(path: Path, draw: Callable[[], Figure]) -> tuple[Path | None, list[str]]:
    """Writes a figure to a file; returns it, or a note why it is missing."""
    os.environ.setdefault("MPLBACKEND", "Agg")  # files only, no window
    try:
        plt = pyplot()
        figure = draw()
        figure.savefig(path)
        plt.close(figure)
    except MissingExtra as error:
        return None, [f"{path.name} was left out: {error}"]
    return path, []


def files_line(files: list[Path]) -> str:
    """What was written where, in one line."""
    return f"Written to {files[0].parent}: {', '.join(f.name for f in files)}"


# -- JSON ---------------------------------------------------------------------------------------
def as_data(run: Solved) -> dict[str, Any]:
    """A solution as a JSON object."""
    sol = run.sol
    result = Result(int(sol.result))
    last = sol.last
    stats = ("steps", "rejected", "evaluations", "events")
    t, y = run.samples
    return {
        "result": result.name,
        "ok": result.ok,
        "message": str(run.error) if run.error else result.message,
        "t0": float(sol.start),
        "t": float(last.t),
        "final": _states(last.x, last.z),
        **({"mode": mode_name(sol, last.mode)} if sol.modes else {}),
        **({} if sol.integral is None else {"integral": by_name(sol.integral, "integral")}),
        "events": events_as_data(sol.events),
        "saved": plain({"t": t, **labelled(y, 1, None)}),
        "units": dict(sol.units or ()),
        "stats": {name: int(getattr(sol.stats, name)) for name in stats},
    }


def _states(x: Tree, z: Tree) -> dict[str, JSON]:
    """Differential and algebraic states by name."""
    algebraic = algebraic_names(Instant(0.0, x, z))
    return {**by_name(x, "x"), **{name: plain(value) for name, value in algebraic.items()}}


def events_as_data(log: EventLog) -> list[dict[str, Any]]:
    """The event log, a JSON object per event."""
    rows = []
    for k in range(int(log.count)):
        sides = {}
        for side, now in (("before", log.before), ("after", log.after)):
            sides[side] = _states(*jax.tree.map(lambda v: v[k], (now.x, now.z)))  # noqa: B023
            if log.modes:
                sides[side]["mode"] = mode_name(log, now.mode[k])
        rows.append({"t": float(log.t[k]), "event": event_name(log, k), **sides})
    return rows
