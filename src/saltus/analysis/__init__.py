"""Analyses of solutions and systems.

Adjoint variables along a solution (`saltus.costates`), saltation matrices of its events, linear
models around a state or along a motion, equilibria, and periodic orbits with their multipliers.
"""

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
