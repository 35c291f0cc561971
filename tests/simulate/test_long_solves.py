"""A lot of everything: long solves in little memory, many ticks, many guards, many calls."""

import contextlib
import functools
import gc
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import (
    Event,
    Exit,
    Fixed,
    HybridSystem,
    Instant,
    Mode,
    Result,
    TimeEvent,
    Tsit5,
    every,
    solve,
)
from saltus.solver import checkpointed

# -- checkpoints --------------------------------------------------------------------------------
BALL = HybridSystem(
    lambda now, p: {"h": now.x["v"], "v": -p["g"] - 0.01 * now.x["v"] * jnp.abs(now.x["v"])},
    events=[
        Event(
            "bounce",
            guard=lambda now, p: now.x["h"],
            reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]}),
        )
    ],
    rate=lambda now, p: now.x["h"] ** 2,
)
P = {"g": jnp.asarray(9.81), "e": jnp.asarray(0.9)}
START = Instant(t=0.0, x={"h": 5.0, "v": 0.0})
METHOD = Tsit5(rtol=1e-8, atol=1e-8)
# more in one row than a piece can take, then not in order, twice the same, the start and the end
TIMES = jnp.concatenate(
    [jnp.linspace(0.5, 0.51, 80), jnp.array([3.0, 1.0, 3.0, 0.0, 7.0]), jnp.linspace(0.0, 7.0, 30)]
)


def ball(p, pieces=None, ts=None, **options):
    return solve(BALL, START, p, 7.0, ts=ts, method=METHOD, checkpoints=pieces, **options)


def loss(p, ts, pieces):
    sol = ball(p, pieces, ts, max_steps=256)
    weights = jnp.arange(1.0, ts.size + 1)
    value = sol.final.x["h"] + sol.integral + weights @ (sol.y["h"] ** 2 + sol.integrals)
    return value, (sol.final, sol.integral, sol.stats, sol.result, sol.reached, sol.y)


@functools.cache
def answers(pieces):
    """(value, what the solution says), and derivatives by parameters and save times."""
    f = jax.value_and_grad(lambda p, ts: loss(p, ts, pieces), (0, 1), has_aux=True)
    return jax.jit(f)(P, TIMES)


def close(a, b, tolerance):
    for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(u, v, rtol=tolerance, atol=tolerance * np.max(np.abs(u)))


SIZES = [7, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 1000))]


@pytest.mark.parametrize("pieces", SIZES)
def test_a_solve_in_pieces_ends_where_the_whole_does_and_saves_the_same(pieces):
    whole, cut = answers(None)[0], answers(pieces)[0]
    np.testing.assert_array_equal(whole[1][4], np.ones(TIMES.size, bool))
    close(whole, cut, 1e-13)


@pytest.mark.parametrize("pieces", SIZES)
def test_gradients_by_parameters_and_save_times_are_those_of_the_whole(pieces):
    close(answers(None)[1], answers(pieces)[1], 1e-12)


def test_a_second_gradient_in_pieces_compiles_nothing(compilations):
    f = jax.grad(lambda p: ball(p, 20).final.x["h"])
    f(P)
    other = {"g": jnp.asarray(9.7), "e": jnp.asarray(0.88)}
    assert compilations.during(lambda: f(other)) == 0


OSCILLATOR = HybridSystem(
    lambda now, p: {
        "x": now.x["v"],
        "v": p["mu"] * (1 - now.x["x"] ** 2) * now.x["v"] - p["k"] * now.x["x"],
    }
)


def oscillate(p, steps, pieces):
    """Van der Pol's oscillator after so many steps of 0.01."""
    start, method = Instant(t=0.0, x={"x": 2.0, "v": 0.0}), Tsit5(control=Fixed(0.01))
    end = 0.01 * steps
    sol = solve(OSCILLATOR, start, p, end, method=method, max_steps=steps + 100, checkpoints=pieces)
    return sol.final.x["x"]


MU = {"mu": jnp.asarray(1.0), "k": jnp.asarray(1.0)}


