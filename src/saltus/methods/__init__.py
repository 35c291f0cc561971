"""Integration methods."""

from .base import Method
from .explicit import Dopri5, Dopri8, Explicit, Tsit5
from .radau import Radau5
from .rodas import Rodas5P

__all__ = ["Dopri5", "Dopri8", "Explicit", "Method", "Radau5", "Rodas5P", "Tsit5"]
