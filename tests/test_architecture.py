"""The shape of the source: imports go one way, modules stay small, nothing names one machine."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import saltus

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "saltus"

# Each package may import only from the packages before it; its modules may import each other as
# long as no cycle arises. "__init__" is the public face.
PACKAGES = [
    "base",
    "linalg",
    "system",
    "model",
    "methods",
    "simulate",
    "external",
    "sweep",
    "solution",
    "solver",
    "analysis",
    "continuous",
    "trust",
    "multibody",
    "io",
    "estimate",
    "__init__",
    "cli",
]

# Imports that point the other way, each made inside a function: (importer, imported).
LAZY = {("solution", "trust")}  # `sol.certificate`

MAX_LINES = 400


def modules():
    return sorted(SOURCE.rglob("*.py"))


def name_of(path):
    """`methods/radau.py` -> ("methods", "radau"); a package's own file -> ("methods",)."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts


def imports_of(path):
    """Every module of ours that a file imports, at any depth: (target, inside a function)."""
    package = ("saltus", *path.relative_to(SOURCE).parts[:-1])
    found = []

    def visit(node, lazy):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return  # for annotations only: nothing is imported
        if isinstance(node, ast.Import):
            for alias in node.names:
                note(tuple(alias.name.split(".")), lazy)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            for alias in node.names:
                note((*base, alias.name), lazy)
        inner = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    def note(dotted, lazy):
        if dotted[0] == "saltus":
            found.append((resolve(dotted[1:]), lazy))

    visit(ast.parse(path.read_text()), False)
    return found


def resolve(parts):
    """The longest prefix that is a module; what is left over is a name inside it."""
    for k in range(len(parts), 0, -1):
        at = SOURCE.joinpath(*parts[:k])
        if at.with_suffix(".py").exists() or (at / "__init__.py").exists():
            return parts[:k]
    return ("__init__",)


@pytest.mark.parametrize("path", modules(), ids=lambda path: ".".join(name_of(path)))
def test_a_module_imports_only_from_packages_before_its_own(path):
    package = name_of(path)[0]
    if package == "__main__":
        return
    assert package in PACKAGES, f'"{package}" has no place in PACKAGES yet'
    for target, lazy in imports_of(path):
        if target[0] == package or (lazy and (package, target[0]) in LAZY):
            continue
        assert target[0] in PACKAGES[: PACKAGES.index(package)], (
            f"{package} imports {'.'.join(target)}, which is not in a package before it"
        )


def test_no_modules_import_each_other_in_a_circle():
    edges = {
        name_of(path): {target for target, lazy in imports_of(path) if not lazy}
        for path in modules()
    }
    done, open_ = set(), []

    def visit(module):
        assert module not in open_, " -> ".join(".".join(m) for m in [*open_, module])
        if module not in done:
            open_.append(module)
            for target in edges.get(module, ()):
                if target != module:
                    visit(target)
            done.add(open_.pop())

    for module in edges:
        visit(module)


@pytest.mark.parametrize("path", modules(), ids=lambda path: ".".join(name_of(path)))
def test_no_module_is_longer_than_a_person_reads_at_once(path):
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES


def test_files_of_tests_are_short_and_each_has_a_name_of_its_own():
    """Models are imported by their names alone; the page of hard cases names tests that way too."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 100
    assert [p.name for p in files if len(p.read_text().splitlines()) > MAX_LINES] == []
    assert len({p.name for p in files}) == len(files)


def test_no_file_has_the_name_of_a_public_function():
    """`saltus.fit` the function and a module of that name would be two things."""
    public = set()
    for package in ["saltus", *(f"saltus.{name}" for name in PACKAGES if name != "__init__")]:
        module = importlib.import_module(package)
        public |= {
            n for n in getattr(module, "__all__", ()) if inspect.isfunction(getattr(module, n))
        }
    assert not public & {path.stem for path in modules()}


def test_every_package_says_what_it_is_for():
    for name in PACKAGES:
        text = (SOURCE / name.removeprefix("__init__") / "__init__.py").read_text()
        assert text.startswith('"""') and "TODO" not in text


def test_the_house_has_few_doors():
    entries = [path for path in SOURCE.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 20 and len(PACKAGES) <= 18 and len(LAZY) <= 1


def test_importing_saltus_imports_nothing_before_it_is_used():
    code = "import sys, saltus; print([m for m in sys.modules if m.startswith('saltus.')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    allowed = {"saltus.base", "saltus.base.program_cache", "saltus.base.jax_names"}
    assert set(ast.literal_eval(found.stdout)) == allowed


def test_type_checkers_and_programs_find_public_names_in_the_same_places():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and not node.orelse][:1]
    told = {
        alias.asname or alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    packages = {name for name, module in told.items() if module in (None, "solution", "system")}
    assert {name: told[name] for name in told if name not in packages} == saltus._HOME
    assert set(saltus.__all__) <= {*saltus._HOME, *packages}
    for name in [*saltus.__all__, *saltus._PACKAGES]:
        assert getattr(saltus, name) is not None
    for name, home in saltus._ALIASES.items():
        module = importlib.import_module(f"saltus.{home}")
        assert importlib.import_module(f"saltus.{name}") is getattr(saltus, name) is module


def repository_files():
    try:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_names_a_path_or_a_package_index_of_one_machine():
    # Written in pieces, so that this file does not find itself.
    paths = r"(?<![\w.~/-])/(?:" + "|".join(["work", "root", "home", "Users"]) + r")/"
    hosts = "|".join(
        re.escape(".".join(parts))
        for parts in [("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org")]
    )
    forbidden = re.compile(f"{paths}|{hosts}")
    for path in repository_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # a picture
        for number, line in enumerate(text.splitlines(), 1):
            assert not forbidden.search(line), f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def test_ci_runs_the_command_that_the_readme_gives():
    command = (ROOT / ".ci" / "run").read_text().strip().splitlines()[-1]
    assert command in (ROOT / "README.md").read_text().splitlines()
