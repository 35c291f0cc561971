"""CasADi on stiff, algebraic and hybrid problems: CVODES, IDAS, and its explicit `erk`.

Gradients by its forward sensitivities (`nfwd`, all parameters at once) and by its adjoint
(`nadj`). The adjoint of a solve with events crashes the process with CVODES and IDAS, so there
only the forward one runs in the table; `failures()` shows the others, each in a child process.
"""

from functools import cache, partial

import casadi
import numpy as np

from problems import bed
from problems import dae as problems
from race import ROOT, Family
from tools.casadi_core import COMPILED, Buffered

TOOL = "casadi"
MOST = 20_000  # steps
TAPE = 20_000  # room for steps of `erk` when differentiated backwards

NONE = casadi.SX.sym("none", 0)


def symbols(*sizes):
    made = [casadi.SX.sym(f"s{k}", size) for k, size in enumerate(sizes)]
    return [(s, casadi.vertsplit(s)) for s in made]


@cache
def van_der_pol():
    (x, xs), (p, ps) = symbols(2, 1)
    ode = casadi.vertcat(*problems.van_der_pol(*xs, ps[0]))
    return {"x": x, "p": p, "ode": ode}, {}


@cache
def robertson(algebraic):
    """As a DAE the third species is algebraic; as an ODE it has its own rate."""
    (x, xs), (z, zs), (p, ps) = symbols(2 if algebraic else 3, 1, 3)
    a, b, c = (*xs, *zs) if algebraic else xs
    rates = problems.robertson(a, b, c, ps)
    if algebraic:
        model = {"x": x, "z": z, "p": p, "ode": casadi.vertcat(*rates[:2]), "alg": a + b + c - 1.0}
        # IDACalcIC fails from zero slopes, so they are given; the adjoint has no such way out
        return model, {
            "calc_ic": False,
            "init_xdot": [-problems.ROBERTSON[0], problems.ROBERTSON[0]],
        }
    return {"x": x, "p": p, "ode": casadi.vertcat(*rates)}, {}


@cache
def cauer(algebraic):
    (x, xs), (z, zs), (p, ps), (t, _), (index, _) = symbols(5, 3, 7, 1, 1)
    model = {"x": x, "p": p, "t": t, "zero": problems.CAUER_LEVEL - xs[3]}
    if algebraic:
        model |= {
            "z": z,
            "ode": casadi.vertcat(*problems.cauer_flow(xs, zs, ps)),
            "alg": casadi.vertcat(*problems.cauer_constraint(t, xs, zs, ps, casadi)),
        }
    else:
        model["ode"] = casadi.vertcat(*problems.cauer_ode(t, xs, ps, casadi))
    emptied = casadi.vertcat(xs[0], xs[1], xs[2], 0.0, xs[4])
    return model, {"transition": transition(index, t, x, z if algebraic else NONE, p, emptied)}


@cache
def spring(algebraic):
    """The branch (u*, z*, xi) as states that stand still between reversals."""
    (x, xs), (z, zs), (p, ps), (t, _), (index, _) = symbols(5, 1, 4, 1, 1)
    u, v, *branch = xs
    on_branch = problems.spring_force(u, branch, ps, casadi)
    force = zs[0] if algebraic else on_branch
    ode = casadi.vertcat(v, problems.spring_load(t, casadi) - force, 0.0, 0.0, 0.0)
    model = {"x": x, "p": p, "t": t, "ode": ode, "quad": u * u, "zero": branch[2] * v}
    if algebraic:
        model |= {"z": z, "alg": z - on_branch}
    turned = casadi.vertcat(u, v, u, force, -branch[2])
    return model, {"transition": transition(index, t, x, z if algebraic else NONE, p, turned)}


class VectorMath:
    """The names that `problems/bed.py` uses, for CasADi's columns."""

    exp = staticmethod(casadi.exp)
    sum = staticmethod(casadi.sum1)
    concatenate = staticmethod(lambda parts: casadi.vertcat(*parts))


