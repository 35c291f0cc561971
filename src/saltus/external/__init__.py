"""Trajectories by solvers outside of JAX, with derivatives on their mesh."""

from .callbacks import from_callbacks
from .methods import CVODE, IDA

__all__ = ["CVODE", "IDA", "from_callbacks"]
