"""One solve by SUNDIALS, from jump to jump; every internal step becomes a row of the record."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..base.leaves import Leaves, select
from ..base.results import Result
from ..base.types import Flag, Scalar
from ..model.model import At, Par
from ..simulate.guards import resolution
from ..simulate.primitive import Outcome
from ..simulate.record import FLOW, Carry, Knobs, Rows, Spec
from ..simulate.states import Grazing, Side
from ..simulate.step import MAX_HALVINGS
from ..simulate.tape_buffer import blank_rows, write_end
from .compiled import concrete, stacked, tools
from .events import Step, failure
from .mesh import guess
from .sundials import ROOT_RETURN, Segment

SHORTER_STEP = 0.25  # times a step in which a crossing may be hidden
MAX_DEFECT = 1e-3  # of the states: largest defect of the equations on the mesh without a warning
SHORTEST_WAY = 32  # resolutions of time: the shortest time over which SUNDIALS can be used


class Run:
    """The state of one solve: that of the loop, and the rows so far."""

    def __init__(self, who: str, spec: Spec, at: At, par: Par, knobs: Knobs):
        if who == "CVODE" and spec.model.constraint is not None:
            raise ValueError(
                "CVODE: the system has a constraint. Write method=saltus.external.IDA()."
            )
        self.who, self.spec = who, spec
        at, self.par, self.knobs = concrete((at, par, knobs), who)
        if int(self.knobs.grazing) != Grazing.NO_EVENT:
            raise ValueError(
                f'{who}: on_grazing="raise" and "fire" need a search for touches, which SUNDIALS '
                "does not have. Leave on_grazing out, or choose another method."
            )
        for leaf in (*at.w, *at.z):
            if leaf.dtype != jnp.float64:
                raise TypeError(
                    f"{who}: a state is {leaf.dtype}, and SUNDIALS computes with float64. Start "
                    "from float64 numbers, or choose another method."
                )
        self.tools = tools(spec, at)
        self.sign = -1.0 if bool(self.par.backward) else 1.0
        self.carry: Carry = self.tools.begin(at, self.par, self.knobs)
        self.rows: list[Rows] = []
        self.doubts = 0  # attempts in a row in which a crossing may be hidden

    def outcome(self) -> Outcome:
        """Run to the end, and return what was recorded."""
        try:
            while int(self.carry.code) == Result.running:
                self._iterate()
        except KeyboardInterrupt:
            self._stop(Result.interrupted)
        c = self.carry
        rows = self._recorded()
        return Outcome(end=c.at, counts=c.counts, pace=c.pace, code=c.code, rows=rows)

    def _iterate(self) -> None:
        """A jump that is due, or the flow up to the next one."""
        if int(self.carry.jump) < 0:
            self._flow()
        elif bool(self.carry.rooted):
            self._keep(*self.tools.arrive(self.par, self.knobs, self.carry))
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
        segment = self._segment()
        begun, first = self.carry.counts.evaluations, float(self.carry.at.tau)
        hidden = None  # the time until which steps are short, because a crossing may be hidden
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
            elif not self._step_to(t, y, self._meant(crossed, flag, t), target):
                hidden = t if hidden is None else hidden
                begun, segment = (
                    begun + segment.evaluations,
                    self._segment(SHORTER_STEP * segment.h),
                )
            elif hidden is not None and self.sign * (t - hidden) >= 0 and not self._decided():
                hidden, begun, segment = None, begun + segment.evaluations, self._segment()

    def _segment(self, longest: float = np.inf) -> Segment:
        longest = min(longest, float(self.knobs.max_step))
        knobs = self.knobs._replace(max_step=jnp.asarray(longest))
        return Segment(self.who, self.tools, self.carry, self.par, knobs)

    def _stands_still(self, flag: int, t: float) -> bool:
        return flag != ROOT_RETURN and abs(t - float(self.carry.at.tau)) <= float(resolution(t))

    def _is_there(self, target: float) -> bool:
        """Whether the target is too close for SUNDIALS; if so, take one step along the flow."""
        at = self.carry.at
        way = target - float(at.tau)
        if abs(way) > SHORTEST_WAY * float(resolution(at.tau)):
            return False
        moving = tuple(v + way * k for v, k in zip(at.w, self.carry.k1, strict=False))
        there = self.spec.model.with_moving(at, moving, tau=jnp.asarray(target))
        crossed = np.zeros(sum(g.size or 1 for g in self.spec.model.guards), np.int32)
        step = Step(there, self.tools.each(crossed), jnp.asarray(True))
        self._keep(*self.tools.landed(self.par, self.carry, step))
        return True

    def _has_settled(self) -> bool:
        """Whether a contact has come to rest, as far as the solver can tell."""
        if not any(np.any(np.asarray(s) == Side.FIRED) for s in self.carry.sides):
            return False
        self.carry = self.tools.settled(self.par, self.knobs, self.carry)
        return self._decided()

    def _decided(self) -> bool:
        return int(self.carry.jump) >= 0 or int(self.carry.code) != Result.running

    def _starts_with_an_event(self, t: float, y: np.ndarray) -> bool:
        """Whether a guard that is zero fires at the start, so that the first step is dropped."""
        if not self.spec.model.guards:
            return False
        there = self.tools.state(jnp.asarray(t), jnp.asarray(y), self.carry.at)
        self.carry = self.tools.left(self.par, self.carry, there)
        return self._decided()

    def _meant(self, crossed: np.ndarray, flag: int, t: float) -> np.ndarray:
        """The crossings, without those of guards that have just fired and cross by rounding."""
        if flag != ROOT_RETURN:
            return crossed
        near = abs(t - float(self.carry.at.tau)) <= SHORTEST_WAY * float(resolution(t))
        at_zero = np.concatenate([np.ravel(np.abs(s) != 1) for s in self.carry.sides])
        return np.where(near & at_zero, 0, crossed)

    def _step_to(self, t: float, y: np.ndarray, crossed: np.ndarray, target: float) -> bool:
        """Take the step, unless a crossing may be hidden in it."""
        there = self.sign * (target - t) <= float(resolution(t))
        tau = jnp.asarray(target if there else t)
        end = self.tools.state(tau, jnp.asarray(y), self.carry.at)
        step = Step(end, self.tools.each(crossed), jnp.asarray(there))
        new, row = self.tools.landed(self.par, self.carry, step)
        looks = bool(self.spec.model.guards) and self.doubts < MAX_HALVINGS
        if looks and bool(self.tools.dips(self.par, self.carry, new)):
            self.doubts += 1
            return False
        self.doubts = 0
        self._keep(new, row)
        return True

    # -- the record ---------------------------------------------------------------------------
    def _recorded(self) -> Rows:
        """All rows, with what the equations on the mesh need for each."""
        at, n = self.carry.at, jnp.asarray(len(self.rows), jnp.int32)
        if not self.rows:
            return write_end(blank_rows(self.spec, at, 1), n, at)
        size = 1 << len(self.rows).bit_length()
        rows = stacked([r._replace(aux=()) for r in self.rows], size)
        rows = rows._replace(kind=rows.kind.astype(self.spec.model.kind_dtype))
        rows = write_end(rows, n, at)
        starts = At(rows.tau, rows.w, rows.i, rows.z)
        ends = jax.tree.map(lambda v: jnp.concatenate([v[1:], v[-1:]]), starts)
        steps = (rows.kind == FLOW) & (rows.h != 0)
        aux, defects = _mesh_rule(self.spec)(starts, ends, rows.h, steps, self.par)
        self._warn_of_defects(defects, rows.w)
        return rows._replace(aux=aux)

    def _warn_of_defects(self, defects: Leaves, states: Leaves) -> None:
        """Warn if the equations on the mesh do not fit the states of the solver."""
        sizes = [
            (float(np.max(np.abs(d))), float(np.max(np.abs(v))))
            for d, v in zip(defects, states, strict=False)
            if np.size(v)
        ]
        off = max(
            (d / v if v > 0 else d for d, v in sizes), default=0.0, key=lambda r: (np.isnan(r), r)
        )
        if not off <= MAX_DEFECT:
            warnings.warn(
                f"{self.who}: the equations on its mesh miss its states by up to {off:.1g} "
                "(relative), and derivatives are off by at least as much. Write a smaller rtol or "
                'max_step, mesh="radau", or method=saltus.Radau5().',
                RuntimeWarning,
                stacklevel=2,
            )


@functools.lru_cache(maxsize=64)
def _mesh_rule(spec: Spec) -> Callable[..., tuple[Leaves, Leaves]]:
    """For every row, the stages of its equations on the mesh, and their defect at its end."""
    model, stepper = spec.model, spec.stepper

    def one(at: At, end: At, h: Scalar, steps: Flag, par: Par) -> tuple[Leaves, Leaves]:
        length = jnp.where(steps, h, 1e-9)  # jumps have no length
        first = guess(stepper, model, par, at, end, length)
        reached, aux = stepper.redo(model, par, at, length, first, length)
        none = tuple(jnp.zeros_like(v) for v in aux)
        pairs = zip(reached.w, model.x_of(end), strict=False)
        defects = tuple(jnp.where(steps, a - b, 0.0) for a, b in pairs)
        return select(steps, aux, none), defects

    return jax.jit(jax.vmap(one, in_axes=(0, 0, 0, 0, None)))
