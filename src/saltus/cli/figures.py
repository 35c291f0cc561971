"""Figures of the command line: sensitivities of outputs over time."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.names import entry_name, label, named, unit_of
from ..base.text import number
from ..base.types import Array, Tree, Vector
from ..solution.plotting import COLOURS, EVENT_COLOURS, MAX_EVENT_LINES, pyplot
from ..solution.solution import Solution
from .quantities import Inputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CURVES = len(COLOURS)
MOST_PANELS = 6
CURVE_POINTS = 600


def sensitivity_figure(varied: Inputs, sol: Solution, jacobian: np.ndarray) -> Figure:
    """Derivatives of the outputs over time, one panel per output, one curve per number.

    Each is multiplied by the size of the number, so that different units can be compared.
    """
    scale = np.where(varied.values == 0.0, 1.0, np.abs(varied.values))
    effect = np.nansum(np.abs(jacobian) * scale, axis=0)
    picked = np.sort(np.argsort(-effect, kind="stable")[:MOST_CURVES])
    ts = _pieces(sol)
    panels = _courses(varied, ts, picked)
    plt = pyplot()
    size = (8.4, min(2.3 * len(panels) + 0.9, 11.0))
    figure, axes = plt.subplots(len(panels), 1, sharex=True, squeeze=False, figsize=size)
    for axis, (name, curves) in zip(axes[:, 0], panels.items(), strict=True):
        for j, k in enumerate(picked):
            for t, values in zip(ts, curves[..., j], strict=True):
                axis.plot(t, scale[k] * values, color=COLOURS[j])
        for t in np.asarray(sol.events.t)[: MAX_EVENT_LINES if len(ts) <= MAX_EVENT_LINES else 0]:
            axis.axvline(t, color=EVENT_COLOURS[0], lw=0.9, alpha=0.6, zorder=0.9)
        axis.set_ylabel(f"d {label(name, sol.units)}")
        axis.margins(x=0.01)
    names = varied.names
    for j, k in enumerate(picked):
        axes[0, 0].plot([], [], color=COLOURS[j], label=f"{number(scale[k], 3)} d/d {names[k]}")
    figure.legend(loc="outside right center", handlelength=1.2)
    unit = unit_of(sol.units, "t")
    axes[-1, 0].set_xlabel(f"t [{unit}]" if unit else "t")
    axes[0, 0].set_title(f"Sensitivities of {varied.scenario.name}, per 100 % of each number")
    return figure


def _pieces(sol: Solution) -> np.ndarray:
    """Times between consecutive events, a row for each piece of non-zero length."""
    borders = [float(sol.start), *np.asarray(sol.events.t), float(sol.last.t)]
    spans = [(a, b) for a, b in pairwise(borders) if a != b]
    n = max(4, CURVE_POINTS // len(spans))
    return np.asarray([np.linspace(a, b, n) for a, b in spans])


def _courses(varied: Inputs, ts: np.ndarray, picked: np.ndarray) -> dict[str, np.ndarray]:
    """Derivatives (piece, time, number) of outputs. The last time of a piece is a left limit."""
    zeros = jnp.zeros(len(varied.names))

    def outputs(part: Vector) -> dict[str, Array]:
        sol = varied.solve(zeros.at[picked].add(part))
        inside, end = sol(ts[:, :-1]), sol(ts[:, -1:], side="left")
        y = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), inside, end)
        return _columns(y)

    found = jax.jacfwd(outputs)(jnp.zeros(len(picked)))
    return {name: np.asarray(v) for name, v in found.items()}


def _columns(y: Tree) -> dict[str, Array]:
    """The first few outputs, entry by entry."""
    columns: dict[str, Any] = {}
    for name, leaf in named(y, "y").items():
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        flat = leaf.reshape(*leaf.shape[:2], -1)
        one = leaf.ndim == 2
        for k in range(flat.shape[-1]):
            columns[name if one else entry_name(name, [k])] = flat[..., k]
            if len(columns) == MOST_PANELS:
                return columns
    return columns
