"""Long computations in passes: compiled code cannot see Ctrl-C, so it returns to Python often."""

from __future__ import annotations

import functools
import math
import signal
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from .kernel import always_compiled, one_kernel
from .types import Array, ClosedJaxpr, Flag, Tree, Treedef, Whole

PASS_SECONDS = 0.5  # the time that a pass should take
TRIAL_ITERATIONS = 8  # of the first pass, whose time determines the length of the second
MIN_TIMED_SECONDS = 0.02  # the time of a shorter pass is mostly overhead
MAX_PASSED_BYTES = 2**20  # larger empty reels are not kept
MAX_REEL_ENTRIES = 2**14  # of a long reel
MAX_REEL_BYTES = 2**24  # of a long reel


class Work:
    """A loop that can be interrupted and continued, and that writes a tape of any length.

    The tape is made of reels, arrays of fixed length. `opening(*args)` gives the first state,
    `room(state, size)` an empty reel of `size + 1` entries, and `going(state, reel, args, limit,
    base)` the state and the reel after at most `limit` iterations, and their number, where `base`
    entries are on earlier reels. `used(state)` is the number of entries so far, of all lanes
    together or of each.

    The first reel is short and all others have the same length, so that there are two programs
    however many iterations there are.
    """

    def __init__(
        self, opening: Callable, room: Callable, going: Callable, used: Callable, size: int,
        where: str,
    ):  # fmt: skip
        self.opening, self.room, self.going, self.used = opening, room, going, used
        self.size = size  # of the first reel
        self.platform = where
        self.rates: dict = {}  # seconds per iteration, by shape
        self._begun: dict = {}
        self._empty: dict = {}
        self._programs: dict = {}
        self._lengths: dict = {}  # of the tapes that were returned, by shape

    def complete(
        self, args: Sequence[Array], shape: Hashable, status: Callable
    ) -> tuple[Any, Any, bool]:
        """State and tape at the end, and whether Ctrl-C was the reason to end.

        `status(state, size)` says whether there is more to do, and whether the tape is full.
        """
        size, base, fresh, reels = self.size, 0, True, []
        begun, state = self.first(args, shape)
        structure, flat = self._blank(state, shape, size)
        if not flat and not self._bare_pays(shape, size):
            flat = zeros(jax.tree.leaves((state, self._reel_shapes(state, size))))
        with Passes(self.rates, shape) as passes:
            while True:
                try:
                    passes.look()
                    program = self._program(begun, structure, shape, size, not flat)
                    flat = passes.run(program, fresh, base, [*flat, *args])
                except KeyboardInterrupt:
                    if fresh:
                        raise
                    state, reel = jax.tree.unflatten(structure, flat)
                    return state, self._tape(shape, state, reels, reel), True
                fresh = False
                state, reel = jax.tree.unflatten(structure, flat)
                more, full = status(state, base + size)
                if not more:
                    return state, self._tape(shape, state, reels, reel), False
                if full:
                    reels.append(reel)
                    base += size
                    if len(reels) == 1:
                        size = self._long(reel)
                        reel = self._reel(state, shape, size)
                    structure, flat = self._blank(state, shape, size)[0], (state, reel)
                    flat = jax.tree.leaves(flat)

    def _long(self, reel: Tree) -> int:
        """The size of later reels: many entries, but not too many bytes."""
        row = sum(v.nbytes for v in jax.tree.leaves(reel)) / (self.size + 1)
        size = self.size
        while 4 * size <= min(MAX_REEL_ENTRIES, MAX_REEL_BYTES / row):
            size *= 4
        return size

    def _reel(self, state: Tree, shape: Hashable, size: int) -> Tree:
        """An empty reel."""
        structure, flat = self._blank(state, shape, size)
        if flat:
            return jax.tree.unflatten(structure, flat)[1]
        return zeros(self._reel_shapes(state, size))

    def _reel_shapes(self, state: Tree, size: int) -> Tree:
        return jax.eval_shape(functools.partial(self.room, size=size), state)

    def _bare_pays(self, shape: Hashable, size: int) -> bool:
        """Whether a program that makes a large reel itself, not to copy it, is worth compiling."""
        usual = self._programs.get((shape, size, False))
        return usual is not None and usual.seconds > usual.compile_seconds

    def _tape(self, shape: Hashable, state: Tree, reels: list[Tree], last: Tree) -> Tree:
        """All reels as one tape, if possible of a length that was used before."""
        used = np.asarray(self.used(state))
        length = self._length(shape, int(np.max(used, initial=0)))
        if not reels and length == self.size:
            return last
        return jax.tree.map(functools.partial(_joined, used, length), *reels, last)

    def _length(self, shape: Hashable, most: int) -> int:
        """One of few lengths, since programs that read a tape are compiled for each length."""
        length = self.size
        while length < most:
            length *= 4
        known = self._lengths.setdefault(shape, set())
        near = [n for n in known if length <= n <= 16 * length]
        known.add(min(near, default=length))
        return min(near, default=length)

    def first(self, args: Sequence[Any], shape: Hashable) -> tuple[ClosedJaxpr, Tree]:
        """The opening as a program, and zeros with the shapes of its result."""
        if shape not in self._begun:
            closed, state = jax.make_jaxpr(self.opening, return_shape=True)(*args)
            self._begun[shape] = closed, zeros(state)
        return self._begun[shape]

    def _blank(self, state: Tree, shape: Hashable, size: int) -> tuple[Treedef, list[Array]]:
        """The structure of a state and a reel, and their leaves unless they are large."""
        if (shape, size) not in self._empty:
            flat, structure = jax.tree.flatten((state, self._reel_shapes(state, size)))
            small = sum(v.size * v.dtype.itemsize for v in flat) < MAX_PASSED_BYTES
            self._empty[shape, size] = structure, zeros(flat) if small else []
        return self._empty[shape, size]

    def _program(
        self, begun: ClosedJaxpr, structure: Treedef, shape: Hashable, size: int, bare: bool
    ) -> Program:
        """The pass over a reel of this size; a `bare` one makes its first state and reel itself."""
        key = (shape, size, bare)
        if key not in self._programs:
            flat = functools.partial(self.one_pass, begun, structure, size if bare else None)
            self._programs[key] = Program(always_compiled(one_kernel(flat, self.platform)))
        return self._programs[key]

    def one_pass(
        self, begun: ClosedJaxpr, structure: Treedef, bare: int | None,
        limit: Whole, fresh: Flag, base: Whole, *given: Array,
    ) -> list[Array]:  # fmt: skip
        n = structure.num_leaves if bare is None else 0
        args = given[n:]
        if bare is None:
            state, tape = jax.tree.unflatten(structure, given[:n])
            leaves, tree = jax.tree.flatten(state)
            first = jax.lax.cond(fresh, lambda: jex.jaxpr_as_fun(begun)(*args), lambda: leaves)
            state = jax.tree.unflatten(tree, first)
        else:
            tree = jax.tree.structure(jax.tree.unflatten(structure, [0] * structure.num_leaves)[0])
            first = jex.jaxpr_as_fun(begun)(*args)
            first = [v if hasattr(v, "shape") else jnp.asarray(v) for v in first]  # constants
            state = jax.tree.unflatten(tree, first)
            tape = self.room(state, size=bare)
        state, tape, count = self.going(state, tape, list(args), limit, base)
        return [*jax.tree.leaves((state, tape)), count]


