"""The commands that take a model: what they find, what they write, and how they fail."""

import json
import sys

import numpy as np
import pytest

import saltus
from command_line import BALL, FIRST, SECOND, E, G, H, rows
from saltus import cli
from saltus.cli.app import COMMANDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    (path / "ball.py").write_text(BALL)
    (path / "one.py").write_text("from ball import ball\n")
    (path / "none.py").write_text("import saltus\n")
    (path / "syntax.py").write_text("import saltus\nx = (\n")
    (path / "crash.py").write_text("def f():\n    return 1 / 0\n\n\nf()\n")
    (path / "gone.py").write_text("import saltus\nsystem = saltus.HybridSystem(abs)\n")
    return path


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """A command line in the folder of the models: exit code, stdout and stderr."""
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "ball", raising=False)

    def main(*arguments):
        code = cli.main(list(map(str, arguments)))
        out, err = capsys.readouterr()
        return code, out, err

    return main


# -- simulate -----------------------------------------------------------------------------------
def test_simulate_prints_the_end_and_every_event(run):
    code, out, err = run("simulate", "ball.py:ball")
    assert (code, err) == (0, "")
    assert "Solution: success." in out
    assert f"{FIRST:.9f}  bounce" in out
    assert "EventLog: 1 event\n" in out  # the second is after the end


def test_simulate_writes_tables_that_read_back_and_a_solution_that_loads(run, tmp_path):
    code, out, _ = run(
        "simulate", "ball.py:ball", "--t1", 3, "--points", 7, "--out", tmp_path / "o"
    )
    assert code == 0
    assert "trajectory.csv, events.csv, solution.npz, trajectory.png" in out
    saved = rows(tmp_path / "o" / "trajectory.csv")
    assert list(saved[0]) == ["t [s]", "h [m]", "v [m/s]"]
    assert [float(r["t [s]"]) for r in saved] == pytest.approx(np.linspace(0, 3, 7))
    assert float(saved[1]["h [m]"]) == pytest.approx(H - G * 0.5**2 / 2)
    events = rows(tmp_path / "o" / "events.csv")
    assert [e["event"] for e in events] == ["bounce", "bounce"]
    assert [float(e["t [s]"]) for e in events] == pytest.approx([FIRST, SECOND])
    assert float(events[0]["v after [m/s]"]) == pytest.approx(E * G * FIRST)
    sol = saltus.Solution.load(tmp_path / "o" / "solution.npz")
    assert float(sol(0.5)["h"]) == pytest.approx(H - G * 0.5**2 / 2)
    assert (tmp_path / "o" / "trajectory.png").read_bytes().startswith(b"\x89PNG")


def test_json_is_one_object_on_stdout_whatever_the_model_prints(run):
    code, out, err = run(
        "simulate", "ball.py:ball", "--json", "--set", "g=2", "--set", "start.v=3", "--t1", 1,
        "--ts", "0:1:0.25",
    )  # fmt: skip
    data = json.loads(out)
    assert (code, err) == (0, "loading\n")
    assert data["ok"] and data["result"] == "success"
    assert data["set"] == {"g": 2, "start.v": 3}
    assert data["final"] == pytest.approx({"h": H + 3 - 1, "v": 3 - 2})
    assert data["saved"]["t"] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert data["saved"]["v"] == pytest.approx([3.0, 2.5, 2.0, 1.5, 1.0])
    assert data["events"] == []


def test_a_solve_that_fails_says_why_and_leaves_what_it_had(run, tmp_path):
    code, out, err = run(
        "simulate", "ball.py:ball", "--set", "e=0.5", "--t1", 7, "--out", tmp_path, "--json"
    )
    assert code == 1
    assert "events_accumulate" in err and "Traceback" not in err
    data = json.loads(out)
    assert not data["ok"] and data["result"] == "events_accumulate"
    limit = 3 * FIRST  # where the bounces accumulate
    assert data["t"] == pytest.approx(limit)
    saved = rows(tmp_path / "trajectory.csv")
    assert float(saved[-1]["t [s]"]) == pytest.approx(limit)
    assert len(rows(tmp_path / "events.csv")) == len(data["events"]) > 10
    assert (tmp_path / "solution.npz").exists()


