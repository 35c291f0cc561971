"""saltus: differentiable simulation of systems that flow and jump.

Importing saltus switches JAX to 64 bit.
"""

import typing as _typing

import jax as _jax

_jax.config.update("jax_enable_x64", True)

from . import continuous, external, multibody
from .adapters import fully_implicit, implicit_reset, remember
from .animate import animate
from .automaton import Exit, Mode, automaton
from .compare import Comparison, compare
from .control import PI, Fixed
from .costates import Costates, costates
from .dynamics import Linear, Orbit, Saltation, equilibrium, linearise, orbit, saltations
from .estimate import Experiment, Fit, LogNormal, Minimum, Normal, fit, minimise
from .foreign import not_here as _not_here
from .mass import mass_matrix
from .methods import Dopri5, Dopri8, Radau5, Rodas5P, Tsit5
from .probe import Estimate, error_estimate
from .repair import Consistency, consistency, consistent
from .results import (
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
from .scenario import Scenario
from .signals import Ramps, Steps
from .sliding import sliding
from .solution import EventLog, Solution
from .solve import solve
from .system import Event, HybridSystem, Instant, TimeEvent, every, from_function
from .trust import Certificate, certify
from .when import when

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


if not _typing.TYPE_CHECKING:  # which would take every name for one of ours

    def __getattr__(name: str) -> object:
        raise _not_here(name, __all__)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
