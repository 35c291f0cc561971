"""Whether the derivatives behind a fit can be trusted, for its report."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ..trust.words import ADVICE, REASONS, short
from .canvas import counted
from .markup import bullets, paragraph, section, table, text

MOST = 40


def trust(fit: Any) -> str:
    """The certificates at the fitted numbers, and the verdict along the search."""
    if not np.isfinite(fit.loss):
        return ""
    head = ["experiment", "gradient", "events", "least transversality", "nearest miss",
            "event to sample"]  # fmt: skip
    rows = [
        [e.name, c.verdict, f"{len(c.signature)}", _least(c), short(_nearest(c)), short(c.saves)]
        for e, c in list(zip(fit.experiments, fit.certificates, strict=True))[:MOST]
    ]
    reasons = dict.fromkeys(r for c in fit.certificates for r in c.reasons)
    why = [text(f"{_upper(r)}. {ADVICE[REASONS.index(r)]}") for r in reasons]
    return section(
        "trust", "Trust", table(head, rows, left=(0, 1)), bullets(why) if why else "", _along(fit)
    )


def _upper(words: str) -> str:
    return words[0].upper() + words[1:]


def _least(cert: Any) -> str:
    found = np.asarray(cert.events.transversality)[np.asarray(cert.events.valid)]
    return short(np.min(found)) if found.size else "-"


def _nearest(cert: Any) -> float:
    return float(np.min(np.asarray(cert.guards.distance), initial=np.inf))


def _along(fit: Any) -> str:
    """The verdicts of the iterations in a sentence."""
    counts = Counter(verdict for _, verdict in fit.verdicts)
    if not counts:
        return ""
    total = sum(counts.values())
    if counts["TRUSTED"] == total:
        return paragraph("Along the search every gradient that was looked at is TRUSTED.")
    listed = ", ".join(f"{counted(n, 'iteration')} {v}" for v, n in counts.most_common())
    return paragraph(f"Along the search: {text(listed)}.")
