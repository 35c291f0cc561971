"""Data as it comes: cells that are no numbers, dates, units, other columns, Parquet, signals."""

import sys

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet as pq
import pytest

import saltus
from saltus.estimate.data import experiments
from saltus.estimate.data_notes import notes
from saltus.estimate.measurements import event_times, series
from saltus.io import ramps, read_table, steps

OUTPUTS = ("h", "v")


def measured(data, units=None, **options):
    (experiment,) = experiments(saltus.Experiment(data, **options))
    return series(experiment, OUTPUTS, units)


# -- what is wrong, and where ---------------------------------------------------------------------
@pytest.mark.parametrize(
    "text, words",
    [
        ("# made by hand\n\nt,h\n0,1\n1,1.2.3\n", r'run.csv, line 5, column "h": "1.2.3" is not a'),
        ("t,h\n0,1\n1\n", r'2 columns, but line 3 has 1 cells: there is none for "h"'),
        ("t,h\n0,1\n1,2,3\n", "2 columns, but line 3 has 3 cells"),
        ("t,h,h\n0,1,1\n", 'two columns called "h"'),
        ("t,h\n0,1\nsoon,2\n", r'run.csv, line 3, column "t": "soon" is not a number'),
        ("t,h\nnow,1\n", r'run.csv, line 2, column "t": "now" is neither a number nor a date'),
        ("t,h [m],h [cm]\n0,1,1\n", 'two columns are "h" in the model'),
        ("t,h\n", "no rows under a header"),
    ],
)
def test_a_file_with_a_mistake_is_answered_with_file_line_and_cell(written, text, words):
    with pytest.raises(ValueError, match=words):
        measured(written(text))


# -- columns the model does not have --------------------------------------------------------------
def test_columns_that_the_model_does_not_have_are_ignored_with_a_note(written):
    path = written("t,h,comment,temperature\n0,1,fine,20\n1,2,also fine,21\n")
    assert list(measured(path)) == ["h"]
    (experiment,) = experiments(path)
    assert "ignored: comment, temperature." in notes([experiment], OUTPUTS, None)
    (clean,) = experiments(saltus.Experiment(path, columns={"comment": None, "temperature": "v"}))
    assert notes([clean], OUTPUTS, None) == ""
    assert list(series(clean, OUTPUTS, None)) == ["h", "v"]


def test_a_column_that_is_nearly_an_output_is_told_so():
    (e,) = experiments({"t": [0.0], "height": [1.0], "hight": [1.0]})
    words = 'If hight is height, write Experiment(columns={"hight": "height"})'
    assert words in notes([e], ["height"], None)
    with pytest.raises(ValueError, match='column "x" is not an output'):
        measured({"t": [0.0], "h": [1.0], "a": [1.0]}, columns={"a": "x"})


# -- dates ----------------------------------------------------------------------------------------
ISO = "t,h\n2026-03-01T12:00:00,1\n2026-03-01T12:00:01.5,2\n2026-03-02T12:00:00,3\n"


@pytest.mark.parametrize(
    "options, units, wanted",
    [
        ({}, None, [0.0, 1.5, 86400.0]),
        ({"t0": "2026-03-01T11:59:59"}, None, [1.0, 2.5, 86401.0]),
        ({}, {"t": "min"}, [0.0, 0.025, 1440.0]),
    ],
)
def test_dates_count_from_the_first_or_from_t0_in_the_unit_of_the_model(
    written, options, units, wanted
):
    assert measured(written(ISO), units, **options)["h"].t == pytest.approx(wanted, abs=1e-6)


