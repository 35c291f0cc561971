# %% [markdown]
# # Can I trust this gradient?
#
# A ball is thrown upwards in a room. If it is fast enough it hits the ceiling, loses speed there,
# and lands earlier. The time of landing depends on the speed of the throw `v`: smoothly below and
# above the speed at which the ceiling is just touched, with a kink of infinite slope in between.
# A certificate says where a gradient can be used, and how far.

# %%
import jax
import jax.numpy as jnp
import numpy as np

import saltus
from saltus.plot import COLOURS, pyplot

G, HEIGHT = 9.81, 2.0


def bumped(now, p):
    return now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]})


room = saltus.HybridSystem(
    flow=lambda now, p: {"h": now.x["v"], "v": -G},
    events=[
        saltus.Event("ceiling", guard=lambda now, p: HEIGHT - now.x["h"], reset=bumped),
        saltus.Event("floor", guard=lambda now, p: now.x["h"], terminal=True),
    ],
)


def landing(p):
    start = saltus.Instant(t=0.0, x={"h": 0.0, "v": p["v"]})
    return saltus.solve(room, start, p, 5.0).events.of("floor").nth(0).t


# %% [markdown]
# A throw that clearly hits the ceiling: TRUSTED. The report lists the events with how straight they
# cross their guards (transversality), how uncertain their times are, and how far the parameters may
# move before the sequence of events becomes another one.

# %%
fast = saltus.certify(landing, {"v": 7.0, "e": 0.6})
print(fast)
assert fast.verdict == "TRUSTED" and fast.signature == ("ceiling", "floor")

# %% [markdown]
# The trust radius along `v` is where the ball would only just reach the ceiling, to first order:
# sqrt(2 g HEIGHT) = 6.26.

# %%
touch = np.sqrt(2 * G * HEIGHT)
radius = float(fast.trust_radius({"v": -1.0, "e": 0.0}))
print(f"the sequence of events changes at v = {touch:.4f}, expected from v = 7: {7.0 - radius:.4f}")

# %% [markdown]
# At the speed that touches the ceiling exactly there is no gradient, and the certificate says so.

# %%
grazing = saltus.certify(landing, {"v": touch, "e": 0.6})
print(grazing.verdict, grazing.reasons)
assert grazing.verdict == "UNTRUSTED"

# %% [markdown]
# The gradient over the speed, with the verdict of each: the closer to the touch, the steeper, and
# the less it is worth.

# %%
speeds = np.sort(np.concatenate([np.linspace(5.4, 7.2, 19), touch + 10.0 ** -np.arange(2, 11)]))
found = [saltus.certify(landing, {"v": v, "e": 0.6}) for v in speeds]
slopes = np.array([float(c.gradient["v"]) for c in found])
verdicts = [c.verdict for c in found]
print({v: verdicts.count(v) for v in ("TRUSTED", "DEGRADED", "UNTRUSTED")})
assert {"TRUSTED", "UNTRUSTED"} <= set(verdicts)

plt = pyplot()
figure, axes = plt.subplots(2, 1, figsize=(7.2, 5.6), sharex=True)
fine = jnp.linspace(5.3, 7.3, 400)
times = jax.jit(jax.vmap(lambda v: landing({"v": v, "e": 0.6})))(fine)
axes[0].plot(fine, times, color=COLOURS[0])
axes[0].set(ylabel="time of landing", title="A throw under a ceiling")
colours = {"TRUSTED": COLOURS[2], "DEGRADED": COLOURS[3], "UNTRUSTED": COLOURS[1]}
for verdict, colour in colours.items():
    mine = [k for k, v in enumerate(verdicts) if v == verdict]
    if mine:
        axes[1].plot(speeds[mine], np.abs(slopes[mine]), "o", color=colour, label=verdict)
axes[1].set(yscale="log", ylabel="|d time / d v|", xlabel="speed of the throw v")
axes[1].legend()
for axis in axes:
    axis.axvline(touch, color="#8a94a0", lw=0.8, zorder=0.9)
figure.savefig("can_i_trust_it.png")
