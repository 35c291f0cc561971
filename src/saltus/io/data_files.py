"""Tables in common forms: CSV and Parquet files, data frames, mappings of columns."""

from __future__ import annotations

import csv
import decimal
import numbers as number_types
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from ..base.extras import need
from .units import split

TIME = ("t", "time", "Time")
MISSING = ("", "na", "nan", "n/a", "null", "none", "-", "nat", "<na>")
GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")  # 1.234 may be 1234 with a mark of thousands
UNNAMED = re.compile(r"__index_level_\d+__")  # an index of pandas in Parquet
SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods")
Place = Callable[[Any], str]  # from the number of a row to its place in words


class Table(dict[str, Any]):
    """Columns by their headers, and a function that names the place of a row."""

    def __init__(self, columns: Mapping[str, Any], place: Place = lambda k: f"row {k + 1}"):
        super().__init__(columns)
        self.place = place
        self.index: str | None = None  # the header of what was the index of a data frame
        self.moments = False  # whether the index has dates or durations
        self.note = ""  # on how a file was read


@runtime_checkable
class Frame(Protocol):
    """A data frame, of pandas or of another library with the same interface."""

    columns: Iterable[Hashable]
    index: Iterable[Hashable]

    def __getitem__(self, name: Any, /) -> Any: ...


TableLike: TypeAlias = str | Path | Frame | Mapping[str, Any] | None  # what users give as a table


class Words:
    """A column in which not every cell is a number."""

    def __init__(self, cells: Sequence[str], place: Place, mark: str = ","):
        self.cells, self.place, self.mark = list(cells), place, mark  # `mark` separates cells

    def __iter__(self) -> Iterator[str]:
        return iter(self.cells)

    def has_numbers(self) -> bool:
        """Whether some of its cells are numbers."""
        return any(
            cell.lower() not in MISSING and _number(cell, self.mark) is not None for cell in self
        )

    def complaint(self) -> str:
        """The first cell that is not a number, and where it is."""
        k = next((k for k, cell in enumerate(self.cells) if _number(cell, self.mark) is None), 0)
        return (
            f'{self.place(k)}: "{self.cells[k]}" is not a number. Missing values are empty cells '
            "or NaN"
        )


class Unclear(Words):
    """A column that cannot be read, which only matters where it is used."""

    def __init__(self, why: str, place: Place):
        super().__init__((), place)
        self.why = why

    def __iter__(self) -> Iterator[str]:
        raise ValueError(f"data: {self.why}.")

    def has_numbers(self) -> bool:
        return True

    def complaint(self) -> str:
        return self.why


Column: TypeAlias = Sequence | np.ndarray | Words  # of a table


