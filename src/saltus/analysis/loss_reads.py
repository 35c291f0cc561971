"""What a loss reads of a solution: rows directly, and states at times between them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves
from ..base.losses import scalar
from ..base.results import Result
from ..base.tracing import is_tracer
from ..base.types import Array, HostArray, Numbers, Scalar, Tree
from ..base.unreached_values import hide
from ..model.algebraic_states import determined
from ..simulate.record import Spec
from ..simulate.save_times import within
from ..solution.solution import Solution
from ..solution.tape import TAYLOR, Tape, instant, integrals, output, read_end, state_at
from ..system.hybrid import Instant


class _ReadTimes:
    """The times at which a solution is read, call by call; `None` if they are not known."""

    def __init__(self) -> None:
        self.calls: list[tuple[HostArray, str] | None] = []

    def note(self, t: Numbers, side: str) -> int:
        known = None if is_tracer(t) else (np.asarray(t, np.float64).reshape(-1), side)
        self.calls.append(known)
        return len(self.calls) - 1


class _ObservedSolution(Solution):
    """A solution that notes the times at which it is read, and adds `shifts` to the states there.

    The gradient of a loss by the shifts is its gradient by the states that it reads.
    """

    dense: Tape | None = None  # the tape for reads between rows
    shifts: tuple[Leaves | None, ...] = ()  # for each call
    read_times: _ReadTimes = eqx.field(static=True, default_factory=_ReadTimes)

    def __call__(self, t: Numbers, side: str = "right") -> Tree:
        return self._read_shifted(t, side)[0]

    def at(self, t: Numbers, side: str = "right") -> Instant:
        now = self._read_shifted(t, side)[2]
        return now if self.adapt is None else self.adapt(now)

    def _read_shifted(self, t: Numbers, side: str) -> tuple[Tree, Tree, Instant]:
        k = self.read_times.note(t, side)
        shift = self.shifts[k] if k < len(self.shifts) else None
        reader = lambda spec, _, ts, side: _read(spec, self.dense, ts, side, shift)
        return self._read(reader, t, side)


@functools.partial(jax.jit, static_argnames=("spec", "side"))
def _read(
    spec: Spec, tape: Tape, ts: Array, side: str, shift: Leaves | None
) -> tuple[Tree, Tree, Instant]:
    """Outputs, integrals and instants at the times `ts`, of states with `shift` added."""
    model, par = spec.model, tape.par()

    def one(t: Scalar, shift: Leaves | None) -> tuple:
        offset = t - tape.t0
        inside = within(tape.t0, offset, tape.end.tau, tape.backward)
        at = state_at(spec, tape, offset, side)
        if shift is not None:
            at = at._replace(w=tuple(v + dv for v, dv in zip(at.w, shift, strict=True)))
            at = determined(model, at, par, TAYLOR)
        return (output(model, at, par), integrals(model, at), instant(model, at, par)), inside

    values, inside = jax.vmap(one)(ts, shift)
    return hide(inside, values, tape.depends)


def _observed(
    sol: Solution, tape: Tape, dense: Tape, shifts: tuple, read_times: _ReadTimes
) -> _ObservedSolution:
    """The same solution, with ends and events read from `tape` and the rest from `dense`."""
    last, (final, integral, y) = read_end(sol.spec, tape, sol.result <= int(Result.terminated))
    if sol.adapt is not None:
        last, final = sol.adapt(last), sol.adapt(final)
    t, sums = final.t, integral
    if jnp.ndim(sol.t):
        k = read_times.note(sol.t, "right")
        shift = shifts[k] if shifts else None
        t, (y, sums, _) = sol.t, _read(sol.spec, dense, sol.t, "right", shift)
    fields = {f.name: getattr(sol, f.name) for f in dataclasses.fields(Solution)}
    new = {"t": t, "y": y, "integral": integral, "integrals": sums, "final": final, "last": last}
    new |= {"tape": tape, "dense": dense, "shifts": shifts, "read_times": read_times}
    return _ObservedSolution(**(fields | new))


class LossReads(NamedTuple):
    """Times at which the loss reads, and its gradient by the state there."""

    t: HostArray
    left: HostArray  # whether it reads the limit from the left
    g: Leaves


def gradients(owner: str, loss: Callable, sol: Solution) -> tuple[Leaves, Leaves, LossReads]:
    """Gradients by rows that the loss reads directly, by all rows, and by reads in between."""
    tape, read_times = sol.tape, _ReadTimes()
    scalar(loss(_observed(sol, tape, tape, (), read_times)), owner, 'lambda sol: sol.final.x["h"]')
    shifts = tuple(
        None
        if call is None
        else tuple(jnp.zeros((call[0].size, *v.shape[1:]), v.dtype) for v in tape.w)
        for call in read_times.calls
    )
    points = (tape.tau, tape.w, tape.end.tau, tape.end.w)

    def read(points: tuple) -> Tape:
        tau, w, end_tau, end_w = points
        return dataclasses.replace(tape, tau=tau, w=w, end=tape.end._replace(tau=end_tau, w=end_w))

    def value(points: tuple, dense: tuple, shifts: tuple) -> Scalar:
        return loss(_observed(sol, read(points), read(dense), shifts, _ReadTimes()))

    *rows, g = jax.grad(value, argnums=(0, 1, 2))(points, points, shifts)
    n, used = int(tape.n), jnp.arange(tape.tau.shape[0]) <= tape.n

    def at_rows(grads: tuple) -> Leaves:
        tau, w, end_tau, end_w = grads
        whole = (v.at[n].add(e) for v, e in zip((tau, *w), (end_tau, *end_w), strict=True))
        return tuple(jnp.where(used.reshape(-1, *[1] * (v.ndim - 1)), v, 0.0) for v in whole)

    direct, dense = map(at_rows, rows)
    known = [(call, v) for call, v in zip(read_times.calls, g, strict=True) if call is not None]
    t = np.concatenate([np.zeros(0), *(call[0] for call, _ in known)])
    left = np.concatenate(
        [np.zeros(0, bool), *(np.full(k[0].size, k[1] == "left") for k, _ in known)]
    )
    none = tuple(np.zeros((0, *v.shape[1:])) for v in tape.w)
    g = tuple(np.concatenate(parts) for parts in zip(none, *(v for _, v in known), strict=True))
    own = tuple(a + b for a, b in zip(direct, dense, strict=True))
    return tuple(map(np.asarray, direct)), own, LossReads(t, left, g)
