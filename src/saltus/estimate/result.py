"""What a fit returns: estimates, their uncertainty, figures and reports."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.names import unit_of
from ..base.pickling import LeftBehind, Portable
from ..base.results import SolveError
from ..base.text import number, table
from ..base.types import Array, Numbers, Params, Units, Vector
from ..solution.solution import Solution
from ..solver.solving import solve
from ..trust import Certificate, certificate
from ..trust.reasons import REASONS
from ..trust.verdict import VERDICTS
from . import residuals, uncertainty
from .event_matching import EventMatch
from .experiments import columns
from .noise import Likelihood
from .objective import Objective
from .search import Search
from .setup import Setup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CERTIFIED_ITERATIONS = 20  # of a search, at most


class Series(NamedTuple):
    """One measured output: times, data, prediction, and the standard deviation of the noise."""

    t: np.ndarray
    observed: np.ndarray
    predicted: np.ndarray
    sd: np.ndarray

    @property
    def residual(self) -> np.ndarray:
        """Prediction minus data, in standard deviations."""
        return (self.predicted - self.observed) / self.sd


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Fitted(Portable):
    """One experiment together with its simulation."""

    name: str
    t1: float
    outputs: dict[str, Series]
    events: dict[str, EventMatch]
    simulate: Callable[[bool], Solution] = dataclasses.field(repr=False)

    @functools.cached_property
    def solution(self) -> Solution:
        """The simulation with the fitted parameters (partial if it failed)."""
        return self.simulate(False)

    @functools.cached_property
    def initial(self) -> Solution | None:
        """The simulation at the first guess; None if that failed at once."""
        try:
            return self.simulate(True)
        except (SolveError, ValueError):
            return None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Fit(Portable):
    """The result of `saltus.fit`. Numbers are NumPy arrays in the order of `names`."""

    p: Params
    starts: list[Any]
    names: list[str]
    values: np.ndarray
    initial: np.ndarray
    certainty: uncertainty.Certainty
    loss: float
    noise: dict[str, float]
    result: str
    message: str
    explained: bool  # whether the residuals look like noise
    history: list[dict[str, Any]]
    experiments: list[Fitted]
    settings: dict[str, Any]
    seconds: float
    compile_seconds: float
    evaluations: int
    u: np.ndarray = dataclasses.field(repr=False)
    _objective: Objective = dataclasses.field(repr=False)
    _search: Search = dataclasses.field(repr=False)
    _setup: Setup = dataclasses.field(repr=False)
    _freedom: float | None = None
    _path: list[np.ndarray] = dataclasses.field(default_factory=list, repr=False)
    noise_origin: dict[str, str] = dataclasses.field(default_factory=dict)  # given, estimated, ...
    undetermined: list[str] = dataclasses.field(default_factory=list)  # as uncertain as large

    @functools.cached_property
    def certificates(self) -> list[Certificate]:
        """Whether the gradient can be trusted at the fitted numbers, by experiment."""
        return [certificate(sol) for sol in self._objective.solutions(jnp.asarray(self.u))]

    @property
    def verdict(self) -> str:
        """The worst of the certificates: TRUSTED, DEGRADED or UNTRUSTED."""
        return VERDICTS[max(int(c.level) for c in self.certificates)]

    @functools.cached_property
    def doubts(self) -> list[tuple[int, dict[str, str]]]:
        """Why gradients along the search cannot be trusted: for at most 20 evenly spaced
        iterations, the number and its reasons with their verdicts (empty if trusted)."""
        rows = np.unique(np.linspace(0, len(self._path) - 1, CERTIFIED_ITERATIONS).astype(int))
        found = []
        for k in rows if self._path else ():
            solutions = self._objective.solutions(jnp.asarray(self._path[k]))
            levels = np.max([_levels(certificate(sol)) for sol in solutions], axis=0)
            why = {REASONS[j]: VERDICTS[levels[j]] for j in np.flatnonzero(levels)}
            found.append((int(k), why))
        return found

    @property
    def verdicts(self) -> list[tuple[int, str]]:
        """The verdict along the search: (iteration, verdict) of at most 20 iterations."""
        worst = lambda why: max(why.values(), key=VERDICTS.index, default=VERDICTS[0])
        return [(k, worst(why)) for k, why in self.doubts]

    @property
    def ok(self) -> bool:
        """Whether a minimum was found and the residuals look like noise."""
        return self.result == "converged"

    sd = property(lambda self: self.certainty.sd)
    low = property(lambda self: self.certainty.low)
    high = property(lambda self: self.certainty.high)
    at_bound = property(lambda self: self.certainty.at_bound)
    covariance = property(lambda self: self.certainty.covariance)
    correlation = property(lambda self: self.certainty.correlation)
    weak = property(lambda self: self.certainty.weak)
    spectrum = property(lambda self: self.certainty.spectrum)

    @property
    def units(self) -> Units:
        """Units by name; after unpickling, `None` if the model could not be pickled."""
        lost = isinstance(self._setup, LeftBehind)
        return None if lost else self._setup.scenario.system.units

    def __getitem__(self, name: str) -> float:
        """One fitted number by name."""
        if name not in self.names:
            raise KeyError(f'"{name}" was not free; the free numbers are {", ".join(self.names)}.')
        return float(self.values[self.names.index(name)])

    def table(self, most: int = 40) -> str:
        """The estimates with their 95 % intervals, as text with at most `most` rows."""
        if self.certainty.why:
            return self._plain_table(most)
        rows = []
        for k, name in enumerate(self.names[:most]):
            unit = unit_of(self.units, name.removeprefix("start."))
            interval = f"{number(self.low[k], 5)} to {number(self.high[k], 5)}"
            if self.at_bound[k]:
                interval = "at its bound"
            elif not np.isfinite(self.sd[k]):
                interval = "not determined"
            rows.append(
                [name, number(self.values[k], 7), unit, _deviation(self.sd[k]), interval,
                 number(self.initial[k], 5)]
            )  # fmt: skip
        text = table(
            ["", "estimate", "unit", "sd", "95 % interval", "first guess"], rows, left=(0, 2)
        )
        return text + _more(len(self.names) - most)

    def _plain_table(self, most: int) -> str:
        """The numbers if their uncertainty is not known."""
        rows = [
            [n, number(v, 7), unit_of(self.units, n.removeprefix("start.")), number(first, 5)]
            for n, v, first in zip(self.names, self.values, self.initial, strict=True)
        ][:most]
        text = table(["", "value", "unit", "first guess"], rows, left=(0, 2))
        return f"{text}{_more(len(self.names) - most)}\nNo intervals: {self.certainty.why}."

    def headline(self) -> str:
        """The result in a few words; numbers that are not determined come first."""
        if self.undetermined and self.result in ("converged", "suspect"):
            many = f"{len(self.undetermined)} of {len(self.names)}"
            return f"{many} numbers are not determined ({self.result})"
        return self.result

    def _amount(self) -> str:
        """How much was measured, in words."""
        samples = sum(s.t.size for e in self.experiments for s in e.outputs.values())
        times = sum(m.observed.size for e in self.experiments for m in e.events.values())
        words = [f"{samples} samples"] * bool(samples or not times)
        return " and ".join([*words, *[f"{times} event times"] * bool(times)])

    def __repr__(self) -> str:
        origin = {n: f" ({kind})" for n, kind in self.noise_origin.items()}
        noise = ", ".join(f"{n} {number(v, 3)}{origin.get(n, '')}" for n, v in self.noise.items())
        lines = [
            f"Fit: {self.headline()}. {self.message}",
            f"  {self._amount()} in {len(self.experiments)} "
            f"experiment{'s' * (len(self.experiments) > 1)}, "
            f"{len(self.history)} iterations, {self.evaluations} evaluations, {self.seconds:.1f} s "
            f"(compilation {self.compile_seconds:.1f} s)",
            f"  noise (sd): {noise}",
            "",
            self.table(),
        ]
        if self.weak:
            lines += ["", *(f"  ! {sentence}" for sentence in self.weak[:5])]
        return "\n".join(lines)

    def _needs_model(self, what: str) -> None:
        """Raises an error if a fit from another process cannot be simulated again."""
        if any(isinstance(v, LeftBehind) for v in (self._objective, self._setup)):
            raise RuntimeError(
                f"fit.{what} simulates the model, which was left behind when this was pickled: its "
                "functions are lambdas, or are defined inside another function. Define them at "
                f"the top of a module, or call fit.{what} before pickling."
            )

    # -- more on request --------------------------------------------------------------------------
    def profile(
        self, name: str, points: int = 15, level: float = 0.95, reach: float = 4.0,
        progress: bool | None = None,
    ) -> uncertainty.Profile:  # fmt: skip
        """Refit everything else for values of the number `name` around its estimate. This gives an
        interval without the assumption that the loss is a parabola.

        `points` is the number of values, `level` the confidence level of the interval, and `reach`
        how far values go to either side, in standard deviations. Each value takes few iterations
        of least squares, whatever the optimiser of the fit (L-BFGS-B for many numbers). `progress`
        shows a line, by default on a terminal. Ctrl-C keeps the values that are finished.
        """
        from .monitor import Monitor

        self._needs_model("profile")
        monitor = Monitor(self.names, progress)
        sd = np.nan
        if name in self.names:
            k = self.names.index(name)
            sd = float(self.sd[k] / max(abs(self._objective.free.slopes(self.u)[k]), 1e-300))
        try:
            return uncertainty.profile(
                self._objective, self.u, name, sd, self._search.refit, monitor, self._freedom,
                points, level, reach,
            )  # fmt: skip
        finally:
            monitor.close()

    def exact(self) -> uncertainty.Certainty:
        """Covariance and intervals from the exact Hessian instead of the Gauss–Newton matrix."""
        self._needs_model("exact")
        return uncertainty.certainty(self._objective, self.u, self._freedom, exact=True)

    def bands(
        self, experiment: int = 0, ts: Numbers | None = None, level: float = 0.95
    ) -> dict[str, tuple]:
        """Predictions with their uncertainty: `{output: (t, low, middle, high)}` (M57).

        `experiment` is the number of the experiment, from 0. `ts` are the times; by default 400
        from its start to its end. Times after its end are predicted by a longer simulation.
        `level` is the confidence level of the bands.
        """
        self._needs_model("bands")
        o = self._objective
        run = o.runs[experiment]
        first = float(self.experiments[experiment].solution.start)
        ts = np.linspace(first, float(run.t1), 400) if ts is None else np.asarray(ts, dtype=float)
        if np.any(ts < first):
            raise ValueError(
                f"bands: ts begins at {np.min(ts):.6g}, before the start of experiment "
                f"{self.experiments[experiment].name} at t = {first:.6g}. Leave earlier times out."
            )
        run = run._replace(t1=np.maximum(run.t1, np.max(ts, initial=run.t1)))
        shape, how = o.shapes[experiment], dataclasses.replace(o.how, loss="points")

        def values(u: Vector) -> tuple[dict[str, Array], dict[str, Array]]:
            y = columns(residuals.simulate(shape, run, u, how, jnp.asarray(ts)).y)
            return y, y

        slopes, y = jax.jit(jax.jacfwd(values, has_aux=True))(jnp.asarray(self.u))
        scale = o.free.slopes(self.u)
        variance = self.covariance / np.outer(scale, scale)
        variance = np.where(np.isfinite(variance), variance, 0.0)
        reach = uncertainty.quantile(level, self._freedom)

        def band(name: str) -> tuple:
            spread = np.einsum("ti,ij,tj->t", slopes[name], variance, slopes[name])
            middle, off = np.asarray(y[name]), reach * np.sqrt(np.maximum(spread, 0.0))
            return np.asarray(ts), middle - off, middle, middle + off

        return {name: band(name) for name in y}

    def plot(self) -> Figure | None:
        """A figure of data and fit, experiment by experiment. Needs the extra `plot`."""
        from .report.figures import data_and_fit

        self._needs_model("plot")
        return data_and_fit(self)

    def report(self, path: str | Path = "report.html", progress: bool | None = None) -> Path:
        """Write a report of the fit to the HTML file `path`, and its figures to a folder beside it.

        `progress` shows a line meanwhile, by default on a terminal. Needs the extra `plot`.
        """
        from .report import write

        self._needs_model("report")
        return write(self, path, progress)


def _levels(cert: Certificate) -> np.ndarray:
    """The level of each reason; for a solve that failed, only that reason."""
    levels = np.array(cert.levels)
    levels[1:] *= levels[0] == 0
    return levels


def _more(left: int) -> str:
    return f"\n... and {left} more" if left > 0 else ""


def _deviation(sd: float) -> str:
    return number(float(sd), 2) if np.isfinite(sd) else "-"


def compared(
    setup: Setup, objective: Objective, u: np.ndarray, likelihood: Likelihood
) -> list[Fitted]:
    """Data and predictions of every experiment at `u`."""
    points = objective if objective.how.loss == "points" else objective.variant("points")
    r, at, found = likelihood.restore(points.residuals(u)), 0, []
    matches = points.matches(u)
    for k, (run, seen) in enumerate(zip(points.runs, points.seen, strict=True)):
        outputs = {}
        for name, o in run.outputs.items():
            real = o.weight > 0
            own, at = r[at : at + o.y.size][real], at + o.y.size
            sd = 1.0 / o.weight[real]
            outputs[name] = Series(run.ts[o.rows][real], o.y[real], o.y[real] + own * sd, sd)
        at += sum(e.t.size + seen.which.size for e in run.events.values())
        simulate = functools.partial(_simulate, setup, objective, k, u)
        name = str(setup.experiments[k].name)
        found.append(Fitted(name, float(run.t1), outputs, matches[k], simulate))
    return found


def _simulate(setup: Setup, objective: Objective, k: int, u: np.ndarray, initial: bool) -> Solution:
    """One experiment simulated with dense output, by a plain solve."""
    free, shape = objective.free, objective.shapes[k]
    vector = jnp.asarray(free.initial if initial else u)
    p, start = residuals.restore(shape, objective.runs[k], vector)
    t1 = setup.ends[k]
    return solve(setup.scenario.system, start, p, t1, method=setup.scenario.method, throw=False)
