"""saltus on the same problems as the peers, written as a user would write them."""

from functools import cache, partial

import jax
import jax.numpy as jnp

import saltus
from harness import Case
from problems import core as problems

TOOL = "saltus"
CHUNK = 128  # lanes that stay in cache with either buffer
BUFFERS = (128, 1024)  # room for steps; the cost must not depend on it

tolerance = {"rtol": problems.TOLERANCE, "atol": problems.TOLERANCE}

bounce = saltus.Event(
    "bounce",
    guard=lambda now, p: now.x["h"],
    reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]}),
)
ball_system = saltus.HybridSystem(
    flow=lambda now, p: {"h": now.x["v"], "v": -p["g"]}, events=[bounce]
)


def drag(now, p):
    """The drag coefficient at the present speed: a table, interpolated smoothly."""
    near = 1.0 / (1.0 + (now.x["v"] - problems.DRAG_SPEEDS) ** 2)
    return jnp.dot(p["table"], near)


def with_drag(coefficient):
    return saltus.HybridSystem(
        flow=lambda now, p: {
            "h": now.x["v"],
            "v": -p["g"] - coefficient(now, p) * now.x["v"] * jnp.abs(now.x["v"]),
        },
        events=[bounce],
    )


drag_system = with_drag(lambda now, p: jnp.sum(p["table"]))  # 32 parts that add up
drag_table_system = with_drag(drag)


def lorenz_flow(now, p):
    x, y, z = now.x
    return p["sigma"] * (y - x), x * (p["rho"] - z) - y, x * y - p["beta"] * z


lorenz_system = saltus.HybridSystem(lorenz_flow)
watched_lorenz_system = saltus.HybridSystem(
    lorenz_flow, events=[saltus.Event("never", guard=lambda now, p: now.x[0] + 100.0)]
)


@cache
def thermostat_system():
    return saltus.automaton(
        {
            "cooling": saltus.Mode(
                lambda now, p: -p["a"] * now.x,
                exits=[saltus.Exit(lambda now, p: now.x - p["lo"], to="heating")],
            ),
            "heating": saltus.Mode(
                lambda now, p: -p["a"] * (now.x - p["H"]),
                exits=[saltus.Exit(lambda now, p: p["hi"] - now.x, to="cooling")],
            ),
        }
    )


def ball(q, max_steps=BUFFERS[0]):
    h0, v0, g, e = q
    return saltus.solve(
        ball_system,
        saltus.Instant(t=0.0, x={"h": h0, "v": v0}),
        {"g": g, "e": e},
        problems.BALL_END,
        method=saltus.Tsit5(**tolerance),
        max_steps=max_steps,
        max_events=16,
    )


def height(q, max_steps=BUFFERS[0]):
    return ball(q, max_steps).final.x["h"]


def dragged_height(table, system=drag_system):
    h0, v0, g, e = problems.BALL
    return saltus.solve(
        system,
        saltus.Instant(t=0.0, x={"h": h0, "v": v0}),
        {"g": g, "e": e, "table": table},
        problems.BALL_END,
        method=saltus.Tsit5(**tolerance),
        max_steps=256,
        max_events=16,
    ).final.x["h"]


def lorenz(system, end):
    return saltus.solve(
        system,
        saltus.Instant(t=0.0, x=problems.LORENZ_START),
        dict(zip(("sigma", "rho", "beta"), problems.LORENZ, strict=True)),
        end,
        method=saltus.Dopri5(**tolerance),
        max_steps=20_000,
    )


def last_switch(q):
    """The time of the thermostat's switch number 100,000, for q = (a, H, hi, lo)."""
    p = dict(zip(("a", "H", "hi", "lo"), q, strict=True))
    done = saltus.solve(
        thermostat_system(),
        saltus.Instant(t=0.0, x=p["hi"], mode="cooling"),
        p,
        problems.THERMOSTAT_END,
        method=saltus.Tsit5(**tolerance),
        max_steps=2**20,
        max_events=problems.SWITCHES + 16,
    )
    return done.events.t[problems.SWITCHES - 1]


def attempts(stats):
    return stats.steps + stats.rejected


def with_attempts(solve, answer):
    """The answer and the number of step attempts."""

    def both(*arguments):
        done = solve(*arguments)
        return answer(done), attempts(done.stats)

    return both


