"""Every way a solve can stop has a name, a class, a place, numbers and a remedy."""

import dataclasses
import pickle
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, Mode, Result, SolveError, automaton, solve
from saltus.base.results import (
    KINDS,
    ConstraintError,
    EventError,
    NonFiniteError,
    StepError,
    ZenoError,
)

G = 9.81


class Failure(NamedTuple):
    """A solve that stops early, and what its error has to say."""

    system: Any
    start: Instant
    t1: float
    kind: type
    t: float  # where it stops
    words: str  # of the remedy
    event: str | None = None
    mode: str | None = None
    numbers: tuple = ()  # names beyond those of the states
    options: Any = {}  # noqa: RUF012


def at(**x):
    return Instant(t=0.0, x=x)


def ball(e):
    return HybridSystem(
        flow=lambda now, p: {"h": now.x["v"], "v": -G},
        events=[
            Event(
                "bounce",
                guard=lambda now, p: now.x["h"],
                reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -e * now.x["v"]}),
            )
        ],
    )


FLIP = [
    Event(
        "plus",
        guard=lambda now, p: now.x["u"] - 1.0,
        direction="rising",
        reset=lambda now, p: now.replace(x={"u": -2.0}),
    ),
    Event(
        "minus",
        guard=lambda now, p: now.x["u"] + 1.0,
        direction="falling",
        reset=lambda now, p: now.replace(x={"u": 2.0}),
    ),
]
FOLD = HybridSystem(
    lambda now, p: {"x": 1.0 + 0.0 * now.z["a"]},
    lambda now, p: {"fold": now.z["a"] ** 2 + now.x["x"] - 1},
)
RAIL = HybridSystem(
    lambda now, p: {"x": now.z["a"]}, lambda now, p: {"rail": now.x["x"] - jnp.cos(now.t)}
)
SINK = automaton({"sink": Mode(lambda now, p: {"u": -jnp.sqrt(now.x["u"]) - 1.0})})
DECAY = HybridSystem(flow=lambda now, p: {"u": -now.x["u"]})
POLE = HybridSystem(flow=lambda now, p: {"u": now.x["u"] ** 2})
END = HybridSystem(flow=lambda now, p: {"u": -1 / now.x["u"]})
COARSE = {"max_steps": 20, "method": saltus.Tsit5(control=saltus.Fixed(0.1))}
FALL = np.sqrt(2 / G)

FAILURES = {
    "too_many_steps": Failure(
        DECAY, at(u=1.0), 10.0, StepError, 2.0, "`max_steps=`", numbers=("last step",),
        options=COARSE,
    ),
    "too_many_events": Failure(
        ball(1.0), at(h=1.0, v=0.0), 100.0, EventError, 11 * FALL, "raise `max_events`", "bounce",
        options={"max_events": 5},
    ),
    "non_finite": Failure(
        SINK, at(u=1.0).replace(mode="sink"), 5.0, NonFiniteError, 2 - 2 * np.log(2), "domain",
        mode="sink", numbers=('the flow of x["u"]',),
    ),
    "step_underflow": Failure(
        POLE, at(u=1.0), 5.0, StepError, 1.0, "pole", numbers=("last step",),
    ),
    "newton_failed": Failure(
        END, at(u=1.0), 5.0, StepError, 0.5, "may end here", numbers=("last step",),
        options={"method": saltus.Radau5()},
    ),
    "endless_chain": Failure(
        HybridSystem(flow=lambda now, p: {"u": 1.0}, events=FLIP), at(u=0.0), 5.0, EventError, 1.0,
        "hysteresis", "plus",
    ),
    "events_accumulate": Failure(
        ball(0.5), at(h=1.0, v=0.0), 5.0, ZenoError, 3 * FALL, "terminal event", "bounce",
        numbers=("accumulation time",),
    ),
    "resting_contact": Failure(
        ball(0.8), at(h=0.0, v=0.0), 5.0, EventError, 0.0, "resting mode", "bounce",
        numbers=('guard of "bounce"', 'slope of the guard of "bounce"'),
    ),
    "no_consistent_state": Failure(
        FOLD, at(x=2.0).replace(z={"a": 1.0}), 3.0, ConstraintError, 0.0, "better guess",
        numbers=("residual of fold",),
    ),
    "singular": Failure(
        FOLD, at(x=0.0).replace(z={"a": 1.0}), 3.0, ConstraintError, 1.0, "terminal event",
        numbers=("residual of fold",),
    ),
    "inconsistent": Failure(
        RAIL, at(x=1.5).replace(z={"a": 0.0}), 3.0, ConstraintError, 0.0, "repair=True",
        numbers=("residual of rail",),
    ),
}  # fmt: skip
ELSEWHERE = {"chattering", "grazing", "interrupted"}  # each with tests of its own
ELSEWHERE |= {r.name for r in Result if r.name.startswith("invalid_")}  # test_traced_checks.py
ELSEWHERE |= {"backward_unknown"}  # test_backward.py


