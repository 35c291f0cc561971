"""Why steps became too short or too many: guards that jump over zero, and stiff modes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.host_programs import rarely
from ..base.tracing import is_traced
from ..base.types import Array, Leaves, Vector
from ..base.user_code import line_of_equation
from ..methods.runge_kutta import ExplicitStepper
from ..model.algebraic_states import begun
from ..model.model import Action, At, Model, Par
from ..simulate.record import JUMPS
from .nonfinite import ahead, on_the_line, span

if TYPE_CHECKING:
    from .solution import Solution

GUARD_SPAN = 1e-6  # searched around the last state, relative to the time from start to end
GUARD_POINTS = 41  # at which a guard is evaluated in each round
GUARD_ROUNDS = 14  # each divides the span by the number of points
GUARD_LEAP = 1e-3  # relative change of a guard within rounding of one time: more is a jump
LAST_STEPS = 50  # at the end of a solve, from which the typical step length is taken
STABILITY_LIMIT = 0.5  # step length times rate of decay: more may mean a stiff system
CERTAIN_STIFFNESS = 1.5  # the same product: more cannot be due to accuracy
MIN_STEPS_TO_EXPLAIN = 1000  # fewer steps need no explanation in a summary
MAX_JACOBIAN_STATES = 300  # beyond it the Jacobian of the flow is too expensive
MIN_REJECTED_SHARE = 0.2  # of all steps, for rejections to be explained
REJECTED_REACH = 100.0  # in lengths of the last step: how far rejected steps may have gone
BRANCHING = {
    "select_n", "saltus_when", "floor", "ceil", "round", "sign", "rem", "gt", "ge", "lt", "le",
}  # fmt: skip


class Leap(NamedTuple):
    """A guard that is on both sides of zero at one time, and not zero in between."""

    action: Action
    member: int | None
    t: float
    before: float
    after: float
    where: str  # the line of the user's guard that branches

    @property
    def what(self) -> str:
        member = "" if self.member is None else f"[{self.member}]"
        line = f" It branches in {self.where}." if self.where else ""
        return (
            f'The guard of event "{self.action.name}{member}" jumps over zero at t = '
            f"{self.t:.10g}, from {self.before:.6g} to {self.after:.6g}: it is not zero "
            f"in between, so steps towards the event only become shorter.{line}"
        )

    @property
    def advice(self) -> str:
        return (
            "An event is a zero of a guard that is continuous there. Use the quantity itself as "
            "the guard, as in guard=lambda now, p: "
            'now.x["h"] - 0.5, and not `where`, `when`, `sign`, `floor`, `mod` or a comparison '
            "of it; if something switches at that time, make the switch an event of its own, "
            "whose reset changes d or the mode, and let the guard read d or the mode."
        )


def leap(sol: Solution) -> Leap | None:
    """The first guard that jumps over zero where a solve stopped."""
    model, at, par = sol.spec.model, sol.tape.end, sol.tape.par()
    reach = max(GUARD_SPAN * span(sol), 64 * np.spacing(abs(float(at.tau))))
    for j, action in enumerate(model.guards):
        if action.kink:
            continue
        for member in range(action.size or 1):
            found = _closed_in(model, at, par, reach, j, member)
            if found is not None:
                offset, before, after = found
                sign = -1.0 if bool(par.backward) else 1.0
                if action.direction * sign * (after - before) < 0:
                    continue  # in the wrong direction for this event
                t = float(par.t0 + at.tau) + sign * offset
                number = None if action.size is None else member
                return Leap(action, number, t, before, after, _line(action))
    return None


def _closed_in(
    model: Model, at: At, par: Par, reach: float, j: int, member: int
) -> tuple[float, float, float] | None:
    """Where a guard jumps over zero near a state, and its values there; `None` if nowhere."""
    low, high, before, after, k = -reach, reach, 0.0, 0.0, 0
    values = np.zeros(GUARD_POINTS)
    least = 4 * np.spacing(max(abs(float(at.tau)), reach))
    for _ in range(GUARD_ROUNDS):
        offsets = np.linspace(low, high, GUARD_POINTS)
        tried = _along(model, at, par, jnp.asarray(offsets))[j]
        values = np.asarray(tried).reshape(GUARD_POINTS, -1)[:, member]
        signs = np.sign(values)
        turns = np.flatnonzero((signs[:-1] * signs[1:] < 0) & np.isfinite(np.diff(values)))
        if not len(turns):
            return None
        k = int(turns[np.argmax(np.abs(np.diff(values))[turns])])
        low, high, before, after = offsets[k], offsets[k + 1], values[k], values[k + 1]
        if high - low <= least:
            break
    size = max(abs(before), abs(after))
    slope = np.max(np.abs(np.diff(values)[np.arange(GUARD_POINTS - 1) != k]), initial=0.0)
    if abs(after - before) < GUARD_LEAP * size or abs(after - before) <= 1e3 * slope:
        return None
    return 0.5 * (low + high), float(before), float(after)


@functools.partial(rarely, static_argnums=(0,))
def _along(model: Model, at: At, par: Par, offsets: Array) -> Leaves:
    """The guards along a straight line through a state, before and after it."""

    def look(here: At) -> Leaves:
        return model.guard_values(begun(model, here, par), par)

    return on_the_line(model, at, par, offsets, look)


def _line(action: Action) -> str:
    """The user's line in which a guard branches; empty where that is not known."""
    eqns = action.guard.traced.jaxpr.eqns  # type: ignore[union-attr]
    found = [line_of_equation(e) for e in eqns if e.primitive.name in BRANCHING]
    return next((line for line in found if line), "")


