"""Columns in the units of a model, and their times: numbers, durations and dates."""

from __future__ import annotations

import datetime
import re
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..base.extras import need
from ..base.names import unit_of
from ..base.types import Units
from .data_files import MISSING, Column, Place, Words, _cell, numbers
from .units import SECONDS

FIRST_YEAR, LAST_YEAR = 1678, 2261  # that nanoseconds reach as a whole
FRACTION = re.compile(r"[.,]\d{6}(\d{1,3})")  # of a second, from its seventh digit
NANOSECOND, SECOND = np.timedelta64(1, "ns"), 1e9  # and how many of them a second has
NUMBERS, DATES, ZONED = "numbers", "dates without a time zone", "dates with a time zone"
Zero: TypeAlias = float | np.datetime64 | None  # a time that is zero in the model
Time: TypeAlias = float | str | datetime.date | None  # as written by users


def converted(
    name: str,
    known: str,
    values: Column,
    unit: str,
    units: Units,
    place: Place,
) -> Column:
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
    except Exception as error:  # pint raises many kinds of errors
        raise ValueError(f"{what}: {error}. Correct the unit.") from error


class Times(NamedTuple):
    """Times in the model's unit; dates are whole nanoseconds (`datetime64[ns]`)."""

    values: np.ndarray
    kind: str = NUMBERS


def read_times(
    name: str,
    given: Column,
    unit: str,
    units: Units,
    place: Place,
) -> Times:
    """The times of `name`, which may be numbers in `unit`, durations, or dates."""
    if isinstance(given, Words) and not given.has_numbers():
        return _dates(given)
    if not isinstance(given, Words):
        given = np.asarray(given)
        if given.dtype.kind == "M":
            return Times(_in_nanoseconds(given, place), DATES)
        if given.dtype.kind == "m":
            lengths = given / NANOSECOND / SECOND
            return Times(lengths / _second(f"times of {name} are durations", units))
        if given.dtype.kind not in "biuf":
            cells = [_cell(v) for v in given.reshape(-1)]
            if None in cells and not any(v is not None and np.isfinite(v) for v in cells):
                return _dates(Words([str(v).strip() for v in given.reshape(-1)], place))
    return Times(numbers("t", converted("t", "t", given, unit, units, place), place))


def _dates(words: Words) -> Times:
    """Dates in ISO 8601, with up to nine digits of a second."""
    found, zones = [], set()
    for k, cell in enumerate(words):
        if cell.lower() in MISSING:
            found.append(np.datetime64("NaT", "ns"))
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
                f"data: {words.place(k)}: some times have a time zone and others have none."
            )
        if date.tzinfo is not None:
            date = date.astimezone(datetime.UTC).replace(tzinfo=None)
        digits = FRACTION.search(cell)  # those that `fromisoformat` leaves out
        rest = np.timedelta64(int(digits[1].ljust(3, "0")) if digits else 0, "ns")
        found.append(_in_nanoseconds(np.array([date], "datetime64[us]"), words.place, k)[0] + rest)
    return Times(np.array(found, "datetime64[ns]"), ZONED if True in zones else DATES)


def _in_nanoseconds(dates: np.ndarray, place: Place, first: int = 0) -> np.ndarray:
    """Dates from row `first` on as whole nanoseconds, which reach from 1678 to 2261."""
    years = dates.reshape(-1).astype("datetime64[Y]").astype(np.int64) + 1970
    beyond = (years < FIRST_YEAR) | (years > LAST_YEAR)
    for k in np.flatnonzero(beyond & ~np.isnat(dates.reshape(-1))):
        raise ValueError(
            f"data: {place(first + k)}: the date {dates.reshape(-1)[k]} cannot be read, expected "
            f"one between {FIRST_YEAR} and {LAST_YEAR}. Correct it, or give times as numbers."
        )
    return dates.astype("datetime64[ns]")


def _second(what: str, units: Units) -> float:
    """How many seconds the model's unit of time has."""
    unit = unit_of(units, "t")
    if unit not in SECONDS:
        raise ValueError(
            f'data: {what}, and the model has t in "{unit}". Write the times as numbers, or use '
            f"one of {', '.join(k for k in SECONDS if k)}."
        )
    return SECONDS[unit]


def origin_of(t0: Time, name: str, times: Times, units: Units) -> Zero:
    """The time that is zero in the model, of the same kind as the times of `name`."""
    if t0 is None:
        return None
    given = np.atleast_1d(np.asarray(str(t0) if isinstance(t0, datetime.date) else t0))
    zero = read_times("t0", given, "", units, lambda k: "t0")
    if zero.kind != times.kind or not np.isfinite(zero.values[0]):
        raise ValueError(
            f'data: t0 is "{t0}", but the times of {name} are {times.kind}. Write t0 in the same '
            'way: a number like 2.5, "2026-01-31T12:30:00", or "2026-01-31T12:30:00+01:00".'
        )
    return zero.values[0]


def model_times(name: str, times: Times, t0: Time, units: Units, first: Zero = None) -> np.ndarray:
    """Times in the model's unit of time; dates are counted from `t0`, or else from `first`.

    Dates are subtracted before they become numbers, so that no nanosecond is lost.
    """
    origin = origin_of(t0, name, times, units)
    if times.kind == NUMBERS:
        return times.values if origin is None else times.values - origin
    if origin is None:
        origin = first_of(times.values) if first is None else first
    if origin is None:
        return np.full(times.values.shape, np.nan)
    one = SECOND * _second(f"times of {name} are dates", units)
    elapsed: Any = times.values - origin
    return elapsed / NANOSECOND / one


def first_of(dates: np.ndarray) -> Zero:
    """The earliest date; None if there is none."""
    known = dates[~np.isnat(dates)]
    return known.min() if known.size else None


def written(date: Any) -> str:
    """A date in ISO 8601, without zeros at its end."""
    text = np.datetime_as_string(date, "ns")
    return text.rstrip("0").rstrip(".") if "." in text else text
