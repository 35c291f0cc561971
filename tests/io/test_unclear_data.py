"""Data that can be read in two ways: decimal marks, names that occur twice, indices, clocks."""

import numpy as np
import pandas as pd
import pytest

import saltus
from saltus.estimate import data_notes
from saltus.estimate.data import experiments
from saltus.estimate.measurements import event_times, series
from saltus.io import ramps, read_table, steps

OUTPUTS = ("a", "b")


def read(data, units=None, **options):
    (experiment,) = experiments(saltus.Experiment(data, **options))
    return series(experiment, OUTPUTS, units)


def notes(data, units=None):
    return data_notes.notes(experiments([data]), OUTPUTS, units)


# -- dates ----------------------------------------------------------------------------------------
NOON = "2026-03-01T12:00:00"


@pytest.mark.parametrize(
    "t",
    [
        [NOON, f"{NOON}.000001", f"{NOON}.123456789"],
        [f"{NOON}Z", f"{NOON}.000001Z", f"{NOON}.123456789Z"],
        np.array([NOON, f"{NOON}.000001", f"{NOON}.123456789"], "datetime64[ns]"),
        pd.to_datetime([f"{NOON}Z", f"{NOON}.000001Z", f"{NOON}.123456789Z"], format="ISO8601"),
    ],
)
def test_differences_of_dates_are_exact_to_the_nanosecond(t):
    exact = [0.0, 1e-6, 0.123456789]  # correctly rounded: no tolerance
    assert steps({"t": t, "a": [1.0, 2.0, 3.0]}, "a").times.tolist() == exact
    assert ramps({"t": t, "a": [1.0, 2.0, 3.0]}, "a", t0=t[0]).times.tolist() == exact
    assert read({"t": t, "a": [1.0, 2.0, 3.0]})["a"].t.tolist() == exact
    (e,) = experiments(saltus.Experiment(events={"bump": np.asarray(t)}))
    assert event_times(e, ["bump"])["bump"].t.tolist() == exact


def test_a_zero_between_microseconds_is_noted_with_all_its_digits():
    t = [f"{NOON}.000000001", f"{NOON}.5"]
    assert f"t = 0 is {NOON}.000000001." in notes({"t": t, "a": [1.0, 2.0]})
    assert f"t = 0 is {NOON}." in notes({"t": [NOON, t[1]], "a": [1.0, 2.0]})


def test_dates_that_nanoseconds_do_not_reach_are_refused_with_their_row():
    for t in (["1500-01-01", NOON], np.array(["1500-01-01", NOON], "datetime64[s]")):
        with pytest.raises(
            ValueError, match=r"row 1: the date 1500-01-01.*expected one between 1678 and 2261"
        ):
            steps({"t": t, "a": [1.0, 2.0]}, "a")


# -- decimal marks --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text, words",
    [
        ("t;a;b\n0;1;80,5\n1;1.234;81\n", r'line 3, column "a": "1.234" .*line 2, .*"b": "80,5"'),
        ("t;a;b\n0;80,5;1\n1;1.234;81\n", r'line 3, column "a": "1.234"|"80,5" has another mark'),
        ("t;a;b\n0;1,234;0.5\n", r'line 2, column "a": "1,234" .*column "b": "0.5"'),
        ("t;a;b\n0;-12.345;+1,234\n", r'column "a": "-12.345" .*"\+1,234"'),
        ("t;a;b\n1.000;1;0,5\n2.000;1;0,5\n", r'column "t": "1.000" .*column "b": "0,5"'),
    ],
)
def test_a_number_that_another_column_makes_unclear_is_refused_with_both_cells(
    written, text, words
):
    path = written(text)
    with pytest.raises(ValueError, match=words) as caught:
        read(path)
    assert "run.csv, line" in str(caught.value) and "one decimal mark" in str(caught.value)
    with pytest.raises(ValueError, match=r"one decimal mark"):
        steps(path, "a")


def test_decimal_marks_that_cannot_be_taken_for_thousands_are_read(written):
    found = read(written("t;a;b\n0;80,5;0.5\n1;1,234;1.234\n"))
    assert found["a"].y.tolist() == [80.5, 1.234] and found["b"].y.tolist() == [0.5, 1.234]
    found = read(written("t;a;comment\n0;1,234;see 1.5\n1;2,345;1.5\n"))
    assert found["a"].y.tolist() == [1.234, 2.345]
    found = read(written("t;a;b\n0;80,5;1.234\n1;1,234;2.345\n"), columns={"b": None})
    assert found["a"].y.tolist() == [80.5, 1.234]  # the column that is unclear is not used


