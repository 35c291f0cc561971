"""What a solve returns: values, events, dense output, and why it stopped."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..base.foreign_names import ATTRIBUTES, missing
from ..base.leaves import check_precision, in_double_precision
from ..base.pickling import Unchanging
from ..base.results import KINDS, Result, SolveError
from ..base.tracing import is_tracer
from ..base.types import Array, Leaves, Numbers, Scalar, Tree, Units, Whole
from ..simulate.record import Pace, Spec
from ..system.hybrid import Instant
from .description import describe, describe_stats, mode_name
from .event_log import EventLog, first_entries
from .extrema import Extremes
from .failure import explain, state_values, state_words
from .step_failure import slowed
from .tape import Tape, read, read_events, read_instants
from .trajectory import Course, course

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path

    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure

    from ..trust import Certificate
    from .files import SavedSolution

SHORT_LOG = 8  # events that are read at least


class Stats(eqx.Module):
    """What the solve cost."""

    steps: Whole  # attempts, rejected ones and those of event location included
    rejected: Whole
    evaluations: Whole  # of the flow
    rows: Whole
    events: Whole
    touches: Whole  # times a guard reached zero without crossing it

    def __repr__(self) -> str:
        return describe_stats(self)


class Presented:
    """What fresh and loaded solutions have in common: text, figures, files, tables."""

    @property
    def _whole(self) -> Solution | SavedSolution:
        return self  # type: ignore[return-value]  # the two that inherit from this class

    def __repr__(self) -> str:
        return describe(self._whole)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # a property that failed raises its own error
                return object.__getattribute__(self, name)
            raise missing(self, "a solution", name, ATTRIBUTES)

    def plot(
        self, *names: str, points: int = 2000, inputs: bool = False, discrete: bool = False
    ) -> Figure:
        """A figure of the outputs over time, events marked, both limits drawn at jumps.

        `names` are the outputs, states, discrete states and inputs to draw (default: all outputs).
        `inputs=True` and `discrete=True` add all inputs and all discrete states. A quantity that is
        constant between jumps is drawn as stairs; with many more steps than the figure has columns,
        the range of values in each column is shaded. `points` is the approximate number of points
        per curve. Needs the extra `plot`.
        """
        from .plotting import plot

        return plot(self._whole, *names, points=points, inputs=inputs, discrete=discrete)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the solution to the `.npz` file `path` and return its path.

        `Solution.load` reads it.
        """
        from .files import save

        return save(self._whole, path)

    def to_pandas(self) -> pd.DataFrame:
        """A data frame of the saved outputs, with time as index and units in the column names.

        For a batch, the number of the solve is the first level of the index. Needs the extra
        `data`.
        """
        from .frames import to_pandas

        return to_pandas(self._whole)

    def to_csv(self, path: str | PathLike[str]) -> Path:
        """Write the saved outputs to the CSV file `path`, with units in its header.

        Returns the path.
        """
        from .frames import to_csv

        return to_csv(self._whole, path)

    def to_xarray(self) -> xr.Dataset:
        """A dataset of the saved outputs along `t`, with units. Needs the extra `data`."""
        from .frames import to_xarray

        return to_xarray(self._whole)


def check_lane(sol: Solution | SavedSolution, lane: object) -> None:
    """Raises an error for names, and for any index if the solution is not a batch."""
    if isinstance(lane, str):
        raise TypeError(
            f'sol["{lane}"]: a solution has no entries by name. Write sol.y["{lane}"] for saved '
            f'values, or sol(t)["{lane}"] for those at any time.'
        )
    if np.ndim(sol.result) == 0:
        raise TypeError("this is one solution, not a batch: sol[k] is for solves under vmap.")


def check_inside(sol: Solution | SavedSolution, t: Numbers) -> None:
    """Raises an error for times that no solution of a batch has reached, if they are known."""
    if any(map(is_tracer, (t, sol.start, sol.last.t))):
        return
    times, ends = np.asarray(t, dtype=float), np.asarray([sol.start, sol.last.t], dtype=float)
    low, high = np.min(ends), np.max(ends)
    slack = 16 * np.finfo(float).eps * max(abs(low), abs(high))
    bad = ~((times >= low - slack) & (times <= high + slack))  # NaN is also outside
    if bad.any():
        last = Result(int(np.max(sol.result)))
        whole = last == Result.success
        raise ValueError(
            f"sol({times[bad].flat[0]:.10g}): this solution covers t = {low:.10g} to "
            f"t = {high:.10g}{'' if whole else f' ({last.name})'}. Use times in between"
            f"{', or solve to a later t1' if whole else ''}."
        )