def test_dates_come_with_time_zones_as_numpy_dates_and_from_pandas():
    zones = ["2026-03-01T12:00:00Z", "2026-03-01T14:00:10+02:00"]
    assert measured({"t": zones, "h": [1.0, 2.0]})["h"].t == pytest.approx([0.0, 10.0])
    dates = np.array(["2026-03-01T00:00:00", "2026-03-01T00:00:02"], dtype="datetime64[s]")
    assert measured({"t": dates, "h": [1.0, 2.0]})["h"].t == pytest.approx([0.0, 2.0])
    with pytest.raises(ValueError, match="some times have a time zone and others have none"):
        measured({"t": [zones[0], "2026-03-01T12:00:00"], "h": [1.0, 2.0]})
    frame = pd.DataFrame({"h": [1.0, 2.0]}, index=pd.date_range("2026-03-01", periods=2, freq="h"))
    assert measured(frame)["h"].t == pytest.approx([0.0, 3600.0])


def test_events_count_from_where_the_outputs_do(written):
    log = {"t": ["2026-03-01T12:00:05"], "event": ["bounce"]}
    (e,) = experiments(saltus.Experiment(written(ISO), events=log))
    assert event_times(e, ["bounce"])["bounce"].t == pytest.approx([5.0])


# -- units ----------------------------------------------------------------------------------------
def test_columns_in_other_units_are_converted():
    units = {"h": "m", "v": "K", "t": "s"}
    data = {"t [min]": [0.0, 1.0], "h [cm]": [100.0, 250.0], "v [degC]": [0.0, 20.0]}
    found = measured(data, units)
    assert found["h"].y == pytest.approx([1.0, 2.5])
    assert found["h"].t == pytest.approx([0.0, 60.0])
    assert found["v"].y == pytest.approx([273.15, 293.15])
    with pytest.raises(ValueError, match="is in kg, the model has h in m"):
        measured({"t": [0.0], "h [kg]": [1.0]}, units)


def test_without_pint_a_unit_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pint", None)
    with pytest.raises(ValueError, match=r"is in cm, the model has h in m.*saltus\[units\]"):
        measured({"t": [0.0], "h [cm]": [1.0]}, {"h": "m"})


# -- Parquet, signals, and back -------------------------------------------------------------------
def test_parquet_is_read_like_csv(tmp_path):
    dates = np.array(["2026-03-01T00:00:00", "2026-03-01T00:00:02"], dtype="datetime64[us]")
    pq.write_table(pyarrow.table({"time": dates, "h": [1.0, 2.0]}), tmp_path / "run.parquet")
    assert list(read_table(tmp_path / "run.parquet")) == ["time", "h"]
    assert measured(tmp_path / "run.parquet")["h"].t == pytest.approx([0.0, 2.0])


def test_columns_become_input_signals(written):
    path = written("t,valve,flow\n0,1,0\n2,0,\n3,0.5,6\n")
    assert isinstance(steps(path, "valve"), saltus.Steps)
    system = saltus.HybridSystem(
        lambda now, p: {"x": now.u["valve"], "y": now.u["flow"]},
        inputs={"valve": steps(path, "valve"), "flow": ramps(path, "flow")},
    )
    sol = saltus.solve(system, saltus.Instant(t=0.0, x={"x": 0.0, "y": 0.0}), None, 3.0)
    assert sol.final.x["x"] == pytest.approx(2.0)
    assert sol.final.x["y"] == pytest.approx(9.0)
    with pytest.raises(ValueError, match='no column is called "pump"; there are t, valve, flow'):
        steps(path, "pump")


def test_a_solution_writes_a_csv_file_that_reads_back_to_the_last_digit(tmp_path):
    system = saltus.HybridSystem(lambda now, p: {"h": -now.x["h"], "v": 0.0}, units={"h": "m"})
    start = saltus.Instant(t=0.0, x={"h": 1.0, "v": 2.0})
    sol = saltus.solve(system, start, None, 1.0, ts=np.linspace(0.0, 1.0, 4))
    path = sol.to_csv(tmp_path / "out.csv")
    assert path.read_text().startswith("t,h [m],v\n")
    assert np.array_equal(measured(path)["h"].y, np.asarray(sol.y["h"]))
    end = saltus.solve(system, start, None, 1.0).to_csv(tmp_path / "end.csv")
    assert len(end.read_text().splitlines()) == 2
