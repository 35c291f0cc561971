"""Data that can be read in two ways: decimal marks, names that occur twice, indices, clocks."""

import numpy as np
import pandas as pd
import pytest

import saltus
from saltus.estimate import data_notes
from saltus.estimate.data import experiments
from saltus.estimate.measurements import event_times, series
from saltus.io import ramps, steps

OUTPUTS = ("a", "b")


def read(data, units=None, **options):
    (experiment,) = experiments(saltus.Experiment(data, **options))
    return series(experiment, OUTPUTS, units)


def notes(data, units=None):
    return data_notes.notes(experiments([data]), OUTPUTS, units)


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "run.csv"
        path.write_text(text)
        return path

    return write


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
