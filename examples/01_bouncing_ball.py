# ruff: noqa: E402
# %% [markdown]
# # A bouncing ball
#
# A ball falls, hits the floor, and loses a fifth of its speed at every bounce. Where is it after
# seven seconds, and how does that depend on gravity and on the floor? The whole model:

# %%
# --- first block of the README: begin ---
import jax

import saltus

bounce = saltus.Event(
    "bounce",
    guard=lambda now, p: now.x["h"],
    reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]}),
)
ball = saltus.HybridSystem(lambda now, p: {"h": now.x["v"], "v": -p["g"]}, events=[bounce])


def height(p):
    start = saltus.Instant(t=0.0, x={"h": 5.0, "v": 0.0})
    return saltus.solve(ball, start, p, 7.0).final.x["h"]


p = {"g": 9.81, "e": 0.8}
print(height(p))  # 0.0590
print(jax.grad(height)(p))  # {'e': -37.4, 'g': 0.634}
# --- first block of the README: end ---

# %% [markdown]
# Every function of a model has the arguments `(now, p)`: the instant (`now.t`, `now.x`, ...) and
# the parameters, any pytree. The flow returns `x'` with the structure of `x`. The event happens
# when its guard crosses zero from above (`direction="falling"`, the default), and its reset returns
# the instant just after.
#
# `solve` returns a `Solution`. It knows when the ball bounced, and the state on both sides.

# %%
start = saltus.Instant(t=0.0, x={"h": 5.0, "v": 0.0})
sol = saltus.solve(ball, start, p, 7.0)
print(sol)
print(sol.events)

# %% [markdown]
# Seven bounces, and the last one 0.03 s before the end: a bouncier floor delays all of them, by
# more and more, so the ball is lower after seven seconds. That is why the derivative with respect
# to `e` is -37 although a higher `e` keeps more energy. Closed forms exist for this ball; the
# derivatives agree with them.

# %%
gradient = jax.grad(height)(p)
hessian = jax.hessian(height)(p)
assert abs(gradient["e"] + 37.40810258704) < 1e-6
assert abs(gradient["g"] - 0.63388820894865) < 1e-8
assert abs(hessian["e"]["e"] + 5384.5415978404) < 1e-4

# %% [markdown]
# Times of events are differentiable like everything else. In the log, `of("bounce")` keeps only
# the events of that name.


# %%
def last_bounce(p):
    return saltus.solve(ball, start, p, 7.0).events.of("bounce").t[-1]


print(f"last bounce at {last_bounce(p):.4f} s, d/de = {jax.grad(last_bounce)(p)['e']:.4f} s")
assert abs(jax.grad(last_bounce)(p)["e"] - 21.368130749517) < 1e-7

# %% [markdown]
# A picture of the height and of its derivative over time. `sol(t)` is the state at any time, and
# `jax.jacfwd` through it is a sensitivity trajectory. It jumps at every bounce, so the curves are
# drawn piece by piece, with the limit from the left (`side="left"`) at the end of each.

# %%
from itertools import pairwise

import jax.numpy as jnp
import numpy as np

from saltus.plot import COLOURS, pyplot


def pieces(p):
    sol = saltus.solve(ball, start, p, 7.0)
    inside, end = sol(ts[:, :-1]), sol(ts[:, -1:], side="left")
    return jnp.concatenate([inside["h"], end["h"]], axis=1)


borders = [0.0, *np.asarray(sol.events.t), 7.0]
ts = jnp.asarray([np.linspace(a, b, 60) for a, b in pairwise(borders)])
heights, slopes = pieces(p), jax.jacfwd(pieces)(p)

plt = pyplot()
figure, axes = plt.subplots(2, 1, figsize=(7.6, 4.6), sharex=True)
for k, t in enumerate(ts):
    axes[0].plot(t, heights[k], color=COLOURS[0])
    axes[1].plot(t, slopes["e"][k], color=COLOURS[1], label="dh/de" if k == 0 else None)
    axes[1].plot(t, 10 * slopes["g"][k], color=COLOURS[2], label="10 dh/dg" if k == 0 else None)
for axis in axes:
    for t in borders[1:-1]:
        axis.axvline(t, color="#8a94a0", lw=0.8, alpha=0.6, zorder=0.9)
    axis.margins(x=0.01)
axes[0].set(ylabel="height h [m]", title="A bouncing ball, and what it depends on")
axes[1].set(ylabel="sensitivities [m]", xlabel="t [s]")
axes[1].legend(loc="upper left")
figure.savefig("bouncing_ball.png")