@cache
def bed_model():
    """The heater's switch is one more state."""
    n = bed.CELLS
    (x, _), (w, _), (p, _), (t, _), (index, _) = symbols(2 * n + 1, n, 2 * n, 1, 1)
    u, v, on, a, b = x[:n], x[n : 2 * n], x[2 * n], p[:n], p[n:]
    mean = casadi.sum1(v) / n
    model = {
        "x": x,
        "z": w,
        "p": p,
        "t": t,
        "ode": casadi.vertcat(*bed.flow(u, v, w, on, a, b, VectorMath), 0.0),
        "alg": bed.constraint(u, v, w, a),
        "quad": bed.running(v, VectorMath),
        "zero": casadi.vertcat(bed.HIGH - mean, mean - bed.LOW),
    }
    switched = casadi.vertcat(u, v, index)  # event 0: off, event 1: on
    options = {"transition": transition(index, t, x, w, p, switched), "linear_solver": "csparse"}
    return model, options


def transition(index, t, x, z, p, after):
    inputs, outputs = [index, t, x, z, p, NONE], [after, z]
    return casadi.Function("jump", inputs, outputs, casadi.event_in(), casadi.event_out())


def prepared(model, x0, p, times, plugin, forward=False, adjoint=None, **settings):
    """A function of (rtol, atol) that gives the timed call."""
    equations, options = model
    x0, p = np.array(x0, float), np.array(p, float)
    n, count = x0.size, p.size if forward else 0
    options = dict(options)
    if plugin == "erk":
        options |= {"max_tape_steps": TAPE} if adjoint is not None else {}
    else:
        options |= {"max_num_steps": MOST}
    if "init_xdot" in options:
        options["init_xdot"] = [*options["init_xdot"], *[0.0] * (n * count)]
        options["calc_icB"] = True
    options |= {"nfwd": count} if count else {}
    options |= {"nadj": 1} if adjoint is not None else {}
    inputs = {
        "x0": np.concatenate([x0, np.zeros(n * count)]),
        "p": np.concatenate([p, np.eye(p.size)[:count].ravel()]),
        **{k: v for k, v in (adjoint or {}).items() if not callable(v)},
    }

    def prepare(rtol, atol):
        choice = {**options, **settings, "reltol": rtol, "abstol": atol}
        made = casadi.integrator("made", plugin, equations, 0.0, times, choice)
        call = Buffered(made, **inputs)
        if adjoint is None or "adj_xf" not in adjoint or not callable(adjoint["adj_xf"]):
            return call
        # seeds that depend on the solution: given in advance, which flatters a little
        call.inputs[made.index_in("adj_xf")][:] = 0.0
        seeds = adjoint["adj_xf"](call().output("xf"))
        call.inputs[made.index_in("adj_xf")][:] = seeds.ravel()
        return call

    return prepare


def steps(done):
    """Buffered calls keep no statistics: call once more without the buffers."""
    names = [done.function.name_in(k) for k in range(done.function.n_in())]
    values = [casadi.DM(done.function.sparsity_in(k), done.inputs[k]) for k in range(len(names))]
    done.function(**dict(zip(names, values, strict=True)))
    stats = done.function.stats()
    return int(stats.get("nsteps", stats.get("n_steps", -1)))


def families(
    problem, what, label, plugin, make, read, atols, tool=TOOL, also="", ratio=ROOT, **more
):
    return Family(
        problem,
        what,
        tool,
        label,
        make(plugin=plugin, **more),
        lambda done: (read(done), steps(done) if tool == TOOL else None),
        atols,
        tightest=1e-13,
        ratio=ratio,
        also=also,
    )


