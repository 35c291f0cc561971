"""Names, scales, tables and pairs of events: the parts of a fit that need no simulation."""

import itertools
import types

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import saltus
from saltus.estimate.data import experiments
from saltus.estimate.event_matching import match
from saltus.estimate.measurements import event_times, series
from saltus.estimate.noise import Student
from saltus.estimate.parameters import LogNormal, Normal
from saltus.estimate.search import is_minimum
from saltus.estimate.selection import choose
from saltus.estimate.uncertainty import inverse, weak_directions
from saltus.io.data_files import read_csv
from saltus.io.units import split

P = {"k": 2.0, "arm": {"c": 0.5, "w": jnp.array([1.0, 2.0, 3.0])}, "n": 3}
START = saltus.Instant(t=0.0, x={"h": 3.0, "v": 0.0})
times = st.lists(st.floats(0.0, 10.0), max_size=5).map(sorted)


# -- what is free -------------------------------------------------------------------------------
def chosen(**options):
    return choose(P, [START], ["run1"], **options)


@pytest.mark.parametrize(
    "free, names",
    [
        (None, ["arm.c", "arm.w[0]", "arm.w[1]", "arm.w[2]", "k"]),
        (["k"], ["k"]),
        (["arm"], ["arm.c", "arm.w[0]", "arm.w[1]", "arm.w[2]"]),
        (["arm.w[1]", "start.v"], ["arm.w[1]", "start.v"]),
        (["*.c"], ["arm.c"]),
    ],
)
def test_free_numbers_are_named_exactly_by_prefix_entry_or_pattern(free, names):
    assert chosen(free=free).names == names


def test_a_start_is_free_for_every_experiment_on_its_own():
    free = choose(P, [START, START], ["a", "b"], ["start.v"])
    assert free.names == ["a.start.v", "b.start.v"]


def test_a_name_that_is_not_there_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r'"arm\.d".*Did you mean arm\.w or arm\.c'):
        chosen(free=["arm.d"])


@given(
    st.sampled_from(["linear", "log", "logit"]),
    st.floats(0.05, 0.95).map(lambda s: 1.0 + 8.0 * s),
)
def test_every_scale_leads_there_and_back(scale, value):
    bounds = {"k": (1.0, 9.0)}
    free = choose({"k": value}, [], [], ["k"], bounds, {"k": scale})
    assert float(free.natural(free.initial)[0]) == pytest.approx(value, rel=1e-12)
    step = 1e-6
    ahead, behind = (float(free.natural(free.initial + s * step)[0]) for s in (1, -1))
    assert free.slopes(free.initial)[0] == pytest.approx((ahead - behind) / (2 * step), rel=1e-6)
    low, high = (float(np.asarray(free.natural(np.array(v)))[0]) for v in (free.low, free.high))
    assert (low, high) == pytest.approx((1.0, 9.0), rel=1e-12)


def test_a_negative_number_stays_negative_on_the_log_scale():
    free = choose({"k": -2.0}, [], [], ["k"], {"k": (-5.0, -1.0)}, {"k": "log"})
    assert float(free.natural(free.initial)[0]) == pytest.approx(-2.0)
    ends = [float(np.asarray(free.natural(np.array(v)))[0]) for v in (free.low, free.high)]
    assert sorted(ends) == pytest.approx([-5.0, -1.0])


