"""Systems with a mass matrix, $M x' = f$, rewritten as a `HybridSystem`.

With a regular M the equations are solved for x': an ODE. A singular M implies algebraic equations,
and differential states that are combinations of the entries of x: `Split` finds them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..base.captured_values import current
from ..base.foreign_names import answered
from ..base.foreign_parts import SYSTEM
from ..base.jax_names import under_jit
from ..base.leaves import split as tree_split
from ..base.text import picture
from ..base.tracing import is_tracer
from ..base.types import Flag, Function, HostArray, Matrix, Numbers, Params, T, Tree, Vector
from ..linalg.factor import factor, solve
from ..linalg.vectors import Layout
from .hybrid import Event, HybridSystem, Instant, TimeEvent, called, check_function
from .views import View, count

# Singular values of the balanced matrix: zero below the first, not zero above the second.
MAX_ZERO, MIN_NONZERO = 1e-13, 1e-9
Mass: TypeAlias = "Function | _Constant"  # M, or the inverse of a constant one


@functools.partial(answered, table=SYSTEM)
def mass_matrix(
    mass: Function | Matrix | HostArray,
    flow: Function,
    constraint: Function | None = None,
    *, like: Numbers | None = None, events: Sequence[Event | TimeEvent] = (),
    rate: Function | None = None, output: Function | None = None, inputs: Function | Tree = None,
    units: dict[str, str] | None = None,
    index: int | Tree = None,
) -> HybridSystem:  # fmt: skip
    r"""A system $M x' = f(now, p)$, with $0 = g(now, p)$ where there is a `constraint`.

    `mass` is a constant matrix, a function `(now, p)` that returns a matrix, or one that returns
    the product $M x'$, reading x' as `now.dx` (x may then be any pytree; with a matrix it is one
    vector). `flow(now, p)` returns f.

    A singular constant M is split into differential and algebraic equations, as
    `print(saltus.mass.Split.of(M))` shows; model functions still see x, which is one vector. For a
    singular M that depends on parameters give `like`, M at typical parameters as a plain array, by
    which it is split: M must always have the null spaces of `like`, as those of circuits have for
    all capacitances. That is checked at the start. The entries of x that become algebraic are
    guesses in a start and after a reset. The other arguments are those of `HybridSystem`.
    """
    write = "mass_matrix(M, lambda now, p: ...)."
    check_function("mass_matrix", "flow", flow, gives="M x'", write=write)
    known = mass if like is None else like
    split = None if callable(known) or is_tracer(known) else Split.of(known)
    law: Mass = mass if callable(mass) else lambda now, p: mass
    if split is not None and not callable(mass):
        law = _Constant(mass, split)
    if split is None or split.regular:
        return HybridSystem(
            flow=lambda now, p: _solved(law, flow, now, p), constraint=constraint, index=index,
            events=events, rate=rate, output=output, inputs=inputs, units=units,
            check_start=lambda now, p: _check_start(law, split, constraint, now, p),
        )  # fmt: skip
    view = View(lambda now, p: split.seen(now), split.held)
    if constraint is not None and index is not None and not isinstance(index, int):
        index = {"mass": split.label([1] * len(split.standing)), "constraint": index}
    return HybridSystem(
        flow=lambda now, p: split.slope(law, flow, split.seen(now), p),
        constraint=lambda now, p: split.residual(flow, constraint, split.seen(now), p),
        events=view.events(events), rate=view.function("rate", rate),
        output=view.function("output", output or (lambda now, p: now.x)),
        inputs=inputs, units=units, index=index, adapt_start=lambda now, p: split.held(now),
        adapt_back=split.seen,
        check_start=lambda now, p: _check_start(law, split, constraint, split.seen(now), p),
    )  # fmt: skip


class _Constant:
    """The inverse of the regular block of a constant matrix."""

    def __init__(self, matrix: Numbers, split: Split):
        block = np.asarray(matrix, dtype=float)[np.ix_(split.rows, split.columns)]
        self.inverse: Any = np.linalg.inv(block)

    def slope(self, force: Vector) -> Vector:
        if force.shape != self.inverse.shape[:1]:
            n = len(self.inverse)
            raise ValueError(
                f"mass_matrix: M is {n} x {n}, but x is {picture(force)}. Give M as many rows and "
                "columns as x has numbers."
            )
        return self.inverse @ force


def _solved(mass: Mass, flow: Callable, now: Instant, p: Params) -> Tree:
    """x' from $M x' = f$ for a regular M, given as a matrix or as the product $M x'$."""
    force = called("flow", flow, now, p)
    if isinstance(mass, _Constant):
        return mass.slope(_vector(force, now.x))
    value = mass(_at_rest(now), p)
    if _is_matrix(value, now.x):
        return _divide(value, _vector(force, now.x))
    for name, given in (("mass", value), ("flow", force)):
        if not _like(given, now.x):
            raise ValueError(
                f"mass_matrix: {name} returned {picture(given)}, but x is {picture(now.x)}. "
                "Return M x' (with x' read as now.dx) and f with the fields of x, or a matrix for "
                "an x that is one vector."
            )
    matrix, join = _columns(mass, now, p)
    return join(_divide(matrix, ravel_pytree(force)[0] - ravel_pytree(value)[0]))


