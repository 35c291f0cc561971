"""The output along every step, for plots and files."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.host_programs import rarely
from ..base.types import Array, HostArray, Numbers, Scalar, Tree, Whole
from ..model.algebraic_states import determined
from ..simulate.record import Spec
from .tape import Tape, along_row, instant, output


class Course(NamedTuple):
    """Times (N, F) and outputs (N, F, ...) at F points of each of the N steps.

    Steps with the same `piece` follow each other without a jump. `mode` is the mode of the
    automaton. If a solve begins or ends with a jump, its other side is a step of length zero.
    """

    t: HostArray
    y: Tree
    piece: HostArray
    mode: HostArray | None


def course(spec: Spec, tape: Tape, fractions: Numbers | None = None, whole: bool = False) -> Course:
    """The output at `fractions` of every step; 0 is just after a jump, 1 just before the next.

    Without `fractions`, the output at both ends of every step, which is cheap. With `whole`,
    instants instead of outputs.
    """
    n = int(tape.n)
    if fractions is None:
        times, values, modes = _ends(*_nodes(spec, tape, whole))
    else:
        given = jnp.asarray(fractions, dtype=jnp.float64)
        times, values, modes = _along(spec, tape, given, whole)
    flows, jumps = np.flatnonzero(tape.flow_rows()), np.flatnonzero(tape.reset_rows())
    before = [] if 0 in flows else [0]
    after = [n] if len(jumps) and np.all(flows < jumps[-1]) else []
    rows = np.concatenate([before, flows, after]).astype(int)
    piece = np.searchsorted(jumps, rows)
    y = jax.tree.map(lambda v: np.asarray(v)[rows], values)
    mode = None if modes is None else np.asarray(modes)[rows]
    return Course(np.asarray(times)[rows], y, piece, mode)


def _ends(times: Array, values: Tree, modes: Array | None) -> tuple:
    """Values at the starts of steps, as pairs: those of a step, and those of the next."""

    def pairs(v: Array) -> HostArray:
        known = np.asarray(v)
        return np.stack([known, np.concatenate([known[1:], known[-1:]])], axis=1)

    return pairs(times), jax.tree.map(pairs, values), modes


@functools.partial(rarely, static_argnums=(0, 2))
def _nodes(spec: Spec, tape: Tape, whole: bool) -> tuple:
    """Times, outputs and modes where steps start, and at the end."""
    model, par = spec.model, tape.par()

    def node(k: Whole) -> tuple:
        at = tape.state(k)
        at = jax.tree.map(lambda a, b: jnp.where(k >= tape.n, b, a), at, tape.end)
        at = determined(model, at, par, 0)
        value = instant(model, at, par) if whole else output(model, at, par)
        return par.t0 + at.tau, value, at.i[model.place_mode] if model.modes else None

    return jax.vmap(node)(jnp.minimum(jnp.arange(tape.tau.shape[0]), tape.n))


@functools.partial(rarely, static_argnums=(0, 3))
def _along(spec: Spec, tape: Tape, fractions: Array, whole: bool) -> tuple:
    model, par = spec.model, tape.par()

    def row(k: Whole) -> tuple:
        at, end = tape.state(k), tape.state(k + 1)
        length = jnp.where(k < tape.n, end.tau - at.tau, 0.0)

        def point(fraction: Scalar) -> tuple:
            there = along_row(spec, tape, k, fraction * length)
            value = instant(model, there, par) if whole else output(model, there, par)
            return par.t0 + there.tau, value

        times, values = jax.vmap(point)(fractions)
        return times, values, at.i[model.place_mode] if model.modes else None

    return jax.vmap(row)(jnp.minimum(jnp.arange(tape.tau.shape[0]), tape.n))
