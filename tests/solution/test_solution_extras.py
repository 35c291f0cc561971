"""What a solution shows of itself: words, figures, files, data frames."""

import sys

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest

import saltus
from saltus import Event, Exit, HybridSystem, Instant, Mode, Solution

UNITS = {"t": "s", "h": "m", "v": "m/s", "integral": "m s"}
P = {"g": 9.81, "e": 0.8}


def bounce(now, p):
    return now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]})


BALL = HybridSystem(
    flow=lambda now, p: {"h": now.x["v"], "v": -p["g"] - 0.05 * now.x["v"]},
    events=[Event("bounce", guard=lambda now, p: now.x["h"], reset=bounce)],
    rate=lambda now, p: now.x["h"],
    units=UNITS,
)
START = Instant(t=0.0, x={"h": 5.0, "v": 0.0})
TS = np.linspace(0.0, 4.0, 9)


def solve(p=P, ts=TS, **options):
    return saltus.solve(BALL, START, p, 4.0, ts=ts, **options)


@pytest.fixture(scope="module")
def sol():
    return solve()


@pytest.fixture(scope="module")
def batch():
    return jax.vmap(lambda e: solve({**P, "e": e}))(jnp.array([0.7, 0.8, 0.9]))


@pytest.fixture(scope="module")
def loaded(sol, tmp_path_factory):
    return Solution.load(sol.save(tmp_path_factory.mktemp("saved") / "ball"))


@pytest.fixture(scope="module")
def thermostat():
    heat = Exit(lambda now, p: now.x["T"] - 18.0, to="on", name="too cold")
    rest = Exit(lambda now, p: now.x["T"] - 22.0, to="off", direction="rising", name="too warm")
    room = saltus.automaton(
        {
            "off": Mode(lambda now, p: {"T": -now.x["T"]}, exits=[heat]),
            "on": Mode(lambda now, p: {"T": 30.0 - now.x["T"]}, exits=[rest]),
        }
    )
    return saltus.solve(room, Instant(t=0.0, x={"T": 20.0}, mode="off"), None, 1.0)


@pytest.fixture(scope="module")
def pair():
    """Two balls as one family: array leaves, members, a discrete state."""
    system = HybridSystem(
        flow=lambda now, p: {"h": now.x["v"], "v": -9.81 * jnp.ones(2)},
        events=[
            Event(
                "bounce",
                guard=lambda now, p: now.x["h"],
                reset=lambda now, p: now.replace(
                    x={"h": now.x["h"], "v": now.x["v"].at[now.member].multiply(-0.8)},
                    d={"n": now.d["n"] + 1},
                ),
            )
        ],
    )
    start = Instant(t=0.0, x={"h": jnp.array([1.0, 2.0]), "v": jnp.zeros(2)}, d={"n": 0})
    return saltus.solve(system, start, None, 1.5, ts=np.linspace(0, 1.5, 4))


# -- words --------------------------------------------------------------------------------------


def test_a_solution_reads_as_result_range_cost_events_and_values(sol):
    text = repr(sol)
    for words in ["success", "0 to 4 s", f'{int(sol.events.count)} x "bounce"', "9 times", "m/s"]:
        assert words in text
    assert f"h = {float(sol.final.x['h']):.6g} m" in text
    assert f"{float(sol.integral):.6g} m s" in text


def test_a_failed_solution_says_where_and_why(sol):
    text = repr(solve(max_steps=10, throw=False))
    assert "too_many_steps at t = " in text
    assert "max_steps" in text


def test_a_batch_says_how_many_and_the_range_of_its_values(batch):
    text = repr(batch)
    assert "a batch of 3: 3 success" in text
    counts = np.asarray(batch.stats.events)
    assert f"{counts.min()}..{counts.max()}" in text


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.vmap])
def test_a_traced_solution_can_be_printed(transform):
    seen = []

    def height(e):
        sol = solve({**P, "e": e})
        seen.append(f"{sol}\n{sol.events}")
        return sol.final.x["h"]

    transform(height)(jnp.array([0.8]) if transform is jax.vmap else 0.8)
    assert "float64" in seen[0]
    assert "EventLog, traced" in seen[0]


def test_the_event_log_shows_both_sides_of_a_jump(sol):
    lines = repr(sol.events).splitlines()
    assert lines[0] == f"EventLog: {int(sol.events.count)} events"
    assert "t [s]" in lines[1] and "v [m/s]" in lines[1]
    before, after = sol.events.before.x["v"][0], sol.events.after.x["v"][0]
    assert f"{before:.6g} -> {after:.6g}" in lines[3]


def test_the_event_log_names_modes_and_members(thermostat, pair):
    assert "off -> on" in repr(thermostat.events)
    assert "bounce[0]" in repr(pair.events) and "bounce[1]" in repr(pair.events)


def test_no_events_is_said_so():
    quiet = HybridSystem(lambda now, p: -now.x)
    sol = saltus.solve(quiet, Instant(t=0.0, x=1.0), None, 1.0)
    assert "no events" in repr(sol.events)
    assert "x = 0.367879" in repr(sol)


