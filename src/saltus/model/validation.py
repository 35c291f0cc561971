"""Checks, before the first step, of what model functions return, leaf by leaf.

Each message says what was wrong, what was expected, and what to write.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ..base.leaves import Leaves, Shape, split
from ..base.names import ENTRY, UnknownName, last_name, leaf_names, unknown, whole_name
from ..base.text import picture
from ..base.types import Array, Function, Params, Tree, Treedef, Whole
from ..system.hybrid import HybridSystem, Instant, called
from .model import Model

if TYPE_CHECKING:
    from .start_leaves import Parts


def check_algebraic(system: HybridSystem, start: Instant, z: Shape) -> None:
    """Check that a start has z if there is a constraint, and dx only in fully implicit systems."""
    if start.dx is not None:
        raise ValueError(
            "solve: the start has dx, which only systems made by saltus.fully_implicit take, as a "
            "guess of x'. Leave dx out, or write fully_implicit(lambda now, p: now.dx - ...)."
        )
    if system.constraint is None and start.z is not None:
        raise ValueError(
            "solve: the start has algebraic states z, but the system has no constraint. Write "
            "HybridSystem(flow=..., constraint=lambda now, p: ...), or leave z out."
        )
    if system.constraint is not None and (z.statics or "k" in z.kinds or not z.kinds):
        raise ValueError(
            f"solve: the system has a constraint, but the start's z is {start.z!r}, expected real "
            "numbers: the guess from which z is solved. Write Instant(t=0.0, x=..., z=...)."
        )


def flow_leaves(x: Shape, leaves: Leaves, value: Tree, z: Tree = None) -> list[Array]:
    """The flow's value leaf by leaf, checked against the state."""
    advice = "Return x' with the same fields as x."
    if jax.tree.leaves(z):
        advice += f" (It may read z, which is {picture(z)}: its shape is that of the start's z.)"
    return _like("flow", "x'", x, leaves, value, advice)


def _like(
    owner: str, what: str, shape: Shape, leaves: Leaves, value: Tree, advice: str
) -> list[Array]:
    flat, treedef = jax.tree.flatten(value)
    if treedef != shape.treedef:
        if isinstance(value, list | tuple) and len(leaves) == 1 and jnp.ndim(leaves[0]):
            advice = f"x is one array: write jnp.stack([...]) around the entries. {advice}"
        raise ValueError(
            f"{owner} returned {what} with structure {picture(value)}, but "
            f"{'z' if what == 'z' else 'the state'} is {picture(shape.join(leaves, ()))}. {advice}"
        )
    out = []
    for name, new, old in zip(shape.names(), flat, leaves, strict=True):
        new = jnp.asarray(new)
        if new.shape != jnp.shape(old):
            raise ValueError(
                f"{owner} returned {what} of shape {new.shape} for "
                f"{name or ('z' if what == 'z' else 'the state')}, "
                f"expected {jnp.shape(old)}. {advice}"
            )
        if jnp.issubdtype(new.dtype, jnp.complexfloating):
            raise TypeError(f"{owner} returned a complex number for {name}; states are real.")
        out.append(new.astype(jnp.result_type(old)))
    return out


def rate_leaves(value: Tree, found: dict) -> list[Array]:
    """The integrands leaf by leaf; their shape is written to `found`."""
    shape, floats, others = split(value, floats_only=True)
    if others or shape.statics or not floats:
        raise TypeError(
            f"rate returned {picture(value)}, expected floats (any pytree of them). "
            "Write rate=lambda now, p: now.x['h'] ** 2."
        )
    found["shape_q"], found["dtypes"] = shape, [v.dtype for v in floats]
    return list(floats)


