"""The certificate of a loss: its gradient, its solutions, and how far the gradient is valid."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..base.host_programs import rarely
from ..base.leaves import precise
from ..base.losses import of_numbers, scalar, uncompiled, unless_nan
from ..base.pickling import LeftBehind, Portable
from ..base.tracing import is_traced
from ..base.types import Array, Flag, Matrix, Number, Params, Scalar, Tree, Vector, Whole
from ..solution.solution import Solution
from ..solver.context import gathering
from .differences import Differences, OneSided, checked, one_sided
from .error_growth import dot_mismatch
from .loss_program import HIDDEN, HiddenSolve, corners, traced_loss
from .margins import INF, Margins, measure
from .one_sided import Around, Bend, around
from .refinement import Refinement, excused, refined, sizes_of
from .segment_ends import RowStates, jumps_at_ends
from .solution_certificate import Certificate, certificate, radius
from .text import short
from .verdict import Judged


class Reach(NamedTuple):
    """How far parameters may move along a direction, in multiples of the direction."""

    events: Scalar  # until the sequence of events changes
    saves: Scalar  # until an event passes a save time, either way


class LossCertificate(Portable, Judged, eqx.Module):
    """Whether the gradient of a loss can be trusted, and how far it is valid."""

    value: Scalar
    gradient: Tree
    level: Whole
    certificates: tuple[Certificate, ...]
    dot: Scalar  # the relative difference of forward and reverse derivative of the loss
    differences: Differences | None
    sides: OneSided | None  # derivatives along the gradient from both sides; not inside `jit`
    error: Scalar  # of the gradient, relative, by finer tolerances; NaN where these fail
    loose: Whole  # the level of this error
    ends: Flag  # the flow jumps exactly at an end of a motion
    p: Params = eqx.field(repr=False)
    loss: Callable = eqx.field(static=True, repr=False)
    bends: tuple[Bend, ...] = eqx.field(static=True, default=())  # where both sides differ

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not TRUSTED, the worst first."""
        found = []
        finite = np.all([np.all(np.isfinite(v)) for v in jax.tree.leaves(self.gradient)])
        if not np.isfinite(self.value):
            found.append(NO_VALUE)
        elif not finite:
            found.append("the gradient is not finite")
        elif not float(self.dot) <= DOT_DIFFERENCE:
            found.append("forward and reverse derivative of the loss disagree")
        if self.differences is not None and self.differences.disagree:
            found.append("finite differences disagree with the gradient")
        if self.differences is not None and not self.differences.valid:
            found.append("finite differences change the sequence of events at every step")
        ordered = sorted(self.certificates, key=lambda c: -int(c.level))
        explained = bool(found) or any(int(c.level) == 2 for c in ordered)
        if bool(self.ends):
            found.append(JUMPS_AT_ENDS)
        if self.bends and not explained:
            found.append(ONE_SIDE if all(b.undefined for b in self.bends) else BENDS)
        own = [r for c in ordered for r in c.reasons]
        loose = [LOOSE] if int(self.loose) > 0 else []
        if any(c.kinks or int(c.level) == 2 for c in ordered):  # the cause, then what it does
            return tuple(dict.fromkeys([*found, *own, *loose]))
        return tuple(dict.fromkeys([*found, *loose, *own]))

    @property
    def signature(self) -> tuple[str, ...]:
        """The sequence of events of all solutions."""
        return tuple(name for c in self.certificates for name in c.signature)

    def trust_radius(self, direction: Tree) -> Scalar:
        """How far p may move along `direction` before the sequence of events changes.

        In multiples of `direction`, to first order (M74).
        """
        return self.reach(direction).events

    def reach(self, direction: Tree) -> Reach:
        """The same along `direction`, and until an event that matters passes a save time."""
        return _reach(self.loss, self.p, _like(self.p, direction, "trust_radius"))

    def one_sided(self, direction: Tree) -> OneSided:
        """The derivatives of the loss along `direction` from either side.

        At a kink (simultaneous events that do not commute, an event at a saved time) they differ,
        and no gradient exists."""
        return one_sided(self.loss, self.p, _like(self.p, direction, "one_sided"))

    def __repr__(self) -> str:
        if is_traced((self.level, self.value)):
            return "LossCertificate, traced: print it outside of jit."
        head = f"{self.verdict}" + (f" ({self.reasons[0]})" if self.reasons else "")
        lines = [
            f"Gradient: {head}",
            f"  loss {float(self.value):.10g}, forward and reverse derivative differ by "
            f"{short(self.dot)}",
        ]
        if np.isfinite(self.error):
            lines.append(f"  with finer steps it changes by less than {short(self.error)}")
        if self.differences is not None:
            lines.append(f"  {self.differences}")
        lines += [f"  {bend}" for bend in self.bends[:LISTED_BENDS]]
        lines += self._range()
        return "\n".join([*lines, *map(repr, self.certificates)])

    def _range(self) -> list[str]:
        """How far the gradient is valid along itself, relative to the parameters."""
        down = _downhill(self.p, self.gradient)
        if down is None or isinstance(self.loss, LeftBehind):
            return []
        found = self.reach(down)
        lines = []
        if np.isfinite(found.events):
            lines.append(
                f"  along the gradient p may change by {100 * float(found.events):.3g} % before "
                "the sequence of events changes"
            )
        if np.isfinite(found.saves):
            near = ": the loss is about to jump or bend there" if found.saves < 1e-3 else ""
            lines.append(
                f"  and by {100 * float(found.saves):.3g} % before an event passes a save "
                f"time{near}"
            )
        return lines