@pytest.mark.parametrize(
    "options, words",
    [
        ({"bounds": {"k": (3.0, 4.0)}}, "outside of its bounds"),
        ({"bounds": {"k": (4.0, 3.0)}}, "low must be below high"),
        ({"scales": {"k": "cubic"}}, "expected one of"),
        ({"scales": {"k": "logit"}}, "needs two bounds"),
        ({"free": []}, "nothing is free"),
        ({"free": ["start.v"], "scales": {"start.v": "log"}}, "has no logarithm"),
        ({"bounds": {"q": (0, 1)}}, 'called "q"'),
        ({"bounds": (0.0, 1.0)}, r'bounds is \(0.0, 1.0\), expected entries by name: bounds={"k"'),
        ({"bounds": [(0.0, 1.0), (0.0, 2.0)]}, "bounds is .*expected entries by name"),
        ({"bounds": {"k": 3.0}}, r'bounds of "k" are 3.0, expected \(low, high\)'),
        ({"bounds": {"k": (1.0, 2.0, 3.0)}}, r'bounds of "k" are .*expected \(low, high\)'),
        ({"scales": "log"}, "scales is 'log', expected entries by name"),
        ({"priors": [(1.0, 2.0)]}, "priors is .*expected entries by name"),
    ],
)
def test_wrong_wishes_are_answered_in_words(options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        chosen(**options)


def test_priors_are_residuals():
    free = chosen(free=["k", "arm.c"], priors={"k": (1.0, 0.5), "arm.c": LogNormal(1.0, 2.0)})
    assert np.allclose(free.prior_residuals(free.initial), [2.0, -1.0])
    assert Normal(1.0, 0.5).residual(2.0) == 2.0


# -- tables -------------------------------------------------------------------------------------
def measured(data, outputs=("h", "v"), units=None, **options):
    (experiment,) = experiments(saltus.Experiment(data, **options))
    return series(experiment, outputs, units)


def test_a_csv_file_is_read_with_units_gaps_and_comments(tmp_path):
    path = tmp_path / "drop.csv"
    path.write_text("# made by hand\nt [s],h [m],v\n0.0,1.5,\n0.5,,2.0\n1.0,0.5,NA\n")
    found = measured(path, units={"h": "m"})
    assert np.array_equal(found["h"].t, [0.0, 1.0])
    assert np.array_equal(found["h"].y, [1.5, 0.5])
    assert np.array_equal(found["v"].t, [0.5])
    assert experiments(path)[0].name == "drop"


def test_a_csv_file_with_semicolons_may_have_decimal_commas(tmp_path):
    path = tmp_path / "drop.csv"
    path.write_text("t;h\n0,5;1,25\n")
    assert np.array_equal(read_csv(path)["h"], [1.25])


def test_what_a_solution_writes_is_read_back(tmp_path):
    frame = pd.DataFrame({"h [m]": [1.0, np.nan, 3.0]}, index=pd.Index([0.0, 1.0, 2.0], name="t"))
    assert np.array_equal(measured(frame)["h"].y, [1.0, 3.0])
    frame.to_csv(tmp_path / "a.csv")
    assert np.array_equal(measured(tmp_path / "a.csv")["h"].t, [0.0, 2.0])


def test_outputs_may_have_times_of_their_own_and_columns_other_names():
    data = {"height_m": ([0.0, 1.0], [5.0, 4.0]), "v": ([0.5], [1.0]), "note": ([0.0], [0.0])}
    found = measured(
        {k: tuple(map(np.asarray, v)) for k, v in data.items()},
        columns={"height_m": "h", "note": None},
    )
    assert list(found) == ["h", "v"]
    assert found["h"].t.size == 2


@pytest.mark.parametrize(
    "data, words",
    [
        ({"t": [0.0], "height": [1.0]}, 'column "height" is not an output.*h, v'),
        ({"h": [1.0]}, "no times for h"),
        ({"t": [0.0, 1.0], "h": [1.0]}, "expected one axis of equal length"),
        ({"t": [0.0], "h [kg]": [1.0]}, "is in kg, the model has h in m"),
        ({"t": [0.0], "h": np.array(["low"], dtype=object)}, "not numbers"),
        (3.0, "is not a table"),
        ("no_such_file.csv", "no file"),
    ],
)
def test_data_that_do_not_fit_the_model_are_refused_in_words(data, words):
    with pytest.raises((ValueError, TypeError), match=words):
        measured(data, units={"h": "m"})


def test_headers_are_names_and_units():
    assert split("h [m]") == ("h", "m")
    assert split("q[0]") == ("q[0]", "")
    assert split("q[0] [rad]") == ("q[0]", "rad")


def test_event_times_come_as_lists_or_as_a_table_of_events():
    (by_list,) = experiments(saltus.Experiment(events={"bounce": [2.0, 1.0]}))
    assert np.array_equal(event_times(by_list, ["bounce"])["bounce"].t, [1.0, 2.0])
    log = {"t": [0.5, 1.0], "event": ["hit", "bounce"], "h before": [0.0, 0.0]}
    (by_table,) = experiments(saltus.Experiment(events=log))
    assert list(event_times(by_table, ["bounce", "hit"])) == ["hit", "bounce"]
    with pytest.raises(ValueError, match='no event of the model is called "hit"'):
        event_times(by_table, ["bounce"])


# -- pairs of events ----------------------------------------------------------------------------
def cost(pairs, a, b, end, reach):
    alone = [x for j, x in enumerate(a) if j not in {j for _, j in pairs}]
    alone += [x for i, x in enumerate(b) if i not in {i for i, _ in pairs}]
    paired = sum((a[j] - b[i]) ** 2 for i, j in pairs)
    return paired + sum((reach * np.tanh((end - x) / reach)) ** 2 for x in alone)


def least_cost(a, b, end, reach):
    return min(
        cost(list(zip(some_b, some_a, strict=True)), a, b, end, reach)
        for k in range(min(len(a), len(b)) + 1)
        for some_a in itertools.combinations(range(len(a)), k)
        for some_b in itertools.combinations(range(len(b)), k)
    )


@given(times, times, st.sampled_from([0.5, 2.0, 20.0]))
def test_the_pairing_of_events_is_the_best_that_keeps_their_order(a, b, reach):
    padded = jnp.array([*a, *[np.nan] * (6 - len(a))])
    partner, taken = match(padded, jnp.array(b, dtype=float), 10.0, reach)
    pairs = [(i, int(j)) for i, j in enumerate(np.asarray(partner)) if j >= 0]
    assert [j for _, j in pairs] == sorted({j for _, j in pairs})
    assert sorted(np.flatnonzero(taken)) == [j for _, j in pairs]
    assert cost(pairs, a, b, 10.0, reach) == pytest.approx(least_cost(a, b, 10.0, reach), abs=1e-9)


@pytest.mark.parametrize("slope, small", [(5e-4, True), (2e-3, False), (0.15, False)])
def test_many_numbers_are_at_a_minimum_where_no_entry_of_the_gradient_is_large(slope, small):
    many, slopes = 200, np.zeros(200)
    slopes[7], slopes[8] = slope, 1.0  # and one that a bound holds
    low = np.where(np.arange(many) == 8, 0.0, -np.inf)
    target = types.SimpleNamespace(
        free=types.SimpleNamespace(size=many), low=low, high=np.full(many, np.inf),
        gradient=lambda u: (1.0, slopes), size_of_data=lambda: 1.0,
    )  # fmt: skip
    assert is_minimum(target, np.zeros(many), "l-bfgs-b") is small


# -- statistics ---------------------------------------------------------------------------------
@given(st.floats(-1e3, 1e3))
def test_students_residual_is_its_likelihood_and_can_be_undone(r):
    student = Student(4.0)
    rho = float(student.transform(jnp.asarray(r)))
    assert rho**2 == pytest.approx(5.0 * np.log1p(r**2 / 4.0), rel=1e-9, abs=1e-20)
    assert float(student.restore(np.asarray(rho))) == pytest.approx(r, rel=1e-6, abs=1e-9)


def test_a_direction_without_information_has_infinite_variance():
    j = np.array([[1.0, 1.0], [2.0, 2.0]])
    assert np.all(np.isinf(np.diag(inverse(j.T @ j))))
    assert inverse(np.diag([4.0, 1.0])) == pytest.approx(np.diag([0.25, 1.0]))


def test_weak_directions_are_named():
    rows = np.array([[1, 1, 0], [0, 0, 1], [-1, 1, 0]]) / np.array([[2**0.5], [1], [2**0.5]])
    (both, one) = weak_directions(["m", "k", "c"], np.array([50.0, 1.0, 0.0]), rows)
    assert both.startswith("m and k trade off") or both.startswith("k and m trade off")
    assert "not at all" in both
    assert one == "c is determined only to 1e+02 % (one standard deviation)."
