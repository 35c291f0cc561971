"""Another method is a tableau: nothing else in the steppers knows one method from another."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import HybridSystem, Instant, solve
from saltus.methods import METHODS, Rosenbrock
from saltus.methods.method import Stepper
from saltus.methods.tableaus import RosenbrockTableau

# Rodas3 of order 3(2): Sandu et al. (1997), Atmospheric Environment 31:3459, in the form of M43.
RODAS3 = RosenbrockTableau(
    name="Rodas3", order=3, error_order=3, gamma=0.5,
    a=((), (0.0,), (2.0, 0.0), (2.0, 0.0, 1.0)),
    coupling=((), (4.0,), (1.0, -1.0), (1.0, -1.0, -8 / 3)),
    b=(2.0, 0.0, 1.0, 1.0), c=(0.0, 0.0, 1.0, 1.0), d=(0.5, 1.5, 0.0, 0.0),
    error=(0.0, 0.0, 0.0, 1.0), mid=(1.0, 0.0, 0.5, 0.5), mid_slope=(2.0, 0.0, 1.0, 1.0),
    leading=0.1,
)  # fmt: skip


class Rodas3(Rosenbrock):
    @property
    def tableau(self):
        return RODAS3


def end(method):
    """x' = -p x^2 (1 + 0.3 sin t) from 1, with x^2 as an algebraic state."""
    system = HybridSystem(
        lambda now, p: {"x": -p * now.z["y"] * (1 + 0.3 * jnp.sin(now.t))},
        constraint=lambda now, p: {"c": now.z["y"] - now.x["x"] ** 2},
    )
    start = Instant(t=0.0, x={"x": 1.0}, z={"y": 1.0})
    return lambda p: solve(system, start, p, 1.0, method=method).final.x["x"]


def exact(p):
    return 1 / (1 + p * (1 + 0.3 * (1 - jnp.cos(1.0))))


def test_a_rosenbrock_method_is_a_tableau():
    lengths = (0.1, 0.05, 0.025)
    errors = [abs(end(Rodas3(control=saltus.Fixed(h)))(1.3) - exact(1.3)) for h in lengths]
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    np.testing.assert_allclose(orders, 3.0, atol=0.15)
    slope = jax.grad(end(Rodas3(rtol=1e-6, atol=1e-8)))(1.3)
    np.testing.assert_allclose(slope, jax.grad(exact)(1.3), rtol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_a_stepper_is_hashable_and_equal_to_another_of_its_method(name):
    """Programs are compiled for it."""
    one, two = METHODS[name]().stepper, METHODS[name]().stepper
    assert one == two and hash(one) == hash(two) and one.name == name


def test_a_stepper_without_its_verbs_cannot_be_made():
    @dataclasses.dataclass(frozen=True)
    class Half(Stepper):
        def attempt(self, model, par, goal, at, k, h, memory):
            raise NotImplementedError

    with pytest.raises(TypeError, match="abstract"):
        Half()
