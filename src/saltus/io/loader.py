"""Models by reference: `file.py:name` or `package.module:name` to a scenario."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from ..base.user_code import place
from ..solver.scenario import Scenario
from ..system.hybrid import HybridSystem

T = TypeVar("T")


class ModelReferenceError(ValueError):
    """A reference that does not lead to a model."""


class ModelError(RuntimeError):
    """An error inside a model file. The message begins with file and line."""


def load_model(reference: str) -> Scenario:
    """The scenario that `reference` names.

    `reference` is `file.py:name` or `package.module:name`. The name is that of a `Scenario`, of a
    `HybridSystem` (completed by `start`, `p` and `t1` of the module), or of a function without
    arguments that returns one of these. Without a name, the file must contain exactly one scenario.
    """
    where, name = split(reference)
    suffix = Path(where).suffix.lower()
    if suffix in LOADERS:
        return LOADERS[suffix](where, name)
    if "/" in where or "\\" in where or Path(where).is_file():
        raise ModelReferenceError(
            f"{where}: models are read from {', '.join(LOADERS)} files, not from "
            f"{suffix or 'files without a suffix'}."
        )
    return _from_module(where, name)


def split(reference: str) -> tuple[str, str | None]:
    """`ball.py:drop` as file and name; the name may be missing, and a drive `C:` is not one."""
    where, mark, name = reference.rpartition(":")
    if not mark or "/" in name or "\\" in name:
        return reference, None
    if not where:
        raise ModelReferenceError(f'"{reference}" names no file. Write model.py:{name or "name"}.')
    return where, name or None


def folder_of(reference: str) -> Path | None:
    """The folder of a model's own code."""
    try:
        where, _ = split(reference)
    except ModelReferenceError:
        return None
    if Path(where).suffix.lower() in LOADERS:
        return Path(where).resolve().parent
    file = getattr(sys.modules.get(where), "__file__", None)
    return Path(file).resolve().parent if file else None


