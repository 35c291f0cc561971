"""Strings that go slack: multipliers that pass through zero together, and what follows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from saltus import (
    Event,
    Exit,
    HybridSystem,
    Instant,
    Mode,
    Radau5,
    Result,
    Rodas5P,
    Tsit5,
    automaton,
    solve,
)
from saltus.multibody import Mechanism, contact, jump, release

NODES, WEIGHTS = np.polynomial.legendre.leggauss(40)


def slack_time(p):
    """When the string of a pendulum that starts level, with speed v upwards, has no tension.

    With the angle a, the speed is v^2 - 2 g L sin a, the tension v^2 / L - 3 g sin a.
    """
    end = jnp.arcsin(p["v"] ** 2 / (3 * p["g"] * p["L"]))
    a = 0.5 * end * (NODES + 1)
    speed = jnp.sqrt(p["v"] ** 2 - 2 * p["g"] * p["L"] * jnp.sin(a))
    return 0.5 * end * p["L"] * jnp.sum(WEIGHTS / speed)


def pull(now, p):
    """The index-2 form, multipliers in units of p["unit"]."""
    x, y, vx, vy = now.x
    lam, eta = now.z[0] / p["unit"], now.z[1] / p["unit"]
    return (vx - eta * x, vy - eta * y, -lam * x, -p["g"] - lam * y)


def held(now, p):
    x, y, vx, vy = now.x
    return (x * x + y * y - p["L"] ** 2, x * vx + y * vy)


PENDULUM = HybridSystem(pull, held, (Event("slack", lambda now, p: now.z[0]),), index=2)


def level(p):
    start = (p["L"], 0.0, 0.0, p["v"])
    return Instant(t=0.0, x=start, z=(p["unit"] * (p["v"] / p["L"]) ** 2, 0.0))


def near(count, seed=0):
    rng = np.random.default_rng(seed)
    first = {"g": 9.81, "L": 1.0, "v": 3.0}
    sets = {k: v * rng.uniform(0.9, 1.1, count) for k, v in first.items()}
    return {k: np.concatenate([[first[k]], v]) for k, v in sets.items()}


def slack(p):
    sol = solve(PENDULUM, level(p), p, 0.3)
    return sol.events.t[0], (sol.events.count, sol.final.t)


def test_multipliers_pass_through_zero_together():
    sets = near(40, seed=3)
    for k in range(41):
        p = {name: float(v[k]) for name, v in sets.items()} | {"unit": 10.0 ** (k % 3 * 6 - 6)}
        found, (events, end) = slack(p)
        assert int(events) == 1 and float(end) == 0.3
        np.testing.assert_allclose(found, slack_time(p), rtol=1e-9)


@pytest.mark.slow
def test_multipliers_pass_through_zero_together_whatever_their_units():
    sets = near(200) | {"unit": 10.0 ** np.resize([0, 0, 6, -6], 201)}
    compiled = jax.jit(jax.vmap(jax.value_and_grad(slack, has_aux=True)))
    (found, (events, end)), slopes = compiled(sets)
    exact, exact_slopes = jax.vmap(jax.value_and_grad(slack_time))(sets)
    np.testing.assert_array_equal(events, 1)
    np.testing.assert_array_equal(end, 0.3)
    np.testing.assert_allclose(found, exact, rtol=1e-9)
    for k in ("g", "L", "v"):
        np.testing.assert_allclose(slopes[k], exact_slopes[k], rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("length, v", [(0.51, 2.88), (0.52, 3.07), (0.56, 3.52)])
def test_derivatives_of_a_short_string_are_trusted(length, v):
    """Directions in which a certificate moves the start stay on the constraint."""
    p = {"g": 9.81, "L": length, "v": v, "unit": 1.0}
    end = 1.2 * float(slack_time(p))
    cert = solve(PENDULUM, level(p), p, end, method=Radau5(rtol=1e-9, atol=1e-9)).certificate
    assert cert.trusted, cert
    assert cert.shift < 3e-7


# Both z are zero where x is c, and so is x where c is zero; the second equation rounds beside 1.
CROSSING = HybridSystem(
    lambda now, p: {"x": -1.0},
    lambda now, p: {
        "a": now.z["a"] / p["unit"] + (now.z["a"] / p["unit"]) ** 3 - now.x["x"] + p["c"],
        "b": now.z["b"] / p["unit"]
        - 3.0 * (jnp.exp((now.z["a"] - 20 * now.z["b"]) / p["unit"]) - 1),
    },
    (Event("zero", lambda now, p: now.z["b"]),),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("method", [Radau5(), Rodas5P(), Tsit5()], ids=lambda m: type(m).__name__)
def test_index_1_states_pass_through_zero_together(method):
    sets = {"c": np.linspace(-0.3, 0.3, 61), "unit": 10.0 ** np.resize([0, 6, -6], 61)}

    def zero(p):
        start = Instant(t=0.0, x={"x": 1.0}, z={"a": p["unit"] * 0.6, "b": p["unit"] * 0.03})
        sol = solve(CROSSING, start, p, 2.0, method=method)
        return sol.events.t[0], sol.events.count

    (found, count), slopes = jax.jit(jax.vmap(jax.value_and_grad(zero, has_aux=True)))(sets)
    np.testing.assert_array_equal(count, 1)
    np.testing.assert_allclose(found, 1.0 - sets["c"], rtol=1e-9)
    np.testing.assert_allclose(slopes["c"], -1.0, rtol=1e-9)


@pytest.mark.slow
def test_an_iteration_that_does_not_settle_is_named_where_z_is_well_determined():
    """atan(a) never reaches 2; g_z is the unit matrix where the iteration starts."""
    system = HybridSystem(
        lambda now, p: {"x": 0.0},
        lambda now, p: {"a": jnp.arctan(now.z["a"]) - 2.0, "b": now.z["b"] - now.x["x"]},
    )
    start = Instant(t=0.0, x={"x": 0.0}, z={"a": 0.0, "b": 0.0})
    said = str(solve(system, start, None, 1.0, throw=False).error)
    assert "condition number" not in said
    assert "what did not converge" in said and "At a = 0 the next correction of a is 2" in said


# -- released and caught ------------------------------------------------------------------------
def gap(x, y, p):
    return p["L"] - jnp.sqrt(x**2 + y**2)


def caught_time(p):
    """The string is taut again when the parabola has gone on for 4 vy / g.

    With r, v the state where it goes slack, |r + v s - g s^2 / 2|^2 = L^2, and r v = 0 and
    v^2 = g y there: g^2 s^4 / 4 = g vy s^3.
    """
    sine = p["v"] ** 2 / (3 * p["g"] * p["L"])
    speed = jnp.sqrt(p["v"] ** 2 - 2 * p["g"] * p["L"] * sine)
    return slack_time(p) + 4 * speed * jnp.sqrt(1 - sine**2) / p["g"]


def mechanism(again):
    """A mass on a string, caught by a contact or by a jump that is given."""

    def distance(now, p):
        return gap(now.q["x"], now.q["y"], p)

    if again == "contact":
        caught = contact("catch", distance, phases="flight", to="taut")
    else:
        caught = jump("catch", distance, lambda now, p: now.v, phases="flight", to="taut")
    leaves = release("release", lambda now, p: now.lam["string"], phases="taut", to="flight")
    return Mechanism(
        mass=1.0,
        force=lambda now, p: {"x": 0.0, "y": -p["g"]},
        constraint=lambda now, p: {
            "string": 0.5 * (p["L"] ** 2 - now.q["x"] ** 2 - now.q["y"] ** 2)
        },
        phases={"taut": "string", "flight": ()},
        contacts=(leaves, caught),
    )


def by_mechanism(form, again):
    system = mechanism(again).system(form)

    def start(p):
        x = {"q": {"x": p["L"], "y": 0.0}, "v": {"x": 0.0, "y": p["v"]}}
        return Instant(t=0.0, x=x, mode="taut")

    return system, start


def by_modes(index, when):
    """The same by hand: position and velocity held (index 2), or the acceleration (index 1)."""

    def taut(now, p):
        x, lam, eta = now.x, now.z["lam"], now.z["eta"]
        along = {"x": x["vx"] - eta * x["x"], "y": x["vy"] - eta * x["y"]}
        return {**along, "vx": -lam * x["x"], "vy": -p["g"] - lam * x["y"]}

    def kept(now, p):
        x, y, vx, vy = (now.x[k] for k in ("x", "y", "vx", "vy"))
        if index == 2:
            return {"eta": x * x + y * y - p["L"] ** 2, "lam": x * vx + y * vy}
        pulled = vx**2 + vy**2 - p["g"] * y - now.z["lam"] * (x * x + y * y)
        return {"eta": now.z["eta"], "lam": pulled}

    def plastic(now, p):
        x, y, vx, vy = (now.x[k] for k in ("x", "y", "vx", "vy"))
        out = (x * vx + y * vy) / (x * x + y * y)
        return now.replace(x={"x": x, "y": y, "vx": vx - out * x, "vy": vy - out * y})

    def distance(now, p):
        return gap(now.x["x"], now.x["y"], p)

    system = automaton(
        {
            "taut": Mode(taut, kept, [Exit(lambda now, p: now.z["lam"], "flight", name="release")]),
            "flight": Mode(
                lambda now, p: {"x": now.x["vx"], "y": now.x["vy"], "vx": 0.0, "vy": -p["g"]},
                exits=[Exit(distance, "taut", plastic, name="catch", when=when)],
            ),
        },
        index=index,
    )

    def start(p):
        x = {"x": p["L"], "y": 0.0, "vx": 0.0, "vy": p["v"]}
        return Instant(t=0.0, x=x, z={"lam": (p["v"] / p["L"]) ** 2, "eta": 0.0}, mode="taut")

    return system, start


def check_caught(system, start, speeds):
    """Two events, at their times with their derivatives, for every speed."""

    def times(v):
        p = {"g": 9.81, "L": 1.0, "v": v}
        sol = solve(system, start(p), p, jax.lax.stop_gradient(caught_time(p)) + 0.02)
        return sol.events.t[:2], (sol.events.count, sol.result)

    def exact(v):
        p = {"g": 9.81, "L": 1.0, "v": v}
        return jnp.stack([slack_time(p), caught_time(p)])

    found, (count, result) = jax.jit(jax.vmap(times))(speeds)
    np.testing.assert_array_equal(count, 2)
    np.testing.assert_array_equal(result, int(Result.success))
    np.testing.assert_allclose(found, jax.vmap(exact)(speeds), rtol=2e-9)
    rates = jax.jit(jax.vmap(jax.jacfwd(lambda v: times(v)[0])))(speeds)
    np.testing.assert_allclose(rates, jax.vmap(jax.jacfwd(exact))(speeds), rtol=1e-6)


SPEEDS = np.linspace(2.9, 3.1, 201)


def test_a_string_that_goes_slack_is_not_taut_again_at_once():
    system, start = by_mechanism("index1", "contact")
    for v in SPEEDS[::5]:
        p = {"g": 9.81, "L": 1.0, "v": float(v)}
        sol = solve(system, start(p), p, 0.83)
        assert int(sol.events.count) == 2
        exact = [slack_time(p), caught_time(p)]
        np.testing.assert_allclose(sol.events.t, exact, rtol=2e-9)


@pytest.mark.slow
@pytest.mark.parametrize("again", ["contact", "jump"])
@pytest.mark.parametrize("form", ["index1", "index2"])
def test_a_mechanism_lets_go_and_catches_by_every_way(form, again):
    check_caught(*by_mechanism(form, again), SPEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["level", "edge"])
@pytest.mark.parametrize("index", [1, 2])
def test_modes_with_constraints_let_go_and_catch(index, when):
    check_caught(*by_modes(index, when), SPEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("rtol", [1e-5, 1e-11])
def test_letting_go_does_not_depend_on_tolerances(rtol):
    for index, method in ((1, Rodas5P(rtol=rtol, atol=rtol)), (2, Radau5(rtol=rtol, atol=rtol))):
        system, start = by_modes(index, "level")
        p = {"g": 9.81, "L": 1.0}
        for v in SPEEDS[::20]:
            sol = solve(system, start(p | {"v": v}), p | {"v": v}, 0.9, method=method)
            assert [str(k) for k in sol.events.names][:2] == ["release", "catch"]
            exact = [float(f(p | {"v": v})) for f in (slack_time, caught_time)]
            np.testing.assert_allclose(sol.events.t[:2], exact, rtol=100 * rtol)


@pytest.mark.slow
def test_a_guard_that_comes_into_force_at_rest_and_is_pushed_across_still_fires():
    """gap = gap' = 0 where the mode begins, but gap'' < 0: it happens there, in both readings."""
    fall = Exit(lambda now, p: now.x["h"] - 1.0, "down", name="fall")
    system = automaton(
        {
            "up": Mode(
                lambda now, p: {"h": now.x["v"], "v": -p["g"]},
                exits=[Exit(lambda now, p: now.x["v"], "edge", name="top")],
            ),
            "edge": Mode(lambda now, p: {"h": now.x["v"], "v": -p["g"]}, exits=[fall]),
            "down": Mode(lambda now, p: {"h": 0.0, "v": 0.0}),
        }
    )

    def run(g):
        v = jnp.sqrt(2 * g)  # so that the top is at 1
        sol = solve(system, Instant(t=0.0, x={"h": 0.0, "v": v}, mode="up"), {"g": g}, 3.0)
        return sol.events.t[:2], sol.events.count

    for g in (2.0, 3.7, 5.3, 9.81):
        times, count = run(g)
        assert int(count) == 2
        np.testing.assert_allclose(times, np.sqrt(2 / g), rtol=1e-6)


def test_events_that_fire_in_turn_are_named_with_the_slopes_of_both():
    modes = {
        "a": Mode(
            lambda now, p: {"u": -1.0}, exits=[Exit(lambda now, p: now.x["u"], "b", name="go")]
        ),
        "b": Mode(
            lambda now, p: {"u": -3.0},
            exits=[Exit(lambda now, p: 2 * now.x["u"], "a", name="back")],
        ),
    }  # fmt: skip
    sol = solve(automaton(modes), Instant(t=0.0, x={"u": 1.0}, mode="a"), None, 2.0, throw=False)
    assert sol.result == Result.chattering
    said = str(sol.error)
    assert 'Events "' in said and "fire alternately" in said and "both sides" not in said
    values = sol.error.values
    assert values['slope of "back" after "go"'] == -6.0
    assert values['slope of "go" after "back"'] == -1.0
