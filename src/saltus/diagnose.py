"""Why a solve stopped, in words: evaluated on the host, at the state where it stopped."""

from __future__ import annotations

from typing import Any

import numpy as np

from .consistent import hidden
from .model import At, Model, Par
from .projection import slopes
from .results import Result

ALGEBRAIC = (
    Result.inconsistent, Result.no_consistent_state, Result.singular, Result.newton_failed,
)  # fmt: skip


def algebraic(model: Model, result: Result, at: At, par: Par) -> str:
    """What the constraint looks like where a solve stopped."""
    if model.constraint is None or result not in ALGEBRAIC:
        return ""
    if result == Result.inconsistent:
        return " Residuals: " + _residuals(model, model.residuals(at, par)) + "."
    words = " Residuals: " + _residuals(model, hidden(model, at, par)) + "."
    matrix = np.asarray(slopes(model, at, par))
    if not np.all(np.isfinite(matrix)):
        return words
    _, sizes, directions = np.linalg.svd(matrix)
    number = np.inf if sizes[-1] == 0 else sizes[0] / sizes[-1]
    weakest = int(np.argmax(np.abs(directions[-1])))
    what = "g_z" if model.constraint.highest == 1 else "g_x f_z"
    return (
        f"{words} The condition number of {what} is {number:.3g}; least determined is "
        f"{entries(model)[weakest]}."
    )


def entries(model: Model) -> list[str]:
    """A name for every algebraic number."""
    out = []
    for name, shape in zip(model.z.names(), model.constraint.shapes, strict=True):  # type: ignore[union-attr]
        label = name or "z"
        if shape == ():
            out.append(label)
        else:
            out += [f"{label}[{', '.join(map(str, k))}]" for k in np.ndindex(shape)]
    return out


def _residuals(model: Model, values: Any) -> str:
    shown = []
    for name, value in zip(model.constraint.equations, values, strict=True):  # type: ignore[union-attr]
        v = np.asarray(value)
        if v.ndim:
            worst = np.unravel_index(int(np.argmax(np.abs(v))), v.shape)
            shown.append(f"{name}[{', '.join(map(str, worst))}] = {v[worst]:.3g}")
        else:
            shown.append(f"{name} = {float(v):.3g}")
    return ", ".join(shown)
