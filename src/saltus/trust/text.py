"""A certificate as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsFloat

import numpy as np

from ..base.text import number, table
from ..base.tracing import is_traced
from .reasons import ADVICE, REASONS
from .verdict import VERDICTS

if TYPE_CHECKING:
    from .solution_certificate import Certificate

LISTED_EVENTS = 12  # at most


def short(value: SupportsFloat) -> str:
    """A number that may be infinite, in a few characters."""
    size = float(value)
    return "-" if not np.isfinite(size) else f"{size:.3g}"


def report(cert: Certificate) -> str:
    """What `print(sol.certificate)` shows."""
    if is_traced(cert.level):
        return "Certificate, traced: print it outside of jit."
    if np.ndim(cert.level):
        counts = [int(np.sum(np.asarray(cert.level) == k)) for k in range(3)]
        pairs = ", ".join(f"{n} {v}" for n, v in zip(counts, VERDICTS, strict=True) if n)
        return f"Certificates of {np.size(cert.level)} solutions: {pairs}."
    return "\n".join([_head(cert), *_why(cert), *_events(cert), *_guards(cert), *_numbers(cert)])


def _head(cert: Certificate) -> str:
    reasons = cert.reasons
    return f"Certificate: {cert.verdict}" + (f" ({reasons[0]})" if reasons else "")


def _why(cert: Certificate) -> list[str]:
    levels = np.asarray(cert.levels)
    lines = [f"  {VERDICTS[levels[k]]}: {REASONS[k]}. {ADVICE[k]}" for k in np.flatnonzero(levels)]
    for kink in cert.kinks[:5]:
        how = "may jump" if np.isnan(kink.jump) else "jumps" if kink.jump > 1e-6 else "bends"
        lines.append(f"    at t = {kink.t:.6g} the flow {how}: {kink.what} {kink.where}".rstrip())
    return lines


def _events(cert: Certificate) -> list[str]:
    e = cert.events
    valid = np.flatnonzero(np.asarray(e.valid))
    if not valid.size:
        return ["  no events"]
    names = cert.signature
    worst = np.argsort(np.asarray(e.transversality)[valid], kind="stable")
    shown = np.sort(worst[:LISTED_EVENTS]) if valid.size > LISTED_EVENTS else np.arange(valid.size)
    rows = [
        [
            number(np.asarray(e.t)[valid[k]], 8), names[k], short(e.transversality[valid[k]]),
            short(e.saltation[valid[k]]), short(e.uncertainty[valid[k]]),
        ]
        for k in shown
    ]  # fmt: skip
    many = (
        f" (the {LISTED_EVENTS} least transversal of {valid.size})"
        if valid.size > LISTED_EVENTS
        else ""
    )
    head = ["t", "event", "transversality", "saltation", "time +-"]
    return [f"  events{many}", table(head, rows, left=(1,))]


def _guards(cert: Certificate) -> list[str]:
    distance = np.asarray(cert.guards.distance)
    close = [k for k in np.argsort(distance) if np.isfinite(distance[k])][:5]
    return [
        f'  guard "{cert.guard_names[k]}" came within {short(distance[k])} of zero near '
        f"t = {float(cert.guards.t[k]):.6g} without crossing it"
        for k in close
    ]


def _numbers(cert: Certificate) -> list[str]:
    lines = [
        f"  shortest times: between events {short(cert.order)}, to a save time "
        f"{short(cert.saves)}, to the end {short(cert.end)}",
        f"  errors grow by {short(cert.growth)}, derivatives are good to {short(cert.shift)}, "
        f"noise floor {short(cert.floor)}, tangent and adjoint differ by {short(cert.dot)}",
    ]
    if float(cert.condition) > 0:
        lines.append(
            f"  algebraic equations: condition {short(cert.condition)}, drift "
            f"{short(cert.drift)} tolerances"
        )
    return lines
