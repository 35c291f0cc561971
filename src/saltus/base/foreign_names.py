"""Names from SciPy, diffrax, torchdiffeq, MATLAB and Julia, and what to write instead."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_SYSTEM = "The system comes first: system = saltus.HybridSystem(flow=lambda now, p: ...)"
_START = "The first time and state are the start: saltus.Instant(t=0.0, x={...})"
_SPAN = "The first time is in the start, Instant(t=0.0, ...), and the last one is t1"
_SAVE = "Write ts=jnp.linspace(t0, t1, 100), or leave it out and read sol(t) at any time"
_DENSE = "Dense output is always available: read sol(t)"
_STEP = "Step lengths belong to the method: method=saltus.Tsit5(first_step=..., max_step=...)"
_FIXED = "For steps of one size write method=saltus.Tsit5(control=saltus.Fixed(0.01))"
_RTOL = "Tolerances belong to the method: method=saltus.Tsit5(rtol=1e-8, atol=1e-8)"
_METHOD = "Write method=saltus.Tsit5(), or saltus.Radau5() for stiff systems"
_P = "Parameters are one argument, any pytree: solve(system, start, p, t1), read as p in the model"
_EVENTS = "Events belong to the system: HybridSystem(flow, events=[saltus.Event(name, guard)])"
_STOPS = (
    "Times to hit exactly belong to the system: TimeEvent(name, next_time), or the breakpoints of "
    "an input"
)
_DERIVATIVE = (
    "There is no choice to make: jax.grad, jax.jacfwd and jax.hessian work on the same solve "
    "(sensitivity= and checkpoints= are for special cases)"
)
_JACOBIAN = "Jacobians are derived from the model; their sparsity is HybridSystem(sparsity=...)"
_MASS = "A mass matrix belongs to the system: saltus.mass_matrix(mass, flow)"
_OUTPUT = "What is saved belongs to the system: HybridSystem(flow, output=lambda now, p: ...)"
_BATCH = "For many solves at once, apply jax.vmap to this one"
_NOTHING = "It is not needed: leave it out"
_PROGRESS = "There is no progress display in a solve; Ctrl-C keeps what was computed"
_RAISE = "With throw=False, a failed solve returns what it has instead of raising an error"
_MANY = "Write max_steps=... to limit the number of step attempts"
_DOMAIN = "A bound that must not be passed is an event of the system: Event(..., terminal=True)"
_PART = "It belongs to the system: saltus.HybridSystem(...)"
_SLOPE = "A guess of x' belongs to the start: saltus.Instant(t=0.0, x={...}, dx={...})"

# Arguments of other solvers, without capitals and underscores.
ARGUMENTS = {
    **dict.fromkeys(("fun", "func", "f", "ode", "odefun", "odefcn", "rhs", "terms", "term",
                     "vectorfield", "prob", "problem", "dynamics", "model", "flow"), _SYSTEM),
    **dict.fromkeys(("y0", "x0", "u0", "z0", "s0", "d0", "yinit", "y", "x", "z", "d", "mode",
                     "initialstate", "initialvalue", "initialcondition"), _START),
    **dict.fromkeys(("tspan", "t", "t0", "tf", "tfinal", "tstart", "tend", "t2", "time", "times",
                     "span", "duration"), _SPAN),
    **dict.fromkeys(("saveat", "teval", "tout", "grid", "subsaveat", "ntout", "savetimes"), _SAVE),
    **dict.fromkeys(("denseoutput", "dense", "refine", "saveeverystep", "savestart", "saveend",
                     "savepositions"), _DENSE),
    **dict.fromkeys(("dt0", "h0", "hmax", "hmin", "firststep", "initialstep", "maxstep", "minstep",
                     "dtmax", "dtmin", "dtinit", "stepsize"), _STEP),
    **dict.fromkeys(("dt", "h", "fixedstep", "adaptive"), _FIXED),
    **dict.fromkeys(("rtol", "atol", "reltol", "abstol", "tol", "options", "opts", "normcontrol",
                     "stepsizecontroller", "controller", "control", "safety", "ifactor",
                     "dfactor"), _RTOL),
    **dict.fromkeys(("solver", "alg", "algorithm", "integrator", "scheme", "maxorder", "bdf",
                     "mxordn", "mxords", "stiff"), _METHOD),
    **dict.fromkeys(("args", "params", "param", "parameters", "theta", "pars", "kwargs"), _P),
    **dict.fromkeys(("events", "event", "eventfn", "eventfcn", "callback", "callbacks",
                     "rootfn", "discreteterminatingevent"), _EVENTS),
    **dict.fromkeys(("tcrit", "tstops", "jumpts", "stepts", "ddiscontinuities"), _STOPS),
    **dict.fromkeys(("adjoint", "adjointparams", "adjointrtol", "adjointatol", "adjointmethod",
                     "adjointoptions", "sensealg", "gradient", "backsolve", "checkpoint"),
                    _DERIVATIVE),
    **dict.fromkeys(("jac", "jacobian", "jacsparsity", "jpattern", "dfun", "lband", "uband", "ml",
                     "mu", "coldert", "colderiv", "linsolve", "linearsolver", "rootfinder"),
                    _JACOBIAN),
    **dict.fromkeys(("mass", "massmatrix", "masssingular", "mstatedependence"), _MASS),
    **dict.fromkeys(("outputfcn", "outputsel", "saveidxs", "fn", "output"), _OUTPUT),
    **dict.fromkeys(("vectorized", "batch", "ensemble", "trajectories"), _BATCH),
    **dict.fromkeys(("tfirst", "fulloutput", "ixpr", "mxhnil", "printmessg", "stats", "madejump",
                     "solverstate", "controllerstate", "odeintinterface", "reversetime", "verbose",
                     "initializealg"), _NOTHING),
    **dict.fromkeys(("progressmeter", "progress", "progressbar"), _PROGRESS),
    **dict.fromkeys(("raiseonerror", "raiseerror", "strict", "check", "errorifnotsuccess"), _RAISE),
    **dict.fromkeys(("mxstep", "maxiters", "maxnumsteps", "nsteps", "maxiter"), _MANY),
    **dict.fromkeys(("nonnegative", "isoutofdomain", "bounds"), _DOMAIN),
    **dict.fromkeys(("constraint", "inputs", "rate", "units", "index", "invariant", "sparsity",
                     "modes"), _PART),
    **dict.fromkeys(("yp0", "initialslope", "dx0", "ydot0", "du0", "dx"), _SLOPE),
}  # fmt: skip

_VALUES = "sol.y has the outputs at the saved times sol.t, and sol(t) those at any time"
_LOG = 'sol.events has t, which, before and after; sol.events.of("name").t those of one event'
_WHY = "sol.error is None if the solve succeeded; sol.result says why it ended"
_WORK = "sol.stats has steps, rejected, evaluations, rows and events"
_AT = "sol.at(t) has t, x, z, d and u at any time, sol.final at the end"

# Attributes of other solutions, without capitals and underscores.
ATTRIBUTES = {
    **dict.fromkeys(("ys", "u", "us", "values", "states", "yout", "xout", "data", "yt"), _VALUES),
    **dict.fromkeys(("ts", "time", "times", "tout", "tt"), "sol.t has the saved times (ts=...)"),
    **dict.fromkeys(("sol", "interpolation", "evaluate", "interp", "interpolate", "derivative",
                     "densestate", "deval", "odesolution"), _DENSE),
    **dict.fromkeys(("yevents", "tevents", "eventmask", "eventt", "te", "ye", "xe", "ie", "event",
                     "eventlog", "log", "eventtimes"), _LOG),
    **dict.fromkeys(("success", "message", "status", "retcode", "ok", "converged", "failed",
                     "exitflag", "reason"), _WHY),
    **dict.fromkeys(("nfev", "njev", "nlu", "destats", "nsteps", "numsteps", "info", "steps",
                     "iterations", "naccept", "nreject", "solver"), _WORK),
    **dict.fromkeys(("x", "z", "d", "state", "x1", "y1", "xf", "yf", "end", "lasty"), _AT),
    **dict.fromkeys(("t0", "t1", "tspan", "tend", "tf"), "sol.start and sol.last.t are the ends"),
    **dict.fromkeys(("mode",), "sol.at(t).mode is the mode at any time, an index into sol.modes"),
    **dict.fromkeys(("q", "cost", "rate", "quadrature"), "sol.integral has integrals of the rate"),
    **dict.fromkeys(("params", "parameters", "args", "p", "prob"), "A solution does not keep p"),
    **dict.fromkeys(("todataframe", "df", "dataframe", "table"), "Write sol.to_pandas()"),
    **dict.fromkeys(("gradient", "grad", "sensitivity", "sensitivities", "adjoint"),
                    "Differentiate a function of the solution: jax.grad(loss)(p)"),
}  # fmt: skip

# Attributes that people try on event logs, without capitals and underscores.
LOG = {
    **dict.fromkeys(("ts", "time", "times", "tevents"), "log.t has the times"),
    **dict.fromkeys(("y", "ys", "yevents", "x", "z", "d", "state", "states", "values"),
                    "log.before and log.after have the instants on both sides, each with x, z, d"),
    **dict.fromkeys(("name", "kind", "kinds", "event", "index"),
                    "log.which has the index of each event in log.names"),
    **dict.fromkeys(("n", "size", "number", "length"), "log.count is the number of events"),
    **dict.fromkeys(("select", "get", "filter", "named"), 'Write log.of("name")'),
}  # fmt: skip

# Methods of other solvers, without capitals and underscores.
METHODS = {
    **dict.fromkeys(("radau", "bdf", "lsoda", "vode", "ode15s", "ode23s", "ode15i", "ode23t",
                     "ode23tb", "kvaerno3", "kvaerno4", "kvaerno5", "rosenbrock23", "rodas5",
                     "radauiia5", "trbdf2", "qndf", "fbdf", "implicit", "impliciteuler", "stiff",
                     "implicitadams", "radau5"), "Radau5"),
    **dict.fromkeys(("rodas5p", "rodas4"), "Rodas5P"),
    **dict.fromkeys(("dop853", "dop78", "dopri8", "vern7", "vern8", "vern9", "ode78", "ode89"),
                    "Dopri8"),
    **dict.fromkeys(("dopri5", "dp5"), "Dopri5"),
    **dict.fromkeys(("rk45", "rk23", "rk4", "ode45", "ode23", "ode113", "tsit5", "bosh3", "euler",
                     "midpoint", "heun", "fehlberg2", "adaptiveheun", "adams", "explicitadams"),
                    "Tsit5"),
    **dict.fromkeys(("ida", "cvode", "cvodes", "idas", "sundials"), "external.IDA"),
}  # fmt: skip

_RUN = (
    "It belongs to a run: saltus.fit(model, saltus.Experiment(data, columns=..., t0=..., "
    "events=..., set=...))"
)
_OPTIMISER = 'Write optimiser="lm", "gauss-newton", "l-bfgs-b", "trust", "ipopt" or "adam"'
_ITERATIONS = "Write max_iterations=200, the limit for each stage of a search"
_TOLERANCE = "Write tolerance=... (for the tolerance of a solve: method=saltus.Tsit5(rtol=...))"
_GUESS = "The first guess is the p of the Scenario, or saltus.fit(system, data, p, start=...)"
_OTHER_LOSS = (
    "A fit compares outputs of the model with data: saltus.fit(scenario, data). For any other "
    "loss, write saltus.minimise(loss, p)"
)
_BOUNDS = 'Write bounds={"k": (0.0, 10.0)}'
_NOISE = 'Write noise={"h": 0.01}, or saltus.Experiment(data, sd=...) for each point'
_DATA = 'The data come second: saltus.fit(scenario, {"t": times, "h": values}), a file or a frame'
_WATCH = 'Write progress=True, or log="fit.jsonl"; fit.history has the iterations'
_STARTS = 'Write search="multistart", starts=64, seed=0'

# Arguments of other fitting functions, without capitals and underscores.
FIT = {
    **dict.fromkeys(("columns", "column", "rename", "names", "t0", "events", "event", "set",
                     "inputs", "experiment"), _RUN),
    **dict.fromkeys(("optimizer", "solver", "algorithm", "alg", "minimizer", "minimiser", "opt"),
                    _OPTIMISER),
    **dict.fromkeys(("maxiter", "maxiters", "maxit", "niter", "iterations", "maxfev", "maxnfev",
                     "steps", "maxsteps", "epochs"), _ITERATIONS),
    **dict.fromkeys(("tol", "ftol", "xtol", "gtol", "rtol", "atol", "eps"), _TOLERANCE),
    **dict.fromkeys(("x0", "p0", "guess", "initial", "initialguess", "init", "theta", "params",
                     "parameters"), _GUESS),
    **dict.fromkeys(("y0", "u0", "initialstate", "initialcondition"),
                    "Write start=saltus.Instant(t=0.0, x={...}), or name start.v in free="),
    **dict.fromkeys(("fun", "func", "f", "fn", "objective", "residual", "residuals", "cost",
                     "lossfunction"), _OTHER_LOSS),
    **dict.fromkeys(("bound", "lb", "ub", "lower", "upper", "low", "high", "limits"), _BOUNDS),
    **dict.fromkeys(("sigma", "sd", "std", "stddev", "weights", "weight", "yerr", "error",
                     "errors", "absolutesigma"), _NOISE),
    **dict.fromkeys(("xdata", "ydata", "x", "y", "t", "ts", "times", "values", "df", "table",
                     "file", "path", "measurements", "observations"), _DATA),
    **dict.fromkeys(("jac", "jacobian", "hess", "grad", "gradient", "hessian"),
                    "Derivatives are exact and need no argument: leave it out"),
    **dict.fromkeys(("callback", "verbose", "disp", "nprint"), _WATCH),
    **dict.fromkeys(("nstarts", "restarts", "multistart", "key", "rng", "randomstate"), _STARTS),
    **dict.fromkeys(("tspan", "tend", "tf", "tfinal", "t2", "horizon"), "Write t1=..., the end"),
    **dict.fromkeys(("fixed", "fix", "vary"), 'Name what is free: free=["k", "start.v"]'),
    **dict.fromkeys(("robust", "fscale"), 'Write likelihood="student" to weight outliers less'),
    **dict.fromkeys(("prior", "regularization"), 'Write priors={"k": (mean, sd)}'),
    "scale": 'Write scales={"k": "log"}',
}  # fmt: skip

_MINIMISE_P = "The first guess is p, any pytree of numbers with names: saltus.minimise(loss, p)"
_MINIMISE_LOSS = "The loss comes first, a JAX function of the parameters: saltus.minimise(loss, p)"
_MINIMISE_OPTIMISER = (
    'Write optimiser="l-bfgs-b", "trust", "ipopt", "slsqp", "adam" or an optax rule'
)
_MINIMISE_MANY = "Write max_iterations=..., the limit for each of the starts"
_MINIMISE_TOLERANCE = "Write tolerance=..., and settings of an optimiser as options={name: value}"
_MINIMISE_SUBJECT = (
    'Return constraints beside the loss, loss, {"name": value}, and bound them with '
    'subject_to={"name": (low, high)}'
)
_MINIMISE_DERIVATIVE = "Derivatives are exact and need no argument: leave it out"
_MINIMISE_WATCH = (
    'Iterations are in best.history; write progress=True or log="run.jsonl" to watch them'
)
_MINIMISE_STARTS = "Write starts=8 and seed=0 for several first guesses within the bounds"
_MINIMISE_ARGS = "The loss has one argument: for others, write lambda p: loss(p, data)"

# Arguments of other optimisers, for `minimise`.
MINIMISE = {
    **dict.fromkeys(("x0", "y0", "u0", "p0", "init", "initial", "guess", "initialguess", "params",
                     "parameters", "initparams"), _MINIMISE_P),
    **dict.fromkeys(("fun", "func", "fn", "f", "objective", "cost"), _MINIMISE_LOSS),
    **dict.fromkeys(("optimizer", "method", "solver", "algorithm", "minimizer", "opt"),
                    _MINIMISE_OPTIMISER),
    **dict.fromkeys(("maxiter", "maxiters", "maxit", "niter", "nit", "iterations", "steps",
                     "maxsteps", "nsteps", "maxfun", "maxfev", "maxeval", "epochs"),
                    _MINIMISE_MANY),
    **dict.fromkeys(("tol", "ftol", "gtol", "xtol", "rtol", "atol", "eps", "learningrate", "lr"),
                    _MINIMISE_TOLERANCE),
    **dict.fromkeys(("constraints", "constraint", "eqconstraints", "ineqconstraints", "subjectto",
                     "st", "lbg", "ubg"), _MINIMISE_SUBJECT),
    **dict.fromkeys(("jac", "hess", "hessp", "grad", "gradient", "hessian", "fprime",
                     "valueandgrad"), _MINIMISE_DERIVATIVE),
    **dict.fromkeys(("callback", "verbose", "disp", "iprint", "fulloutput"), _MINIMISE_WATCH),
    **dict.fromkeys(("restarts", "nstarts", "multistart", "nrestarts", "ntrials", "workers",
                     "popsize", "key", "rng"), _MINIMISE_STARTS),
    **dict.fromkeys(("args", "kwargs", "data"), _MINIMISE_ARGS),
    **dict.fromkeys(("bound", "lb", "ub", "lower", "upper", "limits", "low", "high"),
                    'Write bounds={"name": (low, high)}'),
    "scale": 'Write scales={"name": "log"}',
}  # fmt: skip

# Attributes of the results of other optimisers, for the result of `minimise`.
MINIMUM = {
    **dict.fromkeys(("x", "xopt", "params", "parameters", "argmin", "solution"),
                    "best.p has the parameters, with the fields of the first guess, and "
                    "best.values their numbers"),
    **dict.fromkeys(("fun", "fopt", "value", "cost", "fval", "objective", "minimum"),
                    "best.loss is the least loss"),
    **dict.fromkeys(("success", "status", "converged", "exitflag"),
                    "best.ok says whether it converged, best.result and best.message how it ended"),
    **dict.fromkeys(("nit", "nfev", "njev", "niter", "iterations", "stats"),
                    "best.history has one entry per iteration"),
    **dict.fromkeys(("jac", "grad", "hess", "hessian", "hessinv"),
                    "Differentiate the loss: jax.grad(loss)(best.p), jax.hessian(loss)(best.p)"),
    **dict.fromkeys(("aux", "sol"), "best.extras has what the loss returned beside its value"),
}  # fmt: skip

# Optimisers of other libraries, without capitals, underscores and hyphens.
OPTIMISERS = {
    **dict.fromkeys(("lm", "leastsq", "trf", "dogbox", "levenbergmarquardt", "leastsquares"), "lm"),
    "gaussnewton": "gauss-newton",
    **dict.fromkeys(("lbfgsb", "lbfgs", "bfgs", "cg", "tnc", "neldermead", "powell"), "l-bfgs-b"),
    **dict.fromkeys(("newtoncg", "trust", "trustncg", "trustexact", "dogleg", "newton"), "trust"),
    **dict.fromkeys(("ipopt", "slsqp", "cobyla", "trustconstr"), "ipopt"),
    "adam": "adam", "sgd": "sgd",
}  # fmt: skip

_SOLVE = "Write saltus.solve(system, start, p, t1)"

# What people look for in the package, without capitals and underscores.
PACKAGE = {
    **dict.fromkeys(("solveivp", "odeint", "ode45", "ode15s", "ode23", "ode", "integrate",
                     "diffeqsolve", "odeproblem", "daeproblem", "solveode", "idasolve"),
                    _SOLVE),
    **dict.fromkeys(("minimize", "optimize", "optimise", "fmincon", "fmin"),
                    "Write saltus.minimise(loss, p)"),
    **dict.fromkeys(("curvefit", "leastsquares", "calibrate", "identify"),
                    "Write saltus.fit(scenario, data)"),
    "linearize": "Write saltus.linearise",
    **dict.fromkeys(("odeterm", "vectorfield", "odesystem"),
                    "Write saltus.HybridSystem(flow=lambda now, p: ...)"),
    "saveat": _SAVE,
    **dict.fromkeys(("pidcontroller", "stepsizecontroller"), _RTOL),
    **dict.fromkeys(("steadystate", "fsolve", "root"), "Write saltus.equilibrium"),
    **dict.fromkeys(("dataset", "data", "measurement"), "Write saltus.Experiment(data)"),
}  # fmt: skip


def plain(name: str) -> str:
    """A name without capitals and underscores: `RelTol`, `rel_tol` and `reltol` are one."""
    return name.replace("_", "").lower()


def answered(fn: Callable[P, R], table: dict[str, str] = ARGUMENTS) -> Callable[P, R]:
    """`fn`, with an error for each argument it does not have that says what to write instead."""
    known = inspect.signature(fn).parameters
    must = [name for name, v in known.items() if v.default is v.empty]
    unnamed = sum(v.kind is not v.KEYWORD_ONLY for v in known.values())

    @functools.wraps(fn)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if not kwargs.keys() <= known.keys():
            name = next(k for k in kwargs if k not in known)
            raise _unknown(fn.__name__, name, list(known), table)
        absent = [name for name in must[len(args) :] if name not in kwargs]
        if absent or len(args) > unnamed:
            what = f"{absent[0]} is missing" if absent else f"{len(args)} arguments without names"
            call = f"saltus.{fn.__name__}({', '.join(must)})"
            raise TypeError(f"{fn.__name__}: {what}. Write {call}, and all others by name.")
        return fn(*args, **kwargs)

    return checked


def _unknown(owner: str, name: str, known: list[str], table: dict[str, str]) -> TypeError:
    answer = table.get(plain(name)) or nearest(name, known) or f"There are {', '.join(known)}"
    return TypeError(f"{owner}: there is no argument `{name}`. {answer}.")


def nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(plain(name), known, n=2, cutoff=0.6)
    return f"The nearest name is {' or '.join(close)}" if close else ""


def missing(owner: object, what: str, name: str, table: dict[str, str]) -> AttributeError:
    """The error for an attribute that is not there."""
    known = [k for k in dir(type(owner)) if not k.startswith("_")]
    known += [k for k in getattr(owner, "__dict__", {}) if not k.startswith("_")]
    answer = table.get(plain(name)) or nearest(name, known)
    text = f"{what} has no attribute '{name}'"
    return AttributeError(f"{text}. {answer}." if answer else f"{text}.", name=name)


def method_named(word: str) -> str:
    """What to write for a method that was given by its name in another library."""
    own = METHODS.get(plain(word).removeprefix("diffrax.").removesuffix("()"), "Tsit5")
    return f"saltus.{own}()"


def not_here(name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that the package does not have."""
    word = plain(name)
    answer = PACKAGE.get(word) or (
        f"Write method={method_named(word)}" if word in METHODS else nearest(name, known)
    )
    text = f"saltus has no '{name}'"
    return AttributeError(f"{text}. {answer}." if answer else f"{text}.", name=name)


def optimiser_named(word: str) -> str:
    """What to write for an optimiser that was given as a method."""
    own = OPTIMISERS.get(plain(word).replace("-", ""))
    if own is None:
        return f"Write method={method_named(word)}"
    return f'method= is how the model is solved. Write optimiser="{own}"'
