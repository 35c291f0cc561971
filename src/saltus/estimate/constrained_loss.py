"""A loss with constraints as a target for optimisers, also across changes of the events."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ..base.results import Result
from ..base.types import Array, Number, Params, Scalar, Tree, Vector
from ..solution.solution import Solution
from ..solver.context import gathering
from .objective import signature
from .parameters import Free
from .residuals import Seen
from .starts import VIOLATION_LIMIT
from .step_limits import level, reach

LossOutput: TypeAlias = Number | tuple[Number, Mapping[str, Tree]]


class Problem:
    """A loss with constraints as a target for optimisers; one simulation gives both."""

    def __init__(
        self,
        loss: Callable[[Params], LossOutput],
        free: Free,
        subject_to: Mapping[str, Any],
        p: Params,
    ):
        self.free, self.low, self.high = free, free.low, free.high
        self._loss, self._p = loss, p
        self.wanted = {name: _interval(name, v) for name, v in subject_to.items()}
        self._known: collections.OrderedDict = collections.OrderedDict()
        self._ends: dict[bytes, tuple] = {}  # evaluations that are kept: the best, and ends
        self._count = 0
        self._seen: tuple = ()
        self._results: tuple = ()  # of all solves
        self.sequences: set[str] = set()  # of events, since it was last emptied
        self._programs: dict[str, Callable] = {}
        self.best: tuple[tuple[float, float], np.ndarray] | None = None
        shapes = jax.eval_shape(lambda u: self._all(u)[0], jnp.asarray(free.initial))
        self.shapes = {name: shapes[1][name].shape for name in self.wanted}
        sizes = {name: int(np.prod(shape)) for name, shape in self.shapes.items()}
        self._counts = sizes
        self.below, self.above = (
            np.concatenate(
                [np.broadcast_to(v[side], (sizes[n],)) for n, v in self.wanted.items()]
                or [np.zeros(0)]
            )
            for side in (0, 1)
        )

        ends = [np.abs(np.where(np.isfinite(v), v, 0.0)) for v in (self.below, self.above)]
        self._sizes = np.maximum(1.0, np.maximum(*ends))

    def _all(
        self, u: Vector
    ) -> tuple[
        tuple[Scalar, dict[str, Array]],
        tuple[Mapping[str, Tree], tuple[Seen, ...], tuple[Array, ...]],
    ]:
        """((value, constraints), (extras, the events seen, the results of all solves))."""
        with gathering() as found:
            out = self._run(u)
        value, extras = _parts(out)
        missing = [name for name in self.wanted if name not in extras]
        if missing:
            raise ValueError(
                f'minimise: subject_to names "{missing[0]}", but the loss returns nothing with '
                f'this name. Return loss, {{"{missing[0]}": value}}.'
            )
        held = {name: jnp.asarray(extras[name], dtype=float) for name in self.wanted}
        solutions = jax.tree.leaves(extras, is_leaf=lambda v: isinstance(v, Solution))
        seen = tuple(
            Seen(s.events.t, s.events.which, s.events.member, s.result)
            for s in solutions
            if isinstance(s, Solution) and jnp.ndim(s.result) == 0
        )
        results = tuple(s.result for s in found)
        seen = jax.lax.stop_gradient(seen)
        return (jnp.asarray(value, dtype=float), held), (extras, seen, results)

    def _run(self, u: Vector) -> LossOutput:
        return self._loss(self.free.into_p(u, self._p))

    def held(self, u: Vector) -> dict[str, Array]:
        """The constraints by name."""
        extras = _parts(self._run(u))[1]
        return {name: jnp.asarray(extras[name], dtype=float) for name in self.wanted}

    def _stack(self, u: Vector) -> tuple[Vector, tuple]:
        (value, held), (_, *seen) = self._all(u)
        flat = [jnp.reshape(value, (1,)), *(jnp.reshape(held[n], -1) for n in self.wanted)]
        return jnp.concatenate(flat), tuple(seen)

    def _program(self, kind: str) -> Callable:
        if kind not in self._programs:

            def both(u: Vector) -> tuple[Vector, tuple[Vector, tuple]]:
                out, seen = self._stack(u)
                return out, (out, seen)

            def lagrangian(u: Vector, factor: Scalar | float, weights: Vector) -> Scalar:
                out, _ = self._stack(u)
                return factor * out[0] + jnp.dot(weights, out[1:])

            n, m = self.free.size, self.below.size + 1
            transform = jax.jacfwd if n <= 2 * m else jax.jacrev
            made = {
                "slopes": transform(both, has_aux=True),
                "hessian": jax.hessian(lagrangian),
                "product": lambda u, w, d: jax.jvp(
                    jax.grad(lambda v: lagrangian(v, 1.0, w)), (u,), (d,)
                )[1],
                "extras": lambda u: self._all(u)[1][0],
            }[kind]
            self._programs[kind] = jax.jit(made)
        return self._programs[kind]

    def _evaluate(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Loss and constraints, and their Jacobian."""
        key = np.asarray(u, dtype=float).tobytes()
        if key not in self._known and key not in self._ends:
            slopes, (out, seen) = self._program("slopes")(jnp.asarray(u))
            self._count += 1
            self._known[key] = (np.asarray(out), np.asarray(slopes), jax.tree.map(np.asarray, seen))
            while len(self._known) > 8:
                self._known.popitem(last=False)
        out, slopes, (self._seen, self._results) = self._known.get(key) or self._ends[key]
        self.sequences.add(signature(self._seen))
        self._rank(u, out)
        return out, slopes

    def _rank(self, u: np.ndarray, out: np.ndarray) -> None:
        """Keep the best point: least violation first, then least loss."""
        rank = (max(self._off(out[1:]), VIOLATION_LIMIT), float(out[0]))
        if np.all(np.isfinite(rank)) and (self.best is None or rank < self.best[0]):
            self.best = (rank, np.array(u))

    def keep(self, u: np.ndarray) -> None:
        """Keep what is known at `u`, so that it can be read later without another simulation."""
        self._evaluate(u)
        key = np.asarray(u, dtype=float).tobytes()
        self._ends.setdefault(key, self._known.get(key, ()))

    def unusable(self, u: np.ndarray) -> str:
        """Why no search can start at `u`; empty if one can."""
        out, slopes = self._evaluate(u)
        codes = np.concatenate([np.ravel(r) for r in self._results] or [np.zeros(0, int)])
        failed = [Result(int(c)) for c in codes if c > int(Result.terminated)]
        names = ["the loss", *(f'"{n}"' for n, k in self._counts.items() for _ in range(k))]
        for name, value, slope in zip(names, out, slopes, strict=True):
            if not np.isfinite(value) and failed:
                return f"a solve ended as {failed[0].name}"
            if not np.isfinite(value):
                return f"{name} is {value}"
            if not np.all(np.isfinite(slope)):
                return f"the gradient of {name} is not finite"
        return ""

    # -- what optimisers ask for ----------------------------------------------------------------
    def value(self, u: np.ndarray) -> float:
        return float(self._evaluate(u)[0][0])

    def gradient(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        out, slopes = self._evaluate(u)
        return float(out[0]), slopes[0]

    def constraints(self, u: np.ndarray) -> np.ndarray:
        return self._evaluate(u)[0][1:]

    def constraints_by_name(self, u: np.ndarray) -> dict[str, np.ndarray]:
        flat = np.split(self.constraints(u), np.cumsum(list(self._counts.values()))[:-1])
        shapes = self.shapes.items()
        return {n: v.reshape(shape) for (n, shape), v in zip(shapes, flat, strict=False)}

    def constraint_jacobian(self, u: np.ndarray) -> np.ndarray:
        return self._evaluate(u)[1][1:]

    def lagrangian_hessian(self, u: np.ndarray, factor: float, weights: np.ndarray) -> np.ndarray:
        return np.asarray(self._program("hessian")(jnp.asarray(u), factor, jnp.asarray(weights)))

    def hessian(self, u: np.ndarray) -> np.ndarray:
        return self.lagrangian_hessian(u, 1.0, np.zeros(self.below.size))

    def hessian_product(self, u: np.ndarray, weights: np.ndarray, along: np.ndarray) -> np.ndarray:
        """The Hessian of the Lagrangian times a direction."""
        given = (jnp.asarray(v) for v in (u, weights, along))
        return np.asarray(self._program("product")(*given))

    def has_hessian(self) -> bool:
        """Whether an optimiser has had the Hessian compiled."""
        return "hessian" in self._programs

    def residuals(self, u: np.ndarray) -> np.ndarray:
        raise ValueError("minimise: least-squares methods need residuals; use saltus.fit for data.")

    jacobian = residuals

    def signature(self, u: np.ndarray) -> str:
        self._evaluate(u)
        return signature(self._seen)

    def reach(self, u: np.ndarray, step: np.ndarray) -> float:
        """How much of a step can be taken before a sequence of events changes."""
        here, along = jnp.asarray(u), jnp.asarray(step)
        return reach(lambda s: self._solutions(here + s * along))

    def level(self, u: np.ndarray) -> int:
        """The level of trust in the gradient here, by a quick check."""
        return level(self._solutions(jnp.asarray(u)))

    def _solutions(self, u: Vector) -> list[Solution]:
        """The solves of the loss; if it raises, those before that."""
        with gathering() as found, contextlib.suppress(Exception):
            self._run(u)
        return found

    def settle(self, u: np.ndarray) -> None:
        """The optimiser is now at `u`, from which steps are measured; see `Cautious`."""

    def share(self, u: np.ndarray) -> float:
        return 1.0

    def events(self) -> int:
        return int(sum(np.sum(s.which >= 0) for s in self._seen))

    def evaluations(self) -> int:
        return self._count

    def violation(self, u: np.ndarray) -> float:
        return self._off(self.constraints(u))

    def worst(self, u: np.ndarray) -> str:
        """The most violated constraint, in words."""
        c = self.constraints(u)
        off = np.where(np.isfinite(c), np.maximum(self.below - c, c - self.above), np.inf)
        k = int(np.argmax(off / self._sizes))
        name = [n for n, size in self._counts.items() for _ in range(size)][k]
        wanted = f"{self.below[k]:.6g} to {self.above[k]:.6g}"
        return f'"{name}" is {c[k]:.6g}, wanted {wanted}'

    def _off(self, c: np.ndarray) -> float:
        """The largest violation, relative to the constraint's bound if that is above 1."""
        off = np.maximum(self.below - c, c - self.above) / self._sizes
        return float(np.max(np.where(np.isfinite(c), off, np.inf), initial=0.0))

    def natural(self, u: np.ndarray) -> np.ndarray:
        """The values of the free parameters."""
        return np.asarray(self.free.natural(jnp.asarray(u)))

    def extras(self, u: np.ndarray) -> Mapping[str, Tree]:
        return self._program("extras")(jnp.asarray(u))


def _parts(out: LossOutput) -> tuple[Number, Mapping[str, Tree]]:
    """What a loss returned, as a number and a dict."""
    value, extras = out if isinstance(out, tuple) and len(out) == 2 else (out, {})
    if isinstance(value, tuple | list) or not isinstance(extras, Mapping):
        several: Any = out if isinstance(out, tuple) else value
        kinds = ", ".join(_kind(v) for v in several)
        raise TypeError(
            f"minimise: the loss returned a {type(several).__name__} of {len(several)} ({kinds}), "
            'expected a number, or a number and a dict. Write return loss, {"name": value, ...}.'
        )
    if not hasattr(value, "dtype") and not isinstance(value, int | float):
        raise TypeError(
            f"minimise: the loss returned {_kind(value)}, expected a number. "
            "Write return loss, or return loss, {name: value, ...}."
        )
    if jnp.iscomplexobj(value):
        raise TypeError("minimise: the loss is complex, expected a real number. Take jnp.abs.")
    if jnp.ndim(value):
        raise ValueError(
            f"minimise: the loss has shape {jnp.shape(value)}, expected one number. "
            "Return loss, or loss, {name: value, ...}."
        )
    return value, extras


def _kind(value: Any) -> str:
    """The kind of a value, for messages."""
    if hasattr(value, "dtype") or isinstance(value, int | float):
        return "an array" if jnp.ndim(value) else "a number"
    return "nothing" if value is None else f"a {type(value).__name__}"


def _interval(name: str, given: Tree) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(given, tuple):
        low, high = given
        low, high = (-np.inf if low is None else low), (np.inf if high is None else high)
    else:
        low = high = given
    if np.any(np.asarray(low) > np.asarray(high)):
        raise ValueError(f'minimise: subject_to "{name}" is {low} to {high}: low is above high.')
    return np.asarray(low, dtype=float), np.asarray(high, dtype=float)
