"""What SciPy, diffrax and saltus report on cases that are hard for events.

python benchmarks/hard_cases.py [--only WORD]

The same model goes to all three with relative and absolute tolerances of 1e-8 (SciPy: RK45;
diffrax and saltus: Tsit5). SciPy logs events, and a reset is a terminal event and a new solve;
diffrax stops at its first event, so that events are a loop over solves, too. These loops give up
after 200 rounds, SciPy after 100,000 evaluations of the flow (it has no limit of its own). Times of
events count from the start. What is printed is what each tool says by itself, beside the truth; the
table in docs/hard_cases.md is taken from it. diffrax is left out where it is not installed.
"""

import argparse
import functools
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

import saltus

try:
    import diffrax
    import optimistix
except ImportError:
    diffrax = None

TOLERANCE, ROUNDS, MANY = 1e-8, 200, 100_000
NAMES = {-1: "falling", 0: "either", 1: "rising"}


@dataclass(frozen=True)
class Case:
    """A flow and guards on a vector, for NumPy and JAX (the first argument is the module)."""

    name: str
    truth: str
    flow: Callable
    start: tuple
    span: tuple
    guards: tuple = ()  # (guard, direction) each
    reset: Callable | None = None  # of all guards; without one, events are only logged
    ours: Callable | None = None  # the flow as saltus has it, where that has words of its own


def fall(xp, t, y):
    return xp.stack([y[1], -9.81 + 0 * y[1]])


def bounce(e):
    return lambda xp, t, y: xp.stack([0 * y[0], -e * y[1]])


def clock(xp, t, y):
    return xp.stack([1 + 0 * y[0]])


def guards(*functions, direction=0):
    return tuple((g, direction) for g in functions)


HEIGHT = guards(lambda xp, t, y: y[0], direction=-1)
CASES = [
    Case(
        "two crossings 2e-3 apart in one step", "2 events, at 0.999 and 1.001",
        lambda xp, t, y: xp.stack([2 * (t - 1) + 0 * y[0]]), (1 - 1e-6,), (0.0, 2.0),
        guards(lambda xp, t, y: y[0]),
    ),
    Case(
        "three roots of a cubic", "3 events, at 0.3, 0.301 and 0.9",
        clock, (0.0,), (0.0, 1.0),
        guards(lambda xp, t, y: (y[0] - 0.3) * (y[0] - 0.301) * (y[0] - 0.9)),
    ),
    Case(
        "a touch without a crossing", "a touch at 1",
        clock, (0.0,), (0.0, 2.5), guards(lambda xp, t, y: (y[0] - 1) ** 2),
    ),
    Case(
        "a guard that is zero at the start and leaves", "no event at 0, one at 0.5",
        clock, (0.0,), (0.0, 1.0), guards(lambda xp, t, y: y[0] * (y[0] - 0.5)),
    ),
    Case(
        "an event exactly at the end", "1 event, at 1",
        clock, (0.0,), (0.0, 1.0), guards(lambda xp, t, y: y[0] - 1, direction=1),
    ),
    Case(
        "two guards in one step", "2 events, at 0.4 and 0.8: the earlier one prevents the later",
        clock, (0.0,), (0.0, 1.0),
        guards(lambda xp, t, y: y[0] - 0.6, lambda xp, t, y: y[0] - 0.4, direction=1),
        lambda xp, t, y: 0 * y,
    ),
    Case(
        "a guard that oscillates faster than the flow", "31 events",
        clock, (0.0,), (0.0, 2.0), guards(lambda xp, t, y: xp.sin(50 * t)),
    ),
    Case(
        "a ball at rest on the floor", "it stays there",
        fall, (0.0, 0.0), (0.0, 1.0), HEIGHT, bounce(0.8),
    ),
    Case(
        "a ball whose bounces accumulate (Zeno) at 1.3546", "never below the floor",
        fall, (1.0, 0.0), (0.0, 5.0), HEIGHT, bounce(0.5),
    ),
    Case(
        "sliding: both sides point at x = 0 (C9)", "y(4) = 5",
        lambda xp, t, y: xp.where(y[0] > 0, xp.array([-0.5, 1.0]), xp.array([1.5, 3.0])),
        (1.0, 0.0), (0.0, 4.0),
        ours=lambda xp, t, y: saltus.when(
            y[0] > 0, xp.array([-0.5, 1.0]), xp.array([1.5, 3.0])
        ),
    ),
    Case(
        "a pole at t = 1", "no solution beyond 1",
        lambda xp, t, y: xp.stack([y[0] ** 2]), (1.0,), (0.0, 5.0),
    ),
    Case(
        "NaN in the flow from the start", "no solution",
        lambda xp, t, y: y * xp.nan, (1.0,), (0.0, 1.0),
    ),
    Case(
        "NaN in the flow from t = 1.3 on", "no solution beyond 1.3",
        lambda xp, t, y: xp.stack([-y[0] + 0 * xp.log(1.3 - t)]), (1.0,), (0.0, 3.0),
    ),
    Case(
        "a clock that starts at 1e9", "bounces 0.451523640986 and 1.08365673837 after the start",
        fall, (1.0, 0.0), (1e9, 1e9 + 1.2), HEIGHT, bounce(0.7),
    ),
]  # fmt: skip


