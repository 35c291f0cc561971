"""What a loss looks at: rows as they are, and states at times between them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves
from ..base.losses import scalar
from ..base.results import Result
from ..base.tracing import is_tracer
from ..base.unreached_values import hide
from ..model.algebraic_states import determined
from ..simulate.record import Spec
from ..simulate.save_times import within
from ..solution.solution import Solution
from ..solution.tape import TAYLOR, Tape, instant, integrals, output, read_end, state_at
from ..system.hybrid import Instant


class _Notes:
    """The times of each look, in order; `None` where they are not known."""

    def __init__(self) -> None:
        self.looks: list[tuple[Any, str] | None] = []

    def note(self, t: Any, side: str) -> int:
        known = None if is_tracer(t) else (np.asarray(t, np.float64).reshape(-1), side)
        self.looks.append(known)
        return len(self.looks) - 1


class _Watched(Solution):
    """A solution that notes when it is looked at, and shows states that are moved by `pushes`."""

    dense: Any = None  # the tape for all that lies between rows
    pushes: tuple = ()  # changes of the states at each look
    notes: Any = eqx.field(static=True, default=None)

    def __call__(self, t: Any, side: str = "right") -> Any:
        return self._look(t, side)[0]

    def at(self, t: Any, side: str = "right") -> Instant:
        now = self._look(t, side)[2]
        return now if self.adapt is None else self.adapt(now)

    def _look(self, t: Any, side: str) -> Any:
        k = self.notes.note(t, side)
        push = self.pushes[k] if k < len(self.pushes) else None
        reader = lambda spec, _, ts, side: _read(spec, self.dense, ts, side, push)
        return self._read(reader, t, side)


@functools.partial(jax.jit, static_argnames=("spec", "side"))
def _read(spec: Spec, tape: Tape, ts: Any, side: str, push: Any) -> tuple:
    """Outputs, integrals and instants at the times `ts`, of states that are moved by `push`."""
    model, par = spec.model, tape.par()

    def one(t: Any, push: Any) -> tuple:
        offset = t - tape.t0
        inside = within(tape.t0, offset, tape.end.tau, tape.backward)
        at = state_at(spec, tape, offset, side)
        if push is not None:
            at = at._replace(w=tuple(v + dv for v, dv in zip(at.w, push, strict=True)))
            at = determined(model, at, par, TAYLOR)
        return (output(model, at, par), integrals(model, at), instant(model, at, par)), inside

    values, inside = jax.vmap(one)(ts, push)
    return hide(inside, values, tape.depends)


def _watched(sol: Solution, tape: Tape, dense: Tape, pushes: tuple, notes: _Notes) -> _Watched:
    """The same solution, its ends and events read from `tape`, all between from `dense`."""
    last, (final, integral, y) = read_end(sol.spec, tape, sol.result <= int(Result.terminated))
    if sol.adapt is not None:
        last, final = sol.adapt(last), sol.adapt(final)
    t, sums = final.t, integral
    if jnp.ndim(sol.t):
        k = notes.note(sol.t, "right")
        push = pushes[k] if pushes else None
        t, (y, sums, _) = sol.t, _read(sol.spec, dense, sol.t, "right", push)
    fields = {f.name: getattr(sol, f.name) for f in dataclasses.fields(Solution)}
    new = {"t": t, "y": y, "integral": integral, "integrals": sums, "final": final, "last": last}
    new |= {"tape": tape, "dense": dense, "pushes": pushes, "notes": notes}
    return _Watched(**(fields | new))


class Looks(NamedTuple):
    """Times at which the loss looks, and its derivative by the state there."""

    t: Any
    left: Any
    g: Leaves


def gradients(owner: str, loss: Callable, sol: Solution) -> tuple[Leaves, Leaves, Looks]:
    """Derivatives by rows that the loss reads as they are, by all it reads, and by its looks."""
    tape, notes = sol.tape, _Notes()
    scalar(loss(_watched(sol, tape, tape, (), notes)), owner, 'lambda sol: sol.final.x["h"]')
    pushes = tuple(
        None
        if look is None
        else tuple(jnp.zeros((look[0].size, *v.shape[1:]), v.dtype) for v in tape.w)
        for look in notes.looks
    )
    points = (tape.tau, tape.w, tape.end.tau, tape.end.w)

    def read(points: tuple) -> Tape:
        tau, w, end_tau, end_w = points
        return dataclasses.replace(tape, tau=tau, w=w, end=tape.end._replace(tau=end_tau, w=end_w))

    def value(points: tuple, dense: tuple, pushes: tuple) -> Any:
        return loss(_watched(sol, read(points), read(dense), pushes, _Notes()))

    *rows, g = jax.grad(value, argnums=(0, 1, 2))(points, points, pushes)
    n, used = int(tape.n), jnp.arange(tape.tau.shape[0]) <= tape.n

    def at_rows(grads: tuple) -> Leaves:
        tau, w, end_tau, end_w = grads
        whole = (v.at[n].add(e) for v, e in zip((tau, *w), (end_tau, *end_w), strict=True))
        return tuple(jnp.where(used.reshape(-1, *[1] * (v.ndim - 1)), v, 0.0) for v in whole)

    direct, dense = map(at_rows, rows)
    known = [(look, v) for look, v in zip(notes.looks, g, strict=True) if look is not None]
    t = np.concatenate([np.zeros(0), *(look[0] for look, _ in known)])
    left = np.concatenate(
        [np.zeros(0, bool), *(np.full(k[0].size, k[1] == "left") for k, _ in known)]
    )
    none = tuple(np.zeros((0, *v.shape[1:])) for v in tape.w)
    g = tuple(np.concatenate(parts) for parts in zip(none, *(v for _, v in known), strict=True))
    own = tuple(a + b for a, b in zip(direct, dense, strict=True))
    return tuple(map(np.asarray, direct)), own, Looks(t, left, g)
