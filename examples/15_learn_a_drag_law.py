# %% [markdown]
# # A law that nobody wrote down
#
# A ball falls through something thick and bounces. Gravity is known; how the drag depends on speed
# is not, and neither is the restitution e. So a small neural network takes the place of the law,
# inside the flow, and is fitted together with e to four noisy recordings of the height:
#
#     h' = v,   v' = -g - sign(v) a(|v|),   v+ = -e v- at h = 0

# %%
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import saltus
from saltus.plot import COLOURS, pyplot


def bounced(now, p):
    return now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]})


def ball(law):
    """A ball whose drag is `law(speed, p)`."""

    def flow(now, p):
        v = now.x["v"]
        return {"h": v, "v": -9.81 - jnp.sign(v) * law(jnp.abs(v), p)}

    bounce = saltus.Event("bounce", guard=lambda now, p: now.x["h"], reset=bounced)
    return saltus.HybridSystem(flow, events=[bounce], units={"t": "s", "h": "m", "v": "m/s"})


# %% [markdown]
# The network sees the speed, not the velocity, so that falling and rising share one law. What it
# returns is made positive and multiplied by the speed: the drag is zero at rest and never pushes.
# Such knowledge costs nothing to build in, and needs no data.


# %%
def true_law(speed, p):
    return 0.05 * speed + 0.08 * speed**2


def learnt_law(speed, p):
    return speed * jax.nn.softplus(p["net"](speed[None] / 10)[0])


real, model = ball(true_law), ball(learnt_law)
net = eqx.nn.MLP(1, 1, width_size=8, depth=1, activation=jnp.tanh, key=jax.random.key(0))
guess = {"net": net, "e": 0.9}


def thrown(h, v):
    return saltus.Instant(t=0.0, x={"h": h, "v": v})


# %% [markdown]
# The data: four throws, 50 heights each, with an error of 1 cm.

# %%
ts = np.linspace(0.05, 2.5, 50)
rng = np.random.default_rng(0)
throws = [thrown(2.0, 0.0), thrown(5.0, -3.0), thrown(1.0, 8.0), thrown(8.0, 0.0)]
experiments, fastest = [], 0.0
for start in throws:
    sol = saltus.solve(real, start, {"e": 0.75}, 2.5, ts=ts)
    h = np.asarray(sol.y["h"]) + 0.01 * rng.normal(size=ts.size)
    experiments.append(saltus.Experiment({"t": ts, "h": h}, start=start))
    fastest = max(fastest, float(jnp.max(jnp.abs(sol.y["v"]))))

# %% [markdown]
# The weights are leaves of the parameters like any other, and all of them are free. 25 weights are
# more than the data determine, so they have a prior, 0 give or take 2, which prefers smooth laws.

# %%
fit = saltus.fit(
    model,
    experiments,
    guess,
    start=throws[0],
    bounds={"e": (0.1, 1.0)},
    priors={"net": (0.0, 2.0)},
    noise={"h": 0.01},
    search="local",
)
print(f"{fit.result}: {fit.message}")
print(f"{len(fit.names)} numbers, {fit.evaluations} evaluations, e = {fit['e']:.4f}")
assert fit.ok
assert abs(fit["e"] - 0.75) < 0.003

# %% [markdown]
# Throws that the fit has not seen are the test. An error of 100 % is that of the floor, h = 0.


# %%
def error(p, start):
    found = saltus.solve(model, start, p, 2.5, ts=ts).y["h"]
    exact = saltus.solve(real, start, {"e": 0.75}, 2.5, ts=ts).y["h"]
    return float(jnp.linalg.norm(found - exact) / jnp.linalg.norm(exact))


unseen = [thrown(3.0, 2.0), thrown(6.0, -5.0)]
for start in unseen:
    before, after = error(guess, start), error(fit.p, start)
    print(f"unseen throw: {100 * before:.0f} % off before, {100 * after:.2f} % after")
    assert before > 0.1 and after < 0.02

# %% [markdown]
# How sure is the law? The covariance of the weights says nothing that a person could read, but goes
# through the derivative of the law by the weights to an interval at every speed. Within the speeds
# of the data the law is known closely. Beyond them it is a guess, and the interval, which supposes
# that a network of this size can follow the truth, is then no more than a hint.

# %%
speeds = jnp.linspace(0.05, 12.0, 120)
first, rest = eqx.partition(net, eqx.is_array)
first, unravel = ravel_pytree(first)
weights = ravel_pytree(eqx.filter(fit.p["net"], eqx.is_array))[0]


def law(weights):
    p = {"net": eqx.combine(unravel(weights), rest)}
    return jax.vmap(lambda speed: learnt_law(speed, p))(speeds)


found, exact = np.asarray(law(weights)), np.asarray(true_law(speeds, None))
slopes = jax.jacfwd(law)(weights)
mine = [name.startswith("net") for name in fit.names]
covariance = fit.covariance[np.ix_(mine, mine)]
width = 1.96 * np.sqrt(np.einsum("si,ij,sj->s", slopes, covariance, slopes))
inside = speeds < fastest
off = np.abs(found - exact)[inside]
print(f"up to {fastest:.1f} m/s the law is off by {off.max():.3f} m/s^2 at most,", end=" ")
print(f"and the interval reaches {width[inside].max():.3f} m/s^2")
assert np.all(off < 0.02 * exact[inside].max())
assert np.mean(off < width[inside]) > 0.8

# %%
plt = pyplot()
figure, axes = plt.subplots(1, 2, figsize=(9.2, 3.7))
axes[0].axvspan(0.0, fastest, color="#5c6b73", alpha=0.08, lw=0)
axes[0].annotate("speeds in the data", (0.25, 12.6), color="#5c6b73")
axes[0].fill_between(
    speeds, found - width, found + width, color=COLOURS[0], alpha=0.2, lw=0, label="95 % interval"
)
axes[0].plot(speeds, found, color=COLOURS[0], label="learnt")
axes[0].plot(speeds, exact, color=COLOURS[1], ls="--", lw=1.3, label="true")
axes[0].plot(speeds, law(first), color=COLOURS[3], lw=1.0, label="first guess")
axes[0].set(xlim=(0, 12), ylim=(0, 14), xlabel="speed [m/s]", ylabel="drag [m/s$^2$]")
axes[0].set_title("The law")
axes[0].legend(loc="upper left", bbox_to_anchor=(0.0, 0.9))

fine = np.linspace(0.0, 2.5, 500)
for p, system, colour, style, text in (
    (guess, model, COLOURS[3], "-", "first guess"),
    (fit.p, model, COLOURS[0], "-", "learnt"),
    ({"e": 0.75}, real, COLOURS[1], "--", "true"),
):
    sol = saltus.solve(system, unseen[1], p, 2.5)
    axes[1].plot(fine, sol(fine)["h"], color=colour, ls=style, lw=1.3, label=text)
axes[1].set(xlabel="t [s]", ylabel="h [m]", title="A throw that the fit has not seen")
axes[1].legend(loc="upper right")
figure.savefig("learn_a_drag_law.png")
