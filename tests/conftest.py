"""What many tests look at: answers computed once per run, and a count of compilations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import settings

import saltus
from answers import Answers
from dae_problems import DAE_PROBLEMS
from ivp_testset import IVP_PROBLEMS
from problems import PROBLEMS, problem

settings.register_profile("claims", deadline=None, derandomize=True, max_examples=20)
settings.load_profile("claims")

TIGHT = {
    "tsit5": saltus.Tsit5(rtol=1e-10, atol=1e-10),
    "dopri5": saltus.Dopri5(rtol=1e-10, atol=1e-10),
    "dopri8": saltus.Dopri8(rtol=1e-10, atol=1e-10),
}


_answers: dict[tuple[str, str], Answers] = {}


def answers(name: str, method: str = "tsit5") -> Answers:
    """The answers to a problem, shared by all tests of a run."""
    if (name, method) not in _answers:
        _answers[name, method] = Answers(problem(name), TIGHT[method])
    return _answers[name, method]


@pytest.fixture(name="answers", scope="session")
def answers_fixture():
    return answers


class Compilations:
    """How many programs XLA has compiled in this process."""

    def __init__(self):
        self.total = 0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, duration: float, **_: Any) -> None:
        self.total += event.endswith("backend_compile_duration")

    def during(self, call: Any) -> int:
        """How many of them `call()` needs."""
        before = self.total
        jax.block_until_ready(jax.tree.leaves(call()))
        return self.total - before


_compilations = Compilations()


@pytest.fixture(scope="session")
def compilations():
    return _compilations


@pytest.fixture
def written(tmp_path):
    """Writes text as a table, and says where it is."""

    def write(text):
        path = tmp_path / "run.csv"
        path.write_text(text)
        return path

    return write


# Something of every part: every primitive, transformation and kind of method (tests/versions.sh).
CORE = {
    "test_jax_names", "test_sweeps", "test_sweep_inputs", "test_recompile", "test_unreached_values",
    "test_dae_edges", "test_when", "test_save_times", "test_captured_values", "test_captured_reads",
    "test_loops_in_models", "test_host_programs", "test_guard_outline", "test_program_cache",
}  # fmt: skip


LONG = [
    line.split("::")
    for line in (Path(__file__).parent / "long.txt").read_text().splitlines()
    if not line.startswith("#")
]


def _is_long(item: pytest.Item, names: set[str]) -> bool:
    """Listed as such, or with another explicit method where Tsit5 is there as well."""
    file, name = item.path.stem, item.name
    parameters = "[" + name.partition("[")[2]
    for where, what in LONG:
        if file == where and (parameters if what[0] == "[" else name).startswith(what):
            return True
    twin = re.sub(r"\bdopri[58]\b", "tsit5", name)
    return twin != name and f"{file}::{twin}" in names


def pytest_collection_modifyitems(items):
    names = {f"{item.path.stem}::{item.name}" for item in items}
    for item in items:
        if item.path.stem in CORE:
            item.add_marker(pytest.mark.core)
        if _is_long(item, names):
            item.add_marker(pytest.mark.slow)


MANY_PROGRAMS = 800
_cleared = 0


def pytest_runtest_teardown(item, nextitem):
    """Forget compiled programs now and then: thousands of them fill a small machine's memory."""
    global _cleared
    if _compilations.total - _cleared > MANY_PROGRAMS:
        jax.clear_caches()
        _cleared = _compilations.total


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `-n`, tests of one problem and method share a worker, and so do the other tests of a
    file: nothing is compiled twice."""
    from xdist.scheduler import LoadScopeScheduling

    problems = {*PROBLEMS, *DAE_PROBLEMS, *IVP_PROBLEMS}

    class ByProblem(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            words = test.partition("[")[2].rstrip("]").split("-")
            name = next((w for w in words if w in problems), None)
            method = next((w for w in words if w in TIGHT), "tsit5")
            return file if name is None else f"{name}-{method}"

    return ByProblem(config, log)
