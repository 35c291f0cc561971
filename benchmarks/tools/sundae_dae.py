"""scikit-sundae: SUNDIALS' CVODE and IDA from Python, with the model as Python callbacks.

It has no sensitivities: gradients are by hand (see by_hand.py).
"""

from functools import partial

import numpy as np
from sksundae.cvode import CVODE
from sksundae.ida import IDA

from problems import bed
from problems import dae as problems
from race import Family
from tools import by_hand

TOOL = "scikit-sundae"
MOST = 50_000


def check(done):
    if not done.success:
        raise RuntimeError(done.message)
    return done


def filled(flow):
    def right_hand_side(t, y, yp):
        yp[:] = flow(t, y.tolist())

    return right_hand_side


def smooth(model, both, rtol, atol):
    """The state at the end by CVODE; with `both`, its derivatives too."""

    def jacobian(t, y, yp, matrix):
        matrix[:] = model.jacobian(t, y)

    flow, start = (model.flow_both, model.start_both) if both else (model.flow, model.start)
    options = {} if both else {"jacfn": jacobian}
    solver = CVODE(filled(flow), rtol=rtol, atol=atol, max_num_steps=MOST, **options)
    return lambda: check(solver.solve([0.0, model.end / 2, model.end], start))


def robertson_dae(both, rtol, atol):
    """IDA with a + b + c = 1, and the same for every derivative."""
    model = by_hand.Robertson()
    flow, start = (model.flow_both, model.start_both) if both else (model.flow, model.start)

    def residual(t, y, yp, res):
        rates = flow(t, y.tolist())
        res[:] = yp - rates
        for k in range(2, len(y), 3):
            res[k] = y[k - 2] + y[k - 1] + y[k] - (1.0 if k == 2 else 0.0)

    def jacobian(t, y, yp, res, cj, matrix):
        matrix[:] = cj * np.eye(3) - model.jacobian(t, y)
        matrix[2] = 1.0

    options = {} if both else {"jacfn": jacobian}
    solver = IDA(
        residual,
        rtol=rtol,
        atol=atol,
        max_num_steps=MOST,
        algebraic_idx=list(range(2, start.size, 3)),
        **options,
    )
    slopes = np.array(flow(0.0, start.tolist()))
    return lambda: check(solver.solve([0.0, model.end / 2, model.end], start, slopes))


def segment(method, rtol, atol, flow, guard, t, x, times):
    """Values at `times` up to the first event, the event, and the number of steps."""

    def event(t, y, values):
        values[0] = guard(t, y)

    event.terminal, event.direction = [True], [1]
    solver = CVODE(
        filled(flow),
        method=method,
        rtol=rtol,
        atol=atol,
        eventsfn=event,
        num_events=1,
        max_num_steps=MOST,
    )
    asked = [t, *times] if len(times) > 1 else [t, (t + times[0]) / 2, times[0]]
    done = check(solver.solve(asked, x))
    skip = 1 if len(times) > 1 else 2
    if done.t_events is None:
        return done.y[skip:], None, done.nfev
    last = len(done.t) - 1 if done.t[-1] == done.t_events[-1] else len(done.t)
    return done.y[skip:last], (done.t_events[-1], done.y_events[-1]), done.nfev


def hybrid(model, what, method, rtol, atol):
    part = partial(segment, method, rtol, atol)
    if what == "solve":
        return lambda: model.answer(part, model.p)
    return lambda: by_hand.differences(model, part)


def bed_solve(rtol, atol):
    """IDA with a banded Jacobian: u, v, w and the running cost of a cell side by side."""
    n, a, b = bed.CELLS, bed.ADSORPTION, bed.REACTION
    heater = {"on": 1.0}

    def rates(y):
        u, v, w, _ = parts = y.reshape(n, 4).T
        du, dv = bed.flow(u, v, w, heater["on"], a, b, np)
        return parts, du, dv, (v - bed.WANTED_V) ** 2 / n

    def residual(t, y, yp, res):
        (u, v, w, _), du, dv, cost = rates(y)
        zero = bed.constraint(u, v, w, a)
        slopes = yp.reshape(n, 4)
        out = np.stack([slopes[:, 0] - du, slopes[:, 1] - dv, zero, slopes[:, 3] - cost], axis=1)
        res[:] = out.ravel()

    def event(t, y, yp, values):
        mean = np.mean(y[1::4])
        values[0] = mean - bed.HIGH if heater["on"] else bed.LOW - mean

    event.terminal, event.direction = [True], [1]
    solver = lambda: IDA(  # a new one for every piece: one that is used again keeps its events
        residual,
        rtol=rtol,
        atol=atol,
        linsolver="band",
        lband=4,
        uband=4,
        algebraic_idx=list(range(2, 4 * n, 4)),
        eventsfn=event,
        num_events=1,
        max_num_steps=MOST,
    )

    def run():
        heater["on"], t, evaluations = 1.0, 0.0, 0
        y = np.tile([1.0, 0.0, 0.0, 0.0], n)
        while True:
            y[2::4] = bed.coverage(y[0::4], y[1::4], a)
            _, du, dv, cost = rates(y)
            slopes = np.stack([du, dv, np.zeros(n), cost], axis=1).ravel()
            done = check(solver().solve([t, (t + bed.END) / 2, bed.END], y, slopes))
            evaluations += done.nfev
            if done.t_events is None:
                break
            t, y = done.t_events[-1], done.y_events[-1].copy()
            heater["on"] = 1.0 - heater["on"]
        end = done.y[-1]
        return np.sum(end[3::4]) + bed.final(end[0::4], np), evaluations

    return run


def cases(what):
    both = what != "solve"
    for problem, model, label, atols in (
        ("van der Pol", by_hand.VanDerPol(), "CVODE", (1.0, 1e-3)),
        ("Robertson ODE", by_hand.Robertson(), "CVODE", (1e-6, 1e-8)),
        ("Robertson DAE", by_hand.Robertson(), "IDA", (1e-6, 1e-8)),
    ):
        make = partial(smooth, model, both) if label == "CVODE" else partial(robertson_dae, both)
        read = model.read_both if both else model.read
        name = f"{label}, variational" if both else label
        yield Family(
            problem,
            what,
            TOOL,
            name,
            make,
            lambda done, read=read: (read(done.y[-1]), None),
            atols,
            tightest=1e-13,
        )
    for problem, model, factor in (
        ("Cauer ladder", by_hand.Cauer(), 1.0),
        ("hysteretic spring", by_hand.Spring(), 1e-2),
    ):
        for method in ("BDF", "Adams"):
            read = lambda got, model=model: (
                problems.relative(got[0], model.gradient if both else model.value),
                None,
            )
            name = f"CVODE {method}, differences" if both else f"CVODE {method}"
            make = partial(hybrid, model, what, method)
            yield Family(problem, what, TOOL, name, make, read, (factor,), ratio=10.0)
    if what == "solve":
        read = lambda got: (got[0] / bed.VALUE, None)
        yield Family("catalyst bed", what, TOOL, "IDA, banded", bed_solve, read, (1.0,), ratio=10.0)
