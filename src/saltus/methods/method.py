"""What a method is: numbers a user tunes, and a stepper the loop and the sweeps call.

To write a method, subclass `Method` (tolerances, `control`, ...) with a `stepper` property, and
give the stepper, a frozen and hashable object:

- `attempt`: one step of the simulation, with error estimate and a look at its middle;
- `row`: the same step as a smooth function of its start, with frozen length and what was recorded;
- `redo`: a step of another length from the start of a row, and what `row` needs for it;
- `reach`: the same as a smooth function, for values inside a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves, Shapes
from ..base.tracing import is_tracer
from ..model.model import At, Model, Par
from .linearised_flow import Damping, Leading
from .step_control import PI, Fixed

FINEST = 10 * float(np.finfo(np.float64).eps)  # relative tolerance


class Trial(NamedTuple):
    """A step that was computed and not yet judged."""

    end: At  # algebraic states included
    k: Leaves  # the flow there
    error: Any  # its scaled error
    middle: At  # state and slope half way
    k_middle: Leaves
    aux: Leaves  # recorded with the row, for `row` and `reach`
    memory: Any  # for the next attempt
    converged: Any  # whether the equations of the step were solved
    evaluations: Any  # of the flow
    retry: Any = False  # worth another attempt of the same length: the memory has changed
    blind: Any = False  # its error says nothing about derivatives (tangent_error.py)


class Goal(NamedTuple):
    """The accuracy an attempt is asked for."""

    rtol: Any
    atol: Leaves  # of the moving leaves, then of the algebraic ones
    adaptive: bool  # fixed steps are solved as exactly as possible


class Stepper(Protocol):
    @property
    def order(self) -> int: ...

    @property
    def error_order(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def shortest(self) -> float:
        """Steps shorter than this part of a row are better replaced by a Taylor polynomial."""
        ...

    def light(self, model: Model) -> bool:
        """Whether a step is so little work that many of them are best done side by side."""
        ...

    def steady(self, model: Model) -> bool:
        """Whether small increases of the step size should be left out."""
        ...

    def memory(self, model: Model) -> Any:
        """What an attempt hands to the next, before the first one."""
        ...

    def aux(self, model: Model) -> Shapes:
        """The shapes of what an attempt records."""
        ...

    def attempt(
        self, model: Model, par: Par, goal: Goal, at: At, k: Leaves, h: Any, memory: Any
    ) -> Trial: ...

    @property
    def leading(self) -> Leading:
        """Its error estimate on a linear flow."""
        ...

    def damping(self, model: Model, par: Par, at: At, h: Any) -> Damping | None:
        """What damps stiff components in a step, of implicit methods."""
        ...

    def accepted(self, memory: Any) -> Any:
        """The memory once the loop has moved to the end of the step."""
        ...

    def row(self, model: Model, par: Par, at: At, h: Any, aux: Leaves, degree: int) -> At: ...

    def redo(
        self, model: Model, par: Par, at: At, h: Any, aux: Leaves, length: Any
    ) -> tuple[At, Leaves]: ...

    def reach(
        self, model: Model, par: Par, at: At, h: Any, aux: Leaves, length: Any, degree: int
    ) -> At: ...

    def halved(self, model: Model, at: At, aux: Leaves) -> Leaves:
        """What `reach` may use for the second half of a row."""
        ...


class Method(eqx.Module):
    """A method with its tolerances. Changing a number never recompiles.

    The error of a step is the root mean square of `error / (atol + rtol * max(|x0|, |x1|))` over
    all states and integrals. `rtol` below the rounding of the states (2.2e-16, and 1.2e-7 where
    one is a float32) is taken as that rounding. `control=Fixed(h)` turns the error control off;
    `first_step` and `max_step` bound the steps.
    """

    rtol: Any = 1e-8
    atol: Any = 1e-8
    control: PI | Fixed = PI()
    first_step: Any = None
    max_step: Any = float("inf")

    highest_index = 1  # of the equations it can treat
    external = False  # whether it has a `simulate` of its own, outside of JAX

    def __check_init__(self):
        who = type(self).__name__
        if not isinstance(self.control, PI | Fixed):
            raise TypeError(
                f"{who}: control is {self.control!r}, expected saltus.PI() or saltus.Fixed(h)."
            )
        rtol, atol = (_known(f"{who}: {name}", getattr(self, name)) for name in ("rtol", "atol"))
        _check_tolerances(who, rtol, atol, isinstance(self.control, PI))
        lengths = {"first_step": self.first_step, "max_step": self.max_step}
        if isinstance(self.control, Fixed):
            lengths["h of control=Fixed(h)"] = self.control.h
        for name, value in lengths.items():
            for v in [] if value is None else _known(f"{who}: {name}", value):
                if not np.all(v > 0) or (name != "max_step" and not np.all(np.isfinite(v))):
                    raise ValueError(f"{who}: {name} is {v}, expected a number above 0.")

    @property
    def stepper(self) -> Any:
        raise NotImplementedError

    def simulate(self, spec: Any, at: At, par: Par, knobs: Any) -> Any:
        """The steps and events of an `external` method."""
        raise NotImplementedError

    def tolerance(self, rtol: Any) -> Any:
        """The relative tolerance its error estimate is held to; `atol` is scaled alike."""
        return rtol


def _known(what: str, value: Any) -> list[np.ndarray]:
    """The numbers in a setting that are known now: inside `jit` there may be none."""
    leaves = [v for v in jax.tree.leaves(value) if not is_tracer(v)]
    try:
        return [np.asarray(v, dtype=np.float64) for v in leaves]
    except (TypeError, ValueError):
        raise ValueError(f"{what} is {value!r}, expected a number.") from None


def _check_tolerances(who: str, rtol: list, atol: list, adaptive: bool) -> None:
    """Tolerances that are none, or that no step can meet."""
    for name, values in (("rtol", rtol), ("atol", atol)):
        for v in values:
            if not (np.all(v >= 0) and np.all(np.isfinite(v))):
                raise ValueError(f"{who}: {name} is {v}, expected a finite number >= 0.")
    for v in rtol:
        if np.any(v > 1):
            raise ValueError(
                f"{who}: rtol is {v}, so that no digit needs to be right. It is relative to the "
                "states: write rtol=1e-6 for six digits."
            )
        if np.any((v > 0) & (v < FINEST)):
            raise ValueError(
                f"{who}: rtol is {v}, finer than float64 can be ({FINEST:.1e}). Write rtol=1e-14, "
                "or rtol=0 to be held to atol alone."
            )
    if adaptive and rtol and atol and not any(np.any(v > 0) for v in (*rtol, *atol)):
        raise ValueError(
            f"{who}: rtol and atol are both 0, which no step can meet. "
            "Write rtol=1e-10, or control=saltus.Fixed(h)."
        )


def larger(a: Any, b: Any) -> Any:
    return jnp.maximum(jnp.abs(a), jnp.abs(b))


def scales(goal: Goal, x0: Leaves, x1: Leaves, atol: Leaves) -> list:
    return [
        a + goal.rtol * jnp.maximum(jnp.abs(u), jnp.abs(v))
        for u, v, a in zip(x0, x1, atol, strict=True)
    ]
