"""The shape of the source: imports go one way, modules stay small, nothing names one machine."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "saltus"

# Each layer may import only from the layers before it. A layer is a module or a package; modules
# of one package may import each other as long as no cycle arises. "__init__" is the public face.
LAYERS = [
    "jax_names",
    "pickling",
    "results",
    "extras",
    "foreign",
    "leaves",
    "rewrite",
    "trace",
    "bytecode",
    "reads",
    "staging",
    "lanes",
    "unreached",
    "moves",
    "dependence",
    "sparsity",
    "linear",
    "banded",
    "sparse",
    "factors",
    "linalg",
    "implicit",
    "system",
    "signals",
    "reverse",
    "automaton",
    "sliding",
    "adapters",
    "mass",
    "when",
    "model",
    "checks",
    "equations",
    "invariants",
    "parts",
    "build",
    "consistent",
    "taylor",
    "projection",
    "control",
    "methods",
    "locate",
    "jump",
    "record",
    "validity",
    "rhythm",
    "flat",
    "firing",
    "arrival",
    "search",
    "linearised",
    "attempt",
    "loop",
    "passes",
    "simulate",
    "visits",
    "pieces",
    "rowmaps",
    "sweep",
    "walk",
    "primitives",
    "readout",
    "bodies",
    "outcomes",
    "phrases",
    "curves",
    "kinks",
    "course",
    "interpolation",
    "tables",
    "names",
    "peaks",
    "extrema",
    "culprits",
    "surface",
    "causes",
    "rank",
    "diagnose",
    "solution",
    "export",
    "plot",
    "animate",
    "probe",
    "gather",
    "ways",
    "arguments",
    "checkpoints",
    "solve",
    "repair",
    "costates",
    "dynamics",
    "external",
    "continuous",
    "trust",
    "compare",
    "multibody",
    "scenario",
    "io",
    "estimate",
    "report",
    "__init__",
    "demo",
    "cli",
]

# Imports that point the other way, each made inside a function: (importer, imported).
LAZY = {
    ("solution", "plot"),
    ("solution", "export"),
    ("solution", "trust"),
    ("estimate", "report"),
}

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
def test_a_module_imports_only_from_layers_before_its_own(path):
    layer = name_of(path)[0]
    if layer == "__main__":
        return
    assert layer in LAYERS, f'"{layer}" has no layer yet: put it in LAYERS, in tests/{__name__}.py'
    for target, lazy in imports_of(path):
        if target[0] == layer or (lazy and (layer, target[0]) in LAZY):
            continue
        assert target[0] in LAYERS[: LAYERS.index(layer)], (
            f"{layer} imports {'.'.join(target)}, which is not in a layer before it"
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