# -- names that occur twice -----------------------------------------------------------------------
def test_columns_of_one_name_are_refused_only_where_they_are_used(written, tmp_path):
    frame = pd.DataFrame([[0.0, 1.0, 5.0, 6.0]], columns=["t", "a", "spare", "spare"])
    path = written("t,a,spare,spare,,\n0,1,5,6,,\n")
    twice = {"t": [0.0], "a": [1.0], 1: [5.0], "1": [6.0]}
    for data, name in ((frame, "spare"), (path, "spare"), (twice, "1")):
        assert read(data)["a"].y.tolist() == [1.0]
        assert f"ignored: {name}" in notes(data)
        with pytest.raises(ValueError, match=f'two columns called "{name}". Rename one'):
            read(data, columns={name: "b"})
        with pytest.raises(ValueError, match=f'two columns called "{name}". Rename one'):
            steps(data, name)
    assert 'ignored: spare, "".' in notes(path)
    with pytest.raises(ValueError, match=r'run.csv has two columns called "t"'):
        read(written("t,t,a\n0,0,1\n"))


# -- the index in Parquet -------------------------------------------------------------------------
@pytest.mark.parametrize(
    "index",
    [
        pd.Index([0.0, 2.0]),
        pd.Index([0.0, 2.0], name="t [s]"),
        pd.RangeIndex(0, 4, 2, name="t"),
        pd.DatetimeIndex([NOON, "2026-03-01T12:00:02"]),
        pd.DatetimeIndex([NOON, "2026-03-01T12:00:02"], tz="Europe/Berlin", name="stamp"),
        pd.to_timedelta([0.0, 2.0], unit="s"),
    ],
)
def test_an_index_is_the_time_in_parquet_as_it_is_in_a_frame(tmp_path, index):
    frame = pd.DataFrame({"a": [1.0, 2.0]}, index=index)
    frame.to_parquet(tmp_path / "run.parquet")
    for data in (frame, tmp_path / "run.parquet"):
        assert read(data)["a"].t.tolist() == [0.0, 2.0]
        assert steps(data, "a").times.tolist() == [0.0, 2.0]


def test_an_index_that_only_counts_is_no_column_of_parquet(tmp_path):
    frame = pd.DataFrame({"t": [0.0, 1.0], "a": [1.0, 2.0]}, index=[3, 4])
    frame.to_parquet(tmp_path / "run.parquet")
    assert list(read_table(tmp_path / "run.parquet")) == ["t", "a"]
    frame.rename_axis("run").to_parquet(tmp_path / "run.parquet")
    assert "ignored: run." in notes(tmp_path / "run.parquet")


# -- units nobody gave ----------------------------------------------------------------------------
def test_a_signal_whose_unit_is_not_converted_has_a_warning():
    data = {"t [ms]": [0.0, 500.0], "a [mV]": [1.0, 2.0], "b": [0.0, 1.0]}
    with pytest.warns(UserWarning, match=r'in ms and mV.*units={"t": "ms", "a": "mV"}'):
        assert steps(data, "a").times.tolist() == [0.0, 500.0]
    with pytest.warns(UserWarning, match=r'"b" was not converted.*units={"t": "ms"}'):
        ramps(data, "b")
    found = steps(data, "a", units={"t": "s", "a": "mV"})
    assert found.times.tolist() == [0.0, 0.5] and found.values.tolist() == [1.0, 2.0]
    assert steps({"t [s]": [0.0, 1.0], "b": [0.0, 1.0]}, "b").times.tolist() == [0.0, 1.0]


def test_times_of_a_fit_whose_unit_is_not_converted_have_a_note():
    data = {"t [ms]": [0.0, 500.0], "a": [1.0, 2.0]}
    assert 'The times "t [ms]" were not converted' in notes(data)
    assert read(data)["a"].t.tolist() == [0.0, 500.0]
    assert notes(data, {"t": "s"}) == "" and read(data, {"t": "s"})["a"].t.tolist() == [0.0, 0.5]
