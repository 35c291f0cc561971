r"""The checks of `saltus check`, each a verdict and a sentence.

Derivatives are compared along one random direction `v`, in which every number of the model changes
in proportion to its size: $J v$ by the tangent sweep, $J^T u$ by the adjoint sweep, which must
satisfy $u \cdot J v = J^T u \cdot v$, and the difference of two solves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.names import named, unknown
from ..base.results import Result, SolveError
from ..base.text import number
from ..base.types import Tree, Vector
from ..methods.step_control import PI
from ..solution.solution import Solution
from ..solver.scenario import Scenario, scenario_names
from ..solver.start import first_state
from ..trust.error_growth import dot_mismatch
from .options import method_of
from .quantities import Inputs, inputs, quantities, whole_numbers

OK, WARNING, FAILED = "ok", "warning", "FAILED"
DIFFERENCE_STEPS = (1e-4, 1e-5, 1e-6)  # of finite differences, relative
TIGHTER_TOLERANCE = 1e-3  # relative to the scenario's, for comparisons


class Finding(NamedTuple):
    """A check, its verdict and a sentence."""

    check: str
    result: str
    detail: str


def examine(scenario: Scenario, explain: Callable[[Exception], str]) -> Iterator[Finding]:
    """All checks in order, up to one that fails and that the others depend on."""
    try:
        yield shapes(scenario)
        yield from settings(scenario)
        sol = scenario.solve()
        yield solves(scenario, sol)
    except Exception as error:
        stage = "solve" if isinstance(error, SolveError) else "model"
        yield Finding(stage, FAILED, explain(error))
        return
    varied = inputs(scenario, None)
    if whole := whole_numbers(scenario):
        text = f"{', '.join(whole)}: no derivative. Write 2.0 instead of 2 to have one."
        yield Finding("whole numbers", WARNING, text)
    if not varied.names:
        yield Finding("derivatives", WARNING, "No float in the model to differentiate by.")
        return
    try:
        yield from derivatives(varied, list(quantities(scenario, sol)))
    except Exception as error:
        yield Finding("derivatives", FAILED, explain(error))


# -- the model ----------------------------------------------------------------------------------
def shapes(scenario: Scenario) -> Finding:
    """Whether the results of model functions fit the state, as checked by `solve`."""
    start = scenario.start_at(scenario.p)
    first_state(scenario.system, start, scenario.p, scenario.t1)
    counts = [
        (_size(start.x, "x"), "state"),
        (_size(start.z, "z"), "algebraic state"),
        (_size(scenario.p, "p"), "parameter"),
        (len(scenario.system.events), "event"),
    ]
    words = [f"{n} {what}{'s' if n != 1 else ''}" for n, what in counts if n]
    return Finding("model", OK, f"{', '.join(words)}; all functions return what they should.")


def _size(tree: Tree, root: str) -> int:
    return sum(int(np.size(leaf)) for leaf in named(tree, root).values())


def settings(scenario: Scenario) -> Iterator[Finding]:
    """Whether the fit settings of the scenario refer to numbers that exist."""
    names = dict.fromkeys(
        [*(scenario.free or ()), *scenario.bounds, *scenario.scales, *scenario.priors]
    )
    if not names:
        return
    known = scenario_names(scenario)
    lost = [name for name in names if not any(_covers(name, k) for k in known)]
    if lost:
        yield Finding("fit settings", FAILED, str(unknown(lost[0], known)))
    else:
        yield Finding("fit settings", OK, f"{', '.join(names)}: all of them exist.")


def _covers(name: str, known: str) -> bool:
    """Whether a name in fit settings means `known`: exactly, as an entry, prefix or pattern."""
    stem = name.rpartition("[")[0] if name.endswith("]") else name
    return (
        known in (name, stem)
        or known.startswith((f"{name}.", f"{name}["))
        or fnmatchcase(known, name)
    )


# -- the solve ----------------------------------------------------------------------------------
def solves(scenario: Scenario, sol: Solution) -> Finding:
    """Whether the solve reaches its end without too many rejected steps."""
    result, steps, rejected = Result(int(sol.result)), int(sol.stats.steps), int(sol.stats.rejected)
    end = "a terminal event" if result is Result.terminated else "the end"
    text = (
        f"{type(method_of(scenario)).__name__} reaches {end} at t = {number(sol.final.t)} in "
        f"{steps} steps ({rejected} rejected), with {int(sol.stats.events)} events."
    )
    if rejected > 20 and rejected > 0.5 * steps:
        hint = "Look for a kink without an event (saltus.when), or try --method Radau5."
        return Finding("solve", WARNING, f"{text} Most steps are rejected. {hint}")
    never = [name for name in sol.names if int(sol.events.of(name).count) == 0]
    missed = f" Events that never happen: {', '.join(never)}." if never else ""
    return Finding("solve", OK, text + missed)


# -- derivatives --------------------------------------------------------------------------------
def derivatives(varied: Inputs, names: list[str]) -> Iterator[Finding]:
    """Tangents, adjoints and finite differences of all results along one direction."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], len(varied.names) + len(names))
    size = np.abs(varied.values)
    v = signs[: size.size] * np.where(size == 0.0, 1.0, size)
    q, jv = _tangent(varied, names, v)
    scale = np.abs(q) + np.abs(jv) + _floor(varied.scenario, names, q)
    lost = [n for n, a in zip(names, jv, strict=True) if not np.isfinite(a)]
    if lost:
        yield Finding(
            "tangent", FAILED,
            f"The derivative of {lost[0]} is not finite. A grazing contact (a guard that touches "
            "zero without crossing), or a root or quotient at zero, is the usual reason.",
        )  # fmt: skip
        return
    yield dot_test(varied, names, v, jv, signs[size.size :] / scale)
    tight = dataclasses.replace(varied, scenario=_tightened(varied.scenario))
    if tight.scenario is not varied.scenario:
        try:
            better = _tangent(tight, names, v)
        except (SolveError, KeyError):
            yield Finding(
                "accuracy", WARNING,
                "With tighter tolerances the solve stops early or has other events: do not trust "
                "results at the given ones. Try --rtol 1e-10 --atol 1e-10.",
            )  # fmt: skip
            tight = varied
        else:
            yield accuracy(names, (q, jv), better, scale)
            jv = better[1]
    yield differences(tight, names, v, jv, scale)


