"""Where the Jacobian of the flow and the constraint can be nonzero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.jax_names import under_jit
from ..base.leaves import Leaves, frozen
from ..base.names import numbered
from ..base.tracing import is_tracer
from ..base.types import Array, Vector
from ..linalg.dependence import pattern
from ..linalg.pattern import Pattern, missing
from ..system.hybrid import HybridSystem
from .constraint import _size
from .model import Fn, Model, Par

if TYPE_CHECKING:
    from .builder import Tracer
    from .start_leaves import Parts

MIN_SPARSE_SIZE = 40  # least number of unknowns for which sparsity is detected


def jacobian_pattern(
    system: HybridSystem, tracer: Tracer, parts: Parts, flow: Fn, rows: Fn | None, flagged: bool
) -> Pattern | None:
    """Where the Jacobian of (flow, constraint) by (x, z) can be nonzero, for large systems."""
    given, nx = system.sparsity, len(parts.x)
    size = sum(_size(jnp.shape(v)) for v in (*parts.x, *parts.z))
    if isinstance(given, str) and given not in ("detect", "dense"):
        raise ValueError(
            f'HybridSystem: sparsity is {given!r}, expected "detect", "dense" or a boolean matrix.'
        )
    if given is not None and not isinstance(given, str):
        made = Pattern.of(given)
        if made.size != size:
            raise ValueError(
                f"HybridSystem: sparsity is for {made.size} unknowns, but x and z have {size}."
            )
        return made
    if given == "dense" or (given is None and size <= MIN_SPARSE_SIZE):
        return None
    fns = [f for f in (flow, rows) if f is not None]
    consts = [a for f in fns for a in f.traced.inputs[: f.traced.n_consts]]
    args = flow.traced.inputs[flow.traced.n_consts :]
    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (*consts, *args)]

    def both(*leaves: Array) -> list:
        shared, k, out = leaves[len(consts) :], 0, []
        for j, f in enumerate(fns):
            own = leaves[k : k + f.traced.n_consts]
            k += f.traced.n_consts
            out += f.traced.call(*own, *shared)[: nx if j == 0 else None]
        return out

    first = len(consts) + flagged + 1
    wrt = range(first, first + len(parts.x) + len(parts.z))
    return Pattern.of(pattern(both, avals, list(wrt), tracer.known(fns)))


def check_given(model: Model, args: Leaves, par: Par) -> bool:
    """Compare a given pattern with the exact Jacobian at these arguments, if they are numbers.

    An entry that it leaves out would make gradients wrong, but not values."""
    n_x, n_z = model.nx, model.n_z
    args, par = frozen((args, par))
    if under_jit() or any(map(is_tracer, jax.tree.leaves((args, par)))):
        return False
    flags = (jnp.zeros((model.kinks,), jnp.int32),) if model.kinks else ()
    leaves = args[1 : 1 + n_x + n_z]
    shapes = [jnp.shape(v) for v in leaves]
    cuts = np.cumsum([_size(s) for s in shapes])[:-1]

    def both(y: Vector) -> Any:
        new = [jnp.reshape(v, s) for v, s in zip(jnp.split(y, cuts), shapes, strict=True)]
        given = (*flags, args[0], *new, *args[1 + n_x + n_z :])
        out = list(model.flow_fn(given, par))[:n_x]
        out += [] if model.constraint is None else list(model.constraint.fn(given, par))
        return jnp.concatenate([jnp.ravel(v).astype(jnp.float64) for v in out])

    y = jnp.concatenate([jnp.ravel(v).astype(jnp.float64) for v in leaves])
    assert model.pattern is not None
    found = missing(model.pattern, both, y)
    if found is None:
        return True
    row, column, value = found
    rule = model.constraint
    rows = [f"the flow of {n}" for n in numbered(model.x.names(), shapes[:n_x], "x")]
    if rule is not None:
        rows += [f"equation {n}" for n in numbered(rule.equations, rule.rows, "constraint")]
    columns = numbered([*model.x.names(), *model.z.names()], shapes, "x" if not n_z else "z")
    raise ValueError(
        f"HybridSystem: sparsity has no entry in row {row} and column {column}, but the derivative "
        f"of {rows[row]} by {columns[column]} is {value:.3g} at the start. Add the entry, or write "
        'sparsity="detect".'
    )
