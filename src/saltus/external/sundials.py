"""A solver of SUNDIALS for the flow from one jump to the next."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ..base.extras import need
from ..model.model import Par
from ..simulate.record import Carry, Knobs
from ..simulate.states import Side
from .compiled import Tools

ROOT_RETURN = 2  # the flag that SUNDIALS returns if a guard is zero
INACTIVE_VALUE = 1.0  # the value of guards that are not active


class Reached(Protocol):
    """What a solver of SUNDIALS returns after a step."""

    t: float
    y: np.ndarray
    status: int
    nfev: int
    i_events: np.ndarray


class Solver(Protocol):
    """A solver of SUNDIALS: `sksundae.ida.IDA` or `sksundae.cvode.CVODE`."""

    def init_step(self, *start: float | np.ndarray) -> Reached: ...

    def step(self, t: float, *, method: str, tstop: float) -> Reached: ...


class Segment:
    """Steps of SUNDIALS from one state on.

    SUNDIALS always runs forward: in s = t, or in s = -t if t decreases."""

    def __init__(self, who: str, tools: Tools, c: Carry, par: Par, knobs: Knobs):
        at = c.at
        self.tools, self.at, self.par = tools, at, par
        self.ida, self.evaluations = who == "IDA", 0
        self.sign = -1 if bool(par.backward) else 1
        self.signs = np.where(np.arange(tools.size) < tools.moving, self.sign, 1)
        sides = np.concatenate([np.zeros(0), *(np.ravel(s) for s in c.sides)])
        self.active = sides != Side.INACTIVE
        values = np.concatenate([np.zeros(0), *(np.ravel(v) for v in c.values)])
        self.rounding = np.where(np.abs(sides) == 1, 0.0, values)  # of guards that are zero
        options = {**_options(tools, c, par, knobs), **self._events()}
        maker = self._ida if self.ida else self._cvode
        self.solver = maker(options)
        y, s = tools.vector(at), self.sign * float(at.tau)
        slopes = np.where(np.arange(tools.size) < tools.moving, self._flow(s, y), 0.0)
        self.h, self.reached = 0.0, s  # the last step, and where it ended
        self.solver.init_step(*((s, y, slopes) if self.ida else (s, y)))

    def step(self, target: float) -> tuple[int, float, np.ndarray, np.ndarray]:
        """One step: SUNDIALS' flag, the time and state at its end, how guards cross zero there."""
        crossed = np.zeros(self.active.size, np.int32)
        end = self.sign * target
        done = self.solver.step(end, method="onestep", tstop=end)
        self.evaluations = int(done.nfev)
        self.h, self.reached = float(done.t) - self.reached, float(done.t)
        if done.status == ROOT_RETURN:
            crossed[:] = np.asarray(done.i_events).ravel()
        return int(done.status), self.sign * float(done.t), np.asarray(done.y).ravel(), crossed

    # -- what SUNDIALS is given ---------------------------------------------------------------
    def _flow(self, s: float, y: np.ndarray) -> np.ndarray:
        rates = np.asarray(self.tools.flow(y, self.sign * s, self.at, self.par))
        return rates * self.signs

    def _jacobian(self, s: float, y: np.ndarray) -> np.ndarray:
        matrix = np.asarray(self.tools.jacobian(y, self.sign * s, self.at, self.par))
        return matrix * self.signs[:, None]

    def _events(self) -> dict[str, Any]:
        if not self.active.any():
            return {}
        tools, at, par, active = self.tools, self.at, self.par, self.active

        def ida(s: float, y: np.ndarray, yp: np.ndarray, out: np.ndarray) -> None:
            values = tools.guards(y, self.sign * s, at, par)
            out[:] = np.where(active, values - self.rounding, INACTIVE_VALUE)

        def cvode(s: float, y: np.ndarray, out: np.ndarray) -> None:
            ida(s, y, y, out)

        fn: Any = ida if self.ida else cvode
        fn.terminal = [True] * active.size
        fn.direction = [
            self.sign * g.direction for g in tools.model.guards for _ in range(g.size or 1)
        ]
        return {"eventsfn": fn, "num_events": active.size}

    def _ida(self, options: dict[str, Any]) -> Solver:
        m, size = self.tools.moving, self.tools.size
        diagonal = np.arange(m)

        def residual(s: float, y: np.ndarray, yp: np.ndarray, res: np.ndarray) -> None:
            res[:] = self._flow(s, y)
            res[:m] -= yp[:m]

        def jacobian(
            s: float, y: np.ndarray, yp: np.ndarray, res: np.ndarray, cj: float, out: np.ndarray
        ) -> None:
            out[:] = self._jacobian(s, y)
            out[diagonal, diagonal] -= cj

        if size > m:
            options["algebraic_idx"] = list(range(m, size))
        module = need("sksundae.ida", "sundials", "external.IDA")
        return module.IDA(residual, jacfn=jacobian, **options)

    def _cvode(self, options: dict[str, Any]) -> Solver:
        def slope(s: float, y: np.ndarray, out: np.ndarray) -> None:
            out[:] = self._flow(s, y)

        def jacobian(s: float, y: np.ndarray, yp: np.ndarray, out: np.ndarray) -> None:
            out[:] = self._jacobian(s, y)

        module = need("sksundae.cvode", "sundials", "external.CVODE")
        return module.CVODE(slope, jacfn=jacobian, **options)


def _options(tools: Tools, c: Carry, par: Par, knobs: Knobs) -> dict[str, Any]:
    """Tolerances and lengths of steps."""
    at = c.at
    leaves = (*tools.model.moving_of(at), *at.z)
    parts = [
        np.broadcast_to(np.asarray(a, float), np.shape(v)).ravel()
        for v, a in zip(leaves, knobs.atol, strict=False)
    ]
    absolute = np.maximum(np.concatenate(parts), 1e-300)
    options: dict[str, Any] = {
        "rtol": float(knobs.rtol), "atol": absolute, "max_num_steps": 100_000
    }  # fmt: skip
    if np.isfinite(float(knobs.max_step)):
        options["max_step"] = float(knobs.max_step)
    if not np.isnan(float(knobs.first_step)):
        options["first_step"] = float(knobs.first_step)
    elif any(np.any(np.asarray(s) == Side.FIRED) for s in c.sides):
        length = float(tools.first_length(par, knobs, c))
        options["first_step"] = length if np.isfinite(length) else 0.0
    return options
