"""Ctrl-C ends a long solve soon, keeps what was computed, and is never swallowed."""

import os
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from fits import NOISE, scenario, table
from saltus import Fixed, HybridSystem, Instant, Result, SolveError, Tsit5, solve
from saltus.base import resumable
from saltus.base.results import SolveInterrupted
from saltus.estimate import monitor, objective


def slow_flow(now, p):
    """Decay at the rate p, after half a million operations that change nothing."""
    waste = jax.lax.fori_loop(0, 100_000, lambda k, v: 0.5 * v + jnp.sin(v), now.x)
    return -p * now.x + 0.0 * waste


SLOW = HybridSystem(slow_flow)
H = 1e-3
FOREVER = 1000.0  # at this pace, hours


def run(p=1.0, t1=FOREVER, **options):
    method = Tsit5(control=Fixed(H))
    return solve(SLOW, Instant(t=0.0, x=1.0), p, t1, method=method, **options)


@pytest.fixture(autouse=True)
def ctrl_c():
    """Press Ctrl-C so many seconds from now; a process of a test farm may ignore it otherwise."""
    timers, old = [], signal.signal(signal.SIGINT, signal.default_int_handler)

    def press(seconds):
        timers.append(threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)))
        timers[-1].start()

    yield press
    for timer in timers:
        timer.cancel()
        timer.join()
    signal.signal(signal.SIGINT, old)


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Compiling takes its time, too: Ctrl-C is to find the loop at work."""
    run(t1=2 * H)


@pytest.mark.parametrize("options", [{}, {"throw": False}, {"checkpoints": 50}], ids=str)
def test_ctrl_c_ends_a_solve_soon_and_keeps_what_was_computed(ctrl_c, options):
    if "checkpoints" in options:
        run(t1=2 * H, **options)
    begun = time.monotonic()
    ctrl_c(1.5)
    with pytest.raises(SolveInterrupted) as caught:
        run(**options)
    assert time.monotonic() - begun < 30.0
    error = caught.value
    assert isinstance(error, SolveError)
    assert isinstance(error, KeyboardInterrupt)
    assert error.result == Result.interrupted
    assert "stopped by hand" in str(error)
    sol = error.solution
    rows = int(sol.stats.rows)
    assert rows > 3
    np.testing.assert_allclose(error.t, rows * H, rtol=1e-12)
    np.testing.assert_allclose(sol.last.x, np.exp(-error.t), rtol=1e-12)
    assert np.isnan(sol.final.x)


def test_an_interrupted_solve_can_be_gone_on_with(ctrl_c):
    ctrl_c(1.0)
    with pytest.raises(SolveInterrupted) as caught:
        run(ts=jnp.array([5 * H, 999.0]))
    sol = caught.value.solution
    assert list(sol.reached) == [True, False]
    np.testing.assert_allclose(sol.y[0], np.exp(-5 * H), rtol=1e-12)
    end = caught.value.t + 10 * H
    rest = solve(SLOW, sol.last, 1.0, end, method=Tsit5(control=Fixed(H)))
    np.testing.assert_allclose(rest.final.x, np.exp(-end), rtol=1e-12)


def test_ctrl_c_reaches_through_grad_and_vmap(ctrl_c):
    ctrl_c(1.0)
    with pytest.raises(SolveInterrupted):
        jax.grad(lambda p: run(p).final.x)(1.0)
    jax.vmap(lambda p: run(p, 2 * H).final.x)(jnp.ones(2))
    ctrl_c(1.0)
    with pytest.raises(KeyboardInterrupt):  # a batch has no partial solution
        jax.vmap(lambda p: run(p).final.x)(jnp.ones(2))


def test_a_handler_that_raises_nothing_does_not_end_the_solve(ctrl_c):
    pressed = []
    handler = lambda *_: pressed.append(time.monotonic())
    signal.signal(signal.SIGINT, handler)
    ctrl_c(0.3)
    while not pressed:
        sol = run(t1=100 * H)
        np.testing.assert_allclose(sol.final.x, np.exp(-100 * H), rtol=1e-12)
    assert signal.getsignal(signal.SIGINT) is handler


def test_pressed_twice_ctrl_c_does_not_wait():
    with pytest.raises(KeyboardInterrupt), resumable.Passes({}, ()):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not reached")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_solve_and_leave_signals_alone():
    found = []
    thread = threading.Thread(target=lambda: found.append(run(t1=2 * H)))
    thread.start()
    thread.join()
    np.testing.assert_allclose(found[0].final.x, np.exp(-2 * H), rtol=1e-12)


def test_many_short_passes_compute_what_one_does_and_compile_nothing(compilations, monkeypatch):
    system = HybridSystem(lambda now, p: {"x": now.x["v"], "v": -p * now.x["x"]})
    start = Instant(t=0.0, x={"x": 1.0, "v": 0.0})
    once = solve(system, start, 2.0, 20.0)
    again = solve(system, start, 2.0, 20.0)
    monkeypatch.setattr(resumable, "PASS_SECONDS", 1e-9)  # one iteration each
    calls, timed = [], resumable.Program.timed
    monkeypatch.setattr(
        resumable.Program, "timed", lambda *args: (calls.append(args[1]), timed(*args))[1]
    )
    assert compilations.during(lambda: solve(system, start, 2.0, 20.0)) == 0
    assert calls == [1] * int(once.stats.steps + 1)  # and the arrival at the end
    parts = solve(system, start, 2.0, 20.0)
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(parts), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_ordinary_solve_takes_one_pass(monkeypatch):
    run(t1=3 * H)
    calls, timed = [], resumable.Program.timed
    monkeypatch.setattr(
        resumable.Program, "timed", lambda *args: (calls.append(args[1]), timed(*args))[1]
    )
    system = HybridSystem(lambda now, p: -p * now.x)
    for _ in range(3):
        calls.clear()
        solve(system, Instant(t=0.0, x=1.0), 1.0, 1.0)
    assert len(calls) == 1


# -- fits ---------------------------------------------------------------------------------------
def test_a_real_ctrl_c_in_a_fit_returns_the_best_point(monkeypatch):
    each, calls = objective.Objective._each, []

    def impatient(self, kind, u):
        calls.append(u)
        if len(calls) == 12:
            signal.raise_signal(signal.SIGINT)
        return each(self, kind, u)

    monkeypatch.setattr(objective.Objective, "_each", impatient)
    fit = saltus.fit(scenario(), table(), noise={"h": NOISE}, search="local")
    assert fit.result == "interrupted"
    assert fit.loss <= min(h["loss"] for h in fit.history)
    assert fit.loss < fit.history[0]["loss"]


def test_a_real_ctrl_c_in_minimise_returns_the_best_point(monkeypatch):
    iteration = monitor.Monitor.iteration

    def impatient(self, *args):
        iteration(self, *args)
        if len(self.history) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(monitor.Monitor, "iteration", impatient)
    best = saltus.minimise(lambda p: (p["a"] - 3.0) ** 4, {"a": 0.0})
    assert best.result == "interrupted"
    assert best.loss < 81.0