def smooth(problem, what, make, value, gradient, atols, plugins, n):
    """Families of a problem without events: `make` is `prepared` but for the plug-in."""
    scaled = lambda g: problems.relative(g, gradient)
    ahead = lambda done: scaled(done.output("xf").reshape(-1, n)[1:, 0])
    back = lambda done: scaled(done.output("adj_p"))
    for plugin in plugins:
        one = partial(families, problem, what, plugin=plugin, make=make, atols=atols)
        if what == "solve":
            yield one(label=plugin, read=lambda done: done.output("xf")[0] / value)
            continue
        yield one(label=f"{plugin}, forward", read=ahead, forward=True)
        if problem == "Robertson DAE":
            continue  # see FAILURES
        seed = {"adj_xf": np.eye(n)[0]}
        yield one(label=f"{plugin}, adjoint", read=back, adjoint=seed, also=f"{TOOL}, adjoint")


def van_der_pol_families(what):
    yield from smooth(
        "van der Pol",
        what,
        partial(prepared, van_der_pol(), problems.VDP_START, [problems.VDP_MU], problems.VDP_END),
        problems.VDP_VALUE,
        problems.VDP_GRADIENT,
        (1.0, 1e-3),
        ("cvodes", "idas"),
        2,
    )


def robertson_families(what, algebraic):
    start = [1.0, 0.0] if algebraic else [1.0, 0.0, 0.0]
    make = partial(
        prepared, robertson(algebraic), start, problems.ROBERTSON, problems.ROBERTSON_END
    )
    yield from smooth(
        "Robertson DAE" if algebraic else "Robertson ODE",
        what,
        make,
        problems.ROBERTSON_VALUE,
        problems.ROBERTSON_GRADIENT,
        (1e-4, 1e-6, 1e-8),
        ("idas",) if algebraic else ("cvodes",),
        2 if algebraic else 3,
    )


def cauer_loss(done):
    miss = done.output("xf").reshape(-1, 5) - problems.cauer_samples()[1:]
    return np.sum(miss**2) / problems.cauer_samples().size / problems.CAUER_VALUE


def cauer_seeds(x):
    difference = x.reshape(-1, 5) - problems.cauer_samples()[1:]
    return 2.0 * difference / problems.cauer_samples().size


def cauer_forward(done):
    x = done.output("xf").reshape(problems.CAUER_TIMES.size - 1, 8, 5)
    gradient = np.einsum("tks,ts->k", x[:, 1:], cauer_seeds(x[:, 0]))
    return problems.relative(gradient, problems.CAUER_GRADIENT)


# Tool, plug-in, algebraic, options, and whether its adjoint survives events.
HYBRID = (
    (TOOL, "idas", True, {}, False),
    (TOOL, "cvodes", False, {}, False),
    (TOOL, "erk", False, {}, True),
    (f"{TOOL}, compiled", "erk", False, COMPILED, True),
)


def cauer_families(what):
    for tool, plugin, algebraic, options, backwards in HYBRID:
        start, times = np.zeros(5), problems.CAUER_TIMES[1:]
        make = partial(prepared, cauer(algebraic), start, problems.CAUER, times, **options)
        one = partial(
            families, "Cauer ladder", what, plugin=plugin, make=make, atols=(1.0,), tool=tool
        )
        if what == "solve":
            yield one(label=plugin, read=cauer_loss)
            continue
        if not options:
            yield one(label=f"{plugin}, forward", read=cauer_forward, forward=True)
        if backwards:
            yield one(
                label=f"{plugin}, adjoint",
                read=lambda done: problems.relative(done.output("adj_p"), problems.CAUER_GRADIENT),
                adjoint={"adj_xf": cauer_seeds},
            )


def spring_families(what):
    """CVODES and IDAS are left out: between output times they lose reversals or stop."""
    scaled = lambda g: problems.relative(g, problems.SPRING_GRADIENT)
    for tool, plugin, algebraic, options, _ in HYBRID[2:]:
        start = [0.0, 0.0, 0.0, 0.0, 1.0]
        make = partial(
            prepared, spring(algebraic), start, problems.SPRING, problems.SPRING_END, **options
        )
        one = partial(
            families, "hysteretic spring", what, plugin=plugin, make=make, atols=(1e-2,), tool=tool
        )
        if what == "solve":
            yield one(label=plugin, read=lambda done: done.output("qf")[-1] / problems.SPRING_VALUE)
            continue
        if not options:
            yield one(
                label=f"{plugin}, forward",
                read=lambda done: scaled(done.output("qf").reshape(-1)[1:]),
                forward=True,
            )
        yield one(
            label=f"{plugin}, adjoint",
            read=lambda done: scaled(done.output("adj_p")),
            adjoint={"adj_qf": [1.0]},
        )


