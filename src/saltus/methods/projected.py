"""Any method, with every step ending on the invariants of the system (M60)."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..base.leaves import Leaves, Shapes
from ..model.algebraic_states import determined
from ..model.invariants import onto
from ..model.model import At, Model, Par
from .linearised_flow import Damping, Leading
from .method import Goal, Stepper, Trial


def keeping(stepper: Stepper, model: Model) -> Stepper:
    """The stepper itself where there is nothing to keep."""
    return stepper if model.invariant is None else Projecting(stepper)


@dataclasses.dataclass(frozen=True)
class Projecting:
    inner: Stepper

    @property
    def order(self) -> int:
        return self.inner.order

    @property
    def error_order(self) -> int:
        return self.inner.error_order

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def shortest(self) -> float:
        return self.inner.shortest

    def light(self, model: Model) -> bool:
        return False

    def steady(self, model: Model) -> bool:
        return self.inner.steady(model)

    def memory(self, model: Model) -> Any:
        return self.inner.memory(model)

    def aux(self, model: Model) -> Shapes:
        return self.inner.aux(model)

    def accepted(self, memory: Any) -> Any:
        return self.inner.accepted(memory)

    def halved(self, model: Model, at: At, aux: Leaves) -> Leaves:
        return self.inner.halved(model, at, aux)

    def attempt(
        self, model: Model, par: Par, goal: Goal, at: At, k: Leaves, h: Any, memory: Any
    ) -> Trial:
        trial = self.inner.attempt(model, par, goal, at, k, h, memory)
        end = determined(model, onto(model, trial.end, par), par, 0)
        count = trial.evaluations + 1
        return trial._replace(end=end, k=model.flow(end, par), evaluations=count)

    @property
    def leading(self) -> Leading:
        return self.inner.leading

    def damping(self, model: Model, par: Par, at: At, h: Any) -> Damping | None:
        return self.inner.damping(model, par, at, h)

    def row(self, model: Model, par: Par, at: At, h: Any, aux: Leaves, degree: int) -> At:
        return self._onto(model, par, self.inner.row(model, par, at, h, aux, degree), degree)

    def redo(
        self, model: Model, par: Par, at: At, h: Any, aux: Leaves, length: Any
    ) -> tuple[At, Leaves]:
        end, again = self.inner.redo(model, par, at, h, aux, length)
        return self._onto(model, par, end, 0), again

    def reach(
        self, model: Model, par: Par, at: At, h: Any, aux: Leaves, length: Any, degree: int
    ) -> At:
        end = self.inner.reach(model, par, at, h, aux, length, degree)
        return self._onto(model, par, end, degree)

    def _onto(self, model: Model, par: Par, end: At, degree: int) -> At:
        return determined(model, onto(model, end, par), par, degree)
