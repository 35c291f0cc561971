"""Redundant, singular and contradicting constraints of mechanisms and other mistakes are named."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from mechanisms import (
    BALL,
    PENDULUM,
    hanging,
    pendulum,
    run,
    thrown,
)
from saltus.multibody import Mechanism, contact, ground, stop

TIGHT = saltus.Tsit5(rtol=1e-10, atol=1e-10)


def test_constraints_that_come_to_contradict_each_other_are_no_success():
    torn = Mechanism(
        mass=1.0,
        constraint=lambda now, p: {"a": now.q["x"], "b": now.q["x"] - 0.1 * now.t**2},
    )
    with pytest.warns(UserWarning, match="follow from the others"):
        start = torn.start({"x": 0.0, "y": 0.0})
    with pytest.raises(saltus.SolveError, match="contradict each other"):
        saltus.solve(torn.system(), start, None, 1.0)


# -- redundant and singular constraints -----------------------------------------------------------
def braced(redundant=True):
    """A parallelogram of two cranks with a brace along its coupler: one constraint too many."""

    def constraint(now, p):
        a, b = now.q["a"], now.q["b"]
        one = jnp.array([1.0, 0.0])
        rows = {"A": a @ a - 1.0, "B": (b - one) @ (b - one) - 1.0, "bar": (b - a) @ (b - a) - 1.0}
        if redundant:
            rows["brace"] = 2.0 * rows["bar"] + rows["A"]
        return rows

    return Mechanism(
        mass=1.0,
        potential=lambda now, p: p["g"] * (now.q["a"][1] + now.q["b"][1]),
        constraint=constraint,
    )


def at_angle(mechanism, p, angle):
    tip = jnp.array([np.sin(angle), -np.cos(angle)])
    return mechanism.start({"a": tip, "b": tip + jnp.array([1.0, 0.0])}, None, p)


def test_redundant_constraints_are_named_and_change_nothing():
    p = {"g": 9.81}
    ends = []
    for redundant in (True, False):
        bars = braced(redundant)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            start = at_angle(bars, p, 0.7)
        assert len(caught) == redundant
        assert not redundant or "brace" in str(caught[0].message)
        report = bars.report(start, p)
        assert (report.rank, report.freedom) == (3, 1)
        assert report.redundant == (("brace",) if redundant else ())

        def end(p, bars=bars, start=start):
            return saltus.solve(bars.system(), start, p, 2.0, method=TIGHT).final.x["q"]["a"][0]

        ends.append((end(p), jax.grad(end)(p)["g"]))
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-9)


def test_the_index_2_form_refuses_redundant_constraints_by_name():
    p = {"g": 9.81}
    bars = braced()
    with pytest.warns(UserWarning, match="brace"):
        start = at_angle(bars, p, 0.7)
    with pytest.raises(ValueError, match="brace"):
        saltus.solve(bars.system("index2"), start, p, 1.0)


def test_a_start_near_a_singular_configuration_is_warned_of():
    """The coupler of a parallelogram lies almost along its cranks."""
    bars = braced(redundant=False)
    with pytest.warns(UserWarning, match="singular configuration"):
        start = at_angle(bars, None, np.pi / 2 - 3e-6)
    assert bars.report(start, None).condition > 1e5


# -- what is said when something is wrong ---------------------------------------------------------
def constrained(constraint):
    Mechanism(mass=1.0, constraint=constraint).start({"x": 0.0})


def thrown_together(**more):
    point = lambda now, p: (now.q["x"], now.q["y"])
    Mechanism(mass=1.0, contacts=ground(point=point, **more), impacts="together")


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Mechanism(), "mass or kinetic"),
        (lambda: Mechanism(mass=1.0, phases={"a": ()}), "no constraint"),
        (lambda: Mechanism(mass=1.0, impacts="both"), "one by one"),
        (lambda: contact("c", lambda now, p: 1.0, friction=0.1), "slip"),
        (lambda: contact("c", lambda now, p: 1.0, below=0.1), "to="),
        (lambda: stop("s", lambda now, p: 1.0, at=0.0, side="left"), "above"),
        (lambda: pendulum().system("index3"), "index1"),
        (lambda: pendulum().system("index1", alpha=1.0), "penalty"),
        (lambda: pendulum().system("penalty", alpha=-1.0), "positive"),
        (lambda: contact("c", lambda now, p: 1.0, restitution=-0.5), ">= 0"),
        (lambda: thrown_together(friction=0.1), "together"),
        (lambda: thrown(friction=0.1, normal=lambda now, p: now.q), "cannot be combined"),
        (lambda: constrained(lambda now, p: {"roll": now.v["x"]}), "may not read now.v"),
        (lambda: constrained(lambda now, p: {}), "Leave constraint out"),
        (lambda: run(thrown(), {"x": 0.0, "y": -0.1}, p=BALL), "bodies overlap"),
        (
            lambda: run(
                Mechanism(mass=1.0, contacts=contact("c", lambda now, p: now.q["r"])),
                {"r": jnp.ones(2)},
            ),
            "one number",
        ),
        (
            lambda: run(
                Mechanism(mass=1.0, contacts=ground(point=lambda now, p: now.q["y"])), {"y": 1.0}
            ),
            "two numbers",
        ),
        (lambda: saltus.solve(thrown(), None, None, 1.0), r"mechanism\.system\(\)"),
        (lambda: Mechanism(mass=1.0, contacts=[saltus.Event("e", lambda now, p: 1.0)]), "events="),
        (lambda: Mechanism(mass=1.0, contacts=contact("c", lambda now, p: 1.0, to="a")), "phases"),
        (lambda: hanging(pendulum(), {**PENDULUM, "m": 0.0}, 1.0), None),
        (lambda: pendulum().start({"x": 1.0, "y": 0.0}, None, PENDULUM), "assemble=True"),
        (lambda: pendulum().start({"x": 1.0}, None, PENDULUM), "reads 'y'"),
    ],
)
def test_mistakes_are_named(make, words):
    if words is None:
        start = make()
        with pytest.raises(ValueError, match="inertia"):
            saltus.solve(pendulum().system(), start, {**PENDULUM, "m": 0.0}, 1.0)
        return
    with pytest.raises((TypeError, ValueError), match=words):
        make()


def test_a_reset_that_leaves_the_constraints_is_reported():
    kick = saltus.Event(
        "kick",
        guard=lambda now, p: now.q["x"],
        reset=lambda now, p: now.replace(v={"x": now.v["x"], "y": 1.0}),
    )
    swing = pendulum(events=[kick])
    with pytest.raises(saltus.SolveError, match=r"kick(.|\n)*velocity\.rod") as error:
        saltus.solve(swing.system(), hanging(swing, PENDULUM, 1.0), PENDULUM, 2.0)
    assert error.value.result is saltus.Result.inconsistent


def test_forces_cannot_look_at_what_follows_from_them():
    swing = Mechanism(mass=1.0, force=lambda now, p: {"x": now.a["x"]})
    with pytest.raises(ValueError, match="follows from them"):
        saltus.solve(swing.system(), swing.start({"x": 0.0}, None, None), None, 1.0)
