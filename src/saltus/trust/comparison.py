"""Gradients by every method that applies, compared."""

from __future__ import annotations

import dataclasses
import textwrap
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..base.extras import available
from ..base.losses import numbers_of, scalar
from ..base.names import number_names
from ..base.text import message_of, number, table
from ..base.types import Number, Params, Tree
from ..continuous import Continuous
from ..continuous.api import solving
from ..external import IDA
from ..solver.context import asking, replacing
from .differences import difference

OTHER_SOLVER_ERROR = 1e-5  # relative, of a solver of other order at the same tolerances
METHOD_DIFFERENCE = 1e-6  # relative, that two methods may have
NOTE_LENGTH = 90  # characters
SHOWN_PARAMETERS = 4
ERROR_MARGIN = 10  # times the estimated error of the differences
DIFFERENCES = "finite differences"
MESH = "adjoint on the mesh of IDA"
NAN = float("nan")


@dataclasses.dataclass(frozen=True)
class Way:
    """A gradient by one method, and its cost."""

    name: str
    gradient: Tree = None  # like p; None where the method does not apply
    off: float = NAN  # the largest difference to the reference, relative
    worst: str = ""  # the parameter with this difference
    agrees: bool = True
    seconds: float = NAN  # of a call, compiled; NaN where it could not be compiled
    compile_seconds: float = NAN
    megabytes: float = NAN  # of working memory; without compilation, what is kept to go backward
    own: float | np.ndarray = 0.0  # the method's own estimate of its error, for each number
    note: str = ""

    @property
    def applies(self) -> bool:
        return self.gradient is not None

    @property
    def flat(self) -> np.ndarray:
        return np.asarray(ravel_pytree(self.gradient)[0])


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The gradient of a loss by every method that applies."""

    value: float
    ways: tuple[Way, ...]
    names: tuple[str, ...]  # of the numbers in p
    limit: float  # the relative difference that counts as agreement

    def __getitem__(self, name: str) -> Way:
        for way in self.ways:
            if way.name == name:
                return way
        raise KeyError(f"no method {name!r}; there are {', '.join(w.name for w in self.ways)}")

    @property
    def disagree(self) -> tuple[str, ...]:
        """The methods whose gradient differs from the reference."""
        return tuple(w.name for w in self.ways if w.applies and not w.agrees)

    @property
    def agree(self) -> bool:
        return not self.disagree

    def __repr__(self) -> str:
        shown = [f"d/d {name}" for name in self.names[:SHOWN_PARAMETERS]]
        more = ["..."] if len(self.names) > SHOWN_PARAMETERS else []
        head = ["method", *shown, *more, "off", "ms", "compile s", "MB", ""]
        rows = [_cells(w, len(shown), more) for w in self.ways]
        left = (0, len(head) - 1)
        lines = [f"Loss {number(self.value, 10)}", table(head, rows, left=left)]
        return "\n".join([*lines, *_verdict(self)])


def _cells(way: Way, shown: int, more: list[str]) -> list[str]:
    if not way.applies:
        return [way.name, *["-"] * shown, *more, *["-"] * 4, way.note]
    size = lambda v, scale: "-" if not np.isfinite(v) else f"{scale * v:.3g}"
    return [
        way.name, *(number(v, 7) for v in way.flat[:shown]), *more, f"{way.off:.1e}",
        size(way.seconds, 1e3), size(way.compile_seconds, 1.0), size(way.megabytes, 1.0), way.note,
    ]  # fmt: skip


# -- what to say ----------------------------------------------------------------------------------

ALONE = (
    "all others differentiate the same functions and agree, so a derivative in the model or in "
    "the loss may not match its values (custom_jvp, custom_vjp, from_callbacks, "
    "stop_gradient); or the loss jumps there: see saltus.certify(loss, p)"
)
CAUSES = {
    DIFFERENCES: "the loss may jump there, or have a kink: see saltus.certify(loss, p)",
    "backsolve": "states that are integrated backward drift off the solution if errors decay in "
    "time: see saltus.continuous.drift(sol)",
    MESH: "another solver took other steps; the difference is the error of one of them: tighten "
    "rtol and atol",
    "continuous": "the discrete solution is not accurate enough for its derivatives: tighten rtol "
    "and atol of the method, or there is a kink in the flow: see saltus.certify(loss, p)",
    "sweep": "this should not happen: tangent and adjoint sweep are transposes of each other; a "
    "custom derivative in the loss may be wrong",
}


def _verdict(found: Comparison) -> list[str]:
    if not np.isfinite(found.value):
        return [
            "The loss is not finite: its gradients mean nothing. An event or a value that it reads "
            "may not exist, or a solve may have failed (throw=False)."
        ]
    if found.agree:
        rough = [w for w in found.ways if w.applies and w.off > found.limit]
        but = ", ".join(f"{w.name} to {w.off:.0e}, which is its own accuracy" for w in rough)
        return [f"All agree to {found.limit:.0e}{', but ' if but else ''}{but}."]
    alone = found.disagree == (DIFFERENCES,) and sum(w.applies for w in found.ways) > 2
    return [_why(found[name], alone) for name in found.disagree]


def _why(way: Way, alone: bool) -> str:
    if not np.all(np.isfinite(way.flat)):
        return f"{way.name} is not finite: it failed, or the derivative does not exist there."
    cause = ALONE if alone else next(text for key, text in CAUSES.items() if key in way.name)
    return f"{way.name} is off by {way.off:.1e} in {way.worst}: {cause}."


# -- the comparison -------------------------------------------------------------------------------


def compare(
    loss: Callable[[Params], Number], p: Params, *, rtol: float = 1e-10, repeat: int = 3
) -> Comparison:
    """The gradient of `loss(p)` by every method that applies, with time, memory and agreement.

    `loss` calls `saltus.solve` at least once and returns a number. `p` are its parameters, any
    pytree of numbers. `rtol` is the tolerance of the continuous methods. Times are the shortest of
    `repeat` calls.
    """
    numbers, whole = numbers_of(p, "compare")
    seen = solving(loss, "compare")
    run = lambda q: scalar(seen(whole(q)), "compare")
    value = float(run(numbers))
    found = [measured(name, way, kind, run, numbers, repeat) for name, way, kind in ways_of(rtol)]
    reference = next((w for w in found if w.applies), None)
    if reference is None:
        raise ValueError(f"compare: no method gives a gradient. {found[0].note}")
    found.append(_external(run, numbers, repeat))
    found.append(_differences(run, numbers, reference.flat))
    names = tuple(number_names(numbers, "p"))
    limit = max(METHOD_DIFFERENCE, 64 * float(jnp.finfo(reference.flat.dtype).eps))
    ways = tuple(judged(w, reference, names, limit) for w in found)
    return Comparison(value, ways, names, limit)


def ways_of(rtol: float) -> Iterator[tuple[str, Continuous | None, Callable]]:
    yield "adjoint sweep", None, jax.grad
    yield "tangent sweep", None, jax.jacfwd
    yield "continuous forward", Continuous(rtol=rtol), jax.jacfwd
    for variant in ("interpolating", "quadrature", "backsolve"):
        yield f"continuous adjoint, {variant}", Continuous(variant, rtol), jax.grad


def measured(
    name: str, way: Continuous | None, kind: Callable, loss: Callable, p: Params, repeat: int
) -> Way:
    fn = jax.jit(kind(loss))
    try:
        with asking(way):
            start = time.perf_counter()
            compiled = fn.lower(p).compile()
            compiling = time.perf_counter() - start
            gradient = compiled(p)
            seconds = min(seconds_of(compiled, p) for _ in range(repeat))
    except Exception as error:  # the other methods are still compared
        return Way(name, note=_first_sentence(error))
    memory = compiled.memory_analysis()
    size = NAN if memory is None else memory.temp_size_in_bytes / 1e6
    return Way(name, gradient, seconds=seconds, compile_seconds=compiling, megabytes=size)


def _external(loss: Callable, p: Params, repeat: int) -> Way:
    """The adjoint on a mesh that SUNDIALS chose: other steps, other events, not compiled."""
    if not available("sksundae"):
        return Way(MESH, note='needs pip install "saltus[sundials]"')
    fn = jax.grad(loss)
    try:
        with replacing(IDA):
            gradient = fn(p)
            seconds = min(seconds_of(fn, p) for _ in range(repeat))
            size = _kept(loss, p)
    except Exception as error:
        return Way(MESH, note=_first_sentence(error))
    note = "not compiled"
    return Way(MESH, gradient, seconds=seconds, megabytes=size, own=OTHER_SOLVER_ERROR, note=note)


def _kept(loss: Callable, p: Params) -> float:
    """Megabytes that a loss which is not compiled keeps for the backward pass."""
    held = lambda: sum(a.nbytes for a in jax.live_arrays())
    before = held()
    back = jax.vjp(loss, p)
    size = held() - before
    del back
    return size / 1e6


def seconds_of(fn: Callable, p: Params) -> float:
    start = time.perf_counter()
    jax.block_until_ready(fn(p))
    return time.perf_counter() - start


def _first_sentence(error: Exception) -> str:
    text = " ".join(message_of(error).split()) or type(error).__name__
    return textwrap.shorten(text.split(". ")[0].rstrip(".") + ".", NOTE_LENGTH, placeholder=" ...")


def _differences(loss: Callable, p: Params, gradient: np.ndarray) -> Way:
    """Central differences in every parameter, with steps that keep the sequence of events."""
    at, back = ravel_pytree(p)
    sizes = np.abs(np.asarray(at)) + 1e-3 * (np.asarray(at) == 0)
    found, errors, start = np.zeros(at.size), np.zeros(at.size), time.perf_counter()
    for k, size in enumerate(sizes):
        direction = back(jnp.zeros_like(at).at[k].set(size.astype(at.dtype)))
        looked = difference(loss, p, direction, float(gradient[k]) * size)
        if not looked.valid:
            return Way(DIFFERENCES, note="every step changes the sequence of events")
        found[k], errors[k] = looked.difference / size, looked.spread / size
    seconds = time.perf_counter() - start
    own = ERROR_MARGIN * errors / _weights(gradient)
    note = f"good to {np.max(errors, initial=0.0) / _top(gradient):.0e}, not compiled"
    return Way(DIFFERENCES, back(jnp.asarray(found)), seconds=seconds, own=own, note=note)


def _top(gradient: np.ndarray) -> float:
    return float(np.max(np.abs(gradient), initial=0.0)) or 1.0


def _weights(gradient: np.ndarray) -> np.ndarray:
    """What errors are relative to, in each parameter."""
    return np.maximum(np.abs(gradient), 1e-6 * _top(gradient))


def judged(
    way: Way, reference: Way, names: tuple[str, ...], limit: float = METHOD_DIFFERENCE
) -> Way:
    """`way` with its largest difference to the reference, and whether they agree."""
    if not way.applies:
        return way
    a, b = way.flat, reference.flat
    off = np.abs(a - b) / _weights(b)
    agrees = bool(np.all(off <= np.maximum(limit, way.own)))
    worst = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
    return dataclasses.replace(way, off=float(off[worst]), worst=names[worst], agrees=agrees)
