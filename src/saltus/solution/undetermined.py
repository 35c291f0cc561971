"""Algebraic states that no equation determines, and equations that are redundant."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.leaves import spelled
from ..base.names import numbered
from ..base.types import HostArray
from ..model.algebraic_states import hidden, steepness
from ..model.model import At, Model, Par
from ..model.projection import slopes

SINGULAR_VALUE_ZERO = 1e-12  # after scaling equations and states
MIN_SHARE = 1e-6  # of a unit vector: smaller entries count as zero
MAX_UNKNOWNS = 300  # more would take too long
GOOD_CONDITION = 1e8  # a smaller condition number explains nothing
MAX_NAMES = 6  # in a sentence


class Gap(NamedTuple):
    """What is missing where the Jacobian of the equations for z does not have full rank."""

    free: list[str]  # states that can change without changing any equation
    idle: list[str]  # equations that depend on no algebraic state
    bound: list[str]  # the others that depend on each other
    together: bool  # free states move together, not each on its own
    open: dict[str, float]  # residuals that no algebraic state can change

    @property
    def words(self) -> str:
        moves = ", which can move together" if self.together else ""
        text = f"No equation determines {_names(self.free)}{moves}."
        if self.idle:
            text += f" {_equations(self.idle)} on no algebraic state here."
        if len(self.bound) > 1:
            shown = ", ".join(f'"{name}"' for name in self.bound[:MAX_NAMES])
            text += f" The equations {shown} are not independent."
        for name, value in list(self.open.items())[:1]:
            text += f' The residual of "{name}" is {value:.3g}, which none of them can change.'
        return text


def gap(model: Model, at: At, par: Par) -> Gap | None:
    """What is missing to determine z at a state; `None` if it is determined, or nearly."""
    matrix = jacobian_of_z(model, at, par)
    if matrix is None:
        return None
    size = np.abs(matrix).max(axis=1, keepdims=True)
    scaled = matrix / np.where(size == 0, 1.0, size)
    column = np.abs(scaled).max(axis=0, keepdims=True)
    scaled = scaled / np.where(column == 0, 1.0, column)
    left, values, right = np.linalg.svd(scaled)
    lost = values <= SINGULAR_VALUE_ZERO * max(values[0], SINGULAR_VALUE_ZERO)
    if not lost.any():
        return None
    free = np.sqrt(np.sum(right[lost] ** 2, axis=0)) > MIN_SHARE
    loose = np.sqrt(np.sum(left[:, lost] ** 2, axis=1)) > MIN_SHARE
    zs, rows = state_names(model), equation_names(model)
    idle = loose & (size[:, 0] == 0)
    rest = np.concatenate([np.ravel(np.asarray(v)) for v in hidden(model, at, par)])
    never = np.abs(left[:, lost] @ (left[:, lost].T @ (rest / np.where(size == 0, 1, size)[:, 0])))
    open_ = {rows[k]: float(rest[k]) for k in np.flatnonzero(loose & (never > 1e-8))}
    return Gap(
        [zs[k] for k in np.flatnonzero(free)],
        [rows[k] for k in np.flatnonzero(idle)],
        [rows[k] for k in np.flatnonzero(loose & ~idle)],
        bool(free.sum() > lost.sum()),
        open_,
    )


def taken_out(model: Model, before: At, after: At, par: Par) -> list[tuple[str, str]]:
    """Which algebraic states a jump removed from which equations: pairs (state, equation)."""
    first, last = (jacobian_of_z(model, at, par) for at in (before, after))
    if first is None or last is None:
        return []
    zs, rows = state_names(model), equation_names(model)
    return [(zs[j], rows[i]) for i, j in np.argwhere((first != 0) & (last == 0))]


def floats(model: Model, before: At, at: At, par: Par, jump: str) -> tuple[str, str] | None:
    """What a jump leaves undetermined, and what to write; `None` if nothing."""
    found, rule = gap(model, at, par), model.constraint
    if found is None or rule is None:
        return None
    what = f"After {jump} the constraint no longer determines all algebraic states. {found.words}"
    of: dict[str, list[str]] = {}
    for state, equation in taken_out(model, before, at, par):
        of.setdefault(equation, []).append(state)
    if of:
        parts = [f'{_names(states)} from equation "{name}"' for name, states in of.items()]
        what += f" The jump removed {', and '.join(parts[:MAX_NAMES])}."
    one, row = found.free[0], (found.idle or found.bound or ["..."])[0]
    written = numbered(spelled(model.z, "now.z"), rule.shapes, "now.z")
    z = written[state_names(model).index(one)]
    return what, (
        f'Give {one} an equation that holds there too: in "{row}" add what still acts on it (a '
        f"leak such as -1e-9 * {z}), or set it in that state with jnp.where(condition, equation, "
        f"{z} - value); modes of an automaton may have constraints of their own."
    )


def jacobian_of_z(model: Model, at: At, par: Par) -> np.ndarray | None:
    """The derivatives by z of its equations; `None` if not finite or too many."""
    rule = model.constraint
    if rule is None or sum(int(np.prod(s)) for s in rule.shapes) > MAX_UNKNOWNS:
        return None
    if not all(np.all(np.isfinite(np.asarray(v))) for v in (*model.x_of(at), *at.z)):
        return None
    matrix = np.asarray(slopes(model, at, par))
    return matrix if np.all(np.isfinite(matrix)) else None


def state_names(model: Model) -> list[str]:
    """A name for every algebraic number."""
    return numbered(model.z.names(), model.constraint.shapes, "z")  # type: ignore[union-attr]


def equation_names(model: Model) -> list[str]:
    """A name for every equation of the constraint."""
    rule = model.constraint
    assert rule is not None
    return numbered(rule.equations, rule.rows, "constraint")


def _names(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _equations(names: list[str]) -> str:
    shown = ", ".join(f'"{name}"' for name in names[:MAX_NAMES])
    return f"Equation {shown} depends" if len(names) == 1 else f"Equations {shown} depend"


def unsettled(model: Model, at: At, par: Par, matrix: HostArray, what: str, singular: bool) -> str:
    """What did not converge although `matrix`, called `what`, determines z well."""
    if singular:
        share = 1e-5 * float(steepness(model, at, par))
        return (
            f"At this state {what} is still regular, but it changes by {share:.3g} times its size "
            "when the states change by a hundred thousandth: it becomes singular just ahead."
        )
    names = state_names(model)
    rows, z = (
        np.concatenate([np.ravel(np.asarray(v)) for v in leaves])
        for leaves in (hidden(model, at, par), at.z)
    )
    step = np.linalg.solve(matrix, rows)
    last = int(np.argmax(np.abs(step)))
    return (
        f"{what} determines z well here: what did not converge is Newton's method for z, or for "
        f"the stages of a step. At {names[last]} = {z[last]:.3g} the next correction of "
        f"{names[last]} is {-step[last]:.3g}."
    )
