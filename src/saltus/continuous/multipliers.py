"""Adjoint variables in the usual form: `lambda(t)` of the states, `mu(t)` of constraints.

With index 1, mu follows from lambda. With index 2, adjoints are determined up to multiples of the
constraint's gradient, which do not affect motions on the constraint; the usual choice satisfies
`f_z^T lambda + g_z = 0` (M87).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..analysis.adjoint_variables import extent, marked, pulled_back
from ..base.leaves import Leaves
from ..base.names import named, numbered
from ..base.text import number, table
from ..base.tracing import is_traced
from ..base.types import Array, HostArray, Scalar, Tree, Vector
from ..model.algebraic_states import attached
from ..model.model import At, Model, Par
from ..solution.plotting import COLOURS, MAX_EVENT_LINES, pyplot
from ..solution.solution import Solution
from .rules import Continuous

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_NUMBERS = 12  # that are printed


class Adjoints(eqx.Module):
    """`lambda` and `mu` along a solution; at a jump there are two entries with the same time.

    They jump at events, and at times at which the loss reads the solution (saved values, `sol(t)`,
    `sol.at(t)`, states after events): the entry before includes the effect of the read, the one
    after does not. `lam` has the structure of x, `mu` that of z (`None` without constraints), each
    with one leading axis; `jump` marks entries just before a jump.
    """

    t: HostArray
    lam: Tree
    mu: Tree
    jump: HostArray

    def plot(self, names: str | Sequence[str] | None = None) -> Figure:
        """A figure of the adjoints over time, with gaps at jumps; `names` selects some of them."""
        plt, chosen = pyplot(), _chosen(self._series(), names)
        figure, axes = plt.subplots(
            len(chosen), 1, sharex=True, squeeze=False, figsize=(7, 1 + 1.6 * len(chosen))
        )  # fmt: skip
        places = np.flatnonzero(np.asarray(self.jump))
        times = np.unique(np.asarray(self.t, float)[places])
        for ax, (name, values) in zip(axes[:, 0], chosen.items(), strict=True):
            parts = _components(name.split(" of ", 1)[1], values)
            for part, colour in zip(parts, itertools.cycle(COLOURS)):
                self._curve(ax, parts[part], colour, part)
            for time in times:
                ax.axvline(
                    time, color="0.8", lw=0.8 if len(times) <= MAX_EVENT_LINES else 0.3, zorder=0
                )
            if 1 < len(parts) <= len(COLOURS):
                ax.legend(loc="best", ncols=2)
            ax.set_ylabel(name)
        axes[-1, 0].set_xlabel("t")
        return figure

    def _curve(self, ax: Axes, values: HostArray, colour: str, text: str) -> None:
        """One line, interrupted at jumps; a piece that is one point is a dot."""
        t = np.asarray(self.t, float)
        pieces = np.split(np.arange(len(t)), np.flatnonzero(np.asarray(self.jump)) + 1)
        ax.plot([], [], color=colour, label=text)
        for piece in pieces:
            dot = "." if len(np.unique(t[piece])) == 1 else None
            ax.plot(t[piece], values[piece], color=colour, marker=dot)

    def _series(self) -> dict[str, Any]:
        series = {f"λ of {k}": v for k, v in named(self.lam, "x").items()}
        if self.mu is not None:
            series |= {f"μ of {k}": v for k, v in named(self.mu, "z").items()}
        return series

    def __repr__(self) -> str:
        if is_traced((self.t, self.lam)):
            return "Adjoints, traced"
        rows = [
            [part, number(v[0]), number(v[-1])]
            for name, values in self._series().items()
            for part, v in _components(name, values).items()
        ]
        more = f"\n... and {len(rows) - MAX_NUMBERS} more" if len(rows) > MAX_NUMBERS else ""
        head = ["", *(f"t = {number(self.t[k])}" for k in (0, -1))]
        return f"Adjoints {extent(self.t, self.jump)}\n{table(head, rows[:MAX_NUMBERS])}{more}"


def _components(name: str, values: Array | HostArray) -> dict[str, HostArray]:
    """Every number of a leaf over time, by name."""
    values = np.asarray(values, float)
    names = numbered([name], [values.shape[1:]], name)
    return dict(zip(names, values.reshape(len(values), -1).T, strict=True))


def _chosen(series: dict[str, Any], names: str | Sequence[str] | None) -> dict[str, Any]:
    """The series that `names` select, by names such as `x` or `λ of x`."""
    if names is None:
        return series
    wanted = [names] if isinstance(names, str) else list(names)
    short = [name.split(" of ", 1)[1] for name in series]
    unknown = [name for name in wanted if name not in series and name not in short]
    if unknown or not wanted:
        what = f"no state is called {unknown[0]!r}" if unknown else "names is empty"
        raise ValueError(
            f"adjoints.plot: {what}; there are {list(dict.fromkeys(short))}. Write "
            f"plot(names=[{short[0]!r}]), or leave names out."
        )
    return {k: v for k, v in series.items() if k in wanted or k.split(" of ", 1)[1] in wanted}


def adjoints(
    loss: Callable[[Solution], Any], sol: Solution, *, variant: str = "interpolating",
    rtol: float = 1e-10,
) -> Adjoints:  # fmt: skip
    """`lambda(t)` and `mu(t)` of a loss that is a function of a solution, by adjoint equations.

    Write `adjoints(lambda sol: sol.integral["cost"], sol)`. There are entries at steps, at events,
    and at times at which `loss` reads the solution `sol`; but times known only inside `jax.vmap` or
    `jax.jit` get none: write `sol(times)` instead of a `vmap` over `sol(t)`. If the loss reads z at
    such a time, the effect is in `lam`, as a change of x there, not in `mu`. `variant` and `rtol`
    are as in `Continuous`.
    """
    curve = pulled_back("adjoints", loss, sol, Continuous(variant, rtol))
    model, par = sol.spec.model, jax.tree.map(jax.lax.stop_gradient, sol.tape.par())
    lam = tuple(jnp.asarray(v) for v in curve.lam[1 : 1 + model.moving])
    mu: Leaves = ()
    if model.constraint is not None:
        _check(model)
        lam, mu = _multipliers(model, curve.at, par, lam)
    x = lam[: model.nx]
    jumps = marked(curve.before, (*x, *mu))
    structured = None if model.constraint is None else model.z.join(list(mu), ())
    return Adjoints(curve.t, model.x.join(list(x), ()), structured, jumps)


def _check(model: Model) -> None:
    rule = model.constraint
    if rule is not None and (len(set(rule.index)) > 1 or rule.pinned is not None):
        raise ValueError(
            "adjoints: multipliers are only available if all constraints have index 1, or all have "
            "index 2, in one mode. saltus.costates(loss, sol) gives dL/dx(t) for any system."
        )


@functools.partial(jax.jit, static_argnames=("model",))
def _multipliers(model: Model, at: At, par: Par, lam: Leaves) -> tuple[Leaves, Leaves]:
    return jax.vmap(lambda at, v: _at(model, at, par, v))(at, lam)


def _at(model: Model, at: At, par: Par, lam: Leaves) -> tuple[Leaves, Leaves]:
    """Adjoints of x in the usual form, and those of the constraint."""
    rule = model.constraint
    assert rule is not None
    x0, to_x = ravel_pytree(model.x_of(at))
    z0, to_z = ravel_pytree(at.z)
    values = ravel_pytree(lam)[0]

    def state(tau: Scalar, x: Vector, z: Vector) -> At:
        return model.with_x(at, to_x(x), tau=tau, z=to_z(z))

    def flow(tau: Scalar, x: Vector, z: Vector) -> Vector:
        return ravel_pytree(model.flow(state(tau, x, z), par))[0]

    def equations(tau: Scalar, x: Vector, z: Vector) -> Vector:
        return ravel_pytree(model.residuals(state(tau, x, z), par))[0]

    here = (at.tau, x0, z0)
    a, b = jax.jacfwd(flow, (1, 2))(*here)  # f_x, f_z, with those of integrals below
    c, d = jax.jacfwd(equations, (1, 2))(*here)
    size = x0.size
    if rule.highest == 1:
        return to_x(values[:size]), to_z(-jnp.linalg.solve(d.T, b.T @ values))
    cb = (c @ b[:size]).T
    values = values.at[:size].add(-c.T @ jnp.linalg.solve(cb, b.T @ values))
    speed = flow(*here)[:size]

    def algebraic(tau: Scalar, x: Vector) -> Vector:
        return ravel_pytree(attached(model, state(tau, x, z0), par, 1).z)[0]

    one = jnp.ones_like(at.tau)
    z_speed = jax.jvp(algebraic, (at.tau, x0), (one, speed))[1]
    pushed = lambda *now: jax.vjp(lambda z: flow(now[0], now[1], z), now[2])[1](values)[0]
    turned = jax.jvp(pushed, here, (one, speed, z_speed))[1]  # d/dt f_z, transposed, times lambda
    mu = jnp.linalg.solve(cb, turned - b[:size].T @ (a.T @ values))
    return to_x(values[:size]), to_z(mu)
