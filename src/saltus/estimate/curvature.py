r"""Checks of the point at which a search has ended.

Constraints between saved times: one on `sol.y["h"]` holds at the saved times only. The loss is run
once more with save times in between; a constraint that then has more entries is one along the
trajectory.

Whether the point is a minimum: the gradient is also zero at a maximum and at a saddle. With
multipliers $\lambda$ of the active constraints, the Lagrangian $L = f - \lambda\cdot c$ must have
positive curvature along every direction that they leave free.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.optimize

from ..base.text import first_line
from ..solver.context import denser, gathering
from .bounds import clipped, contains
from .starts import VIOLATION_LIMIT, Look
from .stationarity import Standing, standing

if TYPE_CHECKING:
    from .constrained_loss import Problem

MOST_SAVE_TIMES, MOST_PARTS = 4096, 64  # in all, and of the time between two saved ones
PROMISED_TOLERANCES = 100.0  # the largest decrease that a gradient may predict at a minimum
DENSE_PARAMETERS, LANCZOS_PRODUCTS = 32, 24  # most for a full Hessian; products if there are more
EXACT_ZERO, DIFFERENCE_ZERO = (
    1e-6,
    1e-3,
)  # curvature that is zero, relative to the largest: exact, by differences
CLEAR_TOLERANCES = 1e4  # a smaller curvature is not relied on
NOISE_FLOORS = 100.0  # stronger negative curvature counts even if no lower point is found
DIFFERENCE_STEP = 1e-4  # of gradients
PROBE_LENGTHS = (0.1, 0.01, 1e-3, 1e-4)  # distances at which a lower point is searched for
PROBED_DIRECTIONS = 8  # at most


def between(problem: Problem, u: np.ndarray) -> list[str]:
    """Violations of constraints between saved times, in words; empty if they hold."""
    arrays = [name for name, shape in problem.shapes.items() if len(shape) and max(shape) > 1]
    if not arrays:
        return []
    try:
        along = {n: axis for n in arrays if (axis := _axis(problem, u, n)) is not None}
        if not along:
            return []
        parts = int(
            np.clip(
                MOST_SAVE_TIMES // max(problem.shapes[n][k] for n, k in along.items()),
                2,
                MOST_PARTS,
            )
        )
        with denser(parts), gathering() as found:
            held = problem.held(jnp.asarray(u))
    except Exception as error:  # such as a loss that expects a fixed number of saved values
        return [f"Constraints could not be checked between saved times ({first_line(error)})."]
    notes = []
    for name, axis in along.items():
        values = np.moveaxis(np.asarray(held[name]), axis, 0)
        times = next((np.asarray(s.t) for s in found if np.shape(s.t) == values.shape[:1]), None)
        notes += _worst(name, values, problem, axis, parts, times)
    return notes


def _axis(problem: Problem, u: np.ndarray, name: str) -> int | None:
    """The axis of a constraint along which the saved times are."""
    with denser(2):
        shapes = jax.eval_shape(problem.held, jnp.asarray(u))
    new, old = shapes[name].shape, problem.shapes[name]
    if len(new) != len(old):
        return None
    return next((k for k, (a, b) in enumerate(zip(new, old, strict=True)) if a == 2 * b - 1), None)


def _worst(
    name: str, values: np.ndarray, problem: Problem, axis: int, parts: int, times: np.ndarray | None
) -> list[str]:
    """Where a constraint is violated most, if that is between saved times only."""
    flat = values.reshape(len(values), -1)
    for side, bound in zip((1.0, -1.0), problem.wanted[name], strict=True):
        bound = np.broadcast_to(bound, problem.shapes[name])
        if not np.all(np.isfinite(bound)):
            continue
        own = np.moveaxis(bound, axis, 0).reshape(bound.shape[axis], -1)
        place = np.arange(len(flat)) / parts
        limit = np.stack([np.interp(place, np.arange(len(own)), c) for c in own.T], 1)
        size = np.maximum(1.0, np.abs(limit))
        off = side * (limit - flat) / size
        if np.max(off[::parts]) > VIOLATION_LIMIT or not np.max(off) > VIOLATION_LIMIT:
            continue
        row, column = np.unravel_index(np.argmax(off), off.shape)
        sign, moves, use = (">=", "falls", "min") if side > 0 else ("<=", "rises", "max")
        when = "" if times is None else f" at t = {times[row]:.6g}"
        entry = "" if flat.shape[1] == 1 else f" (entry {column})"
        return [
            f"{name}{entry} {sign} {limit[row, column]:.6g} holds at the saved times; between them "
            f"it {moves} to {flat[row, column]:.6g}{when}; use sol.{use}, which covers the whole "
            "trajectory."
        ]
    return []


def look(problem: Problem, u: np.ndarray, tolerance: float) -> Look:
    """Whether a point at which a search ended is a minimum; if not, a lower point near it.

    Differences of gradients need no compilation, and are used if their result is clear; otherwise
    the exact Hessian is used, if there is one. With more than `DENSE_PARAMETERS` parameters, the
    least eigenvalues are found by products (Lanczos). Along directions without clearly positive
    curvature the loss is evaluated on both sides: if it falls, the point is not a minimum.
    """
    at = standing(problem, u)
    found = Look("unknown")
    for held in [at.firm] if np.all(at.firm) else [at.firm, np.ones_like(at.firm)]:
        bend = curvature(problem, u, at, held)
        if bend is None:
            return Look("unknown", why="there are neither second derivatives nor differences")
        found = _probe(problem, u, at, bend, tolerance)
        if found.lower is None and _promised(problem, u, at, bend) > _least(problem, u, tolerance):
            return Look("steep")
        if found.lower is not None or found.kind != "falls":
            break
    rank = np.linalg.matrix_rank(at.rows) if at.which.size else 0
    if found.kind == "falls" and found.lower is None and rank < at.which.size:
        return Look("unknown", why="its constraints are dependent")
    if found.kind == "minimum" and _many(problem, u):
        far = f", judging by {LANCZOS_PRODUCTS} of {u.size} directions"
        return dataclasses.replace(found, why=far)
    return found


def _least(problem: Problem, u: np.ndarray, tolerance: float) -> float:
    """The smallest decrease of the loss that counts."""
    return PROMISED_TOLERANCES * tolerance * max(1.0, abs(problem.value(u)))


def _promised(problem: Problem, u: np.ndarray, at: Standing, bend: Bend) -> float:
    """How much the loss should fall nearby, by the part of its gradient that is not balanced."""
    slope = bend.directions @ (problem.gradient(u)[1] - at.forces @ at.rows)
    curved = np.where(bend.values > bend.floor, bend.values, np.inf)
    straight = np.where(bend.values > bend.floor, 0.0, PROBE_LENGTHS[-1] * np.abs(slope))
    return float(np.max(slope**2 / (2 * curved) + straight, initial=0.0))


def _many(problem: Problem, u: np.ndarray) -> bool:
    """Whether a full Hessian would cost too much."""
    return u.size > DENSE_PARAMETERS and not problem.has_hessian()


@dataclasses.dataclass(frozen=True)
class Bend:
    """Curvature along free directions (rows), least first; below `floor` it counts as zero."""

    values: np.ndarray
    directions: np.ndarray
    floor: float


def curvature(problem: Problem, u: np.ndarray, at: Standing, held: np.ndarray) -> Bend | None:
    """The curvature of the Lagrangian where `held` constraints stay as they are.

    Differences of gradients need no compilation: if they are clearly positive, they suffice.
    """
    weights = np.zeros(problem.below.size)
    own = at.which < weights.size
    weights[at.which[own]] = -at.forces[own]
    rows, many, most = at.rows[held], _many(problem, u), [0.0]
    exact = (_exact(problem, u, weights, many), EXACT_ZERO)
    rough = (_differences(problem, u, weights, most), DIFFERENCE_ZERO)
    found: Bend | None = None
    for product, none in [exact, rough] if problem.has_hessian() else [rough, exact]:
        try:
            values, vectors = _spectrum(product, rows, u.size, many)
        except Exception:  # there are no second derivatives, or a simulation fails
            continue
        if np.all(np.isfinite(values)):
            largest = max(
                float(np.max(np.abs(values), initial=0.0)), most[0] * (none == DIFFERENCE_ZERO)
            )
            found = Bend(values, vectors, max(none * largest, 1e-9 * abs(problem.value(u))))
            if none == EXACT_ZERO or np.all(values > found.floor):
                break
    return found


def _exact(problem: Problem, u: np.ndarray, weights: np.ndarray, many: bool) -> Callable:
    """Products with the Hessian, one direction in each column."""
    if many:
        one = lambda d: problem.hessian_product(u, weights, d)
        return lambda d: np.stack([one(column) for column in d.T], 1)
    return lambda d: problem.lagrangian_hessian(u, 1.0, weights) @ d


def _differences(problem: Problem, u: np.ndarray, weights: np.ndarray, most: list) -> Callable:
    """The same from gradients on both sides, within the bounds; `most` collects their sizes."""

    def slope(v: np.ndarray) -> np.ndarray:
        return problem.gradient(v)[1] + weights @ problem.constraint_jacobian(v)

    def one(d: np.ndarray) -> np.ndarray:
        h = DIFFERENCE_STEP * max(1.0, float(np.max(np.abs(u)))) / float(np.linalg.norm(d))
        inside = [contains(problem, v) for v in (u + h * d, u - h * d)]
        right, left = (h if inside[0] else 0.0), (h if inside[1] else 0.0)
        ahead, behind = slope(u + right * d), slope(u - left * d)
        most[0] = max(most[0], *(float(np.max(np.abs(d * v))) / h for v in (ahead, behind)))
        return (ahead - behind) / (left + right)

    return lambda d: np.stack([one(column) for column in d.T], 1)


def _spectrum(
    product: Callable, rows: np.ndarray, n: int, many: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Least eigenvalues and eigenvectors (rows) on the directions that `rows` leave free."""
    if not many:
        free = scipy.linalg.null_space(rows) if len(rows) else np.eye(n)
        if not free.shape[1]:
            return np.zeros(0), np.zeros((0, n))
        inner = free.T @ product(free)
        if not np.all(np.isfinite(inner)):
            return np.full(1, np.nan), np.zeros((1, n))
        values, vectors = np.linalg.eigh((inner + inner.T) / 2)
        return values, (free @ vectors).T
    blocked = scipy.linalg.orth(rows.T) if len(rows) else np.zeros((n, 0))
    project = lambda v: v - blocked @ (blocked.T @ v)
    return _lanczos(lambda v: project(product(v[:, None])[:, 0]), project, n)


