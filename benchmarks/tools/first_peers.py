"""The bouncing ball's first results by other tools, for `first_result.py --peers`.

diffrax in the form that its documentation suggests, not compiled as a whole by the caller; CasADi
interpreted, as installed. Each function imports its tool: that is part of the first result.
"""

from __future__ import annotations

from collections.abc import Callable


def _diffrax(gradient: bool) -> None:
    import jax
    import jax.numpy as jnp

    from tools import diffrax_core as tool

    q = jnp.array(tool.problems.BALL)
    if gradient:
        back = lambda q: tool.ball(q, tool.PLAIN, tool.backward(tool.PLAIN))[0]
        jax.block_until_ready(jax.jit(jax.value_and_grad(back))(q))
    else:
        jax.block_until_ready(jax.jit(lambda q: tool.ball(q, tool.PLAIN, tool.forward))(q))


def _casadi(gradient: bool) -> None:
    from tools import casadi_core as tool

    (tool.value_and_gradient() if gradient else tool.solve())()


RUNS: dict[str, Callable[[], None]] = {
    "diffrax solve": lambda: _diffrax(gradient=False),
    "diffrax gradient": lambda: _diffrax(gradient=True),
    "casadi solve": lambda: _casadi(gradient=False),
    "casadi gradient": lambda: _casadi(gradient=True),
}
