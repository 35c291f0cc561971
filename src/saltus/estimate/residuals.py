r"""From a vector of free numbers to residuals: simulate an experiment and compare.

Four ways to compare an output `y` with samples $y_i$ at $t_i$ (M49):

- `points`: $y(t_i) - y_i$. Exact, but it jumps when an event passes a sample.
- `integral`: the mean of `y` over each sampling interval minus that of the samples. Continuous and
  differentiable when an event passes a sample.
- `aligned`: `y` at a time whose position between predicted events is the same as that of $t_i$
  between observed ones. Smooth in event times; needs observed event times.
- `blended`: `y` with its jumps softened by sigmoids (Matei et al., A.5).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..base.types import Array, Params, Scalar, Tree, Vector
from ..methods.method import Method
from ..solution.event_log import EventLog
from ..solution.solution import Solution
from ..solver.scenario import started
from ..solver.solving import solve
from ..system.hybrid import HybridSystem, Instant
from . import event_matching
from .experiments import Observed, Run, Shape, columns
from .parameters import Values, put, scaled

T = TypeVar("T")
LOSSES = ("points", "integral", "aligned", "blended")
SHARPNESS = 20.0  # of blending, in units of one over the mean sampling interval


class Seen(NamedTuple):
    """Facts about a simulation, for decisions; not differentiated."""

    t: Values
    which: Values
    member: Values
    result: Values


@dataclasses.dataclass(frozen=True)
class How:
    """How experiments are simulated and compared."""

    loss: str
    method: Method | None
    transform: Callable[[Array], Array] | None  # of weighted residuals
    rows: int
    log: int


def restore(shape: Shape, run: Run, u: Vector) -> tuple[Params, Instant]:
    """Parameters and start of an experiment with the free numbers in them."""

    def filled(tree: T, kinds: tuple, places: tuple) -> T:
        values = [
            scaled(kind[2], u[at.entries], at.unit, at.low, at.high)
            for kind, at in zip(kinds, places, strict=True)
        ]
        return put(tree, [(*kind, v) for kind, v in zip(kinds, values, strict=True)])

    p = filled(eqx.combine(run.p, shape.p.tree), shape.of_p, run.of_p)
    if run.start is None:
        return p, started(shape.start.tree, p)
    return p, filled(eqx.combine(run.start, shape.start.tree), shape.of_start, run.of_start)


def simulate(shape: Shape, run: Run, u: Vector, how: How, ts: Values | None = None) -> Solution:
    p, start = restore(shape, run, u)
    system = _with_integrals(shape.system) if how.loss == "integral" else shape.system
    return solve(
        system, start, p, run.t1, ts=ts, method=how.method, throw=False,
        max_steps=how.rows, max_events=how.log,
    )  # fmt: skip


def residuals(shape: Shape, run: Run, u: Vector, how: How) -> tuple[Vector, Seen]:
    """The weighted residuals of one experiment, and facts about its simulation."""
    ts = jnp.asarray(run.ts)
    if how.loss == "aligned":
        first = simulate(shape, run, u, how)
        ts = jnp.clip(_warped(ts, first.start, first.events, run), None, run.t1)
        sol = simulate(shape, run, u, how, ts)
    else:
        sol = simulate(shape, run, u, how, ts if run.outputs else None)
    log = sol.events
    parts = []
    if run.outputs:
        y = _samples(sol, log, run, how, restore(shape, run, u)[0], shape.system)
        parts = [o.weight * compared(y[name], o, how.loss) for name, o in run.outputs.items()]
    for name, times in run.events.items():
        own, extra = event_matching.residuals(_times_of(log, name), times.t, run.t1, times.reach)
        parts += [times.weight * own, times.alone * extra]
    r = jnp.concatenate([jnp.atleast_1d(v) for v in parts]) if parts else jnp.zeros(0)
    r = r if how.transform is None else how.transform(r)
    seen = Seen(log.t, log.which, log.member, sol.result)
    return r + jnp.where(sol.result > 1, jnp.nan, 0.0), jax.lax.stop_gradient(seen)


def compared(y: Array, o: Observed, loss: str) -> Array:
    """Predictions minus samples; for `integral`, means over intervals."""
    if loss != "integral":
        return y[o.rows] - o.y
    q = y[o.rows]
    long = o.interval > 0
    mean = jnp.diff(q, prepend=q[:1]) / jnp.where(long, o.interval, 1.0)
    data = 0.5 * (o.y + jnp.concatenate([o.y[:1], o.y[:-1]]))
    return jnp.where(long, mean - data, 0.0)


def _samples(
    sol: Solution, log: EventLog, run: Run, how: How, p: Params, system: HybridSystem
) -> dict[str, Array]:
    if how.loss == "integral":
        return columns(sol.integrals[1])
    y = columns(sol.y)
    if any(e.terminal for e in system.events):
        y = _held(y, sol, p, system)
    if how.loss == "blended":
        return _blended(y, sol, log, run, p, system)
    return y


def _held(y: dict, sol: Solution, p: Params, system: HybridSystem) -> dict[str, Array]:
    """After a terminal event, outputs stay constant: data may continue after a prediction ends."""
    last = columns(sol.final.x if system.output is None else system.output(sol.final, p), axes=0)
    return {name: jnp.where(sol.reached, v, last[name]) for name, v in y.items()}


def _with_integrals(system: HybridSystem) -> HybridSystem:
    """The same system, with its outputs integrated in addition to its own rate."""
    old, output = system.rate, system.output

    def rate(now: Instant, p: Params) -> tuple[Tree, Tree]:
        y = now.x if output is None else output(now, p)
        floats = jax.tree.map(lambda v: jnp.asarray(v, dtype=float), y)
        return (None if old is None else old(now, p)), floats

    return _cached_replace(system, rate)


_INTEGRATED: dict[int, tuple[HybridSystem, HybridSystem]] = {}


def _cached_replace(system: HybridSystem, rate: Callable) -> HybridSystem:
    known = _INTEGRATED.get(id(system))
    if known is None or known[0] is not system:
        if len(_INTEGRATED) > 64:
            _INTEGRATED.clear()
        known = _INTEGRATED[id(system)] = (system, dataclasses.replace(system, rate=rate))
    return known[1]


# -- events ---------------------------------------------------------------------------------------
def _times_of(log: EventLog, name: str) -> Vector:
    """Times of one kind of event (or of one member of a family), in order, then NaN."""
    stem, _, member = name.partition("[")
    wanted = log.which == log.names.index(stem)
    if member:
        wanted &= log.member == int(member.rstrip("]"))
    order = jnp.argsort(~wanted, stable=True)
    return jnp.where(wanted[order], log.t[order], jnp.nan)


def _warped(ts: Vector, t0: Scalar, log: EventLog, run: Run) -> Vector:
    """Sampling times moved so that observed events fall on predicted ones (M51)."""
    observed, predicted = [], []
    for name, times in run.events.items():
        found = _times_of(log, name)
        partner, _ = event_matching.match(found, jnp.asarray(times.t), run.t1, times.reach)
        observed.append(jnp.where(partner >= 0, times.t, jnp.inf))
        predicted.append(jnp.where(partner >= 0, found[jnp.maximum(partner, 0)], jnp.inf))
    b, a = jnp.concatenate(observed), jnp.concatenate(predicted)
    order = jnp.argsort(b)
    b, a = b[order], a[order]
    b, a = (jnp.concatenate([jnp.reshape(t0, (1,)), v]) for v in (b, a))
    k = jnp.clip(jnp.searchsorted(b, ts, side="right") - 1, 0)
    last = ~jnp.isfinite(jnp.append(b, jnp.inf)[k + 1])
    left_b, left_a = b[k], a[k]
    width_b = jnp.where(last, 1.0, jnp.append(b, 0.0)[k + 1] - left_b)
    width_a = jnp.where(last, 1.0, jnp.append(a, 0.0)[k + 1] - left_a)
    return left_a + (ts - left_b) * width_a / jnp.where(width_b > 0, width_b, 1.0)


def _blended(
    y: dict, sol: Solution, log: EventLog, run: Run, p: Params, system: HybridSystem
) -> dict[str, Array]:
    r"""Samples with jumps softened: segment k, from a to b, has the weight
    $\sigma(s (t - a))\,\sigma(s (b - t))$, normalised; outside it keeps its first or last value."""
    ts = jnp.asarray(run.ts)
    s = SHARPNESS * (ts.size - 1) / (ts[-1] - ts[0])
    real = jnp.isfinite(log.t)
    t0, t1 = ts[:1] - 1e3 / s, jnp.reshape(run.t1, (1,)) + 1e3 / s
    a = jnp.concatenate([t0, jnp.where(real, log.t, jnp.inf)])
    b = jnp.concatenate([jnp.where(real, log.t, t1), t1])
    exists = jnp.concatenate([jnp.ones(1, bool), real])
    weight = jnp.where(
        exists[:, None],
        jax.nn.sigmoid(s * (ts - jnp.where(exists, a, 0.0)[:, None]))
        * jax.nn.sigmoid(s * (b[:, None] - ts)),
        0.0,
    )
    weight = weight / jnp.sum(weight, axis=0)
    sides = [columns(_outputs(system, now, p)) for now in (log.before, log.after)]
    soft = {}
    for name, v in y.items():
        before, after = (jnp.where(real, side[name], 0.0) for side in sides)
        first = jnp.concatenate([v[:1], after])[:, None]
        last = jnp.concatenate([before, v[-1:]])[:, None]
        held = jnp.where(ts < a[:, None], first, jnp.where(ts >= b[:, None], last, v))
        soft[name] = jnp.sum(jnp.where(weight > 0, weight * held, 0.0), axis=0)
    return soft


def _outputs(system: HybridSystem, now: Instant, p: Params) -> Tree:
    if system.output is None:
        return now.x
    return jax.vmap(lambda now: system.output(now, p))(now)  # type: ignore[misc]
