"""The command line: what it prints, where it writes, and how it fails."""

import re
import sys

import pytest

from saltus import cli
from saltus.cli import demo


@pytest.fixture(scope="module")
def run():
    return demo.run()


@pytest.fixture
def quick(run, monkeypatch):
    """The demo without fitting anew."""
    monkeypatch.setattr(demo, "run", lambda seed: run)


def test_the_demo_finds_the_spring_and_writes_its_report(quick, run, tmp_path, capsys):
    folder = tmp_path / "made" / "here"
    assert cli.main(["demo", "--out", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"Report: {folder / 'report.html'}" in out
    page = (folder / "report.html").read_text()
    fit, data = run
    for name in ("m", "k", "c"):
        assert f"{fit[name]:.5g}"[:4] in out
        assert f"{fit[name]:.5g}"[:4] in page
    lines = (folder / "measurements.csv").read_text().splitlines()
    assert lines[0] == "t [s],x [m]"
    assert len(lines) == data["t"].size + 1


def test_the_demos_estimates_hold_the_truth(run):
    fit, _ = run
    assert fit.ok
    assert fit.explained
    for k, name in enumerate(fit.names):
        assert abs(fit.values[k] - demo.TRUTH[name]) <= 3 * fit.sd[k]
        assert abs(demo.GUESS[name] - demo.TRUTH[name]) > 3 * fit.sd[k]  # the guess was poor
    assert fit.noise["x"] == pytest.approx(demo.NOISE, rel=0.3)
    assert int(fit.experiments[0].solution.events.count) == 1


def test_the_demo_without_a_report_needs_no_matplotlib(quick, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    assert cli.main(["demo", "--no-report"]) == 0
    assert "95 % interval" in capsys.readouterr().out


def test_without_matplotlib_the_demo_prints_its_tables_and_says_what_to_install(
    quick, monkeypatch, capsys, tmp_path
):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    assert cli.main(["demo", "--out", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "95 % interval" in out
    assert 'pip install "saltus[plot]"' in err
    assert "Traceback" not in err


def test_a_folder_that_cannot_be_made_is_one_line_and_exit_code_1(quick, tmp_path, capsys):
    (tmp_path / "taken").write_text("a file")
    assert cli.main(["demo", "--out", str(tmp_path / "taken")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("saltus demo: ")
    assert err.count("\n") == 1


def test_debug_shows_the_whole_error(quick, tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(FileExistsError, match="taken"):
        cli.main(["--debug", "demo", "--out", str(tmp_path / "taken")])


def test_version_is_one_line(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert re.fullmatch(r"saltus \S+( \S+)?\n", capsys.readouterr().out)


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"]])
def test_help_names_the_options(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert ("--out DIR" if "demo" in arguments else "saltus demo --out") in out


def test_no_command_shows_the_help_and_is_exit_code_2(capsys):
    assert cli.main([]) == 2
    assert "examples:" in capsys.readouterr().err


def test_an_unknown_command_is_exit_code_2(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["simulat"])
    assert stop.value.code == 2
    assert "simulat" in capsys.readouterr().err