def _lanczos(product: Callable, project: Callable, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Ritz values and vectors of a symmetric product, from a random direction."""
    v = project(np.random.default_rng(0).normal(size=n))
    basis, images = np.zeros((0, n)), np.zeros((0, n))
    for _ in range(min(n, LANCZOS_PRODUCTS)):
        size = float(np.linalg.norm(v))
        if size <= 1e-10:
            break
        basis = np.vstack([basis, v / size])
        images = np.vstack([images, product(basis[-1])])
        v = images[-1] / max(float(np.linalg.norm(images[-1])), 1e-300)
        for _ in range(2):
            v = project(v - basis.T @ (basis @ v))
    inner = images @ basis.T
    if not np.all(np.isfinite(inner)):
        return np.full(1, np.nan), np.zeros((1, n))
    values, vectors = np.linalg.eigh((inner + inner.T) / 2)
    return values, vectors.T @ basis


def _probe(problem: Problem, u: np.ndarray, at: Standing, bend: Bend, tolerance: float) -> Look:
    """The loss on both sides along every direction without clearly positive curvature."""
    value = problem.value(u)
    flat: Look | None = None
    for bent, along in zip(bend.values[:PROBED_DIRECTIONS], bend.directions, strict=False):
        if bent > max(bend.floor, CLEAR_TOLERANCES * tolerance * max(1.0, abs(value))):
            break
        falls = bent < -bend.floor
        rises = 0
        for length in _lengths(problem, u, along):
            need = max(0.05 * abs(bent) * length**2, 1e-13 * abs(value))
            need = need if falls else tolerance * max(1.0, abs(value))
            ends = [_kept(problem, at, u + s * length * along) for s in (1, -1)]
            drops = [_drop(problem, u, end) for end in ends]
            if max(drops) > need:
                return Look("falls", ends[int(np.argmax(drops))], along, float(bent))
            rises = max(rises, sum(d < -tolerance * max(1.0, abs(value)) for d in drops))
        if bent < -NOISE_FLOORS * bend.floor:
            return Look("falls", None, along, float(bent))
        if rises < 2 and flat is None and bent <= bend.floor:
            flat = Look("flat", None, along, float(bent))
    return flat or Look("minimum")


def _lengths(problem: Problem, u: np.ndarray, along: np.ndarray) -> list[float]:
    """Distances to probe: in units of the parameters, and of the widths of their bounds."""
    width = problem.high - problem.low
    known = np.isfinite(width) & (np.abs(along) > 1e-3)
    wide = [float(np.min(width[known] / np.abs(along[known])))] if np.any(known) else []
    unit = max(1.0, float(np.max(np.abs(u))))
    return [step * unit for step in PROBE_LENGTHS] + [
        step * size for size in wide for step in PROBE_LENGTHS[:2]
    ]


def _drop(problem: Problem, u: np.ndarray, there: np.ndarray) -> float:
    """How much lower the loss is there; zero if constraints are violated more."""
    try:
        if not problem.violation(there) <= max(VIOLATION_LIMIT, problem.violation(u)):
            return -np.inf
        drop = problem.value(u) - problem.value(there)
    except Exception:  # no simulation there
        return -np.inf
    return drop if np.isfinite(drop) else -np.inf


def _kept(problem: Problem, at: Standing, u: np.ndarray) -> np.ndarray:
    """A point near `u` within the bounds, on the active constraints."""
    u = clipped(problem, u)
    own = at.which[at.firm & (at.which < problem.below.size)]
    for _ in range(4 if own.size else 0):
        c, rows = problem.constraints(u)[own], problem.constraint_jacobian(u)[own]
        off = c - np.clip(c, problem.below[own], problem.above[own])
        if not np.all(np.isfinite(rows)) or not np.any(np.abs(off) > 1e-2 * VIOLATION_LIMIT):
            break
        u = clipped(problem, u - np.linalg.lstsq(rows, off, rcond=None)[0])
    return u
