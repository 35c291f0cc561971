"""Every way to a gradient, side by side."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from .continuous import Continuous
from .external import IDA
from .extras import available
from .probe import promoted, scalar
from .results import SolveError
from .tables import number, table
from .trust.differences import difference
from .ways import asking, replacing

OTHER = 1e-5  # another solver, of other order, at the same tolerances
AGREE = 1e-6  # relative: what two methods may differ by
REFERENCE = "adjoint sweep"


@dataclasses.dataclass(frozen=True)
class Way:
    """A gradient by one method, and what it took."""

    name: str
    gradient: Any  # like p; None where the method does not apply
    off: float  # relative to the adjoint sweep
    seconds: float  # of a call, compiled; NaN where it could not be compiled
    compile_seconds: float
    megabytes: float  # of working memory; where nothing is compiled, of what the way back needs
    own: float = 0.0  # what it may be off by its own account
    note: str = ""

    @property
    def applies(self) -> bool:
        return self.gradient is not None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The gradient of a loss by every method that applies."""

    value: float
    ways: tuple[Way, ...]
    limit: float  # the relative difference that counts as agreement

    def __getitem__(self, name: str) -> Way:
        for way in self.ways:
            if way.name == name:
                return way
        raise KeyError(f"no method {name!r}; there are {', '.join(w.name for w in self.ways)}")

    @property
    def disagree(self) -> tuple[str, ...]:
        """The methods whose gradient is another one."""
        return tuple(
            w.name for w in self.ways if w.applies and not w.off <= max(self.limit, 10 * w.own)
        )

    @property
    def agree(self) -> bool:
        return not self.disagree

    def __repr__(self) -> str:
        head = ["method", "gradient", "off", "ms", "compile s", "MB", ""]
        rows = [_cells(w) for w in self.ways]
        lines = [f"Loss {number(self.value, 10)}", table(head, rows, left=(0, 1, 6))]
        if self.agree:
            return "\n".join([*lines, f"All agree to {self.limit:.0e}."])
        return "\n".join([*lines, *(_why(self[name]) for name in self.disagree)])


def _cells(way: Way) -> list[str]:
    if not way.applies:
        return [way.name, "-", "-", "-", "-", "-", way.note]
    flat = np.asarray(ravel_pytree(way.gradient)[0])
    shown = " ".join(number(v, 7) for v in flat[:4]) + (" ..." if flat.size > 4 else "")
    size = lambda v, scale: "-" if not np.isfinite(v) else f"{scale * v:.3g}"
    return [
        way.name, shown, f"{way.off:.1e}", size(way.seconds, 1e3), size(way.compile_seconds, 1.0),
        size(way.megabytes, 1.0), way.note,
    ]  # fmt: skip


CAUSES = {
    "finite differences": "the step may change the sequence of events, or the loss jumps there: "
    "see saltus.certify(loss, p)",
    "backsolve": "states that are integrated backward leave the solution where errors decay in "
    "time: see saltus.continuous.drift",
    "IDA": "another solver took other steps; the difference is the error of one of them: tighten "
    "rtol and atol",
    "continuous": "the discrete solution is not accurate enough for its derivatives: tighten rtol "
    "and atol of the method, or there is a kink in the flow: see saltus.certify(loss, p)",
    "sweep": "this should not happen: tangent and adjoint sweep are transposes of each other; a "
    "custom derivative in the loss may be wrong",
}


def _why(way: Way) -> str:
    cause = next(text for key, text in CAUSES.items() if key in way.name)
    return f"{way.name} is off by {way.off:.1e}: {cause}."


def compare(
    loss: Callable[[Any], Any], p: Any, *, rtol: float = 1e-10, repeat: int = 3
) -> Comparison:
    """The gradient of `loss(p)` by every method that applies, with time, memory and agreement.

    `loss` calls `saltus.solve`, once or more often, and returns a number. `rtol` is the tolerance
    of the continuous methods. Times are the best of `repeat` calls.
    """
    p = jax.tree.map(promoted, p)
    value = float(scalar(loss(p), "compare"))
    found = [measured(name, way, kind, loss, p, repeat) for name, way, kind in ways_of(rtol)]
    reference = next(w for w in found if w.name == REFERENCE)
    found.append(_external(loss, p, repeat))
    found.append(_differences(loss, p, reference.gradient))
    ways = tuple(dataclasses.replace(w, off=off_by(w, reference)) for w in found)
    return Comparison(value, ways, AGREE)


