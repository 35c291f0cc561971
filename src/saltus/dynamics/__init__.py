"""What a system does in the long run: periodic motions, equilibria, linearisations."""

from .equilibria import equilibrium
from .linearisation import Linear, linearise
from .newton import NotFound
from .orbits import Orbit, orbit
from .saltation import Jumps, Saltation, saltations

__all__ = [
    "Jumps",
    "Linear",
    "NotFound",
    "Orbit",
    "Saltation",
    "equilibrium",
    "linearise",
    "orbit",
    "saltations",
]
