"""One step of each method: stages, error, next length."""

from .explicit_methods import Dopri5, Dopri8, Tsit5
from .method import Method
from .radau import Radau5
from .rosenbrock import Rosenbrock
from .rosenbrock_methods import Rodas5P
from .runge_kutta import Explicit

__all__ = [
    "METHODS",
    "Dopri5",
    "Dopri8",
    "Explicit",
    "Method",
    "Radau5",
    "Rodas5P",
    "Rosenbrock",
    "Tsit5",
    "default",
]

# All methods by name, in the order in which messages list them.
METHODS: dict[str, type[Method]] = {
    cls.__name__: cls for cls in (Tsit5, Dopri5, Dopri8, Radau5, Rodas5P)
}


def default(constrained: bool) -> Method:
    """The default method of `solve`: explicit, or implicit if there are constraints."""
    return Radau5() if constrained else Tsit5()
