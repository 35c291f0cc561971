"""Adjoint variables as the papers write them: `lambda(t)` of the states, `mu(t)` of constraints.

With index 1, mu follows from lambda. With index 2, adjoints are determined up to multiples of the
constraint's gradient, which no motion on the constraint feels; the papers take those with
`f_z^T lambda + g_z = 0` (M87).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..consistent import attached
from ..costates import pulled_back
from ..leaves import Leaves
from ..model import At, Model, Par
from ..plot import pyplot
from ..record import FLOW
from ..solution import Solution
from ..tables import named
from .rules import Continuous


class Adjoints(eqx.Module):
    """`lambda` and `mu` along a solution; at a jump there are two entries with the same time.

    `lam` has the structure of x, `mu` that of z (`None` without constraints), with one axis more;
    `jump` marks entries just before a jump.
    """

    t: Any
    lam: Any
    mu: Any
    jump: Any

    def plot(self, names: Any = None) -> Any:
        """A figure of all adjoints over time, with gaps at jumps; `names` chooses some."""
        plt = pyplot()
        series = {f"λ of {k}": v for k, v in named(self.lam, "x").items()}
        if self.mu is not None:
            series |= {f"μ of {k}": v for k, v in named(self.mu, "z").items()}
        wanted = [k for k in series if names is None or k in names or k[5:] in names]
        figure, axes = plt.subplots(
            len(wanted), 1, sharex=True, squeeze=False, figsize=(7, 1 + 1.6 * len(wanted))
        )  # fmt: skip
        breaks = np.flatnonzero(np.asarray(self.jump)) + 1
        t = np.insert(np.asarray(self.t, float), breaks, np.nan)
        for ax, name in zip(axes[:, 0], wanted, strict=True):
            values = np.asarray(series[name], float)
            ax.plot(t, np.insert(values, breaks, np.nan, axis=0))
            for k in breaks:
                ax.axvline(self.t[k], color="0.8", lw=0.8, zorder=0)
            ax.set_ylabel(name)
        axes[-1, 0].set_xlabel("t")
        return figure


def adjoints(
    loss: Callable[[Solution], Any], sol: Solution, *, variant: str = "interpolating",
    rtol: float = 1e-10,
) -> Adjoints:  # fmt: skip
    """`lambda(t)` and `mu(t)` of a loss that is a function of a solution, by adjoint equations.

    Write `adjoints(lambda sol: sol.integral["cost"], sol)`.
    """
    rows, kept = pulled_back(loss, sol, Continuous(variant, rtol))
    model, tape = sol.spec.model, jax.tree.map(jax.lax.stop_gradient, sol.tape)
    lam = tuple(jnp.asarray(v) for v in rows[1 : 1 + model.moving])
    mu = None
    if model.constraint is not None:
        _check(model)
        lam_x, mu = _multipliers(model, tape, jnp.asarray(kept), lam)
        lam = (*lam_x, *lam[model.nx :])
        mu = model.z.join(list(mu), ())
    x = model.x.join(list(lam[: model.nx]), ())
    t = np.asarray(tape.theta[0] + tape.tau)[kept]
    jumps = (np.asarray(tape.kind)[kept] != FLOW) & (kept < int(tape.n))
    return Adjoints(t, x, mu, jumps)


def _check(model: Model) -> None:
    rule = model.constraint
    if rule is not None and (len(set(rule.index)) > 1 or rule.pinned is not None):
        raise ValueError(
            "adjoints: multipliers are offered for constraints that are all of index 1, or all of "
            "index 2, in one mode. saltus.costates(loss, sol) gives dL/dx(t) for any."
        )


@functools.partial(jax.jit, static_argnames=("model",))
def _multipliers(model: Model, tape: Any, rows: Any, lam: Leaves) -> tuple[Leaves, Leaves]:
    return jax.vmap(lambda k, v: _at(model, tape.state(k), tape.par(), v))(rows, lam)


def _at(model: Model, at: At, par: Par, lam: Leaves) -> tuple[Leaves, Leaves]:
    """Adjoints of x in the papers' form, and those of the constraint."""
    n, rule = model.nx, model.constraint
    assert rule is not None
    x0, to_x = ravel_pytree(at.w[:n])
    z0, to_z = ravel_pytree(at.z)
    rest = at.w[n:]
    values = ravel_pytree(lam)[0]

    def state(tau: Any, x: Any, z: Any) -> At:
        return At(tau, (*to_x(x), *rest), at.i, to_z(z))

    def flow(tau: Any, x: Any, z: Any) -> Any:
        return ravel_pytree(model.flow(state(tau, x, z), par))[0]

    def equations(tau: Any, x: Any, z: Any) -> Any:
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

    def algebraic(tau: Any, x: Any) -> Any:
        return ravel_pytree(attached(model, state(tau, x, z0), par, 1).z)[0]

    one = jnp.ones_like(at.tau)
    z_speed = jax.jvp(algebraic, (at.tau, x0), (one, speed))[1]
    pushed = lambda *now: jax.vjp(lambda z: flow(now[0], now[1], z), now[2])[1](values)[0]
    turned = jax.jvp(pushed, here, (one, speed, z_speed))[1]  # d/dt f_z, transposed, times lambda
    mu = jnp.linalg.solve(cb, turned - b[:size].T @ (a.T @ values))
    return to_x(values[:size]), to_z(mu)
