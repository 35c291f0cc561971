"""Mechanisms with impacts, sticking, and constraints that change."""

from .assembly import Assembly
from .contacts import contact, ground, jump, release, stop
from .mechanism import Mechanism
from .motion import Motion

__all__ = [
    "Assembly", "Mechanism", "Motion", "contact", "ground", "jump", "release", "stop",
]  # fmt: skip
