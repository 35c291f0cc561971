"""saltus on the stiff, algebraic and hybrid problems, written as a user would write them."""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp

import saltus
from problems import bed
from problems import dae as problems
from race import Family

TOOL = "saltus"
WAYS = ("adjoint", "forward")


@dataclass(frozen=True)
class Paired(Family):
    """A gradient that knows the solve it belongs to."""

    same_solve: Family | None = None


van_der_pol = saltus.HybridSystem(lambda now, mu: problems.van_der_pol(*now.x, mu))
robertson_ode = saltus.HybridSystem(lambda now, k: problems.robertson(*now.x, k))
robertson_dae = saltus.HybridSystem(
    lambda now, k: problems.robertson(*now.x, now.z, k)[:2],
    constraint=lambda now, k: now.x[0] + now.x[1] + now.z - 1.0,
)

empty = saltus.Event(
    "empty",
    guard=lambda now, p: now.x[3] - problems.CAUER_LEVEL,
    reset=lambda now, p: now.replace(x=(*now.x[:3], 0.0, now.x[4])),
    direction="rising",
)
cauer_dae = saltus.HybridSystem(
    lambda now, p: problems.cauer_flow(now.x, now.z, p),
    constraint=lambda now, p: problems.cauer_constraint(now.t, now.x, now.z, p, jnp),
    events=[empty],
)
cauer_ode = saltus.HybridSystem(
    lambda now, p: problems.cauer_ode(now.t, now.x, p, jnp), events=[empty]
)


def branch(now):
    return now.d["u"], now.d["z"], now.d["xi"]


def spring_system(force, **algebraic):
    """The oscillator, with z as an algebraic state or computed in the flow."""
    turn = saltus.Event(
        "turn",
        guard=lambda now, p: now.d["xi"] * now.x["v"],
        reset=lambda now, p: now.replace(
            d={"u": now.x["u"], "z": force(now, p), "xi": -now.d["xi"]}
        ),
    )
    return saltus.HybridSystem(
        lambda now, p: {
            "u": now.x["v"],
            "v": problems.spring_load(now.t, jnp) - force(now, p),
        },
        events=[turn],
        rate=lambda now, p: now.x["u"] ** 2,
        **algebraic,
    )


def on_branch(now, p):
    return problems.spring_force(now.x["u"], branch(now), p, jnp)


spring_ode = spring_system(on_branch)
spring_dae = spring_system(
    lambda now, p: now.z, constraint=lambda now, p: now.z - on_branch(now, p)
)


def switch(on):
    return lambda now, p: now.replace(d={"on": on})


def warmth(now):
    return jnp.mean(now.x["v"])


bed_system = saltus.HybridSystem(
    lambda now, p: dict(
        zip("uv", bed.flow(now.x["u"], now.x["v"], now.z, now.d["on"], **p, math=jnp), strict=True)
    ),
    constraint=lambda now, p: bed.constraint(now.x["u"], now.x["v"], now.z, p["a"]),
    events=[
        saltus.Event("hot", lambda now, p: warmth(now) - bed.HIGH, switch(0.0), "rising"),
        saltus.Event("cold", lambda now, p: warmth(now) - bed.LOW, switch(1.0), "falling"),
    ],
    rate=lambda now, p: bed.running(now.x["v"], jnp),
    sparsity="detect",
)


def answer_of_bed(p, method):
    ones = jnp.ones(bed.CELLS)
    start = saltus.Instant(t=0.0, x={"u": ones, "v": 0.0 * ones}, z=0.5 * ones, d={"on": 1.0})
    done = saltus.solve(bed_system, start, p, bed.END, method=method, max_steps=1024, max_events=16)
    return done.integral + bed.final(done.final.x["u"], jnp), done.stats


def answer_of_van_der_pol(mu, method):
    start = saltus.Instant(t=0.0, x=problems.VDP_START)
    done = saltus.solve(van_der_pol, start, mu, problems.VDP_END, method=method, max_steps=16384)
    return done.final.x[0], done.stats


def answer_of_robertson(system, start, k, method):
    done = saltus.solve(system, start, k, problems.ROBERTSON_END, method=method, max_steps=16384)
    return done.final.x[0], done.stats


def answer_of_cauer(system, start, p, method):
    done = saltus.solve(
        system,
        start,
        p,
        problems.CAUER_END,
        ts=problems.CAUER_TIMES,
        method=method,
        max_steps=4096,
        max_events=32,
    )
    samples = problems.cauer_samples()
    misses = [jnp.sum((y - samples[:, k]) ** 2) for k, y in enumerate(done.y)]
    return sum(misses) / samples.size, done.stats


