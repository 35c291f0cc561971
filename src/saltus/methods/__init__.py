"""Integration methods."""

from .method import Method
from .radau import Radau5
from .rodas import Rodas5P
from .runge_kutta import Dopri5, Dopri8, Explicit, Tsit5

__all__ = ["Dopri5", "Dopri8", "Explicit", "Method", "Radau5", "Rodas5P", "Tsit5"]
