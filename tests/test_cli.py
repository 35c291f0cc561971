"""The command line: what it prints, where it writes, and how it fails."""

import re
import sys

import pytest

from problems import data
from saltus import cli, demo


@pytest.fixture(scope="module")
def report():
    return demo.report()


@pytest.fixture
def quick(report, monkeypatch):
    """The demo without solving anew."""
    monkeypatch.setattr(demo, "report", lambda: report)


def test_the_demo_prints_the_break_and_writes_its_picture(quick, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "made" / "here"
    assert cli.main(["demo", "--out", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "intact -> broken" in out
    assert f"Figure: {folder / 'breaking_spring.png'}" in out
    assert (folder / "breaking_spring.png").read_bytes().startswith(b"\x89PNG")


def test_the_demos_sensitivities_are_those_of_the_reference(report):
    _, text = report
    exact = data("papers")["problems"]["P5"]
    names = {"int x^2 dt": "G=int_0^5 x^2 dt"}
    for name in demo.QUANTITIES:
        numbers = re.search(rf"^{re.escape(name)} +(.+)$", text, re.M).group(1).split()
        key = names.get(name, name)
        expected = [exact["values"][key], *(exact["gradients"][key][a] for a in demo.PARAMETERS)]
        for shown, value in zip(numbers, expected, strict=True):
            assert float(shown) == pytest.approx(float(value), rel=6e-6)


def test_the_demo_without_a_figure_needs_no_matplotlib(quick, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    assert cli.main(["demo", "--no-figure"]) == 0
    assert "d/dm" in capsys.readouterr().out


def test_without_matplotlib_the_demo_prints_its_tables_and_says_what_to_install(
    quick, monkeypatch, capsys, tmp_path
):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    assert cli.main(["demo", "--out", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "d/dm" in out
    assert 'pip install "saltus[plot]"' in err
    assert "Traceback" not in err


def test_a_folder_that_cannot_be_made_is_one_line_and_exit_code_1(quick, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    (tmp_path / "taken").write_text("a file")
    assert cli.main(["demo", "--out", str(tmp_path / "taken")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("saltus demo: ")
    assert err.count("\n") == 1


def test_debug_shows_the_whole_error(quick, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(OSError):
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
    assert "saltus demo --out" in out or "--out DIR" in out


def test_no_command_shows_the_help_and_is_exit_code_2(capsys):
    assert cli.main([]) == 2
    assert "examples:" in capsys.readouterr().err


def test_an_unknown_command_is_exit_code_2(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["simulat"])
    assert stop.value.code == 2
    assert "simulat" in capsys.readouterr().err
