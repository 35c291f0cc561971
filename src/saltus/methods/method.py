"""What a method is: settings that a user chooses, and a stepper that the loop and sweeps call.

To write a method, subclass `Method` (tolerances, `control`, ...) with a property `stepper`, and
`Stepper` for what it returns.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves, Shapes
from ..base.tracing import is_tracer
from ..base.types import Array, Flag, Scalar, Tree, Whole
from ..model.model import At, Model, Par
from .linearised_flow import Damping, Leading
from .step_control import PI, Fixed

if TYPE_CHECKING:
    from ..simulate.primitive import Outcome
    from ..simulate.record import Knobs, Spec

FINEST_RTOL = 10 * float(np.finfo(np.float64).eps)


class Trial(NamedTuple):
    """A step that was computed, and neither accepted nor rejected yet."""

    end: At  # algebraic states included
    k: Leaves  # the flow at the end
    error: Scalar  # the scaled error of the step
    middle: At  # state and slope half way
    k_middle: Leaves
    aux: Leaves  # recorded with the row, for `row` and `reach`
    memory: Tree  # for the next attempt
    converged: Flag  # whether the equations of the step were solved
    evaluations: Whole  # of the flow
    retry: Flag | bool = False  # worth another attempt of the same length: the memory has changed
    blind: Flag | bool = False  # `error` says nothing about derivatives (tangent_error.py)


class Goal(NamedTuple):
    """The accuracy that an attempt should have."""

    rtol: Scalar
    atol: Leaves  # of the moving leaves, then of the algebraic ones
    adaptive: bool  # fixed steps are solved as exactly as possible


class Traits(NamedTuple):
    """What is known about a method without taking a step."""

    name: str
    order: int  # of the solution
    error_order: int  # the power of the step length in its error estimate
    leading: Leading  # that estimate on a linear flow
    shortest: float = 0.0  # part of a row; below it a Taylor polynomial is better than a step


class Stepper(abc.ABC):
    """One step of a method, for the loop that decides and for the sweeps that differentiate.

    Programs are compiled for a stepper, so it is immutable and hashable: a frozen dataclass. A
    method defines its `traits` and four functions, `attempt`, `row`, `redo` and `reach`; all others
    have defaults, for methods that keep nothing from one step to the next.

    `h` and `length` are signed: negative backward in time. `at` is the start of a row, `k` the flow
    there. Only `row` and `reach` are differentiated, up to the order `degree`, with respect to
    `at`, `par` and `h`; both must be finite and smooth at `h = 0`. Iterations run without
    derivatives, which are attached to their results (`model.algebraic_states.attached`).
    """

    @property
    @abc.abstractmethod
    def traits(self) -> Traits:
        """The name and the orders of the method."""

    @abc.abstractmethod
    def attempt(
        self, model: Model, par: Par, goal: Goal, at: At, k: Leaves, h: Scalar, memory: Tree
    ) -> Trial:
        """One step of the simulation, with its error estimate and the state in its middle."""

    @abc.abstractmethod
    def row(self, model: Model, par: Par, at: At, h: Scalar, aux: Leaves, degree: int) -> At:
        """The end of a recorded step as a smooth function of its start, with the recorded `aux`."""

    @abc.abstractmethod
    def redo(
        self, model: Model, par: Par, at: At, h: Scalar, aux: Leaves, length: Scalar
    ) -> tuple[At, Leaves]:
        """A step of length `h` from the start of a row of this `length`, and the step's `aux`."""

    @abc.abstractmethod
    def reach(
        self, model: Model, par: Par, at: At, h: Scalar, aux: Leaves, length: Scalar, degree: int
    ) -> At:
        """The end of such a step as a smooth function, for values inside a row."""

    @property
    def name(self) -> str:
        return self.traits.name

    @property
    def order(self) -> int:
        return self.traits.order

    @property
    def error_order(self) -> int:
        return self.traits.error_order

    @property
    def shortest(self) -> float:
        return self.traits.shortest

    def aux(self, model: Model) -> Shapes:
        """The shapes of what an attempt records with its row."""
        return ()

    def halved(self, model: Model, at: At, aux: Leaves) -> Leaves:
        """What `reach` may use for the second half of a row."""
        return aux

    def memory(self, model: Model) -> Tree:
        """What each attempt passes to the next one, as it is before the first attempt."""
        return ()

    def accepted(self, memory: Tree) -> Tree:
        """The memory after a step was accepted."""
        return memory

    def light(self, model: Model) -> bool:
        """Whether steps are so cheap that many of them are best computed at once."""
        return False

    def steady(self, model: Model) -> bool:
        """Whether the step length should not be increased by small amounts."""
        return False

    def damping(self, model: Model, par: Par, at: At, h: Scalar) -> Damping | None:
        """How a step damps stiff components; None for explicit methods."""
        return None