DOT_DIFFERENCE = 1e-8  # relative, of forward and reverse derivative
LISTED_BENDS = 5  # at most
NO_VALUE = (
    "the loss is not a finite number: an event or a value that it reads may not exist, or a solve "
    "may have failed (throw=False)"
)
LOOSE = (
    "the gradient changes when tolerances are finer: tighten rtol and atol, below the "
    "smallest states that the loss reads"
)
JUMPS_AT_ENDS = (
    "the flow jumps exactly at the start, at the end or at a reset, and a change of the parameters "
    "moves the jump: make it an event with saltus.when(condition, a, b), or move the parameters"
)
BENDS = "derivatives from both sides differ: the loss jumps or bends here"
ONE_SIDE = "the loss exists on one side only: this is the boundary of what p may be"


@precise
def certify(
    loss: Callable[[Params], Number], p: Params, *, differences: bool = False
) -> LossCertificate:
    """The value and gradient of `loss(p)`, and whether they can be trusted.

    `loss` calls `solve` at least once and returns a number. `p` are its parameters, any pytree of
    numbers. `differences=True` also checks the gradient by finite differences, with steps that do
    not change the sequence of events. A loss wrapped in `jax.jit` is unwrapped; the call of
    `certify` itself may be jitted.
    """
    plain, p = of_numbers(uncompiled(loss), p, "certify")
    program = traced_loss(plain, p)
    watched = functools.partial(_watched, plain)
    (value, sols), gradient = jax.value_and_grad(watched, has_aux=True)(p)
    gradient = unless_nan(value, gradient)
    finer = refined(watched, p, (value, gradient), sols, is_traced((value, gradient)))
    certificates = tuple(excused(certificate(s), finer) for s in sols)
    dot, ends = _forward(watched, p, gradient, sols)
    turned = None if program is None else corners(program, p)
    seen = _around(plain, p, (value, gradient), certificates, finer, turned)
    levels: list[Any] = [
        *(c.level for c in certificates), _sound(gradient, dot), seen.level, finer.level,
        _if(ends),
    ]  # fmt: skip
    check = None
    if differences:
        check = checked(plain, p, gradient)
        levels.append(2 if check.disagree else 0 if check.valid else 1)
    return LossCertificate(
        value, gradient, _worst(levels), certificates, dot, check, seen.sides, finer.error,
        finer.level, ends, p, plain, seen.bends,
    )  # fmt: skip


@rarely
def _if(flag: Flag) -> Whole:
    """UNTRUSTED where it is true."""
    return jnp.where(flag, 2, 0)


@rarely
def _sound(gradient: Tree, dot: Scalar) -> Whole:
    """The level of a gradient by itself: whether it is finite, and the same forward."""
    finite = jnp.stack([jnp.all(jnp.isfinite(v)) for v in jax.tree.leaves(gradient)]).all()
    return jnp.where(finite & (dot <= DOT_DIFFERENCE), 0, 2)


@rarely
def _worst(levels: list) -> Whole:
    return jnp.max(jnp.stack([jnp.max(jnp.asarray(v, jnp.int32)) for v in levels]))