def _at_rest(now: Instant) -> Instant:
    return now.replace(dx=jax.tree.map(jnp.zeros_like, now.x))


def _is_matrix(value: Tree, x: Tree) -> bool:
    n = jnp.shape(x) if hasattr(x, "shape") else ()
    return len(n) == 1 and hasattr(value, "shape") and jnp.shape(value) == (*n, *n)


def _like(value: Tree, x: Tree) -> bool:
    return jax.tree.structure(value) == jax.tree.structure(x) and count(value) == count(x)


def _columns(mass: Callable, now: Instant, p: Params) -> tuple[Matrix, Callable]:
    """M from the product $M x'$, and a function that makes an x of a vector."""
    at_rest, join = ravel_pytree(_at_rest(now).dx)
    matrix = jax.jacfwd(lambda w: ravel_pytree(mass(now.replace(dx=join(w)), p))[0])(at_rest)
    return matrix, join


def _check_start(
    mass: Mass, split: Split | None, constraint: Function | None, now: Instant, p: Params
) -> None:
    """Check that M at the start is regular, or like the one it is split by, if it is known."""
    if constraint is None and now.z is not None:
        raise ValueError(
            "mass_matrix: the start has z, but there is no constraint. Algebraic entries of x, "
            "which a singular M leaves undetermined, stay in x: leave z out, or write "
            "mass_matrix(M, flow, constraint=...)."
        )
    if isinstance(mass, _Constant) or under_jit():
        return
    shape, floats, _ = tree_split(now.x, floats_only=True)
    now, p = jax.tree.map(_plain, (now.replace(x=shape.join(floats, ())), p))
    if any(map(is_tracer, jax.tree.leaves((now, p)))):
        return
    matrix = _matrix(mass, now, p, current(mass).key)
    if matrix is not None and not is_tracer(matrix):
        _check_matrix(np.asarray(matrix, dtype=float), split)


@eqx.filter_jit
def _matrix(mass: Callable, now: Instant, p: Params, reads: object) -> Matrix | None:
    """M at an instant; None if its shape does not fit x, which the flow reports.

    `reads` are the values that the function reads: if they change, it is compiled again.
    """
    value = called("mass", mass, _at_rest(now), p)
    if _is_matrix(value, now.x):
        return value
    return _columns(mass, now, p)[0] if _like(value, now.x) else None


def _plain(v: T) -> T:
    return jax.lax.stop_gradient(v) if is_tracer(v) else v


def _check_matrix(m: np.ndarray, split: Split | None) -> None:
    if not np.isfinite(m).all():
        i, j = np.argwhere(~np.isfinite(m))[0]
        raise ValueError(f"mass_matrix: M is {m[i, j]} in row {i}, column {j}, at the start.")
    if split is not None and not split.regular:
        if m.shape != (split.size, split.size) or split.fits(m):
            return
        raise ValueError(
            "mass_matrix: M at the start does not have the null spaces of like=, with which the "
            f"differential states are {', '.join(split.combinations())}. Give like=M at typical "
            "parameters, as a plain array: M may differ from it, but not in its null spaces."
        )
    sizes = np.linalg.svd(_balanced(m), compute_uv=False)
    if sizes[-1] <= MAX_ZERO * len(m):
        what = "M" if split is None else "like= is regular, but M"
        rank = int(np.sum(sizes > MIN_NONZERO))
        raise ValueError(
            f"mass_matrix: {what} is singular at the start (rank {rank} of {len(m)}). Write "
            "mass_matrix(M, flow, like=...) with M at typical parameters as a plain array, from "
            "which its algebraic equations are found; x is one vector then."
        )


