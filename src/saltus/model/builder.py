"""From a user's system to a `Model`: every function is traced, every structure is checked.

Errors are raised here, before the first step: what was wrong, what was expected, what to write.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..base.captured_values import current
from ..base.leaves import Leaves, aval, split
from ..base.tracing import is_tracer, trace
from ..base.types import Array, Function, Params, T
from ..system.hybrid import DIRECTIONS, Event, HybridSystem, Instant, Ticks, TimeEvent, called
from ..system.inputs import Signal
from ..system.kinks import Kinks, find_kinks, uses_when
from ..system.resets import noting_solves
from ..system.reversal import one_way
from .constraint import check_active, check_count, constraint
from .invariants import invariant
from .jacobian_pattern import check_given, jacobian_pattern
from .model import Action, Fn, Model, Par
from .start_leaves import Parts
from .validation import (
    flow_leaves,
    guard_leaves,
    rate_leaves,
    reset_leaves,
    residual_leaves,
    time_leaf,
    truth_leaf,
)


class Built(NamedTuple):
    model: Model
    floats: list[Array]  # closed-over values that may carry derivatives
    others: list[Array]  # closed-over values that do not
    ticks: list[Ticks]  # the functions or numbers (period, offset) of each ticking event


MAX_MODELS = 16  # kept of one system, for different shapes of states and values that it reads
# Models live as long as the systems and the compiled programs that use them.
_models: weakref.WeakKeyDictionary[Model, weakref.ref[Model]] = weakref.WeakKeyDictionary()
_right: weakref.WeakSet[Model] = weakref.WeakSet()  # whose given sparsity was found to be right


class _Kept(dict):
    """Models that are kept with their system, but not copied or pickled with it."""

    def __reduce__(self) -> tuple:
        return _Kept, ()


class Tracer:
    """Traces the functions of one system for one signature, collecting what they close over."""

    def __init__(self, system: HybridSystem, shapes: tuple, parts: Parts):
        self.x, self.z, self.d, self.p, self.u_tree = shapes
        whole = jax.ShapeDtypeStruct((), jnp.int32)
        self.groups = [
            [aval(parts.t)],
            [aval(v) for v in parts.x],
            [aval(v) for v in parts.z],
            [aval(v) for v in parts.d],
            [aval(v) for v in parts.d_others],
            [whole] if system.modes else [],
            [_signal_aval(s) for s in parts.signals],
            [whole],
            [aval(v) for v in parts.p],
            [aval(v) for v in parts.p_others],
        ]
        self.ticking = [_named(e.name, ticks) for e in system.events if (ticks := _ticks(e))]
        self.first_tick = 2 + len(parts.p) + 2 * len(parts.signals)
        self.first_float = self.first_tick + 2 * len(self.ticking)
        self.first_other = len(parts.p_others)
        self.floats: list = []
        self.others: list = []

    @property
    def place_x(self) -> range:
        """Which flat arguments are the differential states."""
        return range(1, 1 + len(self.groups[1]))

    @property
    def place_z(self) -> range:
        """Which flat arguments are the algebraic states."""
        first = 1 + len(self.groups[1])
        return range(first, first + len(self.groups[2]))

    @property
    def avals(self) -> list:
        return [a for group in self.groups for a in group]

    def arguments(self, flat: Leaves) -> tuple[Instant, Params]:
        """Flat arguments as the user's (now, p)."""
        cut, k = [], 0
        for group in self.groups:
            cut.append(flat[k : k + len(group)])
            k += len(group)
        t, x, z, d, d_others, mode, u, member, p, p_others = cut
        now = Instant(
            t=t[0],
            x=self.x.join(x, ()),
            z=self.z.join(z, ()),
            d=self.d.join(d, d_others),
            u=None if self.u_tree is None else jax.tree.unflatten(self.u_tree, list(u)),
            member=member[0],
            mode=mode[0] if mode else None,
        )
        return now, self.p.join(p, p_others)

    def flat(self, fn: Function) -> Function:
        """`fn(now, p)` on flat arguments."""
        return lambda *flat: fn(*self.arguments(flat))

    def fn(self, fn: Callable) -> Fn:
        """`fn(now, p) -> leaves` as an `Fn`."""
        return self.flat_fn(self.flat(fn), self.avals)

    def flat_fn(self, fn: Callable, avals: list) -> Fn:
        traced, consts = trace(fn, avals)
        return Fn(traced, tuple(self._slot(v) for v in consts))

    def known(self, fns: list[Fn]) -> dict[int, Array]:
        """The closed-over values of some functions that are plain numbers, by their place."""
        slots = [slot for fn in fns for slot in fn.slots]
        return {
            k: self.others[j - self.first_other]
            for k, (kind, j) in enumerate(slots)
            if kind == "i" and not is_tracer(self.others[j - self.first_other])
        }

    def _slot(self, value: Array) -> tuple[str, int]:
        """The place of a closed-over value: with the parameters if it may carry derivatives."""
        moves = is_tracer(value) and jnp.issubdtype(value.dtype, jnp.floating)
        pool = self.floats if moves else self.others
        where = next((j for j, v in enumerate(pool) if v is value), None)
        if where is None:
            where = len(pool)
            pool.append(value)
        return ("f", self.first_float + where) if moves else ("i", self.first_other + where)


