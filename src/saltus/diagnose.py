"""Why a solve stopped, in words: evaluated on the host, at the state where it stopped."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from .consistent import hidden, violated
from .invariants import residuals
from .leaves import Leaves, numbered
from .model import Action, At, Model, Par
from .projection import projected, slopes
from .record import action_of
from .results import Result
from .system import Instant
from .tables import named

ALGEBRAIC = (
    Result.inconsistent, Result.no_consistent_state, Result.singular, Result.newton_failed,
)  # fmt: skip
LARGE = 300  # differential states beyond which a projection takes long
UNDETERMINED = (Result.no_consistent_state, Result.singular)


def explain(sol: Any, result: Result) -> str:
    """What happened and what to do about it, where this solve stopped."""
    model, at, par = sol.spec.model, sol.tape.end, sol.tape.par()
    if result == Result.events_accumulate:
        gap, ratio = float(sol.pace.gap), float(sol.pace.ratio)
        when = float(sol.last.t) + gap * ratio / (1 - ratio)
        return f"{result.message} They pile up at t = {when:.10g}."
    fired = _fired(sol)
    if result == Result.inconsistent and model.invariant is not None:
        return _not_kept(model, at, par, fired, int(sol.tape.n) > 0)
    if result != Result.non_finite and (model.constraint is None or result not in ALGEBRAIC):
        return result.message
    broken = _broken_reset(sol, fired)
    if broken:
        return broken
    if result == Result.non_finite:
        return f"{result.message} {_culprit(sol)}"
    if result == Result.inconsistent:
        return f"{_violation(model, at, par, fired)} {residual_words(model, at, par, result)}"
    undefined = _undefined(model, at, par) if result in UNDETERMINED else ""
    if undefined:
        return undefined
    words = residual_words(model, at, par, result), determination(model, at, par)
    parts = (result.message, *words, _slope_guess(sol, result, fired))
    return " ".join(part for part in parts if part)


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


# -- algebraic states ---------------------------------------------------------------------------
def residual_words(model: Model, at: At, par: Par, result: Result) -> str:
    """The residuals that matter for `result`, by equation."""
    rule = model.constraint
    assert rule is not None
    if result == Result.inconsistent:
        return f"Residuals: {_listed(rule.equations, model.residuals(at, par))}."
    values, out = hidden(model, at, par), []
    for index, label in ((1, "Residuals"), (2, "Residuals of the hidden equations d/dt g")):
        kept = [k for k, own in enumerate(rule.index) if own == index]
        if kept:
            names = [rule.equations[k] for k in kept]
            out.append(f"{label}: {_listed(names, [values[k] for k in kept])}.")
    return " ".join(out)


def determination(model: Model, at: At, par: Par) -> str:
    """How well the equations determine z."""
    rule = model.constraint
    assert rule is not None
    matrix = np.asarray(slopes(model, at, par))
    if not np.all(np.isfinite(matrix)):
        row = int(np.argmin(np.isfinite(matrix).all(axis=1)))
        return f'The derivative by z of equation "{_equation(model, row)}" is not finite.'
    what = {1: "g_z", 2: "g_x f_z"}.get(sum(set(rule.index)), "the Jacobian of the equations for z")
    if matrix.size == 1:
        return f"{what} is {matrix[0, 0]:.3g} (the derivative by {entries(model)[0]})."
    _, sizes, directions = np.linalg.svd(matrix)
    number = np.inf if sizes[-1] == 0 else sizes[0] / sizes[-1]
    weakest = int(np.argmax(np.abs(directions[-1])))
    return (
        f"The condition number of {what} is {number:.3g}; least determined is "
        f"{entries(model)[weakest]}."
    )


def entries(model: Model) -> list[str]:
    """A name for every algebraic number."""
    return numbered(model.z.names(), model.constraint.shapes, "z")  # type: ignore[union-attr]


def _equation(model: Model, row: int) -> str:
    rule = model.constraint
    assert rule is not None
    return numbered(rule.equations, rule.rows, "constraint")[row]


def _listed(names: Any, values: Any) -> str:
    shown = []
    for name, value in zip(names, values, strict=True):
        v = np.asarray(value)
        if v.ndim:
            worst = np.unravel_index(int(np.argmax(np.abs(v))), v.shape)
            shown.append(f"{name}[{', '.join(map(str, worst))}] = {v[worst]:.3g}")
        else:
            shown.append(f"{name} = {float(v):.3g}")
    return ", ".join(shown)


def _undefined(model: Model, at: At, par: Par) -> str:
    """Says so if an equation has no value where z was to be solved from."""
    rule = model.constraint
    assert rule is not None
    if not all(np.all(np.isfinite(np.asarray(v))) for v in at.z):
        return ""
    for name, value, index in zip(rule.equations, hidden(model, at, par), rule.index, strict=True):
        v = np.ravel(np.asarray(value))
        bad = np.flatnonzero(~np.isfinite(v))
        if not len(bad):
            continue
        who = f'equation "{name}"' if index == 1 else f'the time derivative of equation "{name}"'
        who, guess = who[0].upper() + who[1:], _guess_words(model, at)
        if np.isnan(v[bad]).any():
            also = _nan_parameters(model, par)
            return (
                f"{who} is nan at this state, where z was to be solved from the guess {guess}. "
                f"Check its domain (square roots, logarithms, divisions){also}."
            )
        return f"{who} is {v[bad[0]]} at the guess {guess}. Give a guess at which it is finite."
    return ""


def _guess_words(model: Model, at: At) -> str:
    values = np.concatenate([np.ravel(np.asarray(v)) for v in at.z])
    pairs = [f"{n} = {v:.6g}" for n, v in zip(entries(model), values, strict=True)]
    return ", ".join(pairs[:8]) + (", ..." if len(pairs) > 8 else "")


def _nan_parameters(model: Model, par: Par) -> str:
    leaves = par.theta[2 : 2 + model.n_p[0]]
    for name, value in zip(model.p.names(), leaves, strict=True):
        if np.isnan(np.asarray(value)).any():
            return f", and the parameters: {name or 'p'} is nan"
    return ""


def _violation(model: Model, at: At, par: Par, fired: Action | None) -> str:
    """What to do about differential states that violate equations of index 2."""
    if fired is None:
        if _hopeless(model, at, par):
            return (
                "The differential states of the start violate the constraint, and repair finds no "
                "states near them that satisfy it. Check the equations, or start elsewhere."
            )
        return (
            "The differential states of the start violate the constraint. Correct them, or let "
            "`saltus.consistent(system, start, p)` (or solve(..., repair=True)) move them to the "
            "nearest consistent ones."
        )
    if fired.kind == "signal":
        return (
            "The differential states violate the constraint after a breakpoint of an input: x does "
            "not jump with it, and repair acts on the start only. Keep the value in d instead, and "
            "change it with a TimeEvent whose reset moves x along."
        )
    where = "a comparison in `when`" if fired.kink else f'the reset of event "{fired.name}"'
    return (
        f"The differential states violate the constraint after {where}. Repair acts on the start "
        "only: a reset has to return a consistent x. Write it so, or give the equations and let "
        "`saltus.implicit_reset` solve them."
    )


def _not_kept(model: Model, at: At, par: Par, fired: Action | None, moved: bool) -> str:
    """Differential states that violate an invariant."""
    rule = model.invariant
    assert rule is not None
    where, advice = "of the start", "or let solve(..., repair=True) move them"
    if moved:
        where, advice = "at the end", "or the invariants: they contradict each other or the flow"
    if fired is not None and fired.kind != "stop":
        where = f'after the reset of event "{fired.name}"'
        advice = "or, in a mechanism, let `saltus.multibody.jump` or `contact` make the reset"
    return (
        f"The states {where} violate an invariant of the system. Correct them, {advice}. "
        f"Residuals: {_listed(rule.names, residuals(model, at, par))}."
    )


def _hopeless(model: Model, at: At, par: Par) -> bool:
    """Whether repair does not help; large systems are not tried."""
    if sum(np.size(v) for v in at.w[: model.nx]) > LARGE:
        return False
    atol = (jnp.asarray(1e-8),) * model.moving
    return bool(violated(model, projected(model, at, par), par, 1e-8, atol))


def _slope_guess(sol: Any, result: Result, fired: Action | None) -> str:
    """Advice for a fully implicit start without a guess of x'."""
    slopes = [np.asarray(v) for v in named(sol.last.dx, "dx").values()]
    if result not in UNDETERMINED or fired is not None or not slopes:
        return ""
    if any(np.any(v) for v in slopes):
        return ""
    return "Here x' was solved for from zeros: give a guess, Instant(..., dx=...)."