def _divide(matrix: Matrix, rhs: Vector) -> Vector:
    """$M^{-1} f$, with all derivatives."""
    if not Layout((rhs.shape,)).scalar:
        return jnp.linalg.solve(matrix, rhs)
    return jnp.stack(solve(factor(tuple(map(tuple, jnp.asarray(matrix)))), tuple(rhs)))


def _vector(value: Tree, x: Tree) -> Vector:
    """`value`, which has to be a vector like x."""
    if not hasattr(x, "shape") or len(x.shape) != 1 or jnp.shape(value) != x.shape:
        raise ValueError(
            f"mass_matrix: x is {picture(x)} and the flow returned {picture(value)}, but a matrix "
            "needs a vector for each. Write x as jnp.array([...]), or give the product: "
            'mass=lambda now, p: {"u": p["m"] * now.dx["u"], ...}.'
        )
    return jnp.asarray(value)


class Held(NamedTuple):
    """The algebraic states if the mass matrix is singular: entries of x, and the user's z."""

    x: Vector
    z: Tree


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    r"""The differential and the algebraic equations in $M x' = f$ with a singular M.

    With `rows` Q and `columns` P of a regular block of full rank, and the other columns R:
    $M_{QP}\, a' = f_Q$ for $a = x_P + K x_R$, and $0 = f_i - L_i f_Q$ in the other rows i. `kernel`
    is K, `relation` L, `size` the number of rows of M. Any M with the same null spaces has the same
    K and L. `print` shows both kinds of states and equations.
    """

    size: int
    rows: list
    columns: list
    kernel: np.ndarray
    relation: np.ndarray

    @classmethod
    def of(cls, matrix: Numbers) -> Split:
        """The split of `matrix`, whose rank is found from its singular values after scaling."""
        if is_tracer(matrix):
            raise TypeError(
                "mass_matrix: the matrix to split is traced, so its rank is not known. Give "
                "like=M, at typical parameters, as a plain array."
            )
        m = np.asarray(matrix, dtype=float)
        if m.ndim != 2 or m.shape[0] != m.shape[1] or not np.isfinite(m).all():
            raise ValueError(
                f"mass_matrix: the matrix has shape {m.shape}, expected a square one of finite "
                "numbers. Write mass=np.diag([...]), or a function (now, p)."
            )
        balanced = _balanced(m)
        sizes = np.linalg.svd(balanced, compute_uv=False) if m.size else np.zeros(0)
        rank = int(np.sum(sizes > MAX_ZERO * max(len(m), 1)))
        if rank == 0:
            raise ValueError("mass_matrix: M is zero, so nothing changes. Write a constraint.")
        if sizes[rank - 1] < MIN_NONZERO:
            raise ValueError(
                f"mass_matrix: M has a singular value of {sizes[rank - 1]:.1e} times its size, too "
                "small to call M regular and too large to call it singular. Set what should be "
                "zero to zero, or write the algebraic equations as a constraint."
            )
        rows, columns = _pivots(balanced, rank)
        others = [k for k in range(len(m)) if k not in columns]
        below = [k for k in range(len(m)) if k not in rows]
        block = m[np.ix_(rows, columns)]
        kernel = np.linalg.solve(block, m[np.ix_(rows, others)])
        relation = np.linalg.solve(block.T, m[np.ix_(below, columns)].T).T
        return cls(len(m), rows, columns, _clean(kernel), _clean(relation))

    @property
    def regular(self) -> bool:
        return len(self.rows) == self.size

    @property
    def free(self) -> list:
        """The entries of x that are algebraic states."""
        return [k for k in range(self.size) if k not in self.columns]

    @property
    def standing(self) -> list:
        """The rows that become algebraic equations."""
        return [k for k in range(self.size) if k not in self.rows]

    def __str__(self) -> str:
        lines = [f"M is {self.size} x {self.size} and has rank {len(self.rows)}."]
        if not self.regular:
            pairs = zip(self.standing, self.relation, strict=True)
            zero = [_sum("f", i, self.rows, -k) for i, k in pairs]
            lines += ["Differential states: " + ", ".join(self.combinations()) + "."]
            lines += ["Algebraic states: " + ", ".join(f"x[{k}]" for k in self.free) + "."]
            lines += ["Algebraic equations: " + ", ".join(f"0 = {v}" for v in zero) + "."]
        return "\n".join(lines)

    def combinations(self) -> list[str]:
        """The differential states as text: `x[0] + 2 x[1]`."""
        pairs = zip(self.columns, self.kernel, strict=True)
        return [_sum("x", c, self.free, k) for c, k in pairs]

    def label(self, values: Iterable[Any]) -> dict:
        """Equations named by the number of their row."""
        return {f"row {i}": v for i, v in zip(self.standing, values, strict=True)}

    def seen(self, now: Instant) -> Instant:
        """x from the differential states and the free entries; leading axes are kept."""
        a, free = now.x, now.z.x
        joined = jnp.concatenate([a - free @ self.kernel.T, free], axis=-1)
        return now.replace(x=joined[..., np.argsort(self.columns + self.free)], z=now.z.z)

    def held(self, now: Instant) -> Instant:
        x: Any = now.x if isinstance(now.x, dict) else jnp.asarray(now.x)
        if jnp.shape(x) != (self.size,):
            raise ValueError(
                f"mass_matrix: x is {picture(now.x)}, expected a vector of {self.size} numbers, "
                "one for each row of a singular M. Write x=jnp.array([...])."
            )
        if not jnp.issubdtype(x.dtype, jnp.floating):
            x = x.astype(jnp.float64)
        free = x[np.array(self.free)]
        a = x[np.array(self.columns)] + self.kernel @ free
        return now.replace(x=a, z=Held(free, now.z))

    def slope(self, mass: Mass, flow: Callable, now: Instant, p: Params) -> Vector:
        """a' from $M_{QP} a' = f_Q$; NaN if M has other null spaces than the split."""
        force = _vector(called("flow", flow, now, p), now.x)[np.array(self.rows)]
        if isinstance(mass, _Constant):
            return mass.slope(force)
        matrix = jnp.asarray(called("mass", mass, now, p))
        if matrix.shape != (self.size, self.size):
            raise ValueError(
                f"mass_matrix: mass returned {picture(matrix)}, expected a matrix of "
                f"{self.size} x {self.size}, like the one to split by."
            )
        block = matrix[np.ix_(np.array(self.rows), np.array(self.columns))]
        return jnp.where(self.fits(jax.lax.stop_gradient(matrix)), _divide(block, force), jnp.nan)

    def fits(self, matrix: Matrix | HostArray) -> Flag:
        """Whether a matrix has the null spaces of the split."""
        part = lambda i, j: matrix[np.ix_(np.array(i, int), np.array(j, int))]
        block = part(self.rows, self.columns)
        across = part(self.rows, self.free) - block @ self.kernel
        along = part(self.standing, self.columns) - self.relation @ block
        corner = part(self.standing, self.free) - self.relation @ part(self.rows, self.free)
        off = jnp.max(jnp.array([jnp.max(jnp.abs(v)) for v in (across, along, corner)]))
        return off <= MIN_NONZERO * jnp.max(jnp.abs(matrix))

    def residual(self, flow: Function, rule: Function | None, now: Instant, p: Params) -> Tree:
        """$0 = f_i - L_i f_Q$, and the user's own equations."""
        force = _vector(called("flow", flow, now, p), now.x)
        left = force[np.array(self.standing)] - self.relation @ force[np.array(self.rows)]
        rows = self.label(left)
        if rule is None:
            return rows
        return {"mass": rows, "constraint": called("constraint", rule, now, p)}


