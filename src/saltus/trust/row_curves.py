"""A finished solve as curves through its rows, along which the outcomes of its flow are read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from ..base.leaves import Leaves
from ..base.types import Array, Scalar, Vector, Whole
from ..model.model import At, Model, Par
from ..solution.tape import Tape
from .nonsmooth import Program

T = TypeVar("T")
ROWS_PER_BATCH = 64
END_DISTANCE = 2.0**-20  # distance of samples from the ends of a step, relative to the step


@functools.lru_cache(maxsize=256)
def program_of(model: Model) -> Program:
    """Flow and constraint of a model as one program."""
    return Program(model)


class Run(NamedTuple):
    flow: Leaves
    residuals: Leaves
    outcomes: Vector
    alive: Array  # the outcomes on which the results depend


class Curves(NamedTuple):
    """A solve as curves: cubic polynomials through the states and flows at the ends of each row.

    States at the ends are those shortly after the start and shortly after the end of the row (in
    the next row, if that is a step; otherwise shortly before the end), because exactly at the ends
    they may lie on a kink. The first axis of everything is the row.
    """

    model: Model
    par: Par
    first: At
    last: At
    slopes: tuple[Leaves, Leaves]  # of the differential states, at both ends
    flows: Array  # which rows are flow
    sizes: Leaves  # of the flow over all rows (no first axis)

    @staticmethod
    def of(model: Model, tape: Tape) -> Curves:
        par = tape.par()
        f = over_rows(lambda k: model.flow(tape.state(k), par), tape.kind)
        flows = tape.flow_rows()
        h = jnp.where(flows & (tape.h != 0), tape.h, 1.0)
        before = jnp.concatenate([jnp.full(1, jnp.inf), jnp.where(flows, abs(h), jnp.inf)[:-1]])
        near = END_DISTANCE * jnp.sign(h) * jnp.minimum(abs(h), before)
        goes_on = flows & _next(flows)
        then = jnp.where(goes_on, _next(near), -END_DISTANCE * h)

        def ends(v: Array, slope: Array) -> tuple[Array, Array]:
            bend = (_next(slope) - slope) / _like(h, v)
            onward = jnp.where(_like(goes_on, v), _next(bend), bend)
            a, b = _like(near, v), _like(then, v)
            first = v + a * slope + 0.5 * a * a * bend
            last = _next(v) + b * _next(slope) + 0.5 * b * b * onward
            return first.astype(v.dtype), last.astype(v.dtype)

        def linear(v: Array) -> tuple[Array, Array]:
            rate = (_next(v) - v) / _like(h, v)
            onward = jnp.where(_like(goes_on, v), _next(rate), rate)
            return v + _like(near, v) * rate, _next(v) + _like(then, v) * onward

        moved = [*map(ends, model.x_of(tape), f[: model.nx])]
        z = [linear(v) for v in tape.z]
        first, last = (
            model.with_x(At(tau, tape.w, tape.i, tuple(v[j] for v in z)), [v[j] for v in moved])
            for j, tau in enumerate((tape.tau + near, _next(tape.tau) + then))
        )
        used = jnp.arange(tape.size) <= tape.n
        sizes = tuple(jnp.max(jnp.where(_like(used, v) & jnp.isfinite(v), abs(v), 0), 0) for v in f)
        slopes = (f[: model.nx], tuple(map(_next, f[: model.nx])))
        return Curves(model, par, first, last, slopes, flows, sizes)

    def ends(self, k: Whole) -> tuple[At, At]:
        return jax.tree.map(lambda v: v[k], (self.first, self.last))

    def along(self, k: Whole, part: Scalar) -> At:
        """The state at a part of a row (Hermite; algebraic states: linear)."""
        (a, b), (f0, f1) = self.ends(k), jax.tree.map(lambda v: v[k], self.slopes)
        u, v = part, 1.0 - part
        h = b.tau - a.tau
        new = []
        for p, q, f, g in zip(self.model.x_of(a), self.model.x_of(b), f0, f1, strict=False):
            x = v * v * ((1 + 2 * u) * p + u * h * f)
            x = x + u * u * ((1 + 2 * v) * q - v * h * g)
            new.append(x.astype(p.dtype))
        z = tuple(v * p + u * q for p, q in zip(a.z, b.z, strict=True))
        return self.model.with_x(a, new, tau=v * a.tau + u * b.tau, z=z)

    def run(self, at: At, told: Array | None = None, mask: Array | None = None) -> Run:
        """Everything at a state; outcomes under `mask` are taken from `told`."""
        program = program_of(self.model)
        inputs = program.inputs(self.model, at, self.par)
        out, outcomes, alive = program.run(inputs, told, mask)
        n = program.n_flow
        return Run(tuple(out[:n]), tuple(out[n:]), outcomes, alive)


def over_rows(fn: Callable[[Whole], T], rows: Array) -> T:
    """A function of a row number, evaluated for all rows in batches."""
    n = rows.shape[0]
    every = jnp.minimum(jnp.arange(-(-n // ROWS_PER_BATCH) * ROWS_PER_BATCH), n - 1)
    return jax.tree.map(lambda v: v[:n], jax.lax.map(fn, every, batch_size=ROWS_PER_BATCH))


def _next(v: Array) -> Array:
    """For each row the value of the next one."""
    return jnp.concatenate([v[1:], v[-1:]])


def _like(v: Array, leaf: Array) -> Array:
    """A number for each row, in the shape of a leaf."""
    return v.reshape(-1, *[1] * (leaf.ndim - 1))
