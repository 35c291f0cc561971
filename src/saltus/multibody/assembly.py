"""The start of a mechanism: coordinates and velocities that obey its constraints, and its degrees
of freedom."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..base.captured_values import current
from ..base.leaves import frozen, split
from ..base.tracing import is_traced
from ..base.types import Array, Flag, Matrix, Params, Tree, Vector, Whole
from ..linalg.dense import MIN_PIVOT, leading
from ..linalg.factor import pseudo_inverse
from ..system.hybrid import Instant
from .description import Description
from .equations import Equations

NEWTON_STEPS = 100  # of an assembly
DERIVATIVE_ORDER = 3  # up to which derivatives of an assembled start are exact
SINGULAR_CONDITION = 1e4  # of the constraints: above it, there is a warning at the start
RESIDUAL_LIMIT = 1e-8  # of constraints, relative to their gradients
SPRING_RESIDUAL_LIMIT = 1e-4  # the same for springs that replace constraints


@dataclasses.dataclass(frozen=True)
class Assembly:
    """Rank, redundancy and residuals of a mechanism's constraints at an instant."""

    coordinates: int
    constraints: int
    rank: int
    redundant: tuple[str, ...]  # constraints that follow from the others
    condition: float  # of the rest: large near a singular configuration
    position: dict[str, float]  # residuals, divided by the size of their gradients
    velocity: dict[str, float]

    @property
    def freedom(self) -> int:
        """Degrees of freedom."""
        return self.coordinates - self.rank

    @property
    def consistent(self) -> bool:
        values = [*self.position.values(), *self.velocity.values()]
        return all(abs(v) <= RESIDUAL_LIMIT for v in values)

    def __str__(self) -> str:
        lines = [
            f"{self.coordinates} coordinates, {self.constraints} constraints of rank {self.rank}: "
            f"{self.freedom} degrees of freedom (condition {self.condition:.2g})"
        ]
        if self.redundant:
            lines.append(f"redundant: {', '.join(self.redundant)} (follow from the others)")
        for what, values in (("position", self.position), ("velocity", self.velocity)):
            worst = max(values, key=lambda k: abs(values[k]), default=None)
            if worst is not None:
                lines.append(
                    f"largest {what} residual, over its gradient: {worst} = {values[worst]:.2e}"
                )
        return "\n".join(lines)


class _Numbers(NamedTuple):
    """Numbers computed from the constraints and the inertia at an instant."""

    slope: Matrix
    position: Vector
    velocity: Vector
    mass: Array
    mask: Array | None


@eqx.filter_jit
def _numbers(model: Description, now: Instant, p: Params, reads: Hashable) -> _Numbers:
    """`reads` are the values that the model's functions read; new values need a new program."""
    at = Equations(model, now, p)
    velocity = at.velocity(at.t, at.q, at.v)
    return _Numbers(at.slope, at.position(at.t, at.q), velocity, at.mass, at.mask)


def numbered_mode(model: Description, now: Instant) -> Instant:
    """The instant with its phase as a number."""
    known = isinstance(now.mode, str)
    return now.replace(mode=list(model.phases or ()).index(now.mode)) if known else now


def report(model: Description, now: Instant, p: Params) -> Assembly:
    """Rank, redundant constraints and residuals, on the host."""
    now = numbered_mode(model, now)
    found = jax.tree.map(np.asarray, _numbers(model, now, p, current(model).key))
    rows, n = model.rows(now, p), found.slope.shape[1]
    active = np.ones(len(rows.names), bool) if found.mask is None else found.mask
    names = np.array(rows.names)[active]
    slope = found.slope[active]
    scale = np.linalg.norm(slope, axis=1)
    scaled = slope / _nonzero(scale)[:, None]
    kept = np.asarray(leading(jnp.asarray(slope @ slope.T))) if len(names) else np.ones(0, bool)
    sizes = np.linalg.svd(scaled[kept], compute_uv=False)
    residuals = [
        {str(k): float(v) for k, v in zip(names, value[active] / _nonzero(scale), strict=True)}
        for value in (found.position, found.velocity)
    ]
    return Assembly(
        n, len(names), int(kept.sum()), tuple(map(str, names[~kept])),
        float(sizes[0] / sizes[-1]) if len(sizes) else 1.0, *residuals,
    )  # fmt: skip


def _nonzero(scale: np.ndarray) -> np.ndarray:
    return np.where(scale > 0, scale, 1.0)


def assembled(model: Description, now: Instant, p: Params, hold: Sequence[str] = ()) -> Instant:
    """Coordinates and velocities near those of `now` that obey the constraints (M67).

    Coordinates named in `hold` stay, and so do their velocities.
    """
    free = jnp.asarray(~_named(now.x["q"], hold), jnp.float64)
    x = _assembled(model, numbered_mode(model, now), p, free, current(model).key)
    return now.replace(x=x)