def ways_of(rtol: float) -> Iterator[tuple[str, Any, Any]]:
    yield REFERENCE, None, jax.grad
    yield "tangent sweep", None, jax.jacfwd
    yield "continuous forward", Continuous(rtol=rtol), jax.jacfwd
    for variant in ("interpolating", "quadrature", "backsolve"):
        yield f"continuous adjoint, {variant}", Continuous(variant, rtol), jax.grad


def measured(name: str, way: Any, kind: Any, loss: Callable, p: Any, repeat: int) -> Way:
    nan = float("nan")
    fn = jax.jit(kind(lambda q: scalar(loss(q), "compare")))
    try:
        with asking(way):
            start = time.perf_counter()
            compiled = fn.lower(p).compile()
            compiling = time.perf_counter() - start
            gradient = compiled(p)
            seconds = min(seconds_of(compiled, p) for _ in range(repeat))
    except (ValueError, NotImplementedError, SolveError) as error:
        return Way(name, None, nan, nan, nan, nan, note=_first_sentence(error))
    memory = compiled.memory_analysis()
    size = nan if memory is None else memory.temp_size_in_bytes / 1e6
    return Way(name, gradient, nan, seconds, compiling, size)


def _external(loss: Callable, p: Any, repeat: int) -> Way:
    """The adjoint on a mesh that SUNDIALS chose: other steps, other events, not compiled."""
    name, nan = "adjoint on the mesh of IDA", float("nan")
    if not available("sksundae"):
        return Way(name, None, nan, nan, nan, nan, note='needs pip install "saltus[sundials]"')
    fn = jax.grad(lambda q: scalar(loss(q), "compare"))
    try:
        with replacing(IDA):
            gradient = fn(p)
            seconds = min(seconds_of(fn, p) for _ in range(repeat))
            size = _kept(loss, p)
    except (TypeError, ValueError, NotImplementedError, SolveError) as error:
        return Way(name, None, nan, nan, nan, nan, note=_first_sentence(error))
    return Way(name, gradient, nan, seconds, nan, size, own=OTHER, note="not compiled")


def _kept(loss: Callable, p: Any) -> float:
    """Megabytes that a loss which is not compiled holds for its way back."""
    held = lambda: sum(a.nbytes for a in jax.live_arrays())
    before = held()
    back = jax.vjp(lambda q: scalar(loss(q), "compare"), p)
    size = held() - before
    del back
    return size / 1e6


def seconds_of(fn: Callable, p: Any) -> float:
    start = time.perf_counter()
    jax.block_until_ready(fn(p))
    return time.perf_counter() - start


def _first_sentence(error: Exception) -> str:
    return str(error).split(". ")[0].rstrip(".") + "."


def _differences(loss: Callable, p: Any, gradient: Any) -> Way:
    """Central differences in every parameter, with steps that keep the sequence of events."""
    nan = float("nan")
    (flat, _), (at, back) = ravel_pytree(gradient), ravel_pytree(p)
    sizes = np.abs(np.asarray(at)) + 1e-3 * (np.asarray(at) == 0)
    found, errors, start = np.zeros(at.size), np.zeros(at.size), time.perf_counter()
    for k, size in enumerate(sizes):
        direction = back(jnp.zeros_like(at).at[k].set(size))
        looked = difference(loss, p, direction, float(flat[k]) * size)
        if not looked.valid:
            note = "every step changes the sequence of events"
            return Way("finite differences", None, nan, nan, nan, nan, note=note)
        found[k], errors[k] = looked.difference / size, looked.error / size
    seconds = time.perf_counter() - start
    way = Way("finite differences", back(jnp.asarray(found)), nan, seconds, nan, nan)
    own = float(np.max(errors / _weights(np.asarray(flat)), initial=0.0))
    return dataclasses.replace(way, own=own, note=f"good to {own:.0e}, not compiled")


def _weights(gradient: np.ndarray) -> np.ndarray:
    """What errors are relative to, in each parameter."""
    top = np.max(np.abs(gradient), initial=0.0)
    return np.maximum(np.abs(gradient), 1e-6 * top + 1e-300)


def off_by(way: Way, reference: Way) -> float:
    """The largest difference, relative to the gradient's size in each parameter."""
    if not way.applies or not reference.applies:
        return float("nan")
    a, b = (np.asarray(ravel_pytree(w.gradient)[0]) for w in (way, reference))
    return float(np.max(np.abs(a - b) / _weights(b), initial=0.0))