def test_method_and_tolerances_are_those_of_the_command_line(run):
    _, out, _ = run(
        "simulate", "ball.py:kink", "--json", "--method", "dopri5", "--rtol", 1e-3, "--atol", 1e-3
    )
    loose = json.loads(out)
    assert loose["method"] == "Dopri5"
    _, out, _ = run("simulate", "ball.py:kink", "--json", "--method", "dopri5")
    assert json.loads(out)["stats"]["steps"] > loose["stats"]["steps"]


def test_without_matplotlib_everything_but_the_picture_is_written(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    code, out, _ = run("simulate", "ball.py:ball", "--out", tmp_path)
    assert code == 0
    assert "trajectory.png was left out" in out and 'pip install "saltus[plot]"' in out
    assert sorted(f.name for f in tmp_path.iterdir()) == [
        "events.csv", "solution.npz", "trajectory.csv",
    ]  # fmt: skip


# -- sensitivities ------------------------------------------------------------------------------
def test_sensitivities_are_those_of_the_closed_form(run, tmp_path):
    code, out, _ = run("sensitivities", "ball.py:ball", "--json", "--out", tmp_path)
    data = json.loads(out)
    assert code == 0 and data["ok"]
    assert set(data["values"]) == {"h", "v", "integral", "t(bounce #1)"}
    assert set(data["derivatives"]["h"]) == {"e", "g", "start.h", "start.v"}
    bounce = data["derivatives"]["t(bounce #1)"]
    assert bounce == pytest.approx(
        {"e": 0.0, "g": -FIRST / (2 * G), "start.h": FIRST / (2 * H), "start.v": 1 / G}
    )
    # v = e g t* - g (t - t*) after the bounce at t*
    assert data["derivatives"]["v"]["e"] == pytest.approx(G * FIRST)
    assert data["derivatives"]["v"]["start.h"] == pytest.approx((1 + E) * G * bounce["start.h"])
    table = {r["result"]: r for r in rows(tmp_path / "sensitivities.csv")}
    assert float(table["v"]["d/d e"]) == data["derivatives"]["v"]["e"]
    assert table["t(bounce #1)"]["unit"] == "s"
    assert (tmp_path / "sensitivities.png").read_bytes().startswith(b"\x89PNG")


def test_results_and_numbers_can_be_chosen_and_followed_over_time(run):
    code, out, _ = run(
        "sensitivities", "ball.py:ball", "--of", "v", "--by", "g", "--ts", "0.5,1", "--json"
    )
    found = json.loads(out)["derivatives"]
    assert code == 0
    assert list(found) == ["v", "v(0.5)", "v(1)"]
    assert found["v(0.5)"] == pytest.approx({"g": -0.5})
    code, out, _ = run("sensitivities", "ball.py:ball", "--of", "bounce #1", "--by", "g")
    assert code == 0
    assert f"{-FIRST / (2 * G):.6g}" in out
    assert "d/d g" in out and "d/d e" not in out


def test_a_derivative_by_a_parameter_includes_its_way_through_the_start(run):
    _, out, _ = run("sensitivities", "ball.py:dropped", "--t1", 0.5, "--of", "v", "--json")
    found = json.loads(out)["derivatives"]["v"]
    assert found == pytest.approx({"e": 0.0, "g": 0.1 - 0.5, "start.h": 0.0, "start.v": 1.0})


@pytest.mark.parametrize("option, name", [("--of", "hh"), ("--by", "gg"), ("--set", "gg=1")])
def test_a_name_that_is_not_there_is_exit_code_2_with_the_near_ones(run, option, name):
    code, _, err = run("sensitivities", "ball.py:ball", option, name)
    assert code == 2 and "Traceback" not in err
    assert f"Did you mean {name[0]}?" in err


# -- check --------------------------------------------------------------------------------------
def test_check_finds_nothing_wrong_with_a_sound_model(run):
    code, out, err = run("check", "ball.py:ball")
    assert (code, err) == (0, "")
    results = [line.split("  ")[1:] for line in out.splitlines() if "  ok  " in line]
    assert len(results) == 5
    assert "All checks passed." in out


def test_check_finds_a_kink_that_derivatives_do_not_see(run):
    code, out, err = run("check", "ball.py:kink", "--json")
    found = {c["check"]: c for c in json.loads(out)["checks"]}
    assert code == 1 and "failed: finite difference" in err
    assert found["finite difference"]["result"] == "FAILED"
    assert "saltus.when" in found["finite difference"]["detail"]
    assert "No effect on any result: c." in found["tangent = adjoint"]["detail"]


def test_check_names_the_line_of_a_function_that_reads_what_is_not_there(run):
    code, out, _ = run("check", "ball.py:wrong")
    line = 1 + BALL.splitlines().index('    lambda now, p: {"h": now.x["speed"], "v": 0.0}')
    assert code == 1
    assert f"ball.py, line {line}: flow: it reads 'speed', which is not there" in out


# -- fit ----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def measured(folder):
    """Heights and bounces of the ball until 2 s, computed by hand."""
    t = np.linspace(0.0, 2.0, 41)
    fall, after = H - G * t**2 / 2, t - FIRST
    h = np.where(t < FIRST, fall, E * G * FIRST * after - G * after**2 / 2)
    h += 0.01 * np.random.default_rng(1).standard_normal(t.size)
    lines = [f"{a!r},{b!r}" for a, b in zip(t.tolist(), h.tolist(), strict=True)]
    (folder / "heights.csv").write_text("\n".join(["t [s],h [m]", *lines, ""]))
    (folder / "bounces.csv").write_text(f"t,event\n{FIRST!r},bounce\n")
    return folder / "heights.csv"


def test_fit_finds_the_parameters_and_writes_everything_about_them(
    run, measured, tmp_path, monkeypatch
):
    page = lambda fit, path, progress: path if path.write_text("<html>") else None
    monkeypatch.setattr(saltus.Fit, "report", page)
    code, out, _ = run(
        "fit", "ball.py:ball", measured, "--free", "e,g", "--set", "g=9.5", "--set", "e=0.75",
        "--bounds", "e=0:1", "--bounds", "g=1:", "--scale", "g=log", "--noise", "h=0.01",
        "--json", "--out", tmp_path,
    )  # fmt: skip
    data = json.loads(out)
    assert code == 0 and data["result"] == "converged"
    assert data["total_seconds"] > data["seconds"]
    for name, exact in (("g", G), ("e", E)):
        number = data["parameters"][name]
        assert abs(number["value"] - exact) < 4 * number["sd"] < 0.1
        assert number["low"] < number["value"] < number["high"]
    assert {f.name for f in tmp_path.iterdir()} == {
        "report.html", "parameters.csv", "predictions.csv", "fit.json", "checkpoint.npz",
    }  # fmt: skip
    assert json.loads((tmp_path / "fit.json").read_text())["parameters"] == data["parameters"]
    table = {r["name"]: float(r["value"]) for r in rows(tmp_path / "parameters.csv")}
    assert table == {name: number["value"] for name, number in data["parameters"].items()}
    predicted = rows(tmp_path / "predictions.csv")
    assert len(predicted) == 41
    residuals = [float(r["residual"]) for r in predicted]
    assert 0.5 < np.std(residuals) < 1.5


def test_a_fit_of_events_ends_where_the_data_end_and_prints_its_table(run, measured):
    code, out, _ = run(
        "fit", "ball.py:ball", measured, "--events", "bounces.csv", "--free", "start.h",
        "--noise", "h=0.01,bounce=0.001", "--t1", 2,
    )  # fmt: skip
    assert code == 0
    assert "Fit: converged." in out and " s in all: the fit " in out
    line = next(line for line in out.splitlines() if line.startswith("start.h"))
    assert float(line.split()[1]) == pytest.approx(H, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("t0", ["100", "2026-01-31T12:30:00"])
def test_columns_and_time_zero_are_told_on_the_command_line(run, measured, folder, t0):
    """The same measurements under other names, with a comment, on another clock or on dates."""
    table = np.loadtxt(measured, delimiter=",", skiprows=1)
    first = 100.0 if t0 == "100" else np.datetime64(t0)
    lines = [
        f"{first + t if t0 == '100' else first + np.timedelta64(round(1e6 * t), 'us')},{h!r},ok"
        for t, h in table.tolist()
    ]
    (folder / "other.csv").write_text("\n".join(["t,height_m,remark", *lines, ""]))
    options = ["--free", "g,e", "--noise", "h=0.01", "--json"]
    _, plain, _ = run("fit", "ball.py:ball", measured, *options)
    code, out, _ = run(
        "fit", "ball.py:ball", "other.csv", "--columns", "height_m=h,remark=", "--t0", t0, *options
    )
    assert code == 0
    for name, number in json.loads(plain)["parameters"].items():
        found = json.loads(out)["parameters"][name]["value"]
        assert found == pytest.approx(number["value"], rel=1e-6)
    without, _, err = run("fit", "ball.py:ball", "other.csv", "--t0", t0, *options)
    assert without == 2 and "height_m" in err


@pytest.mark.parametrize(
    "options, words",
    [
        (["--columns", "h"], '--columns "h": expected COLUMN=NAME, like height_m=h.'),
        (["--t0", "noon"], "noon"),
        (["--free", "gg"], 'saltus fit: no number is called "gg". Did you mean g?'),
        (["--bounds", "g=1"], "expected NAME=LOW:HIGH"),
        (["--noise", "h=small"], "small is not a number"),
        (["--events", "bounces.csv", "--events", "bounces.csv"], "give one for each"),
        (["--search", "wide"], "search is 'wide'"),
        (["nowhere.csv"], "there is no file nowhere.csv"),
    ],
)
def test_a_fit_that_is_not_understood_is_exit_code_2(run, measured, options, words):
    code, _, err = run("fit", "ball.py:ball", measured, *options)
    assert code == 2 and words in err and "Traceback" not in err


# -- models -------------------------------------------------------------------------------------
@pytest.mark.parametrize("reference", ["ball:ball", "ball.py:system", "one.py"])
def test_a_model_is_found_by_file_module_or_system(run, reference):
    code, out, err = run("simulate", reference)
    assert (code, err) == (0, "")
    assert "success" in out and f"{FIRST:.9f}" in out


@pytest.mark.parametrize(
    "reference, code, words",
    [
        ("bal.py", 2, "there is no file bal.py. Did you mean ball.py?"),
        ("ball.py", 2, "has several models. Write ball.py:ball or ball.py:kink."),
        ("ball.py:bal", 2, 'has no "bal". Did you mean ball.py:ball'),
        ("ball.py:number", 2, '"number" is an int, expected a saltus.Scenario'),
        ("ball.py:needy", 2, 'function "needy" needs height'),
        ("none.py", 2, "none.py has no saltus.Scenario. Add one"),
        ("gone.py:system", 2, "is a HybridSystem without a start"),
        ("nowhere.models:ball", 2, "there is no file and no module nowhere.models"),
        (":ball", 2, "names no file"),
        ("ball.txt/x:ball", 2, "models are read from .py, .mo, .fmu files"),
        ("valve.mo:Valve", 2, "Modelica models are not supported yet"),
        ("valve.fmu", 2, "FMUs are not supported yet"),
        ("syntax.py", 1, "syntax.py, line 2: SyntaxError"),
        ("crash.py", 1, "crash.py, line 2: ZeroDivisionError: division by zero"),
    ],
)
def test_a_reference_that_leads_nowhere_is_answered_in_a_sentence(run, reference, code, words):
    got, _, err = run("simulate", reference)
    assert got == code
    assert err.startswith("saltus simulate: ") and words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "options, words",
    [
        (["--set", "g"], "expected NAME=VALUE"),
        (["--set", "g=ten"], "g=ten: expected a number or a list"),
        (["--ts", "0:10:1"], "--ts goes from 0 to 10, but the run goes from 0 to 2. Add --t1 10"),
    ],
)
def test_an_option_that_makes_no_sense_is_exit_code_2(run, options, words):
    code, _, err = run("simulate", "ball.py:ball", *options)
    assert code == 2 and words in err


@pytest.mark.parametrize(
    "options, words",
    [
        (["--method", "Euler"], "expected one of Tsit5"),
        (["--ts", "0:1"], "expected first:last:step"),
        (["--ts", "0:1:0.1", "--points", "3"], "not allowed with"),
        (["--rtol", "-1"], "expected a number >= 0"),
        (["--points", "1"], "expected at least 2"),
    ],
)
def test_an_option_that_cannot_be_read_is_exit_code_2(run, capsys, options, words):
    with pytest.raises(SystemExit) as stop:
        run("simulate", "ball.py:ball", *options)
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


def test_debug_shows_where_a_model_fails(run):
    with pytest.raises(saltus.io.ModelError) as error:
        run("simulate", "crash.py", "--debug")
    assert isinstance(error.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_every_command_has_examples(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    _, examples = capsys.readouterr().out.split("examples:")
    lines = examples.strip().split("\n\n")[0].splitlines()
    assert len(lines) > 1 and all(line.split()[:2] == ["saltus", command] for line in lines)