def _floor(scenario: Scenario, names: list[str], q: np.ndarray) -> np.ndarray:
    """Limits below which numbers are zero, by the tolerances and by entries of the same array."""
    method = method_of(scenario)
    atol = min(float(np.min(a)) for a in jax.tree.leaves(method.atol))
    kinds = [name.partition("[")[0] for name in names]
    sizes = {kind: 0.0 for kind in kinds}
    for kind, value in zip(kinds, np.abs(q), strict=True):
        sizes[kind] = max(sizes[kind], float(value))
    absolute = atol / float(method.rtol) if method.rtol else 1.0
    return 1e-6 * (absolute + np.array([sizes[kind] for kind in kinds])) + np.finfo(float).tiny


def _vector(varied: Inputs, names: list[str]) -> Callable[[Vector], Vector]:
    def results(change: Vector) -> Vector:
        found = varied.results(change)
        return jnp.stack([found[name] for name in names])

    return results


def _tangent(varied: Inputs, names: list[str], v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    q, jv = jax.jvp(_vector(varied, names), (jnp.zeros(v.size),), (jnp.asarray(v),))
    return np.asarray(q), np.asarray(jv)


def dot_test(
    varied: Inputs, names: list[str], v: np.ndarray, jv: np.ndarray, u: np.ndarray
) -> Finding:
    """Whether the adjoint sweep is the transpose of the tangent sweep; lists idle parameters."""
    _, pull = jax.vjp(_vector(varied, names), jnp.zeros(v.size))
    (ju,) = pull(jnp.asarray(u))
    ju = np.asarray(ju)
    gap = float(dot_mismatch([u * jv], [ju * v], np.sum(np.abs(u * jv))))
    idle = [n for n, g in zip(varied.names, ju, strict=True) if g == 0.0]
    text = f"Tangent and adjoint sweeps agree to {gap:.0e} (dot test)."
    if not gap < 1e-6:
        return Finding(
            "tangent = adjoint", FAILED, f"Tangent and adjoint sweeps differ: {gap:.0e}."
        )
    if idle:
        shown = ", ".join(idle[:8]) + (", ..." if len(idle) > 8 else "")
        text += f" No effect on any result: {shown}."
    return Finding("tangent = adjoint", WARNING if gap > 1e-9 or idle else OK, text)


def accuracy(names: list[str], given: tuple, better: tuple, scale: np.ndarray) -> Finding:
    """The accuracy at the given tolerances, by comparison with much tighter ones."""
    errors = [np.abs(a - b) / scale for a, b in zip(given, better, strict=True)]
    value, slope = (float(np.max(e)) for e in errors)
    text = f"Compared with 1000 times tighter tolerances: values to {value:.0e}"
    text += f", derivatives to {slope:.0e}."
    if max(value, slope) < 1e-4:
        return Finding("accuracy", OK, text)
    worst = names[int(np.argmax(np.maximum(*errors)))]
    return Finding("accuracy", WARNING, f"{text} Worst is {worst}. Try smaller --rtol and --atol.")


def differences(
    varied: Inputs, names: list[str], v: np.ndarray, jv: np.ndarray, scale: np.ndarray
) -> Finding:
    """Whether derivatives match central differences of solves, the best of a few steps."""
    results = _vector(varied, names)
    best = np.full(len(names), np.inf)
    values = np.full(len(names), np.nan)
    for h in DIFFERENCE_STEPS:
        try:
            slope = np.asarray(results(jnp.asarray(h * v)) - results(jnp.asarray(-h * v))) / (2 * h)
        except (SolveError, KeyError):  # the solve stops early there, or has fewer events
            continue
        error = np.abs(slope - jv) / scale
        values, best = np.where(error < best, slope, values), np.minimum(error, best)
    k = int(np.argmax(best))
    if not np.isfinite(best[k]):
        text = "Models nearby stop early or have other events: nothing to compare with."
        return Finding("finite difference", WARNING, text)
    text = f"Derivatives and differences of solves agree to {best[k]:.0e}."
    if best[k] < 1e-4:
        return Finding("finite difference", OK, text)
    return Finding(
        "finite difference", WARNING if best[k] < 1e-2 else FAILED,
        f"{names[k]} changes by {number(values[k])} in solves, by {number(jv[k])} in derivatives. "
        "A kink without an event (abs, where, a table) is the usual reason: mark it with "
        "saltus.when.",
    )  # fmt: skip


def _tightened(scenario: Scenario) -> Scenario:
    """The scenario with tighter tolerances, or as it is where steps are fixed."""
    method = method_of(scenario)
    if not isinstance(method.control, PI):
        return scenario
    rtol = max(float(method.rtol) * TIGHTER_TOLERANCE, 1e-12)
    ratio = rtol / float(method.rtol) if method.rtol else TIGHTER_TOLERANCE
    atol = jax.tree.map(lambda a: a * ratio, method.atol)
    return scenario.replace(method=dataclasses.replace(method, rtol=rtol, atol=atol))
