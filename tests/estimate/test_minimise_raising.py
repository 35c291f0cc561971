"""A loss that raises: what was found is kept, and the reason is in words."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus.base.text import first_line, message_of
from saltus.estimate import minimisation
from saltus.estimate.constrained_loss import Problem


def test_a_loss_that_raises_when_its_extras_are_computed_keeps_the_minimum():
    def loss(p):  # `far` is not needed until the end, where it raises
        far = eqx.error_if(p["a"], p["a"] > 0.5, "too far")
        return (p["a"] - 1.0) ** 2, {"far": far, "held": p["a"] + jnp.arange(2.0)}

    best = saltus.minimise(loss, {"a": 0.0})
    assert best.ok and best.p["a"] == pytest.approx(1.0, abs=1e-6)
    assert best.extras == {}
    assert any("called for extras, so there are none: too far." in note for note in best.notes)
    best = saltus.minimise(loss, {"a": 0.0}, subject_to={"held": (0.0, 5.0)}, optimiser="slsqp")
    assert best.constraints["held"] == pytest.approx([1.0, 2.0], abs=1e-6)


def test_a_loss_that_raises_beside_its_minimum_keeps_it():
    def loss(p):
        x = p["a"]
        x = eqx.error_if(x, (x != 1.0) & (jnp.abs(x - 1.0) < 1e-2), "singular")
        return (x - 1.0) ** 2

    best = saltus.minimise(loss, {"a": 0.0})  # one step of L-BFGS-B ends at 1
    assert best.loss == pytest.approx(0.0, abs=1e-12)
    assert best.ok or "singular" in best.message


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_every_evaluation_after_the_last_search_may_raise(monkeypatch, kind):
    """Also by an interrupt."""
    ran = minimisation._Run.all

    def then_raise(self, *args):
        ran(self, *args)

        def never(*_):
            raise kind("no more")

        monkeypatch.setattr(Problem, "_program", never)

    monkeypatch.setattr(minimisation._Run, "all", then_raise)
    loss = lambda p: ((p["a"] - 1.0) ** 2 * (p["a"] + 1.0) ** 2, {"b": p["a"]})
    best = saltus.minimise(loss, {"a": 0.5}, starts=3, bounds={"a": (-2.0, 2.0)})
    assert best.result == "converged" and best.loss == pytest.approx(0.0, abs=1e-9)
    assert any("raised" in note for note in best.notes)


def test_an_interrupt_before_the_first_evaluation_of_a_start_that_raises_is_no_error(monkeypatch):
    loss = lambda p: eqx.error_if((p["a"] - 1.0) ** 2, p["a"] < -1.5, "below -1.5")
    searched, calls = minimisation._searched, []

    def stop_at_the_second(*args):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return searched(*args)

    monkeypatch.setattr(minimisation, "_searched", stop_at_the_second)
    best = saltus.minimise(loss, {"a": 0.0}, starts=3, bounds={"a": (-2.0, 2.0)})
    assert best.result == "interrupted" and best.loss == pytest.approx(0.0, abs=1e-9)


# -- reasons --------------------------------------------------------------------------------------
def _raised(fn, *args):
    with pytest.raises(Exception) as caught:
        jax.block_until_ready(fn(*args))
    return caught.value


def _no_value(x):
    raise ValueError("no value\nwith details")


def test_the_reason_of_an_error_is_its_first_meaningful_line():
    checked = lambda x: eqx.error_if(x, x < -1, "below -1")
    asked = lambda x: jax.pure_callback(
        _no_value, jax.ShapeDtypeStruct((), float), x, vmap_method="sequential"
    )
    for wrap in (jax.jit, eqx.filter_jit):
        assert first_line(_raised(wrap(checked), jnp.asarray(-2.0))) == "below -1"
        assert first_line(_raised(wrap(asked), jnp.asarray(-2.0))) == "ValueError: no value"
    assert message_of(_raised(jax.jit(asked), jnp.asarray(-2.0))) == (
        "ValueError: no value\nwith details"
    )
    assert first_line(ValueError("\n  one\ntwo")) == "ValueError: one"
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_a_start_that_raises_inside_compiled_code_is_listed_with_its_reason():
    def loss(p):
        x = eqx.error_if(p["a"], p["a"] < -1, "below -1")
        return (x - 1.0) ** 2

    best = saltus.minimise(loss, {"a": 0.0}, starts=8, bounds={"a": (-3.0, 3.0)})
    told = {*best.rejected, *(s.message for s in best.starts if s.result == "raised")}
    assert told == {"below -1"} and np.isfinite(best.loss)
    assert "below -1" in repr(best) and "-----------------" not in str(told)
