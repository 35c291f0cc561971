"""Draws the packages of saltus and who imports whom: python docs/import_graph.py [FILE].

The imports are read from the source, the order and the sentences from the table in architecture.md.
An import that others already lead to is left out: where `model` imports `system` and `system`
imports `base`, no line is drawn from `model` to `base`.
"""

import ast
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
SOURCE = DOCS.parent / "src" / "saltus"
INK, PALE, LINE, LAZY = "#1f2a38", "#e8eef5", "#4c78a8", "#c44e52"
Edge = tuple[str, str]


def packages() -> dict[str, str]:
    """The packages in their order, each with its sentence: the rows of the page's table."""
    page = (DOCS / "architecture.md").read_text()
    rows = re.findall(r"^\| \d+ \| `(\w+)` \| ([^|]+) \|", page, re.M)
    return {name: sentence.replace("`", "") for name, sentence in rows}


def imports_of(path: Path) -> set[tuple[str, bool]]:
    """The packages that a file imports, and whether it does so inside a function."""
    here = ("saltus", *path.relative_to(SOURCE).parts[:-1])
    found = set()

    def note(dotted: tuple[str, ...], lazy: bool) -> None:
        if dotted[0] == "saltus":
            inside = len(dotted) > 1 and (SOURCE / dotted[1]).is_dir()
            found.add((dotted[1] if inside else "__init__", lazy))

    def visit(node: ast.AST, lazy: bool) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return  # for annotations only: nothing is imported
        if isinstance(node, ast.Import):
            for alias in node.names:
                note(tuple(alias.name.split(".")), lazy)
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + 1] if node.level else ()
            module = tuple(node.module.split(".")) if node.module else ()
            for alias in node.names:
                note((*above, *module, alias.name), lazy)
        inner = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(ast.parse(path.read_text()), False)
    return found


def edges() -> dict[Edge, bool]:
    """(importer, imported) for all packages, and whether every such import is in a function."""
    found: dict[Edge, bool] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        importer = path.relative_to(SOURCE).with_suffix("").parts[0]
        for imported, lazy in imports_of(path):
            if imported != importer and importer != "__main__":
                found[importer, imported] = lazy and found.get((importer, imported), True)
    return found


def against(order: list[str], found: dict[Edge, bool]) -> set[Edge]:
    """The edges that do not lead to a package before."""
    return {(a, b) for a, b in found if order.index(b) >= order.index(a)}


def reduced(found: set[Edge]) -> set[Edge]:
    """Without the edges that a longer way replaces."""

    def leads(a: str, b: str) -> bool:
        return (a, b) in found or any(leads(c, b) for d, c in found if d == a)

    return {(a, b) for a, b in found if not any(leads(c, b) for d, c in found if d == a)}


def draw(order: dict[str, str], found: dict[Edge, bool], target: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    back = against(list(order), found)
    y = {name: -float(k) for k, name in enumerate(order)}
    figure = Figure(figsize=(9.8, 0.46 * len(order)))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-1.75, 10.2), ylim=(-len(order) + 0.5, 0.5))
    axes.axis("off")
    for name, sentence in order.items():
        axes.add_patch(Rectangle((0, y[name] - 0.3), 1.6, 0.6, facecolor=PALE, edgecolor=INK))
        style = {"color": INK, "va": "center_baseline"}
        label = "saltus" if name == "__init__" else name
        axes.text(0.8, y[name], label, size=11, weight="bold", ha="center", **style)
        axes.text(1.85, y[name], sentence, size=10.5, **style)
    taken: list[tuple[int, float, float]] = []  # lanes on the left, and from where to where
    drawn = reduced(set(found) - back) | back
    for a, b in sorted(drawn, key=lambda edge: (abs(y[edge[0]] - y[edge[1]]), edge)):
        color, dash = (LAZY, "--") if (a, b) in back else (LINE, "-")
        start, end = (y[a] - 0.2, y[b] + 0.23) if (a, b) in back else (y[a] + 0.12, y[b] - 0.12)
        if y[b] - y[a] == 1:
            xs, ys = [0.8, 0.8], [y[a] + 0.3, y[b] - 0.3]
        else:
            low, high = sorted((start, end))
            busy = {lane for lane, u, v in taken if low <= v and u <= high}
            lane = min(set(range(len(drawn))) - busy)
            taken.append((lane, low, high))
            x = -0.35 - 0.3 * lane
            xs, ys = [0.0, x, x, 0.0], [start, start, end, end]
        axes.plot(xs, ys, color=color, linestyle=dash, linewidth=1.3)
        arrow = {"arrowstyle": "-|>", "color": color, "shrinkA": 0, "shrinkB": 0}
        near = tuple(0.99 * v[-1] + 0.01 * v[-2] for v in (xs, ys))
        axes.annotate("", (xs[-1], ys[-1]), near, arrowprops=arrow)
    figure.savefig(target, dpi=110)


if __name__ == "__main__":
    target = sys.argv[1] if len(sys.argv) > 1 else DOCS / "pictures" / "architecture.png"
    draw(packages(), edges(), Path(target))