class Program:
    """A compiled pass of (limit, fresh, base, state, reel, args): state, reel and iterations."""

    def __init__(self, call: Callable[..., list[Array]]):
        self.call = call
        self.compiled = False
        self.compile_seconds = 0.0
        self.seconds = 0.0  # of all passes but the first, which only compiles

    def timed(self, limit: int, fresh: bool, base: int, given: list) -> tuple[list, int, float]:
        """The results of at most `limit` iterations, how many there were, and the seconds taken."""
        start = time.perf_counter()
        *results, count = self.call(_whole(limit), _flag(fresh), _whole(base), *given)
        count = int(np.asarray(count))  # waits for the result
        return results, count, time.perf_counter() - start


class Passes:
    """Passes of about half a second each; Ctrl-C takes effect between them.

    Otherwise the interrupt could arrive just as a pass returns, and its results would be lost, or
    during garbage collection, and the interrupt would be lost. Pressed twice, it takes effect at
    once. A handler that the user has installed is called as usual; if it raises nothing, the loop
    continues.
    """

    def __init__(self, rates: dict, shape: Hashable):
        self.rates, self.shape = rates, shape
        self._handler: Any = None
        self._noted: Any = None

    def __enter__(self) -> Passes:
        self._hold()
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def run(self, program: Program, fresh: bool, base: int, given: list) -> list:
        """One pass; it has no iterations if it still has to be compiled."""
        limit = self._limit() if program.compiled else 0
        results, count, seconds = program.timed(limit, fresh, base, given)
        if program.compiled:
            program.seconds += seconds
        else:
            program.compiled, program.compile_seconds = True, seconds
        if count:
            self._learn(seconds, seconds / count)
        return results

    def look(self) -> None:
        """Call the handler of Ctrl-C now, if it was pressed."""
        if self._noted is not None:
            self._release()
            self._hold()

    def _limit(self) -> int:
        """The iterations of one pass, rounded down to a power of two: few different numbers."""
        if self.shape not in self.rates:
            return TRIAL_ITERATIONS
        most = PASS_SECONDS / max(self.rates[self.shape], 1e-9)
        return 2 ** math.floor(math.log2(most)) if most > 1 else 1

    def _learn(self, seconds: float, rate: float) -> None:
        """Update the seconds per iteration; short passes, mostly overhead, can only lower them."""
        old = self.rates.get(self.shape, rate)
        self.rates[self.shape] = min(rate, 4 * old if seconds > MIN_TIMED_SECONDS else old)

    def _hold(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            signal.signal(signal.SIGINT, self._note)
            self._handler = handler

    def _note(self, *what: Any) -> None:
        self.look()
        self._noted = what

    def _release(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        what, self._noted = self._noted, None
        if what is not None and handler is not None:
            handler(*what)


@functools.lru_cache(maxsize=64)
def _whole(value: int) -> Whole:
    return jax.device_put(np.asarray(value, np.int32))


@functools.lru_cache(maxsize=2)
def _flag(value: bool) -> Flag:
    return jax.device_put(np.asarray(value, bool))


def zeros(tree: Tree) -> Tree:
    """Arrays of these shapes, without compiling anything."""

    def one(v: jax.ShapeDtypeStruct) -> Array:
        plain = isinstance(v.dtype, np.dtype)  # false for random keys
        return jax.device_put(np.zeros(v.shape, v.dtype)) if plain else jnp.zeros(v.shape, v.dtype)

    return jax.tree.map(one, tree)


def _joined(used: np.ndarray, length: int, *parts: Array) -> Array:
    """The entries of all reels in one array, and zeros after the last one of each lane."""
    *before, last = parts
    if not isinstance(last.dtype, np.dtype):  # random keys
        rest = jnp.zeros((length + 1, *last.shape[1:]), last.dtype)
        return jnp.concatenate([*(v[:-1] for v in before), last, rest])[: length + 1]
    whole, place = np.zeros((length + 1, *last.shape[1:]), last.dtype), 0
    for part in (*(v[:-1] for v in map(np.asarray, before)), np.asarray(last)):
        some = part[: length + 1 - place]
        whole[place : place + len(some)] = some
        place += len(part)
    if used.ndim:
        beyond = np.arange(length + 1).reshape(-1, *[1] * used.ndim) > used
        whole[beyond] = 0
    else:
        whole[int(used) + 1 :] = 0
    return jax.device_put(whole, last.sharding)
