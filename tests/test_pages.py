"""Every example runs, draws its picture, and the README starts with the first of them."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BEGIN = "# --- first block of the README: begin ---\n"
END = "# --- first block of the README: end ---\n"


LONG = "09"  # and later ones are long to compile, as are
TOO = ("02", "03", "08")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path, marks=[pytest.mark.slow] if path.stem[:2] >= LONG or path.stem[:2] in TOO else []
        )
        for path in EXAMPLES
    ],
    ids=lambda path: path.stem,
)
def test_an_example_runs_and_draws_its_picture(path, tmp_path, monkeypatch):
    # The numbers that matter are asserted in the examples themselves.
    matplotlib = pytest.importorskip("matplotlib")
    from matplotlib import pyplot

    monkeypatch.chdir(tmp_path)
    with matplotlib.rc_context({"backend": "Agg"}):
        try:
            runpy.run_path(str(path))
        finally:
            pyplot.close("all")
    pictures = list(tmp_path.glob("*.png"))
    assert [picture.stem for picture in pictures] == [path.stem[3:]]
    assert pictures[0].stat().st_size > 10_000


def first_block_of_the_readme():
    return re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S).group(1)


def test_the_readme_starts_with_the_first_example():
    text = EXAMPLES[0].read_text()
    assert first_block_of_the_readme() == text[text.index(BEGIN) + len(BEGIN) : text.index(END)]


def test_the_first_example_fits_on_a_screen():
    assert len(first_block_of_the_readme().splitlines()) <= 20


def test_the_numbers_in_the_readmes_first_block_are_those_it_prints(capsys):
    block = first_block_of_the_readme()
    exec(compile(block, "README.md", "exec"), {})
    printed = [float(v) for v in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", capsys.readouterr().out)]
    promised = re.findall(r"-?\d+\.\d+", " ".join(re.findall(r"#(.*)", block)))
    assert len(printed) == len(promised) == 3
    for said, is_ in zip(promised, printed, strict=True):
        digits = len(said.partition(".")[2])
        assert round(is_, digits) == float(said)


def test_pictures_that_pages_show_exist_and_are_small():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text()):
            picture = page.parent / name
            assert picture.exists(), f"{page.name} shows {name}"
            most = 1_000_000 if picture.suffix == ".gif" else 200_000
            assert picture.stat().st_size < most, f"{name} is too large for a page"


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"(?<!!)\[[^]]*\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize(
    "sections", [1, pytest.param(99, marks=pytest.mark.slow)], ids=["the first section", "all"]
)
def test_every_python_block_of_the_guide_runs(sections):
    # Blocks share one namespace from top to bottom, as a reader would type them.
    for package in ("matplotlib", "pandas", "xarray"):
        pytest.importorskip(package)
    from matplotlib import pyplot, rc_context

    text = (ROOT / "docs" / "guide.md").read_text()
    names: dict = {}
    for match in re.finditer(r"```python\n(.*?)```", text, re.S):
        line = text[: match.start()].count("\n") + 1
        code = compile("\n" * line + match.group(1), "guide.md", "exec")
        if text[: match.start()].count("\n## ") > sections:
            continue
        with rc_context({"backend": "Agg"}):
            exec(code, names)
    pyplot.close("all")
