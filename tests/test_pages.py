"""What pages say is true: code runs, links and pictures exist, and what is counted is there."""

import re
import runpy
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GUIDE = DOCS / "guide"
MATHS = DOCS / "maths"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    ROOT / "examples" / "README.md",
    *sorted(DOCS.rglob("*.md")),
]
BEGIN = "# --- first block of the README: begin ---\n"
END = "# --- first block of the README: end ---\n"
QUICK_EXAMPLES = ("01", "06")  # the others are slow tests
NUMBER_WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def marked(paths, quick):
    """The paths as parameters of a test, slow unless `quick(path)`."""
    return [pytest.param(p, marks=[] if quick(p) else [pytest.mark.slow], id=p.stem) for p in paths]


# --- examples


@pytest.mark.parametrize("path", marked(EXAMPLES, lambda p: p.stem[:2] in QUICK_EXAMPLES))
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


def test_pages_count_the_examples_and_show_a_picture_of_each():
    text = (DOCS / "examples.md").read_text()
    assert re.findall(r"\.\./examples/(\w+)\.py", text) == [path.stem for path in EXAMPLES]
    for path in EXAMPLES:
        assert f"(pictures/{path.stem[3:]}.png)" in text
    numbers = [int(n) for n in re.findall(r"^\*\*(\d+)\. \[", text, re.M)]
    assert numbers == [int(path.stem[:2]) for path in EXAMPLES]
    word = f"twenty-{NUMBER_WORDS[len(EXAMPLES) - 21]}"
    assert f"There are {word}." in text
    assert f"{word} tutorials" in (ROOT / "README.md").read_text()
    assert f"{word.capitalize()} tutorials" in (ROOT / "examples" / "README.md").read_text()


# --- the README


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


# --- the guide


def pages_of_the_guide():
    """The pages in the order of the index."""
    index = (GUIDE / "README.md").read_text()
    return [GUIDE / name for name in re.findall(r"^\d+\. \[[^]]+\]\((\w+\.md)\)", index, re.M)]


# Much to compile; what they claim is also tested in the folders of the packages.
LONG_PAGES = (
    "algebraic_states", "other_forms", "derivatives", "jit_and_vmap", "control", "mechanisms",
    "orbits", "trust", "other_methods",
)  # fmt: skip


@pytest.mark.parametrize("page", marked(pages_of_the_guide(), lambda p: p.stem not in LONG_PAGES))
def test_a_page_of_the_guide_runs_from_top_to_bottom(page):
    for package in ("matplotlib", "pandas", "xarray"):
        pytest.importorskip(package)
    from matplotlib import pyplot, rc_context

    text, names = page.read_text(), {"__name__": page.stem}
    for match in re.finditer(r"```python\n(.*?)```", text, re.S):
        line = text[: match.start()].count("\n") + 1
        code = compile("\n" * line + match.group(1), page.name, "exec")
        with rc_context({"backend": "Agg"}):
            exec(code, names)
    pyplot.close("all")


def test_the_index_of_the_guide_has_every_page_and_pages_lead_to_the_next():
    pages = pages_of_the_guide()
    assert sorted(pages) == sorted(set(GUIDE.glob("*.md")) - {GUIDE / "README.md"})
    for page, following in pairwise(pages):
        assert re.search(rf"Next:\s\[[^]]+\]\({following.name}\)", page.read_text()), page.name


def test_pages_of_the_guide_are_short():
    for page in pages_of_the_guide():
        assert 30 <= len(page.read_text().splitlines()) <= 150, page.name


# --- links, pictures, equations, commands


def slug(heading):
    """The anchor that a heading gets."""
    text = re.sub(r"[`*]", "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_of_a_page_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        picture = page.parent / name
        assert picture.exists(), f"there is no picture {name}"
        most = 1_000_000 if picture.suffix == ".gif" else 200_000
        assert picture.stat().st_size < most, f"{name} is too large for a page"
    for target, anchor in re.findall(r"(?<!!)\[[^]]*\]\(([^)#:]*)(?:#([^)]*))?\)", text):
        goal = page.parent / target if target else page
        assert goal.exists(), f"there is no {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)", goal.read_text(), re.M)
            assert anchor in {slug(heading) for heading in headings}, f"{target} has no #{anchor}"


def test_every_equation_that_is_cited_is_on_one_page_and_in_the_index():
    places = {}
    for page in set(MATHS.glob("*.md")) - {MATHS / "README.md"}:
        for found in re.finditer(r"\\tag\{M(\d+)\}|\*\*\(M(\d+)\)\*\*", page.read_text()):
            number = int(found[1] or found[2])
            assert number not in places, f"M{number} is on two pages"
            places[number] = page.name
    assert sorted(places) == list(range(1, len(places) + 1))
    for row in re.finditer(r"^\| \[.*?\]\((\w+\.md)\).*\| (.*) \|$", index_of_the_maths(), re.M):
        for first, last in re.findall(r"M(\d+)(?: to M(\d+))?", row[2]):
            for number in range(int(first), int(last or first) + 1):
                assert places.pop(number) == row[1], f"M{number} is not on {row[1]}"
    assert not places, "in the index these are missing"


def index_of_the_maths():
    return (MATHS / "README.md").read_text()


def test_every_equation_that_the_code_cites_exists():
    known = "\n".join(page.read_text() for page in MATHS.glob("*.md"))
    for file in [*(ROOT / "src").rglob("*.py"), *DOCS.rglob("*.md")]:
        for number in re.findall(r"\(M(\d+)\b", file.read_text()):
            assert re.search(rf"\(M{number}\)|tag{{M{number}}}", known), f"{file.name}: M{number}"


def test_the_readme_of_the_benchmarks_lists_every_command():
    folder = ROOT / "benchmarks"
    listed = set(re.findall(r"`python benchmarks/(\w+)\.py`", (folder / "README.md").read_text()))
    commands = {p.stem for p in folder.glob("*.py") if "__main__" in p.read_text()}
    assert listed == commands
