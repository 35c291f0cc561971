"""Which model function returned NaN or infinity: component, value and time, on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..base.host_programs import rarely
from ..base.leaves import Leaves, select, spelled
from ..base.names import entry_name, expression
from ..base.types import Array, HostArray, Scalar
from ..model.algebraic_states import hidden, solved
from ..model.model import At, Model, Par

if TYPE_CHECKING:
    from ..system.hybrid import Instant
    from .solution import Solution

DECADES_AHEAD = 18  # powers of ten in the distance at which functions are evaluated
CLOSER_ROUNDS = 3  # each with a resolution twenty times as fine

T = TypeVar("T")


class Culprit(NamedTuple):
    """A function that returned a value that is not finite."""

    name: str  # with its component
    value: float
    t: float | None = None  # `None` if it is where the solve stopped
    event: str | None = None  # the event it belongs to

    @property
    def words(self) -> str:
        where = "" if self.t is None else f" at t = {self.t:.10g}"
        return f"{self.name} is {self.value}{where}"


def find(sol: Solution) -> list[Culprit]:
    """Causes of the non-finite state at which the solve stopped, the likeliest first."""
    model, at, par = sol.spec.model, sol.tape.end, sol.tape.par()
    blamed = [*_parameters(model, par), *broken_reset(sol)]
    blamed += [] if blamed else _start(sol)
    return [*blamed, *(_planned(model, at) or ahead(sol))]


# -- parameters and start -----------------------------------------------------------------------
def _parameters(model: Model, par: Par) -> list[Culprit]:
    """Parameters, inputs and closed-over values that are NaN; infinity may be intended."""
    names = list(zip(spelled(model.p, "p"), model.p_of(par), strict=True))
    for k in range(len(model.signals)):
        pairs = zip(_SIGNAL, model.signal_of(par, k), strict=True)
        names += [(f"the input number {k}, {what}", v) for what, v in pairs]
    others = model.closed_over_of(par)
    names += [("a value that a model function closes over", v) for v in others]
    return [c for name, value in names if (c := _first_bad(name, value, nan_only=True))]


_SIGNAL = ("its times", "its values")


def _start(sol: Solution) -> list[Culprit]:
    """States that were not finite to begin with."""
    if int(sol.tape.n):
        return []
    return _states(sol.last, "the start's ")


def _states(now: Instant, whose: str = "") -> list[Culprit]:
    found = []
    for tree, root in ((now.x, "x"), (now.z, "z"), (now.d, "d")):
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            found.append(_first_bad(whose + expression(path, root), leaf, root == "d"))
    return [c for c in found if c]


def nan_parameters(model: Model, par: Par) -> str:
    """A remark on the first parameter that is NaN."""
    for name, value in zip(model.p.names(), model.p_of(par), strict=True):
        if np.isnan(np.asarray(value)).any():
            return f", and the parameters: {name or 'p'} is nan"
    return ""


# -- jumps --------------------------------------------------------------------------------------
def broken_reset(sol: Solution) -> list[Culprit]:
    """The last event's reset, if it turned finite states into NaN or infinity."""
    fired = sol.tape.last_action(sol.spec.model)
    if fired is None or not fired.logged:
        return []
    name, log = fired.name, sol.events
    before, after = (jax.tree.map(lambda v: v[-1], v) for v in (log.before, log.after))
    if _states(before):
        return []
    found = _states(after, f'the reset of event "{name}": ')
    return [c._replace(event=name) for c in found]


def _planned(model: Model, at: At) -> list[Culprit]:
    """Times of planned events that are NaN."""
    timed = [a for a in model.actions if a.kind == "time"]
    found = []
    for action, time in zip(timed, model.pending_of(at), strict=True):
        bad = _first_bad(f'next_time of event "{action.name}"', time, nan_only=True)
        found += [bad._replace(event=action.name)] if bad else []
    return found


# -- functions along the motion -----------------------------------------------------------------
def ahead(sol: Solution, reach: float = 1.0) -> list[Culprit]:
    """The first function that is not finite where a solve stopped, or a little further on."""
    model, at, par = sol.spec.model, sol.tape.end, sol.tape.par()
    lengths = np.concatenate([[0.0], reach * span(sol) * 10.0 ** np.arange(-DECADES_AHEAD, 0.5)])
    k, bad = _first_along(model, at, par, lengths)
    if bad is None:
        return []
    for _ in range(CLOSER_ROUNDS):
        if k == 0:
            break
        lengths = np.linspace(lengths[k - 1], lengths[k], len(lengths))
        k, closer = _first_along(model, at, par, lengths)
        bad = closer or bad
    return [bad]


def span(sol: Solution) -> float:
    """The time from start to end."""
    return abs(float(sol.tape.t1 - sol.tape.t0))