class Method(eqx.Module):
    """A method with its settings. A change of a number never causes a compilation.

    The scaled error of a step, which must not exceed 1, is the root mean square of
    `error / (atol + rtol * max(|x0|, |x1|))` over all states and integrals. `atol` is a number or a
    pytree of numbers like the states. An `rtol` below the rounding of the states (2.2e-16, or
    1.2e-7 if one is a float32) is replaced by that rounding. `control` chooses the step lengths:
    `PI()` by the error, `Fixed(h)` all equal. `first_step` is the length of the first step, chosen
    automatically if it is None, and `max_step` the longest that is allowed.
    """

    rtol: Array | float = 1e-8
    atol: Tree = 1e-8
    control: PI | Fixed = PI()
    first_step: Array | float | None = None
    max_step: Array | float = float("inf")

    highest_index = 1  # of the equations that it can solve
    external = False  # whether it has its own `simulate`, outside of JAX

    def __check_init__(self) -> None:
        who = type(self).__name__
        if not isinstance(self.control, PI | Fixed):
            raise TypeError(
                f"{who}: control is {self.control!r}, expected saltus.PI() or saltus.Fixed(h)."
            )
        atol = _known(f"{who}: atol", self.atol)
        rtol = _known(f"{who}: rtol", self.rtol)
        if (
            self.rtol is None
            or not jax.tree_util.all_leaves([self.rtol])
            or any(map(np.ndim, rtol))
        ):
            raise TypeError(
                f"{who}: rtol is {self.rtol!r}, expected one number for all states; atol may have "
                "one for each of them: atol={'h': 1e-9, 'v': 1e-6}."
            )
        _check_tolerances(who, rtol, atol, isinstance(self.control, PI))
        lengths = {"first_step": self.first_step, "max_step": self.max_step}
        if isinstance(self.control, Fixed):
            lengths["h of control=Fixed(h)"] = self.control.h
        for name, value in lengths.items():
            for v in [] if value is None else _known(f"{who}: {name}", value):
                if (
                    v.ndim
                    or not np.all(v > 0)
                    or (name != "max_step" and not np.all(np.isfinite(v)))
                ):
                    raise ValueError(f"{who}: {name} is {v}, expected a number above 0.")

    @property
    def stepper(self) -> Stepper:
        raise NotImplementedError

    def simulate(self, spec: Spec, at: At, par: Par, knobs: Knobs) -> Outcome:
        """The steps and events of an `external` method."""
        raise NotImplementedError

    def tolerance(self, rtol: Scalar) -> Scalar:
        """The relative tolerance for its error estimate; `atol` is scaled by the same factor."""
        return rtol


def _known(what: str, value: Tree) -> list[np.ndarray]:
    """The numbers in a setting that are known now: inside `jit` there may be none."""
    leaves = [v for v in jax.tree.leaves(value) if not is_tracer(v)]
    try:
        return [np.asarray(v, dtype=np.float64) for v in leaves]
    except (TypeError, ValueError):
        raise ValueError(f"{what} is {value!r}, expected a number.") from None


def _check_tolerances(
    who: str, rtol: list[np.ndarray], atol: list[np.ndarray], adaptive: bool
) -> None:
    """Raise an error for values that are not tolerances, or that no step can meet."""
    for name, values in (("rtol", rtol), ("atol", atol)):
        for v in values:
            if not (np.all(v >= 0) and np.all(np.isfinite(v))):
                raise ValueError(f"{who}: {name} is {v}, expected a finite number >= 0.")
    for v in rtol:
        if np.any(v > 1):
            raise ValueError(
                f"{who}: rtol is {v}, with which no digit needs to be right. It is relative to the "
                "states: write rtol=1e-6 for six digits."
            )
        if np.any((v > 0) & (v < FINEST_RTOL)):
            raise ValueError(
                f"{who}: rtol is {v}, finer than float64 can be ({FINEST_RTOL:.1e}). Write "
                "rtol=1e-14, or rtol=0 to use atol alone."
            )
    if adaptive and rtol and atol and not any(np.any(v > 0) for v in (*rtol, *atol)):
        raise ValueError(
            f"{who}: rtol and atol are both 0, which no step can meet. "
            "Write rtol=1e-10, or control=saltus.Fixed(h)."
        )


def larger(a: Array, b: Array) -> Array:
    """The larger of two absolute values."""
    return jnp.maximum(jnp.abs(a), jnp.abs(b))


def scales(goal: Goal, x0: Leaves, x1: Leaves, atol: Leaves) -> list[Array]:
    """The units of errors: `atol + rtol * max(|x0|, |x1|)`."""
    return [
        a + goal.rtol * jnp.maximum(jnp.abs(u), jnp.abs(v))
        for u, v, a in zip(x0, x1, atol, strict=True)
    ]
