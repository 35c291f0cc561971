"""Estimation of parameters from data, and optimisation of any loss."""

from .data import Experiment
from .fitting import fit
from .minimisation import Minimum, minimise
from .noise import Student
from .parameters import LogNormal, Normal
from .result import Fit, Fitted
from .shooting import Shots, shoot
from .uncertainty import Certainty, Profile

__all__ = [
    "Certainty", "Experiment", "Fit", "Fitted", "LogNormal", "Minimum", "Normal", "Profile",
    "Shots", "Student", "fit", "minimise", "shoot",
]  # fmt: skip
