"""Values that models read by way of classes of libraries, of other names, and of JAX's caches."""

import collections
import enum
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.interpolate
from jax.lax import cond as choose
from jax.lax import while_loop as go_on

from saltus import HybridSystem, Instant, solve
from saltus.base.captured_values import current


class Settings(collections.UserDict):
    pass


class Choice(enum.Enum):
    first = {"k": 1.0}  # noqa: RUF012


class Spline(scipy.interpolate.CubicSpline):
    def here(self):
        return float(self(0.5))


class Labelled(np.ndarray):
    pass


class Number(float):
    pass


class Meta(type):
    @property
    def k(cls):
        return RATE


class Chosen(metaclass=Meta):
    pass


class Thing:
    k = 1.0


RATE = 1.0
settings = Settings(k=1.0)
spline = Spline([0.0, 1.0], [1.0, 1.0])
labelled = np.ones(1).view(Labelled)
number = Number(1.0)
thing = Thing()
reference = weakref.ref(thing)
kept = jax.checkpoint(lambda x: RATE * x)


def set_rate(value):
    global RATE
    RATE = value


def set_spline(value):
    spline.c[:] *= value / spline.here()


def looped(x):
    return go_on(lambda c: c[0] < 1, lambda c: (c[0] + 1, RATE * c[1]), (0, x))[1]


CASES = {
    "a dictionary's subclass": (lambda x: settings["k"] * x, lambda v: settings.update(k=v)),
    "a member of an enumeration": (
        lambda x: Choice.first.value["k"] * x,
        lambda v: Choice.first.value.update(k=v),
    ),
    "a spline's subclass": (lambda x: spline.here() * x, set_spline),
    "an attribute of an array": (lambda x: labelled.k * x, lambda v: setattr(labelled, "k", v)),
    "an attribute of a number": (lambda x: number.k * x, lambda v: setattr(number, "k", v)),
    "a property of a class": (lambda x: Chosen.k * x, set_rate),
    "a weak reference": (lambda x: reference().k * x, lambda v: setattr(thing, "k", v)),
    "a loop of another name": (looped, set_rate),
    "a condition of another name": (
        lambda x: choose(jnp.all(x > -9), lambda x: RATE * x, lambda x: x, x),
        set_rate,
    ),
    "a function under checkpoint": (lambda x: kept(x), set_rate),
}


@pytest.mark.parametrize("name", CASES)
def test_a_value_that_has_changed_is_seen(name):
    read, change = CASES[name]
    change(1.0)
    system = HybridSystem(lambda now, p: -read(now.x))
    rates = []
    for value in (1.0, 2.0, 1.0):
        change(value)
        rates.append(-np.log(float(solve(system, Instant(t=0.0, x=1.0), None, 1.0).final.x)))
    np.testing.assert_allclose(rates, [1.0, 2.0, 1.0], rtol=1e-5)


def test_attributes_that_nobody_reads_may_change_without_another_trace():
    own = Thing()
    own.calls = 0
    system = HybridSystem(lambda now, p: -own.k * now.x)
    before = current(system)
    own.calls += 1
    assert current(system) is before
    own.k = 2.0
    assert current(system) is not before
