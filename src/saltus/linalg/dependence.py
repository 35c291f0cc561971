"""Which outputs of a function depend on which inputs, entry by entry, from its jaxpr.

Each value has a sparse boolean matrix: a row per entry, a column per entry of the chosen inputs.
Operations that only move entries are carried out on the numbers of the entries, which shows where
each comes from. Known values (constants and what is computed from them) are kept as well, because
the result depends on indices, masks and zeros in constant matrices. No dependence is missed: all
results of an operation that is not known here depend on all of its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from ..base.jax_names import aval_of, scan_sizes
from ..base.tracing import is_tracer
from ..base.types import Array, Atom, Aval, ClosedJaxpr, Equation, HostArray, Jaxpr
from .data_movement import MOVES, move, numbers, scatter_places, split_operands

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MAX_PAIRS = 20_000_000  # most dependences that are listed for one operation
MAX_SCAN = 20_000  # most operations of a loop whose rounds are treated one by one


Found: TypeAlias = "list[csr_array | None]"  # the dependence of each result of an operation


class Entry(NamedTuple):
    """What is known about a value: its dependence (None: on nothing) and possibly its numbers."""

    deps: csr_array | None = None
    value: np.ndarray | None = None


def dependence(closed: ClosedJaxpr, wrt: Sequence[int], known: dict[int, Any] | None = None) -> Any:
    """The sparse boolean matrix [entries of all outputs, entries of the inputs `wrt`].

    `known` maps other inputs to numbers that never change.
    """
    from scipy.sparse import csr_array, vstack

    sizes = [closed.in_avals[k].size for k in wrt]
    width, start = sum(sizes), np.concatenate([[0], np.cumsum(sizes)])
    args = [Entry() for _ in closed.in_avals]
    for k, value in (known or {}).items():
        args[k] = Entry(value=_concrete(value))
    for j, k in enumerate(wrt):
        columns = np.arange(start[j], start[j + 1])
        args[k] = Entry(_matrix(np.arange(sizes[j]), columns, (sizes[j], width)))
    out = _Walk(width).run(closed.jaxpr, [Entry(value=_concrete(c)) for c in closed.consts], args)
    blocks = [
        csr_array((aval.size, width), dtype=bool) if e.deps is None else e.deps
        for e, aval in zip(out, closed.out_avals, strict=True)
    ]
    return vstack(blocks, format="csr")


def _concrete(value: Any) -> np.ndarray | None:
    if is_tracer(value) or jnp.issubdtype(jnp.result_type(value), jax.dtypes.extended):
        return None
    return np.asarray(value)


def _matrix(rows: HostArray, cols: HostArray, shape: tuple[int, int]) -> csr_array:
    from scipy.sparse import csr_array

    _check_count(len(rows))
    return csr_array((np.ones(len(rows), bool), (rows, cols)), shape=shape, dtype=bool)


def _check_count(count: int) -> None:
    if count > MAX_PAIRS:
        raise ValueError(
            f"the sparsity pattern has more than {MAX_PAIRS} entries: nearly every equation "
            "depends on every state. Give the pattern with HybridSystem(..., sparsity=...)."
        )


def _ids(aval: Aval) -> np.ndarray:
    return np.arange(aval.size).reshape(aval.shape)


class _Walk:
    """One pass through a jaxpr; `width` is the number of columns."""

    def __init__(self, width: int):
        self.width = width
        self.keep = False  # dependences without a derivative, too: a custom rule may define one

    def run(self, jaxpr: Jaxpr, consts: Sequence[Entry], args: Sequence[Entry]) -> list[Entry]:
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
        for eqn in jaxpr.eqns:
            ins = [self._read(env, v) for v in eqn.invars]
            for var, entry in zip(eqn.outvars, self.equation(eqn, ins), strict=True):
                smooth = self.keep or jnp.issubdtype(aval_of(var).dtype, jnp.inexact)
                env[var] = entry if smooth else Entry(value=entry.value)
        return [self._read(env, v) for v in jaxpr.outvars]

    def _read(self, env: dict[jex.Var, Entry], var: Atom) -> Entry:
        return Entry(value=np.asarray(var.val)) if isinstance(var, jex.Literal) else env[var]

    def equation(self, eqn: Equation, ins: list[Entry]) -> list[Entry]:
        try:
            return self._understood(eqn, ins)
        except (KeyError, AttributeError):  # this version of JAX names its parameters differently
            return [Entry(deps) for deps in self.everything(eqn, ins)]

    def _understood(self, eqn: Equation, ins: list[Entry]) -> list[Entry]:
        name = eqn.primitive.name
        if name in _INNER:
            return self._inner(eqn, ins)
        if all(e.deps is None for e in ins):
            return [Entry(value=v) for v in numbers(eqn, [e.value for e in ins])]
        if name in ("cond", "saltus_branch"):
            return self._branches(eqn, ins)
        if name == "scan":
            return self._scan(eqn, ins)
        if name in _FLAT and not self.keep:
            return [Entry()] * len(eqn.outvars)
        rule = _RULES.get(name, _Walk.moved if name in MOVES else None)
        found = rule(self, eqn, ins) if rule else None
        if found is None and name in _ELEMENTWISE:
            found = [self.union(self.spread(ins, eqn))]
        if found is None:
            found = self.everything(eqn, ins)
        return [Entry(deps) for deps in found]

    # -- matrices

    def take(
        self, entries: Sequence[Entry], avals: Sequence[Aval], places: np.ndarray
    ) -> csr_array:
        """The rows at `places`, counted through all entries in order; none for negative places."""
        from scipy.sparse import csr_array, vstack

        blocks = [
            csr_array((a.size, self.width), dtype=bool) if e.deps is None else e.deps
            for e, a in zip(entries, avals, strict=True)
        ]
        size = sum(a.size for a in avals)
        places = np.where((places < 0) | (places >= size), size, places)
        nothing = csr_array((1, self.width), dtype=bool)
        return csr_array(vstack([*blocks, nothing], format="csr"))[places.reshape(-1)]

    def union(self, matrices: Sequence[csr_array | None]) -> csr_array | None:
        """The dependence on all that any of the matrices depends on; None if all are None."""
        found = [m for m in matrices if m is not None]
        total = found[0] if found else None
        for m in found[1:]:
            total = total if m is total else total + m
        return total

    def sum_over(
        self, entry: Entry, out: np.ndarray, inn: np.ndarray, size: int
    ) -> csr_array | None:
        """Entry `out[k]` of the result depends on what entry `inn[k]` depends on."""
        if entry.deps is None:
            return None
        shape = (size, len(entry.deps.indptr) - 1)
        return _matrix(out.reshape(-1), inn.reshape(-1), shape) @ entry.deps

    def everything(self, eqn: Equation, ins: Sequence[Entry]) -> Found:
        """Every entry of the results depends on all that any operand depends on."""
        found = [e.deps.indices for e in ins if e.deps is not None]
        if not found:
            return [None] * len(eqn.outvars)
        columns, outs = np.unique(np.concatenate(found)), []
        for var in eqn.outvars:
            n = aval_of(var).size
            _check_count(n * len(columns))
            rows = np.repeat(np.arange(n), len(columns))
            outs.append(_matrix(rows, np.tile(columns, n), (n, self.width)))
        return outs

    def spread(self, ins: Sequence[Entry], eqn: Equation) -> Found:
        """The dependences of the operands, each broadcast to the shape of the result."""
        out, spread = aval_of(eqn.outvars[0]), []
        for e, v in zip(ins, eqn.invars, strict=True):
            if e.deps is None or aval_of(v).shape == out.shape:
                spread.append(e.deps)
            else:
                places = np.broadcast_to(_ids(aval_of(v)), out.shape)
                spread.append(e.deps[places.reshape(-1)])
        return spread

    def moved(self, eqn: Equation, ins: list[Entry]) -> Found | None:
        """The rows in their new places, if these are known."""
        data, index = split_operands(eqn.primitive.name, ins)
        avals, _ = split_operands(eqn.primitive.name, [aval_of(v) for v in eqn.invars])
        places = [e.value for e in index if e.value is not None]
        if len(places) < len(index):
            return None
        start = np.concatenate([[0], np.cumsum([a.size for a in avals])])
        ids = [start[k] + _ids(a) for k, a in enumerate(avals)]
        return [*(self.take(data, avals, out) for out in move(eqn, ids, places))]

    # -- programs inside

    def _inner(self, eqn: Equation, ins: list[Entry]) -> list[Entry]:
        program = next((eqn.params[k] for k in _INNER_PARAMS if k in eqn.params), None)
        if program is None:
            return [Entry(deps) for deps in self.everything(eqn, ins)]
        before = self.keep
        self.keep = before or eqn.primitive.name.startswith("custom")
        try:
            return self.run(*_open(program), ins)
        finally:
            self.keep = before

    def _branches(self, eqn: Equation, ins: list[Entry]) -> list[Entry]:
        programs = eqn.params["branches" if "branches" in eqn.params else "programs"]
        index, *args = ins
        if index.value is not None and index.value.ndim == 0:
            programs = [programs[np.clip(int(index.value), 0, len(programs) - 1)]]
        results = [self.run(*_open(program), args) for program in programs]
        if len(results) == 1:
            return results[0]
        return [Entry(self.union([e.deps for e in same])) for same in zip(*results, strict=True)]

    def _scan(self, eqn: Equation, ins: list[Entry]) -> list[Entry]:
        p = eqn.params
        jaxpr, inner = _open(p["jaxpr"])
        length, (n_consts, n_carry) = p["length"], scan_sizes(eqn)
        if length * len(jaxpr.eqns) > MAX_SCAN or length == 0:
            return [Entry(deps) for deps in self.everything(eqn, ins)]
        consts, carry = ins[:n_consts], ins[n_consts : n_consts + n_carry]
        xs = list(zip(ins[n_consts + n_carry :], eqn.invars[n_consts + n_carry :], strict=True))
        stacked: list = [None] * length
        for k in reversed(range(length)) if p["reverse"] else range(length):
            now = [self._slice(e, aval_of(v), k) for e, v in xs]
            out = self.run(jaxpr, inner, [*consts, *carry, *now])
            carry, stacked[k] = out[:n_carry], out[n_carry:]
        ys = []
        for j, var in enumerate(eqn.outvars[n_carry:]):
            rows = [row[j] for row in stacked]
            avals = [jax.ShapeDtypeStruct(aval_of(var).shape[1:], aval_of(var).dtype)] * length
            ys.append(Entry(self.take(rows, avals, np.arange(aval_of(var).size))))
        return [*carry, *ys]

    def _slice(self, entry: Entry, aval: Aval, k: int) -> Entry:
        value = None if entry.value is None else entry.value[k]
        if entry.deps is None:
            return Entry(value=value)
        return Entry(entry.deps[_ids(aval)[k].reshape(-1)], value)


def _open(program: Jaxpr | ClosedJaxpr) -> tuple[Jaxpr, list[Entry]]:
    if isinstance(program, jex.ClosedJaxpr):
        return program.jaxpr, [Entry(value=_concrete(c)) for c in program.consts]
    return program, []


def _product(walk: _Walk, eqn: Equation, ins: list[Entry]) -> Found:
    """A product: entries that are multiplied by a known zero do not count."""
    out, kept = aval_of(eqn.outvars[0]), []
    for deps, other in zip(walk.spread(ins, eqn), reversed(ins), strict=True):
        if deps is not None and other.value is not None and not np.all(other.value):
            zero = np.broadcast_to(other.value == 0, out.shape)
            deps = walk.take([Entry(deps)], [out], np.where(zero, -1, _ids(out)))
        kept.append(deps)
    return [walk.union(kept)]


def _contraction(walk: _Walk, eqn: Equation, ins: list[Entry]) -> Found | None:
    """`dot_general`: sums of products, without those that have a known zero as a factor."""
    (contract, batch), sides = eqn.params["dimension_numbers"], []
    for v, c, b in zip(eqn.invars, contract, batch, strict=True):
        free = [d for d in range(aval_of(v).ndim) if d not in (*c, *b)]
        shape = [int(np.prod([aval_of(v).shape[d] for d in dims])) for dims in (b, free, c)]
        sides.append(_ids(aval_of(v)).transpose(*b, *free, *c).reshape(shape))
    left, right = sides[0][:, :, None, :], sides[1][:, None, :, :]
    shape = np.broadcast_shapes(left.shape, right.shape)
    if np.prod(shape) > MAX_PAIRS:
        return None
    size = aval_of(eqn.outvars[0]).size
    result = np.broadcast_to(np.arange(size).reshape(shape[:-1])[..., None], shape)
    found = []
    for entry, mine, other, yours in zip(ins, (left, right), ins[::-1], (right, left), strict=True):
        pairs = np.ones(shape, bool)
        if other.value is not None:
            pairs &= (other.value.reshape(-1) != 0)[yours]
        found.append(walk.sum_over(entry, result[pairs], np.broadcast_to(mine, shape)[pairs], size))
    return [walk.union(found)]


def _reduction(walk: _Walk, eqn: Equation, ins: list[Entry]) -> Found:
    """Each entry depends on those it was reduced from."""
    inn, out = aval_of(eqn.invars[0]), aval_of(eqn.outvars[0])
    shape = [1 if d in eqn.params["axes"] else n for d, n in enumerate(inn.shape)]
    result = np.broadcast_to(_ids(out).reshape(shape), inn.shape)
    return [walk.sum_over(ins[0], result, _ids(inn), out.size)]


def _running(walk: _Walk, eqn: Equation, ins: list[Entry]) -> Found | None:
    """Each entry depends on those before it along the axis (after it, in reverse)."""
    aval, axis = aval_of(eqn.outvars[0]), eqn.params["axis"]
    n = aval.shape[axis]
    if aval.size * n > MAX_PAIRS:
        return None
    lines = np.moveaxis(_ids(aval), axis, -1).reshape(-1, n)
    first, last = np.triu_indices(n) if not eqn.params["reverse"] else np.tril_indices(n)
    return [walk.sum_over(ins[0], lines[:, last], lines[:, first], aval.size)]


def _scatter(walk: _Walk, eqn: Equation, ins: list[Entry]) -> Found | None:
    """A scatter to known places; `scatter` itself replaces what was there."""
    operand, indices, updates = ins
    if indices.value is None or indices.deps is not None:
        return None
    target = aval_of(eqn.invars[0])
    places = scatter_places(eqn, indices.value).reshape(-1)
    inside = np.flatnonzero(places >= 0)
    landed = walk.sum_over(updates, places[inside], inside, target.size)
    kept = operand.deps
    if eqn.primitive.name == "scatter" and kept is not None:
        left = np.arange(target.size)
        left[places[inside]] = -1
        kept = walk.take([operand], [target], left)
    return [walk.union([kept, landed])]


def _convolution(walk: _Walk, eqn: Equation, ins: list[Entry]) -> Found | None:
    """A convolution, one entry of its kernel at a time, on entry numbers."""
    (image, kernel), (inn, weights) = ins, map(aval_of, eqn.invars)
    if kernel.deps is not None or weights.size > 64:
        return None
    active = np.ones(weights.size) if kernel.value is None else kernel.value.reshape(-1)
    size, rows, cols = aval_of(eqn.outvars[0]).size, [], []
    params = {**eqn.params, "preferred_element_type": None}
    for k in np.flatnonzero(active):
        one = np.zeros(weights.size)
        one[k] = 1.0
        with jax.ensure_compile_time_eval():
            ids, hot = jnp.asarray(_ids(inn) + 1.0), jnp.asarray(one.reshape(weights.shape))
            read = np.asarray(eqn.primitive.bind(ids, hot, **params)).reshape(-1)
        places = np.rint(read).astype(np.int64) - 1
        inside = np.flatnonzero(places >= 0)
        rows.append(inside)
        cols.append(places[inside])
    if not rows:
        return [None]
    return [walk.sum_over(image, np.concatenate(rows), np.concatenate(cols), size)]


_RULES: dict[str, Callable[..., list[Any] | None]] = {
    "mul": _product,
    "dot_general": _contraction,
    "conv_general_dilated": _convolution,
    **dict.fromkeys(["reduce_sum", "reduce_max", "reduce_min", "reduce_prod"], _reduction),
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"], _running),
    **dict.fromkeys(["scatter", "scatter-add", "scatter_add"], _scatter),
    **dict.fromkeys(["scatter-mul", "scatter_mul", "scatter-min", "scatter-max"], _scatter),
}
_INNER = {
    "jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call",
    "custom_vjp_call_jaxpr", "remat", "remat2", "checkpoint", "saltus_stage",
}  # fmt: skip
_INNER_PARAMS = ("jaxpr", "call_jaxpr", "fun_jaxpr", "closed")
_FLAT = {
    "sign", "floor", "ceil", "round", "stop_gradient", "is_finite",
}  # fmt: skip
_ELEMENTWISE = {
    "add", "sub", "mul", "div", "neg", "sign", "abs", "max", "min", "pow", "integer_pow",
    "sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tan",
    "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
    "erfc", "erf_inv", "lgamma", "digamma", "logistic", "floor", "ceil", "round", "rem",
    "square", "select_n", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor",
    "clamp", "is_finite", "nextafter", "convert_element_type", "add_any", "copy",
    "reduce_precision", "real", "imag", "complex", "conj", "lt_to", "le_to", "saltus_when",
}  # fmt: skip


def pattern(
    fn: Callable[..., Sequence[Array]],
    avals: Sequence[jax.ShapeDtypeStruct],
    wrt: Sequence[int],
    known: dict[int, Any] | None = None,
) -> Any:
    """Where the Jacobian of `fn(*leaves) -> list of leaves` can be nonzero: a boolean CSR matrix.

    Rows are all entries of the outputs, columns all entries of the inputs `wrt`, in order. The
    pattern is valid for all values of the inputs. `known` maps other inputs to numbers that never
    change.
    """
    closed = jax.make_jaxpr(lambda *leaves: list(fn(*leaves)))(*avals)
    return dependence(closed, wrt, known)
