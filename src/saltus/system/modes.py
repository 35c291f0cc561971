"""Named modes with exits, written as one `HybridSystem`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ..base.foreign_names import answered
from ..base.foreign_parts import EXIT, MODE, SYSTEM, constructs
from ..base.text import picture
from ..base.types import Array, Function, Number, Params, Tree, Whole
from .hybrid import Direction, Event, HybridSystem, Instant, TimeEvent, called, check_function


@constructs(EXIT)
@dataclasses.dataclass(frozen=True, eq=False)
class Exit:
    """Leave a mode for the mode `to` when `guard(now, p)` crosses zero.

    `direction` is that of the crossing, and `reset(now, p)` may change states, as in `Event`.
    `name` is the event's name in the log, by default "mode -> to". With `when="level"`, an exit
    whose guard is already beyond zero when the mode is entered is taken at once; with "edge" it
    waits for a crossing. Backward in time, exits are undone; one with a reset needs its inverse for
    that, `undo(now, p)`.
    """

    guard: Function
    to: str
    reset: Function | None = None
    direction: Direction = "falling"
    name: str | None = None
    when: Literal["edge", "level"] = "level"
    undo: Function | None = None


@constructs(MODE)
@dataclasses.dataclass(frozen=True, eq=False)
class Mode:
    """A mode of an `automaton`.

    `flow(now, p)` returns x'; entries of a dict that it leaves out do not change. `exits` are the
    ways to leave the mode, and `rate(now, p)` returns its integrands. `constraint(now, p)` returns
    the residuals of equations `0 = g`, one for each entry of z and under its name; an entry of a
    dict that it leaves out is pinned, `0 = z_i`. An equation has the same index in all modes that
    have it.
    """

    flow: Function
    constraint: Function | None = None
    exits: Sequence[Exit] = ()
    rate: Function | None = None


@functools.partial(answered, table=SYSTEM)
def automaton(
    modes: Mapping[str, Mode],
    *, events: Sequence[Event | TimeEvent] = (), rate: Function | None = None,
    output: Function | None = None, inputs: Function | Tree = None,
    units: dict[str, str] | None = None, index: int | Tree = None,
) -> HybridSystem:  # fmt: skip
    """A system of named modes. Start it with `Instant(..., mode="name")`.

    `modes` maps names to `Mode`s. Model functions read the current mode as the integer `now.mode`,
    counted from 0. `events` hold in all modes, and so does `rate`, which excludes a rate in any
    mode. `output`, `inputs`, `units` and `index` are those of `HybridSystem`.
    """
    names = tuple(modes)
    _check(modes)
    exits = [_exit(names, name, e) for name, mode in modes.items() for e in mode.exits]
    taken: dict[str, int] = {}
    for k, event in enumerate(exits):
        taken[event.name] = taken.get(event.name, 0) + 1
        if taken[event.name] > 1:
            exits[k] = dataclasses.replace(event, name=f"{event.name} ({taken[event.name]})")
    if any(m.rate is not None for m in modes.values()):
        if rate is not None:
            raise ValueError("automaton: give rate= for all modes or in the modes, not both.")
        rate = _rates([m.rate for m in modes.values()])
    rules = {name: m.constraint for name, m in modes.items()}
    constrained = any(rule is not None for rule in rules.values())
    return HybridSystem(
        flow=_flows({name: m.flow for name, m in modes.items()}),
        constraint=_constraints(rules) if constrained else None,
        pinned=_pins(rules) if constrained else None,
        index=index,
        events=(*exits, *events),
        rate=rate,
        output=output,
        inputs=inputs,
        units=units,
        modes=names,
    )


def _check(modes: Mapping[str, Mode]) -> None:
    if not modes:
        raise ValueError('automaton: no modes. Write automaton({"on": Mode(flow=...), ...}).')
    for name, mode in modes.items():
        if not isinstance(mode, Mode):
            raise TypeError(
                f'automaton: mode "{name}" is {mode!r}, expected a Mode. '
                f'Write {{"{name}": Mode(flow=..., exits=[Exit(guard, to="...")])}}.'
            )
        owner = f'automaton: mode "{name}"'
        write = "Mode(flow, constraint=..., exits=[...])."
        check_function(owner, "flow", mode.flow, gives="x'", write=write)
        check_function(owner, "constraint", mode.constraint, True, "equations", write)
        check_function(owner, "rate", mode.rate, True)
        if not isinstance(mode.exits, Sequence):
            raise TypeError(
                f'automaton: the exits of mode "{name}" are {mode.exits!r}, expected a list. '
                'Write exits=[Exit(guard=..., to="...")].'
            )
        for e in mode.exits:
            if not isinstance(e, Exit):
                raise TypeError(
                    f'automaton: an exit of mode "{name}" is {e!r}, expected an Exit. '
                    'Write exits=[Exit(guard=..., to="...")].'
                )
            for field, optional in (("guard", False), ("reset", True), ("undo", True)):
                check_function(f'{owner}: exit to "{e.to}"', field, getattr(e, field), optional)
            if e.to not in modes:
                raise ValueError(
                    f'automaton: mode "{name}" exits to "{e.to}", which is not one of '
                    f'{list(modes)}. Write Exit(guard, to="{next(iter(modes))}").'
                )


def gate(now: Instant, p: Params, k: int) -> tuple[Instant, Params]:
    """The same values, but without derivatives where mode `k` is not the current one.

    A mode's flow may be singular in other modes; this keeps 0 * inf out of reverse mode.
    """
    here = now.mode == k

    def hold(v: Tree) -> Tree:
        dtype = getattr(v, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            return v
        return jnp.where(here, v, jax.lax.stop_gradient(v))

    return jax.tree.map(hold, (now, p))


def _flows(flows: dict[str, Callable]) -> Callable:
    def flow(now: Instant, p: Params) -> Tree:
        values = []
        for k, (name, fn) in enumerate(flows.items()):
            value = called(f'mode "{name}": flow', fn, *gate(now, p, k))
            value = complete(now.x, value)
            want, got = jax.tree.structure(now.x), jax.tree.structure(value)
            shapes = zip(jax.tree.leaves(now.x), jax.tree.leaves(value), strict=False)
            if got != want or any(jnp.shape(v) not in ((), jnp.shape(x)) for x, v in shapes):
                raise ValueError(
                    f'mode "{name}": the flow returned {picture(value)}, but x is '
                    f"{picture(now.x)}. Return x' with the fields of x; entries of a dict that "
                    "stand still may be left out."
                )
            values.append(value)
        return _pick(now.mode, values)

    return flow


def complete(x: Tree, dx: Tree) -> Tree:
    """The flow with zeros for the states that a mode does not mention."""
    if isinstance(x, dict) and isinstance(dx, dict) and set(dx) <= set(x):
        return {k: dx[k] if k in dx else jax.tree.map(jnp.zeros_like, v) for k, v in x.items()}
    return dx


def _equations(name: str, rule: Function | None, now: Instant, p: Params) -> Tree:
    return None if rule is None else called(f'mode "{name}": constraint', rule, now, p)


def _constraints(rules: dict[str, Callable | None]) -> Callable:
    """One constraint for all modes: each mode's own equations, and `0 = z_i` for the rest."""

    def constraint(now: Instant, p: Params) -> Tree:
        values = []
        for k, (name, rule) in enumerate(rules.items()):
            value = _equations(name, rule, *gate(now, p, k))
            values.append(_pinned(name, now.z, value, now.z)[0])
        return _pick(now.mode, values)

    return constraint