# -- what was not finite ------------------------------------------------------------------------
def _fired(sol: Any) -> Action | None:
    """The jump that made the state at which the solve stopped; none at the start and in a flow."""
    n = int(sol.tape.n)
    place = int(action_of(int(sol.tape.kind[n - 1]))) if n else -1
    return sol.spec.model.actions[place] if place >= 0 else None


def _broken_reset(sol: Any, fired: Action | None) -> str:
    """Says so if the last event's reset returned something that is not finite."""
    if fired is None or not fired.logged:
        return ""
    log = sol.events
    names = _non_finite(log.after)
    if not names or _non_finite(log.before):
        return ""
    if fired.implicit:
        return (
            f'The equations of the implicit reset of event "{fired.name}" could not be solved: '
            "from the state before the event (or from `guess`) Newton's method found no solution. "
            "Give implicit_reset(..., guess=lambda now, p: now.replace(x=...)), or check that "
            "they have one."
        )
    return f'{Result.non_finite.message} It was the reset of event "{fired.name}": {names[0]}.'


def _non_finite(now: Instant) -> list[str]:
    """The states that are not finite at the last of a row of instants."""
    leaves = named(now.x, "x")
    return [k for k, leaf in leaves.items() if not np.all(np.isfinite(np.asarray(leaf)[-1]))]


def _culprit(sol: Any) -> str:
    """Which function gave the non-finite value, by evaluating each a little further on."""
    model, tape = sol.spec.model, sol.tape
    par, at = tape.par(), tape.end
    sign = -1.0 if bool(tape.backward) else 1.0
    names = [f"flow of {n or 'x'}" for n in model.x.names()]
    names += [f"rate of {n or 'the integral'}" for n in model.q.names()]
    names += [f'guard of event "{a.name}"' for a in model.guards]
    for h in (0.0, 1e-12, 1e-8, 1e-4, 1e-2, 1.0):
        k = model.flow(at, par)
        w: Leaves = tuple(v + sign * h * d for v, d in zip(at.w, k, strict=False))
        here = At(at.tau + sign * h, w + tuple(at.w[model.moving :]), at.i, at.z)
        values = (*model.flow(here, par), *model.guard_values(here, par))
        for name, value in zip(names, values, strict=True):
            if not np.all(np.isfinite(np.asarray(value))):
                return f"It was the {name}."
    return "The state itself overflowed."
