"""What a problem is: a model that carries its exact answers.

A `Problem` is a system, its start and end, its parameters, the outputs that are asked of a solve,
and the truth: values, gradients and Hessians from `data/` (independent references, 20 digits or
more) or from a closed form. Nothing here looks at the library's own derivatives.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

import saltus
from saltus import HybridSystem, Instant

DATA = Path(__file__).parent / "data"


@dataclasses.dataclass(frozen=True)
class Exact:
    """The truth about outputs: `hessians[y]` holds (names of parameters, matrix)."""

    values: dict[str, float]
    gradients: dict[str, dict[str, float]]
    hessians: dict[str, tuple[list[str], np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Problem:
    name: str
    system: HybridSystem
    start: Callable[[Any], Instant]
    p: dict[str, float]
    t1: float | Callable[[Any], Any]
    outputs: dict[str, Callable[[Any, Any], Any]]  # name -> function of (solution, p)
    exact: Exact
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def solve(self, p: Any = None, **options: Any) -> saltus.Solution:
        p = self.p if p is None else p
        t1 = self.t1(p) if callable(self.t1) else self.t1
        return saltus.solve(self.system, self.start(p), p, t1, **{**self.options, **options})

    def evaluate(self, p: Any = None, **options: Any) -> dict[str, Any]:
        """All outputs as a function of the parameters; `jax` differentiates this."""
        p = self.p if p is None else p
        sol = self.solve(p, **options)
        return {name: output(sol, p) for name, output in self.outputs.items()}

    def __repr__(self) -> str:
        return self.name


# -- reading the truth --------------------------------------------------------------------------


@cache
def data(file: str) -> dict:
    return json.loads((DATA / f"{file}.json").read_text())


def number(text: str) -> float:
    return float(Fraction(text)) if "/" in text else float(text)


def from_papers(case: dict, outputs: Mapping[str, Any]) -> tuple[dict[str, float], Exact]:
    """Parameters and truth of an entry of papers.json or drag_ball.json."""
    order = case["order"]
    hessians = {}
    for y, hessian in case["hessians"].items():
        names, rows = (
            (hessian["order"], hessian["matrix"]) if isinstance(hessian, dict) else (order, hessian)
        )
        hessians[y] = (list(names), np.array([[number(x) for x in row] for row in rows]))
    return (
        {a: number(case["parameters"][a]) for a in order},
        Exact(
            {y: number(v) for y, v in case["values"].items() if y in outputs},
            {
                y: {a: number(v) for a, v in row.items()}
                for y, row in case["gradients"].items()
                if y in outputs
            },
            {y: h for y, h in hessians.items() if y in outputs},
        ),
    )


def from_closed_forms(case: dict, outputs: Mapping[str, Any]) -> tuple[dict[str, float], Exact]:
    """Parameters and truth of an entry of closed_forms.json (entries not listed are 0)."""
    p = {a: number(v) for a, v in case["params"].items()}
    names = list(p)
    values, gradients, hessians = {}, {}, {}
    for y, truth in case["outputs"].items():
        if y not in outputs:
            continue
        values[y] = number(truth["value"])
        gradients[y] = {a: number(v) for a, v in truth["gradient"].items()}
        matrix = np.zeros((len(names), len(names)))
        for pair, v in truth["hessian"].items():
            a, b = (names.index(n) for n in pair.split(","))
            matrix[a, b] = matrix[b, a] = number(v)
        hessians[y] = (names, matrix)
    return p, Exact(values, gradients, hessians)


def from_formula(formula: Callable[[Any], dict[str, Any]], p: dict[str, float]) -> Exact:
    """Truth from a closed form without any solve, differentiated as plain arithmetic."""
    names = list(p)
    values, first, second = formula(p), jax.jacfwd(formula)(p), jax.hessian(formula)(p)
    return Exact(
        {y: float(v) for y, v in values.items()},
        {y: {a: float(v) for a, v in row.items()} for y, row in first.items()},
        {
            y: (names, np.array([[row[a][b] for b in names] for a in names]))
            for y, row in second.items()
        },
    )


# -- outputs that several problems ask for ------------------------------------------------------


def state(name: str) -> Callable:
    return lambda sol, p: sol.final.x[name]


def integral(sol: Any, p: Any) -> Any:
    return sol.integral


def time_of(event: str, k: int) -> Callable:
    return lambda sol, p: sol.events.of(event).t[k]


def before(event: str, k: int, name: str) -> Callable:
    return lambda sol, p: sol.events.of(event).before.x[name][k]
