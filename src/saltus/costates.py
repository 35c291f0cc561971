"""Adjoint variables along a solution: how a loss feels a small push at any time.

`lambda(t) = dL/dx(t)`: what the adjoint sweep (M10) computes on its way from the end to the start.
At an event it jumps.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .loop import Spec
from .model import At
from .readout import Tape, read, read_end
from .record import FLOW, is_reset
from .results import Result
from .rowmaps import RowData, cotangent
from .solution import Solution
from .tables import is_traced, named, number


class Costates(eqx.Module):
    """Sensitivities of a loss to the state at each row of a solution.

    At a jump there are two entries with the same time: just before and just after. `x` and `d` have
    the structure of the state with one axis more (`d` only its floats; others are `None`), `t` are
    the times, `time` the sensitivity to a delay of the rest of the motion, `jump` marks entries
    just before a jump.
    """

    t: Any
    x: Any
    d: Any
    time: Any
    jump: Any

    def __repr__(self) -> str:
        if is_traced(self.t):
            return "Costates, traced"
        first = {k: np.asarray(v)[0] for k, v in named(self.x, "x").items()}
        shown = ", ".join(
            f"dL/d{k} = {number(v) if np.ndim(v) == 0 else v}" for k, v in list(first.items())[:8]
        )
        return (
            f"Costates at {len(self.t)} times from t = {number(self.t[0])} to "
            f"{number(self.t[-1])}, {int(np.sum(self.jump))} jumps; at the start {shown}"
        )


def costates(loss: Callable[[Solution], Any], sol: Solution, sensitivity: Any = None) -> Costates:
    """`dL/dx(t)` for a loss that is a function of a solution, at every step and event.

    Write `costates(lambda sol: sol.integral["cost"], sol)`. Values at saved times, integrals,
    events and the final state may all enter the loss. `sensitivity` may be
    `saltus.continuous.Continuous()`, as for `solve`.
    """
    rows, kept = pulled_back(loss, sol, sensitivity)
    model, tape = sol.spec.model, sol.tape
    kinds, n = np.asarray(tape.kind), int(tape.n)
    nd = model.n_d[0]
    x = model.x.join(rows[1 : 1 + model.nx], ())
    others = [None] * model.n_d[1]
    d = model.d.join(rows[1 + model.moving : 1 + model.moving + nd], others) if nd else None
    t = np.asarray(tape.theta[0] + tape.tau)[kept]
    return Costates(t, x, d, rows[0], (kinds[kept] != FLOW) & (kept < n))


def pulled_back(
    loss: Callable[[Solution], Any], sol: Solution, sensitivity: Any = None
) -> tuple[tuple, np.ndarray]:
    """The adjoints of `(tau, w)` at rows, and which rows: an approach and its reset are one."""
    if jnp.ndim(sol.result):
        raise ValueError(
            "costates: one solution is needed, not a batch; write costates(f, sol[k])."
        )
    fixed = jax.tree.map(jax.lax.stop_gradient, sol)
    tape = fixed.tape
    points = (tape.tau, tape.w, tape.end.tau, tape.end.w)

    def of_rows(points: tuple) -> Any:
        tau, w, end_tau, end_w = points
        moved = dataclasses.replace(tape, tau=tau, w=w, end=tape.end._replace(tau=end_tau, w=end_w))
        return loss(_with_tape(fixed, moved))

    g_tau, g_w, g_end_tau, g_end_w = jax.grad(of_rows)(points)
    n = int(tape.n)
    own = tuple(v.at[n].add(e) for v, e in zip((g_tau, *g_w), (g_end_tau, *g_end_w), strict=True))
    kinds = np.asarray(tape.kind)[: n + 1]
    resets = is_reset(kinds) & (np.arange(n + 1) < n)
    between = resets[1:] & (kinds[:-1] == kinds[1:] - 1)  # an approach and its reset are one jump
    kept = np.flatnonzero(~np.concatenate([[False], between]))
    spec = fixed.spec if sensitivity is None else fixed.spec._replace(rules=sensitivity)
    return tuple(np.asarray(v)[kept] for v in _sweep(spec, tape, own)), kept


def _with_tape(sol: Solution, tape: Tape) -> Solution:
    """The same solution read from another tape."""
    ok = sol.result <= int(Result.terminated)
    _, (final, integral, y) = read_end(sol.spec, tape, ok)
    if sol.adapt is not None:
        final = sol.adapt(final)
    t = final.t
    if jnp.ndim(sol.t):
        t, y = sol.t, read(sol.spec, tape, sol.t, "right")[0]
    return dataclasses.replace(sol, t=t, y=y, integral=integral, final=final, tape=tape)


@functools.partial(jax.jit, static_argnames=("spec",))
def _sweep(spec: Spec, tape: Tape, own: tuple) -> tuple:
    """The adjoint sweep with every state on its way kept."""
    none = (False,) * spec.model.n_theta
    member = tape.member[0] if tape.member else jnp.zeros_like(tape.kind, jnp.int32)

    def back(lam: tuple, given: tuple) -> tuple:
        k, at, h, kind, member, aux, here = given
        row = RowData(h, kind.astype(jnp.int32), member, at.i, at.z, aux, tape.iota, tape.backward)
        pulled, *_ = cotangent(spec, (none,), row, (at.tau, *at.w), tape.theta, lam)
        pulled = tuple(
            jnp.where(k < tape.n, p, 0.0) + jnp.where(k <= tape.n, c, 0.0)
            for p, c in zip(pulled, here, strict=True)
        )
        return pulled, pulled

    rows = jnp.arange(tape.kind.shape[0])
    states = At(tape.tau, tape.w, tape.i, tape.z)
    xs = (rows, states, tape.h, tape.kind, member, tape.aux, own)
    zero = tuple(jnp.zeros_like(v[0]) for v in own)
    return jax.lax.scan(back, zero, xs, reverse=True)[1]
