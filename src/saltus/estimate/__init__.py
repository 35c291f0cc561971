"""Estimation and optimisation: from data to parameters, from wishes to inputs."""

from .data import Experiment
from .fit import fit
from .fitted import Fit, Fitted
from .noise import Student
from .optimise import Minimum, minimise
from .parameters import LogNormal, Normal
from .shooting import Shots, shoot
from .sure import Certainty, Profile

__all__ = [
    "Certainty", "Experiment", "Fit", "Fitted", "LogNormal", "Minimum", "Normal", "Profile",
    "Shots", "Student", "fit", "minimise", "shoot",
]  # fmt: skip