def fall(p, pieces):
    """The same ball before it hits the ground: little to compile."""
    flow = lambda now, p: {"h": now.x["v"], "v": -p["g"] - 0.1 * now.x["v"] * jnp.abs(now.x["v"])}
    method = Tsit5(control=Fixed(0.01))
    return solve(
        HybridSystem(flow), START, p, 0.9, method=method, checkpoints=pieces, max_steps=100
    )


BOTH = pytest.mark.parametrize(
    "run", [fall, pytest.param(functools.partial(ball, max_steps=256), marks=pytest.mark.slow)]
)


@BOTH
def test_jacobians_and_hessians_in_pieces_are_those_of_the_whole(run):
    end = lambda p, pieces: run(p, pieces).final.x["h"]
    hessian = lambda p, pieces: jax.jacfwd(jax.grad(end))(p, pieces)
    both = jax.jit(lambda p, n: (jax.jacfwd(end)(p, n), hessian(p, n)), static_argnums=1)
    close(both(P, None), both(P, 20), 1e-12)


@BOTH
def test_lanes_in_pieces_are_lanes_of_the_whole(run):
    lanes = jax.tree.map(lambda v: v * jnp.array([1.0, 0.97, 1.02]), P)
    end = lambda p, pieces: run(p, pieces).final.x["h"]
    f = jax.jit(jax.vmap(jax.value_and_grad(end), (0, None)), static_argnums=1)
    close(f(lanes, None), f(lanes, 20), 1e-12)


@pytest.mark.slow
def test_lanes_with_save_times_in_pieces_are_lanes_of_the_whole():
    lanes = jax.tree.map(lambda v: v * jnp.array([1.0, 0.97, 1.02]), P)
    f = jax.jit(jax.vmap(jax.grad(loss, has_aux=True), (0, None, None)), static_argnums=2)
    close(f(lanes, TIMES, None), f(lanes, TIMES, 20), 1e-12)


@pytest.mark.parametrize("pieces, change, same", [(13, 1e-9, True), (14, 0.0, False)])
def test_a_piece_that_comes_out_otherwise_is_mended_or_has_no_derivative(
    monkeypatch, pieces, change, same
):
    """Step sizes that differ by what rounding does to an error estimate; or another event."""
    again = checkpointed.again

    def otherwise(cut, start, *rest):
        carry = start.carry._replace(h=start.carry.h * (1 + change))
        rows, front = again(cut, start._replace(carry=carry), *rest)
        counts = front.carry.counts
        counts = counts._replace(events=counts.events + (0 if same else 1))
        return rows, front._replace(carry=front.carry._replace(counts=counts))

    start, method = Instant(t=0.0, x={"x": 2.0, "v": 0.0}), Tsit5(rtol=1e-9, atol=1e-9)
    end = lambda p, n: solve(OSCILLATOR, start, p, 9.0, method=method, checkpoints=n).final.x["x"]
    whole = jax.grad(end)(MU, None)
    monkeypatch.setattr(checkpointed, "again", otherwise)
    cut = jax.grad(end)(MU, pieces)
    if same:
        close(whole, cut, 1e-12)
        assert whole["mu"] != cut["mu"]
    else:
        assert np.isnan(cut["mu"])


