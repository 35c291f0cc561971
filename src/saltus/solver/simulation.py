"""The three ways to simulate: on a tape, in pieces with checkpoints, by a solver outside of JAX.

Each returns the outcome, the tape as a function of start and parameters, and the states at save
times if the sweeps have computed them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..base.leaves import Leaves, frozen
from ..base.results import Result
from ..base.types import Array, Flag, Scalar
from ..base.unreached_values import everything
from ..methods import Method
from ..model.invariants import broken
from ..model.model import At, Model, Par
from ..simulate.firing import asked
from ..simulate.primitive import Outcome, simulate
from ..simulate.record import Knobs, Spec
from ..simulate.save_times import Visits, visit
from ..solution.tape import Tape
from ..sweep.primitives import Recorded, replay
from .arguments import count
from .checkpointed import in_pieces


class Simulated(NamedTuple):
    """What each of the three ways returns."""

    outcome: Outcome
    tape: Tape
    visits: Visits | None  # the states at save times; none if they are read from the tape


Way = Callable[[Spec, At, Par, Knobs, Array | None], Simulated]  # the last argument: save times


def way_to_simulate(method: Method, checkpoints: int | None, capacity: int) -> Way:
    """The way to simulate with this method; `capacity` is that of a tape inside `jit`."""
    if method.external and checkpoints is not None:
        raise ValueError(
            f"solve: checkpoints={checkpoints} cannot be used with {type(method).__name__}, which "
            "keeps every step. Leave checkpoints out, or choose another method."
        )
    if method.external:
        return functools.partial(_by_external_solver, method)
    if checkpoints is None:
        return functools.partial(_on_tape, capacity)
    return functools.partial(_with_checkpoints, count("checkpoints", checkpoints), capacity)


def _on_tape(
    capacity: int, spec: Spec, at: At, par: Par, knobs: Knobs, ts: Array | None
) -> Simulated:
    outcome = simulate(spec, at, par, knobs, capacity)
    return _replayed(spec, _kept(spec.model, outcome, par, knobs), at, par, ts)


def _by_external_solver(
    method: Method, spec: Spec, at: At, par: Par, knobs: Knobs, ts: Array | None
) -> Simulated:
    return _replayed(spec, method.simulate(spec, at, par, knobs), at, par, ts)


def _with_checkpoints(
    rows: int, capacity: int, spec: Spec, at: At, par: Par, knobs: Knobs, ts: Array | None
) -> Simulated:
    outcome, tape, visits = in_pieces(spec, at, par, knobs, rows, capacity, ts)
    return Simulated(_kept(spec.model, outcome, par, knobs), tape, visits)


def _kept(model: Model, outcome: Outcome, par: Par, knobs: Knobs) -> Outcome:
    """The outcome, marked as a failure if the final state violates an invariant."""
    if model.invariant is None:
        return outcome
    off = _off(model, *frozen((outcome.end, par)), *asked(knobs))
    off = off & (outcome.code <= int(Result.terminated))
    code = jnp.where(off, int(Result.inconsistent), outcome.code).astype(outcome.code.dtype)
    return outcome._replace(code=code)


@functools.partial(jax.jit, static_argnames=("model",))
def _off(model: Model, end: At, par: Par, rtol: Scalar, atol: Leaves) -> Flag:
    return broken(model, end, par, rtol, atol)


def saves_in_sweep(spec: Spec) -> bool:
    """Whether values at save times are computed in the sweeps, not from the tape afterwards.

    Explicit steps are cheap to repeat, so saved values are read from the tape in parallel. Implicit
    steps are expensive; and continuous methods have rules for rows only, so each read is a row.
    """
    return spec.rules is not None or not spec.stepper.light(spec.model)


def _replayed(spec: Spec, outcome: Outcome, at: At, par: Par, ts: Array | None) -> Simulated:
    """The recorded rows, and the states at save times, as functions of start and parameters."""
    rows, n, end = outcome.rows, outcome.counts.rows, outcome.end
    recorded = Recorded(
        states=(rows.tau, *rows.w),
        rows=(rows.h, rows.kind, *rows.member, *rows.i, *rows.z, *rows.aux),
        fixed=(n, par.backward, *par.iota),
        ends=(end.tau, *end.w),
    )
    theta, visits = par.theta, None
    if ts is not None and ts.size and saves_in_sweep(spec):
        visits = visit(spec, rows, n, end, par, ts)
        theta = (*theta, ts)
        where = (visits.row, visits.which, visits.short, *visits.aux)
        recorded = recorded._replace(visits=where, reads=(visits.at.tau, *visits.at.w))
    (tau, *w), (end_tau, *end_w), reads = replay(spec, recorded, theta, (at.tau, *at.w))
    if visits is not None:
        visits = visits._replace(at=visits.at._replace(tau=reads[0], w=tuple(reads[1:])))
    noted = jax.lax.stop_gradient((rows.z, rows.aux))
    tape = Tape(
        tau=tau, w=tuple(w), i=rows.i, h=rows.h, kind=rows.kind, member=rows.member, n=n,
        end=At(end_tau, tuple(end_w), end.i, end.z), theta=par.theta, iota=par.iota,
        backward=par.backward, z=noted[0], aux=noted[1], depends=everything((*par.theta, *at.w)),
    )  # fmt: skip
    return Simulated(outcome, tape, visits)
