"""One step of each method: stages, error, next length."""

from .method import Method
from .radau import Radau5
from .rodas import Rodas5P
from .runge_kutta import Dopri5, Dopri8, Explicit, Tsit5

__all__ = [
    "METHODS",
    "Dopri5",
    "Dopri8",
    "Explicit",
    "Method",
    "Radau5",
    "Rodas5P",
    "Tsit5",
    "default",
]

# All methods by name, in the order in which they are offered.
METHODS: dict[str, type[Method]] = {
    cls.__name__: cls for cls in (Tsit5, Dopri5, Dopri8, Radau5, Rodas5P)
}


def default(constrained: bool) -> Method:
    """What `solve` takes by itself: an explicit method, an implicit one for algebraic equations."""
    return Radau5() if constrained else Tsit5()
