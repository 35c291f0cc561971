"""What a problem of the Test Set for IVP Solvers (Bari/CWI) is, and how its answers are judged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from problem import data
from saltus import HybridSystem, Instant


@dataclasses.dataclass(frozen=True)
class IvpProblem:
    """A system and its end: `solution(final)` has the order of the reference's components."""

    name: str
    system: HybridSystem
    start: Instant
    index: int  # 0: an ODE
    atol: float  # at rtol = 1e-8
    solution: Callable[[Instant], Any] = lambda final: final.x
    known: int | None = None  # compare only these first components
    floor: float | None = None  # components smaller than this count absolutely; else atol / rtol

    @property
    def end(self) -> float:
        return float(self._entry["t1"])

    @property
    def reference(self) -> np.ndarray:
        return np.array(self._entry["y_ref"])[: self.known]

    @property
    def _entry(self) -> dict:
        return data("ivp_testset")["problems"][self.name.split("_")[0]]


def correct_digits(y: Any, case: IvpProblem, rtol: float) -> float:
    """Mixed error significant correct digits: -log10 max |error| / (atol/rtol + |y|)."""
    error = np.abs(np.asarray(y) - case.reference)
    floor = case.atol / rtol if case.floor is None else case.floor
    return float(-np.log10(np.max(error / (floor + np.abs(case.reference)))))
