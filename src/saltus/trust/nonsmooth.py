"""The outcomes of all non-smooth operations of a model: a program that returns or accepts them.

`abs` is smooth once its branch is fixed; so are `max`, `floor`, a comparison, a place in a table. A
`Program` evaluates the flow and the constraint of a model, returns these outcomes as numbers with
the values, and can be given some of them instead.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from ..base.leaves import Leaves
from ..base.types import Array, ClosedJaxpr, Equation, Flag, Jaxpr
from ..model.model import At, Model, Par
from .loop_bodies import Inner, Outcomes, body_of
from .operation_rules import (
    bind,
    can_decide,
    decide,
    follow,
    makes_bits,
    outcome_count,
    reads_bits,
    whole,
)  # fmt: skip

CALLS = {
    "jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "custom_jvp_call",
    "custom_vjp_call", "custom_vjp_call_jaxpr",
}  # fmt: skip

OF_BITS_BUT_SMOOTH = {"ldexp"}  # library functions


class Known(NamedTuple):
    """A value that is part of the program."""

    value: Any


Operand: TypeAlias = int | Known  # a value of a program: its number, or itself


class Call(NamedTuple):
    """A call that contains an operation, with its name if it is a library function."""

    eqn: Equation
    ins: tuple[Operand, ...]
    name: str


class Op(NamedTuple):
    """One operation. Values have numbers; inputs are numbers or known."""

    eqn: Equation
    ins: tuple[Operand, ...]
    outs: tuple[int, ...]
    calls: tuple[Call, ...]  # from the outside in
    decides: bool  # it is not smooth, and depends on time or on states
    first: int = 0  # the place of its outcomes
    size: int = 0
    body: Inner | None = None  # of a loop or conditional with outcomes (loop_bodies.py)
    blind: bool = False  # it may contain decisions that cannot be examined

    @property
    def written(self) -> tuple[Call, ...]:
        """The operation or library call that the user wrote, and the calls around it."""
        own = Call(self.eqn, self.ins, "")
        chain = (*self.calls, own)
        first = next((k for k, c in enumerate(chain) if c.name), len(self.calls))
        return chain[first::-1]


# -- the program ----------------------------------------------------------------------------------
class Listing:
    """Operations on one level, including those of inner programs, with numbered outcomes."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.count = 0
        self.size = 0  # outcomes
        self.moving: set[int] = set()
        self.bits: set[int] = set()  # values that are the bits of floats that vary
        self.given, self.outputs = [], []
        self.names: dict[int, str] = {}
        self.outer = 0  # calls that belong to the program around it

    @staticmethod
    def of(closed: ClosedJaxpr, moving: list[bool], calls: tuple[Call, ...]) -> Listing:
        """The operations of a program; `moving` says which of its inputs vary."""
        listing = Listing()
        listing.outer = len(calls)
        listing.given = [listing.new(m) for m in moving]
        known = [Known(v) for v in closed.consts]
        listing.outputs = listing.enter(closed.jaxpr, [*known, *listing.given], calls)
        return listing

    def new(self, moves: bool = False) -> int:
        self.count += 1
        if moves:
            self.moving.add(self.count - 1)
        return self.count - 1

    def enter(self, jaxpr: Jaxpr, given: list[Operand], calls: tuple[Call, ...]) -> list[Operand]:
        """Add the operations of a jaxpr."""
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], given, strict=True))

        def read(v: jex.Var | jex.Literal) -> Operand:
            return Known(v.val) if isinstance(v, jex.Literal) else env[v]

        for eqn in jaxpr.eqns:
            ins = tuple(map(read, eqn.invars))
            inner = _inner(eqn)
            if inner is not None:
                program, consts = inner
                inside = (*calls, Call(eqn, ins, _library(eqn, program)))
                outs = self.enter(program, [*map(Known, consts), *ins], inside)
            else:
                outs = self._note(eqn, ins, calls)
            env.update(zip(eqn.outvars, outs, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _note(
        self, eqn: Equation, ins: tuple[Operand, ...], calls: tuple[Call, ...]
    ) -> tuple[int, ...]:
        moving = [self.moves(r) for r in ins]
        outs = tuple(self.new(any(moving)) for _ in eqn.outvars)
        whole_call = any(c.name in OF_BITS_BUT_SMOOTH for c in calls)
        of_bits = not whole_call and any(not isinstance(r, Known) and r in self.bits for r in ins)
        decides = can_decide(eqn, moving) or (of_bits and reads_bits(eqn))
        size = outcome_count(eqn) if decides else 0
        listed = lambda closed, inner: Listing.of(closed, inner, (*calls, Call(eqn, ins, "")))
        look = any(moving) and not decides  # a loop with integer results needs no body
        body, blind = body_of(eqn, moving, listed) if look else (None, False)
        if body is not None:
            decides, size = body.size > 0, body.size
        elif (makes_bits(eqn, moving) and not whole_call) or (of_bits and not decides):
            self.bits.update(outs)
            blind = blind or not whole(eqn)  # a float made of bits
        self.ops.append(Op(eqn, ins, outs, calls, decides, self.size, size, body, blind))
        self.size += size
        return outs

    def moves(self, r: Operand) -> bool:
        return not isinstance(r, Known) and r in self.moving

    @property
    def made(self) -> dict[int, Op]:
        """Which operation makes a value."""
        return {k: op for op in self.ops for k in op.outs}

    @property
    def deciding(self) -> list[Op]:
        return [op for op in self.ops if op.decides]

    def each(self) -> Iterator[Op]:
        """The operations with outcomes, in order; those inside loops once per iteration."""
        for op in self.deciding:
            yield from (op,) if op.body is None else op.body.each()

    @property
    def blind(self) -> list[Op]:
        """Operations that cannot be examined, including those inside loops."""
        inner = [op for o in self.ops if o.body is not None for op in o.body.blind]
        return [op for op in self.ops if op.blind] + inner

    def run(
        self, inputs: Sequence[Array], told: Array | None = None, mask: Array | None = None
    ) -> Outcomes:
        """Results, outcomes, and which of these the results depend on.

        Outcomes under `mask` are taken from `told` instead of being computed.
        """
        env = dict(zip(self.given, inputs, strict=True))
        noted, inside = [], {}

        def read(r: Operand) -> Array:
            return r.value if isinstance(r, Known) else env[r]

        for op in self.ops:
            values = [read(r) for r in op.ins]
            own = slice(op.first, op.first + op.size)
            if op.body is not None and op.decides:
                some = () if told is None or mask is None else (told[own], mask[own])
                out, decided, inside[op.first] = op.body.run(values, *some)
                noted.append(decided)
            elif op.decides:
                decided = decide(op.eqn, values)
                noted += decided
                if told is not None and mask is not None:
                    decided = _told(op, decided, told, mask)
                out = follow(op.eqn, values, decided)
            else:
                out = bind(op.eqn, values)
            env.update(zip(op.outs, out, strict=True))
        outcomes = jnp.concatenate([jnp.ravel(v).astype(float) for v in noted] or [jnp.zeros(0)])
        return [read(r) for r in self.outputs], outcomes, self._alive(env, inside)

    def _alive(self, env: dict, inside: dict[int, Array]) -> Array:
        """Which outcomes affect a result; those in a branch that is not taken do not."""
        alive: dict[int, Any] = {r: True for r in self.outputs if not isinstance(r, Known)}
        found: list = []

        def mark(r: Operand, how: Flag | bool) -> None:
            if not isinstance(r, Known) and self.moves(r) and how is not False:
                alive[r] = alive.get(r, False) | how

        for op in reversed(self.ops):
            own = functools.reduce(operator.or_, [alive.get(k, False) for k in op.outs], False)
            name = op.eqn.primitive.name
            if name in ("select_n", "saltus_when"):
                which = op.ins[0]
                mark(which, own)
                value = which.value if isinstance(which, Known) else env[which]
                cases = op.ins[1:] if name == "select_n" else op.ins[:0:-1]
                for k, r in enumerate(cases):
                    mark(r, own & jnp.any(jnp.asarray(value).astype(int) == k))
            else:
                for r in op.ins:
                    mark(r, own)
            if op.decides:
                mine = jnp.broadcast_to(jnp.asarray(own), (op.size,))
                found.insert(0, mine & inside[op.first] if op.first in inside else mine)
        return jnp.concatenate(found or [jnp.zeros(0, bool)])

    def op_at(self, place: int) -> tuple[Listing, Op]:
        """The operation that an outcome belongs to, and the program that it is in."""
        op = next(op for op in self.deciding if op.first <= place < op.first + op.size)
        return (self, op) if op.body is None else op.body.op_at(place - op.first)


class Program(Listing):
    """The flow and the constraint of a model."""

    def __init__(self, model: Model):
        super().__init__()
        flow = model.flow_fn
        rows = () if model.constraint is None else (model.constraint.fn,)
        self.fns = (flow, *rows)
        self.n_flow = len(flow.traced.jaxpr.outvars)
        args = [self.new(moves) for moves in _moves(model)]
        self.names = dict(zip(args, _names(model), strict=True))
        consts: list[int] = []
        for fn in self.fns:
            jaxpr = fn.traced.jaxpr
            own = [self.new() for _ in jaxpr.constvars]
            consts += own
            self.outputs += self.enter(jaxpr, [*own, *args], ())
        self.given = [*args, *consts]

    def inputs(self, model: Model, at: At, par: Par) -> Leaves:
        """What the program starts from: arguments and closed-over values."""
        consts = [v for fn in self.fns for v in fn.closed_over(par)]
        return (*model._flagged(at, par), *consts)


def _inner(eqn: Equation) -> tuple[Jaxpr, Sequence] | None:
    """The program inside a call, with its constants; `None` if it is not examined."""
    if eqn.primitive.name not in CALLS:
        return None
    found = [eqn.params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in eqn.params]
    if not found:
        return None
    closed = isinstance(found[0], jex.ClosedJaxpr)
    return (found[0].jaxpr, found[0].consts) if closed else (found[0], ())


def _library(eqn: Equation, program: Jaxpr) -> str:
    """The name of the library function that a call is, or nothing."""
    info = getattr(program, "debug_info", None)
    if not re.search(r"[/\\]jax[/\\]_src[/\\]", getattr(info, "func_src_info", "") or ""):
        return ""
    name = eqn.params.get("name") or getattr(info, "func_name", "")
    return str(name).lstrip("_")


def _moves(model: Model) -> list[bool]:
    """Which arguments change between events."""
    fixed = sum(model.n_d) + bool(model.modes)
    head = [False] * bool(model.kinks) + [True] * (1 + model.nx + model.n_z)
    head += [False] * fixed + [True] * len(model.signals)
    return head + [False] * (len(model.flow_fn.traced.jaxpr.invars) - len(head))


def _names(model: Model) -> list[str]:
    """Readable names of the arguments."""
    x = [n or "x" for n in model.x.names()]
    z = [n or "z" for n in model.z.names()]
    p = [f"p.{n}" if n else "p" for n in model.p.names()]
    fixed = sum(model.n_d) + bool(model.modes)
    head = ["flags"] * bool(model.kinks) + ["t", *x, *z] + ["d"] * fixed
    head += ["u"] * len(model.signals) + ["member"] + p
    return head + ["p"] * (len(model.flow_fn.traced.jaxpr.invars) - len(head))


def _told(op: Op, decided: list, told: Array, mask: Array) -> list:
    out, k = [], op.first
    for v in decided:
        size = int(np.prod(jnp.shape(v)))
        given = jnp.reshape(told[k : k + size], jnp.shape(v)).astype(jnp.result_type(v))
        out.append(jnp.where(jnp.reshape(mask[k : k + size], jnp.shape(v)), given, v))
        k += size
    return out
