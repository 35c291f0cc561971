"""saltus: differentiable simulation of systems that flow and jump.

Importing saltus switches JAX to 64 bit.
"""

import sys as _sys
import typing as _typing

import jax as _jax

_jax.config.update("jax_enable_x64", True)

from . import analysis, continuous, external, multibody
from . import io as io
from .analysis import Linear, Orbit, Saltation, equilibrium, linearise, orbit, saltations
from .analysis.adjoint_variables import Costates, costates
from .base.foreign_names import not_here as _not_here
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
from .solution import plotting as _plotting
from .solution.animation import animate
from .solution.event_log import EventLog
from .solution.solution import Solution
from .solver.consistent_start import Consistency, consistency, consistent
from .solver.scenario import Scenario
from .solver.solving import solve
from .system import mass_matrices as _mass_matrices
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

__version__ = "0.1.0"

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


if not _typing.TYPE_CHECKING:  # type checkers would otherwise accept any name

    def __getattr__(name: str) -> object:
        raise _not_here(name, __all__)


# Documented short paths to modules that are deeper in the package or named differently.
dynamics, mass, plot = analysis, _mass_matrices, _plotting
for _path in ("dynamics", "mass", "plot"):
    _sys.modules[f"{__name__}.{_path}"] = globals()[_path]


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
