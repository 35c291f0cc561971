"""Operations of a program as the user wrote them, and their lines in the source."""

from __future__ import annotations

import re

import numpy as np

from ..base.user_code import line_of_equation
from .nonsmooth import Known, Listing, Op, Operand
from .operation_rules import aval_of

COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", **COMPARE}
THROUGH = {
    "convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "copy", "stop_gradient",
    "expand_dims",
}  # fmt: skip
DEPTH, LONG = 4, 60


def lines_of(program: Listing) -> tuple[list[str], np.ndarray]:
    """The lines with outcomes, and for each outcome the number of its line."""
    found: dict = {}
    texts, of = [], []
    for op in program.each():
        where = line_of(op)
        key = where or id(op.written[0].eqn)
        if key not in found:
            found[key] = len(texts)
            texts.append(where)
        of += [found[key]] * op.size
    return texts, np.asarray(of, int)


def line_of(op: Op) -> str:
    """The user's line of an operation, `model.py:12`; empty where it is not known.

    For an operation inside a library function, the line that calls the function.
    """
    return next((line for call in op.written if (line := line_of_equation(call.eqn))), "")


def words_of(program: Listing, op: Op) -> str:
    """An operation as source text: `x > 0.3`, `abs(v)`, `clip(x)`."""
    call = op.written[0]
    if any(call is c for c in op.calls[: program.outer]):
        return _short(call.name, ["..."])
    if call.name:
        seen = [r for r in call.ins if not isinstance(r, Known) and r in program.moving]
        return _short(call.name, [_words(program, r, 1) for r in seen])
    return _op_words(program, op, 0)


def _short(name: str, inside: list[str]) -> str:
    text = f"{name}({', '.join(inside)})"
    return text if len(text) <= LONG else name


def _words(program: Listing, r: Operand, depth: int) -> str:
    if isinstance(r, Known):
        value = np.asarray(r.value)
        return f"{value.item():g}" if value.size == 1 else "..."
    if r in program.names:
        return program.names[r]
    if depth > DEPTH or r not in program.made:
        return "..."
    return _op_words(program, program.made[r], depth)


def _op_words(program: Listing, op: Op, depth: int) -> str:
    name = op.eqn.primitive.name
    if name in THROUGH and op.ins:
        return _words(program, op.ins[0], depth)
    inside = [_words(program, r, depth + 1) for r in op.ins]
    if name == "select_n" and len(set(inside[1:])) == 1:  # as where a mode gates derivatives
        return inside[1]
    if name in INFIX and len(inside) == 2:
        tight = name in ("mul", "div")
        inside = [f"({w})" if tight and re.search(r" [-+] ", w) else w for w in inside]
        text = f"{inside[0]} {INFIX[name]} {inside[1]}"
        return text if len(text) <= LONG else name
    if name == "neg":
        return f"-{inside[0]}"
    if name == "slice" and aval_of(op.eqn.outvars[0]).size == 1:
        return f"{inside[0]}[{', '.join(map(str, op.eqn.params['start_indices']))}]"
    return _short(name.removeprefix("reduce_"), inside)
