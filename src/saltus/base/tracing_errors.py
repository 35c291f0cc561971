"""Error messages for model functions that cannot be traced."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp

from .user_code import line_of_error, raised_here

# -- functions that cannot be traced ------------------------------------------------------------
NOTE = "In the model: "
# Errors of functions that need a value but get a placeholder: what happened, and what to write.
UNKNOWN: dict[type[Exception], tuple[str, str]] = {
    jax.errors.TracerBoolConversionError: (
        "a Python condition (if, while, and, or, not, min, max, bool)",
        "saltus.when(condition, a, b) where the model switches there, an event where something "
        "happens, or jnp.where(condition, a, b) where a and b join smoothly; &, | and ~ for and, "
        "or and not; jnp.minimum and jnp.maximum for min and max",
    ),
    jax.errors.TracerArrayConversionError: (
        "a NumPy function, or another that is not written with JAX,",
        "{jnp} (import jax.numpy as jnp), and likewise for other functions",
    ),
    jax.errors.TracerIntegerConversionError: (
        "an index of a list, a range or a size",
        "jnp.asarray(values)[k] instead of values[k]; a range or a size must not depend on states "
        "or parameters",
    ),
    jax.errors.NonConcreteBooleanIndexError: (
        "a condition as an index",
        "jnp.where(condition, array, 0.0) instead of array[condition]",
    ),
    jax.errors.ConcretizationTypeError: (
        "a function that needs a plain number (one of math, float, int, a size)",
        "{jnp}, leave float(...) out, write jnp.floor(...) instead of int(...); a size must not "
        "depend on states or parameters",
    ),
}
UNTRACEABLE = tuple(UNKNOWN)


def untraceable(owner: str, error: Exception) -> TypeError:
    """A tracing error, explained in terms of the model function in which it arose."""
    what, write = next(words for kind, words in UNKNOWN.items() if isinstance(error, kind))
    place, line = line_of_error(error)
    used = [f for f in re.findall(r"\b(?:np|numpy|math)\.(\w+)", line) if hasattr(jnp, f)]
    module = "math" if isinstance(error, jax.errors.ConcretizationTypeError) else "np"
    names = dict.fromkeys(used or ["sin"])
    instead = " and ".join(f"jnp.{name} instead of {module}.{name}" for name in names)
    write = write.format(jnp=instead)
    where = f" in {place} ({line})" if line else f" in {place}" if place else ""
    return TypeError(
        f"{owner}: {what} got a state or a parameter{where}. Their values are not known while the "
        f"model is translated, which is done once, before there are numbers. Write {write}."
    )


def noted(owner: str, error: Exception) -> None:
    """Add a note to an error that says in which model function, and on which line, it arose."""
    if raised_here(error) or any(note.startswith(NOTE) for note in getattr(error, "__notes__", ())):
        return  # its text says so already
    place, _ = line_of_error(error)
    error.add_note(f"{NOTE}{owner}{place and f', at {place}'}.")
