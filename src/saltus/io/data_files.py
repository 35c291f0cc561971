"""Tables as people have them: CSV and Parquet files, dates, units, columns as input signals."""

from __future__ import annotations

import csv
import datetime
import decimal
import numbers as number_types
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..base.extras import need
from ..base.names import unit_of
from ..system.inputs import Ramps, Steps

TIME = ("t", "time", "Time")
MISSING = ("", "na", "nan", "n/a", "null", "none", "-", "nat", "<na>")
SQUARE = re.compile(r"^(?P<name>.*?)\s*\[(?P<unit>[^\[\]]*)\]$")
ROUND = re.compile(r"^(?P<name>.*\S)\s+\((?P<unit>[^()]+)\)$")
SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "min": 60.0, "h": 3600.0, "d": 86400.0, "day": 86400.0}
EPOCH = datetime.datetime(1970, 1, 1)
SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods")
NUMBERS, DATES, ZONED = "numbers", "dates without a time zone", "dates with a time zone"
Place = Callable[[Any], str]  # of a row, by its number


class Table(dict[str, Any]):
    """Columns by their headers, and where their rows stand."""

    def __init__(self, columns: Mapping[str, Any], place: Place = lambda k: f"row {k + 1}"):
        super().__init__(columns)
        self.place = place
        self.index = ""  # the header of what was the index of a data frame
        self.moments = False  # whether that has dates or durations
        self.note = ""  # on how a file was read


class Words:
    """A column in which not every cell is a number."""

    def __init__(self, cells: Sequence[str], place: Place, mark: str = ","):
        self.cells, self.place, self.mark = list(cells), place, mark  # `mark` is between cells

    def __iter__(self) -> Any:
        return iter(self.cells)

    def has_numbers(self) -> bool:
        """Whether some of its cells are."""
        return any(
            cell.lower() not in MISSING and _number(cell, self.mark) is not None for cell in self
        )

    def complaint(self) -> str:
        """The first cell that is no number, and where it stands."""
        k = next((k for k, cell in enumerate(self.cells) if _number(cell, self.mark) is None), 0)
        return (
            f'{self.place(k)}: "{self.cells[k]}" is not a number. Missing values are empty cells '
            "or NaN"
        )


