"""What saltus uses of JAX beyond its stable interface: found, or done without."""

import re
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from saltus.base import jax_names

HERE = Path(__file__).parents[1]
ROOT = HERE.parent
SOURCE = Path(jax_names.__file__).parents[1]


def test_the_oldest_versions_that_are_tested_are_the_bounds_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = dict(re.findall(r"(\w+)>=([\d.]+)", " ".join(project["dependencies"])))
    pins = dict(
        re.findall(r"^(\w+)==([\d.]+)(?:;.*<.*)?$", (HERE / "oldest.txt").read_text(), re.M)
    )
    assert bounds.keys() == {"jax", "numpy", "equinox", "scipy"}
    for name, bound in bounds.items():
        assert f"{pins[name]}.".startswith(f"{bound}."), (name, bound, pins[name])


def test_private_names_of_jax_are_used_in_one_module_only():
    private = re.compile(r"jax\._src|DO_NOT_USE|get_opaque_trace_state")
    users = {path.name for path in SOURCE.rglob("*.py") if private.search(path.read_text())}
    assert users == {"jax_names.py"}


@pytest.mark.parametrize("name", jax_names.HOMES)
def test_each_name_is_found_in_this_jax(name):
    assert jax_names.found(name) is not None


def test_a_name_that_has_moved_away_is_none(monkeypatch):
    gone = [("jax.no_such_module", "name"), ("jax", "no_such_name")]
    monkeypatch.setitem(jax_names.HOMES, "user_context", gone)
    assert jax_names.found("user_context") is None


def branching(x):
    return jax.lax.cond(x > 0, jnp.sin, lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y * x, x), x)


def test_inner_programs_are_found_without_the_help_of_jax(monkeypatch):
    equations = jax.make_jaxpr(branching)(1.0).jaxpr.eqns
    helped = [len(list(jax_names.inner_jaxprs(eqn.params))) for eqn in equations]
    monkeypatch.setattr(jax_names, "_jaxprs_in_params", None)
    alone = [len(list(jax_names.inner_jaxprs(eqn.params))) for eqn in equations]
    assert alone == helped and max(alone) == 2


@pytest.mark.parametrize("helped", [True, False])
def test_under_jit_is_true_inside_jit_and_nowhere_else(monkeypatch, helped):
    if not helped:
        monkeypatch.setattr(jax_names, "_am_i_under_a_jit", None)
    seen = []

    def look(x):
        seen.append(jax_names.under_jit())
        return x

    look(1.0)
    jax.vmap(look)(jnp.ones(2))
    jax.grad(look)(1.0)
    jax.jit(look)(1.0)
    jax.lax.scan(lambda c, _: (look(c), None), 1.0, length=2)
    assert seen[:3] == [False] * 3 and all(seen[3:]) and len(seen) > 4


def test_a_trace_state_that_cannot_be_had_equals_no_other(monkeypatch):
    assert jax_names.trace_state() == jax_names.trace_state()
    monkeypatch.setattr(jax_names, "_opaque_state", None)
    assert jax_names.trace_state() != jax_names.trace_state()


def test_lines_are_left_out_where_they_cannot_be_kept(monkeypatch):
    monkeypatch.setattr(jax_names, "_user_context", None)
    with jax_names.line_of("any traceback"):
        made = jax.make_jaxpr(jnp.sin)(1.0)
    assert [eqn.primitive.name for eqn in made.eqns] == ["sin"]


@pytest.mark.parametrize("make", [jax_names.context_setting, jax_names._Setting])
def test_compiled_functions_are_traced_anew_for_another_value_of_a_setting(make):
    setting = make(1)
    read = jax.jit(lambda x: x * setting.value)
    assert read(3.0) == 3.0
    with setting(2):
        assert read(3.0) == 6.0
    assert read(3.0) == 3.0