BED_START = np.concatenate([np.ones(bed.CELLS), np.zeros(bed.CELLS), [1.0]])
BED_P = np.concatenate([bed.ADSORPTION, bed.REACTION])
BED_TIMES = np.linspace(0.0, bed.END, 101)[1:]  # close enough that no switch is lost


def bed_cost(done):
    u = done.output("xf")[-2 * bed.CELLS - 1 :][: bed.CELLS]
    return (done.output("qf")[-1] + bed.final(u, np)) / bed.VALUE


def bed_families(what):
    """No gradient: 1,000 forward sensitivities are out of reach, and see FAILURES."""
    if what == "solve":
        make = partial(prepared, bed_model(), BED_START, BED_P, BED_TIMES)
        yield families("catalyst bed", what, "idas", "idas", make, bed_cost, (1.0,), ratio=10.0)


def adjoint_of_bed():
    seed = {"adj_qf": np.eye(BED_TIMES.size)[-1]}
    make = prepared(bed_model(), BED_START, BED_P, BED_TIMES, "idas", adjoint=seed)
    return make(1e-6, 1e-6)().output("adj_p")[0]


def cases(what):
    yield from van_der_pol_families(what)
    yield from robertson_families(what, False)
    yield from robertson_families(what, True)
    yield from cauer_families(what)
    yield from spring_families(what)
    yield from bed_families(what)


def adjoint_of_robertson(rtol):
    start, p = [1.0, 0.0], problems.ROBERTSON
    seed = {"adj_xf": [1.0, 0.0]}
    make = prepared(robertson(True), start, p, problems.ROBERTSON_END, "idas", adjoint=seed)
    got = make(rtol, 1e-6 * rtol)().output("adj_p")
    return problems.relative(got, problems.ROBERTSON_GRADIENT)


def adjoint_of_cauer(plugin, algebraic):
    start, times = np.zeros(5), problems.CAUER_TIMES[1:]
    seed = {"adj_xf": cauer_seeds}
    make = prepared(cauer(algebraic), start, problems.CAUER, times, plugin, adjoint=seed)
    return problems.relative(make(1e-8, 1e-8)().output("adj_p"), problems.CAUER_GRADIENT)


def solve_of_spring(plugin, algebraic, pieces):
    start, times = [0.0, 0.0, 0.0, 0.0, 1.0], np.linspace(0.0, problems.SPRING_END, pieces + 1)[1:]
    make = prepared(spring(algebraic), start, problems.SPRING, times, plugin)
    return make(1e-8, 1e-10)().output("qf")[-1] / problems.SPRING_VALUE


# What was left out above, each run in a process of its own: problem, what, setting, answer.
FAILURES = (
    *(
        ("Robertson DAE", "adjoint", f"idas, rtol {rtol:.0e}", partial(adjoint_of_robertson, rtol))
        for rtol in (1e-4, 1e-6, 1e-8)
    ),
    ("catalyst bed", "adjoint", "idas", adjoint_of_bed),
    ("Cauer ladder", "adjoint", "cvodes", partial(adjoint_of_cauer, "cvodes", False)),
    ("Cauer ladder", "adjoint", "idas", partial(adjoint_of_cauer, "idas", True)),
    *(
        (
            "hysteretic spring",
            "solve",
            f"{plugin}, {pieces} output times",
            partial(solve_of_spring, plugin, algebraic, pieces),
        )
        for plugin, algebraic in (("cvodes", False), ("idas", True))
        for pieces in (1, 200)
    ),
)
