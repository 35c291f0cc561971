"""The output along every step: what plots and files are made of."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .loop import Spec
from .readout import Tape, along_row, output
from .record import FLOW, is_reset


class Course(NamedTuple):
    """Times (N, F) and outputs (N, F, ...) at F points of each of the N steps.

    Steps with the same `piece` follow each other without a jump. `mode` is the automaton's. Where
    a solve begins or ends with a jump, the other side of it is a step of no length.
    """

    t: Any
    y: Any
    piece: Any
    mode: Any


def course(spec: Spec, tape: Tape, fractions: Any) -> Course:
    """The output at `fractions` of every step; 0 is just after a jump, 1 just before the next."""
    n = int(tape.n)
    times, values, modes = _along(spec, tape, jnp.asarray(fractions, dtype=jnp.float64))
    kinds = np.asarray(tape.kind)[:n]
    flows, jumps = np.flatnonzero(kinds == FLOW), np.flatnonzero(is_reset(kinds))
    before = [] if 0 in flows else [0]
    after = [n] if len(jumps) and np.all(flows < jumps[-1]) else []
    rows = np.concatenate([before, flows, after]).astype(int)
    piece = np.searchsorted(jumps, rows)
    y = jax.tree.map(lambda v: np.asarray(v)[rows], values)
    mode = None if modes is None else np.asarray(modes)[rows]
    return Course(np.asarray(times)[rows], y, piece, mode)


@functools.partial(jax.jit, static_argnames=("spec",))
def _along(spec: Spec, tape: Tape, fractions: Any) -> tuple:
    model, par = spec.model, tape.par()

    def row(k: Any) -> tuple:
        at, end = tape.state(k), tape.state(k + 1)
        length = jnp.where(k < tape.n, end.tau - at.tau, 0.0)

        def point(fraction: Any) -> tuple:
            there = along_row(spec, tape, k, fraction * length)
            return par.theta[0] + there.tau, output(model, there, par)

        times, values = jax.vmap(point)(fractions)
        return times, values, at.i[model.place_mode] if model.modes else None

    return jax.vmap(row)(jnp.minimum(jnp.arange(tape.tau.shape[0]), tape.n))
