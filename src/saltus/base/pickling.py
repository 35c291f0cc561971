"""Copies of results, and results in other processes: what cannot go there is left behind."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NoReturn, Self


class LeftBehind:
    """In the place of something that another process cannot import; says so when it is used."""

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
            "ask for this before pickling."
        )


def portable(state: dict[str, Any], owner: str) -> dict[str, Any]:
    """The attributes of an object, those that cannot be pickled replaced by a word about it."""

    def one(name: str, value: object) -> object:
        try:
            pickle.dumps(value)
        except Exception:  # every library has its own
            return LeftBehind(f"{owner}.{name.lstrip('_')}")
        return value

    return {name: one(name, value) for name, value in state.items()}


class Unchanging:
    """Its own copy: nothing in it can change."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict) -> Self:
        return self


class Portable:
    """Pickled as far as possible; copied within a process as it is."""

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
