"""What is drawn of a solution: stairs, inputs, discrete states, ranges of long runs."""

from types import SimpleNamespace

import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest

import saltus
import saltus.plot
from saltus import Fixed, HybridSystem, Instant, Steps, TimeEvent, Tsit5, every, solve


@pytest.fixture(autouse=True)
def pyplot():
    from matplotlib import pyplot

    with matplotlib.rc_context({"backend": "Agg"}):
        yield pyplot
        pyplot.close("all")


@pytest.fixture(scope="module")
def sampled():
    """h' = pump + u, u = -h at the last tick."""
    tick = TimeEvent("tick", every(0.5), reset=lambda now, p: now.replace(d={"u": -now.x["h"]}))
    system = HybridSystem(
        lambda now, p: {"h": now.u["pump"] + now.d["u"]},
        events=[tick],
        inputs={"pump": Steps([0.0, 0.8], [1.0, 0.25])},
        output=lambda now, p: {"h": now.x["h"], "held": 2.0 * now.d["u"]},
        units={"pump": "l/s", "u": "V"},
    )
    return solve(system, Instant(t=0.0, x={"h": 1.0}, d={"u": 0.5}), None, 1.7)


def test_what_is_held_between_ticks_is_one_stair_without_marks(sampled):
    axis = sampled.plot("held").axes[0]
    assert not [line for line in axis.get_lines() if line.get_marker() == "o"]
    (stair,) = [line for line in axis.get_lines() if len(line.get_xdata()) > 4]
    t, held = np.asarray(stair.get_xdata()), np.asarray(stair.get_ydata())
    assert np.all(np.diff(t) >= 0) and len(np.unique(held)) == 4
    changes = np.flatnonzero(np.diff(held))
    assert np.allclose(t[changes], [0.5, 1.0, 1.5]) and np.all(np.diff(t)[changes] == 0)
    assert held[-1] == 2.0 * sampled.final.d["u"]


def test_a_state_with_kinks_is_no_stair(sampled):
    axis = sampled.plot("h").axes[0]
    assert len([line for line in axis.get_lines() if len(line.get_xdata()) > 4]) > 1


def test_inputs_and_discrete_states_are_drawn_by_name_and_on_request(sampled):
    labels = lambda figure: [axis.get_ylabel() for axis in figure.axes]
    assert labels(sampled.plot()) == ["h", "held"]
    assert labels(sampled.plot("u", "h", "pump")) == ["u [V]", "h", "pump [l/s]"]
    assert labels(sampled.plot("h", inputs=True)) == ["h", "pump [l/s]"]
    figure = sampled.plot("h", inputs=True, discrete=True)
    assert labels(figure) == ["h", "pump [l/s]", "u [V]"]
    pump = max(figure.axes[1].get_lines(), key=lambda line: len(line.get_xdata()))
    assert set(pump.get_ydata()) == {1.0, 0.25}
    with pytest.raises(KeyError, match=r'nothing is called "pumps"; there are .*pump'):
        sampled.plot("pumps")


def test_a_file_says_that_it_has_no_inputs(sampled, tmp_path):
    loaded = saltus.Solution.load(sampled.save(tmp_path / "file"))
    assert len(loaded.plot().axes) == 2
    with pytest.raises(ValueError, match=r"a file keeps outputs.*Put them into"):
        loaded.plot(inputs=True)


def test_a_long_run_is_drawn_as_the_range_of_every_column():
    """7,500 steps of a rotation: every value of cos t lies in the range of its column."""
    turn = HybridSystem(lambda now, p: {"c": -now.x["s"], "s": now.x["c"]})
    start, method = Instant(t=0.0, x={"c": 1.0, "s": 0.0}), Tsit5(control=Fixed(0.2))
    axis = solve(turn, start, None, 1500.0, method=method).plot("c").axes[0]
    low, high = (np.asarray(line.get_ydata()) for line in axis.get_lines())
    at = np.asarray(axis.get_lines()[0].get_xdata())
    assert len(at) <= saltus.plot.PANEL_COLUMNS and (at[0], at[-1]) == (0.0, 1500.0)
    middle = slice(1, -1)
    assert np.all(low[middle] <= np.cos(at[middle]) + 2e-2)  # steps of 0.2 miss a top by 5e-3
    assert np.all(high[middle] >= np.cos(at[middle]) - 2e-2)
    assert high.max() == pytest.approx(1.0, abs=1e-3) and low.min() == pytest.approx(-1.0, abs=1e-3)
    assert "7,500 steps" in axis.get_title("right")


def test_events_of_a_sliding_surface_are_named_by_what_they_do():
    mode = lambda *k: SimpleNamespace(mode=np.array(k))
    log = SimpleNamespace(
        count=3, which=np.array([0, 1, 1]), t=np.array([1.0, 2.0, 3.0]),
        names=("belt: above", "belt: below"), modes=("above", "below", "sliding"),
        before=mode(0, 2, 1), after=mode(2, 1, 0),
    )  # fmt: skip
    kinds = saltus.plot._kinds(log)
    assert list(kinds) == ["belt: above → sliding", "belt: sliding → below", "belt: below → above"]
    assert [float(t[0]) for t in kinds.values()] == [1.0, 2.0, 3.0]


def test_of_very_many_events_one_is_marked_in_each_column():
    many = np.sort(np.random.default_rng(0).uniform(0.0, 10.0, 20_000))
    shown = saltus.plot._columns(many)
    assert len(shown) <= saltus.plot.PANEL_COLUMNS + 1 and np.max(np.diff(shown)) < 0.05
    assert np.array_equal(saltus.plot._columns(jnp.arange(3.0)), [0.0, 1.0, 2.0])
