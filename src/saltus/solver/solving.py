"""The public entry: from a system, a start and parameters to a differentiable solution."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.foreign_names import answered
from ..base.jax_names import under_jit
from ..base.leaves import Leaves, array_of, frozen
from ..base.results import Result
from ..base.tracing import is_traced, is_tracer
from ..base.types import Array, Flag, Number, Numbers, Params, Scalar, Tree
from ..methods import Method
from ..methods.projected import keeping
from ..methods.step_control import PI
from ..model.model import Model
from ..model.validation import check_units
from ..simulate.firing import asked
from ..simulate.record import Knobs, Spec
from ..simulate.traced_checks import begun, outside, sound
from ..solution.nonfinite import silent_output
from ..solution.solution import Solution, Stats
from ..solution.tape import read, read_end, read_visits
from ..system.hybrid import HybridSystem, Instant
from ..system.reversal import directed
from .arguments import check_index, count, grazing, method_of, number, times
from .checkpointed import Checkpointed
from .context import current_accuracy, current_method, current_times, current_way, note
from .simulation import Simulated, way_to_simulate
from .start import first_state

if TYPE_CHECKING:
    from ..simulate.record import RowRules

ROWS_IN_JIT = 4096  # of a tape without `max_steps`
EVENTS_IN_JIT = 256  # of a log without `max_events`
MAX_COUNT = 1_000_000  # of step attempts, and of events, outside `jit`
RESOLVED_PARTS = 64  # the least number of steps with `resolve_guards`
FINEST_TIGHTENED = 1e-13  # tolerances are not tightened below this: rounding is as large
STEP_ORDER = 5.0  # steps shrink by this root of a factor of the tolerances


@answered
def solve(
    system: HybridSystem,
    start: Instant,
    p: Params,
    t1: Number,
    *,
    ts: Numbers | None = None,
    method: Method | None = None,
    throw: bool = True,
    max_steps: int | None = None,
    max_events: int | None = None,
    repair: bool = False,
    on_grazing: str = "record",
    resolve_guards: bool = False,
    checkpoints: int | None = None,
    sensitivity: RowRules | None = None,
) -> Solution:
    """Simulate `system` from `start` to `t1` and return a differentiable `Solution`.

    `start` is an `Instant`, `p` are the parameters, any pytree, and `t1` is the end, which may lie
    before the start. `ts` are the times at which outputs are saved (`None`: only the end).
    `method` includes the tolerances; the default is `Tsit5()`, or `Radau5()` for systems with a
    constraint. A failed solve raises `SolveError`, which holds the partial solution; with
    `throw=False` that solution is returned. Inside `jit` and `vmap` a solution is always returned,
    with NaN for everything that was not reached (`sol.check()` raises the error there).
    `max_steps` limits the step attempts, and inside `jit` the rows of the tape; `max_events` limits
    the events, and inside `jit` the length of the event log. `repair=True` moves an inconsistent
    start of a DAE to the nearest consistent one instead of raising an error (`saltus.consistency`
    says what changes).

    If a guard touches zero without crossing it, no event fires and `sol.certificate` records the
    touch (`on_grazing="record"`); `"fire"` fires the event, `"raise"` fails the solve, `"ignore"`
    does nothing. `resolve_guards=True` is for guards that change faster than the states: it
    includes them in the error norm, and takes at least 64 steps.

    `checkpoints=1000` keeps the state of the loop at every thousandth row instead of the tape, and
    simulates each piece again when a derivative is taken: a long solve then needs little memory,
    and about twice the time. The event log and dense output are not kept.

    Derivatives are those of the discrete solution, exact to rounding. With
    `sensitivity=saltus.continuous.Continuous()` they come from the continuous variational and
    adjoint equations instead.

    Ctrl-C ends a solve within about a second with `SolveInterrupted`, a `KeyboardInterrupt` that
    carries the partial solution. Inside `jit` a program cannot be stopped before it has finished.
    """
    chosen: Method = current_method(method_of(system, method))
    given, t1 = t1, number("t1", t1)
    system = directed(system, getattr(start, "t", given), given)
    model, at, par = first_state(system, start, p, t1, repair)
    t0 = number("the start's t", par.t0)
    ts = None if ts is None else current_times(times(ts, t0, t1))
    check_index(model, chosen)
    check_units(system, start, p, model)
    adaptive = chosen.control.adaptive
    resolve = bool(resolve_guards and adaptive)
    spec = Spec(model, keeping(chosen.stepper, model), adaptive, resolve, current_way(sensitivity))
    capacity = ROWS_IN_JIT if max_steps is None else count("max_steps", max_steps)
    log_size = EVENTS_IN_JIT if max_events is None else count("max_events", max_events)
    knobs = _knobs(model, chosen, max_steps, max_events, grazing(on_grazing))
    if resolve:
        knobs = knobs._replace(
            max_step=jnp.minimum(knobs.max_step, frozen(jnp.abs(t1 - t0)) / RESOLVED_PARTS)
        )
    way = way_to_simulate(chosen, checkpoints, capacity)
    found = way(spec, at, par, knobs, ts)
    sol = _solution(system, found, spec, ts, log_size, asked(knobs), on_grazing)
    sol = sol if checkpoints is None else Checkpointed.of(sol)
    note(sol)
    if spec.rules is not None and checkpoints is None:
        spec.rules.look_at(sol)
    if not is_tracer(sol.result) and (throw or _by_hand(sol)):
        _judge(sol)
    return sol


def _by_hand(sol: Solution) -> bool:
    return bool(np.any(np.asarray(sol.result) == int(Result.interrupted)))


def _judge(sol: Solution) -> None:
    """Raise if the solve failed; warn about outputs that are NaN where the states are finite."""
    sol.check()
    if sol.spec.model.output_fn is None or is_traced((sol.t, sol.y, sol.reached)):
        return
    lost = silent_output(sol)
    if lost:
        warnings.warn(
            f"solve: {lost}, where the states are finite. Check the domain of the output function "
            "(square roots, logarithms, divisions); solve(..., throw=False) does not warn.",
            RuntimeWarning,
            stacklevel=3,
        )


def _knobs(
    model: Model, method: Method, max_steps: int | None, max_events: int | None, grazing: int
) -> Knobs:
    """The method's numbers as arrays, so that changing one does not recompile."""
    control = method.control if isinstance(method.control, PI) else PI()
    fixed = getattr(method.control, "h", 1.0)
    coarsest = max(float(jnp.finfo(d).eps) for d in model.dtypes)
    traced = is_traced(method)  # known numbers were checked on construction
    xp: Any = jnp if traced else np  # and need no program
    given = xp.asarray(method.rtol, np.float64)
    least = xp.maximum(given, coarsest)
    rtol = method.tolerance(least)
    ratio = xp.where(given > 0, rtol / least, 1.0)
    finer = current_accuracy()
    if is_traced(finer):
        xp = jnp
    finest = xp.minimum(rtol, max(coarsest, FINEST_TIGHTENED))
    finer = xp.where(rtol > 0, xp.maximum(rtol * finer, finest) / rtol, finer)
    shorter = finer ** (1.0 / STEP_ORDER)
    absolute = _absolute(model, method.atol, xp)
    if traced:
        rtol = jnp.where(_sound(method, given, absolute), rtol, jnp.nan)
    many, events = (ROWS_IN_JIT, EVENTS_IN_JIT) if under_jit() else (MAX_COUNT, MAX_COUNT)
    first = np.nan if method.first_step is None else method.first_step
    shape = (control.safety, control.shrink, control.grow, control.beta)
    whole = functools.partial(array_of, dtype=np.int32)
    return Knobs(
        rtol=_array(rtol * finer),
        atol=tuple(_array(a * ratio * finer) for a in absolute),
        first_step=_array(first),
        max_step=_array(method.max_step * shorter),
        fixed=_array(fixed * shorter),
        control=tuple(map(_array, shape)),
        max_steps=whole(many if max_steps is None else max_steps),
        max_events=whole(events if max_events is None else max_events),
        asked=_array(1.0 / (ratio * finer)),
        grazing=whole(grazing),
    )


