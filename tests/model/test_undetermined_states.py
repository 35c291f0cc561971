"""Algebraic states that a jump leaves without an equation are named, with the equations."""

import jax.numpy as jnp
import pytest

import saltus
from saltus import HybridSystem, Instant, TimeEvent

OPEN = TimeEvent(
    "open",
    lambda now, p: jnp.where(now.t < 0.5, 0.5, jnp.inf),
    reset=lambda now, p: now.replace(d={"closed": 0.0}),
)
CLOSED = {"closed": 1.0}


def stopped(constraint, z, d=CLOSED, **parts):
    flow = lambda now, p: {"u": now.z["a"] - now.x["u"]}
    system = HybridSystem(flow, constraint, **{"events": [OPEN], **parts})
    with pytest.raises(saltus.ConstraintError) as caught:
        start = Instant(t=0.0, x={"u": 1.0}, z=z, d=d)
        saltus.solve(system, start, 0.0, 1.0, method=saltus.Tsit5())
    return str(caught.value)


def network(load=0.0, leak=0.0):
    """A source over a resistor to a, a switch from a to b, a resistor from b to c."""

    def constraint(now, p):
        a, b, c = now.z["a"], now.z["b"], now.z["c"]
        i, j = 10.0 * now.d["closed"] * (a - b), (b - c) / 3.0
        return {"node a": now.x["u"] - 1.5 * a - i, "node b": i - j, "node c": j - load - leak * c}

    return constraint


def single(now, p):
    i = 10.0 * now.d["closed"] * (now.z["a"] - now.z["b"])
    return {"node a": now.x["u"] - 1.5 * now.z["a"] - i, "node b": i}


@pytest.mark.parametrize(
    "method", [saltus.Tsit5(), pytest.param(saltus.Radau5(), marks=pytest.mark.slow)]
)
def test_a_node_that_floats_after_a_switch_opens_is_named_with_what_its_equation_lost(method):
    flow = lambda now, p: {"u": now.z["a"] - now.x["u"]}
    system = HybridSystem(flow, single, events=[OPEN])
    start = Instant(t=0.0, x={"u": 1.0}, z={"a": 0.6, "b": 0.6}, d=CLOSED)
    with pytest.raises(saltus.ConstraintError) as caught:
        saltus.solve(system, start, 0.0, 1.0, method=method)
    text, error = str(caught.value), caught.value
    assert error.result == saltus.Result.singular and error.event == "open" and error.t == 0.5
    assert 'After event "open" the constraint no longer determines' in text
    assert 'No equation determines b. Equation "node b" depends on no algebraic state here.' in text
    assert 'removed b from equation "node a", and a, b from equation "node b"' in text
    assert 'now.z["b"]' in error.advice and "square root" not in text and "nan" not in text


def test_nodes_that_float_together_are_named_together():
    text = stopped(network(), {"a": 0.6, "b": 0.6, "c": 0.6})
    assert "No equation determines b, c, which can move together." in text
    assert 'The equations "node b", "node c" are not independent.' in text
    assert "which none of them can change" not in text  # the residuals can vanish


def test_a_floating_load_is_told_with_what_no_state_can_change():
    text = stopped(network(load=1e-3), {"a": 0.6, "b": 0.6, "c": 0.6})
    assert "No equation determines b, c" in text and "which none of them can change" in text


def test_a_part_that_floats_from_the_start_on_is_named():
    text = stopped(network(), {"a": 0.6, "b": 0.6, "c": 0.6}, d={"closed": 0.0})
    assert "The constraint does not determine the algebraic states here" in text
    assert "No equation determines b, c" in text


def test_arrays_of_states_are_named_by_entry_and_inputs_as_the_cause():
    def constraint(now, p):
        i = now.u * (now.z["v"][0] - now.z["v"][1])
        return {"kirchhoff": jnp.stack([now.x["u"] - now.z["v"][0] - i, i])}

    system = HybridSystem(
        lambda now, p: {"u": now.z["v"][0] - now.x["u"]},
        constraint,
        inputs=saltus.Steps([0.0, 0.5], [1.0, 0.0]),
    )
    start = Instant(t=0.0, x={"u": 1.0}, z={"v": jnp.ones(2)})
    with pytest.raises(saltus.ConstraintError) as caught:
        saltus.solve(system, start, 0.0, 1.0, method=saltus.Tsit5())
    text = str(caught.value)
    assert "After a breakpoint of an input" in text
    assert 'determines v[1]. Equation "kirchhoff[1]" depends' in text
    assert 'now.z["v"][1]' in text


@pytest.mark.slow
def test_a_leak_is_enough_for_the_node_to_have_a_value():
    constraint = network(leak=1e-6)
    flow = lambda now, p: {"u": now.z["a"] - now.x["u"]}
    start = Instant(t=0.0, x={"u": 1.0}, z={"a": 0.6, "b": 0.6, "c": 0.6}, d=CLOSED)
    sol = saltus.solve(HybridSystem(flow, constraint, events=[OPEN]), start, 0.0, 1.0)
    assert abs(sol.final.z["b"]) < 1e-8 and abs(sol.final.z["c"]) < 1e-8