def _signal_aval(signal: Signal) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(signal.values.shape[1:], signal.values.dtype)


def _ticks(event: Event | TimeEvent) -> Ticks | None:
    """The ticks of an event; None for an event that has none."""
    ticks = event.next_time if isinstance(event, TimeEvent) else None
    return ticks if isinstance(ticks, Ticks) else None


def _named(name: str, ticks: Ticks) -> Ticks:
    """The ticks of an event, with its name in errors of their functions."""

    def own(word: str, fn: T) -> T | Function:
        owner = f'event "{name}": {word} of every'
        return (lambda now, p: called(owner, fn, now, p)) if callable(fn) else fn

    return Ticks(own("period", ticks.period), own("offset", ticks.offset))


def _told(event: Event | TimeEvent) -> bool:
    """Whether ticks may depend on parameters."""
    ticks = _ticks(event)
    if ticks is None:
        return False
    return any(callable(v) or is_tracer(v) for v in (ticks.period, ticks.offset))


def build(system: HybridSystem, shapes: tuple, parts: Parts) -> Built:
    """The model of a system for these shapes, after checks that need numbers."""
    built = _build(system, shapes, parts)
    given = system.sparsity is not None and not isinstance(system.sparsity, str)
    if given and built.model not in _right:
        checked = check_given(built.model, *_first_arguments(built, parts))
        _right.update([built.model] if checked else [])
    return built


def _first_arguments(built: Built, parts: Parts) -> tuple[Leaves, Par]:
    """The arguments of all model functions at the start, and what they close over."""
    values = [s.value(parts.t, s.segment(parts.t, False)) for s in parts.signals]
    mode = () if parts.mode is None else (parts.mode,)
    states = (parts.t, *parts.x, *parts.z, *parts.d, *parts.d_others, *mode)
    args = (*states, *values, jnp.zeros((), jnp.int32), *parts.p, *parts.p_others)
    signals = [v for s in parts.signals for v in (s.times, s.values)]
    ticks = [jnp.zeros(())] * (2 * len(built.ticks))
    theta = (parts.t, parts.t, *parts.p, *signals, *ticks, *built.floats, jnp.zeros(()))
    iota = (*parts.p_others, *map(jnp.asarray, built.others))
    return args, Par(theta, iota, jnp.zeros((), bool))


def _build(system: HybridSystem, shapes: tuple, parts: Parts) -> Built:
    """The model of a system for these shapes, from the cache if it was built before.

    It is built again when something that the system's functions read has changed.
    """
    leaves = tuple((a.shape, a.dtype) for a in map(aval, jax.tree.leaves(parts)))
    per_system = vars(system).setdefault("_built", _Kept())
    reads = current(system)
    signature = (shapes, leaves, reads.key)
    if signature not in per_system:
        with reads.tracing():
            built = _built(system, shapes, parts)
        if any(map(is_tracer, (*built.floats, *built.others))):
            return built
        if len(per_system) >= MAX_MODELS:
            del per_system[next(iter(per_system))]
        per_system[signature] = built
    return per_system[signature]


def _built(system: HybridSystem, shapes: tuple, parts: Parts) -> Built:
    tracer = Tracer(system, shapes, parts)
    x, z, d, p, u_tree = shapes
    flow, rows, kinks, found = _flow(system, tracer, parts)
    output = None if system.output is None else _output(tracer, system.output)
    actions = _actions(system, tracer, parts, kinks)
    equations = None
    if rows is not None:
        equations = constraint(system, tracer, parts, actions, rows, found, kinks is not None)
    pattern = jacobian_pattern(system, tracer, parts, flow, rows, kinks is not None)
    kept = None if system.invariant is None else invariant(system, tracer, parts.x)
    slot = 2 + len(parts.p)
    signals = tuple((type(s), slot + 2 * j) for j, s in enumerate(parts.signals))
    model = Model(
        x=x, q=found["shape_q"], z=z, d=d, p=p, modes=system.modes, signals=signals, u_tree=u_tree,
        kinks=kinks.size if kinks else 0, ticks=len(tracer.ticking),
        first_tick=tracer.first_tick, n_p=(len(parts.p), len(parts.p_others)),
        n_theta=tracer.first_float + len(tracer.floats) + 1,
        n_iota=tracer.first_other + len(tracer.others), flow_fn=flow, output_fn=output,
        actions=actions, dtypes=(*(v.dtype for v in parts.x), *found["dtypes"]),
        constraint=equations, pattern=pattern, invariant=kept, one_way=one_way(system),
    )  # fmt: skip
    model = _models.setdefault(model, weakref.ref(model))() or model
    return Built(model, tracer.floats, tracer.others, tracer.ticking)


