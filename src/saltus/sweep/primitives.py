"""The sweeps as JAX primitives, with their own rules for derivatives of every order and batching.

`tape` returns the recorded states; its derivative is `linear`, the tangent sweep. `linear` and
`adjoint` are the transposes of each other. The derivative of either is the same sweep one level up
(rows.py). The rules below move groups of arguments from one primitive to another (arguments.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import core
from jax.extend.core import Primitive
from jax.interpreters import ad

from ..base.batching import add_level
from ..base.in_turn import Kernel, in_turn
from ..base.kernel import register
from ..base.leaves import dense
from ..base.results import ReverseOverReverse
from ..base.types import Array, Aval
from ..simulate.record import Spec
from .arguments import AdjointArgs, Group, LinearArgs, Sweep, TapeArgs, flattened, for_each
from .rows import Mask
from .sweeps import ShapeAndType, adjoint_shapes, adjoint_sweep, tangent_shapes, tangent_sweep

tape_p = Primitive("saltus_tape")  # TapeArgs -> states, ends, reads
linear_p = Primitive("saltus_linear")  # LinearArgs -> tangents of states, ends, reads
adjoint_p = Primitive("saltus_adjoint")  # AdjointArgs -> lam_0, mu
for primitive in (tape_p, linear_p, adjoint_p):
    primitive.multiple_results = True

Dims = Sequence[int | None]  # the axis of the new level in each argument, if it has one


def _full(values: Sequence[Any], sweep: Sweep) -> Group:
    """The results of a sweep as a group: they have all levels."""
    return Group(list(values), [(True,) * len(sweep.levels)] * len(values))


def _bind(
    primitive: Primitive, sweep: Sweep, masks: tuple[Mask, ...], groups: Iterable[Group]
) -> list[Array]:
    values, flags = flattened(groups)
    levels = tuple(tuple(f[d] for f in flags) for d in range(len(sweep.levels)))
    return primitive.bind(*values, sweep=sweep._replace(masks=masks, levels=levels))


def _is_zero(t: Any) -> bool:
    return isinstance(t, ad.Zero)


def _zeros(*groups: Group) -> bool:
    return all(_is_zero(t) for g in groups for t in g.values)


def _dense(group: Group) -> Group:
    return group.with_values([dense(t) for t in group.values])


def _nonzero(group: Group) -> Mask:
    return tuple(not _is_zero(t) for t in group.values)


def _refuse_reverse_over_reverse(*groups: Group) -> None:
    if any(ad.is_undefined_primal(v) for g in groups for v in g.values):
        raise ReverseOverReverse()


def _collect(value: Array, flags: tuple[bool, ...], row: bool) -> Array:
    """Sum over the levels that an argument does not have."""
    depth = len(flags)
    axes = tuple(depth - 1 - d + row for d in range(depth) if not flags[d])
    return jnp.sum(value, axis=axes) if axes else value


# -- tape: the recorded states, with the tangent sweep as their derivative ------------------------


def _tape_impl(*args: Any, sweep: Sweep) -> list[Any]:
    given = TapeArgs.of(sweep, args)
    return [*given.states.values, *given.ends.values, *given.reads.values]


def _tape_abstract(*avals: Aval, sweep: Sweep) -> list[Aval]:
    return [core.ShapedArray(a.shape, a.dtype) for a in _tape_impl(*avals, sweep=sweep)]


def _tape_batch(args: Sequence[Array], dims: Dims, *, sweep: Sweep) -> tuple[list[Array], Dims]:
    """The recorded arrays get the new level even if only parameters have it."""
    sizes, rows = TapeArgs.sizes(sweep), TapeArgs.row_flags(sweep)
    size = next(v.shape[d] for v, d in zip(args, dims, strict=True) if d is not None)
    recorded = TapeArgs(
        states=True, rows=False, fixed=False, theta=False, visits=False, s0=False, ends=True,
        reads=True,
    )  # fmt: skip
    args, dims = list(args), list(dims)
    for k, widened in enumerate(for_each(sizes, recorded)):
        if widened and dims[k] is None:
            axis = dims[k] = int(rows[k])
            shape = (*args[k].shape[:axis], size, *args[k].shape[axis:])
            args[k] = jnp.broadcast_to(jnp.expand_dims(args[k], axis), shape)
    moved, level = add_level(args, dims, rows)
    out = tape_p.bind(*moved, sweep=sweep._replace(levels=(*sweep.levels, level)))
    return out, [1] * sizes.states + [0] * sizes.ends + [1] * sizes.reads


def _tape_jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, sweep: Sweep
) -> tuple[list[Array], list[Any]]:
    out = tape_p.bind(*primals, sweep=sweep)
    given, moves = TapeArgs.of(sweep, primals), TapeArgs.of(sweep, tangents)
    if _zeros(moves.theta, moves.s0):
        return out, [ad.Zero(jax.typeof(o).to_tangent_aval()) for o in out]
    mask = _nonzero(moves.theta)
    linear = LinearArgs(
        states=_full(out[: len(given.states.values)], sweep), rows=given.rows, fixed=given.fixed,
        theta=given.theta, visits=given.visits, ds0=_dense(moves.s0),
        dtheta=moves.theta.only(mask),
    )  # fmt: skip
    return out, _bind(linear_p, sweep, (mask,), linear)


# -- linear: the tangent sweep --------------------------------------------------------------------


def _linear_jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, sweep: Sweep
) -> tuple[list[Array], list[Array]]:
    """One level up: the tangent of a tangent sweep is the second half of the lifted sweep (M12)."""
    out = linear_p.bind(*primals, sweep=sweep)
    given, moves = LinearArgs.of(sweep, primals), LinearArgs.of(sweep, tangents)
    moving = _nonzero(moves.dtheta)
    if _zeros(moves.states, moves.theta):  # only the tangents move, and the sweep is linear in them
        it = iter(moving)
        mask = tuple(next(it) if m else False for m in sweep.masks[-1])
        same = given._replace(ds0=_dense(moves.ds0), dtheta=moves.dtheta.only(moving))
        return out, _bind(linear_p, sweep, (*sweep.masks[:-1], mask), same)
    # The recorded states depend on (s0, theta) only: the sweep below computes their tangents from
    # the first row on, so that those of later rows are not needed.
    starts = moves.states.with_values([t[0] for t in _dense(moves.states).values])
    of_theta, n = _nonzero(moves.theta), len(given.states.values)
    lifted = given._replace(
        states=given.states.joined(_full(out[:n], sweep)),
        theta=given.theta.joined(given.dtheta),
        ds0=starts.joined(_dense(moves.ds0)),
        dtheta=moves.theta.only(of_theta).joined(moves.dtheta.only(moving)),
    )
    dout = _bind(linear_p, sweep, (*sweep.masks, (*of_theta, *moving)), lifted)
    return out, [v for k, v in enumerate(dout) if k // n % 2]


def _linear_transpose(cts: Sequence[Any], *args: Any, sweep: Sweep) -> list[Array | None]:
    given = LinearArgs.of(sweep, args)
    _refuse_reverse_over_reverse(given.states, given.theta)
    n = len(given.states.values)
    rows_used = not all(map(_is_zero, cts[:n]))
    adjoint = AdjointArgs(
        *given[:5],
        row_cotangents=_dense(_full(cts[:n] if rows_used else [], sweep)),
        end_cotangents=_dense(_full(cts[n : 2 * n], sweep)),
        read_cotangents=_dense(_full(cts[2 * n :], sweep)),
    )
    out = _bind(adjoint_p, sweep._replace(rows_used=rows_used), sweep.masks, adjoint)
    back = [
        _collect(c, flags, row=False) if ad.is_undefined_primal(a) else None
        for c, a, flags in zip(out, *flattened((given.ds0, given.dtheta)), strict=True)
    ]
    return [*[None] * (len(args) - len(back)), *back]


# -- adjoint: the adjoint sweep -------------------------------------------------------------------


def _adjoint_jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, sweep: Sweep
) -> tuple[list[Array], list[Array]]:
    """One level up: forward over reverse is the first half of the lifted adjoint (M13)."""
    out = adjoint_p.bind(*primals, sweep=sweep)
    given, moves = AdjointArgs.of(sweep, primals), AdjointArgs.of(sweep, tangents)
    row, end, read = (_dense(group) for group in moves[5:])
    if _zeros(moves.states, moves.theta):
        same = given._replace(row_cotangents=row, end_cotangents=end, read_cotangents=read)
        return out, _bind(adjoint_p, sweep, sweep.masks, same)
    inner, n = _nonzero(moves.theta), len(given.states.values)
    wanted = (*sweep.masks[-1], *([False] * sum(inner)))
    lifted = given._replace(
        states=given.states.joined(_dense(moves.states)),
        theta=given.theta.joined(moves.theta.only(inner)),
        row_cotangents=row.joined(given.row_cotangents),
        end_cotangents=end.joined(given.end_cotangents),
        read_cotangents=read.joined(given.read_cotangents),
    )
    dout = _bind(adjoint_p, sweep, (*sweep.masks[:-1], inner, wanted), lifted)
    return out, [*dout[:n], *dout[2 * n :]]


def _adjoint_transpose(cts: Sequence[Any], *args: Any, sweep: Sweep) -> list[Array | None]:
    given = AdjointArgs.of(sweep, args)
    _refuse_reverse_over_reverse(given.states, given.theta)
    sizes, n = AdjointArgs.sizes(sweep), len(given.states.values)
    tangents = _dense(_full(cts, sweep))
    linear = LinearArgs(
        *given[:5], ds0=Group(tangents.values[:n], tangents.flags[:n]),
        dtheta=Group(tangents.values[n:], tangents.flags[n:]),
    )  # fmt: skip
    out = _bind(linear_p, sweep, sweep.masks, linear)
    seeds = flattened((given.row_cotangents, given.end_cotangents, given.read_cotangents))
    has_rows = for_each(sizes[5:], (True, False, True))
    back = [
        _collect(c, flags, row=row) if ad.is_undefined_primal(a) else None
        for c, a, flags, row in zip(out[n - sizes.row_cotangents :], *seeds, has_rows, strict=True)
    ]
    return [*[None] * (len(args) - len(back)), *back]


# -- definitions ----------------------------------------------------------------------------------


class _Rules(NamedTuple):
    """The differences between the two sweeps: evaluation, shapes, batching and derivatives."""

    run: Callable[..., list[Array]]
    shapes: Callable[[Sweep, Sequence[Aval]], list[ShapeAndType]]
    row_flags: Callable[[Sweep], list[bool]]
    result_dims: Callable[[Sweep], list[int]]  # the axis of a new level in each result
    jvp: Callable
    transpose: Callable


def _define(primitive: Primitive, rules: _Rules) -> None:
    """Register a sweep as one kernel, with the rules for its derivatives."""

    def abstract(*avals: Aval, sweep: Sweep) -> list[Aval]:
        return [core.ShapedArray(s, d) for s, d in rules.shapes(sweep, avals)]

    def batch(args: Sequence[Array], dims: Dims, *, sweep: Sweep) -> tuple[list[Array], Dims]:
        moved, level = add_level(args, dims, rules.row_flags(sweep))
        out = primitive.bind(*moved, sweep=sweep._replace(levels=(*sweep.levels, level)))
        return out, rules.result_dims(sweep)

    def each(*args: Array, sweep: Sweep) -> list[Array]:
        """One lane after the other."""
        *inner, outer = sweep.levels
        one = sweep._replace(levels=tuple(inner))
        rows = rules.row_flags(sweep)
        axes = [int(row) if has else None for row, has in zip(rows, outer, strict=True)]
        return in_turn(functools.partial(rules.run, sweep=one), axes, rules.result_dims(one))(*args)

    kernel = Kernel(each, rules.run)

    def impl(*args: Array, sweep: Sweep) -> list[Array]:
        return kernel(_lanes_of_rows(sweep, args), *args, sweep=sweep)

    register(
        primitive, rules.run, abstract,
        batch=batch, jvp=rules.jvp, transpose=rules.transpose, impl=impl, kernel=True,
    )  # fmt: skip


def _lanes_of_rows(sweep: Sweep, args: Sequence[Array]) -> int | None:
    """How many elements the outermost level has, if each has rows of its own."""
    states, rows, *_ = sweep.recorded_sizes()
    number = states + rows  # the place of the number of rows among the arguments
    if not sweep.levels or not sweep.levels[-1][number]:
        return None
    return args[number].shape[0]


def _tangent_dims(sweep: Sweep) -> list[int]:
    n = LinearArgs.sizes(sweep).states
    return [1] * n + [0] * n + [1] * (n if sweep.reads else 0)


def _adjoint_dims(sweep: Sweep) -> list[int]:
    return [0] * (AdjointArgs.sizes(sweep).states + sum(sweep.masks[-1]))


register(tape_p, _tape_impl, _tape_abstract, batch=_tape_batch, jvp=_tape_jvp, impl=_tape_impl)
_define(
    linear_p,
    _Rules(
        tangent_sweep, tangent_shapes, LinearArgs.row_flags, _tangent_dims,
        jvp=_linear_jvp, transpose=_linear_transpose,
    ),
)  # fmt: skip
_define(
    adjoint_p,
    _Rules(
        adjoint_sweep, adjoint_shapes, AdjointArgs.row_flags, _adjoint_dims,
        jvp=_adjoint_jvp, transpose=_adjoint_transpose,
    ),
)  # fmt: skip


class Recorded(NamedTuple):
    """What a simulation recorded, in the groups of `TapeArgs`."""

    states: Sequence[Array]
    rows: Sequence[Array]
    fixed: Sequence[Array]
    ends: Sequence[Array]
    visits: Sequence[Array] = ()
    reads: Sequence[Array] = ()


def replay(
    spec: Spec, recorded: Recorded, theta: Sequence[Array], s0: Sequence[Array]
) -> tuple[list[Array], list[Array], list[Array]]:
    """Recorded states, ends and states at save times as functions of `s0` and of `theta`.

    Save times, if there are any, are the last entry of `theta`.
    """
    known = Recorded(*([jax.lax.stop_gradient(v) for v in group] for group in recorded))
    sweep = Sweep(spec, ((False,) * len(theta),), (), reads=bool(known.visits))
    given = TapeArgs(
        states=known.states, rows=known.rows, fixed=known.fixed, theta=theta, visits=known.visits,
        s0=s0, ends=known.ends, reads=known.reads,
    )  # fmt: skip
    out = tape_p.bind(*(v for group in given for v in group), sweep=sweep)
    n = len(known.states)
    return out[:n], out[n : 2 * n], out[2 * n :]
