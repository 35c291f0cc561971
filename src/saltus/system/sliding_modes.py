"""Motion along a surface between two flows that push against each other (Filippov).

Above the surface one flow holds, below it another. Where both point towards the surface the state
can neither cross it nor turn round: it slides, with the mixture of the two flows that stays on the
surface. Written with `where` such a model chatters for ever; here sliding is a mode of its own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..base.foreign_names import answered
from ..base.foreign_parts import SYSTEM
from ..base.leaves import split
from ..base.text import picture
from ..base.tracing import is_tracer
from ..base.types import Flag, Function, Params, Scalar, T, Tree, Whole
from .hybrid import Event, HybridSystem, Instant, TimeEvent, called, check_function
from .inputs import is_signal
from .modes import Mode, automaton, complete, gate

E = TypeVar("E")  # an event, as it was given
ABOVE, BELOW, SLIDING = range(3)  # in the order of the modes
NEWTON_ROUNDS = 3  # on the way back to the surface; each squares the distance
EPS = float(np.finfo(float).eps)


@functools.partial(answered, table=SYSTEM)
def sliding(
    surface: Function,
    above: Function,
    below: Function,
    *, events: Sequence[Event | TimeEvent] = (), rate: Function | None = None,
    output: Function | None = None, inputs: Function | Tree = None,
    units: dict[str, str] | None = None, name: str = "surface",
) -> HybridSystem:  # fmt: skip
    """A system with the flow `above` where `surface(now, p) > 0`, and `below` where it is negative.

    Its modes are "above", "below" and "sliding". The state slides while both flows point towards
    the surface, with the mixture of the two that stays on it. A start without a mode gets the mode
    of the place where it is. The log has one event for each side: `"surface: above"` is where the
    state leaves the mode "above" for the surface, or leaves the surface for it; `name` replaces
    "surface" there. `events` hold in all modes; a reset that moves the state off the surface, or
    across it, also changes the mode. `rate`, `output`, `inputs` and `units` are those of
    `HybridSystem`.

    A start on a part of the surface from which both flows lead away has several solutions, and is
    an error (NaN inside `jit`): name the mode. Solves run forward in time only: backward, the time
    at which sliding began cannot be found.
    """
    for label, fn in (("surface", surface), ("above", above), ("below", below)):
        write = "sliding(surface, above, below), three functions of (now, p)."
        check_function("sliding", label, fn, write=write)
    if not isinstance(name, str) or not name:
        raise TypeError(f'sliding: the name is {name!r}, expected text. Write name="belt".')
    at = Surface(surface, (above, below))
    given = (events,) if isinstance(events, Event | TimeEvent) else tuple(events)
    sides = (_side(at, f"{name}: above", ABOVE), _side(at, f"{name}: below", BELOW))
    system = automaton(
        {"above": Mode(at.above), "below": Mode(at.below), "sliding": Mode(at.along)},
        events=(*sides, *(_moving(at, e) for e in given)),
        rate=rate,
        output=output,
        inputs=inputs,
        units=units,
    )
    return dataclasses.replace(
        system,
        invariant=lambda now, p: {name: at.off(now, p)},
        projection=at.onto,
        adapt_start=lambda start, p: _begun(at, name, inputs, start, p),
        forward_only="where sliding began is not determined by the state while it slides",
    )


class _NoInputs:
    """What the surface reads as `now.u`: any access is an error that says why."""

    def _no(self, key: object) -> NoReturn:
        raise ValueError(
            "sliding: the surface reads now.u, whose rate of change is not known here. Write the "
            "surface with now.t, or keep the value in d and let a TimeEvent change it."
        )

    __getitem__ = __getattr__ = _no


class Surface(NamedTuple):
    """The surface h = 0 and the flows on its two sides."""

    surface: Function
    flows: tuple[Callable, Callable]  # above, below

    def value(self, now: Instant, p: Params) -> Scalar:
        """h: positive above."""
        seen = now if now.u is None else now.replace(u=_NoInputs())
        value = jnp.asarray(called("sliding: surface", self.surface, seen, p))
        if value.shape:
            raise ValueError(
                f"sliding: the surface returned {picture(value)}, expected a number. With several "
                "surfaces, write the modes with saltus.automaton."
            )
        return value

    def above(self, now: Instant, p: Params) -> Tree:
        return _shaped(now.x, called("sliding: above", self.flows[0], now, p))

    def below(self, now: Instant, p: Params) -> Tree:
        return _shaped(now.x, called("sliding: below", self.flows[1], now, p))

    def speed(self, now: Instant, p: Params, slope: Tree) -> Scalar:
        """The rate of h along a flow: h_t + h_x f."""

        def of(t: Scalar, x: Tree) -> Scalar:
            return self.value(now.replace(t=t, x=x), p)

        t = jnp.asarray(now.t, float)
        return jax.jvp(of, (t, now.x), (jnp.ones_like(t), slope))[1]

    def speeds(self, now: Instant, p: Params) -> tuple[Scalar, Scalar]:
        """The rates of h along both flows."""
        up, down = self.above(now, p), self.below(now, p)
        return self.speed(now, p, up), self.speed(now, p, down)

    def along(self, now: Instant, p: Params) -> Tree:
        """The mixture of the flows that stays on the surface."""
        up, down = self.above(now, p), self.below(now, p)
        s_up, s_down = self.speed(now, p, up), self.speed(now, p, down)
        # While sliding, 0 < weight < 1. A trial step may go beyond the end of sliding, even past
        # the pole where both flows lead the same way: the weight is then kept large, so that the
        # end of sliding is found.
        against = jnp.maximum(s_down - s_up, 1e-300)
        weight = jnp.clip(s_down / against, -0.5, 1.5)
        return jax.tree.map(lambda a, b: b + weight * (a - b), up, down)

    def off(self, now: Instant, p: Params) -> Scalar:
        """While sliding, how far the state is from the surface."""
        return jnp.where(now.mode == SLIDING, self.value(*gate(now, p, SLIDING)), 0.0)

    def onto(self, now: Instant, p: Params) -> Tree:
        """While sliding, the nearest x on the surface, from one that is close to it."""
        gated, p = gate(now, p, SLIDING)
        x = gated.x
        for _ in range(NEWTON_ROUNDS):
            h, normal = jax.value_and_grad(lambda x: self.value(gated.replace(x=x), p))(x)
            size = sum(jnp.sum(n * n) for n in jax.tree.leaves(normal))
            x = jax.tree.map(lambda v, n, h=h, size=size: v - n * (h / size), x, normal)
        return jax.tree.map(lambda v, w: jnp.where(now.mode == SLIDING, v, w), x, now.x)

    def rounding(self, now: Instant, p: Params) -> Scalar:
        """How far from zero h may be by the rounding of x."""
        normal = jax.grad(lambda x: self.value(now.replace(x=x), p))(now.x)
        terms = jax.tree.map(lambda v, n: jnp.sum(jnp.abs(v * n)), now.x, normal)
        total: Any = sum(jax.tree.leaves(terms))
        return 64 * EPS * total


def _shaped(x: Tree, dx: Tree) -> Tree:
    """A flow with the shapes of x."""
    dx = complete(x, dx)
    if jax.tree.structure(dx) != jax.tree.structure(x):
        raise ValueError(
            f"sliding: a flow returned {picture(dx)}, but x is {picture(x)}. Return x' with the "
            "fields of x; entries of a dict that stand still may be left out."
        )
    return jax.tree.map(lambda v, d: jnp.broadcast_to(jnp.asarray(d, v.dtype), v.shape), x, dx)


def _side(at: Surface, name: str, side: int) -> Event:
    """The event of arriving at the surface from one side, and of leaving it to that side.

    Its guard is h while the state is on its side, and while it slides the speed at which its flow
    points towards the surface. Both are one event so that h, which is zero when sliding ends, is
    the guard of the event that has just fired: it waits until h has left zero, and it does not
    matter on which side of the surface the state is by rounding or drift.
    """
    sign, other = (1, BELOW) if side == ABOVE else (-1, ABOVE)

    def push(now: Instant, p: Params) -> Scalar:
        flow = at.above if side == ABOVE else at.below
        return -sign * at.speed(now, p, flow(now, p))

    def guard(now: Instant, p: Params) -> Scalar:
        distance = sign * at.value(*gate(now, p, side))
        return jnp.where(now.mode == SLIDING, push(*gate(now, p, SLIDING)), distance)

    def reset(now: Instant, p: Params) -> Instant:
        back = sign * at.speeds(now, p)[other] > 0  # the other flow leads to this side
        arriving = jnp.where(back, SLIDING, other)
        return now.replace(mode=jnp.where(now.mode == SLIDING, side, arriving))

    return Event(name, guard, reset, active=lambda now, p: now.mode != other)


def _moving(at: Surface, event: E) -> E:
    """A user's event, whose reset may move the state off the surface or across it."""
    names = [k for k in ("reset", "zeno") if callable(getattr(event, k, None))]
    if not isinstance(event, Event | TimeEvent) or not names:
        return event
    return dataclasses.replace(event, **{k: _sided(at, getattr(event, k)) for k in names})


