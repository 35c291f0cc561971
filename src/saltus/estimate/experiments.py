"""Experiments as arrays, so that those of one shape share one compiled program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..base.names import entries, named
from ..base.types import Array, Number, Params, Tree
from ..system.hybrid import HybridSystem, Instant
from .data import Measured, StartLike
from .parameters import Block, Free, P

EVENT_REACH = 0.25  # relative to the time between observed events: the reach of event_matching.py


class Place(NamedTuple):
    """Free entries of one leaf: where they are in the vector, and the constants of their scale."""

    entries: np.ndarray
    unit: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Observed(NamedTuple):
    """One output: numbers of its save times, values, and one over their standard deviation."""

    rows: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    interval: np.ndarray  # length of the interval before each sample (0 for the first)


class Times(NamedTuple):
    """Observed times of one kind of event, and one over their standard deviation."""

    t: np.ndarray
    weight: np.ndarray
    alone: float  # the weight of predicted events that were not observed
    reach: float  # the most an event without a partner costs, in units of time


class Run(NamedTuple):
    """One experiment: everything that may differ between experiments without recompilation.

    Its arrays are NumPy arrays, and are traced inside a program.
    """

    p: Params
    start: Tree
    of_p: tuple[Place, ...]
    of_start: tuple[Place, ...]
    t0: float
    t1: float
    ts: np.ndarray
    outputs: dict[str, Observed]
    events: dict[str, Times]


class Shape(NamedTuple):
    """What is static about an experiment. Experiments of equal shape share a program."""

    p: _Frozen
    start: _Frozen
    of_p: tuple  # (leaf, picked entries, scale) of every free leaf
    of_start: tuple
    system: HybridSystem


def columns(tree: Tree, axes: int = 1) -> dict[str, Array]:
    """Every number of an output by name, along the saved times."""
    found = {}
    for name, leaf in named(tree, "y").items():
        inner = jax.ShapeDtypeStruct(jnp.shape(leaf)[axes:], float)
        for entry, index in zip(
            entries(name, np.zeros(inner.shape)), np.ndindex(*inner.shape), strict=True
        ):
            found[entry] = leaf[(..., *index)] if inner.shape else leaf
    return found


def arrays(tree: Tree) -> tuple[Tree, Tree]:
    """A pytree as its numbers (as arrays) and the rest."""
    is_number = lambda v: eqx.is_array_like(v) and not isinstance(v, str | bool)
    dynamic, static = eqx.partition(tree, is_number)
    return jax.tree.map(_wide, dynamic), static


def _wide(v: Number) -> Array:
    v = jnp.asarray(v)
    return v.astype(float) if jnp.issubdtype(v.dtype, jnp.floating) and v.dtype != float else v


class _Frozen:
    """A pytree of static values as a key: equal if structure and leaves are equal."""

    def __init__(self, tree: Tree):
        leaves, self.treedef = jax.tree.flatten(tree)
        self.tree = tree
        self.leaves = tuple(leaf if _hashable(leaf) else id(leaf) for leaf in leaves)

    def __hash__(self) -> int:
        return hash((self.treedef, self.leaves))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and (self.treedef, self.leaves) == (
            other.treedef, other.leaves,
        )  # fmt: skip


def _hashable(leaf: object) -> bool:
    try:
        hash(leaf)
    except TypeError:
        return False
    return True


def make_run(
    system: HybridSystem,
    free: Free,
    owner: int,
    p: Params,
    start: StartLike,
    t0: float,
    t1: float,
    measured: Mapping[str, Measured],
    events: Mapping[str, Measured],
    sd: Mapping[str, Any],
) -> tuple[Shape, Run]:
    """An experiment as arrays. `sd` are standard deviations by output and event.

    Outputs and events are sorted by name, the order in which compiled functions return them, so
    that residuals in one long vector can be told apart again."""
    p_arrays, p_static = arrays(p)
    given = start if isinstance(start, Instant) else None
    start_arrays, start_static = arrays(given)
    free_p, free_start = ([b for b in free.blocks if b.owner == k] for k in (P, owner))
    ts = np.unique(np.concatenate([m.t for m in measured.values()] or [np.zeros(0)]))
    outputs = {}
    for name, m in sorted(measured.items()):
        step = np.diff(m.t, prepend=m.t[:1])
        outputs[name] = Observed(np.searchsorted(ts, m.t), m.y, _weight(m, sd[name]), step)
    times = {}
    for name, m in sorted(events.items()):
        weight = _weight(m, sd[name])
        single = weight[0] if weight.size else 1.0 / np.float64(sd[name])
        gaps = np.diff(m.t, prepend=t0)
        gaps = gaps[gaps > 0]
        reach = EVENT_REACH * (np.median(gaps) if gaps.size else t1 - t0)
        times[name] = Times(m.t, weight, single, np.float64(reach))
    shape = Shape(
        _Frozen(p_static), _Frozen(start if given is None else start_static),
        tuple(b.kind for b in free_p), tuple(b.kind for b in free_start), system,
    )  # fmt: skip
    of_p, of_start = (tuple(map(_place, blocks)) for blocks in (free_p, free_start))
    ends = np.float64(t0), np.float64(t1)
    return shape, Run(p_arrays, start_arrays, of_p, of_start, *ends, ts, outputs, times)


def _place(b: Block) -> Place:
    return Place(np.arange(b.place.start, b.place.stop), b.unit, b.low, b.high)


def _weight(m: Measured, sd: float) -> np.ndarray:
    return np.broadcast_to(
        1.0 / np.asarray(sd if m.sd is None else m.sd, dtype=float), m.t.shape
    ).copy()


def pad(runs: Sequence[Run]) -> list[Run]:
    """Runs padded to equal numbers of save times and samples; the padding has no weight."""
    many = max(r.ts.size for r in runs)
    sizes = {name: max(r.outputs[name].y.size for r in runs) for name in runs[0].outputs}

    def longer(v: np.ndarray, n: int, value: float) -> np.ndarray:
        return np.concatenate([v, np.full(n - v.size, value, v.dtype)])

    def one(r: Run) -> Run:
        ts = longer(r.ts, many, r.ts[-1] if r.ts.size else r.t1)
        outputs = {
            name: Observed(*(longer(v, sizes[name], v.dtype.type(0)) for v in o))
            for name, o in r.outputs.items()
        }
        return r._replace(ts=ts, outputs=outputs)

    return [one(r) for r in runs]


def until(run: Run, t1: float) -> Run:
    """The same experiment up to an earlier end: later samples get no weight."""
    if t1 >= run.t1:
        return run
    inside = run.ts <= t1
    outputs = {
        name: o._replace(weight=np.where(inside[o.rows], o.weight, 0.0))
        for name, o in run.outputs.items()
    }
    events = {name: e._replace(t=np.minimum(e.t, t1)) for name, e in run.events.items()}
    return run._replace(
        t1=np.float64(t1), ts=np.minimum(run.ts, t1), outputs=outputs, events=events
    )
