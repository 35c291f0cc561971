"""What model functions read may change between two calls: the second one answers with it."""

import copy
import dataclasses
import functools
import gc
import pickle
import sys
import time
import types
import weakref
from array import array

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, solve
from saltus.base.captured_values import current

K = 1.0
ARRAY = np.array([1.0, 5.0])
JAX_ARRAY = jnp.array([1.0, 5.0])
TABLE = {"fast": {"k": 1.0}, "names": ["a"]}
LIST = [0.0, [1.0]]
SET = {1.0}
UNUSED = 0.0
PLAIN = array("d", [1.0, 5.0])
VIEWED = {"k": 1.0}
VIEW = types.MappingProxyType(VIEWED)
FRAME = pd.DataFrame({"k": [1.0, 5.0], "other": [0.0, 0.0]})


def bind(name, value=lambda k: k):
    """A change of a variable of this module."""
    return lambda k: globals().__setitem__(name, value(k))


def helper(x):
    return K * x


def outer_helper(x):
    return helper(x)


@jax.jit
def compiled_helper(x):
    return K * x


def with_default(now, p, k=1.0):
    return -k * now.x


def with_mutable_default(now, p, *, k=[1.0]):  # noqa: B006
    return -k[0] * now.x


def with_attribute(now, p):
    return -with_attribute.k * now.x


with_attribute.k = 1.0  # type: ignore[attr-defined]


def importing(now, p):
    from settings_of_a_model import rate  # type: ignore[import-not-found]

    return -rate * now.x


SETTINGS: types.ModuleType = types.ModuleType("settings_of_a_model")
SETTINGS.rate = 1.0
sys.modules["settings_of_a_model"] = SETTINGS


class Own:
    k = 1.0
    hidden = 1.0

    def flow(self, now, p):
        return -self.k * now.x

    def rate(self):
        return self.k

    @property
    def inner(self):
        return self.hidden

    def __call__(self, now, p):
        return -self.k * now.x


class Tagged(list):
    pass


class Slots:
    __slots__ = ("k",)


class Network(eqx.Module):
    k: float

    def __call__(self, x):
        return self.k * x


@dataclasses.dataclass
class Data:
    k: float = 1.0


OWN, SLOTS, DATA, NETWORK = Own(), Slots(), Data(), Network(1.0)
SPACE = types.SimpleNamespace(inner=types.SimpleNamespace(k=1.0))
SLOTS.k = 1.0
TAGGED = Tagged()
TAGGED.k = 1.0  # type: ignore[attr-defined]
PARTIAL = functools.partial(lambda k, now, p, *, m: -k[0] * m * now.x, [1.0], m=1.0)


def closing():
    k = 1.0

    def change(value):
        nonlocal k
        k = value

    return lambda now, p: -k * now.x, change


def wrapped(fn):
    return functools.wraps(fn)(lambda now, p: fn(now, p))


def attribute(thing, name):
    return functools.partial(setattr, thing, name)


def entry(container, key):
    return functools.partial(container.__setitem__, key)


def replaced_helper(k):
    globals()["helper"] = (lambda x: 2.0 * x) if k == 2.0 else (lambda x: 1.0 * x)


def only(k):
    SET.clear()
    SET.add(k)


