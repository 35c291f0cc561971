"""A flow that jumps exactly where a motion starts or ends has no derivative there."""

import jax
import jax.numpy as jnp
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, TimeEvent, solve


def drive(now, p):
    return {"x": jnp.where(now.t > p["a"], 2.0, 1.0) * p["b"], "clock": 1.0}


def wall(now, p):
    return {"x": jnp.where(now.x["x"] > p["a"], 2.0, 1.0) * p["b"], "clock": 1.0}


def wall_at(now, p):
    return {"x": jnp.where(now.x["x"] > p["land"], 2.0, 1.0) * p["b"], "clock": 1.0}


START = {"x": -1.0, "clock": 0.0}
LAND = Event(
    "land",
    lambda now, p: now.x["clock"] - 0.4,
    lambda now, p: now.replace(x={**now.x, "x": p["land"]}),
    direction="rising",
)
SWITCH = TimeEvent("switch", lambda now, p: p["a"])
PLAIN, LANDING = HybridSystem(drive), HybridSystem(wall, events=[LAND])
SWITCHED = HybridSystem(drive, events=[SWITCH])


def loss_of(system, t1=1.0):
    start = Instant(t=0.0, x={"x": 0.0, "clock": 0.0})
    method = saltus.Tsit5(rtol=1e-9, atol=1e-9)
    return lambda p: solve(system, start, p, t1, method=method).final.x["x"]


P = {"a": 0.5, "b": 1.0, "land": 0.9}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    ("system", "a"),
    [(PLAIN, 1.0), (PLAIN, 0.0), (LANDING, 0.9)],
    ids=["at the end", "at the start", "at a landing"],
)
def test_a_jump_exactly_at_an_end_of_a_motion_is_untrusted(system, a, jit):
    level = lambda p: saltus.certify(loss_of(system), p).level
    assert int((jax.jit(level) if jit else level)({**P, "a": a})) == 2


def test_the_reason_names_the_place():
    cert = saltus.certify(loss_of(LANDING), {**P, "a": 0.9})
    assert "exactly at the start, at the end or at a reset" in cert.reasons[0]


def test_a_jump_exactly_before_an_event_at_a_given_time_is_untrusted():
    """The state reaches the jump as the event takes it away; a larger `b` would pass it before."""
    fire = TimeEvent("fire", lambda now, p: p["a"], lambda now, p: now.replace(x=START))
    level = lambda land: saltus.certify(loss_of(HybridSystem(wall_at, events=[fire])), land).level
    assert int(level({**P, "land": 0.5})) == 2
    assert int(level({**P, "land": 0.6})) == 0


@pytest.mark.parametrize(
    ("system", "a"),
    [(PLAIN, 1.5), (PLAIN, -0.5), (LANDING, 3.0), (SWITCHED, 0.5)],
    ids=["after the end", "before the start", "above", "at its own event"],
)
def test_a_jump_elsewhere_or_at_an_event_of_its_own_is_trusted(system, a):
    cert = saltus.certify(loss_of(system), {**P, "a": a})
    assert cert.trusted, cert


def test_a_jump_that_no_parameter_moves_is_no_reason():
    """Friction from rest: the start does not move, so the sign of the speed stays decided."""
    friction = HybridSystem(lambda now, p: {"v": p["f"] - 0.1 * jnp.sign(now.x["v"])})
    loss = lambda p: solve(friction, Instant(t=0.0, x={"v": 1.0}), p, 0.5).final.x["v"]
    assert saltus.certify(loss, {"f": 1.0}).trusted
