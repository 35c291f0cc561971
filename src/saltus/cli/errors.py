"""Errors in a sentence or two."""

from __future__ import annotations

from ..base.extras import MissingExtra
from ..base.names import UnknownName, WrongValue
from ..base.results import SolveError
from ..base.user_code import place
from ..io import ModelError, ModelReferenceError
from ..io.loader import folder_of
from .command import UsageError

NOT_UNDERSTOOD = (UsageError, UnknownName, WrongValue, ModelReferenceError)
SPEAKING = (*NOT_UNDERSTOOD, ModelError, MissingExtra, SolveError, OSError)
MESSAGE_LENGTH = 800  # characters of an error that saltus did not raise


def explained(error: Exception, model: str | None) -> str:
    """The error in words, with the line of the model it comes from, if any."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if isinstance(error, SPEAKING):
        return text
    where = place(error, folder_of(model)) if model else None
    text = text.split("\n\n")[0].strip()[:MESSAGE_LENGTH]
    if type(error) not in (ValueError, TypeError, NotImplementedError):
        text = f"{type(error).__name__}: {text}"
    return f"{where}: {text}" if where else text