# Every flow is -k x, and the change sets k.
WAYS = {
    "a global": (lambda now, p: -K * now.x, bind("K")),
    "a cell": closing(),
    "a dictionary in a dictionary": (
        lambda now, p: -TABLE["fast"]["k"] * now.x,
        entry(TABLE["fast"], "k"),
    ),
    "a list in a list": (lambda now, p: -LIST[1][0] * now.x, entry(LIST[1], 0)),
    "a data frame": (
        lambda now, p: -FRAME["k"].iloc[0] * now.x,
        lambda k: entry(FRAME.loc, (0, "k"))(k),
    ),
    "an array of the standard library": (lambda now, p: -PLAIN[0] * now.x, entry(PLAIN, 0)),
    "a read-only view": (lambda now, p: -VIEW["k"] * now.x, entry(VIEWED, "k")),
    "a list of a class of its own": (lambda now, p: -TAGGED.k * now.x, attribute(TAGGED, "k")),
    "a set": (lambda now, p: -max(SET) * now.x, only),
    "an array changed in place": (lambda now, p: -jnp.asarray(ARRAY)[0] * now.x, entry(ARRAY, 0)),
    "another array": (
        lambda now, p: -JAX_ARRAY[0] * now.x,
        bind("JAX_ARRAY", lambda k: jnp.array([k, 5.0])),
    ),
    "an attribute": (lambda now, p: -DATA.k * now.x, attribute(DATA, "k")),
    "an attribute by its name": (lambda now, p: -getattr(DATA, "k") * now.x, attribute(DATA, "k")),  # noqa: B009
    "all attributes": (lambda now, p: -vars(DATA)["k"] * now.x, attribute(DATA, "k")),
    "an attribute that hides that of the class": (
        lambda now, p: -OWN.k * now.x,
        attribute(OWN, "k"),
    ),
    "an attribute of the class": (lambda now, p: -Own.k * now.x, attribute(Own, "k")),
    "a slot": (lambda now, p: -SLOTS.k * now.x, attribute(SLOTS, "k")),
    "a namespace": (lambda now, p: -SPACE.inner.k * now.x, attribute(SPACE.inner, "k")),
    "a method that reads": (lambda now, p: -OWN.rate() * now.x, attribute(OWN, "k")),
    "a property": (lambda now, p: -OWN.inner * now.x, attribute(OWN, "hidden")),
    "a bound method": (OWN.flow, attribute(OWN, "k")),
    "an object that is called": (OWN, attribute(OWN, "k")),
    "an equinox module": (lambda now, p: -NETWORK(now.x), bind("NETWORK", Network)),
    "a module": (lambda now, p: -SETTINGS.rate * now.x, attribute(SETTINGS, "rate")),
    "an import inside": (importing, attribute(SETTINGS, "rate")),
    "a default": (with_default, lambda k: setattr(with_default, "__defaults__", (k,))),
    "a default that is a list": (
        with_mutable_default,
        lambda k: entry(with_mutable_default.__kwdefaults__["k"], 0)(k),
    ),
    "an attribute of the function": (with_attribute, attribute(with_attribute, "k")),
    "a function it calls": (lambda now, p: -outer_helper(now.x), bind("K")),
    "another function": (lambda now, p: -outer_helper(now.x), replaced_helper),
    "a function that was compiled": (lambda now, p: -compiled_helper(now.x), bind("K")),
    "a branch of cond": (lambda now, p: -jax.lax.cond(now.x > 0, helper, helper, now.x), bind("K")),
    "a comprehension": (lambda now, p: -sum([K * now.x for _ in range(1)]), bind("K")),
    "a function inside": (lambda now, p: (lambda x: -K * x)(now.x), bind("K")),
    "a wrapped function": (wrapped(lambda now, p: -K * now.x), bind("K")),
    "a partial's list": (PARTIAL, entry(PARTIAL.args[0], 0)),
    "a partial's keyword": (PARTIAL, entry(PARTIAL.keywords, "m")),
}


@pytest.fixture(autouse=True)
def as_before():
    """What tests change is put back."""
    kept = {name: globals()[name] for name in ("K", "JAX_ARRAY", "NETWORK", "helper", "UNUSED")}
    yield
    globals().update(kept)
    OWN.__dict__.clear()
    Own.k = Own.hidden = 1.0


def decay(system, p=None, start=1.0):
    return solve(system, Instant(t=0.0, x=start), p, 1.0).final.x


@pytest.mark.parametrize("way", WAYS)
def test_a_value_that_a_flow_reads_may_change(way, compilations):
    """x' = -k x: exp(-k). With an old value again, the old program is found."""
    flow, change = WAYS[way]
    system = HybridSystem(flow)
    assert decay(system) == pytest.approx(np.exp(-1.0), rel=1e-7)
    change(2.0)
    try:
        assert decay(system) == pytest.approx(np.exp(-2.0), rel=1e-7)
    finally:
        change(1.0)
    assert compilations.during(lambda: decay(system)) == 0
    assert decay(system) == pytest.approx(np.exp(-1.0), rel=1e-7)