# -- files ----------------------------------------------------------------------------------------
def read_table(path: Any) -> Table:
    """The columns of a CSV or Parquet file by their headers."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"data: there is no file {path}.")
    if path.suffix.lower() in (".parquet", ".pq"):
        module = need("pyarrow.parquet", "data", f"reading {path.name}")
        table = module.read_table(path)
        columns = {name: _arrow(table.column(name)) for name in table.column_names}
        return Table(columns, lambda k: f"{path}, row {k + 1}")
    return read_csv(path)


def _arrow(column: Any) -> np.ndarray:
    """A column of Parquet; dates in a time zone keep it."""
    values = column.to_numpy()
    zoned = values.dtype.kind == "M" and getattr(column.type, "tz", None)
    return np.datetime_as_string(values, timezone="UTC") if zoned else values


def read_csv(path: Any) -> Table:
    """The columns of a CSV file: numbers, or `Words` where a cell is none."""
    path = Path(path)
    text, note = _text(path)
    numbered = enumerate(text.splitlines(), 1)
    lines = [(k, line) for k, line in numbered if line.strip() and line[0] != "#"]
    if len(lines) < 2:
        raise ValueError(f"data: {path} has no rows under a header.")
    mark = max(",;\t", key=lines[0][1].count)
    head, *rows = csv.reader([line for _, line in lines], delimiter=mark)
    head, at = [h.strip() for h in head], [k for k, _ in lines[1:]]
    twice = [h for k, h in enumerate(head) if h in head[:k]]
    if twice:
        raise ValueError(f'data: {path} has two columns called "{twice[0]}". Rename one of them.')
    for k, row in zip(at, rows, strict=True):
        if len(row) != len(head):
            missing = f': there is none for "{head[len(row)]}"' if len(row) < len(head) else ""
            raise ValueError(
                f"data: {path} has {len(head)} columns, but line {k} has {len(row)} cells{missing}."
            )
    table = Table({}, lambda k: f"{path}, line {at[k]}")
    for header, cells in zip(head, zip(*rows, strict=True), strict=True):
        table[header] = _cells(cells, mark, _in_column(table.place, header))
    table.note = note
    return table


def _text(path: Path) -> tuple[str, str]:
    """What a file says, and a note where it is not in UTF-8."""
    data = path.read_bytes()
    if path.suffix.lower() in SPREADSHEETS:
        raise ValueError(
            f"data: {path} is a spreadsheet, expected CSV or Parquet. Save it as CSV, or give "
            f'pandas.read_excel("{path.name}") in its place.'
        )
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):  # "Unicode text" of Excel
        return data.decode("utf-16", errors="replace"), ""
    notes = {"utf-8-sig": "", "cp1252": f"{path} is not in UTF-8: it was read as Windows-1252"}
    for code, note in notes.items():
        try:
            text = data.decode(code)
        except UnicodeDecodeError:
            continue
        if not re.search(r"[\x00-\x08\x0e-\x1f\x7f]", text):
            return text, note
    raise ValueError(
        f"data: {path} is not a text file, expected CSV or Parquet. Save it as CSV in UTF-8, or "
        "read it yourself and give a mapping of columns."
    )


def _in_column(place: Place, header: str) -> Place:
    return lambda k: f'{place(k)}, column "{header}"'


def _cells(cells: Sequence[str], mark: str, place: Place) -> Any:
    """Numbers where all cells are numbers (with a decimal comma in files of semicolons)."""
    words = [c.strip() for c in cells]
    values = [_number(w, mark) for w in words]
    if any(v is None for v in values):
        return Words(words, place, mark)
    return np.array(values, dtype=float)


def _number(word: str, mark: str) -> float | None:
    if word.lower() in MISSING:
        return np.nan
    try:
        return float(word.replace(",", ".") if mark == ";" else word)
    except ValueError:
        return None


# -- tables in memory -----------------------------------------------------------------------------
def table_of(data: Any) -> Table:
    """Any table as a mapping of columns; none has none."""
    if isinstance(data, Table) or data is None:
        return data or Table({})
    if isinstance(data, str | Path):
        return read_table(data)
    if hasattr(data, "columns") and hasattr(data, "index"):
        return _frame(data)
    if isinstance(data, Mapping):
        return Table({str(k): v for k, v in data.items()})
    raise TypeError(
        f"data: {type(data).__name__} is not a table. Give the path of a CSV or Parquet file, a "
        'data frame, or a mapping {"t": times, "h": values}.'
    )


def _frame(data: Any) -> Table:
    """A data frame, with its index where that may be the times."""
    if not data.columns.is_unique:
        raise ValueError("data: two columns have the same name. Rename one of them.")
    name, kind = str(data.index.name or ""), getattr(data.index.dtype, "kind", "")
    table = Table({}, lambda k: f"row {k + 1} (index {data.index[k]})")
    header = name or "t"
    if (split(name)[0] in TIME or kind in ("f", "M", "m")) and header not in data.columns:
        table[header] = data.index.to_numpy()
        table.index, table.moments = header, kind in ("M", "m")
    table.update({str(c): data[c].to_numpy() for c in data.columns})
    return table


def time_header(table: Table, names: Mapping[str, str | None]) -> str | None:
    """The header of the times: of a column called t, time or Time, else of the index."""
    listed = [h for name in TIME for h in table if names[h] == name]
    listed = [h for h in listed if h != table.index] or listed
    return listed[0] if listed else table.index if table.moments else None


def numbers(name: str, values: Any, place: Place) -> np.ndarray:
    """A column as numbers; the first cell that is none is named."""
    if isinstance(values, Words):
        raise ValueError(f"data: {values.complaint()}.")
    values = np.asarray(values)
    if values.dtype.kind in "biuf":
        return values.astype(float)
    found = [_cell(v) for v in values.reshape(-1)]
    if None in found:
        k = found.index(None)
        raise ValueError(
            f'data: column "{name}" has cells that are not numbers: "{values.reshape(-1)[k]}" in '
            f"{place(k)}. Missing values are NaN or None."
        )
    return np.array(found, dtype=float).reshape(values.shape)


def _cell(value: Any) -> float | None:
    if value is None or str(value).strip().lower() in MISSING:
        return np.nan
    if isinstance(value, str):
        return _number(value.strip(), ",")
    return float(value) if isinstance(value, number_types.Real | decimal.Decimal) else None


def split(header: str) -> tuple[str, str]:
    """`h [m]` as name and unit, and `h (m)` where that is a known unit; `q[0]` is a name."""
    header = header.strip()
    square, rounded = SQUARE.match(header), ROUND.match(header)
    if square and not re.fullmatch(r"[\d,\s]+", square["unit"]):
        return square["name"], square["unit"]
    if rounded and _is_unit(rounded["unit"]):
        return rounded["name"], rounded["unit"]
    return header, ""


# -- units ----------------------------------------------------------------------------------------
def _is_unit(text: str) -> bool:
    if text in SECONDS or re.fullmatch(r"[\d,.\s]+", text):
        return text in SECONDS
    try:
        need("pint", "units", "a unit").get_application_registry().Unit(text)
    except Exception:  # pint has many kinds
        return False
    return True


def converted(name: str, known: str, values: Any, unit: str, units: Any, place: Place) -> Any:
    """The values of a column in the model's unit."""
    own = unit_of(units, known)
    if not unit or not own or unit.replace(" ", "") == own.replace(" ", ""):
        return values
    values = numbers(name, values, place)
    if known == "t" and unit in SECONDS and own in SECONDS:
        return values * (SECONDS[unit] / SECONDS[own])
    what = f'data: column "{name}" is in {unit}, the model has {known} in {own}'
    try:
        pint = need("pint", "units", f"{what}; converting it")
    except ImportError as error:
        raise ValueError(f"{error}, convert the column, or correct the unit.") from error
    try:
        return pint.get_application_registry().Quantity(values, unit).to(own).magnitude
    except Exception as error:  # pint has many kinds
        raise ValueError(f"{what}: {error}. Correct the unit.") from error


