"""Fully implicit equations, rewritten as a `HybridSystem` with algebraic states.

Other ways to write a model are in mass_matrices.py, modes.py and sliding_modes.py.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..base.foreign_names import answered
from ..base.foreign_parts import SYSTEM
from ..base.leaves import split
from ..base.text import picture
from ..base.types import Function, Params, Tree
from .hybrid import Event, HybridSystem, Instant, TimeEvent, called
from .views import View, count


class Implicit(NamedTuple):
    """The algebraic states of a fully implicit system: x' and the user's z."""

    dx: Tree
    z: Tree


@functools.partial(answered, table=SYSTEM)
def fully_implicit(
    residual: Function,
    *, events: Sequence[Event | TimeEvent] = (), rate: Function | None = None,
    output: Function | None = None, inputs: Function | Tree = None,
    units: dict[str, str] | None = None, index: int | Tree = None,
) -> HybridSystem:  # fmt: skip
    r"""A system $0 = F(x', x, z, d, p, t)$: `residual(now, p)` reads x' as `now.dx`.

    It returns any pytree with as many numbers as x and z together. A start is
    `Instant(t, x, z=..., dx=...)`, where `z` and `dx` are guesses (without `dx`, zeros). It is
    solved as $x' = w$, $0 = F(w, x, z, \dots)$, which has index 1 where $[F_{x'} \; F_z]$ is
    regular. The other arguments are those of `HybridSystem`; their functions may read `now.dx` too.
    """
    if not callable(residual):
        raise TypeError(
            f"fully_implicit: the residual is {residual!r}, expected a function of (now, p) that "
            "reads now.dx. Write fully_implicit(lambda now, p: now.dx + now.x)."
        )

    def constraint(now: Instant, p: Params) -> Tree:
        now = _implicit_seen(now)
        value = called("residual", residual, now, p)
        got, slopes, states = count(value), count(now.dx), count(now.z)
        if got != slopes + states:
            raise ValueError(
                f"fully_implicit: the residual returned {got} numbers, {picture(value)}, but there "
                f"are {slopes} in x' and {states} in z. Return one equation for each of them."
            )
        return value

    view = View(lambda now, p: _implicit_seen(now), _implicit_held)
    return HybridSystem(
        flow=lambda now, p: now.z.dx,
        constraint=constraint,
        events=view.events(events),
        rate=view.function("rate", rate),
        output=view.function("output", output),
        inputs=inputs,
        units=units,
        index=index,
        adapt_start=lambda now, p: _implicit_start(now),
        adapt_back=_implicit_seen,
    )


def _implicit_seen(now: Instant) -> Instant:
    return now.replace(dx=now.z.dx, z=now.z.z)


def _implicit_held(now: Instant) -> Instant:
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (now.x, now.dx)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"fully_implicit: dx is {picture(now.dx)}, but x is {picture(now.x)}. Write dx, the "
            "guess of x', with the fields of x, or leave it out."
        )
    return now.replace(dx=None, z=Implicit(now.dx, now.z))


def _implicit_start(start: Instant) -> Instant:
    if start.dx is None:
        shape, floats, _ = split(start.x, floats_only=True)
        start = start.replace(dx=shape.join([jnp.zeros_like(v) for v in floats], ()))
    return _implicit_held(start)
