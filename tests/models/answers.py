"""What the library says about a test problem."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import jax
import numpy as np

from problem import Problem


@dataclasses.dataclass(frozen=True, eq=False)
class Answers:
    """Answers to a problem with a method; each is computed when first asked.

    Arrays have the axes (output), (output, parameter), (output, parameter, parameter).
    """

    problem: Problem
    method: Any

    def outputs(self, p: Any) -> dict[str, Any]:
        return self.problem.evaluate(p, method=self.method)

    @cached_property
    def solution(self) -> Any:
        return self.problem.solve(method=self.method)

    @cached_property
    def value(self) -> dict[str, float]:
        sol, p = self.solution, self.problem.p
        return {y: float(output(sol, p)) for y, output in self.problem.outputs.items()}

    @cached_property
    def reverse(self) -> dict[str, np.ndarray]:
        """Gradients by the adjoint sweep."""
        return rows(jax.jacrev(self.outputs)(self.problem.p), self.problem.p)

    @cached_property
    def forward(self) -> dict[str, np.ndarray]:
        """Gradients by the tangent sweep."""
        return rows(jax.jacfwd(self.outputs)(self.problem.p), self.problem.p)

    @cached_property
    def hessian(self) -> dict[str, np.ndarray]:
        """Forward over reverse."""
        return matrices(jax.hessian(self.outputs)(self.problem.p), self.problem.p)


def rows(gradients: dict, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Gradients as vectors, in the order of the parameters."""
    names = list(names)
    return {y: np.array([row[a] for a in names]) for y, row in gradients.items()}


def matrices(hessians: dict, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Hessians as matrices, in the order of the parameters."""
    names = list(names)
    return {y: np.array([[h[a][b] for b in names] for a in names]) for y, h in hessians.items()}