# -- times ----------------------------------------------------------------------------------------
class Times(NamedTuple):
    """Times in the model's unit, or, where they are dates, in seconds since 1970."""

    values: np.ndarray
    kind: str = NUMBERS


def read_times(name: str, given: Any, unit: str, units: Any, place: Place) -> Times:
    """The times of `name` as they were given: numbers in `unit`, durations, or dates."""
    if isinstance(given, Words) and not given.has_numbers():
        return _dates(given)
    if not isinstance(given, Words):
        given = np.asarray(given)
        if given.dtype.kind == "M":
            counts = (given - np.datetime64("1970-01-01")) / np.timedelta64(1, "ns")
            return Times(np.where(np.isnat(given), np.nan, counts * 1e-9), DATES)
        if given.dtype.kind == "m":
            lengths = given / np.timedelta64(1, "ns") * 1e-9
            return Times(lengths / _second(f"times of {name} are durations", units))
        if given.dtype.kind not in "biuf":
            cells = [_cell(v) for v in given.reshape(-1)]
            if None in cells and not any(v is not None and np.isfinite(v) for v in cells):
                return _dates(Words([str(v).strip() for v in given.reshape(-1)], place))
    return Times(numbers("t", converted("t", "t", given, unit, units, place), place))


def _dates(words: Words) -> Times:
    """Dates as ISO 8601 writes them."""
    found, zones = [], set()
    for k, cell in enumerate(words):
        if cell.lower() in MISSING:
            found.append(np.nan)
            continue
        try:
            date = datetime.datetime.fromisoformat(cell)
        except ValueError:
            raise ValueError(
                f'data: {words.place(k)}: "{cell}" is neither a number nor a date like 2026-01-31 '
                "or 2026-01-31T12:30:00."
            ) from None
        zones.add(date.tzinfo is not None)
        if len(zones) > 1:
            raise ValueError(
                f"data: {words.place(k)}: some times have a time zone and others none."
            )
        if date.tzinfo is not None:
            date = date.astimezone(datetime.UTC).replace(tzinfo=None)
        found.append((date - EPOCH) / datetime.timedelta(microseconds=1) * 1e-6)
    return Times(np.array(found), ZONED if True in zones else DATES)


