"""Any method, with each step followed by a projection onto the invariants (M60)."""

from __future__ import annotations

import dataclasses

from ..base.leaves import Leaves, Shapes
from ..base.types import Scalar, Tree
from ..model.algebraic_states import determined
from ..model.invariants import onto
from ..model.model import At, Model, Par
from .linearised_flow import Damping
from .method import Goal, Stepper, Traits, Trial


def keeping(stepper: Stepper, model: Model) -> Stepper:
    """The stepper, with steps projected onto the invariants if the system has any."""
    return stepper if model.invariant is None else Projecting(stepper)


@dataclasses.dataclass(frozen=True)
class Projecting(Stepper):
    """A method whose steps are projected onto the invariants."""

    inner: Stepper

    @property
    def traits(self) -> Traits:
        return self.inner.traits

    def steady(self, model: Model) -> bool:
        return self.inner.steady(model)

    def memory(self, model: Model) -> Tree:
        return self.inner.memory(model)

    def aux(self, model: Model) -> Shapes:
        return self.inner.aux(model)

    def accepted(self, memory: Tree) -> Tree:
        return self.inner.accepted(memory)

    def halved(self, model: Model, at: At, aux: Leaves) -> Leaves:
        return self.inner.halved(model, at, aux)

    def attempt(
        self, model: Model, par: Par, goal: Goal, at: At, k: Leaves, h: Scalar, memory: Tree
    ) -> Trial:
        trial = self.inner.attempt(model, par, goal, at, k, h, memory)
        end = determined(model, onto(model, trial.end, par), par, 0)
        count = trial.evaluations + 1
        return trial._replace(end=end, k=model.flow(end, par), evaluations=count)

    def damping(self, model: Model, par: Par, at: At, h: Scalar) -> Damping | None:
        return self.inner.damping(model, par, at, h)

    def row(self, model: Model, par: Par, at: At, h: Scalar, aux: Leaves, degree: int) -> At:
        return self._onto(model, par, self.inner.row(model, par, at, h, aux, degree), degree)

    def redo(
        self, model: Model, par: Par, at: At, h: Scalar, aux: Leaves, length: Scalar
    ) -> tuple[At, Leaves]:
        end, again = self.inner.redo(model, par, at, h, aux, length)
        return self._onto(model, par, end, 0), again

    def reach(
        self, model: Model, par: Par, at: At, h: Scalar, aux: Leaves, length: Scalar, degree: int
    ) -> At:
        end = self.inner.reach(model, par, at, h, aux, length, degree)
        return self._onto(model, par, end, degree)

    def _onto(self, model: Model, par: Par, end: At, degree: int) -> At:
        return determined(model, onto(model, end, par), par, degree)
