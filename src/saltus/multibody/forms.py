"""Three ways to compute the motion of a mechanism, each as a `HybridSystem`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..base.types import Number, Params, Tree, Vector
from ..system.hybrid import Instant
from ..system.views import View
from .description import Description
from .equations import Equations
from .motion import Motion

Solved = Callable[[Instant, Any], tuple[Any, Any]]  # accelerations and multipliers, as vectors


@dataclasses.dataclass(frozen=True)
class Form:
    """How accelerations and multipliers follow from the state."""

    model: Description
    solved: Solved

    def motion(self, now: Instant, p: Params) -> Motion:
        def values() -> tuple[Tree, Tree]:
            join = ravel_pytree(now.x["q"])[1]
            a, lam = self.solved(now, p)
            return join(a), self.model.rows(now, p).join(lam)

        return Motion(now, values)

    @property
    def view(self) -> View:
        """How the user's functions are called: with a `Motion`."""
        return View(self.motion, lambda after: after.instant, Motion)


def _slopes(now: Instant, a: Vector) -> dict[str, Tree]:
    join = ravel_pytree(now.x["v"])[1]
    return {"q": now.x["v"], "v": join(a)}


def index1(model: Description) -> tuple[Form, dict]:
    """Multipliers from the second derivative of the constraints; states projected (M61, M62)."""
    form = Form(model, lambda now, p: Equations(model, now, p).constrained)

    def flow(now: Instant, p: Params) -> dict[str, Tree]:
        return _slopes(now, form.solved(now, p)[0])

    if model.constraint is None:
        return form, {"flow": flow}

    def invariant(now: Instant, p: Params) -> dict[str, Tree]:
        at = Equations(model, now, p)
        position, velocity = at.position(at.t, at.q), at.velocity(at.t, at.q, at.v)
        return {"position": at.rows.join(position), "velocity": at.rows.join(velocity)}

    def projection(now: Instant, p: Params) -> dict[str, Tree]:
        at = Equations(model, now, p)
        q, v = at.projected()
        return {"q": at.join(q), "v": at.join(v)}

    return form, {"flow": flow, "invariant": invariant, "projection": projection}


def index2(model: Description) -> tuple[Form, dict]:
    """Constraints of positions and velocities with a multiplier each (M63)."""
    if model.constraint is None:
        return index1(model)

    def moved(at: Equations) -> tuple[Vector, Vector]:
        lam = ravel_pytree(at.now.z["lam"])[0]
        return at.divide(at.force + at.pull(lam)), lam

    def flow(now: Instant, p: Params) -> dict[str, Tree]:
        at = Equations(model, now, p)
        kept = at.v + at.pull(ravel_pytree(now.z["mu"])[0])
        return {"q": at.join(kept), "v": at.join(moved(at)[0])}

    def constraint(now: Instant, p: Params) -> dict[str, Tree]:
        return _held(model, now, p)[0]

    def adapt_start(now: Instant, p: Params) -> Instant:
        if now.z is not None:
            return now
        rows = model.rows(now, p)
        rest = rows.join(jnp.zeros((len(rows.names),)))
        return now.replace(z={"mu": rest, "lam": rest})

    parts = {"flow": flow, "constraint": constraint, "index": 2, "adapt_start": adapt_start}
    if model.phases is not None:
        parts["pinned"] = Pins(model)
    return Form(model, lambda now, p: moved(Equations(model, now, p))), parts


def _held(model: Description, now: Instant, p: Params) -> tuple[dict[str, Tree], dict[str, Tree]]:
    """The equations of the index-2 form, and which of them only set a multiplier to zero."""
    at = Equations(model, now, p)
    held = {"mu": at.position(at.t, at.q), "lam": at.velocity(at.t, at.q, at.v)}
    loose = {k: at.rows.join(jnp.zeros(at.count, bool)) for k in held}
    if at.mask is not None:
        free = {k: ravel_pytree(now.z[k])[0] for k in held}
        held = {k: jnp.where(at.mask, held[k], free[k]) for k in held}
        loose = {k: at.rows.join(~at.mask) for k in held}
    return {k: at.rows.join(v) for k, v in held.items()}, loose


@dataclasses.dataclass(frozen=True)
class Pins:
    """Which multipliers are zero because their constraints are not in force."""

    model: Description

    def __call__(self, now: Instant, p: Params) -> dict[str, Tree]:
        return _held(self.model, now, p)[1]

    @property
    def rules(self) -> dict[str, Callable]:
        """Equations and pins of each phase, for a phase that is known in advance."""
        return {phase: functools.partial(self._rule, phase) for phase in self.model.phases or ()}

    def _rule(self, phase: str, now: Instant, p: Params) -> tuple[dict[str, Tree], dict[str, Tree]]:
        at = Equations(self.model, now.replace(mode=phase), p)
        rows, held = at.rows, self.model.held(phase)
        pins = [label not in held for label in rows.labels]
        values = {"mu": at.position(at.t, at.q), "lam": at.velocity(at.t, at.q, at.v)}
        out = {}
        for k, v in values.items():
            pairs = zip(pins, jax.tree.leaves(rows.join(v)), jax.tree.leaves(now.z[k]), strict=True)
            out[k] = rows.treedef.unflatten([z if pin else value for pin, value, z in pairs])
        flags = rows.treedef.unflatten(pins)
        return out, {k: flags for k in values}


def penalty(model: Description, alpha: Number, omega: Number, xi: Number) -> tuple[Form, dict]:
    """Constraints as stiff, damped springs with inertia (M64)."""

    def solved(now: Instant, p: Params) -> tuple[Vector, Vector]:
        return Equations(model, now, p).softened(alpha, omega, xi)

    return Form(model, solved), {"flow": lambda now, p: _slopes(now, solved(now, p)[0])}