def listed(times, case):
    """Event times as text."""
    shown = ", ".join(f"{t - case.span[0]:.12g}" for t in times[:4])
    return (
        f"{len(times)} events{': ' if len(times) else ''}{shown}{', ...' if len(times) > 4 else ''}"
    )


def closing(t, y, said):
    return f"at t = {t:.10g} y = {np.array2string(np.asarray(y), precision=6)}; it says: {said}"


# -- SciPy --------------------------------------------------------------------------------------
def with_scipy(case):
    count = 0

    def flow(t, y):
        nonlocal count
        count += 1
        if count > MANY:
            raise RuntimeError(f"given up at t = {t:.10g}, y = {y}, after {MANY} evaluations")
        return case.flow(np, t, y)

    events = []
    for guard, direction in case.guards:
        event = functools.partial(guard, np)
        made = lambda t, y, event=event: float(event(t, y))
        made.direction, made.terminal = direction, case.reset is not None
        events.append(made)
    t, y, times, lowest = case.span[0], np.array(case.start), [], np.inf
    for _ in range(ROUNDS):
        sol = solve_ivp(
            flow, (t, case.span[1]), y, events=events or None, rtol=TOLERANCE, atol=TOLERANCE
        )
        t, y, lowest = sol.t[-1], sol.y[:, -1], min(lowest, sol.y[0].min())
        times += sorted(s for each in (sol.t_events or []) for s in each)
        if sol.status != 1:
            break
        y = case.reset(np, t, y)
    else:
        return f"{listed(times, case)}; stuck at t = {t:.10g} after {ROUNDS} solves"
    steps = f"{len(sol.t) - 1} steps, "
    below = f" (lowest y[0]: {lowest:.3g})" if case.reset else ""
    return f"{listed(times, case)}; {steps}{closing(t, y, sol.message)}{below}"


# -- diffrax ------------------------------------------------------------------------------------
def with_diffrax(case):
    term = diffrax.ODETerm(lambda t, y, args: case.flow(jnp, t, y))
    event = None
    if case.guards:
        conditions = [lambda t, y, args, g=g, **_: g(jnp, t, y) for g, _ in case.guards]
        ways = [{-1: False, 0: None, 1: True}[d] for _, d in case.guards]
        root = optimistix.Newton(1e-12, 1e-12)
        event = diffrax.Event(conditions, root, direction=ways)
    t, y, times = case.span[0], jnp.array(case.start), []
    for _ in range(ROUNDS):
        sol = diffrax.diffeqsolve(
            term, diffrax.Tsit5(), t, case.span[1], None, y, event=event, throw=False,
            stepsize_controller=diffrax.PIDController(rtol=TOLERANCE, atol=TOLERANCE),
            max_steps=20_000,
        )  # fmt: skip
        t, y = float(sol.ts[-1]), sol.ys[-1]
        if sol.result != diffrax.RESULTS.event_occurred:
            break
        times.append(t)
        if case.reset is None:
            more = " (it stops at the first event)"
            return f"{listed(times, case)}{more}; {closing(t, y, _words(sol))}"
        y = case.reset(jnp, t, y)
    else:
        return f"{listed(times, case)}; stuck at t = {t:.10g} after {ROUNDS} solves"
    return (
        f"{listed(times, case)}; {int(sol.stats['num_steps'])} steps, {closing(t, y, _words(sol))}"
    )


