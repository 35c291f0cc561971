"""How good is this gradient? An estimate of the error of a value and of its gradient.

Each step is perturbed by `eps` times its own local error, estimated by two half steps. The
derivative of a loss by `eps` is then the error that all steps together cause in it, and the
derivative of its gradient is the error of the gradient (M47). On stiff problems the latter can be
far larger than the error of the value.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import precise
from ..base.losses import of_numbers, scalar, uncompiled, unless_nan
from ..base.names import path_name
from ..base.types import Number, Params, Scalar, Tree
from ..solver.context import _Probe, _probing


class Estimate(eqx.Module):
    """A value and its gradient, with estimates of the error of each.

    Errors are exact minus computed: `value + value_error` estimates the value without error.
    """

    value: Scalar
    gradient: Tree
    value_error: Scalar
    gradient_error: Tree

    def __repr__(self) -> str:
        lines = [f"value {float(self.value):.10g}, error about {float(self.value_error):.1e}"]
        leaves = jax.tree_util.tree_flatten_with_path(self.gradient)[0]
        errors = jax.tree.leaves(self.gradient_error)
        for (path, g), e in zip(leaves, errors, strict=True):
            name = path_name(path) or "parameter"
            size = np.max(np.abs(np.asarray(e)))
            worst = np.max(np.abs(np.asarray(g)))
            lines.append(f"d/d {name}: size {worst:.6g}, error about {size:.1e}")
        return "\n".join(lines)


@precise
def error_estimate(loss: Callable[[Params], Number], p: Params) -> Estimate:
    """The value and the gradient of `loss(p)`, and estimates of their discretisation errors.

    `loss` calls `solve` and returns a number; `p` are its parameters, any pytree of numbers. Errors
    are exact minus computed: adding them improves the result. The estimate assumes that the steps
    are small enough for the method to show its order, and that the flow is smooth (`certify` finds
    hidden kinks). It costs several gradients. A loss wrapped in `jax.jit` is unwrapped; the call of
    `error_estimate` itself may be jitted.
    """
    plain, p = of_numbers(uncompiled(loss), p, "error_estimate")
    seen: list[_Probe] = []

    def perturbed(eps: Scalar) -> tuple[Scalar, Tree]:
        def value(p: Params) -> Scalar:
            with _probing(eps) as probe:
                seen.append(probe)
                return scalar(plain(p))

        return jax.value_and_grad(value)(p)

    zero = jnp.zeros(())
    (value, gradient), (dv, dg) = jax.jvp(perturbed, (zero,), (jnp.ones(()),))
    if not any(probe.used for probe in seen):
        raise ValueError(
            "error_estimate: the loss did not call saltus.solve, or calls it inside a function "
            "that was compiled before. Pass a loss whose solves are not inside jax.jit."
        )
    return Estimate(value, unless_nan(value, gradient), dv, unless_nan(value, dg))
