"""Copying and pickling results: a placeholder replaces what cannot be pickled."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NoReturn, Self


class LeftBehind:
    """A placeholder for a value that could not be pickled; using it is an error that says so."""

    def __init__(self, what: str):
        self.__dict__["what"] = what

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError(self._sentence())

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(self._sentence())

    def _sentence(self) -> str:
        return (
            f"{self.what} was left behind when this was pickled, because it contains a lambda or a "
            "function inside another one: define the model's functions at the top of a module, or "
            "use it before pickling."
        )


def portable(state: dict[str, Any], owner: str) -> dict[str, Any]:
    """The attributes of an object, with a placeholder for each that cannot be pickled."""

    def one(name: str, value: object) -> object:
        try:
            pickle.dumps(value)
        except Exception:  # each library raises a different one
            return LeftBehind(f"{owner}.{name.lstrip('_')}")
        return value

    return {name: one(name, value) for name, value in state.items()}


class Unchanging:
    """An object that is its own copy, because nothing in it can change."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict) -> Self:
        return self


class Portable:
    """An object that is pickled as far as possible, and copied completely within a process."""

    def __getstate__(self) -> dict[str, Any]:
        return portable(vars(self), type(self).__name__)

    def __copy__(self) -> Self:
        return self._twin(dict(vars(self)))

    def __deepcopy__(self, memo: dict) -> Self:
        return self._twin(copy.deepcopy(vars(self), memo))

    def _twin(self, state: dict) -> Self:
        new = object.__new__(type(self))
        new.__dict__.update(state)
        return new
