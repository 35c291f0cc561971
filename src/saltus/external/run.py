"""One solve by SUNDIALS: from jump to jump, every internal step a row of the record."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..extras import need
from ..firing import resolution
from ..loop import Spec
from ..model import At, Par
from ..record import FLOW, Counts, Knobs, Rows, approach_kind, empty_pace, reset_kind
from ..results import Result
from ..simulate import Outcome
from .tools import concrete, members, stacked, tools

CHAIN = 100  # jumps of one instant
ROOT = 2  # what SUNDIALS says when a guard is zero


class _Row(NamedTuple):
    at: At
    h: float
    kind: int
    member: int


class Run:
    """The state of one solve."""

    def __init__(self, who: str, spec: Spec, at: At, par: Par, knobs: Knobs):
        self.who, self.spec, self.model = who, spec, spec.model
        given = concrete((at, par, knobs), who)
        self.at, self.par, self.knobs = given
        if bool(self.par.backward):
            raise ValueError(f"{who}: t1 lies before the start; SUNDIALS runs forward here.")
        if who == "CVODE" and self.model.constraint is not None:
            raise ValueError(
                "CVODE: the system has a constraint. Write method=saltus.external.IDA()."
            )
        self.tools = tools(self.model, self.at, self.par)
        self.guards = members(self.model)
        self.rows: list[_Row] = []
        self.events = self.steps = self.evaluations = 0
        self.code = Result.running
        self.tiny = float(resolution(self.par.theta[1])) + 1e-300

    # -- the whole ----------------------------------------------------------------------------
    def outcome(self) -> Outcome:
        """Run to the end, and hand on what was recorded."""
        while self.code is Result.running:
            self._segment()
        counts = {
            "rows": len(self.rows), "steps": self.steps, "events": self.events,
            "evaluations": self.evaluations,
        }  # fmt: skip
        whole = Counts(*(jnp.asarray(counts.get(n, 0), jnp.int32) for n in Counts._fields))
        code = jnp.asarray(int(self.code), jnp.int32)
        pace = empty_pace(self.model.n_guards)
        return Outcome(self.at, whole, pace, code, self._recorded())

    def _recorded(self) -> Rows:
        """All rows, with what the mesh rule needs for each."""
        last = _Row(self.at, 0.0, FLOW, 0)
        rows = [*self.rows, last]
        size = 1 << max(len(rows) - 1, 1).bit_length()
        pick = lambda of: stacked([of(r) for r in rows], size)
        (tau,), (h,), (kind,), (member,) = (
            pick(of)
            for of in (
                lambda r: (r.at.tau,), lambda r: (r.h,), lambda r: (r.kind,), lambda r: (r.member,)
            )
        )  # fmt: skip
        w, i, z = pick(lambda r: r.at.w), pick(lambda r: r.at.i), pick(lambda r: r.at.z)
        families = (member.astype(jnp.int32),) if self.model.families else ()
        steps = (kind == FLOW) & (h != 0)
        aux = _mesh_rule(self.spec)(At(tau, w, i, z), h, steps, self.par)
        return Rows(tau, w, i, h, kind.astype(self.model.kind_dtype), families, z, aux)

    # -- from jump to jump --------------------------------------------------------------------
    def _segment(self) -> None:
        """Integrate up to the next event or time, and fire."""
        due = np.array([float(v) for v in self.tools.due(self.at, self.par)])
        tau = float(self.at.tau)
        target = float(np.min(due[due > tau + self.tiny], initial=np.inf))
        reached = self._integrate(target)
        if reached is None:
            return
        fired, at_root = reached
        if at_root:
            self._fire([(*self.guards[k][:2], True) for k in fired])
            return
        places = [
            (self.model.actions.index(a), 0, True)
            for a, t in zip(self.model.timed, due, strict=True)
            if abs(t - target) <= self.tiny
        ]
        self._fire(places)

    def _integrate(self, target: float) -> tuple[list[int], bool] | None:
        """Steps up to `target`, or to a guard: which ones fire; None where it failed."""
        solver = self._solver()
        tau, y = float(self.at.tau), self.tools.vector(self.at)
        slopes = np.asarray(self.tools.flow(y, tau, self.at, self.par)).copy()
        slopes[self.tools.moving :] = 0.0
        args = (tau, y, slopes) if self.who == "IDA" else (tau, y)
        solver.init_step(*args)
        while True:
            done = solver.step(target, method="onestep", tstop=target)
            self.steps += 1
            self.evaluations = int(done.nfev)
            if done.status < 0 or not np.all(np.isfinite(done.y)):
                self.code = Result.non_finite if done.status >= 0 else Result.step_underflow
                return None
            if self.steps > int(self.knobs.max_steps):
                self.code = Result.too_many_steps
                return None
            t = float(done.t)
            self._step_to(t, np.asarray(done.y).ravel())
            if done.status == ROOT:
                return [int(k) for k in np.flatnonzero(np.asarray(done.i_events).ravel())], True
            if t >= target - self.tiny:
                return [], False

    def _step_to(self, t: float, y: np.ndarray) -> None:
        h = t - float(self.at.tau)
        self.rows.append(_Row(self.at, h, FLOW, 0))
        there = self.tools.state(jnp.asarray(t), jnp.asarray(y), self.at)
        self.at = self.tools.solved(there, self.par)[0]

    # -- jumps --------------------------------------------------------------------------------
    def _fire(self, waiting: list[tuple[int, int, bool]]) -> None:
        """Jumps of one instant, in order; `True` marks those with a root or a time of their own."""
        count = 0
        while waiting and self.code is Result.running:
            place, member, rooted = waiting.pop(0)
            action = self.model.actions[place]
            if rooted:
                self.rows.append(_Row(self.at, 0.0, approach_kind(place), member))
            if action.kind == "stop":
                self.code = Result.success
                return
            before = self._seen()
            self.rows.append(_Row(self.at, 0.0, reset_kind(place), member))
            self.at, found = self.tools.reset(place)(self.at, self.par, member)
            self.events += action.logged
            count += 1
            if action.terminal:
                self.code = Result.terminated
            elif not bool(found):
                self.code = Result.no_consistent_state
            elif self.events > int(self.knobs.max_events):
                self.code = Result.too_many_events
            elif count > CHAIN:
                self.code = Result.endless_chain
            chained = self._crossed(before, skip=(place, member))
            waiting += [w for w in chained if w[:2] not in {v[:2] for v in waiting}]

    def _seen(self) -> tuple[np.ndarray, np.ndarray]:
        if not self.guards:
            return np.zeros(0), np.zeros(0, bool)
        y, tau = self.tools.vector(self.at), self.at.tau
        values = np.asarray(self.tools.guards(y, tau, self.at, self.par))
        return values, np.asarray(self.tools.active(self.at, self.par))

    def _crossed(self, before: tuple, skip: tuple[int, int]) -> list[tuple[int, int, bool]]:
        """Guards that the jump has crossed, or that come into force beyond zero."""
        old, was = before
        new, now = self._seen()
        out = []
        for k, (place, member, action) in enumerate(self.guards):
            if (place, member) == skip or not now[k]:
                continue
            sides = (-1, 1) if action.direction == 0 else (action.direction,)
            over = any(np.sign(new[k]) == s for s in sides)
            crossed = was[k] and np.sign(old[k]) * np.sign(new[k]) < 0
            if over and (crossed or (not was[k] and action.level)):
                out.append((place, member, False))
        return out

    # -- SUNDIALS -----------------------------------------------------------------------------
    def _solver(self) -> Any:
        """A solver from here on."""
        tools, at, par, m = self.tools, self.at, self.par, self.tools.moving
        options: dict[str, Any] = {
            "rtol": float(self.knobs.rtol), "atol": self._absolute(), "max_num_steps": 100_000,
        }  # fmt: skip
        if np.isfinite(float(self.knobs.max_step)):
            options["max_step"] = float(self.knobs.max_step)
        if not np.isnan(float(self.knobs.first_step)):
            options["first_step"] = float(self.knobs.first_step)
        ida = self.who == "IDA"
        if self.guards:

            def events(t: float, y: Any, *rest: Any) -> None:
                rest[-1][:] = tools.guards(y, t, at, par)

            def events_ida(t: float, y: Any, yp: Any, out: Any) -> None:
                events(t, y, out)

            def events_cvode(t: float, y: Any, out: Any) -> None:
                events(t, y, out)

            fn = events_ida if ida else events_cvode
            fn.terminal = [True] * len(self.guards)  # type: ignore[attr-defined]
            fn.direction = [a.direction for _, _, a in self.guards]  # type: ignore[attr-defined]
            options |= {"eventsfn": fn, "num_events": len(self.guards)}
        if ida:

            def residual(t: float, y: Any, yp: Any, res: Any) -> None:
                res[:] = tools.flow(y, t, at, par)
                res[:m] -= yp[:m]

            def jacobian_ida(t: float, y: Any, yp: Any, res: Any, cj: float, out: Any) -> None:
                out[:] = tools.jacobian(y, t, at, par)
                out[np.arange(m), np.arange(m)] -= cj

            if self.model.constraint is not None:
                size = tools.vector(at).size
                options["algebraic_idx"] = list(range(m, size))
            module = need("sksundae.ida", "sundials", "external.IDA")
            return module.IDA(residual, jacfn=jacobian_ida, **options)

        def slope(t: float, y: Any, out: Any) -> None:
            out[:] = tools.flow(y, t, at, par)

        def jacobian(t: float, y: Any, yp: Any, out: Any) -> None:
            out[:] = tools.jacobian(y, t, at, par)

        module = need("sksundae.cvode", "sundials", "external.CVODE")
        return module.CVODE(slope, jacfn=jacobian, **options)

    def _absolute(self) -> np.ndarray:
        leaves = (*self.at.w[: self.model.moving], *self.at.z)
        parts = [
            np.broadcast_to(np.asarray(a, float), np.shape(v)).ravel()
            for v, a in zip(leaves, self.knobs.atol, strict=False)
        ]
        return np.maximum(np.concatenate(parts), 1e-300)


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
