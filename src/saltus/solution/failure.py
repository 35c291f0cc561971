"""Why a solve stopped, in words and numbers. Runs on the host, at the state where it stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..base.names import named
from ..base.results import Result
from ..base.types import Array, HostArray
from ..model.algebraic_states import hidden, violated
from ..model.invariants import residuals
from ..model.model import Action, At, Model, Par
from ..model.projection import projected, slopes
from ..simulate.guards import guard_slopes, rounding
from ..simulate.record import accumulation
from ..system.hybrid import Instant
from .chattering import in_turn, two_sides
from .description import algebraic_names
from .nonfinite import ahead, broken_reset, find, listed, nan_parameters, weightless
from .step_failure import leap, shortened, stiffness
from .undetermined import GOOD_CONDITION, equation_names, floats, gap, state_names, unsettled

if TYPE_CHECKING:
    from .solution import Solution

ALGEBRAIC = (
    Result.inconsistent, Result.no_consistent_state, Result.singular, Result.newton_failed,
)  # fmt: skip
AT_A_GUARD = (Result.resting_contact, Result.grazing)
STEPS = (Result.too_many_steps, Result.step_underflow, Result.newton_failed)
MAX_PROJECTED_STATES = 300  # beyond it a projection takes too long
LEAPING = (*STEPS, Result.too_many_events, Result.endless_chain)
CHAIN_LENGTH = 16  # jumps at the end of an endless chain that are examined
RIGHT_AHEAD = 1e-6  # relative to the time from start to end
UNDETERMINED = (Result.no_consistent_state, Result.singular)


class Explanation(NamedTuple):
    """What happened, what to do about it, the numbers that matter, and the event at fault."""

    what: str
    advice: str
    values: dict[str, Any]
    event: str | None = None  # `None` for the last event


def explain(sol: Solution, result: Result) -> Explanation:
    """Why a solve stopped, as far as that is known."""
    model, at, par = sol.spec.model, sol.tape.end, sol.tape.par()
    fired = _fired(sol)
    plain = Explanation(result.what, result.advice, {})
    jumping = leap(sol) if result in LEAPING and model.guards else None
    if jumping is not None:
        values = {"guard before": jumping.before, "guard after": jumping.after}
        return Explanation(jumping.what, jumping.advice, values, jumping.action.name)
    if result == Result.events_accumulate:
        when = float(sol.start) + float(accumulation(sol.pace, at.tau))
        words = f"{result.what} They pile up at t = {when:.10g}."
        return plain._replace(what=words, values={"accumulation time": when})
    if result == Result.chattering:
        return _chatters(plain, sol)
    if result == Result.endless_chain:
        return _still_moving(plain, sol)
    if result == Result.too_many_events:
        count = int(sol.stats.events)
        words = f"Event number {count} is one more than `max_events` = {count - 1}."
        return plain._replace(what=words)
    if result in AT_A_GUARD:
        return _at_a_guard(plain, model, at, par)
    if result == Result.inconsistent and model.invariant is not None:
        return _not_kept(model, at, par, fired, int(sol.tape.n) > 0)
    if result == Result.non_finite:
        return _unsolved_reset(sol, fired) or _not_finite(sol)
    if model.constraint is not None and result in ALGEBRAIC:
        return _algebraic(sol, result, fired)
    return _steps(plain, sol) if result in STEPS else plain


def state_words(now: Instant) -> str:
    """The states of an instant by name."""
    parts = []
    for tree, root in ((now.x, "x"), (now.z, "z"), (now.dx, "dx")):
        for name, leaf in list(named(tree, root).items())[:8]:
            value = np.asarray(leaf)
            shown = f"{float(value):.6g}" if value.ndim == 0 else str(value)
            slope = "'" if root == "dx" and name != "dx" else ""
            parts.append(f"{name}{slope} = {shown}")
    return ", ".join(parts)


def state_values(now: Instant) -> dict[str, Any]:
    """The states of an instant by name: floats and arrays."""
    leaves = {**named(now.x, "x"), **algebraic_names(now)}
    values = {name: np.asarray(leaf) for name, leaf in leaves.items()}
    return {name: v if v.ndim else v.item() for name, v in values.items()}


def _at_a_guard(plain: Explanation, model: Model, at: At, par: Par) -> Explanation:
    """The guard that is zero here, with its slope along the flow."""
    values, slopes = guard_slopes(model, at, par, model.flow(at, par))
    tiny = rounding(model, at, par, slopes)
    active = model.guard_active(at, par)
    closest, found = np.inf, plain
    for action, v, s, eps, on in zip(model.guards, values, slopes, tiny, active, strict=True):
        v, s, eps = (np.atleast_1d(np.asarray(part)) for part in (v, s, eps))
        far = np.where(np.broadcast_to(on, v.shape), np.abs(v) / (eps + 1e-300), np.inf)
        k = int(np.argmin(far))
        if action.logged and far[k] < closest:
            closest = far[k]
            member = "" if action.size is None else f"[{k}]"
            name = f'guard of "{action.name}{member}"'
            numbers = {name: float(v[k]), f"slope of the {name}": float(s[k])}
            found = plain._replace(values=numbers, event=action.name)
    return found


def _chatters(plain: Explanation, sol: Solution) -> Explanation:
    """Describes the surface, and how the flows on both sides move the guard."""
    sides, turns = two_sides(sol), in_turn(sol)
    if sides is None:
        return plain
    if turns and sides.above * sides.below >= 0:  # the flows do not point at each other
        return plain._replace(what=turns.words, values=turns.values, event=turns.names[0])
    names = sol.spec.model.x.names()
    flows = [
        ", ".join(f"{n or 'x'}' = {_number(v)}" for n, v in list(zip(names, flow, strict=True))[:6])
        for flow in (sides.flow_above, sides.flow_below)
    ]
    what = (
        f'{plain.what} It is the surface of "{sides.name}": on its positive side the guard changes '
        f"by {sides.above:.6g} per unit of time ({flows[0]}), on its negative side by "
        f"{sides.below:.6g} ({flows[1]})."
    )
    values = {"slope on the positive side": sides.above, "slope on the negative side": sides.below}
    return plain._replace(what=what, values=values, event=sides.name)


def _still_moving(plain: Explanation, sol: Solution) -> Explanation:
    """Says so if the chain contains a `zeno` reset that returned a state not at rest."""
    n = int(sol.tape.n)
    chain = np.asarray(sol.tape.action_indices())[max(n - CHAIN_LENGTH, 0) : n]
    actions = sol.spec.model.actions
    rests = [actions[k] for k in chain if k >= 0 and actions[k].kind == "zeno"]
    if not rests:
        return plain
    name = rests[-1].name.removesuffix(": zeno")
    return plain._replace(
        what=f'The `zeno` reset of event "{name}" does not stop the motion: the state is still '
        "pushed to the firing side of the guard, so that the event happens again at once.",
        advice="Let it return a state at rest, in which the flow does not move the guard: set a "
        "flag in d that holds the body still, or name a resting mode of an automaton.",
        event=name,
    )


def _number(value: Array | HostArray) -> str:
    value = np.asarray(value)
    return f"{float(value):.6g}" if value.ndim == 0 else np.array2string(value, precision=4)


def _steps(plain: Explanation, sol: Solution) -> Explanation:
    """How long the last steps were, what was not finite right ahead of them, what is stiff."""
    what, values = shortened(sol)
    stiff = stiffness(sol)
    found = plain._replace(what=f"{plain.what}{what}", values=values)
    return found._replace(advice=stiff) if stiff else found


# -- algebraic states ---------------------------------------------------------------------------
def _algebraic(sol: Solution, result: Result, fired: Action | None) -> Explanation:
    model, at, par = sol.spec.model, sol.tape.end, sol.tape.par()
    unsolved = _unsolved_reset(sol, fired)
    if unsolved:
        return unsolved
    lost = _floating(sol, fired) if result in UNDETERMINED else None
    if lost is None and broken_reset(sol):
        return _not_finite(sol)
    values = _residual_values(model, at, par, result)
    if lost is not None:
        return Explanation(*lost, values)
    words = residual_words(model, at, par, result)
    if result == Result.inconsistent:
        what, advice = _violation(model, at, par, fired)
        return Explanation(f"{what} {words}", advice, values)
    undefined = _undefined(model, at, par) if result in UNDETERMINED else None
    if undefined:
        return Explanation(*undefined, values)
    what = f"{result.what} {words} {determination(model, at, par, result)}"
    near = ahead(sol, RIGHT_AHEAD) if fired is None and int(sol.tape.n) else []
    what += "".join(f" And {c.words}." for c in near)
    hint = _slope_guess(sol, result, fired)
    values |= {c.name: c.value for c in near}
    return Explanation(what, f"{result.advice} {hint}".strip(), values)


def _floating(sol: Solution, fired: Action | None) -> tuple[str, str] | None:
    """What to say if a jump leaves algebraic states without an equation; else `None`."""
    if fired is None:
        return None
    tape, n = sol.tape, int(sol.tape.n)
    jump = f'event "{fired.name}"' if fired.logged else "a breakpoint of an input"
    jump = "a comparison in `when` has changed," if fired.kink else jump
    return floats(sol.spec.model, tape.state(n - 1), tape.end, tape.par(), jump)


def _residual_values(model: Model, at: At, par: Par, result: Result) -> dict[str, Any]:
    """Residuals by equation; of its time derivative where z is solved from that."""
    rule = model.constraint
    assert rule is not None
    of = model.residuals if result == Result.inconsistent else lambda *a: hidden(model, *a)
    values = [np.asarray(v) for v in of(at, par)]
    return {
        f"residual of {name}": v if v.ndim else v.item()
        for name, v in zip(rule.equations, values, strict=True)
    }


def residual_words(model: Model, at: At, par: Par, result: Result) -> str:
    """The residuals that matter for `result`, by equation."""
    rule = model.constraint
    assert rule is not None
    if result == Result.inconsistent:
        return f"Residuals: {listed(rule.equations, model.residuals(at, par))}."
    values, out = hidden(model, at, par), []
    for index, label in ((1, "Residuals"), (2, "Residuals of the hidden equations d/dt g")):
        kept = [k for k, own in enumerate(rule.index) if own == index]
        if kept:
            names = [rule.equations[k] for k in kept]
            out.append(f"{label}: {listed(names, [values[k] for k in kept])}.")
    return " ".join(out)


def determination(model: Model, at: At, par: Par, result: Result | None = None) -> str:
    """How well the equations determine z; if well, which iteration did not converge."""
    rule = model.constraint
    assert rule is not None
    matrix = np.asarray(slopes(model, at, par))
    if not np.all(np.isfinite(matrix)):
        row = int(np.argmin(np.isfinite(matrix).all(axis=1)))
        return f'The derivative by z of equation "{equation_names(model)[row]}" is not finite.'
    what = {1: "g_z", 2: "g_x f_z"}.get(sum(set(rule.index)), "the Jacobian of the equations for z")
    if matrix.size == 1:
        return f"{what} is {matrix[0, 0]:.3g} (the derivative by {state_names(model)[0]})."
    missing = gap(model, at, par)
    if missing is not None:
        return missing.words
    _, sizes, directions = np.linalg.svd(matrix)
    number = np.inf if sizes[-1] == 0 else sizes[0] / sizes[-1]
    if number < GOOD_CONDITION and result is not None:
        return unsettled(model, at, par, matrix, what, result == Result.singular)
    weakest = int(np.argmax(np.abs(directions[-1])))
    return (
        f"The condition number of {what} is {number:.3g}; least determined is "
        f"{state_names(model)[weakest]}."
    )


def _undefined(model: Model, at: At, par: Par) -> tuple[str, str] | None:
    """What to say if an equation is not finite where z is solved for; else `None`."""
    rule = model.constraint
    assert rule is not None
    if not all(np.all(np.isfinite(np.asarray(v))) for v in at.z):
        return None
    for name, value, index in zip(rule.equations, hidden(model, at, par), rule.index, strict=True):
        v = np.ravel(np.asarray(value))
        bad = np.flatnonzero(~np.isfinite(v))
        if not len(bad):
            continue
        who = f'equation "{name}"' if index == 1 else f'the time derivative of equation "{name}"'
        who, guess = who[0].upper() + who[1:], _guess_words(model, at)
        if np.isnan(v[bad]).any():
            also = nan_parameters(model, par)
            return (
                f"{who} is nan at this state, where z is solved for from the guess {guess}.",
                f"Check its domain (square roots, logarithms, divisions){also}.",
            )
        return (
            f"{who} is {v[bad[0]]} at the guess {guess}.", "Give a guess at which it is finite.",
        )  # fmt: skip
    return None


def _guess_words(model: Model, at: At) -> str:
    values = np.concatenate([np.ravel(np.asarray(v)) for v in at.z])
    pairs = [f"{n} = {v:.6g}" for n, v in zip(state_names(model), values, strict=True)]
    return ", ".join(pairs[:8]) + (", ..." if len(pairs) > 8 else "")


def _violation(model: Model, at: At, par: Par, fired: Action | None) -> tuple[str, str]:
    """Differential states that violate equations of index 2, and what to do about it."""
    if fired is None:
        if _hopeless(model, at, par):
            return (
                "The differential states of the start violate the constraint, and repair finds no "
                "states near them that satisfy it.",
                "Check the equations, or start elsewhere.",
            )
        return (
            "The differential states of the start violate the constraint.",
            "Correct them, or let `saltus.consistent(system, start, p)` (or solve(..., "
            "repair=True)) move them to the nearest consistent ones.",
        )
    if fired.kind == "signal":
        return (
            "The differential states violate the constraint after a breakpoint of an input: x does "
            "not jump with it, and repair acts on the start only.",
            "Keep the value in d instead, and change it with a TimeEvent whose reset changes x "
            "as well.",
        )
    where = "a comparison in `when`" if fired.kink else f'the reset of event "{fired.name}"'
    return (
        f"The differential states violate the constraint after {where}. Repair acts on the start "
        "only: a reset has to return a consistent x.",
        "Write one that does, or give the equations and let `saltus.implicit_reset` solve them.",
    )


def _not_kept(model: Model, at: At, par: Par, fired: Action | None, moved: bool) -> Explanation:
    """Differential states that violate an invariant."""
    rule = model.invariant
    assert rule is not None
    where, advice = "of the start", "or let solve(..., repair=True) move them"
    if moved:
        where, advice = "at the end", "or the invariants: they contradict each other or the flow"
    if fired is not None and fired.kind != "stop":
        where = f'after the reset of event "{fired.name}"'
        advice = "or, in a mechanism, let `saltus.multibody.jump` or `contact` make the reset"
    found = [np.asarray(v) for v in residuals(model, at, par)]
    pairs = zip(rule.names, found, strict=True)
    values = {f"residual of {name}": v if v.ndim else v.item() for name, v in pairs}
    words = f"Residuals: {listed(rule.names, found)}."
    what = f"The states {where} violate an invariant of the system. {words}"
    return Explanation(what, f"Correct them, {advice}.", values)


def _hopeless(model: Model, at: At, par: Par) -> bool:
    """Whether even a repaired start violates the equations; not tried for large systems."""
    if sum(np.size(v) for v in model.x_of(at)) > MAX_PROJECTED_STATES:
        return False
    atol = (jnp.asarray(1e-8),) * model.moving
    return bool(violated(model, projected(model, at, par), par, 1e-8, atol))


def _slope_guess(sol: Solution, result: Result, fired: Action | None) -> str:
    """Advice for a fully implicit start without a guess of x'."""
    slopes = [np.asarray(v) for v in named(sol.last.dx, "dx").values()]
    if result not in UNDETERMINED or fired is not None or not slopes:
        return ""
    if any(np.any(v) for v in slopes):
        return ""
    return "Here x' was solved for starting from zeros: give a guess, Instant(..., dx=...)."


