"""Names from SciPy, diffrax, MATLAB, SciML and CasADi for parts of models and their constructors.

The tables are like those of `foreign_names`: names without capitals and underscores, and what to
write instead. `constructs` makes a class use one of them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .foreign_names import nearest, plain

C = TypeVar("C", bound=type)

_FLOW = "Write flow=lambda now, p: {...}, which returns the derivatives of x by name"
_PLAIN_FLOW = "For a function f(t, x, p) write flow=saltus.from_function(f)"
_START = "The start is an argument of solve: saltus.Instant(t=0.0, x={...})"
_P = "Parameters are an argument of solve, any pytree: solve(system, start, p, t1)"
_SPAN = "Times are arguments of solve: the start is saltus.Instant(t=0.0, ...), the end is t1"
_CONSTRAINT = "Write constraint=lambda now, p: {...}, the residuals of 0 = g, and read now.z"
_EVENTS = "Write events=[saltus.Event(name, guard=..., reset=...)]"
_RATE = "Write rate=lambda now, p: {...}, the integrands of sol.integral"
_OUTPUT = "Write output=lambda now, p: {...}, what is saved"
_INPUTS = "Write inputs={name: saltus.Steps(times, values)}, and read now.u"
_MASS = "Write saltus.mass_matrix(mass, flow)"
_IMPLICIT = "Write saltus.fully_implicit(residual), with residuals that read now.dx"
_JACOBIAN = 'Jacobians are derived from the model: leave it out (sparsity="detect" finds zeros)'
_MODES = "Write saltus.automaton({name: saltus.Mode(flow, exits=[...])})"
_METHOD = "It belongs to the call: solve(..., method=saltus.Tsit5(rtol=1e-8))"
_UNKNOWNS = "States are declared by the start and named by the flow: leave it out"
_INVARIANT = "Write invariant=lambda now, p: ..., numbers that the flow keeps at zero"

SYSTEM = {
    **dict.fromkeys(("rhs", "ode", "dynamics", "derivative", "derivatives", "xdot", "vectorfield",
                     "eom", "odefcn", "odefun", "drift", "dxdt", "dx", "flowmap", "eqs",
                     "equations"), _FLOW),
    **dict.fromkeys(("f", "fun", "func", "fn", "function", "terms", "term", "odeterm"),
                    f"{_FLOW}. {_PLAIN_FLOW}"),
    **dict.fromkeys(("y0", "x0", "u0", "z0", "start", "initial", "init", "initialstate", "ic",
                     "initialcondition", "initialconditions"), _START),
    **dict.fromkeys(("p", "params", "parameters", "args", "theta", "ps"), _P),
    **dict.fromkeys(("tspan", "t0", "t1", "tf", "t", "time", "ts", "grid"), _SPAN),
    **dict.fromkeys(("alg", "algebraic", "g", "constraints", "dae", "residuals"), _CONSTRAINT),
    **dict.fromkeys(("event", "guards", "guard", "zero", "callback", "callbacks", "rootfn", "jump",
                     "jumpmap", "resets", "reset", "eventfcn", "eventdefinition",
                     "discreteevents", "continuousevents"), _EVENTS),
    **dict.fromkeys(("quad", "quadrature", "cost", "running", "runningcost", "integrand",
                     "rates"), _RATE),
    **dict.fromkeys(("outputs", "y", "observed", "observables", "measurement", "h", "outputfcn"),
                    _OUTPUT),
    **dict.fromkeys(("u", "control", "controls", "input", "signals", "forcing"), _INPUTS),
    **dict.fromkeys(("mass", "massmatrix", "m"), _MASS),
    **dict.fromkeys(("residual", "implicit", "odefunimplicit", "f0"), _IMPLICIT),
    **dict.fromkeys(("jac", "jacobian", "jacprototype", "jpattern", "tgrad"), _JACOBIAN),
    **dict.fromkeys(("mode", "locations", "location", "transitions", "discretestates", "automaton"),
                    _MODES),
    **dict.fromkeys(("method", "solver", "rtol", "atol", "reltol", "abstol", "tol"), _METHOD),
    **dict.fromkeys(("x", "z", "d", "states", "statenames", "vars", "variables", "unknowns",
                     "name", "names"), _UNKNOWNS),
    **dict.fromkeys(("invariants", "conserved", "manifold"), _INVARIANT),
    "unit": 'Write units={"t": "s", "h": "m"}',
    "differentialvars": _UNKNOWNS,
}  # fmt: skip

_GUARD = "Write guard=lambda now, p: ..., a number; the event is where it crosses zero"
_RESET = "Write reset=lambda now, p: now.replace(x={...}), the instant just after the event"
_DIRECTION = 'Write direction="falling", "rising" or "either"'
_TERMINAL = "Write terminal=True to end the solve at the event"
_TWO = 'Write two events, one with direction="rising" and one with direction="falling"'
_LOCATED = "Events are located to rounding error: leave it out"
_ACTIVE = "Write active=lambda now, p: ..., which switches the guard on and off"
_TIMES = "Events at known times are saltus.TimeEvent(name, next_time)"
_NAME = 'The name comes first: saltus.Event("bounce", guard=...)'
_TO = "Modes are changed by saltus.Exit(guard, to=...) of an automaton"
_BOTH_SIDES = "Both sides of every event are kept, in sol.events: leave it out"

EVENT = {
    **dict.fromkeys(("condition", "cond", "condfn", "eventfn", "eventfcn", "event", "fun", "func",
                     "function", "f", "g", "h", "root", "zero", "expr", "trigger", "surface",
                     "threshold", "eventdefinition"), _GUARD),
    **dict.fromkeys(("affect", "affect!", "effect", "action", "jump", "jumpmap", "callback",
                     "callbackfcn", "update", "map", "assign", "transition", "handler"), _RESET),
    **dict.fromkeys(("affectneg", "affectneg!", "affectpos"), _TWO),
    **dict.fromkeys(("isterminal", "terminate", "stop", "final", "response", "halt"), _TERMINAL),
    **dict.fromkeys(("sign", "crossing", "slope", "eventdirection", "dir", "edge"), _DIRECTION),
    **dict.fromkeys(("rootfind", "rootfinder", "interppoints", "abstol", "reltol", "tol", "rtol",
                     "atol", "reptol", "repeatnudge", "dtrelax"), _LOCATED),
    **dict.fromkeys(("enabled", "enable", "mask", "only", "on"), _ACTIVE),
    **dict.fromkeys(("tstops", "times", "time", "t", "period", "deltat", "nexttime", "every"),
                    _TIMES),
    **dict.fromkeys(("label", "id", "title"), _NAME),
    **dict.fromkeys(("to", "mode", "target", "source"), _TO),
    **dict.fromkeys(("savepositions", "saveat", "initialize", "finalize", "initializealg",
                     "idxs"), _BOTH_SIDES),
}  # fmt: skip

_NEXT = "Write next_time=lambda now, p: ..., or next_time=saltus.every(period, offset)"
TIME_EVENT = {
    **{k: v for k, v in EVENT.items() if v in (_RESET, _TERMINAL, _BOTH_SIDES)},
    **dict.fromkeys(("times", "time", "t", "ts", "tstops", "at", "next", "period", "deltat", "dt",
                     "every", "phase", "offset", "schedule", "interval", "sampletime"), _NEXT),
    **dict.fromkeys(("guard", "condition", "cond", "f", "fun"), "With a guard: saltus.Event"),
    **dict.fromkeys(("label", "id"), 'The name comes first: saltus.TimeEvent("tick", next_time)'),
}  # fmt: skip

_X = "Write x={...}, the differential states by name"
_Z = "Write z={...}, guesses of the algebraic states by name"
INSTANT = {
    **dict.fromkeys(("y", "y0", "x0", "u0", "state", "states", "values", "q", "s0", "initial",
                     "xinit", "yinit"), _X),
    **dict.fromkeys(("t0", "time", "tstart", "ts", "tspan"), "Write t=0.0, the time of the start"),
    **dict.fromkeys(("z0", "alg", "algebraic", "lam"), _Z),
    **dict.fromkeys(("yp0", "dx0", "du0", "xdot", "ydot", "dy", "derivative", "derivatives",
                     "initialslope"), "Write dx={...}, guesses of x' in fully implicit systems"),
    **dict.fromkeys(("d0", "discrete", "discretestate", "flags"),
                    "Write d={...}, the discrete states by name"),
    **dict.fromkeys(("p", "params", "parameters", "args"), _P),
    **dict.fromkeys(("location", "phase"), "Write mode=..., the name of a mode of an automaton"),
    **dict.fromkeys(("inputs", "controls", "control"),
                    "Inputs belong to the system: HybridSystem(..., inputs={...})"),
}  # fmt: skip

_RTOL, _ATOL = "Write rtol=1e-8, the relative tolerance", "Write atol=1e-8, the absolute tolerance"
_FIRST = "Write first_step=1e-3, the length of the first step"
_MAX = "Write max_step=0.1, the length of the longest step"
_FIXED = "For steps of one length write control=saltus.Fixed(0.01)"
_PI = "Write control=saltus.PI(safety=..., shrink=..., grow=..., beta=...)"
_COUNT = "Write solve(..., max_steps=...) to limit the number of step attempts"
_OTHER = "Write another method: saltus.Tsit5(), Dopri5(), Dopri8(), Radau5() or Rodas5P()"
_NEWTON = "The equations of a step are solved to rounding error: leave it out"
_DENSE = "Dense output is always available, sol(t): leave it out"
METHOD = {
    **dict.fromkeys(("reltol", "tol", "relativetolerance", "eps", "tolerance"), _RTOL),
    **dict.fromkeys(("abstol", "absolutetolerance"), _ATOL),
    **dict.fromkeys(("dt0", "h0", "initialstep", "dtinit", "step0", "hinit"), _FIRST),
    **dict.fromkeys(("hmax", "dtmax", "maxstepsize", "maxdt"), _MAX),
    **dict.fromkeys(("dt", "h", "step", "stepsize", "fixedstep", "adaptive", "steps"), _FIXED),
    **dict.fromkeys(("hmin", "dtmin", "minstep", "minstepsize", "forcedtmin"),
                    "There is no least length of a step: leave it out"),
    **dict.fromkeys(("controller", "stepsizecontroller", "safety", "factormin", "factormax",
                     "minfactor", "maxfactor", "ifactor", "dfactor", "qmin", "qmax", "gamma",
                     "pcoeff", "icoeff", "dcoeff", "beta", "beta1", "beta2"), _PI),
    **dict.fromkeys(("maxsteps", "maxiters", "maxnumsteps", "mxstep", "nsteps", "maxiter"), _COUNT),
    **dict.fromkeys(("order", "maxorder", "maxord", "name", "method", "stiff", "alg"), _OTHER),
    **dict.fromkeys(("rootfinder", "rootfindmaxsteps", "newtontol", "nlsolve", "maxnewton",
                     "kappa"), _NEWTON),
    **dict.fromkeys(("jac", "jacobian", "autodiff", "chunksize", "linsolve", "linearsolver",
                     "concretejac", "difftype", "lband", "uband"), _JACOBIAN),
    **dict.fromkeys(("dense", "denseoutput", "interpolation", "scankind", "saveeverystep"),
                    _DENSE),
    **dict.fromkeys(("norm", "errornorm", "normcontrol", "internalnorm"),
                    "Errors are root mean squares over the states: leave it out"),
}  # fmt: skip

STEP_CONTROL = {
    **dict.fromkeys(("rtol", "atol", "reltol", "abstol"),
                    "Tolerances belong to the method: saltus.Tsit5(rtol=..., control=...)"),
    **dict.fromkeys(("factormin", "minfactor", "dfactor", "qmin"), "Write shrink=0.2"),
    **dict.fromkeys(("factormax", "maxfactor", "ifactor", "qmax"), "Write grow=10.0"),
    **dict.fromkeys(("gamma", "safetyfactor"), "Write safety=0.9"),
    **dict.fromkeys(("pcoeff", "icoeff", "dcoeff", "beta1", "beta2"), "Write beta=0.04"),
    **dict.fromkeys(("dt", "step", "stepsize", "dt0"), "Write saltus.Fixed(h)"),
    **dict.fromkeys(("dtmin", "dtmax", "hmax", "maxstep", "firststep"),
                    "Step lengths belong to the method: saltus.Tsit5(max_step=...)"),
}  # fmt: skip

TICKS = {
    **dict.fromkeys(("dt", "deltat", "interval", "step", "sampletime", "ts", "h"),
                    "Write every(period)"),
    **dict.fromkeys(("phase", "start", "t0", "first", "delay"), "Write every(period, offset)"),
}  # fmt: skip

MECHANISM = {
    **dict.fromkeys(("m", "inertia", "massmatrix", "masses"),
                    "Write mass={coordinate: mass}, or mass=lambda now, p: ..."),
    **dict.fromkeys(("forces", "f", "q", "torque", "torques", "load", "gravity", "rhs", "flow"),
                    "Write force=lambda now, p: {...}, or potential=lambda now, p: ..."),
    **dict.fromkeys(("constraints", "g", "phi", "joints", "alg"),
                    "Write constraint=lambda now, p: {...}, lengths that are zero"),
    **dict.fromkeys(("v", "u", "energy", "potentialenergy"), "Write potential=lambda now, p: ..."),
    **dict.fromkeys(("t", "lagrangian", "kineticenergy"), "Write kinetic=lambda now, p: ..."),
    **dict.fromkeys(("contact", "impact", "collisions", "ground"),
                    "Write contacts=[saltus.multibody.contact(...)]"),
    **dict.fromkeys(("form", "index", "method", "stiffness"),
                    "Forms are chosen later: mechanism.system(...)"),
}  # fmt: skip

MODE = {**SYSTEM, **dict.fromkeys(("events", "event", "transitions", "edges", "guards"),
                                  "Write exits=[saltus.Exit(guard, to=...)]; events of all modes "
                                  "belong to automaton(..., events=[...])")}  # fmt: skip
EXIT = {**{k: v for k, v in EVENT.items() if v not in (_NAME, _TO)},
        **dict.fromkeys(("target", "mode", "destination", "next", "into"),
                        "Write to=..., the name of the mode that follows")}  # fmt: skip
SIGNAL = {
    **dict.fromkeys(("t", "ts", "time", "x", "xp", "breakpoints", "grid", "knots"),
                    "Write times=[...], the breakpoints"),
    **dict.fromkeys(("y", "ys", "u", "us", "value", "fp", "data", "levels"),
                    "Write values=[...], one for each time"),
    **dict.fromkeys(("kind", "interpolation", "order"),
                    "saltus.Steps is piecewise constant, saltus.Ramps piecewise linear"),
}  # fmt: skip
SCENARIO = {
    **dict.fromkeys(("params", "parameters", "args", "guess"), "Write p=..., any pytree"),
    **dict.fromkeys(("y0", "x0", "u0", "initial", "t0"),
                    "Write start=saltus.Instant(t=0.0, x={...})"),
    **dict.fromkeys(("tspan", "tend", "tf", "tfinal", "t2", "horizon"), "Write t1=..., the end"),
    **dict.fromkeys(("model", "prob", "f", "fun", "flow"),
                    "Write system=saltus.HybridSystem(flow=lambda now, p: ...)"),
    **dict.fromkeys(("rtol", "atol", "reltol", "abstol", "solver"),
                    "Write method=saltus.Tsit5(rtol=1e-8)"),
    **dict.fromkeys(("ts", "saveat", "teval"),
                    "Save times are given to a solve: scenario.solve(ts=[...])"),
}  # fmt: skip
EXPERIMENT = {
    **dict.fromkeys(("file", "path", "df", "table", "frame", "csv", "measurements", "y"),
                    'The data come first: a file, a frame, or {"t": times, "h": values}'),
    **dict.fromkeys(("p", "params", "parameters", "conditions"),
                    "Write set={name: value}, the parameters that differ in this run"),
    **dict.fromkeys(("y0", "x0", "u0", "initial"), "Write start=saltus.Instant(t=0.0, x={...})"),
    **dict.fromkeys(("sigma", "noise", "std", "yerr", "error", "weights"),
                    "Write sd={name: standard deviation}"),
    **dict.fromkeys(("rename", "names", "mapping"), 'Write columns={"height_m": "h"}'),
    **dict.fromkeys(("tend", "tf", "tspan", "end"), "Write t1=..., the end of this run"),
    **dict.fromkeys(("origin", "epoch"),
                    "Write t0=..., the time or date that is zero in the model"),
    **dict.fromkeys(("inputs", "u", "control"),
                    "Write set={name of the signal in p: saltus.Steps(...)}"),
}  # fmt: skip


def constructs(table: Mapping[str, str]) -> Callable[[C], C]:
    """A class decorator: arguments that a constructor does not have are answered from `table`."""

    def decorated(cls: C) -> C:
        init = cls.__init__
        parameters = list(inspect.signature(init).parameters.values())[1:]

        @functools.wraps(init)
        def checked(self: Any, *args: Any, **kwargs: Any) -> None:
            try:
                init(self, *args, **kwargs)
            except TypeError:
                _check(type(self), parameters, args, kwargs, table)
                raise

        cls.__init__ = checked
        return cls

    return decorated


def _check(
    cls: type, parameters: list[inspect.Parameter], args: tuple, kwargs: dict[str, Any],
    table: Mapping[str, str],
) -> None:  # fmt: skip
    """Raises an error that says what is wrong with the arguments of a constructor, if they are."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    hidden = {f.name for f in fields if not f.repr}
    known, owner = [v.name for v in parameters], cls.__name__
    shown = [name for name in known if name not in hidden]
    for name in kwargs:
        if name not in known:
            answer = table.get(plain(name)) or nearest(name, shown)
            answer = answer or f"There are {', '.join(shown)}"
            text = answer if answer.endswith("...") else f"{answer}."
            raise TypeError(f"{owner}: there is no argument `{name}`. {text}") from None
    must = [v.name for v in parameters if v.default is v.empty]
    absent = [name for name in must[len(args) :] if name not in kwargs]
    if absent or len(args) > len(known):
        what = f"{absent[0]} is missing" if absent else f"{len(args)} arguments without names"
        raise TypeError(
            f"{owner}: {what}. Write {owner}({', '.join(must)}), and all others by name."
        ) from None