def _sound(method: Method, rtol: Scalar, atol: Leaves) -> Flag:
    """Whether settings that are known only at run time are valid."""
    settings = {"rtol": rtol, "atol": atol, "max_step": _array(method.max_step)}
    settings["first_step"] = None if method.first_step is None else _array(method.first_step)
    settings["h"] = _array(getattr(method.control, "h", 1.0))
    return sound(settings, fixed=not method.control.adaptive)


def _array(v: Number | np.ndarray) -> Array:
    return array_of(v, np.float64)


def _absolute(model: Model, atol: Tree, xp: ModuleType) -> tuple:
    """One absolute tolerance per moving leaf: a number for all, or a pytree like x.

    As arrays of `xp`, which is NumPy where all numbers are known."""
    leaves, treedef = jax.tree.flatten(atol)
    if treedef == model.x.treedef and len(leaves) == model.nx:
        given = [xp.asarray(v, np.float64) for v in leaves]
        rest = functools.reduce(xp.minimum, [xp.min(v) for v in given])
        return (*given, *([rest] * (model.moving - model.nx + model.n_z)))
    if len(leaves) != 1 or leaves[0] is not atol:
        raise ValueError(
            "method: the structure of atol differs from that of x. Give a number, or one per state."
        )
    return (xp.asarray(leaves[0], np.float64),) * (model.moving + model.n_z)


