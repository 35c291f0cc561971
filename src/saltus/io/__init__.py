"""Models and results as files."""

from .data_files import read_table
from .input_signals import ramps, steps
from .loader import ModelError, ModelReferenceError, load_model

__all__ = ["ModelError", "ModelReferenceError", "load_model", "ramps", "read_table", "steps"]
