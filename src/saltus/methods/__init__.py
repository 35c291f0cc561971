"""Integration methods."""

from .explicit import Dopri5, Dopri8, Explicit, Tsit5

__all__ = ["Dopri5", "Dopri8", "Explicit", "Tsit5"]