# -- Python files and modules --------------------------------------------------------------------
def _from_file(where: str, name: str | None) -> Scenario:
    path = Path(where)
    if not path.is_file():
        raise ModelReferenceError(f"there is no file {where}.{_near_files(path)}")
    key = f"saltus_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(key, path)
    if spec is None or spec.loader is None:
        raise ModelReferenceError(f"{where} cannot be imported as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module  # where dataclasses look up their module
    folder = path.resolve().parent
    with _importable(folder):
        _run(lambda: spec.loader.exec_module(module), folder, where)  # type: ignore[union-attr]
        return _scenario(module, where, name, folder)


def _from_module(where: str, name: str | None) -> Scenario:
    with _importable(Path.cwd()):
        if not _exists(where):
            raise ModelReferenceError(
                f"there is no file and no module {where}. Write file.py:name, or "
                "package.module:name for what Python can import."
            )
        module = _run(lambda: importlib.import_module(where), Path.cwd(), where)
        return _scenario(module, where, name, folder_of(where) or Path.cwd())


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _not_yet(kind: str) -> Callable[[str, str | None], Scenario]:
    def refuse(where: str, name: str | None) -> Scenario:
        raise ModelReferenceError(
            f"{where}: {kind} are not supported yet. Write the model in Python, as a "
            "saltus.Scenario in a .py file."
        )

    return refuse


LOADERS: dict[str, Callable[[str, str | None], Scenario]] = {
    ".py": _from_file,
    ".mo": _not_yet("Modelica models"),
    ".fmu": _not_yet("FMUs"),
}


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Imports inside work as in a script in `folder`."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


def _run(action: Callable[[], T], folder: Path, what: str) -> T:
    """The result of the user's code; its errors get the line they come from."""
    try:
        return action()
    except (Exception, SystemExit) as error:
        where = place(error, folder) or what
        text = error.msg if isinstance(error, SyntaxError) else error
        raise ModelError(f"{where}: {type(error).__name__}: {text}") from error


# -- from an object to a scenario ----------------------------------------------------------------
def _scenario(module: ModuleType, where: str, name: str | None, folder: Path) -> Scenario:
    if name is None:
        name = _only_name(module, where)
    if not hasattr(module, name):
        raise ModelReferenceError(f'{where} has no "{name}".{_near_names(module, where, name)}')
    found = getattr(module, name)
    if _is_builder(found):
        found = _run(_builder(found, where, name), folder, where)
    if isinstance(found, HybridSystem):
        found = _completed(found, module, where, name)
    if not isinstance(found, Scenario):
        raise ModelReferenceError(
            f'{where}: "{name}" is {_kind(found)}, expected a saltus.Scenario, a HybridSystem, or '
            "a function without arguments that returns one."
        )
    return found.replace(name=name) if found.name == "model" else found


def _is_builder(found: object) -> bool:
    return callable(found) and not isinstance(found, Scenario | HybridSystem | type)


def _builder(found: Callable, where: str, name: str) -> Callable[[], object]:
    needed = [
        k
        for k, v in inspect.signature(found).parameters.items()
        if v.default is v.empty and v.kind not in (v.VAR_POSITIONAL, v.VAR_KEYWORD)
    ]
    if needed:
        raise ModelReferenceError(
            f'{where}: function "{name}" needs {", ".join(needed)}, but a model is built by a '
            "function without arguments. Give them defaults."
        )
    return found


def _completed(system: HybridSystem, module: ModuleType, where: str, name: str) -> Scenario:
    """A bare system, completed by the start, parameters and end in its module."""
    if not hasattr(module, "start"):
        raise ModelReferenceError(
            f'{where}: "{name}" is a HybridSystem without a start. Add start = saltus.Instant(...) '
            f"(and p, t1) to the file, or write {name} = saltus.Scenario(system, start, p, t1)."
        )
    p, t1 = getattr(module, "p", None), getattr(module, "t1", None)
    try:
        return Scenario(system, module.start, p, t1, name=name)
    except TypeError as error:
        raise ModelReferenceError(f"{where}: {error}") from error


def _models(module: ModuleType, kind: type) -> list[str]:
    """The names of the models in a module, each model once."""
    found = {
        id(v): k for k, v in vars(module).items() if isinstance(v, kind) and not k.startswith("_")
    }
    return list(found.values())


def _only_name(module: ModuleType, where: str) -> str:
    scenarios = _models(module, Scenario)
    if len(scenarios) == 1:
        return scenarios[0]
    systems = _models(module, HybridSystem) if hasattr(module, "start") else []
    if not scenarios and len(systems) == 1:
        return systems[0]
    if scenarios or systems:
        listed = " or ".join(f"{where}:{k}" for k in (scenarios or systems)[:6])
        raise ModelReferenceError(f"{where} has several models. Write {listed}.")
    raise ModelReferenceError(
        f"{where} has no saltus.Scenario. Add one, model = saltus.Scenario(system, start, p, t1), "
        f"or name a function that returns one: {where}:name."
    )


def _near_names(module: ModuleType, where: str, name: str) -> str:
    models = _models(module, Scenario) + _models(module, HybridSystem)
    near = difflib.get_close_matches(name, [*models, *vars(module)], n=2, cutoff=0.6)
    if near:
        return f" Did you mean {' or '.join(f'{where}:{k}' for k in dict.fromkeys(near))}?"
    return f" Its models are {', '.join(models)}." if models else ""


def _near_files(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f" There is no folder {folder} either."
    files = [f.name for f in folder.iterdir() if f.suffix in LOADERS]
    near = difflib.get_close_matches(path.name, files, n=2, cutoff=0.6)
    return f" Did you mean {' or '.join(str(folder / k) for k in near)}?" if near else ""


def _kind(found: object) -> str:
    if isinstance(found, type):
        return f"the class {found.__name__}"
    name = type(found).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
