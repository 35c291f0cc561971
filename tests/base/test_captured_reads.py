"""What is looked at for values that may change: all functions of a model, and no more than that."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, solve
from saltus.base.captured_values import MAX_OBJECTS, Reads


def test_every_function_of_a_system_is_looked_at():
    """Guard, reset, rate, output, activity and a tick, each with a number of its own."""
    numbers = {"guard": 1.0, "reset": 0.0, "rate": 1.0, "output": 1.0, "active": 1.0, "tick": 10.0}
    n = types.SimpleNamespace(**numbers)
    system = HybridSystem(
        lambda now, p: 1.0,
        rate=lambda now, p: n.rate,
        output=lambda now, p: n.output * now.x,
        events=[
            Event(
                "cross",
                lambda now, p: now.x - n.guard,
                reset=lambda now, p: now.replace(x=jnp.asarray(n.reset, float)),
                direction="rising",
                active=lambda now, p: n.active > 0,
            ),
            saltus.TimeEvent("tick", saltus.every(lambda now, p: n.tick), terminal=True),
        ],
    )  # fmt: skip

    def run():
        sol = solve(system, Instant(t=0.0, x=0.5), None, 1.0, ts=[0.25])
        return [sol.t[0], sol.y[0], sol.final.x, sol.final.t, sol.integral, sol.events.count]

    assert run() == pytest.approx([0.25, 0.75, 0.5, 1.0, 1.0, 1])
    n.reset, n.guard, n.rate, n.output, n.tick = 3.0, 0.875, 2.0, 4.0, 0.625
    assert run() == pytest.approx([0.25, 3.0, 3.25, 0.625, 1.25, 2])
    n.active = -1.0
    assert run() == pytest.approx([0.25, 3.0, 1.125, 0.625, 1.25, 1])


def test_minus_zero_and_nan_are_values_of_their_own():
    n = types.SimpleNamespace(k=0.0)
    reads = lambda: Reads(lambda: n.k).key
    first = reads()
    n.k = -0.0
    assert reads() != first
    n.k = 0
    assert reads() != first
    n.k = float("nan")
    assert reads() == reads() != first


def test_a_look_ends_in_large_objects_and_in_circles():
    ring: list = [0.0]
    ring.append(ring)
    many = {k: [k] for k in range(2 * MAX_OBJECTS)}
    reads = Reads(lambda: (ring, many))
    assert reads.unchanged()
    ring[0] = 1.0
    assert not reads.unchanged()
    assert Reads(lambda: (ring, many)).key != reads.key


@pytest.mark.slow
def test_a_mechanism_is_assembled_with_the_values_of_its_time():
    """A point on a circle of radius n.r: the nearest one to (3, 0)."""
    n = types.SimpleNamespace(r=1.0, m=1.0)
    mechanism = saltus.multibody.Mechanism(
        mass=lambda now, p: n.m * jnp.ones(2),
        force=lambda now, p: jnp.array([0.0, 0.0]),
        constraint=lambda now, p: {"rod": now.q @ now.q - n.r**2},
    )
    place = lambda: mechanism.start(jnp.array([3.0, 0.0]), assemble=True).x["q"]
    np.testing.assert_allclose(place(), [1.0, 0.0], atol=1e-9)
    n.r = 2.0
    np.testing.assert_allclose(place(), [2.0, 0.0], atol=1e-9)