def test_a_long_log_is_cut_and_says_by_how_much():
    ticking = HybridSystem(
        lambda now, p: 0.0 * now.x, events=[saltus.TimeEvent("tick", saltus.every(0.1))]
    )
    sol = saltus.solve(ticking, Instant(t=0.0, x=1.0), None, 5.05)
    assert repr(sol.events).endswith("... and 30 more")


def test_one_solution_of_a_batch_is_the_solution_of_its_own(batch):
    one, own = batch[1], solve()
    assert np.allclose(one.y["h"], own.y["h"], atol=1e-12)
    assert np.allclose(one.events.t, own.events.t, atol=1e-12)
    assert repr(one) == repr(own)


def test_one_solution_has_no_lanes(sol, loaded):
    for each in (sol, loaded):
        with pytest.raises(TypeError, match="not a batch"):
            each[0]


# -- figures ------------------------------------------------------------------------------------


@pytest.fixture
def pyplot():
    from matplotlib import pyplot

    with matplotlib.rc_context({"backend": "Agg"}):
        yield pyplot
        pyplot.close("all")


def test_a_plot_has_a_panel_per_state_with_names_units_and_events(sol, pyplot, tmp_path):
    figure = sol.plot()
    assert [axis.get_ylabel() for axis in figure.axes] == ["h [m]", "v [m/s]"]
    assert figure.axes[-1].get_xlabel() == "t [s]"
    count = int(sol.events.count)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [f"bounce ({count})"]
    figure.savefig(tmp_path / "ball.png")


def test_a_curve_breaks_at_a_jump_and_shows_both_limits(sol, pyplot):
    axis = sol.plot("v").axes[0]
    open_, closed = [line for line in axis.get_lines() if line.get_marker() == "o"]
    assert np.allclose(open_.get_ydata(), sol.events.before.x["v"])
    assert np.allclose(closed.get_ydata(), sol.events.after.x["v"])
    curves = [line for line in axis.get_lines() if len(line.get_xdata()) > 10]
    assert len(curves) == int(sol.events.count) + 1
    for curve in curves:
        t, v = curve.get_xdata(), curve.get_ydata()
        assert np.allclose(v[1:-1], sol(t[1:-1])["v"], atol=1e-9)


def test_a_state_that_does_not_jump_has_no_jump_marks(sol, pyplot):
    axis = sol.plot("h").axes[0]
    assert not [line for line in axis.get_lines() if line.get_marker() == "o"]


def test_modes_are_named_in_the_plot(thermostat, pyplot):
    texts = {text.get_text() for text in thermostat.plot().axes[0].texts}
    assert texts <= {"on", "off"} and texts


def test_components_of_an_array_share_a_panel(pair, pyplot):
    figure = pair.plot("h")
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["h[0]", "h[1]"]


def test_a_loaded_solution_plots_the_same_curves(sol, loaded, pyplot):
    curves = [figure.axes[0].get_lines()[-1] for figure in (sol.plot("h"), loaded.plot("h"))]
    assert np.allclose(curves[0].get_ydata(), curves[1].get_ydata(), atol=1e-9)


def test_a_plot_of_something_unknown_says_what_there_is(sol, pyplot):
    with pytest.raises(KeyError, match="there are"):
        sol.plot("height")


def test_a_plot_of_a_batch_says_how_to_plot_one(batch, pyplot):
    with pytest.raises(ValueError, match=r"sol\[0\]"):
        batch.plot()


def test_many_outputs_ask_for_a_choice(pyplot):
    many = HybridSystem(lambda now, p: {k: 0.0 * v for k, v in now.x.items()})
    start = Instant(t=0.0, x={f"x{k}": 1.0 for k in range(9)})
    with pytest.raises(ValueError, match="Name some"):
        saltus.solve(many, start, None, 1.0).plot()


@pytest.mark.parametrize(
    "module, extra, call",
    [
        ("matplotlib.pyplot", "plot", lambda sol: sol.plot()),
        ("pandas", "data", lambda sol: sol.to_pandas()),
        ("pandas", "data", lambda sol: sol.events.to_pandas()),
        ("xarray", "data", lambda sol: sol.to_xarray()),
        ("xarray", "data", lambda sol: sol.events.to_xarray()),
    ],
)
def test_a_missing_package_is_named_with_the_line_to_write(module, extra, call, sol, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf'pip install "saltus\[{extra}\]"'):
        call(sol)


# -- files --------------------------------------------------------------------------------------


