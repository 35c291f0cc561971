"""Which way every non-smooth operation of a model goes: a program that tells, or that is told.

`abs` is smooth as long as it is known to be the one or the other branch; so are `max`, `floor`, a
comparison, a place in a table. A `Program` evaluates the flow and the constraint of a model,
returns these outcomes as numbers beside the values, and can be given some of them instead.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from ..base.jax_names import bind_again
from ..base.leaves import Leaves
from ..model.model import Model, Par
from .loop_bodies import body_of

CALLS = {
    "jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "custom_jvp_call",
    "custom_vjp_call", "custom_vjp_call_jaxpr",
}  # fmt: skip


class Known(NamedTuple):
    """A value that is part of the program."""

    value: Any


class Call(NamedTuple):
    """A call that an operation is inside of; its name, where it is a function of a library."""

    eqn: Any
    ins: tuple
    name: str


class Op(NamedTuple):
    """One operation. Values have numbers; inputs are numbers or known."""

    eqn: Any
    ins: tuple
    outs: tuple[int, ...]
    calls: tuple[Call, ...]  # from the outside in
    decides: bool  # it is not smooth, and depends on time or on states
    first: int = 0  # the place of its outcomes
    size: int = 0
    body: Any = None  # of a loop or a conditional that decides something inside (loop_bodies.py)
    blind: bool = False  # it may decide something that nobody can see

    @property
    def written(self) -> tuple[Call, ...]:
        """The operation or library call that the user wrote, and the calls around that."""
        own = Call(self.eqn, self.ins, "")
        chain = (*self.calls, own)
        first = next((k for k, c in enumerate(chain) if c.name), len(self.calls))
        return chain[first::-1]


# -- rules: what an operation decides, and what follows from a decision ---------------------------
def _bind(eqn: Any, values: list) -> list:
    out = bind_again(eqn, values)
    return list(out) if eqn.primitive.multiple_results else [out]


def _whole(eqn: Any) -> bool:
    """Whether no result is a float: a comparison, a place in a table, a rounded number."""
    return not any(_floating(v.aval) for v in eqn.outvars)


def _order(eqn: Any, values: list) -> Any:
    axis = eqn.params["dimension"]
    place = jax.lax.broadcasted_iota(jnp.int32, jnp.shape(values[0]), axis)
    keys = eqn.params["num_keys"]
    return jax.lax.sort((*values, place), dimension=axis, num_keys=keys, is_stable=True)[-1]


def _in_order(eqn: Any, values: list, order: Any) -> list:
    axis = eqn.params["dimension"]
    return [jnp.take_along_axis(jnp.asarray(v), order, axis) for v in values]


def _together(eqn: Any, v: Any) -> Any:
    """The reduced axes as one, at the end."""
    axes = eqn.params["axes"]
    kept = [k for k in range(v.ndim) if k not in axes]
    return jnp.transpose(v, (*kept, *axes)).reshape(*[v.shape[k] for k in kept], -1)


def _picked(eqn: Any, v: Any, which: Any) -> list:
    wide = _together(eqn, v)
    return [jnp.take_along_axis(wide, which[..., None], -1)[..., 0]]


def _turn(v: list) -> Any:
    """On which side of the cut of the angle one is, where it is near."""
    return jnp.where(v[1] < 0, jnp.where(v[0] < 0, -1, 1), 0)


def _angle(v: list, turn: Any) -> list:
    return [jnp.arctan2(*v) + jnp.where(turn * _turn(v) < 0, 2 * jnp.pi * turn, 0.0)]


def _best(eqn: Any, v: Any, which: Any) -> list:
    return [jnp.take_along_axis(v, which, eqn.params.get("axis", -1)), which]


class Rule(NamedTuple):
    """Of an operation with float results; of the others the results are the decision."""

    decide: Callable  # (eqn, values) -> an array
    follow: Callable  # (eqn, values, decision) -> results


_ROUND = Rule(lambda e, v: _bind(e, v)[0], lambda e, v, o: [o])
RULES = {
    "abs": Rule(lambda e, v: v[0] < 0, lambda e, v, o: [jnp.where(o, -v[0], v[0])]),
    "max": Rule(lambda e, v: v[0] > v[1], lambda e, v, o: [jnp.where(o, v[0], v[1])]),
    "min": Rule(lambda e, v: v[0] < v[1], lambda e, v, o: [jnp.where(o, v[0], v[1])]),
    "sign": _ROUND,
    "floor": _ROUND,
    "ceil": _ROUND,
    "round": _ROUND,
    "rem": Rule(lambda e, v: jnp.trunc(v[0] / v[1]), lambda e, v, o: [v[0] - o * v[1]]),
    "clamp": Rule(
        lambda e, v: jnp.where(v[1] < v[0], -1, jnp.where(v[1] > v[2], 1, 0)),
        lambda e, v, o: [jnp.where(o < 0, v[0], jnp.where(o > 0, v[2], v[1]))],
    ),
    "atan2": Rule(lambda e, v: _turn(v), lambda e, v, o: _angle(v, o)),
    "top_k": Rule(lambda e, v: _bind(e, v)[1], lambda e, v, o: _best(e, v[0], o)),
    "sort": Rule(_order, _in_order),
    "reduce_max": Rule(
        lambda e, v: jnp.argmax(_together(e, v[0]), -1), lambda e, v, o: _picked(e, v[0], o)
    ),
    "reduce_min": Rule(
        lambda e, v: jnp.argmin(_together(e, v[0]), -1), lambda e, v, o: _picked(e, v[0], o)
    ),
}
SIMPLE = ("bitcast_convert_type", "is_finite")  # they decide nothing that a flow goes by


def _floating(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.floating)


def _decides(eqn: Any, moving: list[bool]) -> bool:
    """Whether an operation with these inputs in motion is one that can change its outcome."""
    name = eqn.primitive.name
    floats = [m and _floating(v.aval) for v, m in zip(eqn.invars, moving, strict=True)]
    if not any(floats) or name in SIMPLE:
        return False
    return name in RULES or _whole(eqn)


# -- the program ----------------------------------------------------------------------------------
class Listing:
    """Operations on one level, those of inner programs included, with their decisions numbered."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.count = 0
        self.size = 0  # outcomes
        self.moving: set[int] = set()
        self.given, self.outputs = [], []
        self.names: dict[int, str] = {}
        self.outer = 0  # calls that belong to the program around it

    @staticmethod
    def of(closed: Any, moving: list[bool], calls: tuple[Call, ...]) -> Listing:
        """The operations of a program whose inputs move or not."""
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

    def enter(self, jaxpr: Any, given: list, calls: tuple[Call, ...]) -> list:
        """Write down the operations of a jaxpr."""
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], given, strict=True))

        def read(v: Any) -> Any:
            return Known(v.val) if isinstance(v, jex.Literal) else env[v]

        for eqn in jaxpr.eqns:
            ins = tuple(map(read, eqn.invars))
            inner = _inner(eqn)
            if inner is not None:
                known = [Known(v) for v in getattr(inner, "consts", ())]
                program = getattr(inner, "jaxpr", inner)
                inside = (*calls, Call(eqn, ins, _library(eqn, program)))
                outs = self.enter(program, [*known, *ins], inside)
            else:
                outs = self._note(eqn, ins, calls)
            env.update(zip(eqn.outvars, outs, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _note(self, eqn: Any, ins: tuple, calls: tuple[Call, ...]) -> tuple[int, ...]:
        moving = [self.moves(r) for r in ins]
        outs = tuple(self.new(any(moving)) for _ in eqn.outvars)
        decides = _decides(eqn, moving)
        size = _outcomes(eqn) if decides else 0
        listed = lambda closed, inner: Listing.of(closed, inner, (*calls, Call(eqn, ins, "")))
        look = any(moving) and not decides  # of a loop with whole results these say everything
        body, blind = body_of(eqn, moving, listed) if look else (None, False)
        if body is not None:
            decides, size = body.size > 0, body.size
        self.ops.append(Op(eqn, ins, outs, calls, decides, self.size, size, body, blind))
        self.size += size
        return outs

    def moves(self, r: Any) -> bool:
        return not isinstance(r, Known) and r in self.moving

    @property
    def made(self) -> dict[int, Op]:
        """Which operation makes a value."""
        return {k: op for op in self.ops for k in op.outs}

    @property
    def deciding(self) -> list[Op]:
        return [op for op in self.ops if op.decides]

    def each(self) -> Iterator[Op]:
        """The operations that decide, in the order of outcomes, those inside of loops each time."""
        for op in self.deciding:
            yield from (op,) if op.body is None else op.body.each()

    @property
    def blind(self) -> list[Op]:
        """Operations that nobody can look into, those inside of loops included."""
        inner = [op for o in self.ops if o.body is not None for op in o.body.blind]
        return [op for op in self.ops if op.blind] + inner

    def run(self, inputs: Any, told: Any = None, mask: Any = None) -> tuple[list, Any, Any]:
        """Results, outcomes, and which of these the results depend on.

        Outcomes under `mask` are not decided but read from `told`.
        """
        env = dict(zip(self.given, inputs, strict=True))
        noted, inside = [], {}

        def read(r: Any) -> Any:
            return r.value if isinstance(r, Known) else env[r]

        for op in self.ops:
            values = [read(r) for r in op.ins]
            own = slice(op.first, op.first + op.size)
            if op.body is not None and op.decides:
                some = (None, None) if mask is None else (told[own], mask[own])
                out, decided, inside[op.first] = op.body.run(values, *some)
                noted.append(decided)
            elif op.decides:
                decided = _decide(op, values)
                noted += decided
                if mask is not None:
                    decided = _told(op, decided, told, mask)
                out = _follow(op, values, decided)
            else:
                out = _bind(op.eqn, values)
            env.update(zip(op.outs, out, strict=True))
        outcomes = jnp.concatenate([jnp.ravel(v).astype(float) for v in noted] or [jnp.zeros(0)])
        return [read(r) for r in self.outputs], outcomes, self._alive(env, inside)

    def _alive(self, env: dict, inside: dict) -> Any:
        """Which outcomes reach a result; those in a branch that is not taken do not."""
        alive: dict[int, Any] = {r: True for r in self.outputs if not isinstance(r, Known)}
        found: list = []

        def mark(r: Any, how: Any) -> None:
            if self.moves(r) and how is not False:
                alive[r] = alive.get(r, False) | how

        for op in reversed(self.ops):
            own = functools.reduce(operator.or_, [alive.get(k, False) for k in op.outs], False)
            name, which = op.eqn.primitive.name, op.ins[0] if op.ins else None
            if name in ("select_n", "saltus_when"):
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

    def inputs(self, model: Model, at: Any, par: Par) -> Leaves:
        """What the program starts from: arguments and closed-over values."""
        consts = [v for fn in self.fns for v in fn.closed_over(par)]
        return (*model._flagged(at, par), *consts)


def _inner(eqn: Any) -> Any:
    """The program that a call contains, if it is one that is entered."""
    if eqn.primitive.name not in CALLS:
        return None
    found = [eqn.params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in eqn.params]
    return found[0] if found else None


def _library(eqn: Any, program: Any) -> str:
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
    """What a person calls the arguments."""
    x = [n or "x" for n in model.x.names()]
    z = [n or "z" for n in model.z.names()]
    p = [f"p.{n}" if n else "p" for n in model.p.names()]
    fixed = sum(model.n_d) + bool(model.modes)
    head = ["flags"] * bool(model.kinks) + ["t", *x, *z] + ["d"] * fixed
    head += ["u"] * len(model.signals) + ["member"] + p
    return head + ["p"] * (len(model.flow_fn.traced.jaxpr.invars) - len(head))


def _outcomes(eqn: Any) -> int:
    """How many outcomes an operation has."""
    if _whole(eqn):
        return sum(v.aval.size for v in eqn.outvars)
    return eqn.invars[0].aval.size if eqn.primitive.name == "sort" else eqn.outvars[0].aval.size


def _decide(op: Op, values: list) -> list:
    if _whole(op.eqn):
        return _bind(op.eqn, values)
    return [RULES[op.eqn.primitive.name].decide(op.eqn, values)]


def _follow(op: Op, values: list, decided: list) -> list:
    if _whole(op.eqn):
        return decided
    found = RULES[op.eqn.primitive.name].follow(op.eqn, values, decided[0])
    return [v.astype(a.aval.dtype) for v, a in zip(found, op.eqn.outvars, strict=True)]


def _told(op: Op, decided: list, told: Any, mask: Any) -> list:
    out, k = [], op.first
    for v in decided:
        size = int(np.prod(jnp.shape(v)))
        given = jnp.reshape(told[k : k + size], jnp.shape(v)).astype(jnp.result_type(v))
        out.append(jnp.where(jnp.reshape(mask[k : k + size], jnp.shape(v)), given, v))
        k += size
    return out