def _balanced(m: np.ndarray) -> np.ndarray:
    """M with its rows and columns scaled so that their largest entries are near 1."""
    m = m.copy()
    for axis in 20 * (0, 1):
        largest = np.abs(m).max(axis=axis, keepdims=True)
        m /= np.sqrt(np.where(largest > 0, largest, 1.0))
    return m


def _pivots(m: np.ndarray, rank: int) -> tuple[list, list]:
    """Rows and columns of a well-conditioned block of full rank, by complete pivoting."""
    m, rows, columns = m.copy(), [], []
    for _ in range(rank):
        size = np.abs(m)
        i, j = np.unravel_index(np.argmax(size > 0.9 * size.max()), m.shape)  # the first large one
        rows.append(int(i))
        columns.append(int(j))
        m -= np.outer(m[:, j], m[i]) / m[i, j]
        m[i], m[:, j] = 0.0, 0.0
    order = np.argsort(columns)
    return [rows[k] for k in order], [columns[k] for k in order]


def _clean(m: np.ndarray) -> np.ndarray:
    near = np.round(m)
    return np.where(np.abs(m - near) < 1e-12, near, m) + 0.0


def _sum(name: str, first: int, others: list, weights: np.ndarray) -> str:
    text = f"{name}[{first}]"
    for k, w in zip(others, weights, strict=True):
        if w:
            factor = "" if abs(w) == 1 else f"{abs(w):.4g} "
            text += f" {'-' if w < 0 else '+'} {factor}{name}[{k}]"
    return text
