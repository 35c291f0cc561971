"""Whether the derivatives behind a fit can be trusted, for its report."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from ...trust.reasons import ADVICE, REASONS
from ...trust.text import short
from ...trust.verdict import VERDICTS
from .markup import bullets, paragraph, section, table, text
from .style import counted, listed

if TYPE_CHECKING:
    from ...trust.solution_certificate import Certificate
    from ..result import Fit

MOST_EXPERIMENTS = 40
NAMED_ITERATIONS = 6  # more are counted
PARTS = " Stages of the search that use only a part of the data may end before the failure."


def trust(fit: Fit) -> str:
    """The certificates at the fitted numbers, and the verdict along the search."""
    if not np.isfinite(fit.loss):
        return ""
    head = ["experiment", "gradient", "events", "least transversality", "nearest miss",
            "event to sample"]  # fmt: skip
    rows = [
        [e.name, c.verdict, f"{len(c.signature)}", _least(c), short(_nearest(c)), short(c.saves)]
        for e, c in list(zip(fit.experiments, fit.certificates, strict=True))[:MOST_EXPERIMENTS]
    ]
    reasons = dict.fromkeys(r for c in fit.certificates for r in c.reasons)
    why = [text(f"{_upper(r)}. {ADVICE[REASONS.index(r)]}") for r in reasons]
    return section(
        "trust", "Trust", table(head, rows, left=(0, 1)), bullets(why) if why else "", _along(fit)
    )


def _upper(words: str) -> str:
    return words[0].upper() + words[1:]


def _least(cert: Certificate) -> str:
    found = np.asarray(cert.events.transversality)[np.asarray(cert.events.valid)]
    return short(np.min(found)) if found.size else "-"


def _nearest(cert: Certificate) -> float:
    return float(np.min(np.asarray(cert.guards.distance), initial=np.inf))


def _along(fit: Fit) -> str:
    """The verdicts of the iterations in a sentence, and the reasons for doubts."""
    counts = Counter(verdict for _, verdict in fit.verdicts)
    if not counts:
        return ""
    seen, total = sum(counts.values()), len(fit.history)
    looked = f"{seen} of {counted(total, 'iteration')} {'was' if seen == 1 else 'were'} checked"
    if counts["TRUSTED"] == seen:
        return paragraph(f"Along the search {looked}: every gradient is TRUSTED.")
    each = ", ".join(f"{counts[v]} {v}" for v in VERDICTS if counts[v])
    return paragraph(f"Along the search {looked}: {each}. Why:") + bullets(map(text, _why(fit)))


def _why(fit: Fit) -> list[str]:
    """Every reason along the search, with the iterations and verdicts it led to."""
    places: dict[str, dict[str, list[int]]] = {}
    for k, why in fit.doubts:
        for reason, verdict in why.items():
            places.setdefault(reason, {}).setdefault(verdict, []).append(k)
    return [
        f"{_upper(reason)}: "
        + "; ".join(f"{v} at {_numbers(found[v])}" for v in VERDICTS[::-1] if v in found)
        + "."
        + PARTS * (reason == REASONS[0])
        for reason, found in sorted(places.items(), key=lambda pair: REASONS.index(pair[0]))
    ]


def _numbers(rows: list[int]) -> str:
    """`iteration 3`, `iterations 3, 4 and 8`, `9 iterations (0, 1, 2, ...)`."""
    if len(rows) > NAMED_ITERATIONS:
        return f"{len(rows)} iterations ({', '.join(map(str, rows[:3]))}, ...)"
    return f"iteration{'s' if len(rows) > 1 else ''} {listed(map(str, rows))}"
