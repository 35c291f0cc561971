"""The constraint of a system, traced and checked: how many equations, of which index.

What can be known before the first step is reported before it: the wrong number of equations, an
index that the structure contradicts, equations that cannot determine z.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval as pe

from ..base.leaves import Leaves, Shape
from ..base.types import Array, Function, Jaxpr, Params
from ..system.hybrid import HybridSystem, Instant
from .model import Action, Constraint, Fn

if TYPE_CHECKING:
    from .builder import Tracer
    from .start_leaves import Parts


def constraint(
    system: HybridSystem,
    tracer: Tracer,
    parts: Parts,
    actions: tuple[Action, ...],
    fn: Fn,
    found: dict,
    flagged: bool,
) -> Constraint:
    """The equations of a system; `flagged` if they read the flags of `when` as first argument."""
    rows = tuple(v.shape for v in fn.traced.outputs)
    names = tuple(n or "constraint" for n in found["shape"].names())
    shapes = tuple(jnp.shape(v) for v in parts.z)
    z = [fn.traced.n_consts + flagged + k for k in tracer.place_z]
    modes = _contents(system, tracer, fn, flagged, len(rows))
    _check_contents(names, modes)
    uses = [any(own[j] and own[j].z for own in modes.values()) for j in range(len(rows))]
    pinned = None if system.pinned is None else tracer.fn(_pins(system, found["shape"]))
    index = _index(system, found["shape"], names, uses)
    if max(index) == 1:
        _structure(tracer, fn, z, names, rows, shapes)
    return Constraint(
        fn=fn, equations=names, index=index, affine=max(index) == 1 and _affine(tracer, fn, z),
        shapes=shapes, rows=rows, pinned=pinned, seen=tuple(_looks(a, tracer) for a in actions
        if a.kind == "guard"),
    )  # fmt: skip


class _Content(NamedTuple):
    """Whether an equation contains differential states, and whether it contains algebraic ones."""

    x: bool
    z: bool


def _contents(system: HybridSystem, tracer: Tracer, fn: Fn, flagged: bool, count: int) -> dict:
    """What the equations contain in each mode ("" if there are no modes); None for pins."""

    def of(fn: Fn, shift: int) -> list:
        first = fn.traced.n_consts + shift
        places = (tracer.place_x, tracer.place_z)
        used = [_inputs(fn, j) for j in range(count)]
        return [_Content(*(any(u[first + k] for k in ks) for ks in places)) for u in used]

    rules = getattr(system.pinned, "rules", None)
    if rules is None:
        return {"": of(fn, int(flagged))}
    found = {}
    for mode, rule in rules.items():
        pins: list[bool] = []

        def flat(now: Instant, p: Params, rule: Function = rule, pins: list = pins) -> list[Array]:
            values, pinned = rule(now, p)
            pins[:] = [bool(np.all(v)) for v in jax.tree.leaves(pinned)]
            return [jnp.asarray(v, jnp.float64) for v in jax.tree.leaves(values)]

        own = of(tracer.fn(flat), 0)
        found[mode] = [None if pin else c for pin, c in zip(pins, own, strict=True)]
    return found


def _check_contents(names: tuple, modes: dict) -> None:
    """Check that equations contain states, and have the same index in all modes."""
    for j, name in enumerate(names):
        own = {mode: contents[j] for mode, contents in modes.items() if contents[j] is not None}
        for mode, content in own.items():
            if not (content.x or content.z):
                place = f'mode "{mode}": ' if mode else ""
                raise ValueError(
                    f'{place}constraint: equation "{name}" contains neither x nor z, so it cannot '
                    "determine an algebraic state. Write an equation between states, say "
                    'now.z["i"] - p["k"] * now.x["v"].'
                )
        second = next((mode for mode, c in own.items() if not c.z), None)
        first = next((mode for mode, c in own.items() if c.z), None)
        if first is not None and second is not None:
            raise ValueError(
                f'constraint: equation "{name}" has index 2 in mode "{second}" and index 1 in mode '
                f'"{first}". Leave it out of "{first}" (its algebraic state is then pinned to 0) '
                "and put the value into the flow there."
            )


def check_count(fn: Fn, shape: Shape, z: Shape, leaves: Leaves) -> None:
    """Check that there are as many equations as algebraic states."""
    names = [n or "constraint" for n in shape.names()]
    have = sum(_size(v.shape) for v in fn.traced.outputs)
    want = sum(_size(jnp.shape(v)) for v in leaves)
    if have != want:
        raise ValueError(
            f"constraint returned {have} equations ({', '.join(names)}) for {want} algebraic "
            f"states ({', '.join(v or 'z' for v in z.names())}). Return one equation for each."
        )


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


def _inputs(fn: Fn, out: int) -> list[bool]:
    """On which inputs one output of a traced function depends."""
    jaxpr = _with_consts(fn.traced.jaxpr)
    return pe.dce_jaxpr(jaxpr, [k == out for k in range(len(jaxpr.outvars))])[1]


def _used(fn: Fn, out: int, places: list[int]) -> bool:
    """Whether one output of a traced function depends on any of some inputs."""
    used = _inputs(fn, out)
    return any(used[k] for k in places)


def _with_consts(jaxpr: Jaxpr) -> Jaxpr:
    return jaxpr.replace(
        constvars=[],
        invars=[*jaxpr.constvars, *jaxpr.invars],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )


def _pins(system: HybridSystem, shape: Shape) -> Function:
    def flat(now: Instant, p: Params) -> list[Array]:
        flags = jax.tree.leaves(system.pinned(now, p))  # type: ignore[misc]
        if len(flags) != len(shape.kinds):
            raise ValueError("pinned: expected one truth value for each equation.")
        return [jnp.asarray(v, bool) for v in flags]

    return flat


def _index(system: HybridSystem, shape: Shape, names: tuple, uses: list[bool]) -> tuple[int, ...]:
    """The index of each equation, declared or detected, checked against the structure."""
    given = system.index
    if given is None:
        return tuple(1 if u else 2 for u in uses)
    leaves, treedef = jax.tree.flatten(given)
    if len(leaves) == 1:
        leaves = leaves * len(names)
    elif treedef != shape.treedef:
        raise ValueError(
            f"HybridSystem: index is {given!r}, expected 1, 2, or one of them for each equation: "
            f"{', '.join(names)}."
        )
    for name, k, use in zip(names, leaves, uses, strict=True):
        if k not in (1, 2):
            raise ValueError(
                f'HybridSystem: the index of equation "{name}" is {k!r}, expected 1 or 2. Systems '
                "of higher index must be reduced first, say by differentiating the constraint."
            )
        if k == 1 and not use:
            raise ValueError(
                f'HybridSystem: equation "{name}" is declared to have index 1 but does not depend '
                "on z, so it cannot be solved for it. Declare index=2, or leave index out."
            )
        if k == 2 and use:
            raise ValueError(
                f'HybridSystem: equation "{name}" is declared to have index 2 but depends on z. '
                "Hessenberg form needs g free of z: declare index=1, or leave index out."
            )
    return tuple(int(k) for k in leaves)


def _structure(
    tracer: Tracer, fn: Fn, z: list[int], names: tuple, rows: tuple, shapes: tuple
) -> None:
    """Check that equations of index 1 can be assigned different variables that they contain."""
    pattern = np.array([[_used(fn, i, [k]) for k in z] for i in range(len(rows))])
    if not all(_size(s) == 1 for s in (*rows, *shapes)):
        # leaves that are arrays: only whole rows and columns without any entry can be named
        empty = np.flatnonzero(~pattern.any(axis=0))
        if not len(empty):
            return
    else:
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import maximum_bipartite_matching

        match = maximum_bipartite_matching(csr_matrix(pattern), perm_type="column")
        if (match >= 0).all():
            return
        reached = {int(v) for v in match if v >= 0}
        empty = np.array([k for k in range(pattern.shape[1]) if k not in reached])
    name = tracer.z.names()[int(empty[0])] or "z"
    loose = [n for n, row in zip(names, pattern, strict=True) if not row.any()]
    which = f' and equation "{loose[0]}" contains none of z' if loose else ""
    raise ValueError(
        f'constraint: the equations cannot determine "{name}" whatever their numbers{which} '
        "(structurally singular g_z). Add an equation that contains it, or, for equations without "
        "z, declare index=2."
    )


def _affine(tracer: Tracer, fn: Fn, places: list[int]) -> bool:
    """Whether the equations are linear in z: their derivatives by z do not depend on z."""
    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in fn.traced.inputs]

    def slope(*args: Array) -> list[Array]:
        tangents = args[len(avals) :]

        def of_z(*z: Array) -> list[Array]:
            full = list(args[: len(avals)])
            for k, v in zip(places, z, strict=True):
                full[k] = v
            return fn.traced.call(*full)

        return jax.jvp(of_z, tuple(args[k] for k in places), tuple(tangents))[1]

    closed = jax.make_jaxpr(slope)(*avals, *[avals[k] for k in places])
    used = pe.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))[1]
    return not any(used[k] for k in places)


def _looks(action: Action, tracer: Tracer) -> bool:
    """Whether a guard depends on z."""
    fn = action.guard
    assert fn is not None
    return _used(fn, 0, [fn.traced.n_consts + k for k in tracer.place_z])


def check_active(owner: str, fn: Fn, tracer: Tracer) -> None:
    """Check that `active`, which is evaluated at events only, does not change between them."""
    moving = {"t": [0], "x": tracer.place_x, "z": tracer.place_z}
    for name, places in moving.items():
        if _used(fn, 0, [fn.traced.n_consts + k for k in places]):
            raise ValueError(
                f"{owner}: active depends on now.{name}, which changes between events, but a guard "
                "is switched on or off at events only. Let another event change d (or the mode), "
                "and read that: active=lambda now, p: now.d == 1."
            )
