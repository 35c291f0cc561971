"""What is said about model functions that work on numbers but cannot be translated."""

import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, Mode, TimeEvent, automaton, every, solve

START = Instant(t=0.0, x={"a": 1.0, "v": jnp.ones(2)}, d={"k": 0})
BOUNCE = 'event "bounce": guard'
REST = {"a": 0.0, "v": jnp.zeros(2)}


def still(now, p):
    return REST


def condition(now, p):
    if now.x["a"] > 0:
        return now.x["a"]
    return p


LINE = f"test_tracing_messages.py:{inspect.getsourcelines(condition)[1] + 1}"
WRITTEN = f'{LINE} (if now.x["a"] > 0:)'


def refused(system, start=START, p=1.0, kind: type = TypeError):
    with pytest.raises(kind) as caught:
        solve(system, start, p, 1.0)
    return caught.value


def causes(error):
    """The errors behind an error."""
    while error is not None:
        yield type(error)
        error = error.__cause__


def event(**parts):
    given = {"guard": lambda now, p: now.t, **parts}
    return HybridSystem(still, events=(Event("bounce", **given),))


def ticking(next_time):
    return HybridSystem(still, events=(TimeEvent("tick", next_time),))


MODES = {"on": Mode(still), "off": Mode(condition)}
PLACES = {  # where `condition` stands, and what the message calls that
    "flow": HybridSystem(condition),
    "rate": HybridSystem(still, rate=condition),
    "output": HybridSystem(still, output=condition),
    "invariant": HybridSystem(still, invariant=condition),
    'event "bounce": guard': event(guard=condition),
    'event "bounce": reset': event(reset=condition),
    'event "bounce": active': event(active=condition),
    'event "bounce", zeno: reset': event(zeno=condition),
    'event "tick": next_time': ticking(condition),
    'mode "off": flow': automaton(MODES),
}


@pytest.mark.parametrize("owner", list(PLACES))
def test_a_python_condition_is_told_with_its_function_and_its_line(owner):
    start = START.replace(mode="on") if "mode" in owner else START
    error = refused(PLACES[owner], start)
    assert str(error).startswith(f"{owner}: a Python condition (if, ")
    assert f"in {WRITTEN}" in str(error)
    assert all(
        word in str(error) for word in ("saltus.when(condition, a, b)", "jnp.where", "event")
    )
    assert jax.errors.TracerBoolConversionError in causes(error)


def test_a_constraint_and_functions_of_parameters_alone_are_told_too():
    with_z = START.replace(z={"i": 0.0})
    rule = HybridSystem(still, lambda now, p: {"ohm": np.sqrt(now.z["i"])})
    assert str(refused(rule, with_z)).startswith("constraint: a NumPy function")
    solved = jax.jit(lambda p: solve(system, START, p, 1.0).final.x["a"])
    system = HybridSystem(still, inputs=lambda p: saltus.Steps([0.5], [0.0, float(p)]))
    with pytest.raises(TypeError, match=r"inputs: a function that needs a plain number .*float"):
        solved(1.0)
    system = ticking(every(lambda now, p: math.exp(p)))
    with pytest.raises(TypeError, match=r'event "tick": period of every: .*Write jnp.exp instead'):
        solved(1.0)


@pytest.mark.parametrize("way", [jax.jit, jax.grad, jax.vmap, lambda f: jax.jit(jax.jacfwd(f))])
def test_the_message_is_the_same_under_transformations(way):
    run = lambda p: solve(HybridSystem(condition), START, p, 1.0).final.x["a"]
    p = jnp.ones(2) if way is jax.vmap else 1.0
    with pytest.raises(TypeError, match="flow: a Python condition") as caught:
        way(run)(p)
    assert str(caught.value) == str(refused(HybridSystem(condition)))


FLOWS = {
    "NumPy function.*Write jnp.cos instead of np.cos ": lambda now, p: np.cos(now.x["a"]),
    "NumPy function.*Write jnp.stack instead of np.stack ": lambda now, p: np.stack([now.x["a"]]),
    r"plain number \(one of math.*jnp.sinh instead of math.sinh": lambda now, p: math.sinh(p),
    r"plain number.*leave float\(...\) out": lambda now, p: float(now.x["a"]),
    r"plain number.*jnp.floor\(...\) instead of int": lambda now, p: int(now.x["a"]),
    "plain number.*a size must not depend": lambda now, p: jnp.arange(now.d["k"]),
    r"condition \(.*bool\).*jnp.maximum for min and max": lambda now, p: max(now.x["a"], 0.0),
    r"condition \(.*bool\).* for and, or and not": lambda now, p: bool(now.t) and p,
    r"index of a list.*jnp.asarray\(values\)\[k\]": lambda now, p: [1.0, 2.0][now.d["k"]],
    "a condition as an index.*jnp.where": lambda now, p: now.x["v"][now.x["v"] > 0],
}


@pytest.mark.parametrize("words", list(FLOWS))
def test_functions_that_need_numbers_are_told_with_what_to_write_instead(words):
    with pytest.raises(TypeError, match=f"^flow: an? .*{words}"):
        solve(HybridSystem(FLOWS[words]), START, 1.0, 1.0)


def test_the_line_is_that_of_the_helper_which_the_function_calls():
    deep = HybridSystem(lambda now, p: {"a": condition(now, p), "v": jnp.zeros(2)})
    assert f"in {WRITTEN}" in str(refused(deep))


def test_other_errors_keep_their_type_and_text_and_say_where_they_arose():
    """The inner function is named where one calls another, and only once."""
    modes = {"on": Mode(still), "off": Mode(lambda now, p: [REST][1])}
    cases = [
        (HybridSystem(lambda now, p: [REST][1]), START, IndexError, "list index out", "flow"),
        (automaton(modes), START.replace(mode="on"), IndexError, "list index", 'mode "off": flow'),
        (event(guard=lambda now, p: 1 / 0), START, ZeroDivisionError, "by zero", BOUNCE),
        (HybridSystem(lambda now, p: now.x["v"] + jnp.ones(3)), START, TypeError, "shapes", "flow"),
    ]  # fmt: skip
    for system, start, kind, text, owner in cases:
        error = refused(system, start, kind=kind)
        assert type(error) is kind and text in str(error)
        notes = [note for note in error.__notes__ if "In the model" in note]
        assert len(notes) == 1 and notes[0].startswith(
            f"In the model: {owner}, at test_tracing_messages.py:"
        )


def test_an_error_of_ours_gets_no_note():
    error = refused(HybridSystem(lambda now, p: {"a": 0.0}), kind=ValueError)
    assert not [note for note in getattr(error, "__notes__", ()) if "In the model" in note]


@pytest.mark.parametrize(
    "flow, words",
    [
        (lambda now, p: now.x["vv"], "flow: it reads 'vv', which is not there. There, now.x is"),
        (lambda now, p: now.xx, "flow: 'Instant' object has no attribute 'xx'. There, now.x is"),
    ],
)
def test_names_that_are_not_there_are_told_beside_those_that_are(flow, words):
    assert str(refused(HybridSystem(flow), kind=ValueError)).startswith(words)
