"""Which solutions a function makes while it runs."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

from .jax_names import trace_state


class Seen(list):
    """Solutions, and whether there were others that nobody outside can look at."""

    def __init__(self):
        self.trace = trace_state()
        self.inner = False  # one was made inside a function that JAX maps, compiles or loops


_open: contextvars.ContextVar[Seen | None] = contextvars.ContextVar("solutions", default=None)


def note(sol: Any) -> None:
    """Called by `solve` with everything it returns."""
    seen = _open.get()
    if seen is None:
        return
    if trace_state() == seen.trace:
        seen.append(sol)
    else:
        seen.inner = True


@contextlib.contextmanager
def gathering() -> Iterator[Seen]:
    """The solutions made inside, in a list."""
    seen = Seen()
    token = _open.set(seen)
    try:
        yield seen
    finally:
        _open.reset(token)