def _first_along(model: Model, at: At, par: Par, lengths: np.ndarray) -> tuple[int, Culprit | None]:
    """The first of the lengths at which a function is not finite, and that function."""
    tried = _tried(model, at, par, jnp.asarray(lengths))
    names, events = _labels(model)
    for k, length in enumerate(lengths):
        for name, event, values in zip(names, events, tried, strict=True):
            bad = _first_bad(name, np.asarray(values)[k], entry=", member " if event else "")
            if bad:
                t = float(par.t0 + at.tau) + (-length if bool(par.backward) else length)
                return k, bad._replace(t=t if length else None, event=event)
    return 0, None


def on_the_line(model: Model, at: At, par: Par, lengths: Array, look: Callable[[At], T]) -> T:
    """`look` at states the given lengths ahead on a straight line, with z as it is here."""
    sign = jnp.where(par.backward, -1.0, 1.0)
    k = model.flow(at, par)

    def one(h: Scalar) -> T:
        moved = [v + (sign * h * d).astype(v.dtype) for v, d in zip(at.w, k, strict=False)]
        return look(model.with_moving(at, moved, tau=at.tau + sign * h))

    return jax.vmap(one)(lengths)


@functools.partial(rarely, static_argnums=(0,))
def _tried(model: Model, at: At, par: Par, lengths: Array) -> list:
    """What every function returns at the given lengths ahead on a straight line."""

    def look(here: At) -> list:
        rows: Leaves = ()
        if model.constraint is not None:
            rows = hidden(model, here, par)
            new, found = solved(model, here, par)
            here = here._replace(z=select(found, new.z, here.z))
        return [*rows, *model.flow(here, par), *model.guard_values(here, par)]

    return on_the_line(model, at, par, lengths, look)


def _labels(model: Model) -> tuple[list[str], list[str | None]]:
    """A name for each result of `_tried`, and the event it belongs to."""
    rule = model.constraint
    names = [] if rule is None else [f'equation "{name}"' for name in rule.equations]
    names += [f"the flow of {name}" for name in spelled(model.x, "x")]
    names += [f"the {name}" for name in spelled(model.q, "rate")]
    events: list[str | None] = [None] * len(names)
    for action in model.guards:
        own = f'the guard of event "{action.name}"'
        names.append("a comparison in `when`" if action.kink else own)
        events.append(None if action.kink else action.name)
    return names, events


def weightless(sol: Solution) -> str:
    """The name of a state that stays zero: without `atol` its scaled error is 0 / 0."""
    model, at = sol.spec.model, sol.tape.end
    flow = model.flow(at, sol.tape.par())
    for name, value, slope in zip(spelled(model.x, "x"), at.w, flow, strict=False):
        if np.any((np.asarray(value) == 0) & (np.asarray(slope) == 0)):
            return name
    return ""


# -- outputs ------------------------------------------------------------------------------------
def silent_output(sol: Solution) -> str:
    """A sentence if an output function returned NaN at a time that was reached."""
    times, reached = np.atleast_1d(sol.t), np.atleast_1d(sol.reached)
    if not np.any(reached):
        return ""
    for path, leaf in jax.tree_util.tree_flatten_with_path(sol.y)[0]:
        values = np.asarray(leaf).reshape(*times.shape, *np.shape(leaf)[np.ndim(sol.t) :])
        bad = reached & np.isnan(values.reshape(len(times), -1)).any(axis=1)
        if bad.any():
            k = int(np.argmax(bad))
            culprit = _first_bad(expression(path, "output"), values[k], nan_only=True)
            return "" if culprit is None else culprit._replace(t=float(times[k])).words
    return ""


def listed(names: Sequence[str], values: Sequence[Array | HostArray]) -> str:
    """Values by name; for an array its largest entry."""
    shown = []
    for name, value in zip(names, values, strict=True):
        v = np.asarray(value)
        if v.ndim:
            worst = np.unravel_index(int(np.argmax(np.abs(v))), v.shape)
            shown.append(f"{entry_name(name, worst)} = {v[worst]:.3g}")
        else:
            shown.append(f"{name} = {float(v):.3g}")
    return ", ".join(shown)


def _first_bad(
    name: str, value: Array | HostArray, nan_only: bool = False, entry: str = ""
) -> Culprit | None:
    """The first entry that is not finite, by name."""
    if not hasattr(value, "dtype") or not jnp.issubdtype(value.dtype, jnp.floating):
        return None
    value = np.asarray(value)
    bad = np.isnan(value) if nan_only else ~np.isfinite(value)
    if not bad.any():
        return None
    index = tuple(int(k) for k in np.argwhere(bad)[0])
    if entry and value.ndim:
        name += entry + ", ".join(map(str, index))
    else:
        name = entry_name(name, index)
    return Culprit(name, float(value[index]))
