"""Derivatives by continuous variational and adjoint equations, as in the literature."""

from .api import adjoint, drift, forward, hessian, hvp
from .multipliers import Adjoints, adjoints
from .rules import Continuous

__all__ = ["Adjoints", "Continuous", "adjoint", "adjoints", "drift", "forward", "hessian", "hvp"]
