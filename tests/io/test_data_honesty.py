"""Data that would be misunderstood: one zero for all times, no guesses, nothing in silence."""

import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import saltus
from saltus.cli.app import main
from saltus.estimate import data_notes
from saltus.estimate.data import experiments
from saltus.estimate.measurements import event_times, series
from saltus.io import ramps, read_table, steps
from saltus.io.units import split

OUTPUTS = ("T", "S")
NOON = np.datetime64("2026-03-01T12:00:00", "ms")


def read(data, outputs=OUTPUTS, units=None, **options):
    (experiment,) = experiments(saltus.Experiment(data, **options))
    return series(experiment, outputs, units)


def notes(*listed, outputs=OUTPUTS, units=None):
    return data_notes.notes(experiments(list(listed)), outputs, units)


def dates(*seconds):
    return NOON + np.array([round(1000 * s) for s in seconds], dtype="timedelta64[ms]")


@pytest.fixture
def written(tmp_path):
    def write(text, name="run.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return path

    return write


COOLING = saltus.HybridSystem(
    lambda now, p: {"T": -p["a"] * (now.x["T"] - 20.0), "S": -p["b"] * now.x["S"]}
)
START = saltus.Instant(t=0.0, x={"T": 80.0, "S": 1.0})
SCENARIO = saltus.Scenario(COOLING, START, {"a": 0.3, "b": 0.2}, t1=5.0)
TRUTH = {"a": 0.5, "b": 0.1}


# -- one zero -------------------------------------------------------------------------------------
def test_all_outputs_and_events_of_a_run_count_from_its_first_date():
    data = {"T": (dates(0.0, 1.0), [80.0, 60.0]), "S": (dates(0.5, 1.5), [1.0, 0.9])}
    run = saltus.Experiment(data, events={"alarm": dates(-1.0, 2.0)})
    (e,) = experiments(run)
    found = series(e, OUTPUTS, None)
    assert found["T"].t == pytest.approx([1.0, 2.0], abs=1e-6)
    assert found["S"].t == pytest.approx([1.5, 2.5], abs=1e-6)
    assert event_times(e, ["alarm"])["alarm"].t == pytest.approx([0.0, 3.0], abs=1e-6)
    assert "t = 0 is 2026-03-01T11:59:59." in notes(run)


def test_every_run_has_a_zero_of_its_own_and_the_notes_say_which():
    one = {"T": (dates(0.0, 1.0), [80.0, 60.0])}
    two = {"T": (dates(3600.0, 3601.0), [80.0, 61.0])}
    words = notes(one, two)
    assert "t = 0 is 2026-03-01T12:00:00 (run1)." in words
    assert "t = 0 is 2026-03-01T13:00:00 (run2)." in words
    told = saltus.Experiment(one, t0="2026-03-01T12:00:00")
    assert notes(told) == ""


@pytest.mark.slow
def test_outputs_with_dates_of_their_own_give_the_true_parameters_and_a_note():
    t = np.linspace(0.0, 5.0, 11)
    y = saltus.solve(COOLING, START, TRUTH, 5.0, ts=t).y
    data = {"T": (dates(*t), np.asarray(y["T"])), "S": (dates(*t[1:]), np.asarray(y["S"])[1:])}
    fit = saltus.fit(SCENARIO, data)
    assert fit["a"] == pytest.approx(0.5, abs=1e-4)
    assert fit["b"] == pytest.approx(0.1, abs=1e-4)
    assert "t = 0 is 2026-03-01T12:00:00." in fit.message


@pytest.mark.parametrize(
    "t, t0",
    [
        (["2026-03-01T12:00:00", "2026-03-01T12:00:01"], "2026-03-01T12:00:00Z"),
        (["2026-03-01T12:00:00Z", "2026-03-01T12:00:01Z"], "2026-03-01T12:00:00"),
        (["2026-03-01T12:00:00Z", "2026-03-01T12:00:01Z"], np.datetime64("2026-03-01T12:00:00")),
        (["2026-03-01T12:00:00", "2026-03-01T12:00:01"], 3.0),
        ([0.0, 1.0], "2026-03-01T12:00:00"),
        ([0.0, 1.0], float("nan")),
    ],
)
def test_a_zero_of_another_kind_than_the_times_is_refused(t, t0):
    with pytest.raises(ValueError, match=r"^data: t0 is .*but the times of T are .*same way"):
        read({"t": t, "T": [1.0, 2.0]}, t0=t0)
    with pytest.raises(ValueError, match="t0 is"):
        steps({"t": t, "T": [1.0, 2.0]}, "T", t0=t0)


def test_times_of_several_kinds_in_one_run_are_refused():
    mixed = {"T": (dates(0.0), [80.0]), "S": ([0.5], [1.0])}
    with pytest.raises(ValueError, match=r"times of T are dates.*those of S are numbers"):
        read(mixed)
    (e,) = experiments(saltus.Experiment({"T": (dates(0.0), [1.0])}, events={"alarm": [0.5]}))
    with pytest.raises(ValueError, match=r"times of T are dates.*those of alarm are numbers"):
        event_times(e, ["alarm"])


def test_a_numeric_zero_shifts_outputs_and_events_alike():
    (e,) = experiments(
        saltus.Experiment({"t": [100.0, 101.0], "T": [1.0, 2.0]}, events={"alarm": [100.5]}, t0=100)
    )
    assert series(e, OUTPUTS, None)["T"].t == pytest.approx([0.0, 1.0])
    assert event_times(e, ["alarm"])["alarm"].t == pytest.approx([0.5])


def test_durations_are_in_the_unit_of_the_model():
    lengths = np.array([0, 120], dtype="timedelta64[s]")
    found = read({"t": lengths, "T": [1.0, 2.0]}, units={"t": "min"})
    assert found["T"].t == pytest.approx([0.0, 2.0])


def test_parquet_keeps_the_time_zone(tmp_path):
    column = pa.array(dates(0.0, 1.0), pa.timestamp("us", tz="Europe/Berlin"))
    pq.write_table(pa.table({"t": column, "T": [1.0, 2.0]}), tmp_path / "a.parquet")
    found = read(tmp_path / "a.parquet", t0="2026-03-01T13:00:00+01:00")
    assert found["T"].t == pytest.approx([0.0, 1.0])


@pytest.mark.parametrize("t", [1.77e9 + np.arange(5.0), 45000.0 + np.linspace(0.0, 1.0, 5)])
def test_data_on_another_clock_are_told_so_before_anything_is_fitted(t):
    data = {"t": t, "T": [80.0, 70.0, 60.0, 55.0, 50.0]}
    with pytest.raises(ValueError, match=r"begins at t = .*starts at t = 0.*Experiment\(.*t0="):
        saltus.fit(SCENARIO, data, free="a")


# -- T is a temperature ---------------------------------------------------------------------------
def test_a_column_called_t_in_capitals_is_the_time_only_where_nothing_else_is():
    assert list(read({"t": [0.0], "T": [80.0]})) == ["T"]
    with pytest.raises(ValueError, match=r'no times for T.*zeit, T, S.*columns={"zeit": "t"}'):
        read({"zeit": [0.0], "T": [80.0], "S": [1.0]})
    with pytest.raises(ValueError, match="no times for h"):
        read({"h": [1.0], "T": [80.0]}, ("h",))
    assert read({"T": [0.0, 2.0], "h": [1.0, 3.0]}, ("h",))["h"].t == pytest.approx([0.0, 2.0])
    assert "column T was read as the times" in notes({"T": [0.0], "h": [1.0]}, outputs=("h",))
    with pytest.raises(ValueError, match="no times for T"):
        read({"T": [80.0], "S": [1.0]})


def test_signals_never_take_temperatures_for_times(written):
    path = written("zeit,T,S\n0,80,1\n2,60,3\n")
    with pytest.raises(ValueError, match=r't, time or Time; there are zeit, T, S.*time="zeit"'):
        steps(path, "S")
    assert steps(path, "S", time="zeit").times == pytest.approx([0.0, 2.0])
    assert ramps(path, "S", time="zeit").values == pytest.approx([1.0, 3.0])
    with pytest.raises(ValueError, match='no column is called "tau"'):
        steps(path, "S", time="tau")
    with pytest.raises(ValueError, match="no column of times"):
        steps({"T": [80.0, 60.0], "S": [1.0, 2.0]}, "S")


def test_the_index_of_a_frame_is_the_time_beside_a_column_called_t_in_capitals():
    values = {"T": [80.0, 60.0], "S": [1.0, 0.9]}
    for index in (
        pd.Index([0.0, 1.0], name="t"),
        pd.Index([0.0, 1.0], name="t [s]"),
        pd.Index(dates(0.0, 1.0)),
        pd.Index(dates(0.0, 1.0), name="stamp"),
        pd.Index(dates(0.0, 1.0)).tz_localize("UTC"),
        pd.to_timedelta([0.0, 1.0], unit="s"),
    ):
        frame = pd.DataFrame(values, index=index)
        assert read(frame)["T"].t == pytest.approx([0.0, 1.0])
        assert steps(frame, "S").times == pytest.approx([0.0, 1.0])


@pytest.mark.slow
def test_what_a_solution_with_an_output_t_in_capitals_writes_can_be_fitted():
    t = np.linspace(0.5, 5.0, 10)
    frame = saltus.solve(COOLING, START, TRUTH, 5.0, ts=t).to_pandas()
    assert saltus.fit(SCENARIO, frame)["a"] == pytest.approx(0.5, abs=1e-6)


# -- names ----------------------------------------------------------------------------------------
def test_a_misspelt_column_is_refused_with_the_nearest():
    data = {"t": [0.0], "Temp": [80.0]}
    with pytest.raises(ValueError, match=r'{"Tmep": ...}\) names no column.*Did you mean Temp\?'):
        read(data, columns={"Tmep": "T"})
    with pytest.raises(ValueError, match=r'{"spar": ...}\) names no column'):
        read(data, columns={"Temp": "T", "spar": None})
    with pytest.raises(ValueError, match=r'"TT" is not an output.*{"Temp": ...}'):
        read(data, columns={"Temp": "TT"})
    with pytest.raises(ValueError, match=r'sd names "temq". Did you mean temp\?'):
        read({"t": [0.0], "temp": [80.0]}, ("temp",), sd={"temq": 0.1})


def test_a_column_without_any_value_is_noted():
    data = {"t": [0.0, 1.0], "T": [80.0, 60.0], "S": [np.nan, np.nan]}
    assert notes(data) == " Empty columns were not used: S."


# -- twice ----------------------------------------------------------------------------------------
def test_repeated_rows_are_kept_and_noted(written):
    rows = "0,80\n1,60\n2,\n2,\n"
    once, twice = written("t,T\n" + rows, "a.csv"), written("t,T\n" + rows + rows, "b.csv")
    assert notes(once) == ""
    assert read(twice)["T"].t.size == 4
    assert "2 rows are repeated (the first: " in notes(twice)
    assert "b.csv, line 6): they count twice." in notes(twice)
    own = {"T": ([0.0, 1.0, 1.0], [80.0, 60.0, 60.0])}
    assert "1 row is repeated (the first: value 3 of T)" in notes(own)
    assert notes({"t": [0.0, 1.0, 1.0], "T": [80.0, 60.0, 61.0]}) == ""


def test_the_same_data_as_two_runs_are_noted(written):
    path = written("t,T\n0,80\n1,60\n")
    assert "Experiments run and run_2 have the same data, which count twice." in notes(path, path)
    other = saltus.Experiment(events={"alarm": [1.0, 2.0]})
    assert "run1 and run2 have the same data" in notes(other, other)
    assert notes(path, {"t": [0.0, 1.0], "T": [80.0, 61.0]}) == ""


# -- files ----------------------------------------------------------------------------------------
def test_a_file_as_excel_saves_it_is_read_with_a_note(written):
    path = written("t;T [°C]\n0;80,5\n1;60\n", encoding="cp1252")
    assert read(path, units={"T": "°C"})["T"].y == pytest.approx([80.5, 60.0])
    assert "run.csv is not in UTF-8: it was read as Windows-1252." in notes(path)
    path = written("t\tT [°C]\n0\t80\n", encoding="utf-16")
    assert list(read_table(path)) == ["t", "T [°C]"]


@pytest.mark.parametrize("name", ["a.xlsx", "a.xls", "a.ods"])
def test_spreadsheets_are_refused_with_what_to_do(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK\x03\x04\x14\x00\xee\x9d")
    with pytest.raises(ValueError, match=rf'{name} is a spreadsheet.*read_excel\("{name}"\)'):
        read_table(tmp_path / name)


def test_a_file_that_is_no_text_is_refused_by_name(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"PK\x03\x04\x14\x00\xee\x9d")
    with pytest.raises(ValueError, match=r"a.csv is not a text file"):
        read_table(tmp_path / "a.csv")


# -- cells ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text, words",
    [
        ("t,T\n0,1\n1,inf\n", "run.csv, line 3: .*infinite"),
        ("t,T\n0,1\n,2\n", "run.csv, line 3: .*without a time"),
        ("t,T\n0,1\ninf,2\n", "run.csv, line 3: .*without a time"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_row(written, text, words):
    with pytest.raises(ValueError, match=words):
        read(written(text))


def test_a_bad_cell_of_a_frame_is_named_with_column_and_row():
    frame = pd.DataFrame({"t": [0.0, 1.0, 2.0], "T": ["80", None, "Bad Input"]}, index=[5, 6, 7])
    with pytest.raises(ValueError, match=r'"T" has.*"Bad Input" in row 3 \(index 7\)'):
        read(frame)
    with pytest.raises(ValueError, match=r'"T" has.*"Bad Input" in row 3 \(index 7\)'):
        steps(frame, "T")
    assert read(frame.iloc[:2])["T"].y == pytest.approx([80.0])
    nullable = pd.DataFrame({"t": [0.0, 1.0], "T": pd.array([80, None], dtype="Int64")})
    assert read(nullable)["T"].y == pytest.approx([80.0])


def test_a_repeated_time_of_a_signal_is_named_with_file_and_rows(written):
    path = written("t,T\n0,1\n1,2\n\n0,3\n")
    with pytest.raises(ValueError, match=r"run.csv, line 5: the time .*run.csv, line 2"):
        steps(path, "T")


# -- units in parentheses -------------------------------------------------------------------------
def test_units_in_parentheses_are_units_where_they_are_known(monkeypatch):
    assert split("t (min)") == ("t", "min")
    assert split("T (upper)") == ("T (upper)", "")
    assert split("T (2)") == ("T (2)", "")
    assert split("T (K)") == ("T", "K")
    found = read({"t (min)": [1.0], "T (degC)": [20.0]}, units={"t": "s", "T": "K"})
    assert found["T"].t == pytest.approx([60.0]) and found["T"].y == pytest.approx([293.15])
    assert 'column "T (K)" was read as T in K.' in notes({"t": [0.0], "T (K)": [1.0]})
    assert "If (upper) is a unit, write [upper]" in notes(
        {"t": [0.0], "S": [1.0], "T (upper)": [1.0]}
    )
    monkeypatch.setitem(sys.modules, "pint", None)
    with pytest.raises(ValueError, match=r"If \(K\) is a unit, write \[K\].*pint"):
        read({"t": [0.0], "T (K)": [1.0]})


# -- the command line -----------------------------------------------------------------------------
MODEL = """
import saltus

system = saltus.HybridSystem(lambda now, p: {"T": -p["a"] * now.x["T"]})
model = saltus.Scenario(system, saltus.Instant(t=0.0, x={"T": 1.0}), {"a": 1.0}, t1=1.0)
"""


@pytest.mark.parametrize(
    "text, options, words",
    [
        ("t,Temp\n0,1\n1,0.4\n", [], "--columns 'Temp=...'"),
        ("zeit,T\n0,1\n1,0.4\n", [], "--columns 'zeit=t'"),
        ("t,Temp\n0,1\n1,0.4\n", ["--columns", "Tmep=T"], "'Tmep=...' names no column"),
        ("t,T\n1.77e9,1\n1770000001,0.4\n", [], "--t0 1770000000, or --t0 0"),
    ],
)
def test_messages_on_the_command_line_name_its_options(written, capsys, text, options, words):
    model = written(MODEL, "model.py")
    assert main(["fit", f"{model}:model", str(written(text)), *options]) == 2
    err = capsys.readouterr().err
    assert words in err and "Experiment" not in err


@pytest.mark.slow
def test_columns_on_the_command_line_may_be_those_of_some_files(written, capsys):
    model = written(MODEL, "model.py")
    files = [written("t,Temp\n0,1\n1,0.4\n", "a.csv"), written("t,T\n0,1\n1,0.41\n", "b.csv")]
    given = ["fit", f"{model}:model", *map(str, files), "--noise", "T=0.01"]
    assert main([*given, "--columns", "Temp=T"]) == 0
    assert main([*given, "--columns", "Tmep=T"]) == 2
    assert "--columns 'Tmep=...' names no column" in capsys.readouterr().err
