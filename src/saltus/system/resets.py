"""Resets given by equations, and resets that remember."""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp

from ..base.leaves import aval, frozen, split
from ..base.text import picture
from ..base.tracing import trace
from ..base.types import Array, Leaves, Params
from ..linalg.factor import factor, jacobian
from ..linalg.newton import attach, newton
from ..linalg.vectors import Layout, Vec
from .hybrid import Instant, check_function
from .views import count

ROOT_DERIVATIVES = 4  # exact derivatives of the root of an implicit reset
_solves: contextvars.ContextVar[list] = contextvars.ContextVar("solves")


@contextlib.contextmanager
def noting_solves() -> Iterator[list]:
    """A list that gets an entry for each implicit reset that is traced inside this context."""
    noted: list = []
    token = _solves.set(noted)
    try:
        yield noted
    finally:
        _solves.reset(token)


def implicit_reset(
    residual: Callable,
    *,
    unknowns: Sequence[str] | None = None,
    guess: Callable | None = None,
) -> Callable:
    r"""A reset that solves $0 = T(now^+, now^-, p)$: `residual(after, before, p)`.

    There are as many equations as unknowns. These are `after.x`, or `after.x` and `after.z`
    together, whichever the number of equations fits; z is made consistent after the reset anyway,
    so it can stand for impulses here. `unknowns=("x", "d")` names other fields; of d, only floats
    are unknowns. Newton's method starts from the instant before the event, or from `guess(now, p)`,
    an instant whose other fields are then kept. If it does not converge, the result is NaN, and
    the solve stops with a message.
    """
    for name, fn in (("residual", residual), ("guess", guess or residual)):
        if not callable(fn):
            raise TypeError(
                f"implicit_reset: the {name} is {fn!r}, expected a function. Write "
                "implicit_reset(lambda after, before, p: ..., guess=lambda now, p: ...)."
            )
    if isinstance(unknowns, str):
        unknowns = (unknowns,)
    wrong = set(unknowns or ()) - {"x", "z", "d", "dx"}
    if wrong:
        raise ValueError(
            f"implicit_reset: {sorted(wrong)[0]!r} cannot be unknown; x, z, d and dx can. "
            'Write unknowns=("x", "z").'
        )

    def reset(now: Instant, p: Params) -> Instant:
        _solves.get([]).append(residual)
        first = now if guess is None else guess(now, p)
        if not isinstance(first, Instant):
            raise TypeError(
                f"implicit_reset: guess returned {picture(first)}, expected an Instant. "
                "Write guess=lambda now, p: now.replace(x=...)."
            )
        names = _unknowns(unknowns, residual, first, now, p)
        shape, floats, others = split({k: getattr(first, k) for k in names})
        rest, rest_floats, rest_others = split((first, now, p))
        n, m = len(floats), len(floats) + len(rest_floats)

        def equations(*flat: Array) -> list[Array]:
            after, before, parameters = rest.join(flat[n:m], flat[m:])
            after = after.replace(**shape.join(flat[:n], others))
            return jax.tree.leaves(residual(after, before, parameters))

        given = (*rest_floats, *rest_others)
        traced, closed = trace(equations, [aval(v) for v in (*floats, *given)])
        unknown = Layout(tuple(jnp.shape(v) for v in floats))
        rows = Layout(tuple(v.shape for v in traced.outputs))

        def of(root: Vec, closed: Sequence[Array], given: Leaves) -> Vec:
            return rows.pack(traced.call(*closed, *unknown.unpack(root), *given))

        # Newton's method runs without derivatives, also of what the residual closes over; `attach`
        # adds them.
        quiet = frozen((closed, given))
        found = newton(lambda y: of(y, *quiet), frozen(unknown.pack(floats))).value
        factors = factor(jacobian(lambda y: of(y, *quiet), found))
        found = attach(lambda y: of(y, closed, given), found, factors, ROOT_DERIVATIVES)
        new = [
            jnp.asarray(v).astype(jnp.result_type(old))
            for v, old in zip(unknown.unpack(found), floats, strict=True)
        ]
        return first.replace(**shape.join(new, others))

    return reset


def _unknowns(
    given: Sequence[str] | None, residual: Callable, first: Instant, now: Instant, p: Params
) -> tuple[str, ...]:
    """The fields for which the equations are solved: with as many numbers as equations."""
    value = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, residual(first, now, p)))
    floats = {k: split(getattr(first, k))[1] for k in ("x", "z", "d", "dx")}
    sizes = {k: sum(math.prod(v.shape) for v in leaves) for k, leaves in floats.items()}
    for names in (("x",), ("x", "z")) if given is None else (tuple(given),):
        if count(value) == sum(sizes[k] for k in names):
            return names
    shown = ", ".join(f"{k} has {v}" for k, v in sizes.items() if v)
    raise ValueError(
        f"implicit_reset: {count(value)} equations for the unknowns {given or 'x, or x and z'}, "
        f"where {shown} numbers. Return as many equations as unknowns, or write "
        'unknowns=("x", "d").'
    )


def remember(
    reset: Callable | None = None, *, x: str | Sequence[str] = (), z: str | Sequence[str] = ()
) -> Callable:
    """A reset that also copies entries of x and z to d, each under its name with a star.

    `remember(x="u", z="s")` writes `d["u*"]` and `d["s*"]` at every event, for model functions to
    read until the next one. `x` and `z` are names of entries, or lists of names. Values are copied
    after `reset(now, p)`, if it is given (z is that before the event, unless the reset replaces
    it). The entries must be in the start: `Instant(..., d={"u*": 0.0, "s*": 0.0})`.
    """
    wanted = {
        "x": (x,) if isinstance(x, str) else tuple(x),
        "z": (z,) if isinstance(z, str) else tuple(z),
    }
    write = 'remember(x="u", z="s"): states are named with x= and z=.'
    check_function("remember", "the reset", reset, True, "Instant", write)
    if not any(wanted.values()):
        raise ValueError('remember: nothing to remember. Write remember(x="u", z="s").')

    def keep(now: Instant, p: Params) -> Instant:
        after = now if reset is None else reset(now, p)
        if not isinstance(after, Instant):
            return after
        kept = {}
        for field, names in wanted.items():
            entries = getattr(after, field)
            for name in names:
                if not isinstance(entries, dict) or name not in entries:
                    raise ValueError(
                        f"remember: {field} is {picture(entries)}, without an entry {name!r}."
                    )
                kept[f"{name}*"] = entries[name]
        missing = [k for k in kept if not isinstance(after.d, dict) or k not in after.d]
        if missing:
            raise ValueError(
                f"remember: d is {picture(after.d)}, without an entry {missing[0]!r}. Start with "
                f'Instant(..., d={{"{missing[0]}": 0.0, ...}}).'
            )
        return after.replace(d={**after.d, **kept})

    return keep