def _pins(rules: dict[str, Callable | None]) -> Callable:
    """Which equations are `0 = z_i` in the current mode.

    Its attribute `rules` has, for each mode, the equations without the pins, and which are pins.
    """

    def pinned(now: Instant, p: Params) -> Tree:
        values = []
        for name, rule in rules.items():
            value = jax.eval_shape(lambda name=name, rule=rule: _equations(name, rule, now, p))
            values.append(_pinned(name, now.z, value, now.z)[1])
        return _pick(now.mode, values)

    def own(name: str, rule: Function | None) -> Callable:
        def equations(now: Instant, p: Params) -> tuple[Any, Any]:
            nothing = jax.tree.map(jnp.zeros_like, now.z)
            return _pinned(name, now.z, _equations(name, rule, now, p), nothing)

        return equations

    pinned.rules = {name: own(name, rule) for name, rule in rules.items()}  # type: ignore[attr-defined]
    return pinned


def _pinned(name: str, z: Tree, value: Tree, rest: Tree) -> tuple[Any, Any]:
    """A mode's equations, completed by `rest` (the pins), and which of them are pins."""
    if not jax.tree.leaves(z):
        raise ValueError(
            f'mode "{name}": the modes have constraints, but the start has no z. Give a guess of '
            "the algebraic states: Instant(..., z={...})."
        )
    if value is None:
        return rest, jax.tree.map(lambda v: np.ones(jnp.shape(v), bool), z)
    pins = jax.tree.map(lambda v: np.zeros(jnp.shape(v), bool), z)
    if isinstance(z, dict) and isinstance(value, dict):
        unknown = sorted(set(value) - set(z))
        if unknown:
            raise ValueError(
                f'mode "{name}": the constraint returned an equation "{unknown[0]}", but z has '
                f"{picture(z)}. Equations have the names of the entries of z: one for each that "
                "the mode determines; the others are pinned to zero."
            )
        for k in set(z) - set(value):
            pins[k] = jax.tree.map(lambda v: np.ones(jnp.shape(v), bool), z[k])
        value = {k: value[k] if k in value else rest[k] for k in z}
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (z, value)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f'mode "{name}": the constraint returned {picture(value)}, but z is {picture(z)}. '
            "Return equations with the fields of z; entries of a dict that the mode does not "
            "determine may be left out, and are pinned to zero."
        )
    return value, pins