def _saved(spec: Spec, found: Simulated, ts: Array) -> tuple[Tree, Leaves, Array]:
    """Outputs and integrals at the save times, and which of them were reached."""
    outcome, tape, visits = found
    traced = is_traced(outcome.code)  # otherwise a start that fails raises an error
    fair = begun(outcome.code, outcome.counts.rows) if traced else True
    if visits is not None:
        visits = visits._replace(reached=visits.reached & fair)
        return read_visits(spec, visits, tape, ts)
    if traced:
        until = tape.end._replace(tau=jnp.where(fair, tape.end.tau, jnp.nan))
        tape = dataclasses.replace(tape, end=until)
    return read(spec, tape, ts, "right")


def _solution(
    system: HybridSystem, found: Simulated, spec: Spec, ts: Array | None, log_size: int,
    tolerance: tuple[Scalar, Leaves], on_grazing: str,
) -> Solution:  # fmt: skip
    outcome, tape, _ = found
    code = outcome.code
    ok = (code if is_tracer(code) else np.asarray(code)) <= int(Result.terminated)
    ok = array_of(ok)
    last, (final, integral, y) = read_end(spec, tape, ok)
    if system.adapt_back is not None:
        last, final = system.adapt_back(last), system.adapt_back(final)
    t, reached, integrals = final.t, ok, integral
    if ts is not None:
        t = ts
        y, integrals, reached = _saved(spec, found, ts)
    counts, code = outcome.counts, outcome.code
    if ts is not None and is_traced((ts, tape.t0, tape.t1)):
        strange = ok & jnp.any(outside(ts, tape.t0, tape.t1))
        code = jnp.where(strange, int(Result.invalid_save_time), code).astype(code.dtype)
    stats = Stats(
        steps=counts.steps, rejected=counts.rejected, evaluations=counts.evaluations,
        rows=counts.rows, events=counts.events, touches=counts.touches,
    )  # fmt: skip
    return Solution(
        t=t,
        y=y,
        reached=reached,
        integral=integral,
        integrals=integrals,
        final=final,
        result=code,
        stats=stats,
        last=last,
        tape=tape,
        pace=outcome.pace,
        spec=spec,
        max_events=log_size,
        units=None if system.units is None else tuple(sorted(system.units.items())),
        adapt=system.adapt_back,
        tolerance=tolerance,
        on_grazing=on_grazing,
    )
