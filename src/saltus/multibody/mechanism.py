"""Mechanisms: masses, forces, constraints and contacts, and the systems they become."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..base.foreign_parts import MECHANISM, constructs
from ..base.leaves import frozen, precise
from ..base.text import picture
from ..base.tracing import is_traced, is_tracer
from ..base.types import Array, Flag, Function, Number, Params, Tree
from ..solution.animation import animate
from ..solution.solution import Solution
from ..system.hybrid import Event, HybridSystem, Instant, TimeEvent
from .assembly import (
    Assembly,
    assembled,
    checked,
    massive,
    near,
    numbered_mode,
    positive_mass,
    report,
)
from .contacts import Contact, Jump, Release, World
from .description import Description
from .equations import Equations
from .forms import Form, index1, index2, penalty
from .impact import held
from .motion import Motion

T = TypeVar("T")
Meeting = Contact | Jump | Release  # what `contacts` holds
FORMS = ("index1", "index2", "penalty")
PENALTY = {"alpha": 1e7, "omega": 10.0, "xi": 1.0}


@constructs(MECHANISM)
class Mechanism:
    r"""Bodies with inertia, forces, constraints and contacts: $M\ddot q = F + \Phi_q^T\lambda$.

    Every function is `(now, p)`, with `now.q` and `now.v`, any pytree, and `now.t`.

    `mass` is the mass matrix or a function that returns it: a number, a mass for each coordinate
    (the fields of q), or a matrix, whose rows are in the order of the leaves of q (those of a dict
    are sorted by name). `force` returns the fields of q. Instead of `mass`, give `kinetic`, the
    kinetic energy, if the mass depends on q: the mass matrix and the inertial forces follow from
    it. `potential` adds the forces of a potential energy. `constraint` returns numbers that are
    zero, any pytree. `phases` maps names to the constraints that hold in each phase, for mechanisms
    that change them. `contacts` are made by `contact`, `ground`, `stop`, `jump` and `release`.
    `events` are `Event` and `TimeEvent`; their functions, `cost` (integrands) and `output` may also
    read `now.a` and `now.lam`. `inputs` and `units` are as in `HybridSystem`.

    `impacts` says how contacts that close at the same instant are treated: "one by one" (in order
    of declaration, repeated until none is approaching) or "together" (one impulse system for all).
    These are different models: rigid bodies alone do not determine the result.

    `sparsity="detect"` finds out which constraints act on the same coordinates. If each shares them
    with few others, as in a chain, and `mass` is one number per coordinate, the cost then grows
    with the number of constraints instead of its cube. "dense" always uses dense matrices.
    """

    def __init__(
        self,
        mass: Tree | Function | None = None,
        force: Function | None = None,
        constraint: Function | None = None,
        *,
        potential: Function | None = None,
        kinetic: Function | None = None,
        contacts: Meeting | Sequence[Meeting] = (),
        events: Sequence[Event | TimeEvent] = (),
        phases: Mapping[str, Sequence[str]] | None = None,
        cost: Function | None = None,
        output: Function | None = None,
        inputs: Tree = None,
        units: dict[str, str] | None = None,
        impacts: Literal["one by one", "together"] = "one by one",
        sparsity: Literal["detect", "dense"] = "detect",
    ):
        if (mass is None) == (kinetic is None):
            raise TypeError(
                "Mechanism: give either mass or kinetic. Write Mechanism(mass=lambda now, p: "
                'p["m"], ...).'
            )
        if impacts not in ("one by one", "together"):
            raise ValueError(
                f'Mechanism: impacts is {impacts!r}, expected "one by one" or "together".'
            )
        if sparsity not in ("detect", "dense"):
            raise ValueError(f'Mechanism: sparsity is {sparsity!r}, expected "detect" or "dense".')
        if phases is not None and constraint is None:
            raise TypeError(
                "Mechanism: phases say which constraints are in force, but there is no constraint. "
                "Write constraint=lambda now, p: {...}."
            )
        self.model = Description(mass, force, constraint, potential, kinetic, phases, sparsity)
        one = isinstance(contacts, Contact | Jump | Release)
        self.contacts: tuple[Meeting, ...] = (contacts,) if one else tuple(contacts)
        self.events = (events,) if isinstance(events, Event | TimeEvent) else tuple(events)
        _check_contacts(self.contacts, tuple(phases or ()))
        self.cost, self.output, self.inputs, self.units = cost, output, inputs, units
        touching = tuple(c for c in self.contacts if isinstance(c, Contact))
        alone = [c.name for c in touching if c.friction is not None or c.normal is not None]
        if impacts == "together" and alone:
            raise ValueError(
                f'Mechanism: contact "{alone[0]}" has friction or a normal of its own, which '
                'impacts="together" cannot handle. Leave it out, or use impacts="one by one".'
            )
        self._world = World(self.model, touching, impacts == "together")
        self._systems: dict[tuple, HybridSystem] = {}

    def system(
        self,
        form: Literal["index1", "index2", "penalty"] = "index1",
        *,
        alpha: Number | None = None,
        omega: Number | None = None,
        xi: Number | None = None,
    ) -> HybridSystem:
        r"""The mechanism as a system for `solve`, with states `x = {"q": ..., "v": ...}`.

        `form` is one of three. "index1": an ODE with multipliers from the second derivative of the
        constraints; coordinates and velocities are projected onto them after every step. "index2":
        the stabilised DAE of Gear, Gupta and Leimkuhler, with multipliers
        `z = {"lam": ..., "mu": ...}`. "penalty": an ODE in which constraints are springs,
        $\lambda^* = -\alpha(\ddot\Phi + 2\xi\omega\dot\Phi + \omega^2\Phi)$; by default `alpha` is
        1e7, `omega` 10 and `xi` 1.
        """
        given = {"alpha": alpha, "omega": omega, "xi": xi}
        _check_constants(form, given)
        key = (form, *(PENALTY[k] if v is None else v for k, v in given.items()))
        if not all(isinstance(v, str | int | float) for v in key):
            return self._system(*key)
        if key not in self._systems:
            self._systems[key] = self._system(*key)
        return self._systems[key]

    def _system(self, form: str, alpha: Number, omega: Number, xi: Number) -> HybridSystem:
        way, parts = self._form(form, alpha, omega, xi)
        happenings = (*(c.event(self._world) for c in self.contacts), *self.events)
        return HybridSystem(
            events=way.view.events(happenings), rate=way.view.function("cost", self.cost),
            output=way.view.function("output", self.output), inputs=self.inputs, units=self.units,
            modes=tuple(self.model.phases or ()),
            check_start=lambda now, p: self._check(form, (alpha, omega, xi), now, p), **parts,
        )  # fmt: skip

    def _form(self, form: str, alpha: Number, omega: Number, xi: Number) -> tuple[Form, dict]:
        if form == "index1":
            return index1(self.model)
        if form == "index2":
            return index2(self.model)
        if form == "penalty":
            # arrays are arguments of the compiled program: other values do not recompile it
            return penalty(self.model, *(jnp.asarray(v, float) for v in (alpha, omega, xi)))
        raise ValueError(f"Mechanism: form is {form!r}, expected one of {list(FORMS)}.")

    def _check(self, form: str, constants: tuple, now: Instant, p: Params) -> Flag | None:
        """Raise an error for an invalid start; inside `jit`, return whether it is valid."""
        given = (now, p, constants)
        now, p, constants = jax.tree.map(lambda v: frozen(v) if is_tracer(v) else v, given)
        if is_traced((now, p, constants)):
            good = massive(self.model, now, p) & self._apart(now, p)
            if form == "penalty":  # the other forms check their own equations
                signs = jnp.stack([jnp.asarray(v) > 0 for v in constants])
                good = good & near(self.model, now, p) & jnp.all(signs)
            return good
        positive_mass(self.model, now, p)
        self._check_gaps(now, p)
        if form == "index2" and self.model.constraint is not None:
            found = report(self.model, now, p)
            if found.redundant:
                raise ValueError(
                    f"Mechanism: the constraints {', '.join(found.redundant)} follow from the "
                    "others, so that the multipliers of the index-2 form are not determined. Leave "
                    'them out, or use system("index1") or system("penalty").'
                )

    def _check_gaps(self, now: Instant, p: Params) -> None:
        """Raise an error if bodies overlap at the start: their contact would never close."""
        room = 1e-8 * (1.0 + max(float(np.max(np.abs(v))) for v in jax.tree.leaves(now.x["q"])))
        for c in self._world.contacts:
            here = c.phases is None or now.mode in (*c.phases, *map(self._number, c.phases))
            gap = float(c.opening(Motion(now), p)) if here else 0.0
            if gap < -room:
                raise ValueError(
                    f'Mechanism: the gap of contact "{c.name}" is {gap:.3g} at the start: the '
                    "bodies overlap. Start with gaps that are not negative."
                )

    def _apart(self, now: Instant, p: Params) -> Flag:
        """Whether no bodies overlap."""
        sizes = [jnp.max(jnp.abs(v)) for v in jax.tree.leaves(now.x["q"])]
        room, apart = 1e-8 * (1.0 + functools.reduce(jnp.maximum, sizes)), jnp.ones((), bool)
        mode = numbered_mode(self.model, now).mode
        for c in self._world.contacts:
            away = jnp.asarray([mode != self._number(k) for k in c.phases or ()] or [False])
            apart = apart & (jnp.all(away) | (c.opening(Motion(now), p) >= -room))
        return apart

    def _number(self, phase: str) -> int:
        return list(self.model.phases or ()).index(phase)

    def animate(self, sol: Solution, points: Callable, *args: Any, **options: Any) -> Path:
        """An animation of the motion `sol` by `saltus.animate`; `points(now, p)` reads `now.q`.

        `args` and `options` are those of `saltus.animate`.
        """
        return animate(sol, lambda now, p: points(Motion(now), p), *args, **options)

    @precise
    def start(
        self,
        q: Tree,
        v: Tree = None,
        p: Params = None,
        *,
        t: Number = 0.0,
        d: Tree = None,
        phase: str | None = None,
        assemble: bool = False,
        hold: Sequence[str] = (),
    ) -> Instant:
        """An instant to start from, at the time `t`: coordinates `q`, velocities `v` (zero if not
        given), the discrete state `d`, and the name of the `phase`, if the mechanism has phases.

        The constraints are checked with the parameters `p`. With `assemble=True`, coordinates and
        velocities are guesses that are moved onto the constraints, except the coordinates named in
        `hold`; the start then has the right derivatives with respect to `p`.
        """
        v = jax.tree.map(jnp.zeros_like, q) if v is None else v
        x = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), {"q": q, "v": v})
        if jax.tree.structure(x["q"]) != jax.tree.structure(x["v"]):
            raise ValueError(
                f"Mechanism: q is {picture(q)} and v is {picture(v)}, expected the same fields."
            )
        now = Instant(t=t, x=x, d=d, mode=self._phase(phase))
        if assemble and self.model.constraint is not None:
            now = assembled(self.model, now, p, hold)
        checked(self.model, now, p, assemble)
        return now

    def _phase(self, phase: str | None) -> str | None:
        phases = self.model.phases
        if phases is None or phase in phases:
            return phase
        raise ValueError(
            f"Mechanism: the phase of the start is {phase!r}, expected one of {list(phases)}. "
            f'Write start(..., phase="{next(iter(phases))}").'
        )

    @precise
    def report(self, now: Instant, p: Params) -> Assembly:
        """Degrees of freedom, redundant constraints and residuals at the instant `now`.

        `p` are the parameters, here and in the methods below.
        """
        return report(self.model, now, p)

    @precise
    def energy(self, now: Instant | Motion, p: Params) -> Array:
        """Kinetic plus potential energy at `now` (only forces in `potential` count).

        For many instants at once (`sol.at(ts)`) an array.
        """
        return self._over(lambda at: at.energy(), now, p)

    @precise
    def residuals(self, now: Instant | Motion, p: Params) -> dict[str, Tree]:
        """Residuals of the position and velocity constraints at `now`, or at many instants."""

        def both(at: Equations) -> dict:
            position, velocity = at.position(at.t, at.q), at.velocity(at.t, at.q, at.v)
            return {"position": at.rows.join(position), "velocity": at.rows.join(velocity)}

        return self._over(both, now, p)

    @precise
    def impact(self, now: Instant | Motion, p: Params, phase: str | None = None) -> Tree:
        """The velocities after a plastic impact at `now` that makes the constraints hold.

        With `phase`, the constraints of that phase.
        """
        instant = now.instant if isinstance(now, Motion) else now
        if phase is not None:
            instant = instant.replace(mode=self._phase(phase))
        at = Equations(self.model, instant, p)
        return at.join(held(at))

    def _over(self, fn: Callable[[Equations], T], now: Instant | Motion, p: Params) -> T:
        """`fn` of the equations at an instant, or at each of many."""
        instant = numbered_mode(self.model, now.instant if isinstance(now, Motion) else now)
        one = lambda n: fn(Equations(self.model, n, p))
        return jax.vmap(one)(instant) if jnp.ndim(instant.t) else one(instant)


def _check_constants(form: str, given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None and form != "penalty":
            raise ValueError(f'Mechanism: {name} is for the form "penalty", not "{form}".')
        if value is not None and not is_tracer(value) and not np.all(np.asarray(value) > 0):
            raise ValueError(f"Mechanism: {name} is {value}, expected a positive number.")


def _check_contacts(contacts: tuple, phases: tuple[str, ...]) -> None:
    for c in contacts:
        if not hasattr(c, "event"):
            raise TypeError(
                f"Mechanism: contacts contains {c!r}, expected the result of contact, ground, "
                "stop, jump or release. Events belong in events=[...]."
            )
        for name in (*(c.phases or ()), *([c.to] if c.to else [])):
            if name not in phases:
                raise ValueError(
                    f'Mechanism: contact "{c.name}" refers to phase {name!r}, but the phases '
                    f"are {list(phases)}. Write phases={{{name!r}: (...)}}."
                )