def attempt(name, **more):
    case = FAILURES[name]
    return solve(case.system, case.start, None, case.t1, **{**case.options, **more})


@cache
def raised(name):
    """The error of a failure, caught once."""
    with pytest.raises(SolveError) as caught:
        attempt(name)
    return caught.value


def test_every_named_result_has_a_failure_here():
    good = {"running", "success", "terminated"}
    assert {r.name for r in Result} - good - ELSEWHERE == set(FAILURES)
    assert {r.name for r in Result} - good == {r.name for r in KINDS}


@pytest.mark.parametrize("name", list(FAILURES))
def test_the_error_carries_its_place_its_numbers_and_its_remedy(name):
    case, error = FAILURES[name], raised(name)
    assert type(error) is case.kind and error.result is Result[name]
    np.testing.assert_allclose(error.t, case.t, rtol=1e-5, atol=1e-9)
    assert error.mode == case.mode and error.event == case.event
    assert case.words in error.advice
    assert set(error.values) == {*case.start.x, *(case.start.z or ()), *case.numbers}
    for state, value in error.solution.last.x.items():
        assert error.values[state] == float(value)
    assert all(isinstance(v, float) for v in error.values.values())


@pytest.mark.parametrize("name", list(FAILURES))
def test_the_text_is_for_a_person(name):
    """What happened, where, in which mode, after which event, with what values, what to do."""
    error, text = raised(name), str(raised(name))
    assert text.startswith(f"solve stopped at t = {error.t:.10g}") and f": {name}. " in text
    assert error.advice in text and "nan\n" not in text
    assert error.event is None or f'the last "{error.event}"' in text
    assert error.mode is None or f'in mode "{error.mode}"' in text
    shown = text.splitlines()[-1]
    assert shown.startswith("State there: ")
    assert all(f"{state} = " in shown for state in FAILURES[name].start.x)


@pytest.mark.parametrize("name", list(FAILURES))
def test_the_partial_solution_is_kept(name):
    sol = raised(name).solution
    assert sol.result == Result[name]
    assert np.isclose(float(sol.last.t), raised(name).t)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(sol.last.x))
    assert all(np.all(np.isnan(leaf)) for leaf in jax.tree.leaves(sol.final.x))  # never reached
    assert np.all(np.isfinite(sol.events.t))


@pytest.mark.parametrize("name", list(FAILURES))
def test_without_throw_the_error_is_in_the_solution_and_what_was_not_reached_is_nan(name):
    t = FAILURES[name].t
    sol = attempt(name, ts=jnp.array([0.5 * t, t + 0.02]), throw=False)
    assert sol.result == Result[name]
    assert type(sol.error) is FAILURES[name].kind and str(sol.error) == str(raised(name))
    np.testing.assert_array_equal(sol.reached, [True, False])
    for leaf in jax.tree.leaves(sol.y):
        assert np.isfinite(leaf[0]) and np.isnan(leaf[1])


def test_the_zeno_time_is_where_the_bounces_pile_up():
    error = raised("events_accumulate")
    np.testing.assert_allclose(error.values["accumulation time"], 3 * FALL, rtol=1e-9)
    assert error.t < error.values["accumulation time"]


