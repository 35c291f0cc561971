"""Functions with sparse Jacobians, and their patterns."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import saltus
from saltus.linalg.dependence import pattern
from saltus.linalg.pattern import Pattern

N = 24


SHUFFLED = np.random.default_rng(1).permutation(N)
COUPLING = np.where(np.random.default_rng(2).random((N, N)) < 0.1, 1.5, 0.0)


def laplacian(u):
    """On a grid of 4 by 6 with zeros around it."""
    g, wide = u.reshape(4, 6), jnp.pad(u.reshape(4, 6), 1)
    around = wide[2:, 1:-1] + wide[:-2, 1:-1] + wide[1:-1, 2:] + wide[1:-1, :-2]
    return (around - 4 * g + g**3).reshape(-1)


def heat(u):
    inside = u[2:] - 2 * u[1:-1] + u[:-2]
    return jnp.concatenate([u[1:2] - u[:1], inside * u[1:-1], u[-2:-1] - u[-1:]])


def ring(u):
    return jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1) + jnp.sin(u)


def two_fields(y):
    """A reaction and diffusion of two substances, one after the other in the vector."""
    a, b = jnp.split(y, 2)
    return jnp.concatenate([heat(a) + a * b, heat(b) - a * b])


def network(u):
    return jnp.stack([u[k] * u[(7 * k + 1) % N] - u[(5 * k) % N] for k in range(N)])


FUNCTIONS = {
    "heat": heat,
    "ring": ring,
    "two fields": two_fields,
    "laplacian": laplacian,
    "network": network,
    "boundary by .at": lambda u: heat(u).at[0].set(0.0).at[-1].add(u[3]),
    "indices": lambda u: u[SHUFFLED] * u[::2].repeat(2) + u.at[SHUFFLED[:3]].set(u[:3] ** 2),
    "segments": lambda u: jnp.zeros(N).at[SHUFFLED // 2].add(u**2)[SHUFFLED // 2] * u,
    "matrix": lambda u: jnp.asarray(COUPLING) @ jnp.tanh(u) - u,
    "stencil": lambda u: jnp.convolve(u, jnp.array([1.0, 0.0, -2.0]), mode="same") * u,
    "mask": lambda u: jnp.where(np.arange(N) < 5, u, u[::-1]) + (np.arange(N) % 3 == 0) * ring(u),
    "rows": lambda u: (u.reshape(4, 6) / jnp.sum(u.reshape(4, 6) ** 2, 1)[:, None]).reshape(-1),
    "map": lambda u: lax.map(lambda v: v[0] * v, u.reshape(-1, 2)).reshape(-1),
    "chain": lambda u: lax.scan(lambda c, v: (v, v * c), u[0], u)[1],
    "branches": lambda u: lax.cond(u[0] > 0, lambda v: v**2, lambda v: v[::-1], u),
    "when": lambda u: saltus.when(u > 0, u, jnp.roll(u, 1)),
    "activation": lambda u: jax.nn.softplus(u) * jax.nn.relu(jnp.roll(u, 2)),
    "running sum": lambda u: jnp.cumsum(u[::-1])[::-1],
}


def pattern_of(fn, size=N):
    return Pattern.of(pattern(lambda u: [fn(u)], [jax.ShapeDtypeStruct((size,), float)], [0]))
