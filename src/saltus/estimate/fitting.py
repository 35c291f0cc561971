"""`saltus.fit`: from a model and measurements to parameters with their uncertainty."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..base.foreign_names import FIT, answered, optimiser_named
from ..base.names import unit_of
from ..base.results import SolveError
from ..base.types import Params
from ..io.units import SECONDS
from ..methods.method import Method
from ..solver.scenario import Scenario, started
from ..solver.solving import solve
from ..system.hybrid import HybridSystem
from . import residuals, uncertainty
from . import search as searching
from .data import DataLike, Experiment, StartLike
from .monitor import Monitor, read_checkpoint
from .noise import Likelihood
from .noise import likelihood as likelihood_of
from .noise_origin import assumptions, with_noise
from .objective import FIRST_EVENTS, FIRST_ROWS, Objective
from .optimisers import LEAST_SQUARES, OUT_OF_ITERATIONS, Ending, Limits, OptimiserLike, is_optax
from .optimisers import optimiser as named_optimiser
from .residuals import LOSSES, How
from .result import Fit, Fitted, compared
from .search import LEAST_SQUARES_NUMBERS, SEARCHES, Found, Search
from .selection import BoundsLike, FreeNames
from .setup import Setup, scenario_of, set_up
from .shooting import shoot_and_fit

LATE_SPANS = 1e4  # in spans of the data: data that begin later after the start use another clock
CLOCK_SECONDS = 1e8  # clocks that count seconds from 1970 passed this in 1973
SETTINGS = (
    "loss", "polish", "optimiser", "search", "starts", "segments", "seed", "max_iterations",
    "tolerance", "likelihood", "noise", "options", "t1",
)  # fmt: skip


@functools.partial(answered, table=FIT)
def fit(
    model: Scenario | HybridSystem,
    data: DataLike | Experiment | Sequence[DataLike | Experiment],
    p: Params = None,
    *,
    start: StartLike | None = None,
    t1: float | None = None,
    free: FreeNames = None,
    bounds: BoundsLike = None,
    scales: Mapping[str, str] | None = None,
    priors: Mapping[str, Any] | None = None,
    noise: float | Mapping[str, float] | None = None,
    likelihood: str | Likelihood = "normal",
    loss: str = "points",
    polish: bool = True,
    optimiser: OptimiserLike = "auto",
    search: str = "auto",
    starts: int = 16,
    segments: int = 8,
    seed: int = 0,
    method: Method | None = None,
    max_iterations: int = 200,
    tolerance: float = 1e-12,
    options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    log: str | Path | None = None,
    checkpoint: str | Path | None = None,
    resume: str | Path | None = None,
) -> Fit:
    """Estimate parameters (and initial states) of a model from measurements.

    `model` is a `Scenario`, or a `HybridSystem` with `p` (the first guess) and `start`. `data` is
    the path of a CSV file, a data frame, a mapping of columns, an `Experiment`, or a list of these;
    columns are matched to the model's outputs by name. Experiments without an end of their own end
    at `t1`, or where their data end.

    `free` names what is estimated: leaves of `p` (`"k"`, a prefix, or a pattern like `"net.*"`) and
    initial states (`"start.v"`); by default all floats of `p`. `bounds`, `scales` and `priors` are
    by name: `bounds={"k": (0, 10)}`, `scales={"k": "log"}` (or `"logit"`, between bounds),
    `priors={"k": (mean, sd)}`. `noise` are standard deviations of the measurements by output; those
    not given are estimated. `likelihood` is `"normal"`, or `"student"`, with which outliers count
    less. `method` is that of the solves.

    `loss` is how outputs are compared: `"points"`, or one of the smoother losses `"integral"`,
    `"aligned"` (by observed events) and `"blended"`, followed by a fit to the points (left out with
    `polish=False`). `search` is `"local"`, `"horizon"` (the beginning of the data first),
    `"multistart"` (from `starts` Sobol points, which depend on `seed`), `"shooting"` (in `segments`
    with free starts whose gaps are then closed; event times count only in the last stage), or
    `"auto"`: local, then other searches if the result is not a minimum or the residuals have
    structure. `optimiser` is `"lm"`, `"gauss-newton"`, `"l-bfgs-b"`, `"trust"`, `"ipopt"`,
    `"adam"` or another optax rule; by default `"lm"`, or `"l-bfgs-b"` for more than 300 numbers.
    `options` are passed on to it. Every stage of a search ends after `max_iterations`, or when the
    loss falls by less than `tolerance`, relative to the loss.

    `progress` shows a bar (by default on a terminal), `log` is a file of JSON lines. Ctrl-C returns
    the best point so far. `checkpoint` is a file to write, from which `resume` continues.
    """
    clock = time.perf_counter()
    scenario = scenario_of(model, p, start, t1, method)
    chosen = likelihood_of(likelihood)
    _check(loss, search, optimiser, max_iterations, method)
    setup = set_up(scenario, data, t1, free, bounds, scales, priors, noise)
    _check_clocks(setup)
    how = How(loss, scenario.method, chosen.transform, FIRST_ROWS, FIRST_EVENTS)
    objective = Objective(setup.free, setup.shapes, setup.runs, how)
    if optimiser == "auto":
        optimiser = "lm" if setup.free.size <= LEAST_SQUARES_NUMBERS else "l-bfgs-b"
    u, extra = setup.free.initial, {}
    if resume is not None:
        u, extra = read_checkpoint(resume, setup.free.names)
        search = "local" if search == "auto" else search
    given = dict(options or {})
    if extra and is_optax(optimiser):
        given["resume"] = extra
    monitor = Monitor(setup.free.names, progress, log, checkpoint, max_iterations)
    plan = Search(
        named_optimiser(optimiser), optimiser, Limits(max_iterations, tolerance), given, starts,
        seed, frozenset(setup.known),
    )  # fmt: skip
    _check_first(setup, objective, u, search)
    try:
        found, objective, origin, interrupted = _find(
            setup, objective, u, plan, monitor, search, polish, segments, chosen
        )
        monitor.end(found.u, found.loss)
    finally:
        monitor.close()
    settings = _settings(locals(), setup)
    plan = plan.afresh()
    return _result(
        setup, objective, found, plan, monitor, chosen, settings, origin, interrupted, clock
    )


def _check(
    loss: str, search: str, optimiser: OptimiserLike, iterations: int, method: Method | None
) -> None:
    if isinstance(method, str):
        raise TypeError(f"fit: method is {method!r}. {optimiser_named(method)}.")
    if optimiser == "slsqp":
        raise ValueError('fit: "slsqp" is for saltus.minimise. Write "lm" or "l-bfgs-b" here.')
    if iterations < 1:
        raise ValueError(f"fit: max_iterations is {iterations}, expected at least 1.")
    if loss not in LOSSES:
        raise ValueError(f"fit: loss is {loss!r}, expected one of {', '.join(LOSSES)}.")
    if search not in SEARCHES:
        raise ValueError(f"fit: search is {search!r}, expected one of {', '.join(SEARCHES)}.")
    if search == "shooting" and loss != "points":
        raise ValueError(
            f'fit: search="shooting" compares points, so loss="{loss}" would have no effect. Leave '
            'loss out, or write search="horizon".'
        )


def _check_clocks(setup: Setup) -> None:
    """Raises an error if data begin so long after the start that they use another clock."""
    second = SECONDS.get(unit_of(setup.scenario.system.units, "t"), 1.0)
    for k, e in enumerate(setup.experiments):
        both = (*setup.measured[k].values(), *setup.events[k].values())
        t = np.concatenate([m.t for m in both])
        if e.t0 is not None or not t.size:
            continue
        begin, span = float(t.min()), float(np.ptp(t))
        start = float(started(setup.starts[k], setup.parameters[k]).t)
        gap = begin - start
        since_1970 = gap * second > CLOCK_SECONDS and gap > 10 * span
        if since_1970 or (span and gap > LATE_SPANS * span):
            raise ValueError(
                f"data: experiment {e.name} begins at t = {begin:.12g}, long after the model, "
                f"which starts at t = {start:.6g}. Give the time that is zero in the model, "
                f"Experiment(..., t0={begin:.12g}), or t0=0 if the times are right."
            )


def _check_first(setup: Setup, objective: Objective, u: np.ndarray, search: str) -> None:
    """Raises an error if the first guess cannot be simulated, with the reason."""
    if objective.how.loss == "aligned" and not all(r.events for r in objective.runs):
        raise ValueError(
            'fit: loss="aligned" needs observed event times of every experiment: '
            'Experiment(..., events={"bounce": [...]}).'
        )
    if search == "shooting" and not any(r.outputs for r in objective.runs):
        raise ValueError(
            'fit: search="shooting" compares outputs, and there are only event times. Write '
            'search="multistart".'
        )
    if search in ("multistart", "shooting") or np.isfinite(objective.value(u)):
        return
    if search != "local" and np.isfinite(objective.variant(fraction=1 / 8).value(u)):
        return  # the search by stages begins there
    for k, shape in enumerate(objective.shapes):
        p, start = residuals.restore(shape, objective.runs[k], jnp.asarray(u))
        try:
            solve(shape.system, start, p, setup.ends[k], method=setup.scenario.method)
        except SolveError as error:
            raise error.retold(
                f"fit: the first guess cannot be simulated (experiment "
                f"{setup.experiments[k].name}). {error}\nGive another first guess, or write "
                'search="horizon", which begins with the part that can be simulated.'
            ) from error
    raise ValueError("fit: the loss is not finite at the first guess, though it can be simulated.")


def _find(
    setup: Setup, objective: Objective, u: np.ndarray, plan: Search, monitor: Monitor, kind: str,
    polish: bool, segments: int, chosen: Likelihood,
) -> tuple[Found, Objective, dict[str, str], bool]:  # fmt: skip
    """Search, estimate the noise, fit again; if interrupted, the best point so far."""
    points = objective if objective.how.loss == "points" else objective.variant("points")
    try:
        if kind == "shooting":
            found = shoot_and_fit(setup, points, u, plan, monitor, segments)
        else:
            found = searching.run(kind, objective, u, plan, monitor)
            if polish and points is not objective:
                found = searching.run("local", points, found.u, plan.afresh(), monitor)
        final = points if polish or kind == "shooting" else objective
        return *with_noise(setup, final, found, plan.afresh(), monitor, chosen), False
    except KeyboardInterrupt:
        kept = [c[1] for c in (monitor.best, points.best, objective.best) if c is not None]
        latest = [] if monitor.latest is None else [monitor.latest]  # first, if none is finite
        value, best = min(
            ((points.value(c), c) for c in [*latest, *kept, u]), key=lambda pair: pair[0]
        )
        found = Found(best, value, False, False, "stopped by hand")
        if np.isfinite(value):  # it may already be a minimum
            found = searching.judged(points, Ending(best, False, "stopped by hand"), plan)
        return *with_noise(setup, points, found, plan, monitor, chosen, again=False), True


def _result(
    setup: Setup, objective: Objective, found: Found, plan: Search, monitor: Monitor,
    chosen: Likelihood, settings: dict, origin: dict[str, str], interrupted: bool, clock: float,
) -> Fit:  # fmt: skip
    u, free = found.u, setup.free
    estimated = any(name not in setup.known for name in setup.noise)
    freedom = float(max(objective.samples() - free.size, 1)) if estimated else None
    certain = uncertainty.certainty(objective, u, freedom)
    values = np.asarray(free.natural(jnp.asarray(u)))
    blind = estimated and objective.samples() <= free.size and not free.believed
    lost = uncertainty.undetermined(free, values, certain, blind) if found.minimum else []
    if not found.minimum:
        certain = uncertainty.unknown(certain, "this is not a minimum")
    elif blind:
        certain = uncertainty.unknown(certain, "no samples are left to estimate the noise")
    experiments = compared(setup, objective, u, chosen)
    noise = {}
    for e in experiments:
        for name, s in e.outputs.items():
            noise.setdefault(name, float(np.mean(s.sd)))
    for run in objective.runs:
        noise.update({n: float(1.0 / e.alone) for n, e in run.events.items()})
    result, message = _verdict(found, plan, interrupted, certain, free.names, blind)
    if lost and result in ("converged", "suspect"):
        message = f"{message} {_undetermined(lost, free.names)}"
    lonely, doubt = _lonely(experiments)
    if doubt and result == "converged":
        result, message = "suspect", doubt
    if settings["search"] == "shooting" and any(e.events for e in experiments):
        message += " Event times counted in the last stage only, after the segments were joined."
    message += ("" if blind else assumptions(setup, origin, noise)) + setup.note
    message = f"{message}{lonely} {free.note}".strip()
    vector = jnp.asarray(u)
    starts = [
        s if callable(s) else free.into_start(vector, s, k) for k, s in enumerate(setup.starts)
    ]
    return Fit(
        free.into_p(vector, setup.scenario.p), starts, free.names, np.asarray(free.natural(vector)),
        np.asarray(free.natural(jnp.asarray(free.initial))), certain, found.loss, noise, result,
        message, found.noise, monitor.history, experiments, settings, time.perf_counter() - clock,
        objective.count.compile, objective.count.values, u, objective, plan, setup, freedom,
        monitor.path, origin, lost,
    )  # fmt: skip


def _undetermined(lost: list[str], names: list[str]) -> str:
    """A sentence on numbers that the data do not determine."""
    few = ", ".join(lost[:8]) + (", ..." if len(lost) > 8 else "")
    return (
        f"{len(lost)} of {len(names)} numbers are not determined by these data ({few}): other "
        "values fit as well. Fix them, give priors, or measure more."
    )


def _lonely(experiments: list[Fitted]) -> tuple[str, str]:
    """Events that were observed or predicted but not both, and a doubt that follows from them."""
    words = []
    for e in experiments:
        for name, m in e.events.items():
            for count, kind in ((m.observed.size, "observed"), (m.predicted.size, "predicted")):
                if count > len(m.pairs):
                    words.append(f"{count - len(m.pairs)} {kind} {name}")
    doubt = any(m.lonely for e in experiments if not e.outputs for m in e.events.values())
    text = f" Events without a partner: {', '.join(words)}." if words else ""
    return text, (
        "A minimum, but nothing else was measured that could distinguish a missed event from one "
        "that did not happen."
        if doubt
        else ""
    )


def _verdict(
    found: Found,
    plan: Search,
    interrupted: bool,
    certain: uncertainty.Certainty,
    names: list[str],
    blind: bool,
) -> tuple[str, str]:
    """The result in one word, and in a sentence or two."""
    if interrupted:
        return (
            "interrupted",
            "Stopped by hand; this is the best point so far"
            + (", and a minimum" if found.minimum else ", not a minimum: no intervals are given")
            + ". Use resume= to continue.",
        )
    if not np.isfinite(found.loss):
        return "failed", "No point could be simulated. Check the model, the bounds and the start."
    bounds = [n for n, held in zip(names, certain.at_bound, strict=True) if held]
    text = f" At a bound: {', '.join(bounds)}." if bounds else ""
    if found.minimum and blind:
        return (
            "converged",
            "A minimum, with no more data than free numbers: the fit cannot be judged and the "
            f"noise cannot be estimated, so no uncertainty is given.{text}",
        )
    if found.minimum and found.noise:
        return "converged", f"A minimum, and the residuals look like noise.{text}"
    if found.minimum:
        return (
            "suspect",
            f"A minimum, but {found.doubt}: the model misses something, or there is a better "
            "minimum elsewhere. Look at the residuals, or try "
            f'search="multistart", starts=64.{text}',
        )
    if found.message == OUT_OF_ITERATIONS or plan.name not in LEAST_SQUARES:
        return (
            "out_of_iterations",
            f"The loss is still falling. Raise max_iterations, or continue with resume=.{text}",
        )
    return (
        "stalled",
        f"No step reduces the loss by more than tolerance = {plan.limits.tolerance:g}, but it is "
        "not flat here: it jumps nearby, where an event passes a sample or the sequence of events "
        'changes. Try loss="integral", search="horizon" or a smaller tolerance.'
        f"{text}",
    )


def _settings(given: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
    """The settings needed to repeat the fit."""

    def plain(value: object) -> str | float | bool | None:
        return value if isinstance(value, str | int | float | bool | None) else repr(value)

    bounded = [b for b in setup.free.blocks if np.any(np.isfinite(np.stack([b.low, b.high])))]
    return {
        **{word: plain(given[word]) for word in SETTINGS},
        "free": list(setup.free.names),
        "bounds": {b.name: (b.low.tolist(), b.high.tolist()) for b in bounded},
        "scales": {b.name: b.scale for b in setup.free.blocks},
        "priors": {b.name: repr(b.prior) for b in setup.free.blocks if b.prior},
        "method": repr(setup.scenario.method),
        "experiments": [str(e.name) for e in setup.experiments],
        "versions": {
            **{name: _version(name) for name in ("saltus", "jax", "numpy", "scipy", "equinox")},
            "python": platform.python_version(),
        },
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
