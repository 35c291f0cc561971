"""Linear models: the matrices of a system at an instant or along a motion, and at its jumps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from ..base.leaves import precise, split
from ..base.names import entries, named, numbered, value_of, with_values
from ..base.text import number, table
from ..base.tracing import is_traced
from ..base.types import Array, HostArray, Matrix, Numbers, Params, Vector
from ..model.algebraic_states import attached
from ..model.model import At, Model, Par
from ..simulate.record import Spec
from ..solution.solution import Solution
from ..solution.tape import Tape, output, state_at
from ..system.hybrid import HybridSystem, Instant
from ..system.inputs import is_signal
from .gauss_newton import plain
from .local_state import flat, local, null_space, rules, vector
from .saltation import Jumps, saltations

MAX_ROWS = 12  # of a matrix in a summary


class Linear(eqx.Module):
    """`dx' = A dx + B du`, `dy = C dx + D du`; along a motion each has a leading axis of times.

    `states`, `inputs` and `outputs` name the rows and columns. The columns of `tangent` are the
    directions of x that obey constraints of index 2 and invariants. `jumps` are the events of the
    motion.
    """

    t: Array
    A: Array
    B: Array
    C: Array
    D: Array
    tangent: HostArray
    jumps: Jumps | None
    states: tuple[str, ...] = eqx.field(static=True)
    inputs: tuple[str, ...] = eqx.field(static=True)
    outputs: tuple[str, ...] = eqx.field(static=True)

    @property
    def eigenvalues(self) -> npt.NDArray[np.complex128]:
        """Eigenvalues of A in the directions that obey all constraints, largest real part first."""
        if np.ndim(self.t):
            raise ValueError(
                "eigenvalues: A varies along a motion. Linearise at one instant: "
                "linearise(system, sol.at(t), p)."
            )
        matrix = np.asarray(plain("eigenvalues", self.A))
        found = np.linalg.eigvals(self.tangent.T @ matrix @ self.tangent).astype(complex)
        return found[np.argsort(-np.real(found), kind="stable")]

    def __repr__(self) -> str:
        n, k, m = len(self.states), len(self.inputs), len(self.outputs)
        where = "differentiated" if is_traced(self.t) else f"t = {number(np.min(self.t))}"
        if np.ndim(self.t) and not is_traced(self.t):
            where = f"{len(self.t)} times, {where} to {number(np.max(self.t))}"
        head = f"Linear, {where}: {n} states, {k} inputs, {m} outputs"
        if np.ndim(self.t) or is_traced(self.A) or n > MAX_ROWS:
            return f"{head}\n  states  {', '.join(self.states[:MAX_ROWS])}"
        block = np.hstack([np.asarray(self.A), np.asarray(self.B)])
        rows = [[f"{s}'", *map(number, v)] for s, v in zip(self.states, block, strict=True)]
        return f"{head}\n{table(['', *self.states, *self.inputs], rows)}"


class Picked(NamedTuple):
    """The chosen inputs: names, how many, and a function that changes their values."""

    names: tuple[str, ...]
    size: int
    moved: Callable[[Par, Any], Par]


@precise
def linearise(
    system: HybridSystem,
    at: Instant | Solution,
    p: Params,
    *,
    ts: Numbers | None = None,
    inputs: str | Sequence[str] | Callable | None = None,
) -> Linear:
    """A linear model of `system` at an instant, or at the times `ts` of a solution (M71).

    `at` is the instant or the solution. Algebraic states are eliminated. `inputs` are by default
    those of the system (`now.u`); or names of entries of `p`, as in `inputs=["F"]`; or a function
    that picks them from `p`, as in `lambda p: p.arm.torque`. Outputs are those of `system.output`;
    if the system has none, x. Differentiable in `p`.
    """
    if isinstance(at, Solution):
        return _along(system, at, p, ts, inputs)
    if ts is not None:
        raise ValueError("linearise: ts are times of a solution, but an Instant was given.")
    model, here, par = local(system, at, p)
    picked = _picked(system, model, p, inputs)
    matrices = _matrices(model, picked, here, par)
    free = null_space(np.asarray(plain("linearise", _rules(system, model, here, par, p))))
    names = _names(model, picked, here, par)
    return Linear(par.t0 + here.tau, **matrices, tangent=free, jumps=None, **names)


def _along(
    system: HybridSystem,
    sol: Solution,
    p: Params,
    ts: Numbers | None,
    inputs: str | Sequence[str] | Callable | None,
) -> Linear:
    if ts is None:
        raise ValueError(
            "linearise: no ts. Write linearise(system, sol, p, ts=jnp.linspace(t0, t1, 100))."
        )
    model, par = sol.spec.model, sol.tape.par()
    picked = _picked(system, model, p, inputs)
    times = jnp.atleast_1d(jnp.asarray(ts, jnp.float64))
    states = _states(sol.spec, sol.tape, times)
    matrices = jax.vmap(lambda at: _matrices(model, picked, at, par))(states)
    rows = jax.vmap(lambda at: _rules(system, model, at, par, p))(states)
    free = [null_space(v) for v in np.asarray(plain("linearise", rows))]
    least = min(v.shape[1] for v in free)
    first = jax.tree.map(lambda v: v[0], states)
    names = _names(model, picked, first, par)
    free = np.stack([v[:, :least] for v in free])
    return Linear(times, **matrices, tangent=free, jumps=saltations(sol), **names)


@functools.partial(jax.jit, static_argnames=("spec",))
def _states(spec: Spec, tape: Tape, ts: Array) -> At:
    return jax.vmap(lambda t: state_at(spec, tape, t - tape.t0, "right"))(ts)


# -- matrices -----------------------------------------------------------------------------------
def _matrices(model: Model, picked: Picked, at: At, par: Par) -> dict:
    """A, B, C and D, with z as the function of x and u that the constraint defines (M71)."""

    def both(x: Vector, u: Vector) -> tuple[Any, Any]:
        there = picked.moved(par, u)
        here = attached(model, joined(x), there, 1)
        y = jax.tree.leaves(output(model, here, there))
        return flat(model.flow(here, there)[: model.nx]), flat(y)

    x, joined = vector(model, at)
    (a, b), (c, d) = jax.jacfwd(both, argnums=(0, 1))(x, jnp.zeros(picked.size))
    return {"A": a, "B": b, "C": c, "D": d}


def _rules(system: HybridSystem, model: Model, at: At, par: Par, p: Params) -> Matrix:
    """The Jacobian of equations of index 2 and invariants."""
    x, joined = vector(model, at)
    return jax.jacfwd(lambda x: rules(system, model, joined(x), par, p))(x)


def _names(model: Model, picked: Picked, at: At, par: Par) -> dict:
    states = numbered(model.x.names(), [v.shape for v in model.x_of(at)], "x")
    y = jax.eval_shape(lambda: output(model, at, par))
    outputs = [k for name, v in named(y, "y").items() for k in entries(name, v)]
    return {"states": tuple(states), "inputs": picked.names, "outputs": tuple(outputs)}


# -- inputs -------------------------------------------------------------------------------------
def _picked(
    system: HybridSystem, model: Model, p: Params, inputs: str | Sequence[str] | Callable | None
) -> Picked:
    if inputs is None:
        return _signals(model)
    if callable(inputs):
        where = inputs
        old, place = where(p), lambda new: eqx.tree_at(where, p, new)
        names = [k for name, v in named(old, "u").items() for k in entries(name, v)]
    else:
        chosen = [inputs] if isinstance(inputs, str) else list(inputs)
        old = [value_of(p, name, "p") for name in chosen]
        place = lambda new: with_values(p, dict(zip(chosen, new, strict=True)), "p")
        names = [k for name, v in zip(chosen, old, strict=True) for k in entries(name, v)]
    leaves, tree = jax.tree.flatten(old)
    leaves = [jnp.asarray(v, jnp.float64) for v in leaves]
    cuts = np.cumsum([v.size for v in leaves])[:-1]

    def moved(par: Par, u: Vector) -> Par:
        parts = zip(jnp.split(u, cuts), leaves, strict=True)
        new = jax.tree.unflatten(tree, [v + jnp.reshape(d, v.shape) for d, v in parts])
        return _with_parameters(system, model, place(new), par)

    return Picked(tuple(names), sum(v.size for v in leaves), moved)


def _with_parameters(system: HybridSystem, model: Model, p: Params, par: Par) -> Par:
    """The parameters of a model with another p, and the input signals computed from it."""
    shape, floats, _ = split(p)
    if shape != model.p:
        raise ValueError(
            "linearise: an input is a whole number in p. Write it as a float, as in {'F': 0.0}."
        )
    par = model.with_p(par, floats)
    if callable(system.inputs):
        signals = jax.tree.leaves(system.inputs(p), is_leaf=is_signal)
        new = [v for s in signals for v in (s.times, s.values)]
        par = model.with_signals(par, new)
    return par


def _signals(model: Model) -> Picked:
    """The inputs that model functions read as `now.u`: all values of a signal change alike."""
    count = len(model.signals)
    if not count:
        return Picked((), 0, lambda par, u: par)
    avals = model.flow_fn.traced.inputs
    first = len(avals) - sum(model.n_p) - 1 - count
    shapes = [v.shape for v in avals[first : first + count]]
    cuts = np.cumsum([int(np.prod(s)) for s in shapes])
    tree = jax.tree.unflatten(model.u_tree, [jax.ShapeDtypeStruct(s, float) for s in shapes])
    names = [k for name, v in named(tree, "u").items() for k in entries(name, v)]

    def moved(par: Par, u: Vector) -> Par:
        new = []
        for k, (part, shape) in enumerate(zip(jnp.split(u, cuts[:-1]), shapes, strict=True)):
            times, values = model.signal_of(par, k)
            new += [times, values + jnp.reshape(part, shape)]
        return model.with_signals(par, new)

    return Picked(tuple(names), int(cuts[-1]), moved)
