"""One solve by SUNDIALS: from jump to jump, every internal step a row of the record."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..firing import resolution
from ..locate import FIRED
from ..loop import Spec, blank_rows, write_end
from ..model import At, Par
from ..record import FLOW, Carry, Knobs, Rows
from ..results import Result
from ..simulate import Outcome
from .landing import Step, failure
from .sundials import ROOT, Segment
from .tools import concrete, stacked, tools

HAIR = 32  # times the resolution of time: too short a way for a solver


class Run:
    """The state of one solve: that of the loop, and the rows so far."""

    def __init__(self, who: str, spec: Spec, at: At, par: Par, knobs: Knobs):
        if who == "CVODE" and spec.model.constraint is not None:
            raise ValueError(
                "CVODE: the system has a constraint. Write method=saltus.external.IDA()."
            )
        self.who, self.spec = who, spec
        at, self.par, self.knobs = concrete((at, par, knobs), who)
        self.tools = tools(spec, at)
        self.sign = -1.0 if bool(self.par.backward) else 1.0
        self.carry: Carry = self.tools.begin(at, self.par, self.knobs)
        self.rows: list[Rows] = []

    def outcome(self) -> Outcome:
        """Run to the end, and hand on what was recorded."""
        try:
            while int(self.carry.code) == Result.running:
                self._iterate()
        except KeyboardInterrupt:
            self._stop(Result.interrupted)
        c = self.carry
        return Outcome(c.at, c.counts, c.pace, c.code, self._recorded())

    def _iterate(self) -> None:
        """A jump that is due, or the flow up to the next one."""
        if int(self.carry.jump) < 0:
            self._flow()
        elif bool(self.carry.rooted):
            self._keep(*self.tools.arrive(self.par, self.carry))
        else:
            self._keep(*self.tools.fire(self.par, self.knobs, self.carry))

    def _keep(self, carry: Carry, row: Rows) -> None:
        self.carry = carry
        self.rows.append(row)

    def _stop(self, why: Result) -> None:
        self.carry = self.carry._replace(code=jnp.asarray(int(why), jnp.int32))

    # -- flow ---------------------------------------------------------------------------------
    def _flow(self) -> None:
        """Steps up to the next prescribed time, or to a guard."""
        target = float(self.carry.target)
        if self._is_there(target) or self._has_settled():
            return
        segment = Segment(self.who, self.tools, self.carry, self.par, self.knobs)
        begun, first = self.carry.counts.evaluations, float(self.carry.at.tau)
        while not self._decided():
            flag, t, y, crossed = segment.step(target)
            counted = self.carry.counts._replace(evaluations=begun + segment.evaluations)
            self.carry = self.carry._replace(counts=counted)
            if flag < 0 or self._stands_still(flag, t):
                self._stop(failure(self.spec, self.par, self.knobs, self.carry, flag))
            elif not np.all(np.isfinite(y)):
                self._stop(Result.non_finite)
            elif int(self.carry.counts.steps) >= int(self.knobs.max_steps):
                self._stop(Result.too_many_steps)
            elif float(self.carry.at.tau) == first and self._starts_with_an_event(t, y):
                return
            else:
                self._step_to(t, y, self._meant(crossed, flag, t), target)

    def _stands_still(self, flag: int, t: float) -> bool:
        return flag != ROOT and abs(t - float(self.carry.at.tau)) <= float(resolution(t))

    def _is_there(self, target: float) -> bool:
        """Goes a way that is too short for a solver along the flow."""
        at = self.carry.at
        way = target - float(at.tau)
        if abs(way) > HAIR * float(resolution(at.tau)):
            return False
        moving = tuple(v + way * k for v, k in zip(at.w, self.carry.k1, strict=False))
        there = At(jnp.asarray(target), (*moving, *at.w[len(moving) :]), at.i, at.z)
        crossed = np.zeros(sum(g.size or 1 for g in self.spec.model.guards), np.int32)
        step = Step(there, self.tools.each(crossed), jnp.asarray(True))
        self._keep(*self.tools.landed(self.par, self.carry, step))
        return True

    def _has_settled(self) -> bool:
        """Whether a contact has come to rest, as far as the solver can tell."""
        if not any(np.any(np.asarray(s) == FIRED) for s in self.carry.sides):
            return False
        self.carry = self.tools.settled(self.par, self.knobs, self.carry)
        return self._decided()

    def _decided(self) -> bool:
        return int(self.carry.jump) >= 0 or int(self.carry.code) != Result.running

    def _starts_with_an_event(self, t: float, y: np.ndarray) -> bool:
        """Whether a guard that is zero fires before the first step, which then was in vain."""
        if not self.spec.model.guards:
            return False
        there = self.tools.state(jnp.asarray(t), jnp.asarray(y), self.carry.at)
        self.carry = self.tools.left(self.par, self.carry, there)
        return self._decided()

    def _meant(self, crossed: np.ndarray, flag: int, t: float) -> np.ndarray:
        """Crossings without those that a guard that has just fired has by rounding."""
        if flag != ROOT:
            return crossed
        near = abs(t - float(self.carry.at.tau)) <= HAIR * float(resolution(t))
        at_zero = np.concatenate([np.ravel(np.abs(s) != 1) for s in self.carry.sides])
        return np.where(near & at_zero, 0, crossed)

    def _step_to(self, t: float, y: np.ndarray, crossed: np.ndarray, target: float) -> None:
        there = self.sign * (target - t) <= float(resolution(t))
        tau = jnp.asarray(target if there else t)
        end = self.tools.state(tau, jnp.asarray(y), self.carry.at)
        step = Step(end, self.tools.each(crossed), jnp.asarray(there))
        self._keep(*self.tools.landed(self.par, self.carry, step))

    # -- the record ---------------------------------------------------------------------------
    def _recorded(self) -> Rows:
        """All rows, with what the mesh rule needs for each."""
        at, model = self.carry.at, self.spec.model
        n = len(self.rows)
        if n == 0:
            rows = blank_rows(self.spec, at, 1)
        else:
            size = 1 << n.bit_length()
            rows = stacked([r._replace(aux=()) for r in self.rows], size)
            rows = rows._replace(kind=rows.kind.astype(model.kind_dtype), aux=())
            steps = (rows.kind == FLOW) & (rows.h != 0)
            aux = _mesh_rule(self.spec)(
                At(rows.tau, rows.w, rows.i, rows.z), rows.h, steps, self.par
            )
            rows = rows._replace(aux=aux)
        return write_end(rows, jnp.asarray(n, jnp.int32), at)


@functools.lru_cache(maxsize=64)
def _mesh_rule(spec: Spec) -> Any:
    """What the rule on the mesh needs for every row: its stages, found from where it starts."""
    model, stepper = spec.model, spec.stepper
    blank = stepper.aux(model)

    def one(at: At, h: Any, steps: Any, par: Par) -> Any:
        length = jnp.where(steps, h, 1e-9)  # jumps have none
        aux = stepper.redo(model, par, at, length, blank, length)[1]
        return tuple(jnp.where(steps, v, jnp.zeros_like(v)) for v in aux)

    return jax.jit(jax.vmap(one, in_axes=(0, 0, 0, None)))
