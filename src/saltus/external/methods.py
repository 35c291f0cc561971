"""SUNDIALS as methods of `solve`: it chooses the steps and finds the events.

The solution is differentiated on the mesh of its steps."""

from __future__ import annotations

import equinox as eqx

from ..base.foreign_parts import METHOD, constructs
from ..methods.method import Method, Stepper
from ..methods.radau import Radau5
from ..model.model import At, Par
from ..simulate.primitive import Outcome
from ..simulate.record import Knobs, Spec
from .mesh import Trapezoidal

RULES = ("radau", "trapezoidal")


class External(Method):
    """A method whose trajectory an external solver computes.

    `mesh` chooses the equations between its mesh points, which are differentiated: "radau"
    (collocation of order 5) or "trapezoidal" (order 2, as in Matei et al.). Other settings: see
    `saltus.methods.Method`; there is no `control`, because SUNDIALS chooses its own steps.
    """

    mesh: str = eqx.field(static=True, default="radau")

    external = True
    highest_index = 1

    def __check_init__(self) -> None:
        super().__check_init__()
        if self.mesh not in RULES:
            raise ValueError(
                f"{type(self).__name__}: mesh is {self.mesh!r}, expected one of "
                f"{', '.join(map(repr, RULES))}."
            )
        if not self.control.adaptive:
            raise ValueError(
                f"{type(self).__name__}: SUNDIALS chooses its own steps. Leave control out, or "
                "write max_step=..., or choose another method."
            )

    @property
    def stepper(self) -> Stepper:
        return Radau5().stepper if self.mesh == "radau" else Trapezoidal()

    @classmethod
    def like(cls, method: Method) -> External:
        """This method with the tolerances and the longest step of another one."""
        return cls(rtol=method.rtol, atol=method.atol, max_step=method.max_step)

    def simulate(self, spec: Spec, at: At, par: Par, knobs: Knobs) -> Outcome:
        """Steps, events and mesh by SUNDIALS."""
        from .run import Run

        return Run(type(self).__name__, spec, at, par, knobs).outcome()


@constructs(METHOD)
class IDA(External):
    """SUNDIALS' IDA (variable-order BDF for differential-algebraic equations of index 1).

    It needs the extra `sundials`, and runs outside of JAX: `jax.grad`, `jax.jacfwd` and
    `jax.hessian` work with it, `jax.jit` and `jax.vmap` do not. `mesh` chooses the equations
    between its mesh points, which are differentiated: "radau" (order 5) or "trapezoidal" (order 2).
    Other settings: see `saltus.methods.Method`.
    """


@constructs(METHOD)
class CVODE(External):
    """SUNDIALS' CVODE (variable-order BDF for ordinary differential equations).

    Its settings and limits are those of `IDA`."""