# -- what was not finite ------------------------------------------------------------------------
def _fired(sol: Solution) -> Action | None:
    """The jump right before the solve stopped; `None` at the start and after a step."""
    return sol.tape.last_action(sol.spec.model)


def _not_finite(sol: Solution) -> Explanation:
    """Which function returned NaN or infinity."""
    result, blamed = Result.non_finite, find(sol)
    if blamed:
        what = f"{result.what} Found: {'; '.join(c.words for c in blamed[:3])}."
        event = next((c.event for c in blamed if c.event), None)
        return Explanation(what, result.advice, {c.name: c.value for c in blamed}, event)
    name = weightless(sol)
    if name:
        what = f"The error of {name} has no scale: atol + rtol |x| is zero while {name} stays 0."
        return Explanation(what, "Give the method an atol above 0.", {})
    advice = "" if sol.spec.adaptive else stiffness(sol)
    return Explanation(f"{result.what} The state itself overflowed.", advice or result.advice, {})


def _unsolved_reset(sol: Solution, fired: Action | None) -> Explanation | None:
    """The explanation if the last event's implicit reset found no solution; else `None`."""
    if fired is None or not fired.implicit or not fired.logged:
        return None
    log = sol.events
    if not _non_finite(log.after) or _non_finite(log.before):
        return None
    return Explanation(
        f'The equations of the implicit reset of event "{fired.name}" could not be solved: from '
        "the state before the event (or from `guess`) Newton's method found no solution.",
        "Give implicit_reset(..., guess=lambda now, p: now.replace(x=...)), or check that the "
        "equations have a solution.",
        {},
        fired.name,
    )


def _non_finite(now: Instant) -> list[str]:
    """The states that are not finite at the last of several instants."""
    leaves = named(now.x, "x")
    return [k for k, leaf in leaves.items() if not np.all(np.isfinite(np.asarray(leaf)[-1]))]
