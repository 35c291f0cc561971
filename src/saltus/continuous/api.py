"""Derivatives by continuous equations, for any function that calls `saltus.solve`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..base.leaves import precise
from ..base.losses import numbers_of, scalar
from ..base.text import picture
from ..base.types import Jaxpr, Params, Tree
from ..simulate.primitive import simulate_p
from ..solution.solution import Solution
from ..solver.context import asking, gathering
from ..sweep.primitives import tape_p
from .backsolve_drift import drifted
from .rules import Continuous

Loss = Callable[[Any], Any]


def forward(fn: Loss, p: Params, *, rtol: float = 1e-10) -> Tree:
    """The Jacobian of `fn(p)` by variational equations, like `jax.jacfwd(fn)(p)`.

    `fn` calls `saltus.solve` and may return any pytree of numbers: saved values, event times, ...
    `p` are its parameters. All columns are integrated together. `rtol` is the tolerance of the
    variational equations.
    """
    numbers, run = _prepared(fn, p, "forward", any_result=True)
    with asking(Continuous(rtol=rtol)):
        return jax.jacfwd(run)(numbers)


def adjoint(
    loss: Loss, p: Params, *, variant: str = "interpolating", rtol: float = 1e-10
) -> tuple[Any, Any]:
    """`(loss(p), gradient)` by adjoint equations, like `jax.value_and_grad(loss)(p)`.

    `loss` is a function of the parameters `p` that calls `saltus.solve` and returns a number.
    `variant` is "interpolating", "quadrature" or "backsolve", and `rtol` the tolerance of the
    adjoint equations (see `Continuous`). "backsolve" warns if states that are integrated backward
    do not return to where they were: it does not suit systems whose errors decay in time.
    """
    numbers, run = _prepared(loss, p, "adjoint")
    with asking(Continuous(variant, rtol)):
        return jax.value_and_grad(run)(numbers)


def hessian(loss: Loss, p: Params, *, variant: str = "interpolating", rtol: float = 1e-10) -> Tree:
    """The Hessian of `loss(p)`, forward over adjoint, with all columns together (M86).

    The arguments are those of `adjoint`.
    """
    numbers, run = _prepared(loss, p, "hessian")
    with asking(Continuous(variant, rtol)):
        return jax.hessian(run)(numbers)


def hvp(
    loss: Loss, p: Params, v: Tree, *, variant: str = "interpolating", rtol: float = 1e-10
) -> Tree:
    """The Hessian of `loss(p)` times `v`, forward over adjoint (M86).

    `v` has the structure of `p`; the other arguments are those of `adjoint`.
    """
    numbers, run = _prepared(loss, p, "hvp")
    along, _ = numbers_of(v, "continuous.hvp")
    if jax.tree.structure(along) != jax.tree.structure(numbers):
        raise ValueError(
            f"continuous.hvp: v is {picture(v)} and p is {picture(p)}, expected the same structure."
        )
    along = jax.tree.map(
        lambda a, b: jnp.broadcast_to(jnp.asarray(b, jnp.result_type(a)), jnp.shape(a)),
        numbers,
        along,
    )
    with asking(Continuous(variant, rtol)):
        return jax.jvp(jax.grad(run), (numbers,), (along,))[1]


def _prepared(
    fn: Loss, p: Params, owner: str, any_result: bool = False
) -> tuple[Any, Callable[[Any], Any]]:
    """The float leaves of p, and `fn` as a function of them."""
    owner = f"continuous.{owner}"
    numbers, whole = numbers_of(p, owner)
    seen = solving(fn, owner)
    if any_result:
        return numbers, lambda q: seen(whole(q))
    return numbers, lambda q: scalar(seen(whole(q)), owner)


def solving(fn: Loss, owner: str) -> Loss:
    """The function `fn`, which now raises an error if it does not call `saltus.solve`."""
    if not callable(fn):
        raise TypeError(
            f"{owner}: the function is {type(fn).__name__}, expected a function of p that calls "
            "saltus.solve. The function comes first, then p."
        )

    def run(p: Params) -> Tree:
        with gathering() as sols:
            out = fn(p)
        if not sols and not sols.inner and not _solves(jax.make_jaxpr(fn)(p).jaxpr):
            raise ValueError(
                f"{owner}: the function did not call saltus.solve. Pass a function of p that "
                "solves."
            )
        return out

    return run


def _solves(jaxpr: Jaxpr) -> bool:
    """Whether a program contains a solve, including in parts that were compiled before."""
    for eqn in jaxpr.eqns:
        if eqn.primitive in (simulate_p, tape_p):
            return True
        for inner in jax.tree.leaves(eqn.params, is_leaf=lambda v: hasattr(v, "jaxpr")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns") and _solves(inner):
                return True
    return False


@precise
def drift(sol: Solution, *, rtol: float = 1e-10) -> float:
    """How far states that are integrated backward drift from those of `sol`, in tolerances.

    If this is large, do not use `variant="backsolve"`. `rtol` is the tolerance of the backward
    integration.
    """
    if not isinstance(sol, Solution):
        raise TypeError(
            f"continuous.drift: expected a Solution, not {type(sol).__name__}. Write "
            "drift(saltus.solve(...))."
        )
    off = drifted(Continuous("backsolve", rtol), sol)
    if off is None:
        raise TypeError("continuous.drift: the solution is traced. Call it outside of jax.jit.")
    return off