def test_backward_in_time_pieces_go_backward():
    system = HybridSystem(lambda now, p: -p * now.x)

    def values(p, pieces):
        ts = jnp.array([0.4, 0.9, 0.0, 1.0])
        sol = solve(system, Instant(t=1.0, x=1.0), p, 0.0, ts=ts, checkpoints=pieces, max_steps=64)
        return sol.y, sol.final.x

    f = jax.jit(jax.jacfwd(values), static_argnums=1)
    close(f(0.7, None), f(0.7, 2), 1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("method", [saltus.Radau5(), saltus.Rodas5P()], ids=["radau5", "rodas5p"])
def test_implicit_methods_in_pieces_give_the_same(method):
    from dae_problems import dae_problem

    case = dae_problem("two_rates")
    p = {name: jnp.asarray(value, float) for name, value in case.p.items()}
    ts = jnp.linspace(0.0, float(p["T"]), 50)[::-1]

    def value(p, pieces):
        sol = solve(case.system, case.start(p), p, ts[0], ts=ts, method=method, checkpoints=pieces)
        return jnp.arange(50.0) @ sol.y["x"] ** 2 + sum(jax.tree.leaves(sol.final.x))

    close(jax.value_and_grad(value)(p, None), jax.value_and_grad(value)(p, 7), 1e-12)


def test_what_is_not_kept_says_so():
    sol = ball(P, 20)
    assert sol.stats.events == 5
    assert "5 (not kept)" in repr(sol)
    uses = [
        lambda: sol.events,
        lambda: sol(1.0),
        lambda: sol.at(1.0),
        lambda: sol.course([0.5]),
        lambda: sol.plot(),
        lambda: sol.certificate,
    ]
    for use in uses:
        with pytest.raises(RuntimeError, match=r"checkpoints=\.\.\. does not keep its rows"):
            use()
    with pytest.raises(ValueError, match="checkpoints is 0, expected a whole number"):
        ball(P, 0)


def test_a_failure_in_pieces_has_a_name_a_place_and_no_numbers():
    with pytest.raises(saltus.SolveError, match="too_many_events") as caught:
        ball(P, 20, max_events=3)
    assert caught.value.solution.stats.events == 4
    short = jax.jit(lambda p: ball(p, 20, jnp.array([0.5, 6.0]), max_steps=40))(P)
    assert int(short.result) == int(Result.too_many_steps)
    assert np.isnan(short.final.x["h"])
    assert list(short.reached) == [True, False]
    np.testing.assert_allclose(short.y["h"][0], answers(None)[0][1][5]["h"][0], rtol=1e-13)
    with pytest.raises(saltus.SolveError, match="too_many_steps"):
        short.check()


def test_ten_thousand_steps_in_pieces_take_the_memory_of_a_piece():
    def program(steps, pieces):
        f = jax.jit(jax.value_and_grad(lambda p: oscillate(p, steps, pieces)))
        return f.lower(MU).compile()

    needs = lambda compiled: compiled.memory_analysis().temp_size_in_bytes
    whole, cut, more = program(10_000, None), program(10_000, 100), program(1_000_000, 1000)
    close(whole(MU), cut(MU), 1e-12)
    assert needs(cut) < 0.3 * needs(whole)
    assert needs(more) < 10 * needs(cut)  # a hundred times the steps


@pytest.mark.slow
def test_a_million_steps_in_pieces_cost_at_most_three_times_the_whole():
    import time

    programs = {
        pieces: jax.jit(jax.value_and_grad(lambda p, n=pieces: oscillate(p, 1_000_000, n)))
        for pieces in (None, 1000)
    }
    values, seconds = {}, {pieces: np.inf for pieces in programs}
    for _ in range(5):
        for pieces, f in programs.items():
            begun = time.process_time()
            values[pieces] = jax.block_until_ready(f(MU))
            seconds[pieces] = min(seconds[pieces], time.process_time() - begun)
    close(values[None], values[1000], 1e-11)
    assert seconds[1000] < 3 * seconds[None]


# -- many ticks ---------------------------------------------------------------------------------
DAY = 86_400
THERMOSTAT = {"a": 0.005, "H": 30.0, "hi": 22.0, "lo": 18.0}


def after(t, a, H, hi, lo):
    """The temperature at t by the closed form: cooling from hi to lo, heating back, and again."""
    down, up = np.log(hi / lo) / a, np.log((H - lo) / (H - hi)) / a
    t = t % (down + up)
    return hi * np.exp(-a * t) if t < down else H - (H - lo) * np.exp(-a * (t - down))


@pytest.mark.slow
@pytest.mark.parametrize("period", [1.0, 0.3])
def test_a_day_of_ticks_with_switches_between_them_does_not_drift(period):
    """One second is a number that floats hold exactly, 0.3 is not."""
    p = THERMOSTAT
    cooling = Mode(lambda now, p: -p["a"] * now.x, exits=[Exit(_low, to="heating")])
    heating = Mode(lambda now, p: -p["a"] * (now.x - p["H"]), exits=[Exit(_high, to="cooling")])
    count = lambda now, p: now.replace(d=now.d + 1)
    tick = TimeEvent("tick", every(period), reset=count)
    system = saltus.automaton({"cooling": cooling, "heating": heating}, events=[tick])
    ticks = round(DAY / period)
    start = Instant(t=0.0, x=p["hi"], d=0, mode="cooling")
    room = {"max_steps": 5 * ticks, "max_events": ticks + 5000}
    method = Tsit5(rtol=1e-9, atol=1e-9)
    run = jax.jit(lambda p: solve(system, start, p, DAY, method=method, **room))
    sol = run(p)
    assert int(sol.final.d) == ticks
    times = np.asarray(sol.events.of("tick").t)
    np.testing.assert_array_equal(times, period * np.arange(1, ticks + 1))
    switches = int(sol.stats.events) - ticks
    a, hi, lo, H = p["a"], p["hi"], p["lo"], p["H"]
    cycle = (np.log(hi / lo) + np.log((H - lo) / (H - hi))) / a
    assert abs(switches - 2 * DAY / cycle) < 2
    np.testing.assert_allclose(sol.final.x, after(DAY, **p), rtol=1e-7)


def _low(now, p):
    return now.x - p["lo"]


def _high(now, p):
    return p["hi"] - now.x


# -- many guards --------------------------------------------------------------------------------
LEVELS = np.sort(np.random.default_rng(1).uniform(1.0, 2.0, 1000))
TOGETHER = np.arange(400, 410)
LEVELS[TOGETHER] = LEVELS[400]


def test_ten_of_a_thousand_guards_that_cross_together_fire_in_order():
    system = HybridSystem(
        lambda now, p: {"x": jnp.ones(())},
        events=[Event("level", guard=lambda now, p: now.x["x"] - p, direction="rising")],
    )
    start, room = Instant(t=0.0, x={"x": 0.0}), {"max_steps": 4096, "max_events": 1000}
    log = jax.jit(lambda p: solve(system, start, p, 3.0, **room).events)(jnp.asarray(LEVELS))
    assert int(log.count) == 1000
    np.testing.assert_array_equal(log.member, np.arange(1000))
    np.testing.assert_allclose(log.t, LEVELS, rtol=1e-14)
    assert len(set(np.asarray(log.t)[TOGETHER])) == 1


@pytest.mark.slow
def test_ten_of_fifty_separate_guards_that_cross_together_fire_in_order():
    levels = 1.0 + np.arange(50) / 50
    levels[20:30] = levels[20]

    def event(k):
        return Event(f"level {k}", guard=lambda now, p: now.x["x"] - p[k], direction="rising")

    system = HybridSystem(lambda now, p: {"x": jnp.ones(())}, events=[event(k) for k in range(50)])
    start, room = Instant(t=0.0, x={"x": 0.0}), {"max_steps": 512, "max_events": 64}
    log = jax.jit(lambda p: solve(system, start, p, 3.0, **room).events)(jnp.asarray(levels))
    assert int(log.count) == 50
    np.testing.assert_array_equal(log.which[:50], np.arange(50))
    np.testing.assert_allclose(log.t[:50], levels, rtol=1e-14)
    assert len(set(np.asarray(log.t)[20:30])) == 1


# -- many calls ---------------------------------------------------------------------------------
def test_a_thousand_calls_compile_nothing_and_leave_nothing_behind(compilations):
    """Eager ones, which do most in Python: values, and every tenth time a gradient."""
    value = lambda g: ball({"g": g, "e": P["e"]}).final.x["h"]
    gradient = jax.grad(value)

    def call(k):
        g = jnp.asarray(9.5 + 0.0005 * k)
        return float(gradient(g) if k % 10 == 0 else value(g))

    for k in (0, 1, 999, 990):
        call(k)

    before = left_behind()
    assert compilations.during(lambda: [call(k) for k in range(1000)]) == 0
    more = [b - a for a, b in zip(before, left_behind(), strict=True)]
    assert more[0] < 10  # numbers of iterations to try
    assert more[1] < 1000
    assert more[2] < 20e6


def left_behind():
    """Arrays, Python objects and bytes of this process; no bytes where the system does not say."""
    gc.collect()
    size = 0
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        size = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return len(jax.live_arrays()), len(gc.get_objects()), size
