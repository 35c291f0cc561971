"""The output along every step: what plots and files are made of."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .loop import Spec
from .readout import Tape, along_row, output
from .record import FLOW


class Course(NamedTuple):
    """Times (N, F) and outputs (N, F, ...) at F points of each of the N steps.

    Steps with the same `piece` follow each other without a jump. `mode` is the automaton's.
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
    flows = np.flatnonzero(kinds == FLOW)
    piece = np.cumsum(kinds != FLOW)[flows]
    if not len(flows):  # a solve of no length: its only instant
        flows, piece = np.array([0]), np.array([0])
    y = jax.tree.map(lambda v: np.asarray(v)[flows], values)
    mode = None if modes is None else np.asarray(modes)[flows]
    return Course(np.asarray(times)[flows], y, piece, mode)


@functools.partial(jax.jit, static_argnames=("spec",))
def _along(spec: Spec, tape: Tape, fractions: Any) -> tuple:
    model, par = spec.model, tape.par()

    def row(k: Any) -> tuple:
        at, end = tape.state(k), tape.state(k + 1)

        def point(fraction: Any) -> tuple:
            there = along_row(spec, tape, k, fraction * (end.tau - at.tau))
            return par.theta[0] + there.tau, output(model, there, par)

        times, values = jax.vmap(point)(fractions)
        return times, values, at.i[model.place_mode] if model.modes else None

    rows = jnp.minimum(jnp.arange(tape.kind.shape[0]), jnp.maximum(tape.n - 1, 0))
    return jax.vmap(row)(rows)