def _rates(rates: list[Callable | None]) -> Callable:
    def rate(now: Instant, p: Params) -> Tree:
        values = [
            None if fn is None else called("rate", fn, *gate(now, p, k))
            for k, fn in enumerate(rates)
        ]
        like = next(v for v in values if v is not None)
        zero = jax.tree.map(jnp.zeros_like, like)
        return _pick(now.mode, [zero if v is None else v for v in values])

    return rate


def _pick(mode: Whole, values: list) -> Tree:
    structures = {jax.tree.structure(v) for v in values}
    if len(structures) > 1:
        shown = "; ".join(str(s) for s in structures)
        raise ValueError(
            f"automaton: the rates of the modes have different structures: {shown}. Return the "
            "same fields in every mode."
        )

    def one(*leaves: Number) -> Array:
        out = jnp.asarray(leaves[-1])
        for k in range(len(leaves) - 2, -1, -1):
            out = jnp.where(mode == k, leaves[k], out)
        return out

    return jax.tree.map(one, *values)


def _exit(names: tuple[str, ...], name: str, e: Exit) -> Event:
    k, target = names.index(name), names.index(e.to)

    def guard(now: Instant, p: Params) -> Array:
        return e.guard(*gate(now, p, k))

    def reset(now: Instant, p: Params) -> Instant:
        after = now if e.reset is None else e.reset(now, p)
        return after.replace(mode=target) if isinstance(after, Instant) else after

    def undo(now: Instant, p: Params) -> Instant:
        before = now if e.undo is None else e.undo(now, p)
        return before.replace(mode=k) if isinstance(before, Instant) else before

    return Event(
        name=e.name or f"{name} -> {e.to}",
        guard=guard,
        reset=reset,
        direction=e.direction,
        when=e.when,
        active=lambda now, p: now.mode == k,
        undo=undo if e.reset is None or e.undo is not None else None,
        came=lambda now, p: now.mode == target,
    )
