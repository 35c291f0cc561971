"""Parts of models given by their names in other tools are answered with ours."""

import copy
import inspect
import pickle

import jax
import pytest

import saltus
from saltus import Event, Exit, HybridSystem, Instant, Mode, TimeEvent, external, multibody
from saltus.base import foreign_parts as parts
from saltus.base.foreign_names import plain

GUARD, FLOW = (lambda now, p: now.x["h"]), (lambda now, p: {"h": -now.x["h"]})

# What people write, and what must be in the answer.
ASKED = {
    HybridSystem: {
        "rhs": "flow=", "f": "from_function(f)", "vector_field": "flow=", "ode": "flow=",
        "y0": "Instant(", "callback": "events=[", "alg": "constraint=", "quad": "rate=",
        "mass_matrix": "saltus.mass_matrix(", "jac_prototype": "sparsity", "p": "solve(system",
        "tspan": "t1", "u": "inputs=", "EventDefinition": "Event(", "locations": "automaton(",
        "rtol": "method=", "flwo": "nearest name is flow",
    },
    Event: {
        "condition": "guard=", "cond_fn": "guard=", "affect": "reset=", "affect_neg": "two events",
        "isterminal": "terminal=True", "EventFcn": "guard=", "CallbackFcn": "reset=",
        "Response": "terminal=True", "rootfind": "leave it out", "save_positions": "sol.events",
        "sign": "direction=", "tstops": "TimeEvent(", "idxs": "leave it out", "to": "Exit(",
    },
    TimeEvent: {"tstops": "next_time=", "period": "every(", "affect": "reset=", "dt": "every("},
    Instant: {"y": "x={", "u0": "x={", "t0": "t=0.0", "z0": "z={", "yp0": "dx={", "p": "solve(",
              "location": "mode="},
    saltus.Tsit5: {"reltol": "rtol=", "AbsTol": "atol=", "dt0": "first_step=", "MaxStep": "",
                   "hmax": "max_step=", "dt": "Fixed(", "maxiters": "max_steps=",
                   "dtmin": "leave it out", "stepsize_controller": "PI(", "scan_kind": "sol(t)"},
    saltus.Dopri5: {"RelTol": "rtol="}, saltus.Dopri8: {"tol": "rtol="},
    saltus.Radau5: {"root_finder": "leave it out", "jac": "sparsity", "order": "another method"},
    saltus.Rodas5P: {"autodiff": "sparsity"},
    external.IDA: {"reltol": "rtol="}, external.CVODE: {"max_num_steps": "max_steps="},
    saltus.PI: {"pcoeff": "beta=", "rtol": "Tsit5(", "factormax": "grow="},
    saltus.Fixed: {"dt0": "saltus.Fixed(h)"},
    Mode: {"rhs": "flow=", "events": "exits=["},
    Exit: {"condition": "guard=", "target": "to=", "affect": "reset="},
    saltus.Steps: {"t": "times=", "y": "values="}, saltus.Ramps: {"fp": "values="},
    saltus.Scenario: {"tspan": "t1=", "y0": "Instant(", "params": "p="},
    saltus.Experiment: {"file": "data come first", "sigma": "sd=", "y0": "start="},
    multibody.Mechanism: {"M": "mass=", "forces": "force=", "lagrangian": "kinetic="},
    saltus.every: {"dt": "every(period)", "phase": "offset"},
    saltus.automaton: {"rhs": "flow=", "condition": ""},
    saltus.sliding: {"callback": "events=["},
    saltus.fully_implicit: {"y0": "Instant("},
    saltus.mass_matrix: {"rhs": "flow=", "alg": "constraint="},
}  # fmt: skip


@pytest.mark.parametrize("made", ASKED, ids=lambda made: made.__name__)
def test_an_argument_of_another_tool_is_answered_with_ours(made):
    for name, answer in ASKED[made].items():
        with pytest.raises(TypeError) as caught:
            made(**{name: None})
        text = str(caught.value)
        assert text.startswith(f"{made.__name__}: there is no argument `{name}`. ")
        assert answer in text


def test_what_is_missing_or_too_much_is_said_by_name():
    with pytest.raises(TypeError, match=r"^HybridSystem: flow is missing. Write HybridSystem\("):
        HybridSystem(events=[])
    with pytest.raises(TypeError, match=r"^Event: guard is missing. Write Event\(name, guard\)"):
        Event("hit")
    with pytest.raises(TypeError, match=r"^Fixed: 3 arguments without names"):
        saltus.Fixed(1.0, 2.0, 3.0)
    with pytest.raises(TypeError, match="nearest name is index"):  # not the hidden `pinned`
        HybridSystem(FLOW, pined=None)


def test_errors_of_the_values_are_not_touched():
    with pytest.raises(TypeError, match="flow is 3, expected a function"):
        HybridSystem(3)
    with pytest.raises(TypeError, match="the name is 5"):
        Event(5, GUARD)


def test_parts_are_still_ordinary_objects():
    event = Event("hit", guard=GUARD)
    assert list(inspect.signature(Event).parameters)[:3] == ["name", "guard", "reset"]
    assert copy.copy(event).name == "hit"
    now = pickle.loads(pickle.dumps(Instant(t=0.0, x={"h": 1.0})))
    assert jax.tree.map(lambda v: 2 * v, now).x["h"] == 2.0
    sol = saltus.solve(HybridSystem(FLOW, events=[event]), now, None, 1.0,
                       method=saltus.Tsit5(rtol=1e-6))  # fmt: skip
    assert sol.result == 0


def test_the_tables_have_no_name_that_is_ours():
    tables = {
        HybridSystem: parts.SYSTEM, Event: parts.EVENT, TimeEvent: parts.TIME_EVENT,
        Instant: parts.INSTANT, saltus.Tsit5: parts.METHOD, Exit: parts.EXIT,
        saltus.PI: parts.STEP_CONTROL, saltus.Steps: parts.SIGNAL,
        saltus.Scenario: parts.SCENARIO, saltus.Experiment: parts.EXPERIMENT,
        multibody.Mechanism: parts.MECHANISM, saltus.every: parts.TICKS,
    }  # fmt: skip
    for made, table in tables.items():
        assert all(name == plain(name) for name in table)
        assert not {plain(name) for name in inspect.signature(made).parameters} & table.keys()
