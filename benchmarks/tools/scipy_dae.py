"""scipy: Radau, BDF and LSODA, with the model as Python callbacks and gradients by hand."""

from functools import partial

import numpy as np
from scipy.integrate import solve_ivp

from problems import dae as problems
from race import Family
from tools import by_hand

TOOL = "scipy"


def check(done):
    if done.status < 0:
        raise RuntimeError(done.message)
    return done


def smooth(model, both, method, rtol, atol):
    flow, start = (model.flow_both, model.start_both) if both else (model.flow, model.start)
    options = {} if both else {"jac": model.jacobian}
    listed = lambda t, y: flow(t, y.tolist())
    return lambda: check(
        solve_ivp(listed, (0.0, model.end), start, method, rtol=rtol, atol=atol, **options)
    )


def segment(method, rtol, atol, flow, guard, t, x, times):
    """Values at `times` up to the first event, the event, and the number of steps."""
    event = lambda t, y: guard(t, y)
    event.terminal, event.direction = True, 1.0
    done = check(
        solve_ivp(
            lambda t, y: flow(t, y.tolist()),
            (t, times[-1]),
            x,
            method,
            times,
            events=event,
            rtol=rtol,
            atol=atol,
        )
    )
    values = done.y.T if len(done.t) else np.zeros((0, len(x)))
    if done.status == 0:
        return values, None, done.nfev
    return values, (done.t_events[0][0], done.y_events[0][0]), done.nfev


def hybrid(model, what, method, rtol, atol):
    part = partial(segment, method, rtol, atol)
    if what == "solve":
        return lambda: model.answer(part, model.p)
    return lambda: by_hand.differences(model, part)


def cases(what):
    both = what != "solve"
    for problem, model, atols in (
        ("van der Pol", by_hand.VanDerPol(), (1e-3,)),
        ("Robertson ODE", by_hand.Robertson(), (1e-8,)),
    ):
        read = model.read_both if both else model.read
        for method in ("Radau", "BDF", "LSODA"):
            yield Family(
                problem,
                what,
                TOOL,
                f"{method}, variational" if both else method,
                partial(smooth, model, both, method),
                lambda done, read=read: (read(done.y[:, -1]), len(done.t) - 1),
                atols,
                tightest=1e-13,
                ratio=10.0,
            )
    for problem, model, factor in (
        ("Cauer ladder", by_hand.Cauer(), 1.0),
        ("hysteretic spring", by_hand.Spring(), 1e-2),
    ):
        for method in ("LSODA", "DOP853") if both else ("Radau", "BDF", "LSODA", "DOP853"):
            read = lambda got, model=model: (
                problems.relative(got[0], model.gradient if both else model.value),
                None,
            )
            yield Family(
                problem,
                what,
                TOOL,
                f"{method}, differences" if both else method,
                partial(hybrid, model, what, method),
                read,
                (factor,),
                loosest=1e-5,
                tightest=1e-12,
                ratio=10.0,
            )
