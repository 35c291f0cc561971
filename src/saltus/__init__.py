"""saltus: differentiable simulation of systems that flow and jump.

Importing saltus switches JAX to 64 bit, and lets it keep compiled programs in a folder (set the
environment variable SALTUS_CACHE=0 to switch that off). Everything else is imported when it is
first used.
"""

import importlib as _importlib
import sys as _sys
import typing as _typing
from importlib import abc as _abc
from importlib import machinery as _machinery

import jax as _jax

from .base import program_cache as _program_cache

_jax.config.update("jax_enable_x64", True)
_program_cache.choose_cache()

__version__ = "0.1.0"

if _typing.TYPE_CHECKING:
    from . import analysis, continuous, external, multibody
    from . import io as io
    from .analysis import Linear, Orbit, Saltation, equilibrium, linearise, orbit, saltations
    from .analysis.adjoint_variables import Costates, costates
    from .base.results import (
        ConstraintError,
        EventError,
        NonFiniteError,
        Result,
        ReverseOverReverse,
        SolveError,
        SolveInterrupted,
        StepError,
        ZenoError,
    )
    from .estimate import Experiment, Fit, LogNormal, Minimum, Normal, fit, minimise
    from .methods import Dopri5, Dopri8, Radau5, Rodas5P, Tsit5
    from .methods.step_control import PI, Fixed
    from .solution import plotting
    from .solution.animation import animate
    from .solution.event_log import EventLog
    from .solution.solution import Solution
    from .solver.consistent_start import Consistency, consistency, consistent
    from .solver.scenario import Scenario
    from .solver.solving import solve
    from .system import mass_matrices
    from .system.hybrid import Event, HybridSystem, Instant, TimeEvent, every, from_function
    from .system.implicit_systems import fully_implicit
    from .system.inputs import Ramps, Steps
    from .system.kinks import when
    from .system.mass_matrices import mass_matrix
    from .system.modes import Exit, Mode, automaton
    from .system.resets import implicit_reset, remember
    from .system.sliding_modes import sliding
    from .trust import Certificate, certify
    from .trust.comparison import Comparison, compare
    from .trust.error_estimates import Estimate, error_estimate

    dynamics, mass, plot = analysis, mass_matrices, plotting

# Where the public names are.
_HOMES = {
    "analysis": "Linear Orbit Saltation equilibrium linearise orbit saltations",
    "analysis.adjoint_variables": "Costates costates",
    "base.results": "ConstraintError EventError NonFiniteError Result ReverseOverReverse SolveError"
    " SolveInterrupted StepError ZenoError",
    "estimate": "Experiment Fit LogNormal Minimum Normal fit minimise",
    "methods": "Dopri5 Dopri8 Radau5 Rodas5P Tsit5",
    "methods.step_control": "PI Fixed",
    "solution.animation": "animate",
    "solution.event_log": "EventLog",
    "solution.solution": "Solution",
    "solver.consistent_start": "Consistency consistency consistent",
    "solver.scenario": "Scenario",
    "solver.solving": "solve",
    "system.hybrid": "Event HybridSystem Instant TimeEvent every from_function",
    "system.implicit_systems": "fully_implicit",
    "system.inputs": "Ramps Steps",
    "system.kinks": "when",
    "system.mass_matrices": "mass_matrix",
    "system.modes": "Exit Mode automaton",
    "system.resets": "implicit_reset remember",
    "system.sliding_modes": "sliding",
    "trust": "Certificate certify",
    "trust.comparison": "Comparison compare",
    "trust.error_estimates": "Estimate error_estimate",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}
_PACKAGES = (
    "analysis", "base", "cli", "continuous", "estimate", "external", "io", "linalg", "methods",
    "model", "multibody", "simulate", "solution", "solver", "sweep", "system", "trust",
)  # fmt: skip
# Documented short paths to modules that are deeper in the package or named differently.
_ALIASES = {"dynamics": "analysis", "mass": "system.mass_matrices", "plot": "solution.plotting"}

# In the order a user meets them.
__all__ = [
    "HybridSystem", "Instant", "Event", "TimeEvent", "every", "Steps", "Ramps", "when",
    "automaton", "Mode", "Exit", "sliding", "from_function",
    "fully_implicit", "mass_matrix", "implicit_reset", "remember",
    "solve", "Scenario", "consistent", "consistency", "Consistency",
    "Tsit5", "Dopri5", "Dopri8", "Radau5", "Rodas5P", "PI", "Fixed",
    "Solution", "EventLog", "certify", "Certificate", "costates", "Costates", "error_estimate",
    "Estimate", "compare", "Comparison",
    "orbit", "Orbit", "equilibrium", "linearise", "Linear",
    "saltations", "Saltation", "animate",
    "fit", "Fit", "Experiment", "Normal", "LogNormal", "minimise", "Minimum",
    "multibody", "continuous", "external",
    "Result", "SolveError", "EventError", "ZenoError", "StepError", "NonFiniteError",
    "ConstraintError", "SolveInterrupted", "ReverseOverReverse",
]  # fmt: skip


def _load(name: str) -> object:
    if name in _HOME:
        return getattr(_importlib.import_module(f"saltus.{_HOME[name]}"), name)
    if name in _ALIASES or name in _PACKAGES:
        return _importlib.import_module(f"saltus.{name}")
    from .base.foreign_names import not_here

    raise not_here(name, __all__)


class _Aliases(_abc.MetaPathFinder, _abc.Loader):
    """Makes `import saltus.plot` import the module that it stands for."""

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> _machinery.ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        known = package == "saltus" and name in _ALIASES
        return _machinery.ModuleSpec(fullname, self) if known else None

    def create_module(self, spec: _machinery.ModuleSpec) -> None:
        return None  # an empty one, which `exec_module` replaces

    def exec_module(self, module: _typing.Any) -> None:
        home = _ALIASES[module.__name__.rpartition(".")[2]]
        _sys.modules[module.__name__] = _importlib.import_module(f"saltus.{home}")


_sys.meta_path.append(_Aliases())

if not _typing.TYPE_CHECKING:  # type checkers would otherwise accept any name

    def __getattr__(name: str) -> object:
        found = globals()[name] = _load(name)
        return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