def test_an_event_more_than_was_asked_for_is_told_by_number():
    text = str(raised("too_many_events"))
    assert "and 6 events" in text and "Event number 6 is one more than `max_events` = 5" in text


@pytest.mark.parametrize("name", ["events_accumulate", "resting_contact"])
def test_where_motion_ends_on_a_guard_the_remedy_is_zeno(name):
    assert "`Event(..., zeno=...)`" in raised(name).advice


def test_a_zeno_reset_that_leaves_the_motion_going_is_told_so():
    """Gravity stays on: the ball is put to the floor at rest, and falls again at once."""
    bounce = dataclasses.replace(
        ball(0.5).events[0], zeno=lambda now, p: now.replace(x={"h": 0.0, "v": 0.0})
    )
    system = HybridSystem(lambda now, p: {"h": now.x["v"], "v": -G}, events=[bounce])
    error = solve(system, at(h=1.0, v=0.0), None, 5.0, throw=False).error
    assert error.result is Result.endless_chain and error.event == "bounce"
    np.testing.assert_allclose(error.t, 3 * FALL, rtol=1e-6)
    assert 'zeno` reset of event "bounce" does not stop the motion' in str(error)
    assert "hysteresis" not in str(error) and "resting mode" in error.advice


def test_equations_without_any_solution_are_thought_of():
    error = raised("no_consistent_state")  # a^2 = -1
    assert "no solution at all" in error.advice


def test_the_classes_form_a_family():
    assert issubclass(ZenoError, EventError)
    assert all(issubclass(kind, SolveError) for kind in KINDS.values())
    assert issubclass(SolveError, RuntimeError)


def test_a_good_solve_has_no_error():
    sol = solve(DECAY, at(u=1.0), None, 1.0)
    assert sol.error is None and sol.check() is sol


def test_check_raises_what_throw_would_have_raised():
    with pytest.raises(EventError, match="resting mode"):
        attempt("resting_contact", throw=False).check()


def test_inside_jit_there_is_no_error_yet():
    with pytest.raises(TypeError, match=r"sol\.check\(\)"):
        jax.jit(lambda u: solve(DECAY, at(u=u), None, 1.0).error)(1.0)


@pytest.mark.slow
def test_the_error_of_a_batch_is_that_of_its_first_failure():
    """Lanes of two axes; the second ball of the second row rests on the floor."""
    start = lambda h: Instant(t=0.0, x={"h": h, "v": 0.0})
    lanes = jax.vmap(jax.vmap(lambda h: solve(ball(0.8), start(h), None, 0.1, throw=False)))
    error = lanes(jnp.array([[1.0, 2.0], [3.0, 0.0]])).error
    assert type(error) is EventError and error.result is Result.resting_contact
    assert str(error).startswith("1 of 4 solves stopped early; the first is number 1, 1: solve")
    assert error.t == 0.0 and error.event == "bounce" and error.values["h"] == 0.0
    assert error.solution.result.shape == (2, 2)


def test_an_error_can_be_told_in_other_words_and_sent_to_another_process():
    error = raised("events_accumulate")
    other = error.retold("fit: no luck")
    assert str(other) == "fit: no luck" and type(other) is ZenoError
    assert other.values == error.values and other.solution is error.solution
    sent = pickle.loads(pickle.dumps(error))
    assert type(sent) is ZenoError and str(sent) == str(error) and sent.values == error.values
    assert float(sent.solution.last.t) == float(error.solution.last.t)


def test_every_test_that_the_page_of_hard_cases_names_exists():
    here = Path(__file__).parents[1]
    page = (here.parent / "docs" / "hard_cases.md").read_text()
    for row in (line for line in page.splitlines() if line.startswith("| ")):
        shown = row.rsplit(" | ", 1)[1]
        files = re.findall(r"`(test_\w+\.py)`", shown)
        text = "".join(path.read_text() for name in files for path in here.rglob(name))
        for name in set(re.findall(r"`(\w+)`", shown)):
            assert f"def test_{name}(" in text, name
