"""Models and results as files."""

from .loader import ModelError, ModelReferenceError, load_model

__all__ = ["ModelError", "ModelReferenceError", "load_model"]
