"""What docs/architecture.md and CONTRIBUTING.md say about the source is true of the source."""

import ast
import importlib.util
import re
import subprocess
import sys
from functools import cache

import pytest
from test_architecture import LAZY, PACKAGES, ROOT, SOURCE

PAGE = ROOT / "docs" / "architecture.md"
SCRIPT = ROOT / "docs" / "import_graph.py"
PAGES = [PAGE, ROOT / "CONTRIBUTING.md"]


@pytest.fixture(scope="module")
def graph():
    spec = importlib.util.spec_from_file_location("import_graph", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def quoted(text):
    """What stands in backticks, blocks of code aside."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))


@cache
def names_in(path):
    """The names that a file or a class in it defines: name -> the names inside."""

    def inside(node):
        found = {}
        for child in getattr(node, "body", []):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                found[child.name] = inside(child) if isinstance(child, ast.ClassDef) else {}
            elif isinstance(child, ast.AnnAssign):
                found[child.target.id] = {}
            elif isinstance(child, ast.Assign):
                parts = [n for target in child.targets for n in ast.walk(target)]
                found.update({n.id: {} for n in parts if isinstance(n, ast.Name)})
            elif isinstance(child, ast.ImportFrom) and path.name == "__init__.py":
                found.update({alias.asname or alias.name: {} for alias in child.names})
            elif isinstance(child, ast.If):
                found.update(inside(child))
        return found

    return inside(ast.parse(path.read_text()))


def leads_somewhere(dotted):
    """`simulate.loop.begin`: folders, then a file, then names in it."""
    place, *rest = SOURCE, *dotted.split(".")
    while rest and (place / rest[0]).is_dir():
        place /= rest.pop(0)
    file = place / f"{rest[0]}.py" if rest else place / "__init__.py"
    if file.is_file() and rest:
        rest.pop(0)
    else:
        file = place / "__init__.py"
    names = names_in(file)
    for name in rest:
        if name not in names:
            return False
        names = names[name]
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_that_a_page_cites_exists(page):
    cited = [c for c in quoted(page.read_text()) if re.fullmatch(r"[\w./-]+\.(py|sh|md|txt)", c)]
    assert cited
    for name in cited:
        assert (SOURCE / name).is_file() or (ROOT / name).is_file(), f"there is no {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_function_and_class_that_a_page_cites_exists(page):
    dotted = [c for c in quoted(page.read_text()) if re.fullmatch(r"\w+(\.\w+)+", c)]
    own = [c for c in dotted if c.split(".")[0] in PACKAGES and not c.endswith(".py")]
    own += [c.removeprefix("saltus.") for c in dotted if c.startswith("saltus.")]
    assert own
    for name in own:
        assert leads_somewhere(name), f"there is no {name}"


def test_every_test_that_a_page_cites_exists():
    tests = {name for path in (ROOT / "tests").rglob("test_*.py") for name in names_in(path)}
    cited = [c for page in PAGES for c in quoted(page.read_text()) if re.fullmatch(r"test_\w+", c)]
    assert cited
    assert set(cited) <= tests


def test_names_that_are_not_there_are_noticed():
    assert leads_somewhere("simulate.record.Carry.code")
    assert not leads_somewhere("simulate.record.Carry.colour")
    assert not leads_somewhere("simulate.loop.begins")
    assert not leads_somewhere("simulate.lop.begin")


def test_the_page_lists_the_packages_in_their_order(graph):
    assert list(graph.packages()) == PACKAGES


@pytest.mark.parametrize(
    "dotted",
    ["model.layout.At", "model.layout.Par", "simulate.record.Rows", "methods.method.Trial",
     "simulate.record.Carry", "sweep.arguments.Sweep", "solution.tape.Tape"],
)  # fmt: skip
def test_the_fields_of_a_table_are_those_of_the_class(dotted):
    table = re.search(rf"^### .*`{dotted}`\n\n((?:\|.*\n)+)", PAGE.read_text(), re.M)
    listed = {c for line in table[1].splitlines() for c in quoted(line.split("|")[1])}
    folder, file, name = dotted.split(".")
    body = ast.parse((SOURCE / folder / f"{file}.py").read_text()).body
    (cls,) = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
    assert listed == {node.target.id for node in cls.body if isinstance(node, ast.AnnAssign)}


def test_no_import_goes_against_the_order_but_the_lazy_ones(graph):
    found = graph.edges()
    back = graph.against(PACKAGES, found)
    assert back == LAZY
    assert all(found[edge] for edge in back)


def test_the_page_says_on_what_each_package_stands(graph):
    found = graph.edges()
    lines = graph.reduced(set(found) - graph.against(PACKAGES, found))
    rows = re.findall(r"^\| \d+ \| `(\w+)` \|[^|]+\|([^|]*)\|$", PAGE.read_text(), re.M)
    assert {(name, below) for name, cell in rows for below in quoted(cell)} == lines, (
        "change the last column of the table and run python docs/import_graph.py"
    )


def test_the_picture_is_drawn_from_the_source(tmp_path):
    target = tmp_path / "graph.png"
    subprocess.run([sys.executable, SCRIPT, target], check=True)
    assert target.read_bytes().startswith(b"\x89PNG")