def guard_leaves(owner: str, guard: Function, found: dict) -> Function:
    """A guard as one scalar or vector; the number of members is written to `found`."""

    def flat(now: Instant, p: Params) -> list[Array]:
        value = called(f"{owner}: guard", guard, now, p)
        try:
            value = jnp.asarray(value)
        except (TypeError, ValueError):
            raise TypeError(
                f"{owner}: guard returned {picture(value)}, expected a number that crosses zero, "
                "or an array of them (a family of events)."
            ) from None
        if jnp.issubdtype(value.dtype, jnp.bool_):
            raise TypeError(
                f"{owner}: guard returned a truth value, expected a number that crosses zero. "
                'Write guard=lambda now, p: now.x["h"] - p["level"] instead of a comparison.'
            )
        found["empty"] = value.size == 0
        if found["empty"]:
            value = jnp.ones((1,))  # a family without members: one that is never active
        found["size"] = None if value.ndim == 0 else value.size
        return [value.astype(jnp.float64).reshape(() if value.ndim == 0 else (-1,))]

    return flat


def truth_leaf(owner: str, active: Function) -> Function:
    def flat(now: Instant, p: Params) -> list[Array]:
        value = jnp.asarray(called(f"{owner}: active", active, now, p))
        if value.dtype != bool or value.shape:
            raise TypeError(
                f"{owner}: active returned {value.dtype} of shape {value.shape}, expected one "
                "bool. Write active=lambda now, p: now.d == 1."
            )
        return [value]

    return flat


def time_leaf(owner: str, next_time: Function) -> Function:
    def flat(now: Instant, p: Params) -> list[Array]:
        value = called(f"{owner}: next_time", next_time, now, p)
        value = jnp.asarray(value, dtype=jnp.float64)
        if value.shape:
            raise ValueError(f"{owner}: next_time has shape {value.shape}, expected a number.")
        return [value]

    return flat


def reset_leaves(
    owner: str, reset: Function, shapes: tuple, parts: Parts, modes: tuple[str, ...]
) -> Function:
    x_shape, z_shape, d_shape = shapes
    advice = "Return now.replace({}=...) with the same fields."

    def flat(now: Instant, p: Params) -> list[Array]:
        after = called(f"{owner}: reset", reset, now, p)
        if not isinstance(after, Instant):
            raise TypeError(
                f"{owner}: reset returned {picture(after)}, expected an Instant. "
                "Write reset=lambda now, p: now.replace(x=...)."
            )
        if after.t is not now.t:
            raise ValueError(
                f"{owner}: reset changed t, but time does not jump. Change x, d or the mode."
            )
        if not modes and after.mode is not None:
            raise ValueError(
                f"{owner}: reset went to mode {after.mode!r}, but this system has no modes. Build "
                "it with saltus.automaton({...}), or keep an integer in d."
            )
        x = _like(f"{owner}: reset", "x", x_shape, parts.x, after.x, advice.format("x"))
        z = _like(f"{owner}: reset", "z", z_shape, parts.z, after.z, advice.format("z"))
        new_shape, floats, others = split(after.d)
        if new_shape.treedef != d_shape.treedef:
            raise ValueError(
                f"{owner}: reset returned d with structure {picture(after.d)}, but d is "
                f"{picture(now.d)}. Return now.replace(d=...) with the same fields."
            )
        floats, others = _discrete(owner, d_shape, after.d, parts)
        mode = [jnp.asarray(_mode_index(owner, after.mode, modes), jnp.int32)] if modes else []
        return [*x, *z, *floats, *others, *mode]

    return flat