# -- files ----------------------------------------------------------------------------------------
def read_table(path: str | Path) -> Table:
    """The columns of the CSV or Parquet file at `path`, by their headers."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"data: there is no file {path}.")
    return read_parquet(path) if path.suffix.lower() in (".parquet", ".pq") else read_csv(path)


def read_parquet(path: Path) -> Table:
    """The columns of a Parquet file, with the index of a data frame if that may be the times."""
    module = need("pyarrow.parquet", "data", f"reading {path.name}")
    file = module.read_table(path)
    columns = list(zip(map(str, file.column_names), file.columns, strict=True))
    table = Table({}, lambda k: f"{path}, row {k + 1}")
    entry = _index_of(file)
    if isinstance(entry, dict):  # a range, which is not a column of the file
        values = np.arange(entry["start"], entry["stop"], entry["step"])
        _add_index(table, str(entry["name"] or ""), values, "i", dict(columns))
    elif entry in dict(columns):
        values, name = dict(columns)[entry], "" if UNNAMED.fullmatch(entry) else entry
        kind = values.to_numpy().dtype.kind
        if _add_index(table, name, _arrow(values), kind, dict(columns)) or not name:
            columns = [(other, v) for other, v in columns if other != entry]
    _add(table, [(name, _arrow(values)) for name, values in columns], str(path))
    return table


def _index_of(file: Any) -> Any:
    """What pandas wrote about an index with one level: its column, or its range."""
    found = (file.schema.pandas_metadata or {}).get("index_columns", ())
    return found[0] if len(found) == 1 else None


def _arrow(column: Any) -> np.ndarray:
    """A column of Parquet; dates keep their time zone."""
    values = column.to_numpy()
    zoned = values.dtype.kind == "M" and getattr(column.type, "tz", None)
    return np.datetime_as_string(values, timezone="UTC") if zoned else values


def _add(table: Table, columns: Iterable[tuple[str, Any]], owner: str) -> None:
    """Adds columns to a table; columns of one name cannot be used."""
    for name, values in columns:
        why = f'{owner} has two columns called "{name}". Rename one of them'
        table[name] = Unclear(why, table.place) if name in table else values


def _add_index(table: Table, name: str, values: Any, kind: str, others: Iterable[Hashable]) -> bool:
    """Adds an index as a column if it may be the times: by its name, or as it is not a count."""
    header = name or "t"
    if (not name and header in others) or not (split(name)[0] in TIME or kind in ("f", "M", "m")):
        return False
    table[header] = values
    table.index, table.moments = header, kind in ("M", "m")
    return True


def read_csv(path: str | Path) -> Table:
    """The columns of a CSV file: numbers, or `Words` if some cell is not a number."""
    path = Path(path)
    text, note = _text(path)
    numbered = enumerate(text.splitlines(), 1)
    lines = [(k, line) for k, line in numbered if line.strip() and line[0] != "#"]
    if len(lines) < 2:
        raise ValueError(f"data: {path} has no rows under a header.")
    mark = max(",;\t", key=lines[0][1].count)
    head, *rows = csv.reader([line for _, line in lines], delimiter=mark)
    head, at = [h.strip() for h in head], [k for k, _ in lines[1:]]
    for k, row in zip(at, rows, strict=True):
        if len(row) != len(head):
            missing = f': there is none for "{head[len(row)]}"' if len(row) < len(head) else ""
            raise ValueError(
                f"data: {path} has {len(head)} columns, but line {k} has {len(row)} cells{missing}."
            )
    table = Table({}, lambda k: f"{path}, line {at[k]}")
    columns = list(zip(head, map(list, zip(*rows, strict=True)), strict=True))
    read = [(h, _cells(cells, mark, _in_column(table.place, h))) for h, cells in columns]
    if mark == ";":
        marked = [cells for _, cells in columns]
        read = _of_one_mark(read, marked, table.place)
    _add(table, read, str(path))
    table.note = note
    return table


def _text(path: Path) -> tuple[str, str]:
    """The text of a file, and a note if it is not in UTF-8."""
    data = path.read_bytes()
    if path.suffix.lower() in SPREADSHEETS:
        raise ValueError(
            f"data: {path} is a spreadsheet, expected CSV or Parquet. Save it as CSV, or pass "
            f'pandas.read_excel("{path.name}") instead.'
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


def _cells(cells: Sequence[str], mark: str, place: Place) -> np.ndarray | Words:
    """Numbers if all cells are numbers (decimal commas are allowed between semicolons)."""
    words = [c.strip() for c in cells]
    values = [_number(w, mark) for w in words]
    if any(v is None for v in values):
        return Words(words, place, mark)
    return np.array(values, dtype=float)


def _of_one_mark(
    columns: list[tuple[str, Any]], cells: list[list[str]], place: Place
) -> list[tuple[str, Any]]:
    """The columns of a file, without those whose decimal mark another column contradicts.

    In a file that has both marks, 1.234 may be a number with a mark of thousands; 12.5 is not.
    """
    found: dict[str, list[tuple[int, int]]] = {mark: [] for mark in ",."}  # (column, row)
    for c, (_, values) in enumerate(columns):
        for mark in ",." if not isinstance(values, Words) else "":
            found[mark] += [(c, k) for k, cell in enumerate(cells[c]) if mark in cell]
    out = list(columns)
    for mark, other in (",.", ".,"):
        for c in dict.fromkeys(c for c, _ in found[mark]):
            own = [k for column, k in found[mark] if column == c]
            clear = any(not GROUPED.fullmatch(cells[c][k].strip()) for k in own)
            beside = sorted(found[other], key=lambda at: at[0] != c)
            if beside and (beside[0][0] == c or not clear):
                why = _both_marks((c, own[0]), beside[0], columns, cells, place)
                out[c] = (columns[c][0], Unclear(why, place))
    return out


def _both_marks(
    one: tuple[int, int], other: tuple[int, int], columns: list[tuple[str, Any]],
    cells: list[list[str]], place: Place,
) -> str:  # fmt: skip
    """Why a column is unclear, with a cell of each decimal mark."""
    here, there = (
        f'{_in_column(place, columns[c][0])(k)}: "{cells[c][k].strip()}"' for c, k in (one, other)
    )
    return (
        f"{here} has another mark than {there}, so one of them may be a mark of thousands. Write "
        "all numbers of a file with one decimal mark, and without marks of thousands"
    )


def _number(word: str, mark: str) -> float | None:
    if word.lower() in MISSING:
        return np.nan
    try:
        return float(word.replace(",", ".") if mark == ";" else word)
    except ValueError:
        return None


# -- tables in memory -----------------------------------------------------------------------------
def table_of(data: TableLike) -> Table:
    """Any table as a mapping of columns; `None` is an empty one."""
    if isinstance(data, Table) or data is None:
        return data or Table({})
    if isinstance(data, str | Path):
        return read_table(data)
    if isinstance(data, Frame):
        return _frame(data)
    if isinstance(data, Mapping):
        table = Table({})
        _add(table, ((str(k), v) for k, v in data.items()), "the mapping")
        return table
    raise TypeError(
        f"data: {type(data).__name__} is not a table. Give the path of a CSV or Parquet file, a "
        'data frame, or a mapping {"t": times, "h": values}.'
    )


def _frame(data: Any) -> Table:
    """A data frame as columns, with its index if that may be the times."""
    table = Table({}, lambda k: f"row {k + 1} (index {data.index[k]})")
    name, kind = str(data.index.name or ""), getattr(data.index.dtype, "kind", "")
    names = [str(c) for c in data.columns]
    if name not in names:
        _add_index(table, name, data.index.to_numpy(), kind, names)
    once = data.columns.is_unique
    values = [data[c] if once else data.iloc[:, k] for k, c in enumerate(data.columns)]
    _add(table, zip(names, (v.to_numpy() for v in values), strict=True), "the data frame")
    return table


def time_header(table: Table, names: Mapping[str, str | None]) -> str | None:
    """The header of the times: of a column called t, time or Time, else of the index."""
    listed = [h for name in TIME for h in table if names[h] == name]
    listed = [h for h in listed if h != table.index] or listed
    return listed[0] if listed else table.index if table.moments else None


def numbers(name: str, values: Column, place: Place) -> np.ndarray:
    """A column as numbers; an error names the first cell that is not one."""
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


def _cell(value: object) -> float | None:
    if value is None or str(value).strip().lower() in MISSING:
        return np.nan
    if isinstance(value, str):
        return _number(value.strip(), ",")
    return float(value) if isinstance(value, number_types.Real | decimal.Decimal) else None
