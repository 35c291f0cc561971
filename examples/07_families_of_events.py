# %% [markdown]
# # Families of events: a billiard
#
# A guard may return an array. That is a whole family of events in one declaration, and the reset
# reads which member fired as `now.member`. Here the family is the walls of a polygon: a disc glides
# inside, and every wall reflects it.

# %%
import jax
import jax.numpy as jnp
import numpy as np

import saltus
from saltus.plot import COLOURS, pyplot

angles = 2 * np.pi * (np.arange(5) + 0.25) / 5
normals = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)  # outward, one row per wall


def distances(now, p):
    return p["size"] - normals @ now.x["q"]  # to all five walls at once


def reflect(now, p):
    n = normals[now.member]
    v = now.x["v"]
    return now.replace(x={"q": now.x["q"], "v": v - 2 * (n @ v) * n})


billiard = saltus.HybridSystem(
    lambda now, p: {"q": now.x["v"], "v": jnp.zeros(2)},
    events=[saltus.Event("wall", guard=distances, reset=reflect)],
)


def solve(q, v, end=30.0):
    return saltus.solve(billiard, saltus.Instant(t=0.0, x={"q": q, "v": v}), {"size": 1.0}, end)


q, v = jnp.array([0.1, -0.2]), jnp.array([0.8, 0.6])
sol = solve(q, v)
print(sol.events)

# %% [markdown]
# Members are numbered as the guard returns them. With 500 walls the program would compile just as
# fast; 500 separate events would not.
#
# Flat walls reflect neighbouring paths alike. So the derivative of the final position with respect
# to the initial one is a product of reflections, an orthogonal matrix, and that with respect to the
# initial velocity is 30 times the same matrix. This is exact for any number of bounces.

# %%
bounces = int(sol.events.count)
turn = jax.jacfwd(lambda q: solve(q, v).final.x["q"])(q)
push = jax.jacrev(lambda v: solve(q, v).final.x["q"])(v)
print(f"after {bounces} bounces:\n", turn)
assert bounces > 15
assert np.allclose(turn @ turn.T, np.eye(2), atol=1e-9)
assert np.allclose(push, 30.0 * turn, atol=1e-8)
assert np.isclose(jnp.linalg.det(turn), (-1.0) ** bounces)

# %% [markdown]
# Many trajectories at once: `vmap`. Inside `vmap` and `jit` arrays need a size before the solve
# knows how much of it is used; `max_events` is the room for the log, `max_steps` that for the
# tape. Entries that were not used are NaN, so nothing passes for a number by accident.

# %%
directions = jnp.linspace(0.5, 0.75, 6)


@jax.jit
@jax.vmap
def fan(angle):
    heading = jnp.stack([jnp.cos(angle), jnp.sin(angle)])
    start = saltus.Instant(t=0.0, x={"q": q, "v": heading})
    ts = jnp.linspace(0.0, 6.0, 600)
    return saltus.solve(billiard, start, {"size": 1.0}, 6.0, ts=ts, max_steps=200, max_events=20)


paths = fan(directions)
print(paths)
assert bool(paths.reached.all())

# %%
plt = pyplot()
figure, axes = plt.subplots(1, 2, figsize=(8.8, 4.4))
corners = np.concatenate([np.arange(5), [0]])
half = np.pi / 5
points = np.stack([np.cos(angles + half), np.sin(angles + half)], axis=1) / np.cos(half)
t = np.linspace(0.0, 30.0, 6000)
axes[0].plot(*np.asarray(sol(t)["q"]).T, color=COLOURS[0], lw=0.9)
axes[0].plot(*np.asarray(sol.events.before.x["q"]).T, "o", color=COLOURS[1], ms=3.5)
axes[0].set_title(f"One path, {bounces} bounces")
for k in range(len(directions)):
    axes[1].plot(*np.asarray(paths.y["q"][k]).T, color=COLOURS[k], lw=1.2)
axes[1].set_title("A fan of six, each differentiable")
for axis in axes:
    axis.plot(*points[corners].T, color="#2b3137", lw=1.6)
    axis.plot(*q, "o", color="#2b3137", ms=5)
    axis.set_aspect("equal")
    axis.axis("off")
figure.savefig("families_of_events.png")
