"""Tables as people have them: CSV and Parquet files, dates, units, columns as input signals."""

from __future__ import annotations

import csv
import datetime
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..extras import need
from ..signals import Ramps, Steps
from ..tables import unit_of

TIME = ("t", "time", "Time", "T")
MISSING = ("", "na", "nan", "n/a", "null", "none", "-")
HEADER = re.compile(r"^(?P<name>.*?)\s*(?:\[(?P<unit>[^\[\]]*)\])?$")
SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "min": 60.0, "h": 3600.0, "d": 86400.0, "day": 86400.0}
EPOCH = datetime.datetime(1970, 1, 1)


class Words:
    """A column of a file in which not every cell is a number."""

    def __init__(
        self, cells: Sequence[str], file: Path, lines: Sequence[int], header: str, mark: str = ","
    ):
        self.cells, self.file, self.lines, self.header = list(cells), file, list(lines), header
        self.mark = mark  # between cells

    def __iter__(self) -> Any:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array(self.cells, dtype=object)

    def has_numbers(self) -> bool:
        """Whether some of its cells are."""
        return any(
            cell.lower() not in MISSING and _number(cell, self.mark) is not None for cell in self
        )

    def complaint(self) -> str:
        """The first cell that is no number, and where it stands."""
        k = next((k for k, cell in enumerate(self.cells) if _number(cell, self.mark) is None), 0)
        return (
            f'{self.file}, line {self.lines[k]}, column "{self.header}": "{self.cells[k]}" is not '
            "a number. Missing values are empty cells or NaN"
        )


def read_table(path: Any) -> dict[str, Any]:
    """The columns of a CSV or Parquet file by their headers."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"data: there is no file {path}.")
    if path.suffix.lower() in (".parquet", ".pq"):
        module = need("pyarrow.parquet", "data", f"reading {path.name}")
        table = module.read_table(path)
        return {name: table.column(name).to_numpy() for name in table.column_names}
    return read_csv(path)


def read_csv(path: Any) -> dict[str, Any]:
    """The columns of a CSV file: numbers, or `Words` where a cell is none."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"data: there is no file {path}.")
    text = path.read_text(encoding="utf-8-sig")
    lines = [
        (k, line)
        for k, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.startswith("#")
    ]
    if len(lines) < 2:
        raise ValueError(f"data: {path} has no rows under a header.")
    mark = max(",;\t", key=lines[0][1].count)
    head, *rows = csv.reader([line for _, line in lines], delimiter=mark)
    head, numbers = [h.strip() for h in head], [k for k, _ in lines[1:]]
    twice = [h for k, h in enumerate(head) if h in head[:k]]
    if twice:
        raise ValueError(f'data: {path} has two columns called "{twice[0]}". Rename one of them.')
    for k, row in zip(numbers, rows, strict=True):
        if len(row) != len(head):
            missing = f': there is none for "{head[len(row)]}"' if len(row) < len(head) else ""
            raise ValueError(
                f"data: {path} has {len(head)} columns, but line {k} has {len(row)} cells{missing}."
            )
    columns = zip(*rows, strict=True)
    return {h: _cells(c, mark, path, numbers, h) for h, c in zip(head, columns, strict=True)}


def _cells(cells: Sequence[str], mark: str, file: Path, lines: list[int], header: str) -> Any:
    """Numbers where all cells are numbers (with a decimal comma in files of semicolons)."""
    words = [c.strip() for c in cells]
    values = [_number(w, mark) for w in words]
    if any(v is None for v in values):
        return Words(words, file, lines, header, mark)
    return np.array(values, dtype=float)


def _number(word: str, mark: str) -> float | None:
    if word.lower() in MISSING:
        return np.nan
    try:
        return float(word.replace(",", ".") if mark == ";" else word)
    except ValueError:
        return None


def table_of(data: Any) -> dict[str, Any]:
    """Any table as a mapping of columns."""
    if isinstance(data, str | Path):
        return read_table(data)
    if hasattr(data, "columns") and hasattr(data, "index"):  # a data frame
        table = {str(c): data[c].to_numpy() for c in data.columns}
        names = [split(c)[0] for c in table]
        index = str(data.index.name or "")
        if any(name in TIME for name in names):
            return table
        if split(index)[0] in TIME or getattr(data.index.dtype, "kind", "") in ("f", "M"):
            return {index or "t": data.index.to_numpy(), **table}
        return table
    if isinstance(data, Mapping):
        return dict(data)
    raise TypeError(
        f"data: {type(data).__name__} is not a table. Give the path of a CSV or Parquet file, a "
        'data frame, or a mapping {"t": times, "h": values}.'
    )


def split(header: str) -> tuple[str, str]:
    """`h [m]` as name and unit; `q[0]` is a name."""
    found = HEADER.match(header.strip())
    name, unit = (found["name"], found["unit"]) if found else (header, None)
    if unit is None or re.fullmatch(r"[\d,\s]+", unit):
        return header.strip(), ""
    return name, unit


