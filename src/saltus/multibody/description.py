"""The user's functions of a mechanism, checked and turned into functions of vectors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..base.leaves import split
from ..base.names import numbered
from ..base.text import picture
from ..base.tracing import is_tracer
from ..base.types import Array, Function, Matrix, Number, Params, Scalar, Tree, Vector, Whole
from ..system.hybrid import Instant, called
from .motion import Motion

if TYPE_CHECKING:
    from .equations import Equations


class Rows(NamedTuple):
    """The structure of a constraint: a name for every number, and their pytree."""

    names: tuple[str, ...]
    labels: tuple[str, ...]  # of the leaves
    treedef: Any
    shapes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> list[int]:
        return [int(np.prod(s)) for s in self.shapes]

    def join(self, vector: Vector) -> Tree:
        """A vector of multipliers as a tree like the constraint."""
        parts = jnp.split(vector, np.cumsum(self.sizes)[:-1]) if self.shapes else []
        pairs = zip(parts, self.shapes, strict=True)
        return self.treedef.unflatten([jnp.reshape(v, s) for v, s in pairs])


@dataclasses.dataclass(frozen=True, eq=False)
class Description:
    """The functions of a mechanism; each is called with a `Motion` and the parameters."""

    mass: Tree | Function
    force: Callable | None
    constraint: Callable | None
    potential: Callable | None
    kinetic: Callable | None
    phases: Mapping[str, Sequence[str]] | None
    sparsity: str = "detect"

    # -- constraints ------------------------------------------------------------------------------
    def rows(self, now: Instant, p: Params) -> Rows:
        """The structure of the constraint, without computing anything."""
        if isinstance(now.mode, str):
            now = now.replace(mode=jnp.zeros((), jnp.int32))
        tree = jax.eval_shape(lambda: self._constraint(Motion(now, frozen="constraint"), p))
        flat, treedef = jax.tree.flatten(tree)
        if self.constraint is not None and not flat:
            raise ValueError(
                f"Mechanism: constraint returned {picture(tree)}, expected numbers that are zero. "
                "Leave constraint out if there is none."
            )
        shapes = tuple(v.shape for v in flat)
        blank = jax.tree.map(lambda s: np.zeros(s.shape), tree)
        labels = [n or "constraint" for n in split(blank)[0].names()]
        self._check_phases(labels)
        return Rows(tuple(numbered(labels, shapes, "")), tuple(labels), treedef, shapes)

    def _constraint(self, now: Motion, p: Params) -> Tree:
        if self.constraint is None:
            return ()
        value = called("constraint", self.constraint, now, p)
        return jax.tree.map(lambda v: jnp.asarray(v, jnp.float64), value)

    def held(self, phase: str) -> list[str]:
        """The constraints in force in a phase."""
        held = (self.phases or {})[phase]
        return [held] if isinstance(held, str) else list(held)

    def _check_phases(self, leaves: Sequence[str]) -> None:
        for phase in self.phases or ():
            for name in self.held(phase):
                if name not in leaves:
                    raise ValueError(
                        f'Mechanism: phase "{phase}" holds "{name}", but the constraint has '
                        f"{list(leaves)}. Return the constraint as a dict with these names."
                    )

    def constraint_vector(self, now: Motion, p: Params) -> Vector:
        return ravel_pytree(self._constraint(now, p))[0].astype(jnp.float64)

    def mask(self, rows: Rows, mode: Whole | int | str | None) -> Array | None:
        """Which rows of the constraint are in force; `None` where all are."""
        if self.phases is None or not rows.names:
            return None
        table = [[name in self.held(phase) for name in rows.labels] for phase in self.phases]
        if isinstance(mode, str):
            mode = list(self.phases).index(mode)
        return jnp.asarray(np.repeat(np.array(table, bool), rows.sizes, axis=1))[mode]

    # -- inertia and forces -----------------------------------------------------------------------
    def mass_of(self, at: Equations) -> Array:
        n = at.q.size
        if self.kinetic is not None:
            return jax.hessian(lambda v: self._kinetic(at, at.t, at.q, v))(at.v)
        now = at.placed(at.t, at.q, "mass")
        value = called("mass", self.mass, now, at.p) if callable(self.mass) else self.mass
        if jax.tree.structure(value) == jax.tree.structure(now.q):
            try:
                wide = jax.tree.map(lambda m, q: jnp.broadcast_to(m, jnp.shape(q)), value, now.q)
                return ravel_pytree(jax.tree.map(lambda m: jnp.asarray(m, jnp.float64), wide))[0]
            except ValueError:
                pass  # a matrix for a vector of coordinates
        shape = getattr(value, "shape", () if isinstance(value, int | float) else None)
        if shape == ():
            return jnp.broadcast_to(jnp.asarray(value, jnp.float64), (n,))
        if shape == (n, n):
            return jnp.asarray(value, jnp.float64)
        raise ValueError(
            f"Mechanism: mass is {picture(value)}, expected a number, one mass for each coordinate "
            f"(the fields of q: {picture(now.q)}), or a matrix of {n} x {n}."
        )

    def constant_inverse(self, n: int) -> Matrix | None:
        """The inverse of a mass matrix that was given as numbers."""
        if getattr(self.mass, "shape", None) != (n, n) or is_tracer(self.mass):
            return None
        return jnp.asarray(np.linalg.inv(np.asarray(self.mass, float)))

    def force_of(self, at: Equations) -> Vector:
        """All forces but those of constraints."""
        now = at.seen(at.t, at.q, at.v)
        total = jnp.zeros_like(at.q)
        if self.force is not None:
            value = called("force", self.force, now, at.p)
            if jax.tree.structure(value) != jax.tree.structure(now.q):
                raise ValueError(
                    f"Mechanism: force returned {picture(value)}, expected the fields of q: "
                    f"{picture(now.q)}."
                )
            total = total + ravel_pytree(jax.tree.map(_wide, value, now.q))[0]
        if self.potential is not None:
            total = total - jax.grad(lambda q: self._potential(at, at.t, q))(at.q)
        if self.kinetic is not None:
            total = total + self._inertial(at)
        return total

    def _inertial(self, at: Equations) -> Vector:
        r"""$T_q - \frac{d}{dt} T_v$ along a motion without acceleration: Coriolis and the like."""
        turn = jax.grad(lambda t, q: self._kinetic(at, t, q, at.v), argnums=1)(at.t, at.q)
        momentum = jax.grad(lambda t, q, v: self._kinetic(at, t, q, v), argnums=2)
        along = (jnp.ones_like(at.t), at.v)
        return turn - jax.jvp(lambda t, q: momentum(t, q, at.v), (at.t, at.q), along)[1]

    def _kinetic(self, at: Equations, t: Scalar, q: Vector, v: Vector) -> Scalar:
        value = called("kinetic", self.kinetic, at.seen(t, q, v), at.p)  # type: ignore[arg-type]
        return one_number("kinetic", value)

    def _potential(self, at: Equations, t: Scalar, q: Vector) -> Scalar:
        now = at.placed(t, q, "potential")
        value = called("potential", self.potential, now, at.p)  # type: ignore[arg-type]
        return one_number("potential", value)

    def kinetic_of(self, at: Equations) -> Scalar:
        if self.kinetic is not None:
            return self._kinetic(at, at.t, at.q, at.v)
        return 0.5 * at.v @ (at.mass * at.v if at.mass.ndim == 1 else at.mass @ at.v)

    def potential_of(self, at: Equations) -> Scalar | float:
        return 0.0 if self.potential is None else self._potential(at, at.t, at.q)


def one_number(owner: str, value: Number) -> Scalar:
    """An energy or a distance: one number."""
    if isinstance(value, tuple | list | dict) or jnp.shape(value) != ():
        raise ValueError(f"Mechanism: {owner} returned {picture(value)}, expected one number.")
    return jnp.asarray(value, jnp.float64)


def _wide(force: Number, q: Number) -> Array:
    force = jnp.asarray(force, jnp.float64)
    if force.shape not in ((), jnp.shape(q)):
        raise ValueError(
            f"Mechanism: force returned {picture(force)} for a coordinate that is {picture(q)}."
        )
    return jnp.broadcast_to(force, jnp.shape(q))
