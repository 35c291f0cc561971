"""diffrax: its events end a solve, so a trajectory with jumps is a scan over solves.

Two settings. "diffrax" is the fastest found that reaches the same accuracy: bisection (cheaper
here than Newton, whose every iteration sets up a linear solve), as many checkpoints as steps, few
steps per segment. "diffrax, plain" is what its documentation suggests: Newton, default
checkpoints, and a bound on the steps with some room.
"""

from dataclasses import dataclass
from functools import partial

import diffrax
import jax
import jax.numpy as jnp
import optimistix

from harness import Case
from problems import core as problems

jax.config.update("jax_enable_x64", True)


@dataclass(frozen=True)
class Setting:
    tool: str
    root_finder: optimistix.AbstractRootFinder
    max_steps: int  # per segment
    checkpoints: int | None


NEWTON = optimistix.Newton(1e-10, 1e-10)
TUNED = Setting("diffrax", optimistix.Bisection(1e-12, 1e-12), max_steps=16, checkpoints=16)
PLAIN = Setting("diffrax, plain", NEWTON, max_steps=64, checkpoints=None)

forward = diffrax.ForwardMode()


def backward(setting):
    return diffrax.RecursiveCheckpointAdjoint(checkpoints=setting.checkpoints)


def ball(q, setting, adjoint, segments=problems.BALL_BOUNCES + 1):
    """The height at the end and the number of steps, for q = (h0, v0, g, e)."""
    h0, v0, g, e = q
    term = diffrax.ODETerm(lambda t, y, g: jnp.stack([y[1], -g]))
    event = diffrax.Event(lambda t, y, args, **kw: y[0], setting.root_finder, direction=False)
    control = diffrax.PIDController(rtol=problems.TOLERANCE, atol=problems.TOLERANCE)

    def segment(state, _):
        t, h, v = state
        done = diffrax.diffeqsolve(
            term,
            diffrax.Tsit5(),
            t,
            problems.BALL_END,
            None,
            jnp.stack([h, v]),
            args=g,
            stepsize_controller=control,
            event=event,
            adjoint=adjoint,
            max_steps=setting.max_steps,
            throw=False,
        )
        h, v = done.ys[-1]
        hit = done.event_mask
        after = (done.ts[-1], jnp.where(hit, 0.0, h), jnp.where(hit, -e * v, v))
        return after, done.stats["num_steps"]

    (_, height, _), steps = jax.lax.scan(segment, (jnp.zeros(()), h0, v0), None, length=segments)
    return height, steps.sum()


def lorenz(end):
    """The state at `end` and the number of steps; tuples of scalars are fastest here."""
    sigma, rho, beta = problems.LORENZ

    def flow(t, s, args):
        x, y, z = s
        return sigma * (y - x), x * (rho - z) - y, x * y - beta * z

    done = diffrax.diffeqsolve(
        diffrax.ODETerm(flow),
        diffrax.Dopri5(),
        0.0,
        end,
        None,
        tuple(jnp.asarray(s) for s in problems.LORENZ_START),
        stepsize_controller=diffrax.PIDController(rtol=problems.TOLERANCE, atol=problems.TOLERANCE),
        adjoint=forward,
        max_steps=None,
    )
    return tuple(s[-1] for s in done.ys), done.stats["num_steps"]


def jitted(function, *arguments):
    """A call without arguments that waits for its result."""
    arguments = jax.tree.map(jnp.asarray, arguments)
    compiled = jax.jit(function)
    return lambda: jax.block_until_ready(compiled(*arguments))


def ball_cases(setting):
    case = partial(Case, "ball", tool=setting.tool)
    ahead = lambda q: ball(q, setting, forward)
    back = lambda q: ball(q, setting, backward(setting))[0]
    yield case(
        "solve",
        build=lambda: jitted(ahead, problems.BALL),
        exact=problems.BALL_HEIGHT,
        answer=lambda result: result[0],
        steps=lambda result: result[1],
    )
    q = jnp.array(problems.BALL)
    yield case(
        "value+gradient",
        build=lambda: jitted(jax.value_and_grad(back), q),
        exact=problems.BALL_GRADIENT,
        answer=lambda result: result[1],
    )
    column = lambda q: ahead(q)[0]
    yield case(
        "4-column Jacobian",
        build=lambda: jitted(jax.jacfwd(column), q),
        exact=problems.BALL_GRADIENT,
    )
    yield case(
        "Hessian",
        build=lambda: jitted(jax.jacfwd(jax.jacfwd(column)), q),
        exact=problems.BALL_HESSIAN,
    )


def many_ball_cases(tool, chunk):
    """One vmap over all of them, or over chunks that stay in the cache; Newton is faster here."""
    setting = Setting(tool, NEWTON, max_steps=16, checkpoints=16)
    segments = problems.BALLS_MOST_BOUNCES + 1
    case = partial(Case, "10,000 balls", tool=tool, share=problems.BALLS)
    at = lambda e: jnp.array(problems.BALL).at[3].set(e)
    heights, gradients = problems.many_balls()

    def chunked(function):
        return lambda all_: jax.lax.map(jax.vmap(function), all_.reshape(-1, chunk))

    def value(e):
        return ball(at(e), setting, forward, segments)[0]

    def gradient(e):
        return jax.value_and_grad(lambda q: ball(q, setting, backward(setting), segments)[0])(at(e))

    yield case(
        "value",
        build=lambda: jitted(chunked(value), problems.RESTITUTIONS),
        exact=heights,
    )
    yield case(
        "gradient",
        build=lambda: jitted(chunked(gradient), problems.RESTITUTIONS),
        exact=gradients,
        answer=lambda result: result[1],
    )


def lorenz_cases():
    yield Case(
        "Lorenz",
        "step",
        "diffrax",
        build=lambda: jitted(lorenz, problems.LORENZ_LONG),
        steps=lambda result: result[1],
        per_step=True,
    )
    yield Case(
        "Lorenz",
        "solve to 5",
        "diffrax",
        build=lambda: jitted(lorenz, problems.LORENZ_SHORT),
        exact=problems.lorenz_short(),
        answer=lambda result: result[0],
        steps=lambda result: result[1],
    )


def cases():
    yield from ball_cases(TUNED)
    yield from ball_cases(PLAIN)
    yield from lorenz_cases()
    yield from many_ball_cases("diffrax", 1000)
    yield from many_ball_cases("diffrax, plain", problems.BALLS)
