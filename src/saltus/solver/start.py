"""The first state of a solve, its parameters and its consistency."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..base.leaves import Leaves, frozen
from ..base.types import Flag, Number, Params, Whole
from ..model.algebraic_states import attached, begun
from ..model.builder import Built, build
from ..model.model import At, Model, Par
from ..model.projection import projected
from ..model.start_leaves import Parts, dismantle
from ..simulate.guards import resolution
from ..solution.tape import TAYLOR
from ..system.hybrid import HybridSystem, Instant
from .arguments import number
from .context import current_probe


def first_state(
    system: HybridSystem, start: Instant, p: Params, t1: Number | None = None, repair: bool = False
) -> tuple[Model, At, Par]:
    """The model of a system, the row state at its start, and its parameters as leaves."""
    if isinstance(system, HybridSystem) and system.adapt_start is not None:
        start = system.adapt_start(start, p)
    shapes, parts = dismantle(system, start, p)
    built = build(system, shapes, parts)
    theta, iota = _parameters(system, start, p, parts, built, parts.t if t1 is None else t1)
    given = (parts.x, parts.z, parts.d, parts.d_others, parts.mode, parts.signals)
    at, backward = _preparation(built.model, repair)(given, theta, iota)
    return built.model, at, Par(theta, iota, backward)


def _parameters(
    system: HybridSystem, start: Instant, p: Params, parts: Parts, built: Built, t1: Number
) -> tuple[Leaves, Leaves]:
    """theta and iota in the order defined in model/model.py."""
    ticks = []
    for tick in built.ticks:
        for name, value in (("period", tick.period), ("offset", tick.offset)):
            given = value(start, p) if callable(value) else value
            ticks.append(number(f"the {name} of every", given))
    signals = [v for s in parts.signals for v in (s.times, s.values)]
    probe = current_probe()
    theta = (parts.t, t1, *parts.p, *signals, *ticks, *built.floats, probe)
    return theta, (*parts.p_others, *(jnp.asarray(v) for v in built.others))


@functools.lru_cache(maxsize=256)
def _preparation(model: Model, repair: bool) -> Callable[[tuple, Leaves, Leaves], tuple[At, Flag]]:
    """A function that makes the first row state from the leaves of the start."""

    def prepare(parts: tuple, theta: Leaves, iota: Leaves) -> tuple[At, Any]:
        x, z, d, d_others, mode, signals = parts
        backward = jax.lax.stop_gradient(theta[1] < theta[0])
        q = model.zero_integrals()
        counts = [
            _first_tick(theta, model.first_tick + 2 * j, backward) for j in range(model.ticks)
        ]
        segments = [s.segment(theta[0], backward).astype(jnp.int64) for s in signals]
        waiting = sum(a.kind == "time" for a in model.actions)
        blank = (jnp.full((), jnp.inf),) * waiting
        flags = (jnp.zeros((model.kinks,), jnp.int32),) if model.kinks else ()
        i = (*d_others, *([mode] if model.modes else []), *counts, *segments, *flags)
        at = At(jnp.zeros(()), (*x, *q, *d, *blank), jax.lax.stop_gradient(i), frozen(z))
        par = Par(theta, iota, backward)
        at = begun(model, projected(model, at, par) if repair else at, par)
        there = attached(model, at, par, TAYLOR)
        return model.with_pending_times(there, par)._replace(z=at.z), backward

    return jax.jit(prepare)


def _first_tick(theta: Leaves, slot: int, backward: Flag) -> Whole:
    """The number of the first tick strictly after the start (before it, if going backward)."""
    period, offset, t0 = theta[slot], theta[slot + 1], theta[0]
    ratio = (t0 - offset) / period
    ratio = jax.lax.stop_gradient(ratio)
    near = jnp.round(ratio)
    on_tick = jnp.abs(near - ratio) * jnp.abs(period) <= resolution(t0)
    after = jnp.where(on_tick, near + 1, jnp.ceil(ratio))
    before = jnp.where(on_tick, near - 1, jnp.floor(ratio))
    return jnp.where(backward, before, after).astype(jnp.int64)
