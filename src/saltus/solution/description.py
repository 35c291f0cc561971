"""Solutions in words: names, units, numbers, plain-text tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.names import label, named, unit_of
from ..base.results import Result
from ..base.text import number, table
from ..base.tracing import is_traced, is_tracer
from ..base.types import Array, HostArray, Tree, Units, Whole

if TYPE_CHECKING:
    from ..system.hybrid import Instant
    from .event_log import EventLog
    from .files import SavedSolution
    from .solution import Solution, Stats

MAX_QUANTITIES = 8  # in a summary
MAX_EVENT_LINES = 20  # in a log
MAX_ENTRIES = 3  # of an array that a log writes out
MAX_ALGEBRAIC_STATES = 4  # in a log


def mode_name(of: Solution | SavedSolution | EventLog, mode: Whole | HostArray | int) -> str:
    """The name of a mode; its number where a solution or a log (`of`) has no such mode."""
    k = int(mode)
    return of.modes[k] if 0 <= k < len(of.modes) else f"number {k}"


# -- the summary of a solution ------------------------------------------------------------------
def describe(sol: Solution | SavedSolution, stiff: str = "") -> str:
    """What `print(sol)` shows; `stiff` is a remark on why its steps were short."""
    if is_tracer(sol.result):
        head = "Solution, traced: numbers exist when the compiled function runs"
        lines = []
    else:
        codes = np.asarray(sol.result).reshape(-1)
        head = _head(sol, codes)
        lines = [("t", _span(sol)), ("steps", _steps(sol)), ("events", _count(sol))]
        lines[2:2] = [("stiff", stiff)] if stiff else []
    lines += [("final", _values(sol.final.x, sol.units, "x"))]
    if sol.modes and sol.final.mode is not None and not is_traced(sol.final.mode):
        modes = [mode_name(sol, k) for k in np.asarray(sol.final.mode).reshape(-1)[:MAX_QUANTITIES]]
        lines += [("mode", ", ".join(modes))]
    if sol.integral is not None:
        lines += [("integral", _values(sol.integral, sol.units, "integral"))]
    lines += [("saved", _saved(sol))]
    return "\n".join([head, *(f"  {key:<9}{text}" for key, text in lines)])


def _head(sol: Solution | SavedSolution, codes: HostArray) -> str:
    results = [Result(int(c)) for c in codes]
    if np.ndim(sol.result) == 0:
        result = results[0]
        if result.ok or is_traced(sol.last.t):
            return f"Solution: {result.name}. {result.message}"
        unit = unit_of(sol.units, "t")
        return f"Solution: {result.name} at t = {number(sol.last.t)} {unit}".rstrip() + (
            f". {result.message}"
        )
    kinds = [f"{results.count(r)} {r.name}" for r in Result if r in results]
    return f"Solution: a batch of {' x '.join(map(str, sol.result.shape))}: {', '.join(kinds)}"


def _span(sol: Solution | SavedSolution) -> str:
    if is_traced((sol.start, sol.last.t)):
        return "differentiated"
    first, last = np.asarray(sol.start), np.asarray(sol.last.t)
    unit = unit_of(sol.units, "t")
    return f"{_range(first)} to {_range(last)} {unit}".rstrip()


def _range(value: Array | HostArray) -> str:
    """A number, or the range of many."""
    value = np.asarray(value)
    low, high = np.min(value), np.max(value)
    if value.ndim and np.isnan(low) and not np.isnan(value).all():
        return f"{number(np.nanmin(value))}..{number(np.nanmax(value))} or nan"
    return number(low) if low == high or np.isnan(low) else f"{number(low)}..{number(high)}"


def _steps(sol: Solution | SavedSolution) -> str:
    s = sol.stats
    steps, rejected, flows = _range(s.steps), _range(s.rejected), _range(s.evaluations)
    return f"{steps}, {rejected} of them rejected; {flows} evaluations of the flow"


def describe_stats(stats: Stats) -> str:
    """What `print(sol.stats)` shows."""
    names = ("steps", "rejected", "evaluations", "rows", "events")
    values = [getattr(stats, name) for name in names]
    if is_traced(values):
        return f"Stats, traced: {', '.join(names)}"
    return f"Stats({', '.join(f'{k}={_range(v)}' for k, v in zip(names, values, strict=True))})"


def _count(sol: Solution | SavedSolution) -> str:
    total = _range(sol.stats.events)
    if np.ndim(sol.result) or total == "0":
        return total
    which = np.asarray(sol.events.which)
    counts = [(name, int(np.sum(which == k))) for k, name in enumerate(sol.names)]
    return f"{total}: " + ", ".join(f'{n} x "{name}"' for name, n in counts if n)


def _values(tree: Tree, units: Units, root: str) -> str:
    leaves = named(tree, root)
    parts = []
    for name, leaf in list(leaves.items())[:MAX_QUANTITIES]:
        unit = unit_of(units, name)
        what = "" if name == "integral" else f"{name} = "
        if is_traced(leaf):
            parts.append(f"{name}: {leaf.dtype}{list(leaf.shape)}")
        elif np.ndim(leaf) == 0 or np.size(leaf) > 4:
            parts.append(f"{what}{_range(leaf)} {unit}".rstrip())
        else:
            inside = ", ".join(number(v) for v in np.asarray(leaf).reshape(-1))
            parts.append(f"{what}[{inside}] {unit}".rstrip())
    if len(leaves) > MAX_QUANTITIES:
        parts.append(f"and {len(leaves) - MAX_QUANTITIES} more")
    return ", ".join(parts)


def _saved(sol: Solution | SavedSolution) -> str:
    names = list(named(sol.y, "y"))
    names = [*names[:MAX_QUANTITIES], *(["..."] if len(names) > MAX_QUANTITIES else [])]
    times = np.shape(sol.t)[np.ndim(sol.result) :]
    where = f"at {times[0]} times" if times else "at the end"
    return f"{', '.join(names)} {where}"


# -- the event log ------------------------------------------------------------------------------
def describe_events(log: EventLog) -> str:
    """What `print(sol.events)` shows."""
    names = ", ".join(f'"{n}"' for n in log.names) or "none declared"
    if is_traced((log.t, log.which)):
        return f"EventLog, traced: room for {log.which.shape[-1]} events ({names})"
    if np.ndim(log.which) > 1:
        lanes = " x ".join(map(str, log.count.shape))
        return f"EventLog, a batch of {lanes}: {_range(log.count)} events each ({names})"
    count = int(log.count)
    if count == 0:
        return f"EventLog: no events ({names})"
    head = [label("t", log.units), "event", *_columns(log)]
    largest = float(np.max(np.abs(np.asarray(log.t)[:count])))
    decimals = int(np.clip(9 - np.floor(np.log10(largest)), 0, 15)) if largest > 0 else 1
    rows = [event_row(log, k, decimals) for k in range(min(count, MAX_EVENT_LINES))]
    more = f"\n... and {count - MAX_EVENT_LINES} more" if count > MAX_EVENT_LINES else ""
    plural = "s" if count > 1 else ""
    return f"EventLog: {count} event{plural}\n" + table(head, rows, left=(1,)) + more


def _columns(log: EventLog) -> list[str]:
    names = [label(name, log.units) for name in _shown(log.before)]
    return [*names, *(["mode"] if log.modes else [])]


def _shown(now: Instant) -> dict[str, Any]:
    """The states of an instant that the log shows: x, and z where it is small."""
    x, z = dict(list(named(now.x, "x").items())[:MAX_QUANTITIES]), algebraic_names(now)
    return {**x, **z} if len(z) <= MAX_ALGEBRAIC_STATES else x


def algebraic_names(now: Instant) -> dict[str, Any]:
    """The algebraic states by name; `z.v` where x also has a `v`."""
    taken = named(now.x, "x")
    return {f"z.{k}" if k in taken else k: v for k, v in named(now.z, "z").items()}


def event_name(log: EventLog, k: int) -> str:
    """The name of entry `k`, with the member if it is one of a family."""
    which = int(log.which[k])
    member = f"[{int(log.member[k])}]" if log.families[which] else ""
    return log.names[which] + member


def event_row(log: EventLog, k: int, decimals: int) -> list[str]:
    """One line of the log; values that jump show both sides."""
    cells = [f"{float(log.t[k]):.{decimals}f}", event_name(log, k)]
    before, after = _shown(log.before), _shown(log.after)
    for name in before:
        cells.append(_change(np.asarray(before[name][k]), np.asarray(after[name][k])))
    if log.modes:
        a, b = (mode_name(log, now.mode[k]) for now in (log.before, log.after))
        cells.append(a if a == b else f"{a} -> {b}")
    return cells


def _change(a: Array | HostArray, b: Array | HostArray) -> str:
    """A value, or both sides of a jump; for large arrays only how many entries jump."""
    if a.size > MAX_ENTRIES:
        moved = int(np.sum(np.abs(a - b) > 1e-9 * np.maximum(1.0, np.abs(a))))
        return f"{moved} of {a.size} change"
    first, second = _short(a), _short(b)
    return first if first == second else f"{first} -> {second}"


def _short(value: Array | HostArray) -> str:
    value = np.where(np.abs(value) < 1e-12, 0.0, value)
    if value.ndim == 0:
        return number(value)
    return "[" + ", ".join(number(v, 4) for v in value.reshape(-1)) + "]"