def _rounded_up(count: int) -> int:
    """A power of two, so that there are few different sizes to compile for."""
    return max(SHORT_LOG, 1 << (count - 1).bit_length()) if count else 0


class Solution(Presented, Extremes, Unchanging, eqx.Module):
    """The result of a solve. Every float in it is differentiable."""

    t: Array
    y: Tree
    reached: Array
    integral: Tree  # of the rate, from the start to the end
    integrals: Tree  # the same up to the saved times
    final: Instant
    result: Whole
    stats: Stats
    last: Instant  # where the solve stopped, whatever the reason
    tape: Tape = eqx.field(repr=False)
    pace: Pace = eqx.field(repr=False)
    spec: Spec = eqx.field(static=True, repr=False)
    max_events: int = eqx.field(static=True, repr=False)
    units: Units = eqx.field(static=True, repr=False)
    # Maps the states that are solved for to the user's own, where they differ.
    adapt: Callable[[Instant], Instant] | None = eqx.field(static=True, repr=False)
    tolerance: tuple[Scalar, Leaves] = eqx.field(repr=False)  # relative, and absolute by leaf
    on_grazing: str = eqx.field(static=True, repr=False, default="record")

    def __repr__(self) -> str:
        with in_double_precision():  # even where it was switched off
            return describe(self, slowed(self))

    def __reduce__(self) -> tuple:
        """Pickling keeps the numbers of a solution, as `save` does, but not its model."""
        from .files import pickled, unpickled

        return unpickled, (pickled(self),)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the events, in order of declaration."""
        return tuple(a.name for a in self._declared())

    @property
    def modes(self) -> tuple[str, ...]:
        """The names of an automaton's modes."""
        return self.spec.model.modes

    @property
    def start(self) -> Scalar:
        """The time at which the solve started."""
        return self.tape.t0

    @property
    def certificate(self) -> Certificate:
        """Whether derivatives of this solution can be trusted, and how far they are valid."""
        from ..trust import certificate

        return certificate(self)

    def _declared(self) -> list:
        return [a for a in self.spec.model.actions if a.logged]

    @property
    def events(self) -> EventLog:
        """The events in order, differentiable."""
        check_precision()
        count = self.stats.events
        if is_tracer(count):
            size = min(self.max_events, self.tape.kind.shape[-1])
        else:
            size = int(np.max(np.asarray(count), initial=0))
        if not self.names:
            size = 0
        # Outside `jit` the number of events is another for other parameters: read a few more.
        room = size if is_tracer(count) else _rounded_up(size)
        fn = functools.partial(read_events, self.spec, size=room)
        for _ in range(jnp.ndim(count)):
            fn = jax.vmap(fn)
        *found, count = fn(self.tape)
        if room > size:
            found = first_entries(found, size, jnp.ndim(count))
        t, which, member, before, after = found
        if self.adapt is not None:
            before, after = self.adapt(before), self.adapt(after)
        families = tuple(a.size is not None for a in self._declared())
        return EventLog(
            t, which, member, before, after, count, self.names, families, self.modes, self.units,
            self.tape.depends,
        )  # fmt: skip

    def __getitem__(self, lane: int | slice | Array) -> Solution:
        """One solution of a batch made with `vmap`."""
        check_lane(self, lane)
        return jax.tree.map(lambda v: v[lane], self)

    def course(self, fractions: Numbers | None = None, whole: bool = False) -> Course:
        """The output at `fractions` of every step (default: its ends), for plots and files.

        With `whole=True`, instants with all states instead of outputs.
        """
        check_precision()
        found = course(self.spec, self.tape, fractions, whole)
        return found._replace(y=self.adapt(found.y)) if whole and self.adapt else found

    @staticmethod
    def load(path: str | PathLike[str]) -> SavedSolution:
        """Read the file `path` written by `save`: all numbers, but no derivatives."""
        from .files import load

        return load(path)

    def __call__(self, t: Numbers, side: str = "right") -> Tree:
        """The output at the times `t`, a number or an array.

        At a jump, `side="left"` gives the limit from before it and `"right"` the value after it. A
        time that was not reached is an error; inside `jit` the output there is NaN.
        """
        return self._read(lambda *given: read(*given)[0], t, side)

    def at(self, t: Numbers, side: str = "right") -> Instant:
        """The instant at the times `t`: states, discrete states and inputs.

        `t` and `side` are as for `sol(t)`.
        """
        now = self._read(read_instants, t, side)
        return now if self.adapt is None else self.adapt(now)

    def _read(
        self, reader: Callable[[Spec, Tape, Array, str], Tree], t: Numbers, side: str
    ) -> Tree:
        if side not in ("right", "left"):
            raise ValueError(f"sol(t, side=...): side is {side!r}, expected 'right' or 'left'.")
        check_precision()
        times = jnp.asarray(t, dtype=jnp.float64)
        check_inside(self, times)

        def one(tape: Tape) -> Tree:
            y = reader(self.spec, tape, times.reshape(-1), side)
            return jax.tree.map(lambda v: v.reshape(times.shape + v.shape[1:]), y)

        for _ in range(jnp.ndim(self.tape.n)):
            one = jax.vmap(one)
        return one(self.tape)

    @property
    def error(self) -> SolveError | None:
        """The error that `throw=True` raises, or `None` if the solve succeeded."""
        if is_tracer(self.result):
            raise TypeError(
                "sol.error is only known after the compiled function has run. Inside the function, "
                "write sol.check(), or return sol.result."
            )
        bad = np.any(np.asarray(self.result) > int(Result.terminated))
        return failure(self) if bad else None

    def check(self) -> Solution:
        """Raise an error if the solve failed; inside `jit` it is raised at run time."""
        if is_tracer(self.result):
            bad = self.result > int(Result.terminated)
            codes = [r for r in Result if r > Result.terminated]
            index = jnp.clip(self.result - int(codes[0]), 0, len(codes) - 1)
            return eqx.branched_error_if(self, bad, index, [r.message for r in codes])
        error = self.error
        if error is not None:
            raise error
        return self