def _words(sol):
    if sol.result == diffrax.RESULTS.successful:
        return "successful"
    text = str(diffrax.RESULTS[sol.result]).strip() or "event_occurred"
    return " ".join(text.split())[:160]


# -- saltus -------------------------------------------------------------------------------------
def with_saltus(case):
    def back(now, p):
        return now.replace(x=case.reset(jnp, now.t, now.x))

    system = saltus.HybridSystem(
        lambda now, p: (case.ours or case.flow)(jnp, now.t, now.x),
        events=[
            saltus.Event(
                f"event {k}",
                lambda now, p, g=g: g(jnp, now.t, now.x),
                direction=NAMES[d],
                reset=back if case.reset else None,
            )
            for k, (g, d) in enumerate(case.guards)
        ],
    )
    start = saltus.Instant(t=case.span[0], x=jnp.array(case.start))
    sol = saltus.solve(system, start, None, case.span[1], throw=False, max_steps=100_000)
    result = saltus.Result(int(sol.result))
    said = result.name if sol.error is None else f"{result.name}. {sol.error.advice}"
    touches = int(getattr(sol.stats, "touches", 0))
    seen = f"; {touches} touches" if touches else ""
    times = np.asarray(sol.events.t)
    text = f"{listed(times, case)}{seen}; {int(sol.stats.steps)} steps, "
    return text + closing(float(sol.last.t), sol.last.x, said)


# -- arguments ----------------------------------------------------------------------------------
ARGUMENTS = {
    "save times out of order": {"ts": [0.5, 0.1]},
    "a save time twice": {"ts": [0.5, 0.5]},
    "rtol = atol = 1e-20": {"rtol": 1e-20, "atol": 1e-20},
    "rtol = -1": {"rtol": -1.0},
}


def decay_with_scipy(ts=(0.5,), rtol=TOLERANCE, atol=TOLERANCE):
    sol = solve_ivp(lambda t, y: -y, (0.0, 1.0), [1.0], t_eval=ts, rtol=rtol, atol=atol)
    return f"{sol.y[0]}, {sol.nfev} evaluations"


def decay_with_diffrax(ts=(0.5,), rtol=TOLERANCE, atol=TOLERANCE):
    sol = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: -y), diffrax.Tsit5(), 0.0, 1.0, None, jnp.array(1.0),
        saveat=diffrax.SaveAt(ts=jnp.array(ts)), max_steps=20_000,
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
    )  # fmt: skip
    return f"{sol.ys}, {int(sol.stats['num_steps'])} steps"


def decay_with_saltus(ts=(0.5,), rtol=TOLERANCE, atol=TOLERANCE):
    system = saltus.HybridSystem(lambda now, p: -now.x)
    method = saltus.Tsit5(rtol=rtol, atol=atol)
    sol = saltus.solve(system, saltus.Instant(t=0.0, x=1.0), None, 1.0, ts=ts, method=method)
    return f"{sol.y}, {int(sol.stats.steps)} steps"


def attempt(run, *args, **options):
    """What a tool answers, its warning, or its error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            text = run(*args, **options)
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()] or [""]
            told = next((line for line in lines if "must" in line), lines[0])
            text = f"{type(error).__name__}: {told[:200]}"
    said = sorted({str(w.message).splitlines()[0] for w in caught if "too small" in str(w.message)})
    return text + "".join(f" Warning: {w}" for w in said)


def show(tool, text):
    print(textwrap.fill(text, 100, initial_indent=f"  {tool:8}", subsequent_indent=" " * 10))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    only = parser.parse_args().only
    tools: dict[str, Any] = {
        "SciPy": (with_scipy, decay_with_scipy),
        "diffrax": (with_diffrax, decay_with_diffrax),
        "saltus": (with_saltus, decay_with_saltus),
    }
    if diffrax is None:
        del tools["diffrax"]
    jax.config.update("jax_enable_x64", True)
    for case in (c for c in CASES if only in c.name):
        print(f"\n{case.name}. Truth: {case.truth}")
        for tool, (run, _) in tools.items():
            show(tool, attempt(run, case))
    for name, options in ARGUMENTS.items():
        if only in name:
            print(f"\n{name}")
            for tool, (_, run) in tools.items():
                show(tool, attempt(run, **options))


if __name__ == "__main__":
    main()