# -- units ----------------------------------------------------------------------------------------
def converted(name: str, known: str, values: Any, unit: str, units: Any) -> Any:
    """The values of a column in the model's unit."""
    own = unit_of(units, known)
    if not unit or not own or unit.replace(" ", "") == own.replace(" ", ""):
        return values
    if isinstance(values, Words):
        raise ValueError(f"data: {values.complaint()}.")
    if isinstance(values, tuple):  # times of its own
        return values[0], converted(name, known, values[1], unit, units)
    if known == "t" and unit in SECONDS and own in SECONDS:
        return np.asarray(values, dtype=float) * (SECONDS[unit] / SECONDS[own])
    what = f'data: column "{name}" is in {unit}, the model has {known} in {own}'
    try:
        pint = need("pint", "units", f"{what}; converting it")
    except ImportError as error:
        raise ValueError(f"{error}, convert the column, or correct the unit.") from error
    registry = pint.get_application_registry()
    try:
        return registry.Quantity(np.asarray(values, dtype=float), unit).to(own).magnitude
    except Exception as error:  # pint has many kinds
        raise ValueError(f"{what}: {error}. Correct the unit.") from error


# -- times ----------------------------------------------------------------------------------------
def seconds(name: str, given: Any) -> tuple[np.ndarray, bool]:
    """Times as numbers, and whether they were dates (then: in seconds since 1970)."""
    if isinstance(given, Words):
        return _dates(given), True
    given = np.asarray(given)
    if given.dtype.kind == "M":
        counts = (given - np.datetime64("1970-01-01")) / np.timedelta64(1, "ns")
        return np.where(np.isnat(given), np.nan, counts * 1e-9), True
    if given.dtype.kind == "m":
        return given / np.timedelta64(1, "ns") * 1e-9, False
    if given.dtype == object or given.dtype.kind in "US":
        cells = [str(v) for v in given.reshape(-1)]
        rows = range(1, len(cells) + 1)
        return _dates(Words(cells, Path(f"times of {name}"), rows, "t")), True
    return given.astype(float), False


def _dates(words: Words) -> np.ndarray:
    """Dates as ISO 8601 writes them, in seconds since 1970."""
    if words.has_numbers():
        raise ValueError(f"data: {words.complaint()}.")
    found, zones = [], set()
    for cell, line in zip(words, words.lines, strict=True):
        if cell.lower() in (*MISSING, "nat"):
            found.append(np.nan)
            continue
        try:
            date = datetime.datetime.fromisoformat(cell)
        except ValueError:
            raise ValueError(
                f'data: {words.file}, line {line}, column "{words.header}": "{cell}" is neither a '
                "number nor a date like 2026-01-31 or 2026-01-31T12:30:00."
            ) from None
        zones.add(date.tzinfo is not None)
        if date.tzinfo is not None:
            date = date.astimezone(datetime.UTC).replace(tzinfo=None)
        found.append((date - EPOCH) / datetime.timedelta(microseconds=1) * 1e-6)
    if len(zones) > 1:
        raise ValueError(f"data: {words.file}: some times have a time zone and others none.")
    return np.array(found)


def origin_of(t0: Any) -> float | None:
    """The time that is the model's zero: a number, or a date in seconds since 1970."""
    if t0 is None:
        return None
    if isinstance(t0, int | float | np.number):
        return float(t0)
    if isinstance(t0, datetime.datetime):
        t0 = t0.isoformat()
    return float(seconds("t0", np.atleast_1d(np.asarray(t0)))[0][0])


def model_times(name: str, given: Any, t0: Any, units: Any, first: float | None = None) -> Any:
    """Times of the model: dates count from `t0`, or from `first`, in the model's unit of time."""
    times, dates = seconds(name, given)
    origin = origin_of(t0)
    if not dates:
        return times if origin is None else times - origin
    if origin is None:
        origin = np.nanmin(times) if first is None else first
    unit = unit_of(units, "t")
    if unit not in SECONDS:
        raise ValueError(
            f'data: times of {name} are dates, and the model has t in "{unit}". Write the times as '
            f"numbers, or use one of {', '.join(k for k in SECONDS if k)}."
        )
    return (times - origin) / SECONDS[unit]


# -- input signals --------------------------------------------------------------------------------
def steps(data: Any, column: str, *, t0: Any = None, units: Any = None) -> Steps:
    """A column of a table as a piecewise constant input: each value holds until the next."""
    return Steps(*_signal(data, column, t0, units))


def ramps(data: Any, column: str, *, t0: Any = None, units: Any = None) -> Ramps:
    """A column of a table as a piecewise linear input."""
    return Ramps(*_signal(data, column, t0, units))


def _signal(data: Any, column: str, t0: Any, units: Any) -> tuple[np.ndarray, np.ndarray]:
    named = {split(h)[0]: (v, split(h)[1]) for h, v in table_of(data).items()}
    time = next((name for name in TIME if name in named), None)
    if column not in named or time is None:
        lost = column if column not in named else "t"
        raise ValueError(f'data: no column is called "{lost}"; there are {", ".join(named)}.')
    values, unit = named[column]
    if isinstance(values, Words):
        raise ValueError(f"data: {values.complaint()}.")
    values = np.asarray(converted(column, column, values, unit, units), dtype=float)
    t, unit = named[time]
    t = t if isinstance(t, Words) else converted("t", "t", t, unit, units)
    t = model_times(column, t, t0, units)
    keep = np.isfinite(values) & np.isfinite(t)
    order = np.argsort(t[keep], kind="stable")
    return t[keep][order], values[keep][order]