@rarely
def _loosest(tolerances: list) -> Scalar:
    return jnp.max(jnp.stack([jnp.max(v) for v in tolerances]))


def _around(
    loss: Callable,
    p: Params,
    first: tuple[Scalar, Tree],
    certificates: Sequence[Certificate],
    finer: Refinement,
    turned: tuple[Matrix, Vector] | None,
) -> Around:
    """Derivatives on both sides of p, which show kinks of resets, outputs and the loss."""
    numbers = jax.tree.leaves(first)
    if not is_traced(first) and not all(np.all(np.isfinite(v)) for v in numbers):
        return Around(2, None, ())
    rtol = _loosest([c.solution.tolerance[0] for c in certificates])
    return around(loss, p, first, rtol, finer, turned)


def _watched(loss: Callable, p: Params) -> tuple[Scalar, tuple[Solution, ...]]:
    """The loss, and the solutions that it made."""
    with gathering() as sols:
        value = scalar(loss(p), "certify")
    if sols.inner:
        raise HiddenSolve(HIDDEN)
    if not sols:
        raise ValueError(
            "certify: the loss did not call saltus.solve, or calls it inside a function that was "
            "compiled before. Pass a loss whose solves are not inside jax.jit."
        )
    return value, tuple(sols)


def _forward(
    watched: Callable, p: Params, gradient: Tree, sols: Sequence[Solution]
) -> tuple[Scalar, Flag]:
    """The dot test of the loss, and whether a flow jumps at the ends of motions."""

    def run(q: Params) -> tuple[Scalar, list[RowStates]]:
        value, sols = watched(q)
        return value, [RowStates.of(s.tape) for s in sols]

    direction = _direction(p)
    _, (forward, moved) = jax.jvp(run, (p,), (direction,))
    dot = _mismatch(forward, jax.tree.leaves(gradient), jax.tree.leaves(direction))
    return dot, _any([jumps_at_ends(s, d) for s, d in zip(sols, moved, strict=True)])


@rarely
def _any(flags: list) -> Flag:
    return jnp.any(jnp.stack(flags))


@rarely
def _direction(p: Params) -> Params:
    """A direction in which all parameters move, by about their sizes."""
    flat, back = ravel_pytree(p)
    return back(np.random.default_rng(3).normal(size=flat.size) * sizes_of(p))


@rarely
def _mismatch(forward: Scalar, gradient: list, steps: list) -> Scalar:
    terms = [g * v for g, v in zip(gradient, steps, strict=True)]
    return dot_mismatch([forward], terms, sum(jnp.sum(jnp.abs(v)) for v in terms))


def _reach(loss: Callable, p: Params, direction: Tree) -> Reach:
    def run(q: Params) -> tuple[list[Margins], list[Array]]:
        found = [measure(s) for s in _watched(loss, q)[1]]
        return [m.margins for m in found], [m.saves for m in found]

    (now, saves), (change, moved) = jax.jvp(run, (p,), (direction,))
    events = [radius(a, b) for a, b in zip(now, change, strict=True)]
    times = [
        jnp.min(jnp.abs(jnp.where(b != 0, a / jnp.where(b != 0, b, 1.0), INF)), initial=INF)
        for a, b in zip(saves, moved, strict=True)
    ]
    least = functools.partial(functools.reduce, jnp.minimum)
    return Reach(least(events), least(times))


def _like(p: Params, direction: Tree, owner: str) -> Tree:
    """A direction with the leaves of p."""
    if jax.tree.structure(direction) != jax.tree.structure(p):
        raise ValueError(
            f"{owner}: the direction is {jax.tree.structure(direction)}, expected a pytree like "
            f"p: {jax.tree.structure(p)}."
        )
    return jax.tree.map(lambda d, v: jnp.asarray(d, jnp.result_type(v)), direction, p)


def _downhill(p: Params, gradient: Tree) -> Tree:
    """Minus the gradient in relative parameters, of length one; `None` if it is zero."""
    step = jax.tree.map(lambda v, g: -g * v * v, p, gradient)
    largest = max(
        (float(np.max(np.abs(s / np.where(v == 0, np.inf, v)))) for s, v in zip(
            map(np.asarray, jax.tree.leaves(step)), map(np.asarray, jax.tree.leaves(p)), strict=True
        )),
        default=0.0,
    )  # fmt: skip
    if not np.isfinite(largest) or largest == 0:
        return None
    return jax.tree.map(lambda s: s / largest, step)
