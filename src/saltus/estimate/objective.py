"""The loss of a fit on the host: compiled functions, counts, the best point so far.

Optimisers of any library ask this one object for residuals, Jacobians, gradients and Hessians.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.captured_values import Key, Reads
from ..base.results import Result
from ..base.types import Matrix, Scalar, Tree, Vector
from ..solution.solution import Solution
from ..solver.solving import solve
from .event_matching import EventMatch, matched
from .experiments import Run, Shape, pad, until
from .optimisers import Unconstrained
from .parameters import Free
from .residuals import How, Seen, residuals, restore
from .step_limits import level, reach

FIRST_ROWS, FIRST_EVENTS, MOST_ROWS = 4096, 128, 4_000_000  # of tapes and event logs
NUMBERS_IN_ONE_PROGRAM = 12  # most for values and Jacobian in one program


@dataclasses.dataclass
class Count:
    """The cost of a fit so far."""

    values: int = 0
    compile: float = 0.0


class Residuals(NamedTuple):
    """The residuals of one output of one experiment, in order of time."""

    name: str
    experiment: int  # the first is 1
    t: np.ndarray
    values: np.ndarray  # weighted
    scale: float  # root mean square of the weighted data


@functools.lru_cache(maxsize=64)
def _program(kind: str, shape: Shape, how: How, reads: Key) -> Callable:
    """A compiled function of the vector and one experiment; `reads` are values it closes over."""

    def r(u: Vector, run: Run) -> tuple[Vector, Seen]:
        return residuals(shape, run, u, how)

    def half(u: Vector, run: Run) -> tuple[Scalar, Seen]:
        value, seen = r(u, run)
        return 0.5 * jnp.sum(value**2), seen

    def jacobian(transform: Callable) -> Callable:
        def both(u: Vector, run: Run) -> tuple[Matrix, tuple[Vector, Seen]]:
            def twice(u: Vector) -> tuple[Vector, tuple[Vector, Seen]]:
                value, seen = r(u, run)
                return value, (value, seen)

            return transform(twice, has_aux=True)(u)

        return both

    made = {
        "residuals": lambda: r,
        "forward": lambda: jacobian(jax.jacfwd),
        "reverse": lambda: jacobian(jax.jacrev),
        "gradient": lambda: jax.value_and_grad(half, has_aux=True),
        "hessian": lambda: jax.hessian(lambda u, run: half(u, run)[0]),
    }[kind]()
    return jax.jit(made)


class Objective(Unconstrained):
    """Half of the sum of squares of weighted residuals, as a function of a vector."""

    def __init__(self, free: Free, shapes: Sequence[Shape], runs: Sequence[Run], how: How):
        self.free, self.shapes, self.how = free, list(shapes), how
        self.low, self.high = free.low, free.high
        self.runs = self._padded(runs)
        self._reads: Key | None = None
        self.count = Count()
        self.best: tuple[float, np.ndarray] | None = None
        self._known: collections.OrderedDict = collections.OrderedDict()
        self._compiled: set = set()
        self.seen: list[Seen] = []

    def _padded(self, runs: Sequence[Run]) -> list[Run]:
        """Experiments of one shape padded to one length."""
        groups: dict[Any, list[int]] = {}
        for k, (shape, run) in enumerate(zip(self.shapes, runs, strict=True)):
            events = tuple((name, e.t.size) for name, e in run.events.items())
            groups.setdefault((shape, tuple(run.outputs), events), []).append(k)
        out = list(runs)
        for members in groups.values():
            for k, run in zip(members, pad([runs[k] for k in members]), strict=True):
                out[k] = run
        return out

    # -- variants -----------------------------------------------------------------------------
    def variant(self, loss: str | None = None, fraction: float = 1.0) -> Objective:
        """The same data with another loss, or up to a part of each horizon."""
        how = self.how if loss is None else dataclasses.replace(self.how, loss=loss)
        runs = self.runs
        if fraction < 1.0:
            runs = [until(r, r.t0 + fraction * (r.t1 - r.t0)) for r in runs]
        other = Objective(self.free, self.shapes, runs, how)
        other.count, other._compiled = self.count, self._compiled
        return other

    def reweighted(self, sd: Sequence[dict[str, float]]) -> Objective:
        """The same data with other standard deviations, by experiment and output."""
        runs = []
        for run, own in zip(self.runs, sd, strict=True):
            outputs = {
                n: o._replace(weight=np.where(o.weight > 0, 1.0 / own[n], 0.0)) if n in own else o
                for n, o in run.outputs.items()
            }
            events = {
                n: e._replace(
                    weight=np.full(e.t.shape, 1.0 / own[n]), alone=np.float64(1.0 / own[n])
                )
                if n in own
                else e
                for n, e in run.events.items()
            }
            runs.append(run._replace(outputs=outputs, events=events))
        other = Objective(self.free, self.shapes, runs, self.how)
        other.count, other._compiled = self.count, self._compiled
        return other

    # -- what optimisers ask for ----------------------------------------------------------------
    def residuals(self, u: np.ndarray) -> np.ndarray:
        """All residuals, with those of priors last; NaN where a simulation failed."""
        if self.free.size <= NUMBERS_IN_ONE_PROGRAM:
            return self.residuals_and_jacobian(u)[0]
        parts = self._each("residuals", u)
        return self._note(u, np.concatenate([*(p[0] for p in parts), self.prior(u)[0]]))

    def jacobian(self, u: np.ndarray) -> np.ndarray:
        return self.residuals_and_jacobian(u)[1]

    def residuals_and_jacobian(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Residuals and Jacobian, by the sweep that needs fewer passes."""
        parts = self._each(self.direction(), u)
        prior, slope = self.prior(u)
        r = np.concatenate([*(p[1][0] for p in parts), prior])
        return self._note(u, r), np.concatenate([*(p[0] for p in parts), slope])

    def direction(self) -> str:
        """The sweep to use: tangents (one per free number) or adjoints (one per residual)."""
        rows = max(
            sum(int(np.count_nonzero(o.weight)) for o in r.outputs.values())
            + sum(e.t.size for e in r.events.values())
            for r in self.runs
        )
        return "forward" if self.free.size <= 2 * rows else "reverse"

    def value(self, u: np.ndarray) -> float:
        """The loss; infinite where a simulation failed."""
        return _half(self.residuals(u))

    def gradient(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss and its gradient, by the adjoint sweep."""
        parts = self._each("gradient", u)
        prior, slope = self.prior(u)
        value = float(sum(p[0][0] for p in parts) + 0.5 * prior @ prior)
        value = value if np.isfinite(value) else np.inf
        self._noted(u, value)
        return value, np.sum([p[1] for p in parts], axis=0) + slope.T @ prior

    def hessian(self, u: np.ndarray) -> np.ndarray:
        """The exact second derivatives."""
        whole = np.sum(self._each("hessian", u), axis=0)
        if not self.free.believed:
            return whole
        prior = lambda u: 0.5 * jnp.sum(self.free.prior_residuals(u) ** 2)
        return whole + np.asarray(jax.hessian(prior)(jnp.asarray(u)))

    def signature(self, u: np.ndarray) -> str:
        """The sequence of events of all experiments as a short text."""
        self.value(u)
        return signature(self.seen)

    def solutions(self, u: Vector) -> list[Solution]:
        """The simulations of all experiments, each with its own tape."""
        ends = []
        for shape, run in zip(self.shapes, self.runs, strict=True):
            p, start = restore(shape, run, u)
            options = {"method": self.how.method, "throw": False}
            ends.append(solve(shape.system, start, p, run.t1, ts=run.ts, **options))
        return ends

    def reach(self, u: np.ndarray, step: np.ndarray) -> float:
        """How much of a step can be taken before a sequence of events changes."""
        here, along = jnp.asarray(u), jnp.asarray(step)
        return reach(lambda s: self.solutions(here + s * along))

    def level(self, u: np.ndarray) -> int:
        """The level of trust in the gradient here, by a quick check."""
        if not any(shape.system.events for shape in self.shapes):
            return 0
        return level(self.solutions(jnp.asarray(u)))

    def events(self) -> int:
        """How many events the last simulations had."""
        return int(sum(np.sum(s.which >= 0) for s in self.seen))

    def evaluations(self) -> int:
        return self.count.values

    # -- what is in the data ----------------------------------------------------------------------
    def samples(self) -> int:
        """How many numbers are compared, event times included."""
        return sum(
            sum(int(np.count_nonzero(o.weight)) for o in r.outputs.values())
            + sum(e.t.size for e in r.events.values())
            for r in self.runs
        )

    def size_of_data(self) -> float:
        """The norm of the weighted data, as a scale for residuals."""
        parts = [o.weight * o.y for r in self.runs for o in r.outputs.values()]
        parts += [e.weight * e.t for r in self.runs for e in r.events.values()]
        return float(np.sqrt(sum(float(v @ v) for v in parts)))

    def residual_series(self, u: np.ndarray) -> list[Residuals]:
        """The residuals of every output of every experiment."""
        r, found, at = self.residuals(u), [], 0
        for k, (run, seen) in enumerate(zip(self.runs, self.seen, strict=True)):
            for name, o in run.outputs.items():
                own, at = r[at : at + o.y.size], at + o.y.size
                real = o.weight > 0
                if np.any(real):
                    size = float(np.sqrt(np.mean((o.weight * o.y)[real] ** 2)))
                    found.append(Residuals(name, k + 1, run.ts[o.rows][real], own[real], size))
            at += sum(e.t.size + seen.which.size for e in run.events.values())
        return found

    def matches(self, u: np.ndarray) -> list[dict[str, EventMatch]]:
        """Pairs of predicted and observed events, by experiment and event."""
        self.value(u)
        found = []
        for shape, run, seen in zip(self.shapes, self.runs, self.seen, strict=True):
            names = [e.name for e in shape.system.events]
            own = {}
            for name, times in run.events.items():
                stem, _, member = name.partition("[")
                mine = np.asarray(seen.which) == names.index(stem)
                if member:
                    mine &= seen.member == int(member.rstrip("]"))
                own[name] = matched(np.asarray(seen.t), mine, times.t, run.t1, times.reach)
            found.append(own)
        return found

    # -- how --------------------------------------------------------------------------------------
    def prior(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the priors add to residuals and Jacobian."""
        if not self.free.believed:
            return np.zeros(0), np.zeros((0, u.size))
        return self.free.priors(u)

    def _each(self, kind: str, u: np.ndarray) -> list:
        key = (kind, np.asarray(u, dtype=float).tobytes())
        if key in self._known:
            parts, self.seen = self._known[key]
            return parts
        parts = [self._one(kind, s, u, r) for s, r in zip(self.shapes, self.runs, strict=True)]
        self.count.values += 1
        found = [_seen(kind, p) for p in parts]
        if found[0] is not None:
            self.seen = [s for s in found if s is not None]
        self._known[key] = (parts, self.seen)
        while len(self._known) > 8:
            self._known.popitem(last=False)
        return parts

    def _one(self, kind: str, shape: Shape, u: np.ndarray, run: Run) -> Tree:
        """Evaluate one experiment; buffers that are too small are enlarged."""
        while True:
            clock = time.perf_counter()
            out = _program(kind, shape, self.how, self._read())(jnp.asarray(u), run)
            out = jax.tree.map(np.asarray, out)
            sizes = tuple(np.shape(v) for v in jax.tree.leaves(run))
            if (key := (kind, shape, self.how, sizes)) not in self._compiled:
                self._compiled.add(key)
                self.count.compile += time.perf_counter() - clock
            seen = _seen(kind, out)
            code = 0 if seen is None else int(seen.result)
            if code == Result.too_many_steps and self.how.rows < MOST_ROWS:
                self.how = dataclasses.replace(self.how, rows=4 * self.how.rows)
            elif code == Result.too_many_events and self.how.log < self.how.rows:
                self.how = dataclasses.replace(self.how, log=4 * self.how.log)
            else:
                return out

    def _read(self) -> Key:
        """The values that model functions closed over when the fit began."""
        if self._reads is None:
            self._reads = Reads((*self.shapes, self.how.transform)).key
        return self._reads

    def _note(self, u: np.ndarray, r: np.ndarray) -> np.ndarray:
        self._noted(u, _half(r))
        return r

    def _noted(self, u: np.ndarray, value: float) -> None:
        if np.isfinite(value) and (self.best is None or value < self.best[0]):
            self.best = (value, np.array(u))


def _half(r: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        value = 0.5 * float(r @ r)
    return value if np.isfinite(value) else np.inf


def _seen(kind: str, out: tuple) -> Seen | None:
    if kind == "residuals":
        return out[1]
    if kind in ("forward", "reverse"):
        return out[1][1]
    return out[0][1] if kind == "gradient" else None


def signature(seen: Sequence[Seen]) -> str:
    """The sequence of events of all experiments as a short text."""
    text = hashlib.sha1()
    for s in seen:
        n = int(np.sum(s.which >= 0))
        text.update(np.concatenate([s.which[:n], s.member[:n], [-2]]).astype(int).tobytes())
    return text.hexdigest()[:10]