@eqx.filter_jit
def _assembled(
    model: Description, now: Instant, p: Params, free: Vector, reads: Hashable
) -> dict[str, Tree]:
    calm, quiet = frozen((now, p))

    first = Equations(model, calm, quiet)

    def back_at(q: Vector) -> Matrix:
        here = calm.replace(x={"q": first.join(q), "v": calm.x["v"]})
        inner = Equations(model, here, quiet).slope * free[None, :]
        return inner.T @ pseudo_inverse(inner @ inner.T)

    def closer(_: Whole, q: Vector) -> Vector:
        change = back_at(q) @ first.position(first.t, q)
        largest = jnp.max(jnp.abs(change))
        room = 0.3 * (jnp.max(jnp.abs(q)) + 1e-3)  # no step so long that it leaves the branch
        return q - change * jnp.minimum(1.0, room / jnp.where(largest > 0, largest, 1.0))

    root = jax.lax.fori_loop(0, NEWTON_STEPS, closer, first.q)
    back = frozen(back_at(root))
    at = Equations(model, now, p)
    q, v = at.q + frozen(root - first.q), at.v
    for _ in range(DERIVATIVE_ORDER):
        q = q - back @ at.position(at.t, q)
    for _ in range(DERIVATIVE_ORDER + 1):
        v = v - back @ at.velocity(at.t, q, v)
    return {"q": at.join(q), "v": at.join(v)}


def _named(q: Tree, hold: Sequence[str]) -> np.ndarray:
    """Which numbers of q belong to the leaves named in `hold`."""
    shape, leaves, _ = split(q, floats_only=True)
    names = shape.names()
    hold = [hold] if isinstance(hold, str) else list(hold)
    unknown = [h for h in hold if h not in names]
    if unknown:
        raise ValueError(f"start: hold names {unknown[0]!r}, but the coordinates are {names}.")
    parts = [np.full(np.size(v), n in hold) for n, v in zip(names, leaves, strict=True)]
    return np.concatenate(parts)


def checked(model: Description, now: Instant, p: Params, assembled: bool) -> None:
    """Raises an error or warns if something is wrong with a start whose numbers are known."""
    if is_traced((now, p)) or model.constraint is None:
        return
    found = report(model, now, p)
    if not found.consistent:
        what, advice = (
            "The start does not obey the constraints",
            "Correct it, or write start(..., assemble=True) to move it onto them",
        )
        if assembled:
            what = "No coordinates that obey the constraints were found"
            advice = "Start from a better guess"
        raise ValueError(f"Mechanism: {what}. {advice}.\n{found}")
    if found.condition > SINGULAR_CONDITION:
        warnings.warn(
            "Mechanism: the start is close to a singular configuration, where constraints become "
            f"dependent (condition {found.condition:.1e}): forces and accelerations are large or "
            "undetermined there.",
            stacklevel=3,
        )
    if found.redundant:
        warnings.warn(
            f"Mechanism: the constraints {', '.join(found.redundant)} follow from the others: "
            f"rank {found.rank} of {found.constraints}. Their multipliers are set to zero, and "
            "those of the others are one choice of many.",
            stacklevel=3,
        )


def massive(model: Description, now: Instant, p: Params) -> Flag:
    """Whether every coordinate has inertia, for use inside a compiled program."""
    mass = Equations(model, numbered_mode(model, now), p).mass
    sizes = mass if mass.ndim == 1 else jnp.linalg.eigvalsh(0.5 * (mass + mass.T))
    return jnp.all(sizes > MIN_PIVOT * jnp.max(jnp.abs(sizes)))


def near(model: Description, now: Instant, p: Params) -> Flag:
    """Whether a start obeys the constraints as well as springs that replace them do."""
    if model.constraint is None:
        return jnp.ones((), bool)
    at = Equations(model, numbered_mode(model, now), p)
    scale = jnp.linalg.norm(at.slope, axis=1)
    scale = jnp.where(scale > 0, scale, 1.0)
    rows = jnp.ones(scale.shape, bool) if at.mask is None else at.mask
    pairs = ((at.position(at.t, at.q), at.q), (at.velocity(at.t, at.q, at.v), at.v))
    off = [
        jnp.abs(r) / scale > SPRING_RESIDUAL_LIMIT * (1.0 + jnp.max(jnp.abs(size)))
        for r, size in pairs
    ]
    return ~jnp.any(rows & (off[0] | off[1]))


def positive_mass(model: Description, now: Instant, p: Params) -> None:
    """Every coordinate needs inertia."""
    mass = np.asarray(_numbers(model, numbered_mode(model, now), p, current(model).key).mass)
    sizes = mass if mass.ndim == 1 else np.linalg.eigvalsh(0.5 * (mass + mass.T))
    if not np.all(sizes > MIN_PIVOT * np.max(np.abs(sizes))):
        raise ValueError(
            f"Mechanism: the mass matrix is not positive definite (its smallest eigenvalue is "
            f"{sizes.min():.3g}). Every coordinate needs inertia: give massless ones a small mass, "
            "or eliminate them."
        )
