"""The flow over short times: a Taylor polynomial (M4)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..base.leaves import Leaves
from .algebraic_states import attached
from .model import At, Model, Par


def velocity(model: Model, at: At, par: Par, degree: int) -> Leaves:
    """`(tau', w')` along the flow; discrete floats and pending times do not change."""
    here = attached(model, at, par, degree)
    zeros = tuple(jnp.zeros_like(leaf) for leaf in model.held_of(at))
    return (jnp.ones_like(at.tau), *model.flow(here, par), *zeros)


def derivatives(model: Model, at: At, par: Par, degree: int) -> list[Leaves]:
    """The first `degree` derivatives of `(tau, w)` in time, along the flow.

    They are differentiated up to `degree` times, for which z needs one derivative fewer, because
    they are multiplied by a length whose value is zero.
    """
    rounds = max(degree - 1, 1)

    def derivative(order: int, s: Leaves) -> Leaves:
        if order == 1:
            return velocity(model, At(s[0], s[1:], at.i, at.z), par, rounds)
        return jax.jvp(lambda y: derivative(order - 1, y), (s,), (derivative(1, s),))[1]

    return [derivative(order, (at.tau, *at.w)) for order in range(1, degree + 1)]


def moved(at: At, terms: list[Leaves], delta: Any) -> At:
    """The state a time `delta` later; its algebraic states are still those of `at`."""
    out, factorial = (at.tau, *at.w), 1.0
    for k, term in enumerate(terms):
        factorial = factorial * (k + 1)
        scale = delta ** (k + 1) / factorial
        out = tuple((v + scale * dv).astype(v.dtype) for v, dv in zip(out, term, strict=True))
    return At(out[0], out[1:], at.i, at.z)


def drift(model: Model, at: At, par: Par, delta: Any, degree: int) -> At:
    """The state a time `delta` later, by the Taylor polynomial of this degree (M4).

    The algebraic states at the start are those of `at`, at the end a function of the state there.
    """
    there = moved(at, derivatives(model, at, par, degree), delta)
    return attached(model, there, par, degree)