def _flow(
    system: HybridSystem, tracer: Tracer, parts: Parts
) -> tuple[Fn, Fn | None, Kinks | None, dict]:
    """Flow and rate as one function, the constraint, and what `when` marked in them."""
    found: dict = {"shape_q": split(None)[0], "dtypes": []}

    def both(now: Instant, p: Params) -> list[Array]:
        moving = flow_leaves(tracer.x, parts.x, called("flow", system.flow, now, p), now.z)
        if system.rate is not None:
            moving += rate_leaves(called("rate", system.rate, now, p), found)
        return moving

    write = "constraint=lambda now, p: {'kirchhoff': ...}"
    residuals = residual_leaves("constraint", system.constraint, write, found)
    rows, kinks = None, None
    if system.constraint is not None:
        rows = tracer.fn(residuals)
        check_count(rows, found["shape"], tracer.z, parts.z)
    fn = tracer.fn(both)
    if uses_when(fn.traced.jaxpr) or (rows is not None and uses_when(rows.traced.jaxpr)):
        n = len(fn.traced.jaxpr.outvars)

        def everything(now: Instant, p: Params) -> list[Array]:
            return both(now, p) + (residuals(now, p) if system.constraint is not None else [])

        kinks = find_kinks(tracer.flat(everything), tracer.avals)
        read = kinks.flow
        avals = [jax.ShapeDtypeStruct((kinks.size,), jnp.int32), *tracer.avals]
        fn = tracer.flat_fn(lambda *flat: read(*flat)[:n], avals)
        if rows is not None:
            rows = tracer.flat_fn(lambda *flat: read(*flat)[n:], avals)
    return fn, rows, kinks, found


def _output(tracer: Tracer, output: Callable) -> Fn:
    found: dict = {}

    def flat(now: Instant, p: Params) -> list[Array]:
        leaves, found["tree"] = jax.tree.flatten(called("output", output, now, p))
        return [jnp.asarray(v) for v in leaves]

    fn = tracer.fn(flat)
    return Fn(fn.traced, fn.slots, found["tree"])


def _actions(
    system: HybridSystem, tracer: Tracer, parts: Parts, kinks: Kinks | None
) -> tuple[Action, ...]:
    """Events in order of declaration, then kinks, breakpoints of inputs, and the stop."""
    actions: list[Action] = []
    for event in system.events:
        owner = f'event "{event.name}"'
        reset, solves = None, []
        if event.reset is not None:
            shapes = (tracer.x, tracer.z, tracer.d)
            with noting_solves() as solves:
                reset = tracer.fn(reset_leaves(owner, event.reset, shapes, parts, system.modes))
        kind = "guard" if isinstance(event, Event) else "time" if _ticks(event) is None else "ticks"
        new = Action(
            kind, event.name, terminal=event.terminal, reset=reset, logged=True,
            index=sum(a.kind == kind for a in actions), implicit=bool(solves),
            moving=_told(event),
        )  # fmt: skip
        if isinstance(event, Event):
            new = _guarded(owner, tracer, event, new)
            if event.zeno is not None:
                actions.append(dataclasses.replace(new, zeno=True))
                new = _zeno(owner, tracer, event, parts, system.modes)
        elif not isinstance(event.next_time, Ticks):
            new = dataclasses.replace(new, next_time=tracer.fn(time_leaf(owner, event.next_time)))
        actions.append(new)
    if kinks is not None:
        guard = tracer.flat_fn(lambda *flat: [kinks.guard(*flat)], tracer.avals)
        place = sum(a.kind == "guard" for a in actions)
        actions.append(
            Action("guard", "kink", size=kinks.size, index=place, guard=guard, kink=True)
        )
    for j in range(len(parts.signals)):
        actions.append(Action("signal", f"input {j}", index=j))
    return (*actions, Action("stop", "end"))


def _zeno(owner: str, tracer: Tracer, event: Event, parts: Parts, modes: tuple) -> Action:
    """What happens where the events of a guard accumulate."""
    rule: Any = event.zeno
    if isinstance(rule, str):
        mode = rule
        rule = lambda now, p: now.replace(mode=mode)
    shapes = (tracer.x, tracer.z, tracer.d)
    reset = tracer.fn(reset_leaves(f"{owner}, zeno", rule, shapes, parts, modes))
    return Action("zeno", f"{event.name}: zeno", reset=reset, logged=True)


def _guarded(owner: str, tracer: Tracer, event: Event, new: Action) -> Action:
    found: dict = {}
    guard = tracer.fn(guard_leaves(owner, event.guard, found))
    active = None if event.active is None else tracer.fn(truth_leaf(owner, event.active))
    if active is not None and not getattr(event.active, "changes_at_events", False):
        check_active(owner, active, tracer)
    rule = event.possible
    possible = None if rule is None else tracer.fn(truth_leaf(owner, rule))
    if found["empty"]:
        active = tracer.fn(lambda now, p: [jnp.zeros((), bool)])
    return dataclasses.replace(
        new, direction=DIRECTIONS[event.direction], level=event.when == "level",
        size=found["size"], guard=guard, active=active, contact=event.when == "contact",
        possible=possible,
    )  # fmt: skip
