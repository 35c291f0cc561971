"""Trajectories by solvers outside of JAX, differentiated on the mesh of their steps."""

from .callbacks import from_callbacks
from .methods import CVODE, IDA

__all__ = ["CVODE", "IDA", "from_callbacks"]
