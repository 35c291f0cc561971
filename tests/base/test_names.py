"""Numbers in a model by name: which there are, and how they are replaced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus.base.names import (
    UnknownName,
    WrongValue,
    leaf_names,
    number_names,
    value_of,
    with_values,
)
from saltus.cli.options import parse_value
from saltus.solver.scenario import override, scenario_names

TREE = {
    "k": 1.0,
    "n": 3,
    "arm": [{"k": 2.0}],
    "w": jnp.arange(3.0),
    "A": np.ones((2, 2), np.float32),
    "name": "spring",
    "law": abs,
    "seed": jax.random.key(0),
}


def test_names_are_those_of_numbers_and_arrays_only():
    assert sorted(leaf_names(TREE)) == ["A", "arm[0].k", "k", "n", "w"]
    assert leaf_names(1.0, "p") == ["p"]
    assert leaf_names([1.0, {"a": 2.0}], "p") == ["p[0]", "p[1].a"]
    assert leaf_names(None, "p") == []


def test_entries_of_arrays_have_names_too():
    assert number_names({"w": jnp.zeros(2), "A": jnp.zeros((1, 2))}) == [
        "A[0,0]", "A[0,1]", "w[0]", "w[1]",
    ]  # fmt: skip
    assert value_of(TREE, "w[2]") == 2.0


def test_values_are_replaced_and_nothing_else_is():
    new = with_values(TREE, {"k": 5, "arm[0].k": 7.5, "w[1]": 9, "A": [[1, 2], [3, 4]]})
    assert (new["k"], new["arm"][0]["k"]) == (5.0, 7.5)
    assert isinstance(new["k"], float)
    np.testing.assert_array_equal(new["w"], [0.0, 9.0, 2.0])
    np.testing.assert_array_equal(new["A"], [[1, 2], [3, 4]])
    assert new["A"].dtype == np.float32
    assert new["law"] is abs and new["name"] == "spring" and new["seed"] is TREE["seed"]
    assert TREE["k"] == 1.0
    np.testing.assert_array_equal(TREE["w"], [0.0, 1.0, 2.0])


@pytest.mark.parametrize("value, kept", [(4, int), (4.5, float)])
def test_a_whole_number_stays_one_until_a_fraction_comes(value, kept):
    assert type(with_values(TREE, {"n": value})["n"]) is kept


def test_replaced_values_can_be_differentiated_also_in_whole_numbers():
    def total(v):
        new = with_values(TREE, {"k": v, "w[1]": 2 * v, "n": v})
        return new["k"] + jnp.sum(new["w"]) + 10 * new["n"]

    assert jax.grad(total)(1.5) == 13.0


@pytest.mark.parametrize(
    "values, words",
    [
        ({"kk": 1}, 'no number is called "kk". Did you mean k?'),
        ({"arm.k": 1}, "Did you mean arm[0].k"),
        ({"name": 1}, 'no number is called "name"'),
        ({"w[3]": 1}, "w has shape (3,), and entries are counted from 0"),
        ({"k[0]": 1}, "k is one number"),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_those_that_are(values, words):
    with pytest.raises(UnknownName) as error:
        with_values(TREE, values)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "values, words",
    [
        ({"w": 1.0}, "Write w=[1.5, 1.5, 1.5], or w[0]=1.5 for one entry."),
        ({"k": [1, 2]}, "k is one number"),
        ({"k": "two"}, "expected a number, or a list of numbers"),
        ({"A": [[1, 2], [3]]}, "expected a number, or a list of numbers"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_the_line_to_write(values, words):
    with pytest.raises(WrongValue) as error:
        with_values(TREE, values)
    assert words in str(error.value)


def test_values_are_read_as_a_person_writes_them():
    assert parse_value("k", "2.5") == 2.5
    assert parse_value("k", "-1e-3") == -1e-3
    assert parse_value("w", "[1, 2,3]") == [1, 2, 3]
    assert parse_value("b", "true") is True
    assert parse_value("k", "inf") == np.inf
    for text in ("two", "[1, [2]]", "__import__('os')", "1j", "'a'"):
        with pytest.raises(WrongValue, match="expected a number or a list"):
            parse_value("k", text)


FALL = saltus.HybridSystem(lambda now, p: {"h": now.x["v"], "v": -p["g"]})


def test_a_scenario_has_the_names_of_its_parameters_and_of_its_start():
    scenario = saltus.Scenario(FALL, saltus.Instant(0.0, {"h": 1.0, "v": 0.0}), {"g": 9.81}, 1.0)
    assert scenario_names(scenario) == ["g", "start.h", "start.v"]
    new = override(scenario, {"g": 1, "start.v": 3})
    assert new.p == {"g": 1.0}
    assert new.start.x == {"h": 1.0, "v": 3.0}
    with pytest.raises(UnknownName, match=r"Did you mean start\.v"):
        override(scenario, {"start.vv": 3})


def test_a_start_that_follows_parameters_still_does_where_it_was_not_set():
    start = lambda p: saltus.Instant(0.0, {"h": 2 * p["g"], "v": p["g"]})
    scenario = saltus.Scenario(FALL, start, {"g": 1.0}, 1.0)
    new = override(scenario, {"g": 4.0, "start.v": 3.0})
    assert new.start_at(new.p).x == {"h": 8.0, "v": 3.0}
    assert new.start_at({"g": 5.0}).x == {"h": 10.0, "v": 3.0}