def shortened(sol: Solution) -> tuple[str, dict[str, Any]]:
    """How long the last step was, and what was not finite right ahead of it."""
    lengths = np.abs(np.asarray(sol.tape.h)[: int(sol.tape.n)])
    lengths = lengths[lengths > JUMPS]
    if not lengths.size:
        return "", {}
    what = f" The last step that succeeded was {lengths[-1]:.3g} long."
    values = {"last step": float(lengths[-1])}
    if int(sol.stats.rejected) > MIN_REJECTED_SHARE * int(sol.stats.steps):
        for culprit in ahead(sol, min(1.0, REJECTED_REACH * lengths[-1] / span(sol))):
            what += f" Many steps had to be shortened, and {culprit.words}."
            values[culprit.name] = culprit.value
    return what, values


def stiffness(sol: Solution) -> str:
    """A sentence if stability is what keeps the steps of an explicit method short."""
    row = int(sol.tape.n) if sol.spec.adaptive else 0
    h, rate = _length_and_rate(sol, row)
    if not h * rate > STABILITY_LIMIT:
        return ""
    return (
        f"The system is stiff here: a part of it decays at a rate of {rate:.3g}, in "
        f"{1 / rate:.3g} units of time, and an explicit method can take no steps much longer than "
        f"that ({h:.3g}). Write method=saltus.Radau5(), which can."
    )


def slowed(sol: Solution) -> str:
    """The same as a short remark, for a solve that took many steps."""
    if is_traced((sol.result, sol.stats.steps, sol.tape)) or np.ndim(sol.result):
        return ""
    n = int(sol.tape.n)
    rows = (n // 2, n) if int(sol.stats.steps) > MIN_STEPS_TO_EXPLAIN and sol.spec.adaptive else ()
    for h, rate in (_length_and_rate(sol, row) for row in rows):
        if h * rate > CERTAIN_STIFFNESS:
            return (
                f"steps are limited by stability, not accuracy ({h:.3g} long, and a part decays "
                f"in {1 / rate:.3g}); try method=saltus.Radau5()"
            )
    return ""


def _length_and_rate(sol: Solution, row: int) -> tuple[float, float]:
    """The length of an explicit method's steps before a row, and the fastest decay there."""
    model, tape, n = sol.spec.model, sol.tape, int(sol.tape.n)
    stepper = getattr(sol.spec.stepper, "inner", sol.spec.stepper)
    lengths = np.abs(np.asarray(tape.h)[: row or n])
    lengths = lengths[lengths > JUMPS]
    size = sum(int(np.prod(s)) for s in model.x_shapes)
    if not isinstance(stepper, ExplicitStepper) or not lengths.size or size > MAX_JACOBIAN_STATES:
        return 0.0, 0.0
    at = tape.end if row == n else tape.state(row)
    return float(np.median(lengths[-LAST_STEPS:])), _fastest_decay(model, at, tape.par())


def _fastest_decay(model: Model, at: At, par: Par) -> float:
    """The largest rate at which a disturbance of the states decays."""
    n = model.nx
    shapes = [np.shape(v) for v in model.x_of(at)]
    sizes = np.cumsum([int(np.prod(s)) for s in shapes])[:-1]

    def flow(flat: Vector) -> Vector:
        parts = jnp.split(flat, sizes)
        x = tuple(jnp.reshape(v, s) for v, s in zip(parts, shapes, strict=True))
        here = begun(model, model.with_x(at, x), par)
        return jnp.concatenate([jnp.ravel(v) for v in model.flow(here, par)[:n]])

    flat = jnp.concatenate([jnp.ravel(v).astype(jnp.float64) for v in model.x_of(at)])
    matrix = np.asarray(jax.jacfwd(flow)(flat))
    if not np.all(np.isfinite(matrix)):
        return 0.0
    sign = -1.0 if bool(par.backward) else 1.0
    return float(np.max(-sign * np.linalg.eigvals(matrix).real, initial=0.0))