def test_the_gradient_follows_too():
    system = HybridSystem(lambda now, p: -K * p * now.x)
    slope = jax.grad(lambda p: decay(system, p))
    for k in (1.0, 3.0):
        bind("K")(k)
        assert slope(0.5) == pytest.approx(-k * np.exp(-0.5 * k), rel=1e-6)


@pytest.mark.slow
def test_modes_and_marked_kinks_are_looked_at():
    n = types.SimpleNamespace(k=1.0, level=0.5)
    modes = {
        "a": saltus.Mode(
            flow=lambda now, p: n.k,
            exits=[saltus.Exit(lambda now, p: now.x - n.level, to="b", direction="rising")],
        ),
        "b": saltus.Mode(flow=lambda now, p: -n.k),
    }
    system = saltus.automaton(modes)
    end = lambda: solve(system, Instant(t=0.0, x=0.0, mode="a"), None, 1.0).final.x
    assert end() == pytest.approx(0.0, abs=1e-9)
    n.level = 0.75
    assert end() == pytest.approx(0.5)
    kinked = HybridSystem(lambda now, p: saltus.when(now.x < n.level, n.k, 2.0))
    assert decay(kinked, start=0.0) == pytest.approx(0.75 + 2 * 0.25)
    n.level, n.k = 0.5, 0.5
    assert decay(kinked, start=0.0) == pytest.approx(0.5)
    n.level = 0.25
    assert decay(kinked, start=0.0) == pytest.approx(0.25 + 2 * 0.5)


def test_an_equal_value_or_an_unused_one_changes_nothing(compilations):
    system = HybridSystem(lambda now, p: -(K + ARRAY[1] - 5.0) * now.x)
    decay(system)
    model = system._built.copy()
    bind("K")(float("1.0"))
    bind("UNUSED")(7.0)
    ARRAY[1] = 5.0
    assert compilations.during(lambda: decay(system)) == 0
    assert system._built == model


def test_a_look_at_what_a_model_reads_takes_microseconds():
    """Of a ball with three functions, modules and a global: a hundred times less than a solve."""
    bounce = Event(
        "bounce",
        guard=lambda now, p: now.x["h"],
        reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -K * now.x["v"]}),
    )
    system = HybridSystem(lambda now, p: {"h": now.x["v"], "v": -jnp.exp(K)}, events=[bounce])
    first = current(system)

    def seconds():
        start = time.process_time()
        for _ in range(1000):
            current(system)
        return (time.process_time() - start) / 1000

    assert min(seconds() for _ in range(5)) < 20e-6
    assert current(system) is first


def test_systems_that_their_own_functions_reach_are_collected():
    class Holder:
        def __init__(self):
            self.system = HybridSystem(self.flow)

        def flow(self, now, p):
            return -now.x if self.system is not None else now.x

    holder = Holder()
    decay(holder.system)
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


def flow_by_name(now, p):
    return -K * now.x


def test_a_system_that_was_solved_can_be_copied():
    system = HybridSystem(flow_by_name)
    decay(system)
    for twin in (copy.deepcopy(system), pickle.loads(pickle.dumps(system))):
        assert decay(twin) == decay(system)


def test_inside_jit_a_program_keeps_what_it_read():
    """As everywhere in JAX; the guide says so."""
    system = HybridSystem(lambda now, p: -K * now.x)
    compiled = jax.jit(lambda x: decay(system, start=x))
    assert compiled(1.0) == pytest.approx(np.exp(-1.0))
    bind("K")(2.0)
    assert compiled(1.0) == pytest.approx(np.exp(-1.0))
    assert jax.jit(lambda x: decay(system, start=x))(1.0) == pytest.approx(np.exp(-2.0))


def test_a_fit_uses_the_values_of_its_time():
    """x' = -K p x with data exp(-2 t): p = 2 / K."""
    system = HybridSystem(lambda now, p: {"x": -K * p["a"] * now.x["x"]})
    t = np.linspace(0.1, 1.0, 6)
    data = {"t": t, "x": np.exp(-2 * t)}
    start = Instant(t=0.0, x={"x": 1.0})
    fitted = lambda: saltus.fit(system, data, {"a": 1.5}, start=start, progress=False).p["a"]
    assert fitted() == pytest.approx(2.0, rel=1e-5)
    bind("K")(2.0)
    assert fitted() == pytest.approx(1.0, rel=1e-5)