def _discrete(owner: str, shape: Shape, d: Tree, parts: Parts) -> tuple[list[Array], list[Array]]:
    """The leaves of a new discrete state, each of the kind and shape that it had before."""
    olds_f, olds_o = iter(parts.d), iter(parts.d_others)
    floats, others = [], []
    for kind, leaf in zip(shape.kinds, jax.tree.leaves(d), strict=True):
        if kind == "s":
            continue
        old = next(olds_f if kind == "f" else olds_o)
        new = jax.random.key_data(leaf) if kind == "k" else jnp.asarray(leaf)
        if new.shape != jnp.shape(old):
            raise ValueError(
                f"{owner}: reset returned an entry of d with shape {new.shape}, expected "
                f"{jnp.shape(old)}."
            )
        if kind == "i" and jnp.issubdtype(new.dtype, jnp.floating):
            raise TypeError(
                f"{owner}: reset returned a float for an integer entry of d. Start it as a float "
                "(d=0.0) if it is to be differentiated, or return an integer."
            )
        (floats if kind == "f" else others).append(new.astype(jnp.result_type(old)))
    return floats, others


def _mode_index(owner: str, mode: Any, modes: tuple[str, ...]) -> int | Whole:
    if isinstance(mode, str):
        if mode not in modes:
            raise ValueError(
                f"{owner}: reset goes to mode {mode!r}, expected one of {list(modes)}."
            )
        return modes.index(mode)
    if isinstance(mode, int) and not 0 <= mode < len(modes):
        raise ValueError(
            f"{owner}: reset goes to mode number {mode}, expected 0 to {len(modes) - 1} for "
            f"{list(modes)}."
        )
    return mode


def residual_leaves(owner: str, fn: Function | None, write: str, found: dict) -> Function:
    """Numbers that are zero on the solution, leaf by leaf; their shape is written to `found`."""

    def flat(now: Instant, p: Params) -> list[Array]:
        assert fn is not None
        value = called(owner, fn, now, p)
        shape, leaves, others = split(value, floats_only=True)
        if others or shape.statics or not leaves:
            raise TypeError(
                f"{owner} returned {picture(value)}, expected numbers that are zero on the "
                f"solution. Write {write}."
            )
        _only_floats(owner, shape, value)
        found["shape"] = shape
        return [jnp.asarray(v, jnp.float64) for v in leaves]

    return flat


def _only_floats(owner: str, shape: Shape, value: Tree) -> None:
    """Check that equations are floats: truth values and integers cannot be differentiated."""
    for name, leaf in zip(shape.names(), jax.tree.leaves(value), strict=True):
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.floating):
            what = "a truth value" if jnp.issubdtype(dtype, jnp.bool_) else "an integer"
            raise TypeError(
                f'{owner}: equation "{name or owner}" is {what}, expected a number that '
                'is zero on the solution. Write now.z["i"] - p["k"] * now.x["v"], a difference '
                "and not a comparison."
            )


_right: weakref.WeakKeyDictionary[HybridSystem, weakref.WeakSet[Model]] = (
    weakref.WeakKeyDictionary()
)


def check_units(system: HybridSystem, start: Instant, p: Params, model: Model) -> None:
    """Raise an error if there is a unit for a name that the model lacks; once for each model."""
    seen = _right.setdefault(system, weakref.WeakSet())
    if not system.units or model in seen:
        return
    trees = [(start.x, "x"), (start.z, "z"), (start.d, "d"), (start.dx, "dx"), (p, "p")]
    trees += [(model.x.join([0.0] * model.nx, ()), "y"), (model.z.join([0.0] * model.n_z, ()), "z")]
    trees += [(model.q.join([0.0] * (model.moving - model.nx), ()), "integral")]
    trees += [(_blank(model.u_tree), "u")]
    if model.output_fn is not None:
        trees.append((_blank(model.output_fn.out), "y"))
    known = ["t", *dict.fromkeys(name for tree in trees for name in leaf_names(*tree))]
    fitting = {part for name in known for part in (name, whole_name(name), last_name(name))}
    for name in system.units:
        entry = ENTRY.fullmatch(str(name))
        if name not in fitting and (entry is None or entry[1] not in fitting):
            raise UnknownName(f"HybridSystem: units: {unknown(str(name), known)}")
    seen.add(model)


def _blank(tree: Treedef | None) -> Tree:
    return None if tree is None else jax.tree.unflatten(tree, [0.0] * tree.num_leaves)