def test_a_file_gives_back_every_number(sol, loaded):
    for part in ("t", "y", "reached", "integral", "final", "last", "result", "stats"):
        jax.tree.map(np.testing.assert_array_equal, getattr(sol, part), getattr(loaded, part))
    for part in ("t", "which", "member", "before", "after", "count"):
        jax.tree.map(
            np.testing.assert_array_equal, getattr(sol.events, part), getattr(loaded.events, part)
        )
    assert loaded.names == sol.names and loaded.units == sol.units
    assert repr(loaded) == repr(sol)
    assert repr(loaded.events.of("bounce")) == repr(sol.events.of("bounce"))


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_dense_output_of_a_file_is_that_of_the_solve(sol, loaded, side):
    ts = np.concatenate([np.linspace(0.0, 4.0, 401), np.asarray(sol.events.t)])
    fresh, read = sol(ts, side=side), loaded(ts, side=side)
    for name in ("h", "v"):
        assert np.allclose(read[name], fresh[name], rtol=0, atol=1e-10)
        assert loaded.interpolation[name] < 1e-10
    for read in (loaded, sol):
        with pytest.raises(ValueError, match="covers t = 0 to t = 4"):
            read(4.5)
    assert np.shape(loaded(ts.reshape(-1, 1))["h"]) == (len(ts), 1)


def test_a_solve_of_no_length_can_be_plotted_and_kept(pyplot, tmp_path):
    sol = saltus.solve(BALL, START, P, 0.0)
    sol.plot()
    read = Solution.load(sol.save(tmp_path / "instant"))
    assert read(0.0)["h"] == 5.0
    assert repr(read) == repr(sol)


def test_a_batch_is_kept_lane_by_lane(batch, tmp_path):
    read = Solution.load(batch.save(tmp_path / "three"))
    assert np.allclose(read(1.7)["h"], batch(1.7)["h"], atol=1e-10)
    assert repr(read[2]) == repr(batch[2])
    assert repr(read[0].events) == repr(batch[0].events)


def test_modes_members_and_discrete_states_are_kept(thermostat, pair, tmp_path):
    for k, sol in enumerate((thermostat, pair)):
        read = Solution.load(sol.save(tmp_path / str(k)))
        assert repr(read) == repr(sol)
        assert repr(read.events) == repr(sol.events)


def test_a_failed_solve_is_kept_as_failed(tmp_path):
    sol = solve(max_steps=10, throw=False)
    read = Solution.load(sol.save(tmp_path / "failed"))
    assert repr(read) == repr(sol)
    with pytest.raises(ValueError, match=r"covers t = 0 to t = 1.85.*\(too_many_steps\)"):
        read(3.9)
    with pytest.raises(saltus.SolveError, match="too_many_steps"):
        read.check()


# -- data frames and datasets -------------------------------------------------------------------


def test_a_data_frame_has_names_units_and_time(sol):
    frame = sol.to_pandas()
    assert list(frame.columns) == ["h [m]", "v [m/s]"]
    assert frame.index.name == "t [s]"
    np.testing.assert_array_equal(frame.index, TS)
    np.testing.assert_array_equal(frame["h [m]"], sol.y["h"])


def test_a_solve_that_saved_its_end_is_one_line(sol):
    frame = solve(ts=None).to_pandas()
    assert frame.shape == (1, 2)
    assert frame.index[0] == 4.0


def test_components_of_an_array_are_columns(pair):
    assert list(pair.to_pandas().columns) == ["h[0]", "h[1]", "v[0]", "v[1]"]


def test_a_batch_is_numbered_in_the_index(batch):
    frame = batch.to_pandas()
    assert frame.index.names == ["batch", "t [s]"]
    np.testing.assert_array_equal(frame.loc[2]["h [m]"], batch.y["h"][2])


def test_events_are_a_frame_of_their_own(sol, pair, thermostat):
    frame = sol.events.to_pandas()
    assert list(frame.columns[:2]) == ["t [s]", "event"]
    np.testing.assert_array_equal(frame["v before [m/s]"], sol.events.before.x["v"])
    np.testing.assert_array_equal(frame["v after [m/s]"], sol.events.after.x["v"])
    assert {"member", "n before", "n after"} <= set(pair.events.to_pandas().columns)
    assert list(thermostat.events.to_pandas()["mode after"][:2]) == ["on", "off"]


def test_a_dataset_has_dimensions_and_units(sol, pair, batch):
    data = sol.to_xarray()
    assert data["h"].dims == ("t",) and data["h"].attrs["units"] == "m"
    assert data["t"].attrs["units"] == "s" and data.attrs["result"] == "success"
    assert pair.to_xarray()["h"].dims == ("t", "h_0")
    assert batch.to_xarray()["h"].dims == ("batch", "t")
    assert sol.events.to_xarray()["v before"].attrs["units"] == "m/s"


def test_a_loaded_solution_gives_the_same_frames(sol, loaded):
    assert loaded.to_pandas().equals(sol.to_pandas())
    assert loaded.events.to_pandas().equals(sol.events.to_pandas())


@pytest.mark.parametrize("call", ["save", "to_pandas", "to_xarray", "plot"])
def test_a_traced_solution_says_that_numbers_are_needed(call, tmp_path):
    def height(e):
        sol = solve({**P, "e": e})
        getattr(sol, call)(*([tmp_path / "x"] if call == "save" else []))
        return sol.final.x["h"]

    with pytest.raises(TypeError, match="traced"):
        jax.jit(height)(0.8)
    with pytest.raises(TypeError, match="traced"):
        jax.grad(height)(0.8)
