"""Names of the levels of trust, and a check cheap enough for every iteration of an optimiser."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ..base.results import Result
from ..base.types import Whole
from ..solution.solution import Solution
from .guard_outline import along
from .margins import measure, nearest, promised

TRUSTED, DEGRADED, UNTRUSTED = range(3)
VERDICTS = ("TRUSTED", "DEGRADED", "UNTRUSTED")


class Judged:
    """A base class for objects with one or several levels of trust; `verdict` is the worst."""

    level: Whole

    @property
    def verdict(self) -> str:
        """TRUSTED, DEGRADED or UNTRUSTED."""
        return VERDICTS[int(np.max(np.asarray(self.level)))]

    @property
    def trusted(self) -> bool:
        return self.verdict == "TRUSTED"


@jax.jit
def quick_level(sol: Solution) -> Whole:
    """The level of trust from touches, grazing events and failures alone (M78).

    The other checks of the certificate (growth of errors, save times, hidden kinks, the order of
    events) are left out.
    """
    found = measure(sol)
    seen, rows, m = found.seen, found.rows, found.margins
    unsure = along((seen.unsure[:-1], seen.unsure[1:]), found.place)
    near = nearest(m.near, unsure)
    own = rows.own & rows.rooted[:, None]
    steep = jnp.where(own & (seen.slope != 0), seen.slope**2, 1.0)
    error = jnp.where(own, jnp.abs(seen.bend) * seen.unsure / steep, 0.0)
    worst = jnp.max(error, initial=0.0)
    touched = (sol.stats.touches > 0) & (sol.on_grazing != "ignore")
    bad = (sol.result > int(Result.terminated)) | touched | ~(near >= 1) | ~(worst <= 0.1)
    rtol = sol.tolerance[0]
    some = ~(near >= 100) | ~(worst <= promised(rtol))
    return jnp.where(bad, UNTRUSTED, jnp.where(some, DEGRADED, TRUSTED)).astype(jnp.int32)
