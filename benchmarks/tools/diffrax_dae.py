"""diffrax: Kvaerno3/4/5 on the stiff problems (as ODEs: it has no algebraic states).

Hybrid problems are a scan over solves that end at an event. Explicit methods run there too.
"""

from functools import cache, partial

import diffrax
import jax
import jax.numpy as jnp
import optimistix

from problems import dae as problems
from race import Family

jax.config.update("jax_enable_x64", True)

TOOL = "diffrax"
MOST = 2**16  # steps of a smooth problem
CHECKPOINTS = 2**13  # as many as steps wherever the goals are reached: nothing is computed twice
SEGMENT = 2**11  # steps between two events
STIFF = (diffrax.Kvaerno3, diffrax.Kvaerno4, diffrax.Kvaerno5)
HYBRID = (diffrax.Tsit5, diffrax.Dopri8, diffrax.Kvaerno5)


def adjoint(way, checkpoints):
    if way == "adjoint":
        return diffrax.RecursiveCheckpointAdjoint(checkpoints=checkpoints)
    return diffrax.ForwardMode()


def solve(flow, kind, way, start, p, rtol, atol, t0, t1, **more):
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, p: jnp.stack(flow(t, y, p))),
        kind(),
        t0,
        t1,
        None,
        start,
        args=p,
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
        adjoint=adjoint(way, more.pop("checkpoints", CHECKPOINTS)),
        throw=False,
        **more,
    )


def van_der_pol(kind, way, p, rtol, atol):
    flow = lambda t, y, mu: problems.van_der_pol(y[0], y[1], mu)
    start = jnp.array(problems.VDP_START)
    end = problems.VDP_END
    done = solve(flow, kind, way, start, p, rtol, atol, 0.0, end, max_steps=MOST)
    return done.ys[-1, 0], done.stats["num_steps"]


def robertson(kind, way, p, rtol, atol):
    flow = lambda t, y, k: problems.robertson(y[0], y[1], y[2], k)
    start = jnp.array([1.0, 0.0, 0.0])
    end = problems.ROBERTSON_END
    done = solve(flow, kind, way, start, p, rtol, atol, 0.0, end, max_steps=MOST)
    return done.ys[-1, 0], done.stats["num_steps"]


def event(guard):
    newton = optimistix.Newton(1e-12, 1e-12)
    return diffrax.Event(lambda t, y, args, **kw: guard(y, args), newton, direction=False)


def cauer(kind, way, p, rtol, atol):
    flow = lambda t, x, p: problems.cauer_ode(t, x, p, jnp)
    full = event(lambda x, p: problems.CAUER_LEVEL - x[3])
    times, samples = jnp.array(problems.CAUER_TIMES), problems.cauer_samples()

    def segment(state, _):
        t, x, loss = state
        end = problems.CAUER_END
        more = {"event": full, "max_steps": SEGMENT, "checkpoints": SEGMENT}
        saveat = diffrax.SaveAt(t1=True, dense=True)
        done = solve(flow, kind, way, x, p, rtol, atol, t, end, saveat=saveat, **more)
        reached = done.ts[-1]
        hit = done.event_mask
        inside = (times >= t) & jnp.where(hit, times < reached, times <= reached) & (t < end)
        at = jnp.where(inside, times, t)
        values = jax.vmap(done.evaluate)(at)
        miss = jnp.where(inside[:, None], values - samples, 0.0)
        after = jnp.where(hit, done.ys[-1].at[3].set(0.0), done.ys[-1])
        return (reached, after, loss + jnp.sum(miss**2)), done.stats["num_steps"]

    start = (jnp.zeros(()), jnp.zeros(5), jnp.zeros(()))
    (_, _, loss), steps = jax.lax.scan(segment, start, None, length=problems.CAUER_EVENTS + 1)
    return loss / samples.size, steps.sum()


def spring(kind, way, p, rtol, atol):
    """The integral is a third state; diffrax watches a guard from its value at the start of a
    step, so a segment starts with a guard that is zero up to rounding, and is shifted by it."""

    def flow(t, x, args):
        p, branch, _ = args
        force = problems.spring_force(x[0], branch, p, jnp)
        return x[1], problems.spring_load(t, jnp) - force, x[0] ** 2

    turn = event(lambda x, args: args[1][2] * x[1] + args[2])

    def segment(state, _):
        t, x, branch = state
        lift = jnp.where(t == 0.0, 1e-14, 1e-13)
        args = (p, branch, lift)
        more = {"event": turn, "max_steps": SEGMENT, "checkpoints": SEGMENT}
        done = solve(flow, kind, way, x, args, rtol, atol, t, problems.SPRING_END, **more)
        x, hit = done.ys[-1], done.event_mask
        force = problems.spring_force(x[0], branch, p, jnp)
        turned = (x[0], force, -branch[2])
        branch = tuple(jnp.where(hit, new, old) for new, old in zip(turned, branch, strict=True))
        return (done.ts[-1], x, branch), done.stats["num_steps"]

    start = (jnp.zeros(()), jnp.zeros(3), (jnp.zeros(()), jnp.zeros(()), jnp.ones(())))
    (_, x, _), steps = jax.lax.scan(segment, start, None, length=problems.SPRING_EVENTS + 1)
    return x[2], steps.sum()


@cache
def compiled(answer, kind, way):
    """One program for all tolerances."""
    value = partial(answer, kind, way)
    if way == "solve":
        return jax.jit(value)
    transform = jax.grad if way == "adjoint" else jax.jacfwd
    return jax.jit(transform(value, has_aux=True))


def prepared(answer, kind, way, p, rtol, atol):
    program = compiled(answer, kind, way)
    arguments = [jnp.asarray(a, float) for a in (p, rtol, atol)]
    return lambda: jax.block_until_ready(program(*arguments))


# Its answer, parameters, the value and gradient to reach, methods, factors for atol.
PROBLEMS = {
    "van der Pol": (
        van_der_pol,
        problems.VDP_MU,
        (problems.VDP_VALUE, problems.VDP_GRADIENT),
        STIFF,
        (1.0, 1e-3),
    ),
    "Robertson ODE": (
        robertson,
        problems.ROBERTSON,
        (problems.ROBERTSON_VALUE, problems.ROBERTSON_GRADIENT),
        STIFF,
        (1e-6, 1e-8),
    ),
    "Cauer ladder": (
        cauer,
        problems.CAUER,
        (problems.CAUER_VALUE, problems.CAUER_GRADIENT),
        HYBRID,
        (1.0,),
    ),
    "hysteretic spring": (
        spring,
        problems.SPRING,
        (problems.SPRING_VALUE, problems.SPRING_GRADIENT),
        HYBRID,
        (1e-2,),
    ),
}


def cases(what):
    for problem, (answer, p, truths, kinds, atols) in PROBLEMS.items():
        truth = truths[what != "solve"]
        for kind in kinds:
            for way in ("solve",) if what == "solve" else ("forward", "adjoint"):
                yield Family(
                    problem,
                    what,
                    TOOL,
                    kind.__name__ if what == "solve" else f"{kind.__name__}, {way}",
                    partial(prepared, answer, kind, way, p),
                    lambda result, truth=truth: (
                        problems.relative(result[0], truth),
                        int(result[1]),
                    ),
                    atols,
                    tightest=1e-12,
                    ratio=10.0,
                )