def jitted(function, *arguments):
    """A call without arguments that waits for its result."""
    arguments = jax.tree.map(jnp.asarray, arguments)
    compiled = jax.jit(function)
    return lambda: jax.block_until_ready(compiled(*arguments))


def ball_cases():
    case = partial(Case, "ball", tool=TOOL)
    q = problems.BALL
    array = jnp.array(q)
    yield case(
        "solve",
        build=lambda: jitted(with_attempts(ball, lambda done: done.final.x["h"]), q),
        exact=problems.BALL_HEIGHT,
        answer=lambda result: result[0],
        steps=lambda result: result[1],
    )
    yield case(
        "value+gradient",
        build=lambda: jitted(jax.value_and_grad(height), array),
        exact=problems.BALL_GRADIENT,
        answer=lambda result: result[1],
    )
    yield case(
        "4-column Jacobian",
        build=lambda: jitted(jax.jacfwd(height), array),
        exact=problems.BALL_GRADIENT,
    )
    yield case(
        "Hessian",
        build=lambda: jitted(jax.hessian(height), array),
        exact=problems.BALL_HESSIAN,
    )


def drag_cases():
    table = jnp.array(problems.DRAG_TABLE)
    for problem, system in (
        ("ball with drag", drag_system),
        ("drag by a table", drag_table_system),
    ):
        end = partial(dragged_height, system=system)
        yield Case(problem, "solve", TOOL, build=partial(jitted, end, table))
        yield Case(
            problem, "32-column Jacobian", TOOL, build=partial(jitted, jax.jacfwd(end), table)
        )


def lorenz_cases():
    state = lambda done: done.final.x
    for quantity, system in (
        ("step", lorenz_system),
        ("step, guard watched", watched_lorenz_system),
    ):
        yield Case(
            "Lorenz",
            quantity,
            TOOL,
            build=lambda system=system: jitted(
                with_attempts(partial(lorenz, system), state), problems.LORENZ_LONG
            ),
            steps=lambda result: result[1],
            per_step=True,
        )
    yield Case(
        "Lorenz",
        "solve to 5",
        TOOL,
        build=lambda: jitted(
            with_attempts(partial(lorenz, lorenz_system), state), problems.LORENZ_SHORT
        ),
        exact=problems.lorenz_short(),
        answer=lambda result: result[0],
        steps=lambda result: result[1],
    )


def in_chunks(function):
    """`function` of one restitution, for all of them: `CHUNK` lanes at a time."""
    count = problems.BALLS

    def all_of_them(restitutions):
        padded = jnp.pad(restitutions, (0, -count % CHUNK), mode="edge").reshape(-1, CHUNK)
        results = jax.lax.map(jax.vmap(function), padded)
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:count], results)

    return all_of_them


def many_ball_cases():
    heights, gradients = problems.many_balls()
    at = lambda e: jnp.array(problems.BALL).at[3].set(e)
    for size in BUFFERS:
        one = lambda q, size=size: height(q, size)
        suffix = "" if size == BUFFERS[0] else f", buffer {size}"
        case = partial(Case, "10,000 balls", tool=TOOL, share=problems.BALLS)
        yield case(
            "value" + suffix,
            build=lambda one=one: jitted(in_chunks(lambda e: one(at(e))), problems.RESTITUTIONS),
            exact=heights,
        )
        yield case(
            "gradient" + suffix,
            build=lambda one=one: jitted(
                in_chunks(lambda e: jax.value_and_grad(one)(at(e))), problems.RESTITUTIONS
            ),
            exact=gradients,
            answer=lambda result: result[1],
        )


def switch_cases():
    q = jnp.array(problems.THERMOSTAT)
    yield Case(
        "100,000 events",
        "solve",
        TOOL,
        build=lambda: jitted(last_switch, q),
        exact=problems.THERMOSTAT_TIME,
    )
    yield Case(
        "100,000 events",
        "value+gradient",
        TOOL,
        build=lambda: jitted(jax.value_and_grad(last_switch), q),
        exact=problems.THERMOSTAT_GRADIENT,
        answer=lambda result: result[1],
    )


def cases():
    yield from ball_cases()
    yield from drag_cases()
    yield from lorenz_cases()
    yield from many_ball_cases()


def cases_apart():
    """What is measured in a process of its own."""
    yield from switch_cases()