def failure(sol: Solution) -> SolveError:
    """The error that says where and why a solve stopped."""
    sol = jax.tree.map(jax.lax.stop_gradient, sol)  # plain numbers even inside `jax.grad`
    if jnp.ndim(sol.result):
        return _first_failure(sol)
    result, t = Result(int(sol.result)), float(sol.last.t)
    mode = mode_name(sol, sol.last.mode) if sol.modes else None
    why, log = explain(sol, result), sol.events
    last = sol.names[int(log.which[-1])] if int(log.count) else None
    place = f"solve stopped at t = {t:.10g}"
    place += f' in mode "{mode}"' if mode else ""
    place += f" after {int(sol.stats.steps)} steps"
    many = "s" if int(log.count) > 1 else ""
    place += f' and {int(log.count)} event{many}, the last "{last}"' if last else ""
    text = f"{place}: {result.name}. {why.what} {why.advice}\nState there: {state_words(sol.last)}"
    return KINDS.get(result, SolveError)(
        text, result=result, t=t, mode=mode, event=why.event or last, solution=sol,
        values={**state_values(sol.last), **why.values}, advice=why.advice,
    )  # fmt: skip


def _first_failure(sol: Solution) -> SolveError:
    """The error of the first solve of a batch that stopped early; `solution` is the whole batch."""
    codes = np.asarray(sol.result)
    lanes = np.flatnonzero(codes > int(Result.terminated))
    where = np.unravel_index(lanes[0], codes.shape)
    error = failure(jax.tree.map(lambda v: v[where], sol))
    number = ", ".join(map(str, where))
    text = f"{len(lanes)} of {codes.size} solves stopped early; the first is number {number}: "
    error = error.retold(text + str(error))
    error.solution = sol
    return error
