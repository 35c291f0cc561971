"""The argument `now` of a mechanism's functions: coordinates, velocities and derived values."""

from __future__ import annotations

from collections.abc import Callable

from ..base.types import Tree
from ..system.hybrid import Instant


class Motion:
    """A mechanism at an instant, as passed to its model functions.

    `q` and `v` are the coordinates and their velocities, any pytree; `t`, `d`, `u`, `mode` and
    `member` are as in an `Instant`. Costs, outputs, guards and resets may also read the
    accelerations `a` (like q) and the multipliers `lam` (like the constraint). A reset returns
    `now.replace(v=...)`.
    """

    @property
    def shown(self) -> tuple[str, ...]:
        """The fields that messages show."""
        return ("q", "d", "u") if self._frozen else ("q", "v", "d", "u")

    def __init__(
        self,
        now: Instant,
        solved: Callable[[], tuple[Tree, Tree]] | None = None,
        frozen: str | None = None,
    ):
        self._now, self._solved = now, solved
        self._frozen = frozen  # the name of a function that must not read velocities

    q = property(lambda self: self._now.x["q"], doc="the coordinates")
    t = property(lambda self: self._now.t, doc="time")
    d = property(lambda self: self._now.d, doc="the discrete state")
    u = property(lambda self: self._now.u, doc="the inputs' current values")
    mode = property(lambda self: self._now.mode, doc="the phase, as an integer")
    member = property(lambda self: self._now.member, doc="the member of a family that fired")

    @property
    def v(self) -> Tree:
        """The velocities."""
        if self._frozen is not None:
            raise AttributeError(
                f"{self._frozen} may not read now.v: it is a function of time and coordinates "
                "(constraints of velocities, as of rolling, are not supported)"
            )
        return self._now.x["v"]

    @property
    def a(self) -> Tree:
        """The accelerations."""
        return self._values("a")[0]

    @property
    def lam(self) -> Tree:
        """The multipliers of the constraints."""
        return self._values("lam")[1]

    def _values(self, what: str) -> tuple[Tree, Tree]:
        if self._solved is None:
            raise AttributeError(
                f"now.{what} is not known in mass, force, potential and constraint: it follows "
                "from them. Costs, outputs, guards and resets may use it"
            )
        values = self._solved()
        self._solved = lambda: values
        return values

    def replace(self, **changes: Tree) -> Motion:
        """The same with some of q, v, d and mode replaced, as named in `changes`."""
        unknown = set(changes) - {"q", "v", "d", "mode", "t"}
        if unknown:
            raise TypeError(
                f"now.replace: {', '.join(sorted(unknown))} cannot be replaced. Write "
                "now.replace(v=...), with any of q, v, d, mode."
            )
        x = {name: changes.pop(name, self._now.x[name]) for name in ("q", "v")}
        return Motion(self._now.replace(x=x, **changes))

    @property
    def instant(self) -> Instant:
        return self._now
