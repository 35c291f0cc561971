"""Solutions as files, data frames and datasets.

A saved solution is an `.npz` of plain arrays and one JSON text, `header`, that describes them.
Its dense output is the polynomial through `NODES` points of every step.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import check_precision
from ..base.names import named
from ..base.results import KINDS, Result
from ..base.tracing import is_tracer
from ..base.types import HostArray, Numbers, Tree, Units
from ..system.hybrid import Instant
from .event_log import EventLog
from .frames import _cut, _numbers
from .interpolation import BETWEEN, NODES, interpolated, matrix_to
from .solution import Presented, Stats, check_inside, check_lane
from .trajectory import Course

if TYPE_CHECKING:
    from os import PathLike

    from .solution import Solution

FORMAT = 1
UNKNOWN = ("at", "certificate", "min", "max", "argmin", "argmax", "spec", "tape", "error")


# -- files --------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SavedSolution(Presented):
    """A solution from a file or another process: its numbers, with interpolated dense output.

    It has no model any more, so nothing in it can be differentiated. `interpolation` is, by name,
    the largest difference found between the dense output kept in the file and that of the solve.
    """

    t: HostArray
    y: Tree
    reached: HostArray
    integral: Tree
    final: Instant
    last: Instant
    start: HostArray
    result: HostArray
    stats: Stats
    events: EventLog
    names: tuple[str, ...]
    modes: tuple[str, ...]
    units: Units
    kept: tuple[Course, ...]  # one, or one per lane of a batch
    interpolation: dict[str, float]
    integrals: Tree = None
    tolerance: tuple | None = None

    def __call__(self, t: Numbers, side: str = "right") -> Tree:
        """The output at any time; `side="left"` gives the limit from before a jump."""
        if side not in ("right", "left"):
            raise ValueError(f"sol(t, side=...): side is {side!r}, expected 'right' or 'left'.")
        if any(map(is_tracer, jax.tree.leaves(t))):
            raise TypeError(
                "sol(t): a solution that was saved or pickled is plain numbers, expected a time "
                "that is a number, not one inside jax.grad, jax.jit or jax.vmap. Solve again there."
            )
        check_precision()
        check_inside(self, t)
        if np.ndim(self.result):
            lanes = [self[k](t, side) for k in range(len(self.kept))]
            return jax.tree.map(lambda *v: np.stack(v), *lanes)
        return interpolated(self.kept[0], self.start, np.asarray(t, dtype=float), side)

    def __getitem__(self, lane: int) -> SavedSolution:
        """One solution of a batch."""
        check_lane(self, lane)
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        arrays = ("t", "y", "reached", "integral", "integrals", "final", "last", "start")
        for name in (*arrays, "result", "stats", "events"):
            fields[name] = jax.tree.map(lambda v: v[lane], fields[name])
        fields["events"] = _cut(fields["events"])
        return SavedSolution(**{**fields, "kept": (self.kept[lane],)})

    def __getattr__(self, name: str) -> Any:
        if name in UNKNOWN:
            raise AttributeError(
                f"sol.{name}: a solution that was saved or pickled no longer has its model. "
                f"Solve again, or use sol.{name} before saving."
            )
        return Presented.__getattr__(self, name)  # pyright: ignore[reportAttributeAccessIssue]

    def check(self) -> SavedSolution:
        """Raise an error if the solve failed."""
        codes = np.asarray(self.result).reshape(-1)
        if np.any(codes > int(Result.terminated)):
            result, t = Result(int(codes.max())), float(np.max(np.asarray(self.last.t)))
            raise KINDS[result](repr(self), result=result, t=t, solution=self)
        return self

    def course(self, fractions: Numbers | None = None, whole: bool = False) -> Course:
        """The output at `fractions` of every step (by default at both ends), for plots."""
        if whole:
            raise ValueError(
                "a file keeps outputs, not states, discrete states and inputs. Put them into the "
                "system's output, or plot the solution before it is saved."
            )
        fractions = (0.0, 1.0) if fractions is None else fractions
        kept, matrix = self.kept[0], matrix_to(np.asarray(fractions, dtype=float))
        t = kept.t[:, :1] + np.asarray(fractions) * (kept.t[:, -1:] - kept.t[:, :1])
        y = jax.tree.map(lambda v: np.einsum("fk,rk...->rf...", matrix, v), kept.y)
        return Course(t, y, kept.piece, kept.mode)


def save(sol: Solution | SavedSolution, path: str | PathLike[str]) -> Path:
    """Write a solution to `path` (`.npz` is added if it is missing)."""
    path = Path(path)
    path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
    content = _content(sol, "sol.save()")
    with path.open("wb") as file:
        np.savez_compressed(file, **content)
    return path


def pickled(sol: Solution) -> dict[str, Any]:
    """The arrays from which `unpickled` makes a saved solution in another process."""
    return _content(sol, "pickle")


def unpickled(content: dict[str, Any]) -> SavedSolution:
    return _solution(content)


def _content(sol: Solution | SavedSolution, call: str) -> dict[str, Any]:
    """The arrays and the header that are written, by name."""
    _numbers(sol, call)
    if np.ndim(sol.result) > 1:
        raise ValueError(
            f"{call}: this is a batch of shape {sol.result.shape}, but at most one batch axis can "
            "be saved. Save sol[k]."
        )
    kept, interpolation = _keep(sol)
    log = sol.events
    arrays: list[np.ndarray] = []
    header = {
        "format": FORMAT,
        "made by": "saltus",
        "names": list(sol.names),
        "modes": list(sol.modes),
        "units": dict(sol.units or ()),
        "families": list(log.families),
        "interpolation": interpolation,
        "fields": {
            name: _encode(value, arrays)
            for name, value in {
                "t": sol.t, "y": sol.y, "reached": sol.reached, "integral": sol.integral,
                "integrals": sol.integrals,
                "final": _fields(sol.final), "last": _fields(sol.last), "start": sol.start,
                "tolerance": sol.tolerance, "result": sol.result, "stats": _fields(sol.stats),
                "kept": kept,
                "events": {
                    "t": log.t, "which": log.which, "member": log.member, "count": log.count,
                    "before": _fields(log.before), "after": _fields(log.after),
                },
            }.items()
        },
    }  # fmt: skip
    content: dict[str, Any] = {f"a{k}": a for k, a in enumerate(arrays)}
    return {"header": np.asarray(json.dumps(header)), **content}


def load(path: str | PathLike[str]) -> SavedSolution:
    """Read a solution that was written with `save`."""
    path = Path(path)
    if not path.exists() and path.suffix != ".npz":
        path = path.with_name(path.name + ".npz")
    try:
        with np.load(path, allow_pickle=False) as file:
            return _solution({name: file[name] for name in file.files})
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"Solution.load: {path} is not a solution written by sol.save() ({error})."
        ) from error


def _solution(content: dict[str, Any]) -> SavedSolution:
    arrays = dict(content)
    header = json.loads(str(arrays.pop("header")))
    if header["format"] != FORMAT:
        raise ValueError(f"format {header['format']}, this version reads format {FORMAT}")
    parts = {name: _decode(code, arrays) for name, code in header["fields"].items()}
    names, modes = tuple(header["names"]), tuple(header["modes"])
    units = tuple(sorted(header["units"].items())) or None
    kept = tuple(Course(*fields) for fields in parts.pop("kept"))
    log = parts.pop("events")
    events = EventLog(
        log["t"], log["which"], log["member"], Instant(**log["before"]), Instant(**log["after"]),
        log["count"], names, tuple(header["families"]), modes, units,
    )  # fmt: skip
    final, last = Instant(**parts.pop("final")), Instant(**parts.pop("last"))
    return SavedSolution(
        **parts | {"final": final, "last": last, "stats": Stats(**parts["stats"])},
        events=events, names=names, modes=modes, units=units, kept=kept,
        interpolation=header["interpolation"],
    )  # fmt: skip


def _fields(module: Any) -> dict:
    return {f.name: getattr(module, f.name) for f in dataclasses.fields(module)}


def _keep(sol: Solution | SavedSolution) -> tuple[list, dict[str, float]]:
    """The course at the nodes, lane by lane, and the error of interpolating it."""
    lanes = [sol] if np.ndim(sol.result) == 0 else [sol[k] for k in range(len(sol.result))]
    kept, worst = [], {}
    for lane in lanes:
        whole = lane.course(np.concatenate([NODES, BETWEEN]))
        m = len(NODES)
        nodes = jax.tree.map(lambda v: v[:, :m], whole.y)  # noqa: B023
        between = jax.tree.map(lambda v: v[:, m:], whole.y)  # noqa: B023
        matrix = matrix_to(BETWEEN)
        for (name, a), b in zip(named(nodes, "y").items(), jax.tree.leaves(between), strict=True):
            if np.issubdtype(a.dtype, np.floating) and a.size:
                off = np.max(np.abs(np.einsum("fk,rk...->rf...", matrix, a) - b))
                worst[name] = max(worst.get(name, 0.0), float(off))
        kept.append([whole.t[:, :m], nodes, whole.piece, whole.mode])
    return kept, worst


def _encode(tree: Tree, arrays: list) -> Any:
    """A pytree as JSON; arrays are numbered. Containers unknown to JSON become dicts."""
    if tree is None:
        return {"none": 0}
    if hasattr(tree, "_fields"):
        tree = tree._asdict()
    elif dataclasses.is_dataclass(tree):
        tree = _fields(tree)
    if isinstance(tree, dict):
        return {"dict": [[key, _encode(value, arrays)] for key, value in tree.items()]}
    if isinstance(tree, list | tuple):
        return {type(tree).__name__: [_encode(value, arrays) for value in tree]}
    if isinstance(tree, jax.Array) and jnp.issubdtype(tree.dtype, jax.dtypes.prng_key):
        tree = jax.random.key_data(tree)
    if hasattr(tree, "dtype") or isinstance(tree, bool | int | float):
        arrays.append(np.asarray(tree))
        return {"array": f"a{len(arrays) - 1}"}
    return {"text": repr(tree)}


def _decode(code: Tree, arrays: dict) -> Tree:
    ((kind, value),) = code.items()
    if kind == "dict":
        return {key: _decode(inner, arrays) for key, inner in value}
    if kind in ("list", "tuple"):
        items = [_decode(inner, arrays) for inner in value]
        return items if kind == "list" else tuple(items)
    return {"none": None}.get(kind, arrays[value] if kind == "array" else value)
