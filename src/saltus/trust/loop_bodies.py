"""Loops and conditionals whose bodies contain non-smooth operations, evaluated with their outcomes.

Each has one vector of outcomes: for a loop (`scan`, `map`, `fori_loop`, `while`) those of one
iteration after the other, for a conditional those of all its branches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ..base.jax_names import scan_sizes
from ..base.types import Array, ClosedJaxpr, Equation, Matrix, Vector, Whole

if TYPE_CHECKING:
    from .nonsmooth import Listing, Op

MOST_OUTCOMES = 4096  # of one loop; with more, it is not examined
WHILE_ITERATIONS = 64  # that are examined one by one
Outcomes = tuple[list[Array], Vector, Array]  # results, outcomes, which outcomes results depend on
CALLBACKS = ("callback", "ffi_call", "pallas", "xla_call", "shard_map")


class Inner:
    """The base of all bodies, with a listing for each inner program."""

    def __init__(self, eqn: Equation, listings: list[Listing], repeat: int):
        self.eqn, self.listings, self.repeat = eqn, listings, repeat
        self.width = sum(v.size for v in listings)
        self.size = self.width * repeat

    @property
    def blind(self) -> list[Op]:
        return [op for v in self.listings for op in v.blind]

    def op_at(self, place: int) -> tuple[Listing, Op]:
        place = place % self.width
        for listing in self.listings:
            if place < listing.size:
                return listing.op_at(place)
            place -= listing.size
        raise IndexError(place)

    def each(self) -> Iterator[Op]:
        for _ in range(self.repeat):
            for listing in self.listings:
                yield from listing.each()

    def run(self, values: list, told: Array | None = None, mask: Array | None = None) -> Outcomes:
        """Results, outcomes, and which of these the results depend on."""
        raise NotImplementedError

    def _rows(self, told: Array | None, mask: Array | None) -> tuple[Matrix, Matrix]:
        """The given outcomes and their mask for each iteration."""
        shape = (self.repeat, self.width)
        if told is None or mask is None:
            return jnp.zeros(shape), jnp.zeros(shape, bool)
        return told.reshape(shape), mask.reshape(shape)


class Scan(Inner):
    """`lax.scan`, and what is built on it: `lax.map`, `fori_loop` with fixed bounds."""

    def run(self, values: list, told: Array | None = None, mask: Array | None = None) -> Outcomes:
        p, (listing,) = self.eqn.params, self.listings
        first, n = scan_sizes(self.eqn)
        last = first + n
        consts, start, xs = values[:first], values[first:last], values[last:]

        def step(carry: list, given: tuple) -> tuple:
            x, told, mask = given
            out, outcomes, alive = listing.run([*consts, *carry, *x], told, mask)
            new = [jnp.asarray(v, jnp.result_type(c)) for v, c in zip(out[:n], carry, strict=True)]
            return new, (out[n:], outcomes, alive)

        start = [jnp.asarray(v) for v in start]
        rows = (xs, *self._rows(told, mask))
        end, (ys, outcomes, alive) = jax.lax.scan(
            step, start, rows, length=p["length"], reverse=p["reverse"]
        )
        return [*end, *ys], outcomes.ravel(), alive.ravel()


class Cond(Inner):
    """`lax.cond` and `lax.switch`: all branches are evaluated, one of them counts."""

    def run(self, values: list, told: Array | None = None, mask: Array | None = None) -> Outcomes:
        which, given = values[0], values[1:]
        outs, outcomes, alive, k = [], [], [], 0
        for branch, listing in enumerate(self.listings):
            own = slice(k, k + listing.size)
            some = () if told is None or mask is None else (told[own], mask[own])
            out, decided, live = listing.run(given, *some)
            outs.append(out)
            outcomes.append(decided)
            alive.append(live & (jnp.asarray(which).astype(int) == branch))
            k += listing.size
        index = jnp.clip(jnp.asarray(which).astype(int), 0, len(outs) - 1)
        chosen = [jnp.stack([jnp.asarray(v) for v in o])[index] for o in zip(*outs, strict=True)]
        return chosen, jnp.concatenate(outcomes), jnp.concatenate(alive)


class While(Inner):
    """`lax.while_loop`: the outcomes of condition and body in its first iterations."""

    def run(self, values: list, told: Array | None = None, mask: Array | None = None) -> Outcomes:
        p, (condition, body) = self.eqn.params, self.listings
        n, m = p["cond_nconsts"], p["body_nconsts"]
        asked, made, start = values[:n], values[n : n + m], values[n + m :]
        told, mask = self._rows(told, mask)

        def ask(state: list[Array], k: Whole) -> tuple:
            row = jnp.minimum(k, self.repeat - 1)
            known = mask[row] & (k < self.repeat - 1)
            own = slice(0, condition.size)
            (go,), found, live = condition.run([*asked, *state], told[row][own], known[own])
            return go, found, live, row, known

        def step(carry: tuple) -> tuple:
            state, k, outcomes, alive, _ = carry
            _, found, live, row, known = ask(state, k)
            own = slice(condition.size, None)
            out, decided, lives = body.run([*made, *state], told[row][own], known[own])
            out = [jnp.asarray(v, jnp.result_type(s)) for v, s in zip(out, state, strict=True)]
            outcomes = outcomes.at[row].set(jnp.concatenate([found, decided]))
            alive = alive.at[row].set(jnp.concatenate([live, lives]))
            go, found, live, row, _ = ask(out, k + 1)
            outcomes = outcomes.at[row, : condition.size].set(found)
            alive = alive.at[row, : condition.size].set(live)
            return out, k + 1, outcomes, alive, go

        state = [jnp.asarray(v) for v in start]
        go, found, live, _, _ = ask(state, jnp.zeros((), int))
        outcomes = jnp.zeros((self.repeat, self.width)).at[0, : condition.size].set(found)
        alive = jnp.zeros((self.repeat, self.width), bool).at[0, : condition.size].set(live)
        first = (state, jnp.zeros((), int), outcomes, alive, go)
        state, _, outcomes, alive, _ = jax.lax.while_loop(lambda c: c[4], step, first)
        return state, outcomes.ravel(), alive.ravel()


Listed = Callable[[Any, list[bool]], Any]  # (program, which inputs vary) -> its operations


def body_of(eqn: Equation, moving: list[bool], listed: Listed) -> tuple[Inner | None, bool]:
    """The body of a loop or conditional, if it has outcomes; and whether it cannot be examined."""
    try:
        body = _inside(eqn, moving, listed)
    except (KeyError, AttributeError):  # its parameters have other names in this JAX
        return None, True
    if body is None:
        return None, _opaque(eqn, listed)
    if body.size == 0 and not body.blind:
        return None, False
    return (None, True) if body.size > MOST_OUTCOMES else (body, False)


def _inside(eqn: Equation, moving: list[bool], listed: Listed) -> Inner | None:
    name, p = eqn.primitive.name, eqn.params
    if name == "scan":
        listing = _looped(listed, p["jaxpr"], moving, *scan_sizes(eqn))
        return Scan(eqn, [listing], p["length"])
    if name == "cond":
        return Cond(eqn, [listed(b, moving[1:]) for b in p["branches"]], 1)
    if name == "while":
        n, m = p["cond_nconsts"], p["body_nconsts"]
        listing = _looped(listed, p["body_jaxpr"], moving[n:], m, len(moving) - n - m)
        state = [listing.moves(r) for r in listing.given[m:]]
        return While(
            eqn, [listed(p["cond_jaxpr"], [*moving[:n], *state]), listing], WHILE_ITERATIONS
        )
    return None


def _looped(
    listed: Listed, closed: ClosedJaxpr, moving: list[bool], first: int, count: int
) -> Listing:
    """A body that is repeated: a value that varies after one iteration varies in all."""
    moving = list(moving)
    while True:
        listing = listed(closed, moving)
        carried = [listing.moves(r) for r in listing.outputs[:count]]
        new = [a or b for a, b in zip(moving[first : first + count], carried, strict=True)]
        if new == moving[first : first + count]:
            return listing
        moving[first : first + count] = new


def _opaque(eqn: Equation, listed: Listed) -> bool:
    """Whether an operation may contain decisions that are not examined."""
    if any(word in eqn.primitive.name for word in CALLBACKS):
        return True
    for given in eqn.params.values():
        given = getattr(given, "matvec", given)  # a linear solve itself is smooth
        for inner in jax.tree.leaves(given, is_leaf=lambda v: hasattr(v, "jaxpr")):
            if hasattr(inner, "jaxpr") and hasattr(inner, "consts"):
                listing = listed(inner, [True] * len(inner.jaxpr.invars))
                if listing.size or listing.blind:
                    return True
    return False
