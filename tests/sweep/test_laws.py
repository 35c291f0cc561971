"""Laws that hold for every trajectory, tried on random ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import saltus
from saltus import Event, HybridSystem, Instant, TimeEvent, every, solve

METHOD = saltus.Tsit5(rtol=1e-9, atol=1e-9)
OPTIONS = {"method": METHOD, "max_steps": 512, "max_events": 64}

heights = st.floats(0.5, 3.0)
speeds = st.floats(-2.0, 2.0)
bounciness = st.floats(0.8, 0.95)  # so that bounces do not pile up before the end
drags = st.floats(0.0, 0.2)


def reflect(height, speed, e):
    return lambda now, p: now.replace(
        x={**now.x, height: now.x[height], speed: -p[e] * now.x[speed]}
    )


def two_balls(order=(0, 1), scale=1.0):
    """Two balls that know nothing of each other; the guards may be scaled and reordered."""
    events = [
        Event("a", guard=lambda now, p: scale * now.x["ha"], reset=reflect("ha", "va", "ea")),
        Event("b", guard=lambda now, p: scale * now.x["hb"], reset=reflect("hb", "vb", "eb")),
    ]
    return HybridSystem(
        flow=lambda now, p: {
            "ha": now.x["va"],
            "va": -9.81 - p["k"] * now.x["va"],
            "hb": now.x["vb"],
            "vb": -9.81 - p["k"] * now.x["vb"],
        },
        rate=lambda now, p: now.x["ha"] * now.x["hb"],
        events=[events[i] for i in order],
    )


def start_of(p, t0=0.0):
    return Instant(t=t0, x={"ha": p["ha"], "va": p["va"], "hb": p["hb"], "vb": 0.0})


parameters = st.fixed_dictionaries(
    {"ha": heights, "hb": heights, "va": speeds, "ea": bounciness, "eb": bounciness, "k": drags}
)


@jax.jit
def reference(p, t0, t1):
    return summary(solve(two_balls(), start_of(p, t0), p, t1, **OPTIONS), t0)


def summary(sol, t0):
    return {
        "x": sol.final.x,
        "integral": sol.integral,
        "a": sol.events.of("a").t - t0,
        "b": sol.events.of("b").t - t0,
        "result": sol.result,
    }


def close(got, expected, tolerance):
    """Equal up to `tolerance` in every leaf, with the same padding."""
    assert int(expected["result"]) == int(saltus.Result.success)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


# The error of one solve is of the size of the tolerance, 1e-9, amplified by 1/speed per bounce:
# two solves with other steps agree to about 1e-6. Two solves with the same steps, shifted or with
# scaled guards, differ by rounding, amplified in the same way.
OTHER_STEPS, SAME_STEPS = 1e-6, 1e-10
END = 1.5  # exact in binary, also when added to 2^30


@given(p=parameters, shift=st.floats(-1000.0, 1000.0))
def test_shifting_time_shifts_the_events_and_nothing_else(p, shift):
    # 1e-10 relative to a shift of 1000 would hide nothing: times have 1e-13 of resolution there
    close(reference(p, shift, shift + END), reference(p, 0.0, END), 1e3 * SAME_STEPS)


@given(p=parameters)
def test_events_are_resolved_a_billion_seconds_after_zero(p):
    """Times are kept as offsets from the start: at 2^30 a float64 resolves 1e-7, the states see
    none of it."""
    far, near = reference(p, 2.0**30, 2.0**30 + END), reference(p, 0.0, END)
    for times in ("a", "b"):
        far.pop(times), near.pop(times)
    close(far, near, SAME_STEPS)


@given(p=parameters, share=st.floats(0.05, 0.95))
def test_a_solve_split_in_two_is_the_whole(p, share):
    got = split(p, share * END)
    close(got, reference(p, 0.0, END), OTHER_STEPS)


@jax.jit
def split(p, middle):
    first = solve(two_balls(), start_of(p), p, middle, **OPTIONS)
    second = solve(two_balls(), first.final, p, END, **OPTIONS)
    merged = {}
    for name in ("a", "b"):
        both = jnp.concatenate([first.events.of(name).t, second.events.of(name).t])
        merged[name] = jnp.sort(both)[: OPTIONS["max_events"]]
    return {
        "x": second.final.x,
        "integral": first.integral + second.integral,
        **merged,
        "result": jnp.maximum(first.result, second.result),
    }


@jax.jit
def permuted(p):
    return summary(solve(two_balls(order=(1, 0)), start_of(p), p, END, **OPTIONS), 0.0)


@given(p=parameters)
@example(p={"ha": 1.0, "hb": 1.0, "va": 0.0, "ea": 0.8, "eb": 0.8, "k": 0.1})  # simultaneous
def test_the_order_in_which_independent_events_are_declared_does_not_matter(p):
    close(permuted(p), reference(p, 0.0, END), SAME_STEPS)


@jax.jit
def scaled(p, scale):
    return summary(solve(two_balls(scale=scale), start_of(p), p, END, **OPTIONS), 0.0)


@given(p=parameters, exponent=st.floats(-8.0, 8.0))
def test_scaling_a_guard_by_a_positive_number_changes_nothing(p, exponent):
    close(scaled(p, 10.0**exponent), reference(p, 0.0, END), SAME_STEPS)


@jax.jit
def batched(lanes):
    return jax.vmap(lambda p: summary(solve(two_balls(), start_of(p), p, END, **OPTIONS), 0.0))(
        lanes
    )


@given(lanes=st.lists(parameters, min_size=4, max_size=4))
def test_vmap_is_a_loop_over_lanes(lanes):
    stacked = {name: jnp.array([p[name] for p in lanes]) for name in lanes[0]}
    got = batched(stacked)
    for i, p in enumerate(lanes):
        close(jax.tree.map(lambda leaf, i=i: leaf[i], got), reference(p, 0.0, END), SAME_STEPS)


@pytest.mark.parametrize("sizes", [(300, 40), (4096, 1024)])
def test_the_size_of_the_buffers_does_not_change_a_bit(sizes):
    p = {"ha": 1.3, "hb": 0.7, "va": 0.4, "ea": 0.8, "eb": 0.7, "k": 0.2}

    def value_and_gradient(max_steps, max_events):
        def f(p):
            sol = solve(
                two_balls(),
                start_of(p),
                p,
                END,
                method=METHOD,
                max_steps=max_steps,
                max_events=max_events,
            )
            return sol.final.x["ha"] + sol.integral + sol.events.of("b").t[1]

        return jax.jit(jax.value_and_grad(f))(p)

    got, expected = value_and_gradient(*sizes), value_and_gradient(512, 64)
    assert jax.tree.leaves(got) == jax.tree.leaves(expected)


def test_the_tape_grows_on_its_own_outside_jit():
    """A solve of thousands of rows without being told a size, and its gradient."""
    system = HybridSystem(flow=lambda now, p: {"x": now.x["v"], "v": -p * now.x["x"]})

    def f(p):
        method = saltus.Tsit5(control=saltus.Fixed(0.005))
        return solve(
            system, Instant(t=0.0, x={"x": 1.0, "v": 0.0}), p, 50.0, method=method
        ).final.x["x"]

    value, gradient = jax.value_and_grad(f)(1.44)  # cos(1.2 t)
    assert abs(value - np.cos(60.0)) < 1e-9
    assert abs(gradient + np.sin(60.0) * 50.0 / 2.4) < 1e-7


@given(period=st.floats(0.05, 0.4), offset=st.floats(0.0, 0.3))
def test_ticks_never_drift(period, offset):
    """Tick k is offset + k period to the last bit but one, however many came before."""
    exact = (10.0 - offset) / period
    assume(abs(exact - round(exact)) > 1e-9)  # not the last tick on the end, up to rounding
    t = ticking(period, offset)
    t = np.asarray(t)[np.isfinite(t)]
    first = 1 if offset == 0.0 else int(np.floor(-offset / period)) + 1
    k = first + np.arange(len(t))
    np.testing.assert_allclose(t, offset + k * period, rtol=4e-16, atol=0)
    assert len(t) == np.floor((10.0 - offset) / period) - first + 1


@jax.jit
def ticking(period, offset):
    system = HybridSystem(
        flow=lambda now, p: {"x": -now.x["x"]},
        events=[TimeEvent("tick", every(lambda now, p: p[0], lambda now, p: p[1]))],
    )
    start = Instant(t=0.0, x={"x": 1.0})
    sol = solve(system, start, (period, offset), 10.0, max_steps=1024, max_events=256)
    return sol.events.t


@given(p=parameters)
def test_running_back_from_the_end_of_a_smooth_piece_returns_to_its_start(p):
    got = there_and_back(p)
    for name, value in start_of(p).x.items():
        np.testing.assert_allclose(got[name], value, atol=1e-6)


@jax.jit
def there_and_back(p):
    free = HybridSystem(flow=two_balls().flow)
    end = solve(free, start_of(p), p, 1.0, **OPTIONS).final
    return solve(free, end, p, 0.0, **OPTIONS).final.x