def answer_of_spring(system, z, p, method):
    start = saltus.Instant(t=0.0, x={"u": 0.0, "v": 0.0}, z=z, d={"u": 0.0, "z": 0.0, "xi": 1.0})
    done = saltus.solve(
        system, start, p, problems.SPRING_END, method=method, max_steps=16384, max_events=64
    )
    return done.integral, done.stats


def attempts(stats):
    return stats.steps + stats.rejected


@cache
def compiled(answer, kind, way):
    """One program for all tolerances."""

    def value(p, rtol, atol):
        result, stats = answer(p, kind(rtol=rtol, atol=atol))
        return result, attempts(stats)

    if way == "solve":
        return jax.jit(value)
    if way == "forward":
        return jax.jit(jax.jacfwd(value, has_aux=True))
    both = jax.value_and_grad(value, has_aux=True)

    def gradient(p, rtol, atol):
        (_, steps), slope = both(p, rtol, atol)
        return slope, steps

    return jax.jit(gradient)


def prepared(answer, kind, way, p, rtol, atol):
    program = compiled(answer, kind, way)
    arguments = jax.tree.map(jnp.asarray, (p, rtol, atol))
    return lambda: jax.block_until_ready(program(*arguments))


def as_listed(slope):
    """The gradient as the problem lists it: an array, or slopes along the bed's directions."""
    if isinstance(slope, dict):
        return bed.directions() @ jnp.concatenate([slope["a"], slope["b"]])
    return jnp.stack(jax.tree.leaves(slope))


def families(problem, what, answer, p, value, gradient, kinds, atols, label="", ways=WAYS, **more):
    """Every method of `kinds`; gradients backwards, and forwards where there are few parameters."""
    for kind in kinds:
        name = f"{kind.__name__}{label}"
        solve = Family(
            problem,
            "solve",
            TOOL,
            name,
            partial(prepared, answer, kind, "solve", p),
            lambda result: (result[0] / value, int(result[1])),
            atols,
            **more,
        )
        if what == "solve":
            yield solve
            continue
        for way in ways:
            yield Paired(
                problem,
                what,
                TOOL,
                f"{name}, {way}",
                partial(prepared, answer, kind, way, p),
                lambda result: (
                    problems.relative(as_listed(result[0]), gradient),
                    int(result[1]),
                ),
                atols,
                **more,
                same_solve=solve,
            )


def instant(x, z: Any = None):
    return saltus.Instant(t=0.0, x=x, z=z)


STIFF = (saltus.Radau5, saltus.Rodas5P)
ALL = (*STIFF, saltus.Tsit5, saltus.Dopri8)

ROBERTSON_ODE = partial(answer_of_robertson, robertson_ode, instant((1.0, 0.0, 0.0)))
ROBERTSON_DAE = partial(answer_of_robertson, robertson_dae, instant((1.0, 0.0), 0.0))
CAUER_ODE = partial(answer_of_cauer, cauer_ode, instant((0.0,) * 5))
CAUER_DAE = partial(answer_of_cauer, cauer_dae, instant((0.0,) * 5, (0.0,) * 3))
SPRING_ODE = partial(answer_of_spring, spring_ode, None)
SPRING_DAE = partial(answer_of_spring, spring_dae, 0.0)


def cases(what):
    yield from families(
        "van der Pol",
        what,
        answer_of_van_der_pol,
        problems.VDP_MU,
        problems.VDP_VALUE,
        problems.VDP_GRADIENT,
        STIFF,
        (1.0, 1e-3),
    )
    for problem, answer in (("Robertson ODE", ROBERTSON_ODE), ("Robertson DAE", ROBERTSON_DAE)):
        yield from families(
            problem,
            what,
            answer,
            problems.ROBERTSON,
            problems.ROBERTSON_VALUE,
            problems.ROBERTSON_GRADIENT,
            STIFF,
            (1e-4, 1e-6, 1e-8),
        )
    for label, answer, kinds in ((" DAE", CAUER_DAE, ALL), (" ODE", CAUER_ODE, ALL[2:])):
        yield from families(
            "Cauer ladder",
            what,
            answer,
            tuple(problems.CAUER),
            problems.CAUER_VALUE,
            problems.CAUER_GRADIENT,
            kinds,
            (1.0,),
            label,
        )
    for label, answer, kinds in ((" DAE", SPRING_DAE, ALL), (" ODE", SPRING_ODE, ALL[2:])):
        yield from families(
            "hysteretic spring",
            what,
            answer,
            problems.SPRING,
            problems.SPRING_VALUE,
            problems.SPRING_GRADIENT,
            kinds,
            (1e-2,),
            label,
        )
    yield from families(
        "catalyst bed",
        what,
        answer_of_bed,
        {"a": bed.ADSORPTION, "b": bed.REACTION},
        bed.VALUE,
        bed.SLOPES,
        STIFF,
        (1.0,),
        ways=("adjoint",),
        loosest=1e-4,
        tightest=1e-9,
        ratio=10.0,
    )
