r"""Multiple shooting: a trajectory in segments, each from a state of its own (M58).

Segment k starts at $x_k$, a free variable, with the discrete state that segment k - 1 ended with;
its end should meet $x_{k+1}$. A wrong guess then spoils one segment, not everything after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

from ..base.types import Array, Matrix, Number, Numbers, Params, Scalar, Tree, Vector, Whole
from ..methods.method import Method
from ..solver.solving import solve
from ..system.hybrid import HybridSystem, Instant
from .experiments import Observed, columns
from .monitor import Monitor
from .objective import Objective
from .optimisers import Unconstrained
from .residuals import restore
from .search import Found, Search, local
from .setup import Setup

PULL = (1.0, 10.0, 100.0, 1000.0)  # weights of the gaps, in one round of fitting each


class Shots:
    """What `shoot` returns: ends, gaps, samples and integrals of all segments."""

    def __init__(
        self, ends: Tree, gaps: Tree, y: Tree, reached: Array, integral: Tree, result: Array
    ):
        self.ends, self.gaps = ends, gaps
        self.y, self.reached = y, reached
        self.integral, self.result = integral, result


def shoot(
    system: HybridSystem,
    start: Instant,
    nodes: Tree,
    p: Params,
    times: Numbers,
    *,
    ts: Numbers | None = None,
    method: Method | None = None,
    max_steps: int = 1024,
    max_events: int = 64,
) -> Shots:
    """Simulate between consecutive `times`, every segment but the first from its own `nodes`.

    `system`, `start`, `p`, `method`, `max_steps` and `max_events` are as for `solve`. `nodes` is a
    pytree like `x` with a leading axis of one entry per inner time. `gaps` of the result has the
    same structure: ends of segments minus the nodes they should meet; constrain them to 0. `ts`
    are save times, one row per segment. Discrete states and modes pass from segment to segment.
    """
    times = jnp.asarray(times, dtype=float)
    first = jax.tree.map(lambda v: jnp.asarray(v, dtype=float)[None], start.x)
    x = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, nodes)
    k = times.shape[0] - 1
    rows = None if ts is None else jnp.asarray(ts, dtype=float)

    def segment(
        discrete: tuple[Tree, Whole | None], given: tuple[Tree, Scalar, Scalar, Vector | None]
    ) -> tuple[tuple[Tree, Whole | None], tuple]:
        x, t0, t1, ts = given
        now = start.replace(t=t0, x=x, d=discrete[0], mode=discrete[1])
        sol = solve(
            system, now, p, t1, ts=ts, method=method, throw=False, max_steps=max_steps,
            max_events=max_events,
        )  # fmt: skip
        end = sol.final
        held = jax.tree.map(lambda new, old: new.astype(old.dtype), (end.d, end.mode), discrete)
        return held, (end.x, sol.y, sol.reached, sol.integral, sol.result)

    mode = start.mode
    if isinstance(mode, str):
        mode = system.modes.index(mode)
    mode = None if mode is None else jnp.asarray(mode, dtype=jnp.int32)
    d = jax.tree.map(jnp.asarray, start.d)
    _, out = jax.lax.scan(segment, (d, mode), (x, times[:-1], times[1:], rows), length=k)
    ends, y, reached, integral, result = out
    gaps = jax.tree.map(lambda a, b: a[:-1] - b, ends, nodes)
    integral = jax.tree.map(lambda v: jnp.sum(v, axis=0), integral)
    return Shots(ends, gaps, y, reached, integral, result)


# -- fitting --------------------------------------------------------------------------------------
def shoot_and_fit(
    setup: Setup,
    objective: Objective,
    u: np.ndarray,
    search: Search,
    monitor: Monitor,
    segments: int,
) -> Found:
    """Fit with free segment starts, close the gaps, then fit the whole trajectory."""
    target = Segmented(setup, objective, u, segments)
    vector = target.first
    for pull in PULL:
        monitor.enter(f"{segments} segments, pull {pull:g}")
        target.pull = pull
        vector = search.local(target, vector, monitor, few=True).u
    return local(objective, vector[: objective.free.size], search, monitor)


class Segmented(Unconstrained):
    """Residuals of segments and of the gaps between them, as a function of (u, nodes)."""

    def __init__(self, setup: Setup, objective: Objective, u: np.ndarray, segments: int):
        self._objective, self._setup = objective, setup
        self.pull = PULL[0]
        self._plans = [_plan(setup, objective, k, u, segments) for k in range(len(setup.runs))]
        self.first = np.concatenate([u, *(p.first for p in self._plans)])
        wide = np.full(self.first.size - u.size, np.inf)
        self.low = np.concatenate([objective.low, -wide])
        self.high = np.concatenate([objective.high, wide])
        self._known: tuple[bytes, float, Any] | None = None

    def _both(self, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        key = (np.asarray(v).tobytes(), self.pull)
        if self._known is None or self._known[:2] != key:
            n = self._objective.free.size
            r, j, at = [], [], n
            for plan in self._plans:
                size = plan.first.size
                own = jnp.asarray(np.concatenate([v[:n], v[at : at + size]]))
                slopes, values = plan.program(own, self.pull)
                whole = np.zeros((values.size, v.size))
                whole[:, :n], whole[:, at : at + size] = slopes[:, :n], slopes[:, n:]
                r.append(np.asarray(values))
                j.append(whole)
                at += size
                self._objective.count.values += 1
            prior, slope = self._objective.prior(v[:n])
            r.append(prior)
            j.append(np.concatenate([slope, np.zeros((prior.size, v.size - n))], axis=1))
            self._known = (*key, (np.concatenate(r), np.concatenate(j)))
        return self._known[2]

    def residuals(self, v: np.ndarray) -> np.ndarray:
        return self._both(v)[0]

    def jacobian(self, v: np.ndarray) -> np.ndarray:
        return self._both(v)[1]

    def value(self, v: np.ndarray) -> float:
        r = self.residuals(v)
        return 0.5 * float(r @ r)

    def gradient(self, v: np.ndarray) -> tuple[float, np.ndarray]:
        r, j = self._both(v)
        return 0.5 * float(r @ r), j.T @ r

    def hessian(self, v: np.ndarray) -> np.ndarray:
        j = self.jacobian(v)
        return j.T @ j

    def signature(self, v: np.ndarray) -> str:
        return ""

    def events(self) -> int:
        return 0

    def evaluations(self) -> int:
        return self._objective.count.values


@dataclasses.dataclass(frozen=True)
class _Plan:
    """One experiment in segments: its program, and the first guess of its nodes."""

    first: np.ndarray
    program: Callable[[Vector, float], tuple[Matrix, Vector]]


def _plan(setup: Setup, objective: Objective, k: int, u: np.ndarray, segments: int) -> _Plan:
    shape, run, free = objective.shapes[k], objective.runs[k], objective.free
    p, start = restore(shape, run, jnp.asarray(u))
    times = np.linspace(float(start.t), float(run.t1), segments + 1)
    nodes = _first_nodes(setup, k, p, start, times)
    flat, unravel = jax.flatten_util.ravel_pytree(nodes)
    size = _sizes(nodes, start.x)
    rows, index = _by_segment(np.asarray(run.ts), times)
    transform = objective.how.transform

    def residuals(v: Vector, pull: Scalar) -> tuple[Vector, Vector]:
        u, own = v[: free.size], unravel(v[free.size :])
        p, start = restore(shape, run, u)
        shots = shoot(shape.system, start, own, p, times, ts=rows, method=objective.how.method)
        y = columns(jax.tree.map(lambda a: a.reshape((-1, *a.shape[2:])), shots.y))
        parts = [_compare(y[name][index], o) for name, o in run.outputs.items()]
        parts = parts if transform is None else [transform(r) for r in parts]
        gaps = jax.tree.map(lambda g, s: jnp.ravel(pull * g / s), shots.gaps, size)
        r = jnp.concatenate([*parts, *jax.tree.leaves(gaps)])
        r = r + jnp.where(jnp.any(shots.result > 1), jnp.nan, 0.0)
        return r, r

    return _Plan(np.asarray(flat), jax.jit(jax.jacfwd(residuals, has_aux=True)))


def _compare(y: Array, o: Observed) -> Array:
    return (y[o.rows] - o.y) * o.weight


def _first_nodes(setup: Setup, k: int, p: Params, start: Instant, times: np.ndarray) -> Tree:
    """Nodes from the data where a state is measured, else from a simulation of the first guess."""
    system = dataclasses.replace(setup.scenario.system, output=None)
    sol = solve(
        system, start, p, times[-1], ts=times[1:-1], method=setup.scenario.method, throw=False
    )
    hold = lambda v, s: jnp.where(jnp.isfinite(v), v, jnp.asarray(s, dtype=float))
    nodes = jax.tree.map(hold, sol.y, start.x)
    if setup.scenario.system.output is not None:
        return nodes
    named = columns(nodes)
    for name, m in setup.measured[k].items():
        named[name] = jnp.interp(times[1:-1], m.t, m.y)
    leaves, treedef = jax.tree.flatten(nodes)
    values, filled = iter(named.values()), []
    for leaf in leaves:
        own = [next(values) for _ in range(int(np.prod(leaf.shape[1:])))]
        filled.append(jnp.stack(own, axis=-1).reshape(leaf.shape))
    return jax.tree.unflatten(treedef, filled)


def _sizes(nodes: Tree, x: Tree) -> Tree:
    """The size of each state, as a scale for gaps."""

    def one(v: Array, first: Number) -> float:
        size = float(jnp.max(jnp.abs(v), initial=0.0)) + float(jnp.max(jnp.abs(jnp.asarray(first))))
        return size or 1.0

    return jax.tree.map(one, nodes, x)


def _by_segment(ts: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Save times in rows, one per segment and padded with its end; and the index of each."""
    k = np.clip(np.searchsorted(times, ts, side="right") - 1, 0, times.size - 2)
    most = max(int(np.max(np.bincount(k), initial=1)), 1)
    rows = np.repeat(times[1:, None], most, axis=1)
    place = np.zeros(ts.size, dtype=int)
    for s in range(times.size - 1):
        mine = np.flatnonzero(k == s)
        rows[s, : mine.size] = ts[mine]
        place[mine] = s * most + np.arange(mine.size)
    return rows, place
