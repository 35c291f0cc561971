"""The leaves of a start and of parameters, after checks of both."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves, array_of, check_precision, split
from ..base.tracing import is_tracer
from ..base.tracing_errors import UNTRACEABLE, noted, untraceable
from ..base.types import Params, Scalar, Tree, Treedef, Whole
from ..system.hybrid import HybridSystem, Instant
from ..system.inputs import Signal, is_signal
from .validation import check_algebraic


class Parts(NamedTuple):
    """The leaves of a start and of parameters."""

    t: Scalar
    x: Leaves
    z: Leaves
    d: Leaves
    d_others: Leaves
    mode: Whole | None
    p: Leaves
    p_others: Leaves
    signals: tuple[Signal, ...]


def dismantle(system: HybridSystem, start: Instant, p: Params) -> tuple[tuple, Parts]:
    """The shapes and leaves of the start, the parameters and the inputs of a solve."""
    check_precision()
    if not isinstance(system, HybridSystem):
        write = "saltus.HybridSystem(flow=...), or saltus.automaton({...})"
        write = "mechanism.system()" if hasattr(system, "system") else write
        raise TypeError(
            f"solve: the system is {type(system).__name__}, expected a HybridSystem. Write {write}."
        )
    if not isinstance(start, Instant):
        raise TypeError(
            f"solve: the start is {type(start).__name__}, expected an Instant. "
            "Write saltus.Instant(t=0.0, x={...})."
        )
    signals, u_tree = _signals(system, p)
    if system.check_start is not None:
        good = system.check_start(start.replace(u=_inputs(start.t, signals, u_tree)), p)
        if good is not None:  # known only when the program runs
            start = start.replace(x=jax.tree.map(lambda v: jnp.where(good, v, jnp.nan), start.x))
    x_shape, x, _ = split(start.x, floats_only=True)
    if x_shape.statics or "k" in x_shape.kinds:
        raise TypeError(
            f"solve: x contains {x_shape.statics!r}, expected real numbers and arrays of them. "
            "Put discrete states into d, and split complex numbers into two."
        )
    if not x:
        raise ValueError(
            "solve: the start has no differential states. Write Instant(t=0.0, x=...)."
        )
    z_shape, z, _ = split(start.z, floats_only=True)
    check_algebraic(system, start, z_shape)
    z = tuple(v.astype(jnp.result_type(*x)) for v in z)  # a guess; its precision is that of x
    d_shape, d, d_others = split(start.d)
    p_shape, pf, po = split(p)
    mode = _mode(system, start.mode)
    t = array_of(start.t, np.float64)
    if t.ndim:
        raise ValueError(f"solve: the start time has shape {t.shape}, expected a number.")
    parts = Parts(t, x, z, d, d_others, mode, pf, po, signals)
    return (x_shape, z_shape, d_shape, p_shape, u_tree), parts


def _mode(system: HybridSystem, mode: Any) -> Whole | None:
    if not system.modes:
        if mode is not None:
            raise ValueError(
                f"solve: the start names mode {mode!r}, but this system has no modes. Build it "
                "with saltus.automaton({...}), or leave mode out."
            )
        return None
    if mode is None or (isinstance(mode, str) and mode not in system.modes):
        raise ValueError(
            f"solve: the start's mode is {mode!r}, expected one of {list(system.modes)}. Write "
            f'Instant(t=..., x=..., mode="{system.modes[0]}").'
        )
    if isinstance(mode, str):
        mode = system.modes.index(mode)
    if not is_tracer(mode) and not 0 <= int(mode) < len(system.modes):
        raise ValueError(
            f"solve: the start's mode is number {int(mode)}, expected 0 to "
            f"{len(system.modes) - 1} for {list(system.modes)}."
        )
    return jnp.asarray(mode, dtype=jnp.int32)


def _signals(system: HybridSystem, p: Params) -> tuple[tuple[Signal, ...], Treedef | None]:
    if system.inputs is None:
        return (), None
    tree = system.inputs
    if callable(tree):
        try:
            tree = tree(p)
        except UNTRACEABLE as error:
            raise untraceable("inputs", error) from error
        except Exception as error:
            noted("inputs", error)
            raise
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_signal)
    for leaf in leaves:
        if not is_signal(leaf):
            raise TypeError(
                f"HybridSystem: inputs gave {leaf!r}, expected signals. Write "
                "inputs=lambda p: saltus.Steps(times, p.values)."
            )
    return tuple(leaves), treedef


def _inputs(t: Scalar, signals: tuple[Signal, ...], u_tree: Treedef | None) -> Tree:
    """What model functions read as `now.u` at a time."""
    values = [s.value(t, s.segment(t, False)) for s in signals]
    return None if u_tree is None else jax.tree.unflatten(u_tree, values)
