"""What a system does in the long run: periodic motions, equilibria, linearisations."""

from .equilibria import equilibrium
from .gauss_newton import NotFound
from .linearisation import Linear, linearise
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
