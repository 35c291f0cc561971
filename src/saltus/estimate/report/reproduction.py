"""How to reproduce a fit: the call, the settings, the versions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base.types import Numbers
from .. import fit as fit_function
from ..fitting import LEAST_SQUARES_NUMBERS
from .markup import Cell, code, folded, paragraph, section, table, text

if TYPE_CHECKING:
    from ..result import Fit

OWN = ("method", "bounds", "scales", "priors")  # from the model, or written block by block
MOST_ENTRIES = 12  # of a list that are written out
RAW = ("noise", "options")  # settings that are kept as printed


def again(fit: Fit) -> str:
    """The last section."""
    settings = fit.settings
    shown = {k: v for k, v in settings.items() if k not in ("versions", "free")}
    rows = [[Cell(f"<code>{text(k)}</code>"), _words(v)] for k, v in shown.items()]
    versions = [[k, v] for k, v in settings.get("versions", {}).items()]
    return section(
        "again", "How to reproduce it",
        paragraph(
            "The call, where it differs from the defaults. <code>model</code> is the "
            "<code>Scenario</code> with the first guess in the table above, <code>data</code> the "
            f"{'experiments ' if len(fit.experiments) > 1 else 'experiment '}{_named(settings)}."
        ),
        code(call(fit)),
        folded("Settings", table(["setting", "value"], rows, left=(0, 1))),
        folded("Versions", table(["package", "version"], versions, left=(0, 1))),
    )  # fmt: skip


def _named(settings: Mapping[str, Any]) -> str:
    names = [f"<code>{text(n)}</code>" for n in settings.get("experiments", [])]
    more = f" and {len(names) - MOST_ENTRIES} more" if len(names) > MOST_ENTRIES else ""
    return ", ".join(names[:MOST_ENTRIES]) + more


def _words(value: object) -> str:
    """A setting in a cell; long ones are cut."""
    if isinstance(value, dict):
        parts = [f"{k}: {_words(v)}" for k, v in value.items()]
        more = [f"and {len(parts) - MOST_ENTRIES} more"] if len(parts) > MOST_ENTRIES else []
        return ", ".join([*parts[:MOST_ENTRIES], *more]) or "none"
    if isinstance(value, list | tuple):
        more = [f"and {len(value) - MOST_ENTRIES} more"] if len(value) > MOST_ENTRIES else []
        return ", ".join([*map(_words, value[:MOST_ENTRIES]), *more])
    return "default" if value in (None, "None") else str(value)


def call(fit: Fit) -> str:
    """The call of `saltus.fit` as a program, without arguments that are defaults."""
    settings = fit.settings
    defaults = {k: p.default for k, p in inspect.signature(fit_function).parameters.items()}
    arguments = {"free": _free(fit), **_by_block(settings)}
    for name, value in settings.items():
        if name in defaults and name not in (*arguments, *OWN) and value != defaults[name]:
            arguments[name] = _literal(name, value)
    if settings.get("optimiser") == (
        "lm" if len(fit.names) <= LEAST_SQUARES_NUMBERS else "l-bfgs-b"
    ):
        arguments.pop("optimiser", None)  # what "auto" chooses
    lines = [f"    {name}={value}," for name, value in arguments.items()]
    return "\n".join(
        ["import saltus", "", "fit = saltus.fit(", "    model,", "    data,", *lines, ")"]
    )


def _free(fit: Fit) -> str:
    """Names of the free numbers; arrays that were free as a whole appear once."""
    names = []
    for block in fit._setup.free.blocks:
        whole = block.picked.size == int(np.prod(block.shape))
        names += [block.name] if whole else block.names()
    return repr(names)


def _by_block(settings: Mapping[str, Any]) -> dict[str, str]:
    """Bounds and scales as they would be written."""
    found = {}
    bounds = {name: _bounds(*ends) for name, ends in settings.get("bounds", {}).items()}
    if bounds:
        found["bounds"] = "{" + ", ".join(f"{k!r}: {v}" for k, v in bounds.items()) + "}"
    scales = {k: v for k, v in settings.get("scales", {}).items() if v != "linear"}
    if scales:
        found["scales"] = repr(scales)
    priors = settings.get("priors", {})
    if priors:
        inside = ", ".join(f"{k!r}: saltus.{v}" for k, v in priors.items())
        found["priors"] = "{" + inside + "}"
    return found


def _bounds(low: Numbers, high: Numbers) -> str:
    ends = []
    for end in (low, high):
        values = np.unique(np.asarray(end, dtype=float))
        one = values.size == 1
        ends.append((_number(float(values[0]))) if one else repr(np.asarray(end).tolist()))
    return f"({', '.join(ends)})"


def _number(value: float) -> str:
    return repr(value) if np.isfinite(value) else "None"


def _literal(name: str, value: object) -> str:
    """A setting as an argument; all but strings, numbers and booleans were kept as printed."""
    printed = isinstance(value, str) and (name in RAW or value.startswith("<") or "(" in value)
    return str(value) if printed else repr(value)