def _sided(at: Surface, reset: Callable) -> Callable:
    """A reset that also changes the mode, if it moves the state to another side."""

    def sided(now: Instant, p: Params) -> Instant:
        after = reset(now, p)
        if not isinstance(after, Instant) or after.mode is not now.mode:
            return after
        before, h = at.value(now, p), at.value(after, p)
        moved = jnp.abs(h - before) > at.rounding(now, p)
        return after.replace(mode=jnp.where(moved, _place(at, after, p, h)[0], now.mode))

    return sided


def _place(at: Surface, now: Instant, p: Params, h: Scalar) -> tuple[Whole, Flag]:
    """The mode of a state, and whether it is not unique because both flows lead away."""
    up, down = at.speeds(now, p)
    on = jnp.where(down > 0, jnp.where(up < 0, SLIDING, ABOVE), jnp.where(up > 0, ABOVE, BELOW))
    mode = jnp.where(h > 0, ABOVE, jnp.where(h < 0, BELOW, on))
    return mode, (h == 0) & (up > 0) & (down < 0)


def _still(tree: T) -> T:
    """The same values without derivatives; under `grad` they are known numbers."""
    return jax.tree.map(
        lambda v: jnp.asarray(jax.lax.stop_gradient(v)) if hasattr(v, "dtype") else v, tree
    )


def _begun(at: Surface, name: str, inputs: Function | Tree, start: T, p: Params) -> T | Instant:
    """A start with the mode of the place where it is."""
    if not isinstance(start, Instant) or start.mode is not None:
        return start
    shape, floats, _ = split(start.x, floats_only=True)
    t, quiet, p = _still((jnp.asarray(start.t, float), floats, p))
    now = start.replace(t=t, x=shape.join(quiet, ()))
    tree = inputs(p) if callable(inputs) else inputs
    now = now.replace(
        u=jax.tree.map(lambda s: s.value(now.t, s.segment(now.t, False)), tree, is_leaf=is_signal)
    )
    mode, repelled = _place(at, now, p, at.value(now, p))
    if not is_tracer(repelled):
        if repelled:
            raise ValueError(
                f'sliding: the start is on "{name}" where both flows lead away from it, so that '
                'there is more than one solution. Choose one: Instant(..., mode="above") or '
                'mode="below".'
            )
        return start.replace(mode=int(mode))
    lost = jnp.where(repelled, jnp.nan, 0.0)
    return start.replace(x=shape.join([v + lost.astype(v.dtype) for v in floats], ()), mode=mode)
