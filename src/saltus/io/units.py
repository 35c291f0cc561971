"""Units in the headers of columns: `h [m]`, `h (m)`."""

from __future__ import annotations

import re

from ..base.extras import need

SQUARE = re.compile(r"^(?P<name>.*?)\s*\[(?P<unit>[^\[\]]*)\]$")
ROUND = re.compile(r"^(?P<name>.*\S)\s+\((?P<unit>[^()]+)\)$")
SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "min": 60.0, "h": 3600.0, "d": 86400.0, "day": 86400.0}


def split(header: str) -> tuple[str, str]:
    """`h [m]` as name and unit, and `h (m)` if that is a known unit; `q[0]` is a name."""
    header = header.strip()
    square, rounded = SQUARE.match(header), ROUND.match(header)
    if square and not re.fullmatch(r"[\d,\s]+", square["unit"]):
        return square["name"], square["unit"]
    if rounded and _is_unit(rounded["unit"]):
        return rounded["name"], rounded["unit"]
    return header, ""


def _is_unit(text: str) -> bool:
    if text in SECONDS or re.fullmatch(r"[\d,.\s]+", text):
        return text in SECONDS
    try:
        need("pint", "units", "a unit").get_application_registry().Unit(text)
    except Exception:  # pint raises many kinds of errors
        return False
    return True