def _second(what: str, units: Any) -> float:
    """A second's share: how many seconds the model's unit of time has."""
    unit = unit_of(units, "t")
    if unit not in SECONDS:
        raise ValueError(
            f'data: {what}, and the model has t in "{unit}". Write the times as numbers, or use '
            f"one of {', '.join(k for k in SECONDS if k)}."
        )
    return SECONDS[unit]


def origin_of(t0: Any, name: str, times: Times, units: Any) -> float | None:
    """The time that is the model's zero, of the same kind as the times of `name`."""
    if t0 is None:
        return None
    given = np.atleast_1d(np.asarray(str(t0) if isinstance(t0, datetime.date) else t0))
    zero = read_times("t0", given, "", units, lambda k: "t0")
    if zero.kind != times.kind or not np.isfinite(zero.values[0]):
        raise ValueError(
            f'data: t0 is "{t0}", but the times of {name} are {times.kind}. Write t0 in the same '
            'way: a number like 2.5, "2026-01-31T12:30:00", or "2026-01-31T12:30:00+01:00".'
        )
    return float(zero.values[0])


def model_times(name: str, times: Times, t0: Any, units: Any, first: float | None = None) -> Any:
    """Times of the model: dates count from `t0`, or from `first`, in the model's unit of time."""
    origin = origin_of(t0, name, times, units)
    if times.kind == NUMBERS:
        return times.values if origin is None else times.values - origin
    if origin is None:
        origin = np.nanmin(times.values) if first is None else first
    return (times.values - origin) / _second(f"times of {name} are dates", units)


# -- input signals --------------------------------------------------------------------------------
def steps(data: Any, column: str, *, time: str = "", t0: Any = None, units: Any = None) -> Steps:
    """A column of a table as a piecewise constant input: each value holds until the next.

    Times are in the column `time`; by default t, time or Time, or the index of a data frame."""
    return Steps(*_signal(data, column, time, t0, units))


def ramps(data: Any, column: str, *, time: str = "", t0: Any = None, units: Any = None) -> Ramps:
    """A column of a table as a piecewise linear input; times as in `steps`."""
    return Ramps(*_signal(data, column, time, t0, units))


def _signal(data: Any, column: str, time: str, t0: Any, units: Any) -> tuple[Any, Any]:
    table = table_of(data)
    names: dict[str, str | None] = {h: split(h)[0] for h in table}
    wanted = _called(column, names)
    when = _called(time, names) if time else time_header(table, names)
    if when is None:
        other = next((str(n) for h, n in names.items() if h != wanted), "...")
        raise ValueError(
            f"data: no column of times is called t, time or Time; there are "
            f'{", ".join(map(str, names.values()))}. Say which it is: time="{other}".'
        )
    values = converted(column, column, table[wanted], split(wanted)[1], units, table.place)
    values = numbers(column, values, table.place)
    given = read_times(column, table[when], split(when)[1], units, table.place)
    t = model_times(column, given, t0, units)
    keep = np.flatnonzero(np.isfinite(values) & np.isfinite(t))
    order = keep[np.argsort(t[keep], kind="stable")]
    again = np.flatnonzero(np.diff(t[order]) == 0)
    if again.size:
        k, j = order[again[0]], order[again[0] + 1]
        raise ValueError(
            f'data: {table.place(j)}: the time of "{column}" is that of {table.place(k)}, expected '
            "one value at each time. Drop one of them."
        )
    return t[order], values[order]


def _called(name: str, names: Mapping[str, str | None]) -> str:
    """The header of the column that is called so, with or without its unit."""
    for header, own in names.items():
        if name in (header, own):
            return header
    there = ", ".join(map(str, names.values()))
    raise ValueError(f'data: no column is called "{name}"; there are {there}.')
