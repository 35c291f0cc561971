"""Contacts of mechanisms: contacts, stops, the ground; and prescribed jumps of velocity."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..base.text import picture
from ..base.types import Flag, Function, Number, Params, Scalar, Tree, Vector
from ..system.hybrid import Event
from .description import Description, one_number
from .equations import Equations
from .impact import bounced, completed, direction, flat_mask, given_by, held, pushed, rubbed
from .motion import Motion

Valued = Number | Callable[["Motion", Params], Number]  # a number, or a function of the motion
CLOSED_GAP = 1e-8  # relative to the coordinates: contacts that take part in one impact


@dataclasses.dataclass(frozen=True, eq=False)
class Contact:
    """Two bodies that cannot penetrate each other; see `contact`."""

    name: str
    gap: Function
    restitution: Valued = 0.0
    friction: Valued | None = None
    normal: Function | None = None
    slip: Function | None = None
    phases: tuple[str, ...] | None = None
    to: str | None = None
    below: Valued | None = None
    then: Function | None = None

    def distance(self, at: Equations) -> Callable[[Scalar, Vector], Scalar]:
        """The gap as a function of (t, q)."""
        name = f'the gap of contact "{self.name}"'
        return lambda t, q: one_number(name, self.gap(at.placed(t, q, name), at.p))

    def closing(self, at: Equations) -> tuple[Vector, Scalar]:
        """The gradient of the gap, and its rate of change at zero velocity."""
        return direction(at, self.distance(at))

    def event(self, world: World) -> Event:
        return Event(
            self.name, guard=self.opening, reset=lambda now, p: self.hit(world, now, p),
            active=world.only_in(self.phases), when="contact",
        )  # fmt: skip

    def opening(self, now: Motion, p: Params) -> Scalar:
        """The gap at an instant."""
        return one_number(f'the gap of contact "{self.name}"', self.gap(now, p))

    def hit(self, world: World, now: Motion, p: Params) -> Motion:
        """The motion after the impact."""
        after = self._struck(world, now, p)
        return after if self.then is None else self.then(after, p)

    def _struck(self, world: World, now: Motion, p: Params) -> Motion:
        before = Equations(world.model, now.instant, p)
        if self.to is None:
            return now.replace(v=before.join(_velocities(world, self, before, now)))
        there = world.modes.index(self.to)
        after = Equations(world.model, now.instant.replace(mode=jnp.asarray(there)), p)
        caught = held(after)
        if self.below is None:
            return now.replace(v=before.join(caught), mode=there)
        slope, speed = self.closing(before)
        slow = -(slope @ before.v + speed) < _value(self.below, now, p)
        free = _velocities(world, self, before, now)
        mode = jnp.where(slow, there, now.mode).astype(jnp.int32)
        return now.replace(v=before.join(jnp.where(slow, caught, free)), mode=mode)


def _velocities(world: World, own: Contact, at: Equations, now: Motion) -> Vector:
    """The velocities after an impact that does not change the phase."""
    p, (slope, speed) = at.p, own.closing(at)
    e = _value(own.restitution, now, p)
    if own.normal is not None:
        return pushed(at, slope, speed, ravel_pytree(own.normal(now, p))[0], e)
    if own.friction is not None:
        along = _sliding(own, at)
        return rubbed(at, slope, speed, along, e, _value(own.friction, now, p))
    others = [c for c in world.contacts if c is not own and c.to is None and world.together]
    pairs = [(slope, speed), *(c.closing(at) for c in others)]
    slopes, speeds = jnp.stack([n for n, _ in pairs]), jnp.stack([s for _, s in pairs])
    restitution = jnp.stack([jnp.asarray(_value(c.restitution, now, p)) for c in (own, *others)])
    reach = CLOSED_GAP * (1.0 + jnp.max(jnp.abs(at.q)))
    closed = [
        (jnp.abs(c.distance(at)(at.t, at.q)) <= reach) & world.in_force(c, now, p) for c in others
    ]
    return bounced(at, slopes, speeds, restitution, jnp.stack([jnp.ones((), bool), *closed]))


def _sliding(own: Contact, at: Equations) -> Vector:
    """The gradient of the coordinate along which bodies slide."""
    name = f'the slip of contact "{own.name}"'
    assert own.slip is not None
    slip = own.slip
    return jax.grad(lambda q: one_number(name, slip(at.placed(at.t, q, name), at.p)))(at.q)


@dataclasses.dataclass(frozen=True, eq=False)
class Jump:
    """Velocities that jump to given values; see `jump`."""

    name: str
    guard: Function
    velocities: Function
    given: Tree = None
    direction: Literal["falling", "rising", "either"] = "falling"
    phases: tuple[str, ...] | None = None
    to: str | None = None

    def event(self, world: World) -> Event:
        return Event(
            self.name, guard=self.guard, reset=lambda now, p: self.hit(world, now, p),
            direction=self.direction, active=world.only_in(self.phases),
        )  # fmt: skip

    def hit(self, world: World, now: Motion, p: Params) -> Motion:
        after = now.instant
        if self.to is not None:
            after = after.replace(mode=jnp.asarray(world.modes.index(self.to)))
        at = Equations(world.model, after, p)
        value = self.velocities(now, p)
        full = {**now.v, **value} if isinstance(now.v, dict) and isinstance(value, dict) else value
        if jax.tree.structure(full) != jax.tree.structure(now.v):
            raise ValueError(
                f'jump "{self.name}": velocities returned {picture(value)}, expected fields of v: '
                f"{picture(now.v)}."
            )
        given = self.given if self.given is not None else given_by(value, now.q)
        if given is not None:
            full = jax.tree.map(jnp.where, given, full, now.v)
        mask = None if given is None else flat_mask(given)
        new = completed(at, ravel_pytree(full)[0].astype(jnp.float64), mask)
        changes: dict = {} if self.to is None else {"mode": world.modes.index(self.to)}
        return now.replace(v=at.join(new), **changes)


@dataclasses.dataclass(frozen=True, eq=False)
class Release:
    """A constraint that is released; see `release`."""

    name: str
    force: Function
    to: str
    phases: tuple[str, ...] | None = None

    def event(self, world: World) -> Event:
        return Event(
            self.name, guard=self.force, active=world.only_in(self.phases), when="level",
            reset=lambda now, p: now.replace(mode=world.modes.index(self.to)),
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class World:
    """What an impact needs from the rest of the mechanism."""

    model: Description
    contacts: tuple[Contact, ...]
    together: bool

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple(self.model.phases or ())

    def in_force(self, contact: Contact, now: Motion, p: Params) -> Flag | bool:
        only = self.only_in(contact.phases)
        return True if only is None else only(now, p)

    def only_in(self, phases: Sequence[str] | None) -> Callable | None:
        """Whether the phase is one of these."""
        if phases is None:
            return None
        numbers = [self.modes.index(name) for name in phases]
        return lambda now, p: jnp.isin(now.mode, jnp.asarray(numbers))


def _value(given: Valued, now: Motion, p: Params) -> Number:
    return given(now, p) if callable(given) else given


def _phases(given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    return None if given is None else (given,) if isinstance(given, str) else tuple(given)


def contact(
    name: str,
    gap: Function,
    *,
    restitution: Valued = 0.0,
    friction: Valued | None = None,
    normal: Function | None = None,
    slip: Function | None = None,
    phases: str | Sequence[str] | None = None,
    to: str | None = None,
    below: Valued | None = None,
    then: Function | None = None,
) -> Contact:
    r"""A contact that closes when `gap(now, p)` falls to zero; its events are called `name`.

    The impulse acts along the gradient of the gap, or along `normal(now, p)`, which has the
    structure of q. The rate of the gap becomes `-restitution` times what it was: 0 is a plastic
    impact, 1 an elastic one. `friction` is Coulomb's coefficient; `slip(now, p)` is then the
    coordinate along which the bodies slide. `restitution`, `friction` and `below` are numbers or
    functions `(now, p)`. `phases` names the phases in which the contact can happen. `to` is a phase
    to enter: an impulse makes its constraints hold, whatever the restitution; with `below`, only
    for impacts slower than that. `then(now, p)` returns further changes, as in
    `now.replace(d=...)`.
    """
    if friction is not None and slip is None:
        raise ValueError(
            f'contact "{name}": friction needs the direction in which the bodies slide. Write '
            'slip=lambda now, p: now.q["x"], the coordinate along the surface.'
        )
    if friction is not None and normal is not None:
        raise ValueError(
            f'contact "{name}": friction and normal cannot be combined: with friction, the impulse '
            "acts along the gradient of the gap. Leave one of them out."
        )
    for what, value in (("restitution", restitution), ("friction", friction)):
        if isinstance(value, int | float) and value < 0:
            raise ValueError(f'contact "{name}": {what} is {value}, expected a number >= 0.')
    if below is not None and to is None:
        raise ValueError(
            f'contact "{name}": below={below!r} says when to change the phase, but to= is missing. '
            'Write to="resting", and that phase in phases={...} of the mechanism.'
        )
    return Contact(
        name, gap, restitution, friction, normal, slip, _phases(phases), to, below, then
    )  # fmt: skip


def ground(
    name: str = "ground",
    *,
    point: Function,
    y: Number | Callable[[Scalar, Params], Number] = 0.0,
    restitution: Valued = 0.0,
    friction: Valued | None = None,
    **more: Any,
) -> Contact:
    """A floor under `point(now, p)`, a pair of horizontal and vertical coordinates.

    `y` is the height of the floor: a number, or a function `(x, p)` for uneven ground. `name`,
    `restitution`, `friction` and `more` (`phases`, `to`, `below`, `then`) are as for `contact`;
    with friction, bodies slide along the horizontal.
    """

    def gap(now: Motion, p: Params) -> Number:
        place = point(now, p)
        pair = isinstance(place, tuple | list) and len(place) == 2
        if not pair and getattr(place, "shape", None) != (2,):
            raise ValueError(
                f'ground "{name}": point returned {picture(place)}, expected two numbers, '
                "horizontal and vertical."
            )
        along, up = place
        return up - (y(along, p) if callable(y) else y)

    slip = None if friction is None else (lambda now, p: point(now, p)[0])
    return contact(name, gap, restitution=restitution, friction=friction, slip=slip, **more)


def stop(
    name: str,
    coordinate: Function,
    *,
    at: Valued,
    side: Literal["above", "below"] = "above",
    restitution: Valued = 0.0,
    **more: Any,
) -> Contact:
    """A stop for `coordinate(now, p)`, which stays on the `side` "above" or "below" of `at`.

    `at` is a number or a function `(now, p)`. `name`, `restitution` and `more` (`friction`,
    `phases`, `to` and others) are as for `contact`.
    """
    if side not in ("above", "below"):
        raise ValueError(f'stop "{name}": side is {side!r}, expected "above" or "below".')
    sign = 1.0 if side == "above" else -1.0

    def gap(now: Motion, p: Params) -> Number:
        return sign * (coordinate(now, p) - _value(at, now, p))

    return contact(name, gap, restitution=restitution, **more)


def jump(
    name: str,
    guard: Function,
    velocities: Function,
    *,
    given: Tree = None,
    direction: Literal["falling", "rising", "either"] = "falling",
    phases: str | Sequence[str] | None = None,
    to: str | None = None,
) -> Jump:
    """Velocities that jump to given values when `guard(now, p)` crosses zero.

    Momentum is not balanced. `direction` is that of the crossing: "falling", "rising" or "either".
    `name`, `phases` and `to` are as for `contact`.

    `velocities(now, p)` returns some fields of v. If it returns all of them, `given` (booleans with
    the structure of q) says which numbers count. Of the other velocities, as many as there are
    constraints are computed from the constraints, chosen by pivoting at each event; the rest do not
    change.
    """
    return Jump(name, guard, velocities, given, direction, _phases(phases), to)


def release(
    name: str, force: Callable, *, to: str, phases: str | Sequence[str] | None = None
) -> Release:
    """A constraint that is released when `force(now, p)`, for example `now.lam["foot"][1]`, falls
    to zero, or is negative when its phase begins.

    `name` is the name of its events, `to` the phase to enter, and `phases` are the phases in which
    the constraint can be released.
    """
    return Release(name, force, to, _phases(phases))
