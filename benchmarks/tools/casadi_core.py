"""CasADi: its integrators have zero-crossing events and a transition function.

Two settings of its explicit Runge-Kutta integrator `erk`, which is the fastest of its integrators
here and the only explicit one with error control ("cvodes" loses the bounces between two output
times unless the output grid is dense). "casadi" interprets the model, as installed;
"casadi, compiled" writes the integrator out as C and needs a C compiler.
"""

from functools import partial

import casadi
import numpy as np

from harness import Case
from problems import core as problems

COMPILED = {"jit": True, "compiler": "shell", "jit_options": {"flags": ["-O3"], "verbose": False}}
MOST_STEPS = 256  # room on the tape that an adjoint needs when written out as C


def integrator(**options):
    """A function of x0 = (h, v) and p = (g, e) that gives the state at the end."""
    x, p = casadi.SX.sym("x", 2), casadi.SX.sym("p", 2)
    t, index = casadi.SX.sym("t"), casadi.SX.sym("index")
    none = casadi.SX.sym("none", 0)
    model = {"x": x, "p": p, "ode": casadi.vertcat(x[1], -p[0]), "zero": x[0]}
    bounce = casadi.Function(
        "bounce",
        [index, t, x, none, p, none],
        [casadi.vertcat(0, -p[1] * x[1]), none],
        casadi.event_in(),
        casadi.event_out(),
    )
    tolerance = {"reltol": problems.TOLERANCE, "abstol": problems.TOLERANCE}
    options = {"transition": bounce, **tolerance, **options}
    return casadi.integrator("ball", "erk", model, 0.0, problems.BALL_END, options)


class Buffered:
    """Calls a function through fixed buffers, CasADi's fastest way in from Python."""

    def __init__(self, function, **inputs):
        self.function = function
        self.buffer, self.evaluate = function.buffer()
        self.inputs = [np.zeros(function.nnz_in(k)) for k in range(function.n_in())]
        self.outputs = [np.zeros(function.nnz_out(k)) for k in range(function.n_out())]
        for k, array in enumerate(self.inputs):
            if array.size:
                array[:] = inputs.get(function.name_in(k), 0.0)
                self.buffer.set_arg(k, memoryview(array))
        for k, array in enumerate(self.outputs):
            if array.size:
                self.buffer.set_res(k, memoryview(array))

    def __call__(self):
        self.evaluate()
        return self

    def output(self, name):
        return self.outputs[self.function.index_out(name)]


def solve(**options):
    h0, v0, g, e = problems.BALL
    return Buffered(integrator(**options), x0=[h0, v0], p=[g, e], adj_xf=[1.0, 0.0])


def value_and_gradient(**options):
    """One adjoint direction built in, so that the trajectory is computed once for both."""
    return solve(nadj=1, max_tape_steps=MOST_STEPS, **options)


def derivative(what, **options):
    """`what(height, q)` for q = (h0, v0, g, e), as one function of q."""
    q = casadi.MX.sym("q", 4)
    height = integrator(max_tape_steps=MOST_STEPS)(x0=q[:2], p=q[2:])["xf"][0]
    made = casadi.Function("ball", [q], [what(height, q)], ["q"], ["out"], options)
    return Buffered(made, q=problems.BALL)


def columns(height, q):
    return casadi.jtimes(height, q, casadi.DM.eye(4))


def hessian(height, q):
    return casadi.hessian(height, q)[0]


def steps(done):
    """Buffered calls keep no statistics: call once more without the buffers."""
    h0, v0, g, e = problems.BALL
    done.function(x0=[h0, v0], p=[g, e])
    return done.function.stats()["n_steps"]


def cases():
    for tool, options in (("casadi", {}), ("casadi, compiled", COMPILED)):
        case = partial(Case, "ball", tool=tool)
        yield case(
            "solve",
            build=partial(solve, **options),
            exact=problems.BALL_HEIGHT,
            answer=lambda done: done.output("xf")[0],
            steps=None if options else steps,
        )
        yield case(
            "value+gradient",
            build=partial(value_and_gradient, **options),
            exact=problems.BALL_GRADIENT,
            answer=lambda done: np.append(done.output("adj_x0"), done.output("adj_p")),
        )
        yield case(
            "4-column Jacobian",
            build=partial(derivative, columns, **options),
            exact=problems.BALL_GRADIENT,
            answer=lambda done: done.output("out"),
        )
        yield case(
            "Hessian",
            build=partial(derivative, hessian, **options),
            exact=problems.BALL_HESSIAN,
            answer=lambda done: done.output("out"),
        )
