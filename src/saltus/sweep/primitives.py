"""The sweeps as JAX primitives, with derivatives of every order and batching of their own.

`tape` returns the recorded states; its derivative is `linear`, the tangent sweep. The transpose of
`linear` is `adjoint`, and back. The derivative of either is the same sweep one level up
(rows.py). A rule below moves groups of flat arguments around; `Group` keeps with each argument
which of the batch levels it has.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import core
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..base.batching import add_level
from ..base.control_flow import always_compiled
from ..base.kernel import one_kernel
from ..base.results import ReverseOverReverse
from ..simulate.record import Spec
from .rows import Mask
from .sweeps import Sizes, Sweep, adjoint_sweep, cut, result_shapes, row_flags, tangent_sweep
from .sweeps_with_saves import adjoint_walk, tangent_walk

# Each takes (states, rows, fixed, theta, visits, ...), see `Sizes`:
tape_p = Primitive("saltus_tape")  # (..., s0, ends, reads) -> states, ends, reads
linear_p = Primitive("saltus_linear")  # (..., ds0, dtheta) -> their tangents
adjoint_p = Primitive("saltus_adjoint")  # (..., costates, coends, coreads) -> lam0, mu
for primitive in (tape_p, linear_p, adjoint_p):
    primitive.multiple_results = True


class Group(NamedTuple):
    """Some flat arguments, and for each the levels it is batched in (innermost first)."""

    values: list
    flags: list

    def only(self, mask: Sequence[bool]) -> Group:
        kept = [(v, f) for v, f, m in zip(self.values, self.flags, mask, strict=True) if m]
        return Group([v for v, _ in kept], [f for _, f in kept])

    def with_values(self, values: list) -> Group:
        return Group(list(values), self.flags)


def _groups(args: Any, sweep: Sweep, sizes: Sizes) -> list[Group]:
    per_argument = list(zip(*sweep.levels, strict=True)) if sweep.levels else [()] * len(args)
    return [Group(v, f) for v, f in zip(cut(args, sizes), cut(per_argument, sizes), strict=True)]


def _full(values: Any, sweep: Sweep) -> Group:
    """Results of a sweep have every level."""
    return Group(list(values), [(True,) * len(sweep.levels)] * len(values))


def _bind(primitive: Primitive, sweep: Sweep, masks: tuple[Mask, ...], *groups: Group) -> list:
    values = [v for g in groups for v in g.values]
    flags = [f for g in groups for f in g.flags]
    levels = tuple(tuple(f[d] for f in flags) for d in range(len(sweep.levels)))
    return primitive.bind(*values, sweep=sweep._replace(masks=masks, levels=levels))


def _zero(t: Any) -> bool:
    return isinstance(t, ad.Zero)


def _still(*groups: Group) -> bool:
    return all(_zero(t) for g in groups for t in g.values)


def _dense(group: Group) -> Group:
    return group.with_values([ad.instantiate_zeros(t) for t in group.values])


def _moving(group: Group) -> Mask:
    return tuple(not _zero(t) for t in group.values)


def _collect(value: Any, flags: tuple[bool, ...], row: bool) -> Any:
    """Sum over the levels that the argument does not have."""
    depth = len(flags)
    axes = tuple(depth - 1 - d + row for d in range(depth) if not flags[d])
    return jnp.sum(value, axis=axes) if axes else value


# -- tape: the recorded states, with the tangent sweep as their derivative ------------------------


def _tape_impl(*args: Any, sweep: Sweep) -> list:
    states, _, _, _, _, _, ends, reads = cut(args, sweep.sizes("tape"))
    return [*states, *ends, *reads]


def _tape_abstract(*avals: Any, sweep: Sweep) -> list:
    return [core.ShapedArray(a.shape, a.dtype) for a in _tape_impl(*avals, sweep=sweep)]


def _tape_batch(args: Any, dims: Any, *, sweep: Sweep) -> tuple:
    """The recorded arrays get the new level even if only parameters have it."""
    sizes = sweep.sizes("tape")
    rows = row_flags(sizes, "tape")
    size = next(v.shape[d] for v, d in zip(args, dims, strict=True) if d is not None)
    args, dims = list(args), list(dims)
    given = range(sum(sizes[:6]), sum(sizes))  # ends and reads
    for k in (*range(sizes.states), *given):
        if dims[k] is None:
            dims[k] = int(rows[k])
            shape = (*args[k].shape[: dims[k]], size, *args[k].shape[dims[k] :])
            args[k] = jnp.broadcast_to(jnp.expand_dims(args[k], dims[k]), shape)
    moved, level = add_level(args, dims, rows)
    out = tape_p.bind(*moved, sweep=sweep._replace(levels=(*sweep.levels, level)))
    return out, [1] * sizes.states + [0] * sizes.states + [1] * sizes.third


def _tape_jvp(primals: Any, tangents: Any, *, sweep: Sweep) -> tuple:
    out = tape_p.bind(*primals, sweep=sweep)
    sizes = sweep.sizes("tape")
    _, rows, fixed, theta, visits, *_ = _groups(primals, sweep, sizes)
    _, _, _, dtheta, _, ds0, _, _ = _groups(tangents, sweep, sizes)
    if _still(dtheta, ds0):
        return out, [ad.Zero(jax.typeof(o).to_tangent_aval()) for o in out]
    mask = _moving(dtheta)
    tape = _full(out[: sizes.states], sweep)
    dout = _bind(
        linear_p, sweep, (mask,), tape, rows, fixed, theta, visits, _dense(ds0), dtheta.only(mask)
    )
    return out, dout


# -- linear: the tangent sweep --------------------------------------------------------------------


def _linear_jvp(primals: Any, tangents: Any, *, sweep: Sweep) -> tuple:
    """One level up: the tangent of a tangent sweep is the second half of the lifted sweep (M12)."""
    out = linear_p.bind(*primals, sweep=sweep)
    sizes = sweep.sizes("linear")
    states, rows, fixed, theta, visits, _, dtheta, _ = _groups(primals, sweep, sizes)
    t_states, _, _, t_theta, _, t_ds0, t_dtheta, _ = _groups(tangents, sweep, sizes)
    moving = _moving(t_dtheta)
    if _still(t_states, t_theta):  # linear in what moves
        it = iter(moving)
        mask = tuple(next(it) if m else False for m in sweep.masks[-1])
        dout = _bind(
            linear_p, sweep, (*sweep.masks[:-1], mask), states, rows, fixed, theta, visits,
            _dense(t_ds0), t_dtheta.only(moving),
        )  # fmt: skip
        return out, dout
    # The recorded states depend on (s0, theta) alone: the sweep below carries their tangents
    # along from the first row, so those of later rows are not needed.
    starts = t_states.with_values([t[0] for t in _dense(t_states).values])
    mask = (*_moving(t_theta), *moving)
    tangents_of_rows = _full(out[: sizes.states], sweep)
    dout = _bind(
        linear_p, sweep, (*sweep.masks, mask), states, tangents_of_rows, rows, fixed, theta,
        dtheta, visits, starts, _dense(t_ds0), t_theta.only(_moving(t_theta)),
        t_dtheta.only(moving),
    )  # fmt: skip
    n = sizes.states
    return out, [v for k, v in enumerate(dout) if k // n % 2]


def _linear_transpose(cts: Any, *args: Any, sweep: Sweep) -> list:
    sizes = sweep.sizes("linear")
    states, rows, fixed, theta, visits, ds0, dtheta, _ = _groups(args, sweep, sizes)
    if any(map(ad.is_undefined_primal, (*states.values, *theta.values))):
        raise ReverseOverReverse()
    n = sizes.states
    rows_used = not all(map(_zero, cts[:n]))
    costates = _dense(_full(cts[:n] if rows_used else [], sweep))
    coends = _dense(_full(cts[n:], sweep))  # and reads
    out = _bind(
        adjoint_p, sweep._replace(rows_used=rows_used), sweep.masks, states, rows, fixed, theta,
        visits, costates, coends,
    )  # fmt: skip
    given = [
        _collect(c, flags, row=False) if ad.is_undefined_primal(a) else None
        for c, a, flags in zip(
            out, (*ds0.values, *dtheta.values), (*ds0.flags, *dtheta.flags), strict=True
        )
    ]
    return [*[None] * sum(sizes[:5]), *given]


# -- adjoint: the adjoint sweep -------------------------------------------------------------------


def _adjoint_jvp(primals: Any, tangents: Any, *, sweep: Sweep) -> tuple:
    """One level up: forward over reverse is the first half of the lifted adjoint (M13)."""
    out = adjoint_p.bind(*primals, sweep=sweep)
    sizes = sweep.sizes("adjoint")
    states, rows, fixed, theta, visits, *seeds = _groups(primals, sweep, sizes)
    t_states, _, _, t_theta, _, *t_seeds = _groups(tangents, sweep, sizes)
    moved = list(map(_dense, t_seeds))
    if _still(t_states, t_theta):
        return out, _bind(adjoint_p, sweep, sweep.masks, states, rows, fixed, theta, visits, *moved)
    inner = _moving(t_theta)
    wanted = (*sweep.masks[-1], *([False] * sum(inner)))
    pairs = [group for pair in zip(moved, seeds, strict=True) for group in pair]
    dout = _bind(
        adjoint_p, sweep, (*sweep.masks[:-1], inner, wanted), states, _dense(t_states), rows,
        fixed, theta, t_theta.only(inner), visits, *pairs,
    )  # fmt: skip
    return out, [*dout[: sizes.states], *dout[2 * sizes.states :]]


def _adjoint_transpose(cts: Any, *args: Any, sweep: Sweep) -> list:
    sizes = sweep.sizes("adjoint")
    states, rows, fixed, theta, visits, *seeds = _groups(args, sweep, sizes)
    if any(map(ad.is_undefined_primal, (*states.values, *theta.values))):
        raise ReverseOverReverse()
    given = _dense(_full(cts, sweep))
    out = _bind(linear_p, sweep, sweep.masks, states, rows, fixed, theta, visits, given)
    n = sizes.states
    back = [*out[n - sizes.first : n], *out[n:]]
    has_rows = row_flags(sizes, "adjoint")[sum(sizes[:5]) :]
    values = [v for group in seeds for v in group.values]
    flags = [f for group in seeds for f in group.flags]
    rest = [
        _collect(c, f, row=row) if ad.is_undefined_primal(a) else None
        for c, a, f, row in zip(back, values, flags, has_rows, strict=True)
    ]
    return [*[None] * sum(sizes[:5]), *rest]


# -- definitions ----------------------------------------------------------------------------------


def _define(primitive: Primitive, run: Any, kind: str) -> None:
    """Evaluation, shapes, batching and lowering of a sweep."""

    @functools.lru_cache(maxsize=512)
    def compiled(sweep: Sweep, platform: str) -> Any:
        return always_compiled(one_kernel(functools.partial(run, sweep), platform))

    def impl(*args: Any, sweep: Sweep) -> list:
        platform = next(iter(args[0].devices())).platform
        return compiled(sweep, platform)(*args)

    def abstract(*avals: Any, sweep: Sweep) -> list:
        return [core.ShapedArray(s, d) for s, d in result_shapes(sweep, kind, avals)]

    def batch(args: Any, dims: Any, *, sweep: Sweep) -> tuple:
        sizes = sweep.sizes(kind)
        moved, level = add_level(args, dims, row_flags(sizes, kind))
        out = primitive.bind(*moved, sweep=sweep._replace(levels=(*sweep.levels, level)))
        if kind == "adjoint":
            return out, [0] * len(out)
        reads = len(out) - 2 * sizes.states
        return out, [1] * sizes.states + [0] * sizes.states + [1] * reads

    def lower(platform: str) -> Any:
        def fn(*args: Any, sweep: Sweep) -> list:
            return one_kernel(functools.partial(run, sweep), platform)(*args)

        return mlir.lower_fun(fn, multiple_results=True)

    primitive.def_impl(impl)
    primitive.def_abstract_eval(abstract)
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, lower("cpu"), platform="cpu")
    mlir.register_lowering(primitive, lower("other"))


def _tangent(sweep: Sweep, *args: Any) -> list:
    return (tangent_walk if sweep.reads else tangent_sweep)(sweep, *args)


def _adjoint(sweep: Sweep, *args: Any) -> list:
    return (adjoint_walk if sweep.reads else adjoint_sweep)(sweep, *args)


_define(linear_p, _tangent, "linear")
_define(adjoint_p, _adjoint, "adjoint")
tape_p.def_impl(_tape_impl)
tape_p.def_abstract_eval(_tape_abstract)
batching.primitive_batchers[tape_p] = _tape_batch
mlir.register_lowering(tape_p, mlir.lower_fun(_tape_impl, multiple_results=True))
ad.primitive_jvps[tape_p] = _tape_jvp
ad.primitive_jvps[linear_p] = _linear_jvp
ad.primitive_transposes[linear_p] = _linear_transpose
ad.primitive_jvps[adjoint_p] = _adjoint_jvp
ad.primitive_transposes[adjoint_p] = _adjoint_transpose


class Recorded(NamedTuple):
    """What the primitives are given, each as flat leaves."""

    states: Any
    rows: Any
    fixed: Any
    ends: Any
    visits: Any = ()
    reads: Any = ()


def replay(spec: Spec, recorded: Recorded, theta: Any, s0: Any) -> tuple[list, list, list]:
    """Recorded states, ends and states at save times as functions of `s0` and of `theta`.

    With save times, these are the last entry of `theta`.
    """
    known = Recorded(*([jax.lax.stop_gradient(v) for v in group] for group in recorded))
    sweep = Sweep(spec, ((False,) * len(theta),), (), reads=bool(known.visits))
    given = (*known.states, *known.rows, *known.fixed, *theta, *known.visits, *s0)
    out = tape_p.bind(*given, *known.ends, *known.reads, sweep=sweep)
    n = len(known.states)
    return out[:n], out[n : 2 * n], out[2 * n :]
